//! The folders that a sandbox may write to, kept with its record from before its start, so that whoever runs a command
//! in it can tell what was made in them since.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use moltis_agent_protocol::message::ByteString;
use moltis_sandbox::Outcome;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat2};
use serde::{Deserialize, Serialize};

use super::{Kind, Patterns, Survey};
use crate::error::bounded;

/// Names that an answer tells, at most.
const MAX_NAMED: usize = 32;

/// Longest name that an answer tells, in bytes.
const MAX_NAME: usize = 256;

/// Links that a note names, at most.
const MAX_LINKS: usize = 3;

/// Form of what is kept. Another one is not read.
const FORM: u8 = 1;

/// A folder that a sandbox may write to, and what it held before the sandbox could.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    source: ByteString,
    device: u64,
    inode: u64,
    shown_at: ByteString,
    globs: Vec<String>,
    survey: Survey,
}

impl Watched {
    /// Looks through the folder behind `handle`, whose real path is `source` and which the sandbox sees at `shown_at`.
    /// Blocks.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn begin(
        source: &Path,
        handle: BorrowedFd<'_>,
        shown_at: &[u8],
        globs: &[String],
    ) -> std::io::Result<Self> {
        let stat = fstat(handle)?;
        Ok(Self {
            source: source.as_os_str().as_bytes().to_vec().into(),
            device: stat.st_dev,
            inode: stat.st_ino,
            shown_at: shown_at.to_vec().into(),
            globs: globs.to_vec(),
            survey: Survey::take(handle, &Patterns::new(globs))?,
        })
    }

    /// What it held then.
    pub fn survey(&self) -> &Survey {
        &self.survey
    }

    /// The folder, if it still is where it was. If it is not, the host has done that.
    fn open(&self) -> Option<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let handle = openat2(CWD, self.source.as_slice(), flags, Mode::empty(), resolve).ok()?;
        let found = fstat(&handle).ok()?;
        ((found.st_dev, found.st_ino) == (self.device, self.inode)).then_some(handle)
    }

    fn shown_at(&self) -> String {
        bounded(String::from_utf8_lossy(&self.shown_at).into_owned(), MAX_NAME)
    }

    fn shown(&self, path: &[u8]) -> String {
        let whole = [self.shown_at.as_slice(), path].join(&b'/');
        bounded(String::from_utf8_lossy(&whole).into_owned(), MAX_NAME)
    }

    fn note_links(&self) -> Option<String> {
        let links = || self.survey.found().iter().filter(|found| found.kind == Kind::Link);
        let count = links().count();
        let mut names: Vec<String> =
            links().take(MAX_LINKS).map(|found| format!("`{}`", self.shown(&found.path))).collect();
        if count > names.len() {
            names.push(format!("{} more", count - names.len()));
        }
        (count > 0).then(|| {
            format!(
                "links cannot be kept from being replaced, so these are not protected: {}",
                names.join(", ")
            )
        })
    }
}

/// The bytes to keep.
pub fn encode(watched: &[Watched]) -> Option<Vec<u8>> {
    postcard::to_extend(watched, vec![FORM]).ok()
}

/// What was kept; `None` if it cannot be read.
pub fn decode(bytes: &[u8]) -> Option<Vec<Watched>> {
    let (form, rest) = bytes.split_first()?;
    (*form == FORM).then(|| postcard::from_bytes(rest).ok()).flatten()
}

/// Adds to a command's outcome what was made in the folders since the sandbox's start; with `is_first` also what a person
/// must know once of how well they are watched. Blocks: a millisecond for a folder of some hundred directories.
pub fn tell(watched: &[Watched], is_first: bool, outcome: &mut Outcome) {
    let mut total = 0;
    for watched in watched {
        outcome.notes.extend(watched.note_links().filter(|_| is_first));
        let Some(folder) = watched.open() else { continue };
        let made = watched.survey.made_since(folder.as_fd(), &Patterns::new(&watched.globs));
        total += made.paths.len();
        let room = MAX_NAMED.saturating_sub(outcome.newly_dangerous.len());
        outcome.newly_dangerous.extend(made.paths.iter().take(room).map(|path| watched.shown(path)));
        // What has grown too large since is news each time: it may have been made so to hide something.
        let is_news = if watched.survey.is_whole() { !made.whole } else { is_first };
        if is_news {
            outcome.notes.push(format!(
                "{} is too large, or in part not readable: not all in it that the host runs code by is protected or named",
                watched.shown_at()
            ));
        }
    }
    outcome.newly_dangerous_total = u32::try_from(total).unwrap_or(u32::MAX);
}
