//! Values with parts: mounts, WASI commands, GPUs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

pub use moltis_sandbox::Gpus;
use moltis_sandbox::{Mount, MountMode};
use toml_edit::{Item, TableLike, Value};

use super::path::AbsolutePath;
use super::{Context, Flaw, Format, Raw, Text, found, quote, wrong_type};
use crate::error::InvalidValue;
use crate::suggest::suggest;
use crate::words::Words;

impl Words for MountMode {
    fn all() -> Vec<(&'static str, Self)> {
        vec![("ro", Self::Ro), ("rw", Self::Rw)]
    }
}

/// Mounts: an array of tables, or of inline tables.
pub struct Mounts;

impl Format for Mounts {
    type Value = Vec<Mount>;

    fn name() -> String {
        "list of `{ source, target, mode }`; mode `ro` (default) or `rw`".to_owned()
    }

    fn example() -> String {
        "[{ source = \"/srv/data\", target = \"/data\" }]".to_owned()
    }

    fn read(raw: Raw<'_>, context: &Context) -> Result<Vec<Mount>, Vec<Flaw>> {
        const EXPECTED: &str = "a list of mounts, such as [{ source = \"/srv/data\", target = \"/data\" }]";
        let mut flaws = Vec::new();
        let mut mounts: Vec<Mount> = Vec::new();
        let mut add = |table: &dyn TableLike, span: Option<Range<usize>>, flaws: &mut Vec<Flaw>| {
            let Some(mount) = mount(table, span.clone(), context, flaws) else { return };
            if mounts.iter().any(|other| other.target == mount.target) {
                let target = mount.target.display().to_string();
                let why = "another mount has the same target";
                flaws.push(Flaw { what: InvalidValue::malformed(&target, "a mount target", why), span });
            } else {
                mounts.push(mount);
            }
        };
        match raw {
            Raw::Item(Item::ArrayOfTables(tables)) => {
                tables.iter().for_each(|table| add(table, table.span(), &mut flaws));
            }
            Raw::Item(Item::Value(Value::Array(array))) => {
                for element in array {
                    match element {
                        Value::InlineTable(table) => add(table, element.span(), &mut flaws),
                        other => flaws.push(Flaw {
                            what: InvalidValue::WrongType {
                                expected: "a mount, { source = …, target = … }".to_owned(),
                                found: found(other.type_name()),
                            },
                            span: element.span(),
                        }),
                    }
                }
            }
            other => return Err(wrong_type(other, EXPECTED)),
        }
        if flaws.is_empty() { Ok(mounts) } else { Err(flaws) }
    }

    fn write(mounts: &Vec<Mount>) -> String {
        let path = |path: &Path| quote(&path.to_string_lossy());
        let each = mounts.iter().map(|mount| {
            let (source, target) = (path(&mount.source), path(&mount.target));
            format!("{{ source = {source}, target = {target}, mode = {} }}", quote(mount.mode.word()))
        });
        format!("[{}]", each.collect::<Vec<_>>().join(", "))
    }
}

fn mount(
    table: &dyn TableLike,
    span: Option<Range<usize>>,
    context: &Context,
    flaws: &mut Vec<Flaw>,
) -> Option<Mount> {
    const KEYS: [&str; 3] = ["source", "target", "mode"];
    let before = flaws.len();
    let (mut source, mut target, mut mode) = (None, None, MountMode::Ro);
    for (name, item) in table.iter() {
        let span = item.span().or_else(|| span.clone());
        if !KEYS.contains(&name) {
            let span = table.get_key_value(name).and_then(|(key, _)| key.span()).or(span);
            let what = InvalidValue::UnknownPart {
                name: name.to_owned(),
                nearest: suggest(name, KEYS).map(str::to_owned),
                valid: KEYS.to_vec(),
            };
            flaws.push(Flaw { what, span });
            continue;
        }
        let Item::Value(Value::String(text)) = item else {
            let what = InvalidValue::WrongType {
                expected: format!("a string (`{name}` of a mount)"),
                found: found(item.type_name()),
            };
            flaws.push(Flaw { what, span });
            continue;
        };
        let text = text.value();
        let read = match name {
            "source" => AbsolutePath::parse(text, context).map(|path| source = Some(path)),
            "target" => mount_target(text).map(|path| target = Some(path)),
            _ => MountMode::parse(text).map(|word| mode = word),
        };
        if let Err(what) = read {
            flaws.push(Flaw { what, span });
        }
    }
    for name in ["source", "target"] {
        if table.get(name).is_none() {
            let what = InvalidValue::MissingPart { name: name.to_owned(), whole: "mount" };
            flaws.push(Flaw { what, span: span.clone() });
        }
    }
    (flaws.len() == before).then_some(Mount { source: source?, target: target?, mode })
}

