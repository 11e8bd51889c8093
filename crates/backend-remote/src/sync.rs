//! A workspace on two sides: the folder on this machine, and a directory on a machine at a provider.
//!
//! Both sides are looked at, held against what they were when they last agreed, and what changed on one goes to the other.
//! What changed on both is kept twice. Names that make the host run code never come back, names that hold secrets never go
//! there, and everything here is written beneath a handle of the folder, whatever the far side says.
//!
//! [`scan`] and [`far`] look, [`plan`] decides, [`transfer`] and [`near`] do it, [`state`] remembers.

mod far;
mod here;
mod limits;
mod look;
mod near;
mod node;
mod plan;
mod report;
mod rules;
mod scan;
mod state;
#[cfg(test)]
mod tests;
mod there;
mod transfer;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use moltis_sandbox::{Diagnosis, Error, Result, blocking};

pub use far::Far;
pub use limits::Bounds;
pub use report::Report;
pub use state::{State, Store, Terms};

use far::{What, list};
use look::{set, settle};
use near::{Made, Near};
use node::{Node, Seen, Tree, above};
use plan::{Plan, Sides, Why, differ_by_mode, plan};
use rules::{Judged, Rules, home_litter};
use scan::{Scan, scan};

/// How often both sides are looked at before what still changes is left to the next time.
const ROUNDS: usize = 5;
/// Bytes of one archive that is fetched, so that an interruption costs little.
const FETCHED: u64 = 64 << 20;
/// Longest name that a copy of a conflict is made of.
const MAX_NAME: usize = 200;

/// What is being done, for whoever watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The workspace is sent: so many things, so many bytes.
    Sends(usize, u64),
    /// Changes are fetched.
    Fetches(usize, u64),
    /// Both sides agree.
    Done,
}

/// What is brought where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Nothing if nothing changed here.
    Send,
    /// Nothing if nothing changed there.
    Fetch,
    /// Everything.
    #[cfg(test)]
    Both,
}

/// Hears of steps.
pub type Progress = Arc<dyn Fn(Step) + Send + Sync>;

/// Carries one workspace.
pub struct Carrier {
    far: Arc<dyn Far>,
    store: Store,
    machine: String,
    terms: Terms,
    bounds: Bounds,
    top: Arc<OwnedFd>,
    progress: Progress,
    /// One at a time in this process, with what was last known.
    known: tokio::sync::Mutex<Option<Known>>,
}

/// The state file as it was when it was read (device, times), and what it said.
type Known = (Option<(u64, i64, i64)>, State);

/// Whether a workspace can be carried at all. Blocks on the file system.
///
/// # Errors
/// `workspace-too-large`, `workspace-unreadable`.
pub fn fits(top: &OwnedFd, terms: &Terms) -> Result<()> {
    let rules = Rules::new(&terms.protect, &terms.listed);
    scan::measure(top, rules, Bounds::default())
}

/// Blocking work on its own thread.
async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    blocking::long(work).await.map_err(|broke| {
        Error::Unavailable(Diagnosis::new("system-error", "work on the disk broke off").cause(broke))
    })?
}

impl Carrier {
    /// For a workspace that was judged and opened as `top`, and the machine of this name, which is used once.
    pub fn new(
        far: Arc<dyn Far>,
        store: Store,
        machine: &str,
        terms: Terms,
        top: Arc<OwnedFd>,
        progress: Progress,
    ) -> Self {
        let machine = machine.to_owned();
        let known = tokio::sync::Mutex::default();
        Self { far, store, machine, terms, bounds: Bounds::default(), top, progress, known }
    }

    /// Other bounds than the built-in ones.
    #[cfg(test)]
    pub fn within(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// Sends what changed here since the last time, before something runs there. The far side is asked nothing if
    /// nothing did.
    ///
    /// # Errors
    /// `workspace-too-large`; those of the disk and of the far side. What was carried before one stays.
    pub async fn send(&self) -> Result<Report> {
        self.carry(How::Send).await
    }

    /// Brings what changed there here, after something ran there; then both sides are brought together. If nothing did,
    /// what changed here waits for the next time.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn fetch(&self) -> Result<Report> {
        self.carry(How::Fetch).await
    }

    /// Brings both sides together.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[cfg(test)]
    pub async fn both(&self) -> Result<Report> {
        self.carry(How::Both).await
    }

    /// Whether changes come back.
    pub fn is_writable(&self) -> bool {
        self.terms.writable
    }

