//! Reading all sources, weakest first, into one [`Config`].

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use moltis_sandbox::{Diagnosis, Origin, Setting};
use toml_edit::{Document, Item, TableLike};

use crate::env::{self, Env};
use crate::error::{Error, InvalidValue, Place, Problem};
use crate::key::Key;
use crate::paths;
use crate::schema::{self, Config, SECTIONS};
use crate::suggest::suggest;
use crate::validate;
use crate::value::{Context, Raw, shown};

/// Largest file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// A hostile file could be wrong in every byte; after so many problems the rest is left unsaid.
const MAX_PROBLEMS: usize = 100;

/// What loading depends on.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `--config`.
    pub config_path: Option<PathBuf>,
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// The environment.
    pub env: Env,
    /// The current directory, for a relative data directory; absent when it is not known.
    pub current_dir: Option<PathBuf>,
    /// The caller's user id: `secrets.toml` must belong to it.
    pub uid: u32,
}

impl Options {
    /// Those of this process, without flags. The only place in this crate that looks at the process.
    pub fn of_process() -> Self {
        Self {
            config_path: None,
            data_dir: None,
            env: env::of_process(),
            current_dir: std::env::current_dir().ok(),
            uid: rustix::process::geteuid().as_raw(),
        }
    }
}

/// A configuration and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// The files that were there and were read.
    pub files_read: Vec<PathBuf>,
    /// Where each key that somebody set was set, by its path.
    pub places: BTreeMap<&'static str, Place>,
    /// What is allowed and still worth a word.
    pub warnings: Vec<Diagnosis>,
}

/// Reads moltis.toml, `secrets.toml` and the environment.
///
/// # Errors
/// Every problem of every source, not only the first.
pub fn load(options: &Options) -> Result<Loaded, Error> {
    let env = &options.env;
    let context = Context { home: paths::home(env) };
    let mut problems = Vec::new();
    let mut files_read = Vec::new();
    let mut warnings = Vec::new();

    let file = paths::config_file(options.config_path.as_deref(), env);
    let file = file.and_then(|file| read_config(&file, &mut problems, &mut warnings));
    let file = file.and_then(|source| {
        files_read.push(source.path.clone());
        source.parse(&mut problems)
    });
    let entries = file.as_ref().map(|file| file.entries(&mut problems)).unwrap_or_default();
    if let Some(file) = &file
        && file.mode & 0o044 != 0
        && entries.iter().any(|entry| entry.key.secret)
    {
        let message = format!("{} holds a secret and can be read by other users", file.path.display());
        let fix = format!("chmod 600 {}", quoted(&file.path));
        warnings.push(Diagnosis::new("config-secret-readable", message).fix(fix));
    }
    let aliases = env::aliases(env, &mut problems);
    let overrides = env::overrides(env, &mut problems);

    let data_dir = data_dir(options, &context, &entries, &mut problems);
    let secrets =
        data_dir.as_ref().and_then(|found| read_secrets(&found.setting.value, options.uid, &mut problems));
    let secrets = secrets.and_then(|source| {
        files_read.push(source.path.clone());
        source.parse(&mut problems)
    });
    let secret_entries = secrets.as_ref().map(|file| file.credentials(&mut problems)).unwrap_or_default();

    let mut merge = Merge { config: Config::default(), places: BTreeMap::new(), context, problems };
    for variable in aliases {
        merge.set(variable.key, Raw::Word(variable.value), Origin::Alias, |_| variable.place.clone());
    }
    for (file, entries, origin) in
        [(&secrets, secret_entries, Origin::Secrets), (&file, entries, Origin::File)]
    {
        let Some(file) = file else { continue };
        for entry in entries {
            merge.set(entry.key, Raw::Item(entry.item), origin, |span| {
                file.place(span.unwrap_or(&entry.span))
            });
        }
    }
    for variable in overrides {
        merge.set(variable.key, Raw::Word(variable.value), Origin::Env, |_| variable.place.clone());
    }
    let Merge { mut config, mut places, mut problems, .. } = merge;

    if let Some(found) = data_dir {
        config.data_dir = found.setting;
        if let Some(place) = found.place {
            places.insert("data_dir", place);
        }
    }
    let sandbox = &mut config.tools.exec.sandbox;
    sandbox.shared_home_dir.value = config.data_dir.value.join(&sandbox.shared_home_dir.value);
    if let (Some(no_network), Origin::Default) = (sandbox.no_network, sandbox.network.origin) {
        sandbox.network = no_network.map(|blocked| match blocked {
            true => moltis_sandbox::Network::Blocked,
            false => moltis_sandbox::Network::Open,
        });
        if let Some(place) = places.get("tools.exec.sandbox.no_network").cloned() {
            places.insert("tools.exec.sandbox.network", place);
        }
    }
    validate::check(&config, &places, &mut problems);
    problems.truncate(MAX_PROBLEMS);
    Error::unless_empty(problems)?;
    Ok(Loaded { config, files_read, places, warnings })
}

