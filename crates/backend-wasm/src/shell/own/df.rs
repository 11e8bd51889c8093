//! `df`: how much the sandbox's folders hold and may hold.

use std::path::Path;
use std::sync::Arc;

use bashkit::{Command, CommandContext, CommandStatus, async_trait};
use rustix::fs::fstatvfs;

use super::refuse;
use crate::tree::{Follow, Root, Spot, Tree};

/// How sizes are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes(u64),
    Short(u64),
}

impl Unit {
    fn show(self, bytes: u64) -> String {
        match self {
            Self::Bytes(unit) => bytes.div_ceil(unit).to_string(),
            Self::Short(base) => {
                let (mut value, mut unit) = (bytes, "");
                for next in ["K", "M", "G", "T", "P"] {
                    if value < base {
                        break;
                    }
                    (value, unit) = (value.div_ceil(base), next);
                }
                format!("{value}{unit}")
            }
        }
    }

    fn name(self) -> String {
        match self {
            Self::Bytes(1024) => "1024-blocks".to_owned(),
            Self::Bytes(unit) if unit == 1 << 20 => "1048576-blocks".to_owned(),
            Self::Bytes(unit) => format!("{unit}-blocks"),
            Self::Short(_) => "Size".to_owned(),
        }
    }
}

fn read(words: &[String]) -> Result<(Unit, Vec<&str>), String> {
    let (mut unit, mut files) = (Unit::Bytes(1024), Vec::new());
    for word in words {
        match word.as_str() {
            "--human-readable" => unit = Unit::Short(1024),
            "--si" => unit = Unit::Short(1000),
            "--portability" | "--all" | "--local" | "--" => {}
            _ if word.starts_with("--") => return Err(format!("unrecognized option '{word}'")),
            _ if word.starts_with('-') && word.len() > 1 => {
                for letter in word.chars().skip(1) {
                    match letter {
                        'P' | 'a' | 'l' => {}
                        'k' => unit = Unit::Bytes(1024),
                        'm' => unit = Unit::Bytes(1 << 20),
                        'h' => unit = Unit::Short(1024),
                        'H' => unit = Unit::Short(1000),
                        _ => return Err(format!("invalid option -- '{letter}'")),
                    }
                }
            }
            file => files.push(file),
        }
    }
    Ok((unit, files))
}

/// Bytes that it may hold in all, and that are used and free.
fn sizes(root: &Root) -> (u64, u64, u64) {
    if let Some(quota) = &root.quota {
        let used = quota.used(root.handle());
        return (quota.limit(), used.min(quota.limit()), quota.limit().saturating_sub(used));
    }
    fstatvfs(root.handle()).map_or((0, 0, 0), |found| {
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        (bytes(found.f_blocks), bytes(found.f_blocks.saturating_sub(found.f_bfree)), bytes(found.f_bavail))
    })
}

fn line(root: &Root, unit: Unit) -> String {
    let (all, used, free) = sizes(root);
    let percent = used.saturating_mul(100).div_ceil((used + free).max(1));
    let at = String::from_utf8_lossy(&root.path()).into_owned();
    format!("sandbox {} {} {} {percent}% {at}\n", unit.show(all), unit.show(used), unit.show(free))
}

/// The command.
pub struct Df(pub Arc<Tree>);

#[async_trait]
impl Command for Df {
    async fn execute(&self, ctx: CommandContext<'_>) -> bashkit::Result<CommandStatus> {
        let (unit, files) = match read(ctx.args) {
            Ok(asked) => asked,
            Err(why) => return refuse(&ctx, &why, 1).await,
        };
        let (mut out, mut code) =
            (format!("Filesystem {} Used Available Capacity Mounted on\n", unit.name()), 0);
        if files.is_empty() {
            self.0.roots().iter().for_each(|root| out.push_str(&line(root, unit)));
        }
        for file in files {
            match self.root(&ctx.cwd.join(file)) {
                Some(root) => out.push_str(&line(root, unit)),
                None => {
                    code = 1;
                    let why = format!("df: {file}: No such file or directory\n");
                    ctx.stderr.write_all(why.as_bytes()).await?;
                }
            }
        }
        ctx.stdout.write_all(out.as_bytes()).await?;
        Ok(CommandStatus::with_code(code))
    }
}

impl Df {
    fn root(&self, path: &Path) -> Option<&Root> {
        match self.0.walk(path.as_os_str().as_encoded_bytes(), Follow::All).ok()? {
            Spot::Bare { .. } => None,
            Spot::Root { root } | Spot::Entry { root, .. } => self.0.roots().get(root),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_the_unit_that_was_asked_for() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (line, unit, bytes, shown) in [
            ("-Pm /tmp", Unit::Bytes(1 << 20), 256 << 20, "256"),
            ("-k /tmp", Unit::Bytes(1024), 1025, "2"),
            ("-h /tmp", Unit::Short(1024), 256 << 20, "256M"),
            ("-H /tmp", Unit::Short(1000), 999, "999"),
        ] {
            assert_eq!(read(&words(line)), Ok((unit, vec!["/tmp"])), "{line}");
            assert_eq!(unit.show(bytes), shown, "{line}");
        }
        assert!(read(&words("-x")).is_err());
    }
}