    async fn carry(&self, how: How) -> Result<Report> {
        let mut known = self.known.lock().await;
        let store = self.store.clone();
        let mark = known.as_ref().map(|(mark, _)| *mark);
        // Another process may have carried meanwhile.
        let (_lock, read) = on_disk(move || {
            let lock = store.lock()?;
            let now = store.mark();
            let read = (mark != Some(now)).then(|| store.read());
            Ok((lock, read))
        })
        .await?;
        let state = match (read, known.take()) {
            (None, Some((_, state))) => Some(state),
            (Some(read), _) => read,
            (None, None) => None,
        };
        let mut state = match state {
            Some(mut state)
                if state.machine == self.machine && state.terms.identity == self.terms.identity =>
            {
                if state.terms != self.terms {
                    // Other rules may find other things in the same lists.
                    state.terms = self.terms.clone();
                    state.word.clear();
                }
                state
            }
            _ => State::new(&self.machine, &self.terms),
        };
        let before = state.clone();
        let mut report = Report::default();
        let done = self.rounds(&mut state, &mut report, how).await;
        let store = self.store.clone();
        let (state, mark) = on_disk(move || {
            if state != before {
                store.write(&state)?;
            }
            let mark = store.mark();
            Ok((state, mark))
        })
        .await?;
        *known = Some((mark, state));
        done?;
        (self.progress)(Step::Done);
        Ok(report)
    }

    async fn rounds(&self, state: &mut State, report: &mut Report, how: How) -> Result<()> {
        // What changed here alone can wait until something runs there.
        if how == How::Fetch
            && state.begun
            && !state.word.is_empty()
            && state.pushing.is_empty()
            && far::is_same(&*self.far, &state.word, &state.passed_over).await?
        {
            return Ok(());
        }
        for round in 0..ROUNDS {
            let scan = self.look_here(&state.host).await?;
            self.tell_left_out(state, report, &scan);
            let same = |one: &Tree, other: &Tree| {
                one.len() == other.len()
                    && one
                        .iter()
                        .zip(other)
                        .all(|(one, other)| one.0 == other.0 && one.1.node == other.1.node)
            };
            if how == How::Send
                && round == 0
                && state.begun
                && state.pushing.is_empty()
                && scan.left_out.unread.is_empty()
                && same(&scan.tree, &state.host)
            {
                state.host = scan.tree;
                return Ok(());
            }
            if !self.round(state, report, scan).await? {
                break;
            }
        }
        Ok(())
    }

    /// Looks at both sides and carries; whether they have to be looked at again.
    async fn round(&self, state: &mut State, report: &mut Report, scan: Scan) -> Result<bool> {
        let there = self.look_there(state, &scan).await?;
        if !state.begun {
            // What the machine came with is its own, until something changes it.
            state.far = there.tree.clone();
            state.far.retain(|path, _| !scan.tree.contains_key(path));
            state.pushing = scan.tree.keys().cloned().collect();
            state.begun = true;
        }
        let sides = Sides {
            host_then: &state.host,
            far_then: &state.far,
            host: &scan.tree,
            far: &there.tree,
            host_unknown: &scan.left_out.unread,
            far_unknown: &there.unknown,
            far_whole: there.whole,
            pushing: &state.pushing,
            writable: self.terms.writable,
        };
        let plan = plan(&sides, &scan.rules);
        if !plan.conflicts.is_empty() {
            return self.keep_twice(state, report, &plan.conflicts).await.map(|()| true);
        }
        for path in &plan.settled {
            settle(state, path, scan.tree.get(path), there.tree.get(path), &scan, &there);
        }
        for (path, why) in &plan.held {
            report.hold(path, *why);
            set(&mut state.host, path, scan.tree.get(path));
            set(&mut state.far, path, there.tree.get(path));
        }
        state.word.clear();
        let near = Arc::new(Near::new(&*self.top).map_err(|errno| cannot("be opened", errno))?);
        let mut again = self.bring_here(state, report, &plan, &scan, &there, &near).await?;
        again |= self.send_there(state, report, &plan, &scan, &there, &near).await?;
        let is_sure = !again
            && there.unknown.is_empty()
            && there.whole
            && plan.push.is_empty()
            && plan.push_gone.is_empty()
            && state.far.values().all(|seen| seen.settled || !matches!(seen.node, Node::File { .. }));
        if is_sure {
            state.word = there.word;
            state.passed_over = scan.rules.passed_over().to_vec();
        }
        Ok(again)
    }
}

fn cannot(what: &str, errno: rustix::io::Errno) -> Error {
    Error::Unavailable(
        Diagnosis::new("workspace-unreadable", format!("the workspace cannot {what}"))
            .cause(std::io::Error::from(errno))
            .fix("look whether the folder is still there, and whose it is"),
    )
}

/// Why something of [`Why`] stays.
impl Why {
    fn is_protected(self) -> bool {
        self == Self::Protected
    }
}