/// The configuration while sources are laid over each other.
struct Merge {
    config: Config,
    places: BTreeMap<&'static str, Place>,
    context: Context,
    problems: Vec<Problem>,
}

impl Merge {
    fn set(
        &mut self,
        key: &'static Key,
        raw: Raw<'_>,
        origin: Origin,
        place: impl Fn(Option<&Range<usize>>) -> Place,
    ) {
        match (key.set)(&mut self.config, raw, &self.context, origin) {
            Ok(()) => drop(self.places.insert(key.path, place(None))),
            Err(flaws) => self.problems.extend(flaws.into_iter().map(|flaw| Problem::Value {
                place: place(flaw.span.as_ref()),
                key: key.path,
                what: flaw.what,
            })),
        }
    }
}

/// A file as it was read.
struct Source {
    path: PathBuf,
    mode: u32,
    bytes: Vec<u8>,
}

/// A file that is TOML.
struct Parsed {
    path: PathBuf,
    mode: u32,
    document: Document<String>,
}

/// A known key in a file.
struct Entry<'a> {
    key: &'static Key,
    item: &'a Item,
    span: Range<usize>,
}

impl Source {
    fn parse(self, problems: &mut Vec<Problem>) -> Option<Parsed> {
        let Self { path, mode, bytes } = self;
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                problems.push(Problem::NotUtf8 { place: place(&path, error.as_bytes(), at) });
                return None;
            }
        };
        match Document::parse(text.clone()) {
            Ok(document) => Some(Parsed { path, mode, document }),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                // Only the parser's own words: its full report quotes the line, which may hold a secret.
                let message = error.message().trim().replace('\n', ", ");
                problems.push(Problem::Syntax { place: place(&path, text.as_bytes(), at), message });
                None
            }
        }
    }
}

impl Parsed {
    fn place(&self, span: &Range<usize>) -> Place {
        place(&self.path, self.document.raw().as_bytes(), span.start)
    }

    /// Every known key; unknown ones become problems.
    fn entries(&self, problems: &mut Vec<Problem>) -> Vec<Entry<'_>> {
        let mut entries = Vec::new();
        self.walk(self.document.as_table(), "", &mut entries, problems);
        entries
    }

    /// Every known key of a file that may hold credentials only.
    fn credentials(&self, problems: &mut Vec<Problem>) -> Vec<Entry<'_>> {
        let mut entries = self.entries(problems);
        entries.retain(|entry| {
            // A credential is a secret, or says whose secret it is and where it goes: those have plain variables.
            let credential = !entry.key.aliases.is_empty();
            if !credential {
                let place = self.place(&entry.span);
                problems.push(Problem::NotACredential { place, key: entry.key.path });
            }
            credential
        });
        entries
    }

    fn walk<'a>(
        &'a self,
        table: &'a dyn TableLike,
        prefix: &str,
        entries: &mut Vec<Entry<'a>>,
        problems: &mut Vec<Problem>,
    ) {
        for (name, item) in table.iter() {
            if problems.len() >= MAX_PROBLEMS {
                return;
            }
            let key_span = table.get_key_value(name).and_then(|(key, _)| key.span());
            let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
            // A quoted name may hold dots, which would then be taken for tables.
            let plain = !name.contains('.');
            let key = schema::keys().find(|key| plain && key.path == path);
            if let Some(key) = key {
                entries.push(Entry { key, item, span: item.span().or(key_span).unwrap_or(0..0) });
                continue;
            }
            let is_table = plain && SECTIONS.iter().any(|section| within(section.path, &path));
            match item.as_table_like() {
                Some(inner) if is_table => self.walk(inner, &path, entries, problems),
                None if is_table => {
                    problems.push(Problem::UnknownKey {
                        place: self.place(&key_span.or(item.span()).unwrap_or(0..0)),
                        name: name.to_owned(),
                        table: prefix.to_owned(),
                        advice: Some(format!("`{name}` is a table: write [{path}]")),
                    });
                }
                inner => problems.push(Problem::UnknownKey {
                    place: self.place(&key_span.or(item.span()).unwrap_or(0..0)),
                    name: name.to_owned(),
                    table: prefix.to_owned(),
                    advice: advice(prefix, name, inner.is_some()),
                }),
            }
        }
    }
}

