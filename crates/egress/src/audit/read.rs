//! Reading the log: all of it, its end, and what comes.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use moltis_sandbox::{DomainPattern, HostPattern};

use super::line::Line;
use super::place::{Hold, Identity, Place, identity_of};
use super::{Action, Entry, Protocol, lines};
use crate::error::EgressError;

/// Ages that are looked for. More than are kept: an earlier version may have kept more.
const MAX_AGE: u32 = 16;

/// Time that a reader waits for writers.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a reader that cannot have the lock looks again when files change their names under it.
const TRIES: u32 = 20;

/// Which entries are wanted. What is absent does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// This host, for a name also those below it; and this port, if one is named.
    pub host: Option<DomainPattern>,
    /// How the program asked.
    pub protocol: Option<Protocol>,
    /// What was said.
    pub action: Option<Action>,
    /// The session's key.
    pub session: Option<String>,
    /// Not before this time, in milliseconds since 1970.
    pub since: Option<u64>,
}

impl Filter {
    /// Whether an entry is wanted.
    pub fn wants(&self, entry: &Entry) -> bool {
        self.since.is_none_or(|since| entry.timestamp >= since)
            && self.protocol.is_none_or(|protocol| entry.protocol == protocol)
            && self.action.is_none_or(|action| entry.action == action)
            && self.session.as_ref().is_none_or(|session| entry.session == *session)
            && self.host.as_ref().is_none_or(|host| {
                host.port.is_none_or(|port| entry.port == port) && is_of(&entry.domain, host)
            })
    }
}

/// Whether a host as the log names it is one of these, or below one.
fn is_of(domain: &str, wanted: &DomainPattern) -> bool {
    let bare = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(domain);
    let host = match bare.parse() {
        Ok(address) => HostPattern::Address(address),
        Err(_) => HostPattern::Name(domain.to_owned()),
    };
    wanted.host.covers(&host)
        || matches!(&wanted.host, HostPattern::Name(name) if HostPattern::Below(name.clone()).covers(&host))
}

/// What a reader came upon besides entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Lines that are none of ours: what is left of one whose writer was killed, say.
    pub unreadable: u64,
    /// Entries that their writers could not write down.
    pub dropped: u64,
}

impl Tally {
    /// The entry of a line, if it is one that is wanted.
    fn take(&mut self, line: lines::Found<'_>, filter: &Filter) -> Option<Entry> {
        match line.and_then(Line::read) {
            Some(Line::Entry(entry)) => filter.wants(&entry).then_some(entry),
            Some(Line::Dropped(told)) => {
                if filter.since.is_none_or(|since| told.timestamp >= since) {
                    self.dropped = self.dropped.saturating_add(told.dropped);
                }
                None
            }
            None => {
                self.unreadable += 1;
                None
            }
        }
    }
}

/// The log's files as they are at one moment, held open: what is written or renamed later does not matter to it.
#[derive(Debug)]
pub struct Snapshot {
    place: Place,
    /// Oldest first. The length is that of whole lines, unless a writer was killed.
    files: Vec<(File, u64)>,
}

impl Snapshot {
    /// Looks at the files of this data directory. There may be none. Blocks.
    ///
    /// # Errors
    /// `Audit`, `AuditNotOurs`.
    pub fn take(data_dir: &Path) -> Result<Self, EgressError> {
        let place = Place::open(data_dir)?;
        let files = open_all(&place)?;
        Ok(Self { place, files })
    }

