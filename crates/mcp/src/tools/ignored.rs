//! What the `.gitignore` files of a tree leave out of a search.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use futures_util::StreamExt;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use moltis_sandbox::{Error, Files, GuestPath, Result};

use super::walk::below;

/// Name of the files that are read.
pub(crate) const NAME: &str = ".gitignore";

/// Bytes of one that are read, and of all together. Whoever writes them is not trusted: what lies beyond has no effect.
const BYTES: (u64, u64) = (64 << 10, 1 << 20);

/// Directories above the top whose rules are read.
const ABOVE: usize = 32;

/// The rules that were read so far, by the directory that they are in, from the root.
#[derive(Default)]
pub(crate) struct Ignored {
    rules: BTreeMap<Vec<u8>, Gitignore>,
    read: u64,
}

impl Ignored {
    /// Reads the rules of the directories above a top, which hold below it too.
    ///
    /// # Errors
    /// The sandbox does not answer.
    pub async fn above(&mut self, files: &dyn Files, top: &[u8]) -> Result<()> {
        for directory in ancestors(top).take(ABOVE) {
            self.read(files, directory).await?;
        }
        Ok(())
    }

    /// Reads those of one directory. One that cannot be read rules nothing.
    ///
    /// # Errors
    /// The sandbox does not answer.
    pub async fn read(&mut self, files: &dyn Files, directory: &[u8]) -> Result<()> {
        let Some(path) = GuestPath::new(below(directory, NAME.as_bytes())) else { return Ok(()) };
        let content = match content(files, &path).await {
            Ok(content) => content,
            Err(Error::Refused(_) | Error::Invalid(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.read = self.read.saturating_add(content.len() as u64);
        if self.read <= BYTES.1 {
            self.add(directory, &content);
        }
        Ok(())
    }

    /// What cannot be understood of a file is passed over, as git does.
    fn add(&mut self, directory: &[u8], content: &[u8]) {
        let mut builder = GitignoreBuilder::new("");
        for line in String::from_utf8_lossy(content).lines() {
            let _ = builder.add_line(None, line);
        }
        if let Ok(rules) = builder.build() {
            self.rules.insert(directory.to_vec(), rules);
        }
    }

    /// Whether the rules leave this out, what it lies in not being left out itself. The nearest decide.
    pub fn has(&self, path: &[u8], is_directory: bool) -> bool {
        if self.rules.is_empty() {
            return false;
        }
        for directory in ancestors(path) {
            let Some(rules) = self.rules.get(directory) else { continue };
            let from_there = path[directory.len()..].strip_prefix(b"/").unwrap_or(&path[directory.len()..]);
            match rules.matched(Path::new(OsStr::from_bytes(from_there)), is_directory) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => {}
            }
        }
        false
    }
}

/// The directories that something lies in, from the nearest to the root.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(path);
    std::iter::from_fn(move || {
        let path = rest.take()?;
        let slash = path.iter().rposition(|byte| *byte == b'/')?;
        if slash == 0 {
            return (path.len() > 1).then_some(&path[..1]);
        }
        rest = Some(&path[..slash]);
        rest
    })
}

async fn content(files: &dyn Files, path: &GuestPath) -> Result<Vec<u8>> {
    let mut read = files.read(path, 0, Some(BYTES.0)).await?;
    let mut all = Vec::new();
    while let Some(piece) = read.content.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_rules_decide() {
        let mut ignored = Ignored::default();
        ignored.add(b"/work", b"target/\n*.log\n/only\n# a comment\n");
        ignored.add(b"/work/deep", b"!kept.log\n");
        let has = |path: &str, is_directory| ignored.has(path.as_bytes(), is_directory);
        assert!(has("/work/target", true) && !has("/work/target", false) && has("/work/x/target", true));
        assert!(has("/work/a.log", false) && has("/work/deep/a.log", false));
        assert!(!has("/work/deep/kept.log", false) && has("/work/kept.log", false));
        assert!(has("/work/only", false) && !has("/work/deep/only", false));
        assert!(!has("/worker/a.log", false) && !has("/a.log", false));
        let mut root = Ignored::default();
        root.add(b"/", b"/tmp\n");
        assert!(root.has(b"/tmp", true) && !root.has(b"/x/tmp", true));
    }

    #[test]
    fn ancestors_go_to_the_root() {
        let all = |path: &'static str| -> Vec<&[u8]> { ancestors(path.as_bytes()).collect() };
        assert_eq!(all("/a/b/c"), [&b"/a/b"[..], b"/a", b"/"]);
        assert_eq!(all("/a"), [b"/"]);
        assert!(all("/").is_empty());
    }
}
