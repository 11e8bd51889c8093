//! A walk over a tree of the sandbox by its file tools, bounded in number and time. Links are not followed.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use moltis_sandbox::{Entry, EntryKind, Error, Files, GuestPath, Result};
use tokio::time::Instant;

use super::ignored::{self, Ignored};

/// Entries that are looked at.
const ENTRIES: u64 = 200_000;

/// Time that a search may take.
pub(crate) const TIME: Duration = Duration::from_secs(25);

/// Directories that hold what others wrote, and are not gone into unless they are named.
pub(crate) const PASSED: [&str; 2] = [".git", "node_modules"];

/// Directories of the kernel's, from the root.
const KERNEL: [&[u8]; 3] = [b"/proc", b"/sys", b"/dev"];

/// Until when, and what stands in the way of a whole answer.
pub(crate) struct Bounds {
    until: Instant,
    /// Why the answer is not whole, if it is not.
    pub incomplete: Option<String>,
}

impl Bounds {
    pub fn new() -> Self {
        Self { until: Instant::now() + TIME, incomplete: None }
    }

    /// Whether the time is up.
    pub fn is_over(&mut self) -> bool {
        let is_over = Instant::now() >= self.until;
        if is_over {
            self.incomplete = Some(format!("the search was ended after {} s", TIME.as_secs()));
        }
        is_over
    }
}

/// Judges a directory, by its name or its path from the top.
type Judge<'a, T> = Box<dyn Fn(&T) -> bool + Send + Sync + 'a>;

/// A walk through a tree: each directory's entries by name, and then those of the directories in it.
pub(crate) struct Walk<'a> {
    files: &'a dyn Files,
    top: &'a GuestPath,
    /// Whether a directory is gone into that is otherwise passed over.
    named: Judge<'a, str>,
    goes_into: Judge<'a, [u8]>,
    /// What is left out; nothing if all is to be seen.
    ignored: Option<Ignored>,
    /// Whether something is asked for by its path, ignored or not.
    asked: Judge<'a, [u8]>,
    /// Directories to be listed, as paths from the top.
    waiting: Vec<Vec<u8>>,
    /// Entries that were listed and not given yet.
    listed: VecDeque<(Vec<u8>, Entry)>,
    seen: u64,
}

impl<'a> Walk<'a> {
    pub fn new(
        files: &'a dyn Files,
        top: &'a GuestPath,
        named: impl Fn(&str) -> bool + Send + Sync + 'a,
        goes_into: impl Fn(&[u8]) -> bool + Send + Sync + 'a,
    ) -> Self {
        let (named, goes_into) = (Box::new(named), Box::new(goes_into));
        let asked: Judge<'a, [u8]> = Box::new(|_| false);
        let (waiting, listed) = (vec![Vec::new()], VecDeque::new());
        Self { files, top, named, goes_into, ignored: None, asked, waiting, listed, seen: 0 }
    }

    /// Leaves out what `.gitignore` files ignore, unless it is asked for by its path from the top.
    ///
    /// # Errors
    /// The sandbox does not answer.
    pub async fn without_ignored(mut self, asked: impl Fn(&[u8]) -> bool + Send + Sync + 'a) -> Result<Self> {
        let mut ignored = Ignored::default();
        ignored.above(self.files, self.top.as_bytes()).await?;
        (self.ignored, self.asked) = (Some(ignored), Box::new(asked));
        Ok(self)
    }

    /// The next entry, with its path from the top; nothing at the end, or beyond the bounds.
    ///
    /// # Errors
    /// The top is no directory that can be listed, or the sandbox does not answer.
    pub async fn next(&mut self, bounds: &mut Bounds) -> Result<Option<(Vec<u8>, Entry)>> {
        loop {
            if let Some(next) = self.listed.pop_front() {
                return Ok(Some(next));
            }
            if bounds.incomplete.is_some() || bounds.is_over() {
                return Ok(None);
            }
            let Some(directory) = self.waiting.pop() else { return Ok(None) };
            self.list(&directory, bounds).await?;
        }
    }

    async fn list(&mut self, directory: &[u8], bounds: &mut Bounds) -> Result<()> {
        let Some(path) = GuestPath::new(below(self.top.as_bytes(), directory)) else { return Ok(()) };
        let mut listed = match self.files.list(&path).await {
            Ok(listed) => listed,
            // One that was removed meanwhile, or is closed to the sandbox's user.
            Err(Error::Refused(_) | Error::Invalid(_)) if !directory.is_empty() => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut entries = Vec::new();
        while let Some(entry) = listed.next().await {
            entries.push(entry?);
            self.seen += 1;
            if self.seen > ENTRIES {
                bounds.incomplete = Some(format!("the search was ended after {ENTRIES} entries"));
                break;
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let has_rules = |entry: &Entry| entry.name == ignored::NAME && entry.metadata.kind == EntryKind::File;
        if let Some(ignored) = self.ignored.as_mut().filter(|_| entries.iter().any(has_rules)) {
            ignored.read(self.files, path.as_bytes()).await?;
        }
        let mut deeper = Vec::new();
        for entry in entries {
            let name = entry.name.as_encoded_bytes();
            let inside = if directory.is_empty() { name.to_vec() } else { below(directory, name) };
            if self.leaves_out(&inside, entry.metadata.kind == EntryKind::Directory) {
                continue;
            }
            if entry.metadata.kind == EntryKind::Directory && self.descends(name, &inside) {
                deeper.push(inside.clone());
            }
            self.listed.push_back((inside, entry));
        }
        self.waiting.extend(deeper.into_iter().rev());
        Ok(())
    }

    fn leaves_out(&self, inside: &[u8], is_directory: bool) -> bool {
        let Some(ignored) = &self.ignored else { return false };
        ignored.has(&below(self.top.as_bytes(), inside), is_directory) && !(self.asked)(inside)
    }

    fn descends(&self, name: &[u8], inside: &[u8]) -> bool {
        let is_passed = PASSED.iter().any(|passed| passed.as_bytes() == name && !(self.named)(passed));
        let is_kernel = KERNEL.contains(&&*below(self.top.as_bytes(), inside));
        !is_passed && !is_kernel && (self.goes_into)(inside)
    }
}

/// The path of something in a directory.
pub(crate) fn below(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory.ends_with(b"/") || name.is_empty() {
        true => [directory, name].concat(),
        false => [directory, b"/", name].concat(),
    }
}
