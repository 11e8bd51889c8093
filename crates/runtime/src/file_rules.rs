//! Which paths file tools may touch: `allow_paths` and `deny_paths` of `[tools.fs]`, kept in front of any files.
//!
//! A rule that matches a directory holds for all that is in it. Rules go by the path as it is written: a link inside a
//! sandbox is not looked through, since every command there can read what file tools may not.
//!
//! A pattern without a slash in front counts from any directory. The directories on the way to what is allowed can be
//! looked at and listed, which shows of them only the way and what is allowed.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt;
use moltis_agent_protocol::tar::{BLOCK, padding};
use moltis_config::Config;
use moltis_config::value::glob::Glob;
use moltis_sandbox::files::{EntryStream, FileContent, TreeSummary, WriteOptions};
use moltis_sandbox::{ByteStream, Diagnosis, EntryKind, Error, Files, GuestPath, Metadata, Result};

use crate::bridge::{Inflow, Out, pass};
use crate::tree::archive::Archive;
use crate::tree::failure::shown;

/// Entries that are looked at for denied paths before a tree is moved or removed. One that something fills meanwhile
/// need not end.
const MAX_ENTRIES: usize = 1_000_000;

/// The rules of a configuration.
#[derive(Clone, Debug)]
pub struct FileRules(Arc<Lists>);

#[derive(Debug)]
struct Lists {
    allow: Vec<Glob>,
    deny: Vec<Glob>,
}

impl FileRules {
    /// The rules that the configuration holds.
    pub fn new(config: &Config) -> Self {
        let fs = &config.tools.fs;
        Self::of(fs.allow_paths.value.clone(), fs.deny_paths.value.clone())
    }

    fn of(allow: Vec<Glob>, deny: Vec<Glob>) -> Self {
        let plain = |globs: Vec<Glob>| globs.into_iter().map(without_ends).collect();
        Self(Arc::new(Lists { allow: plain(allow), deny: plain(deny) }))
    }

    fn is_empty(&self) -> bool {
        self.0.allow.is_empty() && self.0.deny.is_empty()
    }

    /// Why a plain path may not be touched, if it may not.
    fn refusal(&self, path: &[u8]) -> Option<&'static str> {
        let Lists { allow, deny } = &*self.0;
        let matches = |globs: &[Glob]| globs.iter().any(|glob| glob.covers(path));
        if matches(deny) {
            Some("a pattern of `deny_paths` matches it")
        } else if !allow.is_empty() && !matches(allow) {
            Some("no pattern of `allow_paths` matches it")
        } else {
            None
        }
    }

    /// Whether a plain path lies on the way to what is allowed: a directory there can be looked at.
    fn is_on_the_way(&self, path: &[u8]) -> bool {
        let Lists { allow, deny } = &*self.0;
        allow.iter().any(|glob| glob.is_below(path)) && !deny.iter().any(|glob| glob.covers(path))
    }

    /// Judges looking at something; whether only a directory may be looked at.
    fn judge_look(&self, path: &GuestPath) -> Result<bool> {
        match self.judge(path) {
            Ok(()) => Ok(false),
            Err(_) if plain(path).is_ok_and(|plain| self.is_on_the_way(&plain)) => Ok(true),
            Err(refused) => Err(refused),
        }
    }

    fn judge(&self, path: &GuestPath) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        match self.refusal(&plain(path)?) {
            Some(why) => Err(denied(path.as_bytes(), why)),
            None => Ok(()),
        }
    }
}

/// A pattern without `./` in front and slashes at the end: paths are matched without.
fn without_ends(glob: Glob) -> Glob {
    let mut text = glob.as_str();
    while let Some(rest) = text.strip_prefix("./") {
        text = rest;
    }
    while text.len() > 1 && text.ends_with('/') {
        text = &text[..text.len() - 1];
    }
    Glob::new(text).unwrap_or(glob)
}

/// A path without empty parts and `.`, as rules are matched against.
fn plain(path: &GuestPath) -> Result<Vec<u8>> {
    let parts: Vec<_> =
        path.as_bytes().split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    if parts.contains(&&b".."[..]) {
        return Err(denied(path.as_bytes(), "it holds `..`, so that no rule can tell where it leads"));
    }
    Ok([&b"/"[..], &parts.join(&b'/')].concat())
}

fn denied(path: &[u8], why: &'static str) -> Error {
    Error::Refused(
        Diagnosis::new("path-denied", format!("file tools may not touch `{}`", shown(path)))
            .cause(why)
            .fix("change `allow_paths` or `deny_paths` in [tools.fs], or use another path"),
    )
}

/// The path of an entry of a directory, whose path is plain; with no name the directory's own.
fn within(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if directory.ends_with(b"/") || name.is_empty() { b"" } else { b"/" };
    [directory, separator, name].concat()
}