/// A place inside the sandbox at which something of the host may show.
fn mount_target(text: &str) -> Result<PathBuf, InvalidValue> {
    let malformed = |why: &str| InvalidValue::malformed(text, "a mount target", why);
    let path = Path::new(text);
    if !path.is_absolute() || text.contains('\0') {
        return Err(malformed("it must be an absolute path of the sandbox"));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(malformed("it must not contain `..`"));
    }
    let plain: PathBuf = path.components().collect();
    if plain == Path::new("/") {
        return Err(malformed("/ cannot be mounted over: use `rootfs`"));
    }
    if ["/proc", "/sys", "/dev"].iter().any(|taken| plain.starts_with(taken)) {
        return Err(malformed("/proc, /sys and /dev belong to the sandbox"));
    }
    match plain.to_str() {
        Some("/workspace") => Err(malformed("that is where `workspace` shows")),
        Some("/home/sandbox") => {
            Err(malformed("that is the home: see `home_persistence` and `shared_home_dir`"))
        }
        Some("/home/sandbox/files") => {
            Err(malformed("that is where managed files show: see `managed_files_mount`"))
        }
        _ => Ok(plain),
    }
}

/// WASI modules by the name under which commands call them.
pub struct Commands;

impl Format for Commands {
    type Value = BTreeMap<String, PathBuf>;

    fn name() -> String {
        "table of name = \"/path/to/module.wasm\"".to_owned()
    }

    fn example() -> String {
        "{ python = \"/opt/python.wasm\" }".to_owned()
    }

    fn read(raw: Raw<'_>, context: &Context) -> Result<Self::Value, Vec<Flaw>> {
        let Raw::Item(item) = raw else { return Err(wrong_type(raw, "a table")) };
        let Some(table) = item.as_table_like() else {
            return Err(wrong_type(raw, "a table, such as { python = \"/opt/python.wasm\" }"));
        };
        let mut commands = BTreeMap::new();
        let mut flaws = Vec::new();
        for (name, item) in table.iter() {
            let key_span = table.get_key_value(name).and_then(|(key, _)| key.span());
            let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
            if !first || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._+-".contains(&b)) {
                let why = "letters, digits and . _ + - are allowed";
                let what = InvalidValue::malformed(name, "a command's name", why);
                flaws.push(Flaw { what, span: key_span.clone() });
            }
            let span = item.span().or(key_span);
            match item {
                Item::Value(Value::String(text)) => match AbsolutePath::parse(text.value(), context) {
                    Ok(path) => drop(commands.insert(name.to_owned(), path)),
                    Err(what) => flaws.push(Flaw { what, span }),
                },
                other => {
                    let expected = "a string (path of a .wasm module)".to_owned();
                    let what = InvalidValue::WrongType { expected, found: found(other.type_name()) };
                    flaws.push(Flaw { what, span });
                }
            }
        }
        if flaws.is_empty() { Ok(commands) } else { Err(flaws) }
    }

    fn write(commands: &Self::Value) -> String {
        if commands.is_empty() {
            return "{}".to_owned();
        }
        let each = commands
            .iter()
            .map(|(name, path)| format!("{} = {}", quote(name), quote(&path.to_string_lossy())));
        format!("{{ {} }}", each.collect::<Vec<_>>().join(", "))
    }
}

/// `all`, or ids with commas between.
pub struct GpusFormat;

impl Text for GpusFormat {
    type Value = Gpus;

    const NAME: &'static str = "`all`, or ids with commas between";
    const EXAMPLE: &'static str = "all";

    fn parse(text: &str, _: &Context) -> Result<Gpus, InvalidValue> {
        if text == "all" {
            return Ok(Gpus::All);
        }
        let ids: Vec<_> = text.split(',').map(|id| id.trim().to_owned()).collect();
        let fits = |id: &String| {
            // A word without a digit is a misspelt `all`, not an id.
            id.bytes().any(|b| b.is_ascii_digit())
                && id.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
                && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        if ids.iter().all(fits) {
            return Ok(Gpus::Ids(ids));
        }
        Err(InvalidValue::malformed(text, "a choice of GPUs", "write \"all\", or ids such as \"0,1\""))
    }

    fn text(value: &Gpus) -> String {
        value.to_string()
    }
}
