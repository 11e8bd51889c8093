//! What can be wrong with a configuration, always with where it stands.

use std::fmt;
use std::path::PathBuf;

use moltis_sandbox::Diagnosis;

use crate::value::shown;

/// Where a value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file; line and column count from 1, columns in characters.
    File {
        /// The file.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Column.
        column: usize,
    },
    /// In this environment variable.
    Variable(String),
    /// In this command line flag.
    Flag(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Variable(name) => f.write_str(&shown(name)),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// What is wrong with a value, whatever it was meant for. Secrets are never repeated in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// Another TOML type.
    #[error("expected {expected}, found {found}")]
    WrongType {
        /// What was expected.
        expected: String,
        /// The type that was found, with its article.
        found: String,
    },
    /// Of the right type, but too small or too large.
    #[error("`{}` is out of range", shown(.value))]
    OutOfRange {
        /// The value as it was written.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// None of the words that there are.
    #[error("unknown word `{}`", shown(.word))]
    UnknownWord {
        /// The word as it was written.
        word: String,
        /// The valid word that was probably meant.
        nearest: Option<String>,
        /// Every valid word.
        valid: Vec<&'static str>,
    },
    /// Text that does not have its form.
    #[error("`{}` is not {expected}", shown(.text))]
    Malformed {
        /// The text as it was written.
        text: String,
        /// What it should be, with its article.
        expected: String,
        /// What is wrong with it.
        why: String,
    },
    /// A field that a structured value does not have.
    #[error("unknown field `{}`", shown(.name))]
    UnknownPart {
        /// The field as it was written.
        name: String,
        /// The valid field that was probably meant.
        nearest: Option<String>,
        /// Every valid field.
        valid: Vec<&'static str>,
    },
    /// A field that a structured value must have.
    #[error("a {whole} needs `{name}`")]
    MissingPart {
        /// The field.
        name: String,
        /// What needs it.
        whole: &'static str,
    },
    /// A secret that cannot be one.
    #[error("not a usable secret: it must be printable ASCII without spaces, and not empty")]
    Secret,
    /// An environment variable that is not UTF-8.
    #[error("its value is not UTF-8")]
    NotUtf8,
}

impl InvalidValue {
    pub(crate) fn malformed(text: &str, expected: &str, why: &str) -> Self {
        Self::Malformed { text: text.to_owned(), expected: expected.to_owned(), why: why.to_owned() }
    }

    /// Stable code of the problem.
    pub fn code(&self) -> &'static str {
        match self {
            Self::WrongType { .. } => "config-wrong-type",
            Self::OutOfRange { .. } => "config-out-of-range",
            Self::UnknownWord { .. } => "config-unknown-word",
            Self::Malformed { .. } | Self::Secret | Self::NotUtf8 => "config-malformed",
            Self::UnknownPart { .. } => "config-unknown-key",
            Self::MissingPart { .. } => "config-missing-field",
        }
    }

    /// What to show a person; `subject` is what the value was given for, such as `--memory`.
    pub fn diagnosis(&self, subject: impl fmt::Display) -> Diagnosis {
        let mut diagnosis = Diagnosis::new(self.code(), format!("{subject}: {self}"));
        match self {
            Self::Malformed { why, .. } => diagnosis = diagnosis.cause(why),
            Self::OutOfRange { allowed, .. } => diagnosis = diagnosis.fix(format!("use {allowed}")),
            Self::UnknownWord { nearest, valid, .. } | Self::UnknownPart { nearest, valid, .. } => {
                let words: Vec<_> = valid.iter().map(|word| format!("`{word}`")).collect();
                let words = words.join(", ");
                diagnosis = diagnosis.fix(match nearest {
                    Some(nearest) => format!("did you mean `{nearest}`? There are {words}"),
                    None => format!("use one of {words}"),
                });
            }
            Self::WrongType { .. } | Self::MissingPart { .. } | Self::Secret | Self::NotUtf8 => {}
        }
        diagnosis
    }
}