/// Files of which only what the rules allow can be touched, or is seen in listings and trees.
pub struct RuledFiles<'a> {
    files: &'a dyn Files,
    rules: FileRules,
}

impl<'a> RuledFiles<'a> {
    /// These files, under these rules.
    pub fn new(files: &'a dyn Files, rules: FileRules) -> Self {
        Self { files, rules }
    }

    /// Sees that nothing in a tree is denied, before all of it is removed, or moved: then neither where it is nor where
    /// it goes.
    async fn judge_tree(&self, path: &GuestPath, to: Option<&GuestPath>) -> Result<()> {
        self.rules.judge(path)?;
        if self.rules.0.deny.is_empty() || self.files.stat(path, false).await?.kind != EntryKind::Directory {
            return Ok(());
        }
        let top = plain(path)?;
        let to = to.map(plain).transpose()?;
        // Each below the top.
        let mut waiting = vec![Vec::new()];
        let mut seen = 0;
        while let Some(directory) = waiting.pop() {
            let here = within(&top, &directory);
            let Some(listed) = GuestPath::new(here.clone()) else { return Err(too_much(&here)) };
            let mut entries = self.files.list(&listed).await?;
            while let Some(entry) = entries.next().await {
                let entry = entry?;
                let name = entry.name.as_encoded_bytes();
                let below = if directory.is_empty() { name.to_vec() } else { within(&directory, name) };
                for place in [Some(&top), to.as_ref()].into_iter().flatten() {
                    let whole = within(place, &below);
                    if let Some(why) = self.rules.refusal(&whole) {
                        return Err(denied(&whole, why));
                    }
                }
                seen += 1;
                if seen > MAX_ENTRIES {
                    return Err(too_much(&top));
                }
                if entry.metadata.kind == EntryKind::Directory {
                    waiting.push(below);
                }
            }
        }
        Ok(())
    }
}

fn too_much(path: &[u8]) -> Error {
    denied(path, "what lies in it is too much to hold against `deny_paths`")
}

#[async_trait]
impl Files for RuledFiles<'_> {
    async fn stat(&self, path: &GuestPath, follow: bool) -> Result<Metadata> {
        let is_on_the_way = self.rules.judge_look(path)?;
        let found = self.files.stat(path, follow).await?;
        if is_on_the_way && found.kind != EntryKind::Directory {
            self.rules.judge(path)?;
        }
        Ok(found)
    }

    async fn list(&self, path: &GuestPath) -> Result<EntryStream> {
        self.rules.judge_look(path)?;
        let entries = self.files.list(path).await?;
        if self.rules.is_empty() {
            return Ok(entries);
        }
        let (rules, path) = (self.rules.clone(), plain(path)?);
        Ok(Box::pin(entries.filter(move |entry| {
            let is_seen = entry.as_ref().map_or(true, |entry| {
                let whole = within(&path, entry.name.as_encoded_bytes());
                rules.refusal(&whole).is_none()
                    || (entry.metadata.kind == EntryKind::Directory && rules.is_on_the_way(&whole))
            });
            std::future::ready(is_seen)
        })))
    }

    async fn read(&self, path: &GuestPath, offset: u64, length: Option<u64>) -> Result<FileContent> {
        self.rules.judge(path)?;
        self.files.read(path, offset, length).await
    }

    async fn write(&self, path: &GuestPath, options: WriteOptions, content: ByteStream) -> Result<Metadata> {
        self.rules.judge(path)?;
        self.files.write(path, options, content).await
    }

    async fn mkdir(&self, path: &GuestPath, parents: bool) -> Result<()> {
        self.rules.judge(path)?;
        self.files.mkdir(path, parents).await
    }

    async fn remove(&self, path: &GuestPath, recursive: bool) -> Result<()> {
        if recursive {
            self.judge_tree(path, None).await?;
        } else {
            self.rules.judge(path)?;
        }
        self.files.remove(path, recursive).await
    }

    async fn rename(&self, from: &GuestPath, to: &GuestPath, replace: bool) -> Result<()> {
        self.rules.judge(to)?;
        self.judge_tree(from, Some(to)).await?;
        self.files.rename(from, to, replace).await
    }

    async fn download(&self, path: &GuestPath) -> Result<ByteStream> {
        self.rules.judge(path)?;
        let tar = self.files.download(path).await?;
        if self.rules.is_empty() {
            Ok(tar)
        } else {
            Ok(filtered(tar, self.rules.clone(), plain(path)?, false))
        }
    }

    async fn upload(&self, path: &GuestPath, tar: ByteStream) -> Result<TreeSummary> {
        // Into a directory on the way goes what is allowed there, but it is not made.
        if self.rules.judge_look(path)? && self.files.stat(path, true).await?.kind != EntryKind::Directory {
            self.rules.judge(path)?;
        }
        let tar =
            if self.rules.is_empty() { tar } else { filtered(tar, self.rules.clone(), plain(path)?, true) };
        self.files.upload(path, tar).await
    }
}

