//! The reference page of the documentation, made from the table of keys.

use crate::key::{Fallback, Key};
use crate::schema::SECTIONS;
use crate::unused;
use crate::value::text::PACKAGE_GROUPS;

const INTRODUCTION: &str = "\
# Configuration

<!-- Made from the table of keys in crates/config/src/schema.rs: change it there, then run the tests of moltis-config
with MOLTIS_BLESS=1. -->

Moltis runs without any configuration. What is set is kept or refused: a value that somebody set is a demand, and a
backend that cannot keep it does not run the command. A default that a backend cannot keep is left off, and every
answer says so.

`moltis config init` writes a file with every key as a comment, `moltis config check` judges it, `moltis config show`
prints every key with its value and the place where it was set. Unknown keys and words are errors. Keys of what is not
built yet are read, checked and not used: the tables below mark them, and `config check` warns of each that is set.

## Where values come from

Weakest first:

1. the default;
2. plain environment variables that other tools know too, such as `VERCEL_TOKEN` (an empty one counts as unset);
3. `secrets.toml` in the data directory: the same tables, but only keys that have a plain variable. It must belong to
   the user who runs Moltis and have mode 0600;
4. `moltis.toml`: the file that `--config` names, else `$MOLTIS_CONFIG_DIR/moltis.toml`,
   `$XDG_CONFIG_HOME/moltis/moltis.toml`, `~/.config/moltis/moltis.toml`. A file that `--config` names must exist;
   otherwise a missing file means the defaults;
5. `MOLTIS_` and the path of the key in capitals, joined by two underscores, such as
   `MOLTIS_TOOLS__EXEC__SANDBOX__BACKEND`. Only names with two underscores in a row are overrides. A key that no
   variable may override refuses it by name;
6. what a session stores, a flag or an API call says.

The data directory is the one of `--data-dir`, else `MOLTIS_DATA_DIR`, the key `data_dir`, `~/.moltis`.

In the tables below *over* says who may override the file: **E** an environment variable, **S** a session, **F** a
flag, **A** an API call.

## How values are written

* **Size**: a number of bytes, or a string with `K`, `M`, `G` or `T` (powers of 1024): `\"512M\"`.
* **Duration**: a string of numbers with units `ms`, `s`, `m`, `h`, `d`: `\"60s\"`, `\"1h30m\"`.
* **Path**: absolute, or beginning with `~/`.
* **Glob**: `*` and `?` match within one part of a path, `**` as a whole part matches any number of parts, `[a-z]` and
  `[!a-z]` one ASCII character, `\\` takes the next character as it is. A glob matches the whole path.
* **Domain pattern**: `example.com` (this name alone), `*.example.com` (the names below it), `*`, an address or a block
  such as `10.0.0.0/8`; `:port` behind it narrows it to one port.
* **Image reference**: `registry/path:tag` or with `@sha256:…`.
";

/// The page, in Markdown.
pub fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str("* **Package**: a package's name, or one of the groups ");
    let groups: Vec<_> = PACKAGE_GROUPS.iter().map(|(name, what)| format!("`@{name}` ({what})")).collect();
    page.push_str(&groups.join(", "));
    page.push_str(".\n\n## Keys\n");
    for section in SECTIONS {
        let title = match section.path {
            "" => "Top of the file".to_owned(),
            path => format!("`[{path}]`"),
        };
        page.push_str(&format!("\n### {title}\n\n{}.\n\n", section.help));
        page.push_str("| key | values | default | over | what it is for |\n|---|---|---|---|---|\n");
        for key in section.keys {
            page.push_str(&row(key));
        }
    }
    page
}

fn row(key: &Key) -> String {
    let default = match key.default {
        Fallback::Value(value) => format!("`{}`", value()),
        Fallback::Words("") => "–".to_owned(),
        Fallback::Words(words) => words.to_owned(),
    };
    let letters = [(key.over.env, 'E'), (key.over.session, 'S'), (key.over.flag, 'F'), (key.over.api, 'A')];
    let over: String = letters.into_iter().filter(|(may, _)| *may).map(|(_, letter)| letter).collect();
    let over = if over.is_empty() { "–".to_owned() } else { over };
    let aliases: Vec<_> = key.aliases.iter().map(|alias| format!("`{alias}`")).collect();
    let aliases = match aliases.as_slice() {
        [] => String::new(),
        [..] => format!(" (also {})", aliases.join(", ")),
    };
    let unused = if unused::is_used(key.path) { "" } else { "; *not used by this version*" };
    let cells =
        [format!("`{}`", key.name()), (key.kind)(), default, over, format!("{}{aliases}{unused}", key.help)];
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}