/// Whether `section` is `path` or lies within it.
fn within(section: &str, path: &str) -> bool {
    section.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// What was probably meant by `name` in `table`.
fn advice(table: &str, name: &str, is_table: bool) -> Option<String> {
    let tables: Vec<&str> = {
        let mut tables: Vec<_> = SECTIONS.iter().map(|s| s.path).filter(|path| !path.is_empty()).collect();
        tables.push("tools");
        tables
    };
    if is_table {
        let last = |path: &'static str| path.rsplit('.').next().unwrap_or(path);
        let whole = if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") };
        let right = tables.iter().copied().find(|path| last(path) == name);
        let near = right.or_else(|| suggest(&whole, tables.iter().copied()));
        let near = near.or_else(|| {
            let siblings =
                tables.iter().copied().filter(|path| path.rsplit_once('.').map_or("", |p| p.0) == table);
            let names: Vec<_> = siblings.clone().map(last).collect();
            let name = suggest(name, names)?;
            siblings.clone().find(|path| last(path) == name)
        });
        if let Some(path) = near {
            return Some(format!("did you mean [{path}]?"));
        }
    }
    let siblings = || schema::keys().filter(|key| key.table() == table);
    let place = |key: &Key| match key.table() {
        "" => "above the first table".to_owned(),
        table => format!("in [{table}]"),
    };
    if let Some(key) = schema::keys().find(|key| key.name() == name) {
        return Some(format!("`{name}` belongs {}", place(key)));
    }
    if let Some(near) = suggest(name, siblings().map(Key::name)) {
        return Some(format!("did you mean `{near}`?"));
    }
    let near = suggest(name, schema::keys().map(Key::name))?;
    let key = schema::keys().find(|key| key.name() == near)?;
    Some(format!("did you mean `{near}`? It belongs {}", place(key)))
}

/// Line and column of a byte.
fn place(path: &Path, bytes: &[u8], at: usize) -> Place {
    let before = &bytes[..at.min(bytes.len())];
    let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |newline| newline + 1);
    let is_start = |b: &&u8| **b & 0xC0 != 0x80;
    Place::File {
        path: path.to_owned(),
        line: before.iter().filter(|b| **b == b'\n').count() + 1,
        column: before[line_start..].iter().filter(is_start).count() + 1,
    }
}

/// The data directory and where it was named.
struct DataDir {
    setting: Setting<PathBuf>,
    place: Option<Place>,
}