/// A tree at a plain path without what may not be touched, which is left out or, if `refuse`, an error.
fn filtered(tar: ByteStream, rules: FileRules, path: Vec<u8>, refuse: bool) -> ByteStream {
    pass(tar, move |inflow, out| filter(inflow, &rules, &path, refuse, out))
}

fn filter(
    inflow: &mut Inflow,
    rules: &FileRules,
    path: &[u8],
    refuse: bool,
    out: &Out<bytes::Bytes>,
) -> Result<()> {
    let mut archive = Archive::new(inflow);
    while let Some(item) = archive.next_item()? {
        let whole = within(path, &item.path);
        if let Some(why) = rules.refusal(&whole) {
            if refuse {
                return Err(denied(&whole, why));
            }
            continue;
        }
        out.give(item.raw.into())?;
        while let Some(bytes) = archive.content()? {
            out.give(bytes)?;
        }
        let filling = padding(item.size);
        if filling > 0 {
            out.give(vec![0; filling].into())?;
        }
    }
    out.give(vec![0; 2 * BLOCK].into())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ManagedFiles;

    fn rules(allow: &[&str], deny: &[&str]) -> FileRules {
        let globs = |words: &[&str]| words.iter().map(|word| Glob::new(word).unwrap()).collect();
        FileRules::of(globs(allow), globs(deny))
    }

    fn path(text: &str) -> GuestPath {
        GuestPath::new(text).unwrap()
    }

    #[test]
    fn a_rule_holds_for_all_that_is_in_a_directory_and_denial_wins() {
        let is_allowed = |rules: &FileRules, text: &str| rules.judge(&path(text)).is_ok();
        let none = rules(&[], &[]);
        assert!(is_allowed(&none, "/a/../b"));
        let both = rules(&["/work", "/tmp/*.txt"], &["/work/secret", "**/.env"]);
        for (text, expected) in [
            ("/", false),
            ("/work", true),
            ("/work/", true),
            ("//work/./x", true),
            ("/work/x/y", true),
            ("/work2", false),
            ("/work/secret", false),
            ("/work/secret/x", false),
            ("/work/secrets", true),
            ("/work/a/.env", false),
            ("/work/a/.env/x", false),
            ("/tmp/a.txt", true),
            ("/tmp/a.txt/b", true),
            ("/tmp/a.md", false),
            ("/work/../work/x", false),
        ] {
            assert_eq!(is_allowed(&both, text), expected, "{text}");
        }
        assert!(!is_allowed(&rules(&[], &["/"]), "/x"));
    }

    #[test]
    fn a_pattern_without_a_slash_in_front_holds_at_any_depth() {
        let denied = rules(&[], &["*.key", "a/b.txt", "./dot", "secrets/"]);
        for text in ["/x.key", "/a/b/x.key", "/a/x.key/y", "/a/b.txt", "/z/a/b.txt", "/dot", "/q/secrets/x"] {
            assert!(denied.judge(&path(text)).is_err(), "{text}");
        }
        for text in ["/x.keys", "/b.txt", "/za/b.txt", "/secretsx", "/"] {
            assert!(denied.judge(&path(text)).is_ok(), "{text}");
        }
        let allowed = rules(&["*.md"], &[]);
        assert!(allowed.judge(&path("/a/b.md")).is_ok() && allowed.judge(&path("/a/b.txt")).is_err());
    }

    #[tokio::test]
    async fn folders_on_the_way_to_what_is_allowed_are_listed_and_not_read() {
        let temp = tempfile::tempdir().unwrap();
        for file in ["a/b/x", "a/secret", "other/y"] {
            let file = temp.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "k").unwrap();
        }
        let managed = ManagedFiles::new(std::fs::File::open(temp.path()).unwrap().into());
        let files = RuledFiles::new(&managed, rules(&["/a/b/**"], &[]));
        for (folder, seen) in [("/", "a"), ("/a", "b"), ("/a/b", "x")] {
            let names: Vec<_> =
                files.list(&path(folder)).await.unwrap().map(|entry| entry.unwrap().name).collect().await;
            assert_eq!(names, [seen], "{folder}");
            files.stat(&path(folder), false).await.unwrap();
            assert!(files.download(&path(folder)).await.is_err(), "{folder}");
            assert!(files.remove(&path(folder), true).await.is_err(), "{folder}");
        }
        assert_eq!(files.list(&path("/other")).await.err().unwrap().code(), "path-denied");
        // Not of what it is unpacked into, which is read while that goes on.
        let tree = || async { managed.download(&path("/other")).await.unwrap() };
        assert!(files.upload(&path("/a"), tree().await).await.is_err());
        assert_eq!(files.upload(&path("/a/b/new"), tree().await).await.unwrap().entries, 1);
        let file = RuledFiles::new(&managed, rules(&["/a/secret/x"], &[]));
        assert_eq!(file.stat(&path("/a/secret"), false).await.unwrap_err().code(), "path-denied");
    }

    #[tokio::test]
    async fn trees_go_without_what_is_denied() {
        let temp = tempfile::tempdir().unwrap();
        for (name, content) in [("d/a", "a"), ("d/secret", "s"), ("d/sub/secret", "s"), ("d/sub/b", "b")] {
            let file = temp.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, content).unwrap();
        }
        let folder = std::fs::File::open(temp.path()).unwrap();
        let managed = ManagedFiles::new(folder.into());
        let files = RuledFiles::new(&managed, rules(&[], &["**/secret"]));
        let code = |error: Error| error.code().to_owned();
        assert_eq!(code(files.stat(&path("/d/secret"), false).await.unwrap_err()), "path-denied");
        let listed: Vec<_> = files.list(&path("/d")).await.unwrap().map(|e| e.unwrap().name).collect().await;
        assert_eq!(listed.len(), 2);
        for refused in [
            files.remove(&path("/d"), true).await,
            files.rename(&path("/d"), &path("/e"), false).await,
            files.rename(&path("/d/a"), &path("/d/secret"), true).await,
        ] {
            assert_eq!(code(refused.unwrap_err()), "path-denied");
        }
        let whole: Vec<Bytes> =
            managed.download(&path("/d")).await.unwrap().map(|p| p.unwrap()).collect().await;
        let tar = files.download(&path("/d")).await.unwrap();
        assert_eq!(managed.upload(&path("/copy"), tar).await.unwrap(), TreeSummary { entries: 3, bytes: 2 });
        let whole =
            || -> ByteStream { Box::pin(futures_util::stream::iter(whole.clone().into_iter().map(Ok))) };
        assert_eq!(code(files.upload(&path("/other"), whole()).await.unwrap_err()), "path-denied");
        let open = RuledFiles::new(&managed, rules(&["/other"], &[]));
        assert_eq!(open.upload(&path("/other"), whole()).await.unwrap().entries, 5);
        files.remove(&path("/copy"), true).await.unwrap();
    }

    #[tokio::test]
    async fn what_lies_in_a_tree_is_held_against_the_rules_where_it_goes() {
        let temp = tempfile::tempdir().unwrap();
        for folder in ["d/sub", "safe", "w"] {
            std::fs::create_dir_all(temp.path().join(folder)).unwrap();
        }
        for file in ["d/sub/key", "w/x"] {
            std::fs::write(temp.path().join(file), "k").unwrap();
        }
        let folder = std::fs::File::open(temp.path()).unwrap();
        let managed = ManagedFiles::new(folder.into());
        let files = RuledFiles::new(&managed, rules(&[], &["/safe/d/sub/key", "/w/x", "/up/sub/key"]));
        let code = |error: Error| error.code().to_owned();
        let refused = files.rename(&path("/d"), &path("/safe/./d"), false).await.unwrap_err();
        assert!(refused.to_string().contains("`/safe/d/sub/key`"), "{refused}");
        files.rename(&path("/d"), &path("/safe/e"), false).await.unwrap();
        // Whatever way the folder's own path is written.
        let whole: Vec<Bytes> =
            managed.download(&path("/safe/e")).await.unwrap().map(|p| p.unwrap()).collect().await;
        for way in ["/up", "//up/", "/./up/."] {
            let tar = Box::pin(futures_util::stream::iter(whole.clone().into_iter().map(Ok)));
            assert_eq!(code(files.upload(&path(way), tar).await.unwrap_err()), "path-denied", "{way}");
        }
        assert!(!temp.path().join("up/sub/key").exists());
        for way in ["/w", "//w", "/w/.", "/./w//"] {
            let listed: Vec<_> = files.list(&path(way)).await.unwrap().collect().await;
            assert_eq!(listed.len(), 0, "{way}");
            let tar = files.download(&path(way)).await.unwrap();
            assert_eq!(managed.upload(&path("/copy"), tar).await.unwrap(), TreeSummary::default(), "{way}");
            let refused = files.remove(&path(way), true).await.unwrap_err();
            assert_eq!(code(refused), "path-denied", "{way}");
        }
    }
}
