//! What is known about one key: the row of the table that everything else is made from.

use moltis_sandbox::Origin;

use crate::schema::Config;
use crate::value::{Context, Flaw, Raw};

/// One key of moltis.toml.
pub struct Key {
    /// Table and name joined by dots, such as `tools.exec.sandbox.backend`.
    pub path: &'static str,
    /// What it is for, in one line without a full stop.
    pub help: &'static str,
    /// Whether its value is never shown.
    pub secret: bool,
    /// Who may override the configuration file.
    pub over: Over,
    /// Plain environment variables that set it when nothing stronger does, strongest first.
    pub aliases: &'static [&'static str],
    /// What holds when nobody sets it.
    pub default: Fallback,
    /// What its values look like, for people.
    pub kind: fn() -> String,
    /// A value as it would be written in moltis.toml, to show the form.
    pub example: fn() -> String,
    pub(crate) set: Set,
    pub(crate) get: fn(&Config) -> Option<(String, Origin)>,
}

/// Reads a value and puts it, with who set it, into its field.
type Set = fn(&mut Config, Raw<'_>, &Context, Origin) -> Result<(), Vec<Flaw>>;

/// What holds when nobody sets a key.
pub enum Fallback {
    /// A value, as it would be written in moltis.toml.
    Value(fn() -> String),
    /// Something that is found out or decided later, in words; empty: nothing.
    Words(&'static str),
}

/// Who may override what the configuration file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// A `MOLTIS_…__…` environment variable.
    pub env: bool,
    /// An override stored with a session.
    pub session: bool,
    /// A command line flag.
    pub flag: bool,
    /// An API call.
    pub api: bool,
}

impl Over {
    /// Reads the letters E, S, F, A.
    pub(crate) const fn letters(letters: &str) -> Self {
        let mut over = Self { env: false, session: false, flag: false, api: false };
        let bytes = letters.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            match bytes[at] {
                b'E' => over.env = true,
                b'S' => over.session = true,
                b'F' => over.flag = true,
                b'A' => over.api = true,
                _ => panic!("a letter that is none of E, S, F, A"),
            }
            at += 1;
        }
        over
    }
}

impl Key {
    /// The last part of the path.
    pub fn name(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }

    /// Its value in this configuration, as it would be written in moltis.toml, and who set it. A secret is only said to
    /// be set.
    pub fn value(&self, config: &Config) -> Option<(String, Origin)> {
        (self.get)(config)
    }

    /// The table that the key stands in, such as `tools.exec.sandbox`; empty for the top.
    pub fn table(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// The environment variable that overrides it, if any may: `MOLTIS_` and the path in capitals, joined by `__`.
    pub fn variable(&self) -> Option<String> {
        self.over.env.then(|| crate::env::variable(self.path))
    }

    /// The default as it would be written in moltis.toml, if it is a fixed value.
    pub fn default_value(&self) -> Option<String> {
        match self.default {
            Fallback::Value(text) => Some(text()),
            Fallback::Words(_) => None,
        }
    }
}

/// One table of moltis.toml.
pub struct Section {
    /// Its name, such as `tools.exec`; empty for the top of the file.
    pub path: &'static str,
    /// What it is about, in one line.
    pub help: &'static str,
    /// Its keys, in the order of the reference.
    pub keys: &'static [Key],
}