/// `None` when a problem keeps it from being known.
fn data_dir(
    options: &Options,
    context: &Context,
    entries: &[Entry<'_>],
    problems: &mut Vec<Problem>,
) -> Option<DataDir> {
    let flag = options.data_dir.as_deref().map(|dir| (dir, Origin::Flag, Place::Flag("--data-dir")));
    let variable = env::get(&options.env, "MOLTIS_DATA_DIR").map(Path::new);
    let variable = variable.map(|dir| (dir, Origin::Env, Place::Variable("MOLTIS_DATA_DIR".to_owned())));
    if let Some((dir, origin, place)) = flag.or(variable) {
        let base = if dir.is_absolute() { Some(Path::new("/")) } else { options.current_dir.as_deref() };
        let base = base.filter(|_| !dir.as_os_str().is_empty());
        let Some(base) = base else {
            let text = dir.to_string_lossy();
            let why = if text.is_empty() { "it is empty" } else { "it is relative to an unknown directory" };
            let what = InvalidValue::malformed(&text, "a data directory", why);
            problems.push(Problem::Value { place, key: "data_dir", what });
            return None;
        };
        return Some(DataDir { setting: Setting::new(base.join(dir), origin), place: Some(place) });
    }
    if let Some(entry) = entries.iter().find(|entry| entry.key.path == "data_dir") {
        let mut config = Config::default();
        // What is wrong with it is told when the file is laid over the defaults.
        (entry.key.set)(&mut config, Raw::Item(entry.item), context, Origin::File).ok()?;
        return Some(DataDir { setting: config.data_dir, place: None });
    }
    match &context.home {
        Some(home) => Some(DataDir { setting: Setting::built_in(home.join(".moltis")), place: None }),
        None => {
            problems.push(Problem::NoHome);
            None
        }
    }
}

/// Opens a file without waiting (a FIFO would wait for a writer) and reads it, if it is a file at all.
fn open(path: &Path, problems: &mut Vec<Problem>) -> Option<File> {
    let unreadable =
        |cause: String, fix: &str| Problem::Unreadable { path: path.to_owned(), cause, fix: fix.to_owned() };
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(nonblock).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => {
            let fix = match error.kind() {
                ErrorKind::PermissionDenied => {
                    "make it readable for this user, or run as the user that it belongs to"
                }
                _ => "check the path",
            };
            problems.push(unreadable(error.to_string(), fix));
            return None;
        }
    };
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Some(file),
        Ok(metadata) => {
            let cause = if metadata.is_dir() { "it is a directory" } else { "it is not a regular file" };
            problems.push(unreadable(cause.to_owned(), "name the file itself"));
            None
        }
        Err(error) => {
            problems.push(unreadable(error.to_string(), "check the path"));
            None
        }
    }
}

fn read(path: &Path, file: File, mode: u32, problems: &mut Vec<Problem>) -> Option<Source> {
    let mut bytes = Vec::new();
    match file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes) {
        Ok(_) if bytes.len() as u64 > MAX_FILE_BYTES => {
            problems.push(Problem::TooLarge(path.to_owned()));
            None
        }
        Ok(_) => Some(Source { path: path.to_owned(), mode, bytes }),
        Err(error) => {
            let fix = "check the file system".to_owned();
            problems.push(Problem::Unreadable { path: path.to_owned(), cause: error.to_string(), fix });
            None
        }
    }
}

fn read_config(
    found: &paths::ConfigFile,
    problems: &mut Vec<Problem>,
    warnings: &mut Vec<Diagnosis>,
) -> Option<Source> {
    let path = &found.path;
    let before = problems.len();
    let Some(file) = open(path, problems) else {
        if found.named && problems.len() == before {
            problems.push(Problem::Missing(path.clone()));
        }
        return None;
    };
    let mode = file.metadata().map_or(0, |metadata| metadata.mode() & 0o7777);
    if mode & 0o002 != 0 {
        let message = format!("{} can be changed by every user of this machine", path.display());
        let fix = format!("chmod o-w {}", quoted(path));
        warnings.push(Diagnosis::new("config-writable-by-others", message).fix(fix));
    }
    read(path, file, mode, problems)
}

fn read_secrets(data_dir: &Path, uid: u32, problems: &mut Vec<Problem>) -> Option<Source> {
    if !data_dir.is_dir() {
        // Whoever uses the folder says what is wrong with it.
        return None;
    }
    let path = data_dir.join("secrets.toml");
    let file = open(&path, problems)?;
    let metadata = file.metadata().ok()?;
    let mode = metadata.mode() & 0o7777;
    let (cause, fix) = if metadata.uid() != uid {
        let cause = format!("it belongs to uid {}, not to the caller (uid {uid})", metadata.uid());
        (cause, format!("chown {uid} {0} && chmod 600 {0}", quoted(&path)))
    } else if mode & 0o177 != 0 {
        (
            format!("its mode is {mode:04o}: others can reach the secrets in it"),
            format!("chmod 600 {}", quoted(&path)),
        )
    } else {
        return read(&path, file, mode, problems);
    };
    problems.push(Problem::Exposed { path, cause, fix });
    None
}

/// A path as a shell would read it.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
    if text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", shown(&text).replace('\'', "'\\''"))
    }
}