    /// Gives every entry that is wanted to `each`, oldest first, until that breaks off. Blocks.
    ///
    /// # Errors
    /// `Audit`.
    pub fn read(
        &self,
        filter: &Filter,
        mut each: impl FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<Tally, EgressError> {
        let mut tally = Tally::default();
        for (file, length) in &self.files {
            let mut flow = ControlFlow::Continue(());
            let ended = lines::forwards(file, 0, *length, |line| {
                if let Some(entry) = tally.take(line, filter) {
                    flow = each(entry);
                }
                flow
            });
            let ended = ended.map_err(|e| self.place.failed(e))?;
            if flow.is_break() {
                break;
            }
            if ended < *length {
                tally.unreadable += 1;
            }
        }
        Ok(tally)
    }

    /// The last entries that are wanted, oldest first, `most` of them. What stands before them is not looked at, nor
    /// told of. Blocks.
    ///
    /// # Errors
    /// `Audit`.
    pub fn last(&self, filter: &Filter, most: usize) -> Result<(Vec<Entry>, Tally), EgressError> {
        let mut tally = Tally::default();
        let mut entries = Vec::new();
        for (file, length) in self.files.iter().rev() {
            if entries.len() >= most {
                break;
            }
            let read = lines::backwards(file, *length, |line| {
                entries.extend(tally.take(line, filter));
                if entries.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            read.map_err(|e| self.place.failed(e)).map(drop)?;
        }
        entries.reverse();
        Ok((entries, tally))
    }

    /// Goes on from here.
    pub fn follow(mut self) -> Follow {
        // A half line at the end is read again when it is whole, or ended.
        let at = self.files.pop().and_then(|(file, length)| Some((identity_of(&file)?, file, length)));
        let at = at.map(|(identity, file, length)| At { identity, offset: whole(&file, length), file });
        Follow { place: self.place, at }
    }
}

/// Entries as they are written, by whichever process.
#[derive(Debug)]
pub struct Follow {
    place: Place,
    at: Option<At>,
}

/// Up to where a file was read.
#[derive(Debug)]
struct At {
    identity: Identity,
    file: File,
    offset: u64,
}

impl Follow {
    /// Gives what was written since the last time to `each`. Blocks for as long as that takes, and does not wait for
    /// more.
    ///
    /// # Errors
    /// `Audit`, `AuditNotOurs`.
    pub fn poll(
        &mut self,
        filter: &Filter,
        mut each: impl FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<Tally, EgressError> {
        let mut tally = Tally::default();
        let current = self.place.identity(0);
        if let Some(at) = &mut self.at {
            // Only once it was looked whether the file still has its name: after that nothing is added to another.
            let flow = at.read(&mut tally, filter, &mut each).map_err(|e| self.place.failed(e))?;
            if flow.is_break() || current == Some(at.identity) {
                return Ok(tally);
            }
        } else if current.is_none() {
            return Ok(tally);
        }
        let files = open_all(&self.place)?;
        let before = self.at.as_ref().map(|at| at.identity);
        // All of them, when the one before is not kept any more.
        let from =
            files.iter().position(|(file, _)| before.is_some() && identity_of(file) == before).unwrap_or(0);
        for (file, _) in files.into_iter().skip(from) {
            let Some(identity) = identity_of(&file) else { continue };
            if self.at.as_ref().is_none_or(|at| at.identity != identity) {
                self.at = Some(At { identity, file, offset: 0 });
            }
            let Some(at) = &mut self.at else { continue };
            if at.read(&mut tally, filter, &mut each).map_err(|e| self.place.failed(e))?.is_break() {
                break;
            }
        }
        Ok(tally)
    }
}

impl At {
    fn read(
        &mut self,
        tally: &mut Tally,
        filter: &Filter,
        each: &mut impl FnMut(Entry) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        let length = self.file.metadata()?.len();
        if length < self.offset {
            // Somebody has emptied it.
            self.offset = 0;
        }
        let mut flow = ControlFlow::Continue(());
        self.offset = lines::forwards(&self.file, self.offset, length, |line| {
            if let Some(entry) = tally.take(line, filter) {
                flow = each(entry);
            }
            flow
        })?;
        Ok(flow)
    }
}

/// The files, oldest first, with their lengths.
fn open_all(place: &Place) -> Result<Vec<(File, u64)>, EgressError> {
    let since = Instant::now();
    // A writer that was stopped in the middle must not stop readers.
    let lock = place.lock(Hold::Shared, || since.elapsed() > PATIENCE)?;
    let mut files = Vec::new();
    for _ in 0..if lock.is_some() { 1 } else { TRIES } {
        let before = identities(place);
        files.clear();
        for age in (0..=MAX_AGE).rev() {
            if let Some(file) = place.for_reading(age)? {
                let length = file.metadata().map_err(|e| place.failed(e))?.len();
                files.push((file, length));
            }
        }
        if files.iter().map(|(file, _)| identity_of(file)).eq(before.iter().flatten().map(|is| Some(*is)))
            && identities(place) == before
        {
            break;
        }
    }
    drop(lock);
    Ok(files)
}

/// Which files have which age, oldest first.
fn identities(place: &Place) -> Vec<Option<Identity>> {
    (0..=MAX_AGE).rev().map(|age| place.identity(age)).collect()
}

/// The offset after the last whole line.
fn whole(file: &File, length: u64) -> u64 {
    let mut after = 0;
    // The end of a file without a line break is found by its last line.
    let _ = lines::backwards(file, length, |line| {
        after = line.map_or(0, |line| line.len() as u64);
        ControlFlow::Break(())
    });
    let mut last = [0];
    let ends = length > 0
        && std::os::unix::fs::FileExt::read_exact_at(file, &mut last, length - 1).is_ok()
        && last[0] == b'\n';
    if ends { length } else { length.saturating_sub(after) }
}
