//! What the workspace on this machine holds. Everything goes by handles from its top; no link is followed, and nothing but
//! regular files is opened. It blocks.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use moltis_host::tree::{failure, object, part};
use moltis_sandbox::{Diagnosis, EntryKind, Error, Result};
use rustix::fs::{Dir, Stat, readlinkat};
use sha2::{Digest, Sha256};

use super::limits::{Bounds, Measure};
use super::node::{Hash, Node, Seen, Stamp, Tree};
use super::rules::{IGNORE_FILES, Rules};

/// What was changed this shortly before it was looked at is looked at again: two ticks of a clock that few kernels lack.
const GRAIN: i64 = 100_000_000;
/// How deep a tree is looked into.
const MAX_DEPTH: usize = 256;
/// Longest ignore file that is heeded.
const MAX_IGNORE: u64 = 1 << 20;
/// Paths that are named at most.
const MAX_NAMED: usize = 64;

/// What was left out, and named to whoever wants to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Secrets.
    pub secrets: BTreeSet<Vec<u8>>,
    /// What is neither file, directory nor link.
    pub others: BTreeSet<Vec<u8>>,
    /// What could not be read. Nothing is known of what is in it.
    pub unread: BTreeSet<Vec<u8>>,
}

impl LeftOut {
    fn name(set: &mut BTreeSet<Vec<u8>>, path: &[u8]) {
        if set.len() < MAX_NAMED {
            set.insert(path.to_vec());
        }
    }
}

/// One look at the workspace.
pub struct Scan {
    /// What there is and is carried.
    pub tree: Tree,
    /// The rules, with all ignore files.
    pub rules: Rules,
    /// What is not carried.
    pub left_out: LeftOut,
    /// How many files were read, since nothing was known of them.
    pub read: u64,
}

/// Looks at the workspace; `known` is what an earlier look found.
///
/// # Errors
/// `workspace-too-large`; when the top cannot be read, or there is too much in it that cannot.
pub fn scan(top: &OwnedFd, known: &Tree, rules: Rules, bounds: Bounds) -> Result<Scan> {
    look(top, known, rules, bounds, true)
}

fn look(top: &OwnedFd, known: &Tree, rules: Rules, bounds: Bounds, reads: bool) -> Result<Scan> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut walk = Walk {
        known,
        settled_before: i64::try_from(now.as_nanos()).unwrap_or(i64::MAX) - GRAIN,
        measure: Measure::new(bounds),
        scan: Scan { tree: Tree::new(), rules, left_out: LeftOut::default(), read: 0 },
        unread: 0,
        reads,
    };
    let top =
        object::directory(top, c".").map_err(|_| unreadable("the workspace cannot be read any more"))?;
    walk.directory(&top, &[], 0)?;
    walk.measure.finish()?;
    Ok(walk.scan)
}

/// Measures the workspace, and reads nothing of its files.
///
/// # Errors
/// As for [`scan`].
pub fn measure(top: &OwnedFd, rules: Rules, bounds: Bounds) -> Result<()> {
    look(top, &Tree::new(), rules, bounds, false).map(drop)
}

struct Walk<'a> {
    known: &'a Tree,
    settled_before: i64,
    measure: Measure,
    scan: Scan,
    unread: usize,
    /// Whether files are read.
    reads: bool,
}