/// One problem with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A file that was named is not there.
    #[error("there is no configuration file {}", .0.display())]
    Missing(PathBuf),
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: String,
        /// What to do.
        fix: String,
    },
    /// A file is over 1 MiB.
    #[error("{} is over 1 MiB, which no configuration is", .0.display())]
    TooLarge(PathBuf),
    /// A file is not UTF-8.
    #[error("{place}: the file is not UTF-8")]
    NotUtf8 {
        /// The first byte that is not.
        place: Place,
    },
    /// A file is not TOML.
    #[error("{place}: {message}")]
    Syntax {
        /// Where the parser stopped.
        place: Place,
        /// What it said.
        message: String,
    },
    /// A key or table that does not exist.
    #[error("{place}: unknown key `{}`{}", shown(.name), in_table(.table))]
    UnknownKey {
        /// Where it stands.
        place: Place,
        /// The key as it was written.
        name: String,
        /// The table that it stands in.
        table: String,
        /// What was probably meant.
        advice: Option<String>,
    },
    /// An environment variable with `__` that overrides nothing.
    #[error("{}: no key has this override", shown(.name))]
    UnknownOverride {
        /// The variable.
        name: String,
        /// The variable that was probably meant.
        nearest: Option<String>,
    },
    /// An environment variable for a key that no variable may override.
    #[error("{name}: `{key}` cannot be overridden by an environment variable")]
    NotOverridable {
        /// The variable.
        name: String,
        /// The key.
        key: &'static str,
        /// What to do.
        fix: String,
    },
    /// A key in `secrets.toml` that is not about credentials.
    #[error("{place}: `{key}` does not belong in secrets.toml")]
    NotACredential {
        /// Where it stands.
        place: Place,
        /// The key.
        key: &'static str,
    },
    /// A value that cannot be right.
    #[error("{place}: `{key}`: {what}")]
    Value {
        /// Where it stands.
        place: Place,
        /// The key.
        key: &'static str,
        /// What is wrong.
        what: InvalidValue,
    },
    /// Keys that do not go together.
    #[error("{message}")]
    Conflict {
        /// What does not go together, with places.
        message: String,
        /// What to do.
        fix: String,
    },
    /// A file of secrets that others could read or change.
    #[error("{} is refused", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Who could do what.
        cause: String,
        /// What to do.
        fix: String,
    },
    /// No data directory can be derived.
    #[error("no data directory: HOME is not set to an absolute path")]
    NoHome,
}

fn in_table(table: &str) -> String {
    if table.is_empty() { String::new() } else { format!(" in [{table}]") }
}

impl Problem {
    /// Stable code of the problem.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing(_) => "config-missing",
            Self::Unreadable { .. } | Self::TooLarge(_) | Self::NotUtf8 { .. } => "config-unreadable",
            Self::Syntax { .. } => "config-syntax",
            Self::UnknownKey { .. } => "config-unknown-key",
            Self::UnknownOverride { .. } => "config-unknown-override",
            Self::NotOverridable { .. } => "config-not-overridable",
            Self::NotACredential { .. } => "config-not-a-credential",
            Self::Value { what, .. } => what.code(),
            Self::Conflict { .. } => "config-conflict",
            Self::Exposed { .. } => "config-secrets-exposed",
            Self::NoHome => "config-no-home",
        }
    }

    /// What to show a person.
    pub fn diagnosis(&self) -> Diagnosis {
        let plain = Diagnosis::new(self.code(), self.to_string());
        match self {
            Self::Missing(_) => plain.fix("check the path, or write one with `moltis config init`"),
            Self::Unreadable { cause, fix, .. } | Self::Exposed { cause, fix, .. } => {
                plain.cause(cause).fix(fix)
            }
            Self::TooLarge(_) => plain.fix("name the right file"),
            Self::NotUtf8 { .. } => plain.fix("save it as UTF-8"),
            Self::Syntax { .. } => plain.fix("see https://toml.io for the form of the file"),
            Self::UnknownKey { advice, .. } => match advice {
                Some(advice) => plain.fix(advice),
                None => plain.fix("`moltis config show` lists every key"),
            },
            Self::UnknownOverride { nearest, .. } => match nearest {
                Some(nearest) => plain.fix(format!("did you mean {nearest}?")),
                None => plain.fix("unset it; `moltis config show` lists every key"),
            },
            Self::NotOverridable { fix, .. } | Self::Conflict { fix, .. } => plain.fix(fix),
            Self::NotACredential { .. } => plain.fix("set it in moltis.toml"),
            Self::Value { place, key, what } => what.diagnosis(format!("{place}: `{key}`")),
            Self::NoHome => plain.fix("set HOME, or name the folder with --data-dir or MOLTIS_DATA_DIR"),
        }
    }
}

/// Everything that is wrong with a configuration, in the order of the sources; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    problems: Vec<Problem>,
}

impl Error {
    /// Succeeds when there is no problem.
    pub(crate) fn unless_empty(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self { problems }) }
    }

    /// Every problem.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// What to show a person, one for each problem.
    pub fn diagnoses(&self) -> Vec<Diagnosis> {
        self.problems.iter().map(Problem::diagnosis).collect()
    }

    /// The first problem, which also says how many more there are.
    pub fn diagnosis(&self) -> Diagnosis {
        let Some(first) = self.problems.first() else {
            return Diagnosis::new("config-unreadable", "the configuration cannot be read");
        };
        let mut diagnosis = first.diagnosis();
        match self.problems.len() - 1 {
            0 => {}
            1 => diagnosis.message.push_str(" (and one more problem: see `moltis config check`)"),
            more => {
                diagnosis.message.push_str(&format!(" (and {more} more problems: see `moltis config check`)"))
            }
        }
        diagnosis
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, diagnosis) in self.diagnoses().iter().enumerate() {
            if nth > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{diagnosis}")?;
            if let Some(fix) = &diagnosis.fix {
                write!(f, "\n  {fix}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<Error> for moltis_sandbox::Error {
    fn from(error: Error) -> Self {
        Self::Invalid(error.diagnosis())
    }
}