/// How an object is stamped.
#[allow(clippy::unnecessary_cast, reason = "widths differ between platforms")]
pub fn stamp(stat: &Stat) -> Stamp {
    let nanos = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
    Stamp {
        inode: stat.st_ino as u64,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: nanos(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
        changed: nanos(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
    }
}

/// Permission bits that are carried.
#[allow(clippy::useless_conversion, reason = "widths differ between platforms")]
pub fn mode(stat: &Stat) -> u32 {
    u32::from(stat.st_mode) & object::MODE
}

impl Walk<'_> {
    fn directory(&mut self, directory: &OwnedFd, path: &[u8], depth: usize) -> Result<()> {
        for name in IGNORE_FILES {
            if let Some(content) = small(directory, name) {
                self.scan.rules.add(path, &content);
            }
        }
        let Ok(entries) = Dir::read_from(directory) else { return self.unread(path) };
        let mut names = Vec::new();
        for entry in entries {
            let Ok(entry) = entry else { return self.unread(path) };
            let name = entry.file_name();
            if name != c"." && name != c".." && !part::is_part(name.to_bytes()) {
                names.push(name.to_owned());
            }
        }
        for name in names {
            let whole = if path.is_empty() {
                name.to_bytes().to_vec()
            } else {
                [path, b"/", name.to_bytes()].concat()
            };
            let Ok(stat) = object::stat(directory, &*name) else { continue };
            let kind = object::kind(&stat);
            if self.scan.rules.is_secret(&whole) {
                LeftOut::name(&mut self.scan.left_out.secrets, &whole);
                continue;
            }
            if self.scan.rules.is_ignored(&whole, kind == EntryKind::Directory) {
                continue;
            }
            let node = match kind {
                EntryKind::Directory => Node::Directory { mode: mode(&stat) },
                EntryKind::Symlink => match readlinkat(directory, &*name, Vec::new()) {
                    Ok(target) => Node::Link { target: target.into_bytes() },
                    // It has just gone.
                    Err(_) => continue,
                },
                EntryKind::File => match self.file(directory, &name, &whole, &stat) {
                    Some(seen) => {
                        self.measure.add(&whole, seen.stamp.size)?;
                        self.scan.tree.insert(whole, seen);
                        continue;
                    }
                    None => {
                        self.unread(&whole)?;
                        continue;
                    }
                },
                EntryKind::Other => {
                    LeftOut::name(&mut self.scan.left_out.others, &whole);
                    continue;
                }
            };
            self.measure.add(&whole, 0)?;
            let is_directory = node.is_directory();
            let stamp = stamp(&stat);
            let settled = stamp.changed < self.settled_before;
            self.scan.tree.insert(whole.clone(), Seen { node, stamp, settled });
            if is_directory {
                match object::directory(directory, &*name) {
                    Ok(below) if depth < MAX_DEPTH => self.directory(&below, &whole, depth + 1)?,
                    _ => self.unread(&whole)?,
                }
            }
        }
        Ok(())
    }

    /// A file, whose content is read only if it may be another one than before.
    fn file(&mut self, directory: &OwnedFd, name: &std::ffi::CStr, path: &[u8], stat: &Stat) -> Option<Seen> {
        let now = stamp(stat);
        if let Some(Seen { node: Node::File { hash, size, .. }, stamp, settled: true }) = self.known.get(path)
            && *stamp == now
        {
            let node = Node::File { hash: *hash, size: *size, mode: mode(stat) };
            return Some(Seen { node, stamp: now, settled: true });
        }
        if !self.reads {
            let node = Node::File { hash: [0; 32], size: now.size, mode: mode(stat) };
            return Some(Seen { node, stamp: now, settled: false });
        }
        let (file, _) = object::file(directory, name).ok()?;
        self.scan.read += 1;
        let (seen, _) = hashed(&mut File::from(file), self.settled_before).ok()?;
        Some(seen)
    }

    /// Something that cannot be read. More of it than can be remembered is an error, since nothing may be concluded from it.
    fn unread(&mut self, path: &[u8]) -> Result<()> {
        if path.is_empty() {
            return Err(unreadable("the workspace cannot be read"));
        }
        self.unread += 1;
        if self.unread > MAX_NAMED {
            return Err(unreadable("more in the workspace cannot be read than can be passed over"));
        }
        self.scan.left_out.unread.insert(path.to_vec());
        Ok(())
    }
}

/// A small regular file's content.
fn small(directory: impl AsFd, name: &str) -> Option<Vec<u8>> {
    let (file, stat) = object::file(directory, name).ok()?;
    if u64::try_from(stat.st_size).unwrap_or(u64::MAX) > MAX_IGNORE {
        return None;
    }
    let mut content = Vec::new();
    File::from(file).take(MAX_IGNORE).read_to_end(&mut content).ok()?;
    Some(content)
}

/// An opened file by its content. It is settled if nothing touched it while it was read, nor shortly before.
pub fn hashed(file: &mut File, settled_before: i64) -> std::io::Result<(Seen, Stat)> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    let before = rustix::fs::fstat(&*file)?;
    let mut size = 0u64;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => {
                hash.update(&buffer[..count]);
                size += count as u64;
            }
        }
    }
    let after = rustix::fs::fstat(&*file)?;
    let (first, last) = (stamp(&before), stamp(&after));
    let settled = first == last && last.changed < settled_before && last.size == size;
    let hash: Hash = hash.finalize().into();
    Ok((Seen { node: Node::File { hash, size, mode: mode(&after) }, stamp: last, settled }, after))
}

fn unreadable(what: &str) -> Error {
    Error::Unavailable(
        Diagnosis::new("workspace-unreadable", what)
            .fix("make it readable, or name what cannot be read in `.moltisignore`"),
    )
}

/// Paths in a message: the first few, and how many more there are.
pub fn named<'a>(paths: impl ExactSizeIterator<Item = &'a Vec<u8>>) -> String {
    const FEW: usize = 5;
    let more = paths.len().saturating_sub(FEW);
    let mut text = paths
        .take(FEW)
        .map(|path| {
            let clean: String =
                failure::shown(path).chars().map(|c| if c.is_control() { '?' } else { c }).collect();
            format!("`{clean}`")
        })
        .collect::<Vec<_>>()
        .join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
