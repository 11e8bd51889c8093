//! A workspace on two sides: the folder on this machine, and a directory on a machine at a provider.
//!
//! Both sides are looked at, held against what they were when they last agreed, and what changed on one goes to the other.
//! What changed on both is kept twice. Names that make the host run code never come back, names that hold secrets never go
//! there, and everything here is written beneath a handle of the folder, whatever the far side says.
//!
//! [`scan`] and [`far`] look, [`plan`] decides, [`transfer`] and [`near`] do it, [`state`] remembers.

mod far;
mod limits;
mod near;
mod node;
mod plan;
mod report;
mod rules;
mod scan;
mod state;
#[cfg(test)]
mod tests;
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

    async fn look_here(&self, known: &Tree) -> Result<Scan> {
        let (top, known) = (Arc::clone(&self.top), known.clone());
        let rules = Rules::new(&self.terms.protect, &self.terms.listed);
        let bounds = self.bounds;
        on_disk(move || scan(&top, &known, rules, bounds)).await
    }

    fn tell_left_out(&self, state: &mut State, report: &mut Report, scan: &Scan) {
        for path in &scan.left_out.secrets {
            if state.told.insert(path.clone()) {
                report.secrets.insert(path.clone());
            }
        }
        for path in &scan.left_out.others {
            if state.told.insert(path.clone()) {
                report.others.insert(path.clone());
            }
        }
        for path in &scan.left_out.unread {
            if state.told.insert(path.clone()) {
                report.unread.insert(path.clone());
            }
        }
        let left_out = &scan.left_out;
        let is_left_out = |path: &Vec<u8>| {
            [&left_out.secrets, &left_out.others, &left_out.unread].iter().any(|set| set.contains(path))
        };
        state.told.retain(is_left_out);
    }

    /// The far side as it is. What could not be read of it is named.
    async fn look_there(&self, state: &State, scan: &Scan) -> Result<There> {
        let rules = &scan.rules;
        let most = self.bounds.entries * 4;
        let list = list(&*self.far, &state.word, rules.passed_over(), most).await?;
        let Some(entries) = list.entries else {
            let mut judged = Judged::default();
            let mut tree = state.far.clone();
            tree.retain(|path, seen| !judged.is_out(rules, path, seen.node.is_directory()));
            return Ok(There {
                tree,
                names: HashMap::new(),
                unknown: HashSet::new(),
                whole: true,
                word: list.word,
                settled_before: list.settled_before,
            });
        };
        let mut judged = Judged::default();
        let mut there = There {
            tree: Tree::new(),
            names: HashMap::new(),
            unknown: HashSet::new(),
            whole: list.whole,
            word: list.word,
            settled_before: list.settled_before,
        };
        let mut asked = Vec::new();
        for entry in &entries {
            // What a file operation has not finished.
            if moltis_host::tree::archive::split(&entry.path).1.starts_with(b".moltis-write-") {
                continue;
            }
            if judged.is_out(rules, &entry.path, entry.what == What::Directory) {
                continue;
            }
            // What is here too is the workspace's.
            let litter = home_litter(&entry.path).filter(|_| self.terms.in_home);
            if litter.is_some_and(|first| !scan.tree.contains_key(first)) {
                continue;
            }
            let settled = entry.stamp.changed < there.settled_before;
            let node = match &entry.what {
                What::Directory => Node::Directory { mode: entry.mode },
                What::Link(target) => Node::Link { target: target.clone() },
                What::Other => continue,
                What::File(names) => {
                    if *names > 1 {
                        there.names.insert(entry.path.clone(), entry.stamp.inode);
                    }
                    match state.far.get(&entry.path) {
                        Some(Seen { node: Node::File { hash, .. }, stamp, settled: true })
                            if *stamp == entry.stamp =>
                        {
                            Node::File { hash: *hash, size: entry.stamp.size, mode: entry.mode }
                        }
                        _ => {
                            asked.push(entry);
                            continue;
                        }
                    }
                }
            };
            there.tree.insert(entry.path.clone(), Seen { node, stamp: entry.stamp, settled });
        }
        let paths: Vec<&[u8]> = asked.iter().map(|entry| entry.path.as_slice()).collect();
        let hashes = far::hashes(&*self.far, &paths).await?;
        for entry in asked {
            match hashes.get(&entry.path) {
                Some(hash) => {
                    let node = Node::File { hash: *hash, size: entry.stamp.size, mode: entry.mode };
                    let settled = entry.stamp.changed < there.settled_before;
                    there.tree.insert(entry.path.clone(), Seen { node, stamp: entry.stamp, settled });
                }
                // It has gone meanwhile, or cannot be read: nothing follows from that.
                None => {
                    there.unknown.insert(entry.path.clone());
                }
            }
        }
        Ok(there)
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

    /// Gives what changed there, too, a name of its own.
    async fn keep_twice(&self, state: &mut State, report: &mut Report, paths: &[Vec<u8>]) -> Result<()> {
        let mut pairs = Vec::new();
        for path in paths {
            let copy = copy_name(path)?;
            report.conflicts.insert(copy.clone());
            pairs.extend([[b"./", path.as_slice()].concat(), [&b"./"[..], &copy].concat()]);
        }
        state.word.clear();
        for group in pairs.chunks(1000) {
            far::all(&*self.far, far::RENAME, &far::words(group), None).await?;
        }
        Ok(())
    }

    /// Brings changes here; whether something here was changed meanwhile.
    async fn bring_here(
        &self,
        state: &mut State,
        report: &mut Report,
        plan: &Plan,
        scan: &Scan,
        there: &There,
        near: &Arc<Near>,
    ) -> Result<bool> {
        if plan.pull.is_empty() && plan.pull_gone.is_empty() {
            return Ok(false);
        }
        self.fits(plan, scan, there)?;
        let mut again = false;
        let bytes =
            plan.pull.iter().filter_map(|path| there.tree.get(path)).map(|seen| seen.node.size()).sum();
        (self.progress)(Step::Fetches(plan.pull.len() + plan.pull_gone.len(), bytes));
        // What is gone first, the deepest before what it is in.
        let gone: Vec<(Vec<u8>, Seen)> = plan
            .pull_gone
            .iter()
            .rev()
            .filter_map(|path| Some((path.clone(), scan.tree.get(path)?.clone())))
            .collect();
        let beneath = Arc::clone(near);
        let removed = on_disk(move || {
            Ok(gone
                .into_iter()
                .map(|(path, seen)| {
                    let made = beneath.remove(&path, &seen);
                    (path, seen, made)
                })
                .collect::<Vec<_>>())
        })
        .await?;
        for (path, seen, made) in removed {
            match made {
                Made::Done(_) => {
                    report.removed_here += 1;
                    state.host.remove(&path);
                    state.far.remove(&path);
                }
                // What else is in it is not carried, and stays.
                Made::Failed(rustix::io::Errno::NOTEMPTY | rustix::io::Errno::EXIST)
                    if seen.node.is_directory() =>
                {
                    state.host.insert(path.clone(), seen);
                    state.far.remove(&path);
                }
                Made::Other => again = true,
                Made::Failed(errno) => report.fail(&path, errno),
            }
        }
        // Directories, links and modes need no content. Directories stay open until all is in them.
        let mut closed = Vec::new();
        let mut files = Vec::new();
        let mut small = Vec::new();
        for path in &plan.pull {
            let Some(seen) = there.tree.get(path) else { continue };
            let here = scan.tree.get(path);
            let only_mode = here.is_some_and(|here| differ_by_mode(&here.node, &seen.node));
            if matches!(seen.node, Node::File { .. }) && !only_mode {
                files.push((path.clone(), seen.clone()));
            } else {
                small.push((path.clone(), seen.clone(), here.cloned()));
            }
        }
        let beneath = Arc::clone(near);
        let made = on_disk(move || {
            let make = |(path, seen, here): (Vec<u8>, Seen, Option<Seen>)| {
                let made = match (&seen.node, &here) {
                    (Node::Directory { mode }, here) => {
                        beneath.directory(&path, *mode | 0o700, here.as_ref())
                    }
                    (Node::Link { target }, here) => beneath.link(&path, target, here.as_ref()),
                    (Node::File { mode, .. }, Some(here)) => beneath.mode(&path, *mode, here),
                    (Node::File { .. }, None) => Made::Other,
                };
                (path, seen, made)
            };
            Ok(small.into_iter().map(make).collect::<Vec<_>>())
        })
        .await?;
        for (path, seen, made) in made {
            if matches!(&seen.node, Node::Directory { mode } if mode & 0o700 != 0o700) {
                closed.push((path.clone(), seen.clone()));
            }
            again |= self.took(state, report, path, seen.node.clone(), &seen, made);
        }
        for group in groups(files, &there.names) {
            let batch: Vec<Vec<u8>> =
                group.iter().map(|(path, _)| [b"./", path.as_slice()].concat()).collect();
            let expected =
                group.iter().map(|(path, _)| (path.clone(), scan.tree.get(path).cloned())).collect();
            let got =
                transfer::pull(&*self.far, Arc::clone(near), &batch, expected, self.bounds.bytes).await?;
            for (path, seen) in group {
                match got.get(&path) {
                    Some(transfer::Got { made, node }) => {
                        let made = match made {
                            Made::Done(stamp) => Made::Done(*stamp),
                            Made::Other => Made::Other,
                            Made::Failed(errno) => Made::Failed(*errno),
                        };
                        report.fetched_bytes += node.size();
                        again |= self.took(state, report, path, node.clone(), &seen, made);
                    }
                    None => report.missing(&path),
                }
            }
        }
        for (path, seen) in closed.into_iter().rev() {
            let (Node::Directory { mode }, Some(here)) = (&seen.node, state.host.get(&path).cloned()) else {
                continue;
            };
            let (mode, beneath, name) = (*mode, Arc::clone(near), path.clone());
            if let Made::Failed(errno) =
                on_disk(move || Ok(beneath.directory(&name, mode, Some(&here)))).await?
            {
                report.fail(&path, errno);
            }
        }
        Ok(again)
    }

    /// Writes down what came of one change here; whether it has to be looked at again.
    fn took(
        &self,
        state: &mut State,
        report: &mut Report,
        path: Vec<u8>,
        node: Node,
        seen: &Seen,
        made: Made,
    ) -> bool {
        match made {
            Made::Done(Some(stamp)) => {
                // What came may be newer than what was looked at.
                let same = node == seen.node;
                if let Node::Link { target } = &node
                    && moltis_host::tree::unpack::leads_out(&path, target)
                {
                    report.leading_out.insert(path.clone());
                }
                state.host.insert(path.clone(), Seen { node: node.clone(), stamp, settled: false });
                let far = Seen { node, stamp: seen.stamp, settled: same && seen.settled };
                state.far.insert(path, far);
                report.fetched += 1;
                false
            }
            Made::Done(None) => false,
            Made::Other => true,
            Made::Failed(errno) => {
                report.fail(&path, errno);
                false
            }
        }
    }

    /// Whether what is to come fits.
    fn fits(&self, plan: &Plan, scan: &Scan, there: &There) -> Result<()> {
        let mut measure = limits::Measure::new(self.bounds);
        let coming: HashSet<&Vec<u8>> = plan.pull.iter().chain(&plan.pull_gone).collect();
        for (path, seen) in scan.tree.iter().filter(|(path, _)| !coming.contains(path)) {
            measure.add(path, seen.node.size())?;
        }
        for path in &plan.pull {
            measure.add(path, there.tree.get(path).map_or(0, |seen| seen.node.size()))?;
        }
        measure.finish()
    }

    /// Takes changes there; whether some have to be looked at again.
    async fn send_there(
        &self,
        state: &mut State,
        report: &mut Report,
        plan: &Plan,
        scan: &Scan,
        there: &There,
        near: &Arc<Near>,
    ) -> Result<bool> {
        if plan.push.is_empty() && plan.push_gone.is_empty() {
            state.pushing.clear();
            return Ok(false);
        }
        // Should this be interrupted, what is there is nobody's work.
        state.pushing.extend(plan.push.iter().cloned());
        let (store, written) = (self.store.clone(), state.clone());
        on_disk(move || store.write(&written)).await?;
        let mut gone: Vec<&[u8]> = plan.push_gone.iter().map(Vec::as_slice).collect();
        let mut modes = Vec::new();
        let mut items = Vec::new();
        for path in &plan.push {
            let Some(seen) = scan.tree.get(path) else { continue };
            let far = there.tree.get(path).map(|far| &far.node);
            if far.is_some_and(|far| std::mem::discriminant(far) != std::mem::discriminant(&seen.node)) {
                gone.push(path);
            }
            match (far, &seen.node) {
                (Some(far), Node::Directory { mode } | Node::File { mode, .. })
                    if differ_by_mode(far, &seen.node) =>
                {
                    modes.push((format!("{mode:o}").into_bytes(), [b"./", path.as_slice()].concat()));
                }
                (_, node) => {
                    if let Node::Directory { mode } = node
                        && mode & 0o700 != 0o700
                    {
                        modes.push((format!("{mode:o}").into_bytes(), [b"./", path.as_slice()].concat()));
                    }
                    items.push((path.clone(), seen.clone()));
                }
            }
        }
        gone.sort_unstable();
        gone.reverse();
        for batch in far::batches(gone.iter().copied()) {
            far::all(&*self.far, far::REMOVE, &far::words(&batch), None).await?;
        }
        let bytes: u64 = items.iter().map(|(_, seen)| seen.node.size()).sum();
        (self.progress)(Step::Sends(items.len() + plan.push_gone.len(), bytes));
        let mut touched = HashSet::new();
        let mut words = String::new();
        if !items.is_empty() {
            (touched, words) = transfer::push(&*self.far, Arc::clone(near), items).await?;
        }
        for group in modes.chunks(500) {
            let words: Vec<&[u8]> =
                group.iter().flat_map(|(mode, path)| [mode.as_slice(), path.as_slice()]).collect();
            far::all(&*self.far, far::MODES, &words, None).await?;
        }
        report.sent_bytes += bytes;
        self.see(state, report, plan, scan, &touched, &words).await?;
        Ok(!touched.is_empty())
    }

    /// Looks what there is after it was taken there.
    async fn see(
        &self,
        state: &mut State,
        report: &mut Report,
        plan: &Plan,
        scan: &Scan,
        touched: &HashSet<Vec<u8>>,
        words: &str,
    ) -> Result<()> {
        let list = list(&*self.far, "", scan.rules.passed_over(), self.bounds.entries * 4).await?;
        let listed: HashMap<Vec<u8>, far::Listed> =
            list.entries.unwrap_or_default().into_iter().map(|entry| (entry.path.clone(), entry)).collect();
        for path in &plan.push_gone {
            state.host.remove(path);
            report.removed_there += 1;
            match listed.get(path) {
                // What else is in it is not carried, and stays.
                Some(entry) if entry.what == What::Directory => {
                    let node = Node::Directory { mode: entry.mode };
                    state.far.insert(path.clone(), Seen { node, stamp: entry.stamp, settled: true });
                }
                _ => {
                    state.far.remove(path);
                }
            }
        }
        for path in &plan.push {
            let Some(seen) = scan.tree.get(path) else { continue };
            let Some(entry) = listed.get(path) else {
                report.refused_there(path, words);
                continue;
            };
            let node = match (&seen.node, &entry.what) {
                (Node::Directory { .. }, What::Directory) => Node::Directory { mode: entry.mode },
                (Node::File { hash, size, .. }, What::File(_)) if *size == entry.stamp.size => {
                    Node::File { hash: *hash, size: *size, mode: entry.mode }
                }
                (Node::Link { target }, What::Link(there)) if target == there => seen.node.clone(),
                _ if touched.contains(path) => continue,
                _ => {
                    report.refused_there(path, words);
                    continue;
                }
            };
            // What was touched on its way is looked at again, and is ours until then.
            if touched.contains(path) {
                continue;
            }
            state.pushing.remove(path);
            report.sent += 1;
            let settled = entry.stamp.changed < list.settled_before;
            state.far.insert(path.clone(), Seen { node, stamp: entry.stamp, settled });
            state.host.insert(path.clone(), seen.clone());
        }
        // Directories that were made on the way to something, and those whose time has changed, are what they were.
        state.pushing.retain(|path| touched.contains(path));
        Ok(())
    }
}

/// The far side.
struct There {
    tree: Tree,
    /// Inodes of files that have more than one name.
    names: HashMap<Vec<u8>, u64>,
    unknown: HashSet<Vec<u8>>,
    whole: bool,
    word: String,
    settled_before: i64,
}

fn set(tree: &mut Tree, path: &[u8], seen: Option<&Seen>) {
    match seen {
        Some(seen) => {
            tree.insert(path.to_vec(), seen.clone());
        }
        None => {
            tree.remove(path);
        }
    }
}

/// Both sides are as they should be: remembers how they are stamped. What is not known stays as it was.
fn settle(
    state: &mut State,
    path: &[u8],
    host: Option<&Seen>,
    far: Option<&Seen>,
    scan: &Scan,
    there: &There,
) {
    let unread = |path: &[u8]| scan.left_out.unread.contains(path);
    let is_unread = unread(path) || above(path).any(unread);
    if host.is_some() || !is_unread {
        set(&mut state.host, path, host);
    }
    let unknown = |path: &[u8]| there.unknown.contains(path);
    let is_unknown = !there.whole || unknown(path) || above(path).any(unknown);
    if far.is_some() || !is_unknown {
        set(&mut state.far, path, far);
    }
    state.pushing.remove(path);
}

/// Files in groups of one archive each: not too many bytes, and no two names of one file, which an archive would tell as
/// a link.
fn groups(files: Vec<(Vec<u8>, Seen)>, names: &HashMap<Vec<u8>, u64>) -> Vec<Vec<(Vec<u8>, Seen)>> {
    const NAMES: usize = 80 << 10;
    let mut groups: Vec<Vec<(Vec<u8>, Seen)>> = Vec::new();
    let (mut bytes, mut text) = (0u64, 0usize);
    let mut inodes = BTreeSet::new();
    for (path, seen) in files {
        let inode = names.get(&path).copied();
        let size = seen.node.size();
        let is_full = bytes + size > FETCHED || text + path.len() > NAMES;
        let is_second = inode.is_some_and(|inode| inodes.contains(&inode));
        if groups.is_empty() || is_full || is_second {
            groups.push(Vec::new());
            (bytes, text) = (0, 0);
            inodes.clear();
        }
        bytes += size;
        text += path.len() + 8;
        inodes.extend(inode);
        if let Some(group) = groups.last_mut() {
            group.push((path, seen));
        }
    }
    groups
}

/// The name under which the far side's version is kept.
fn copy_name(path: &[u8]) -> Result<Vec<u8>> {
    let (above, name) = moltis_host::tree::archive::split(path);
    let random = moltis_agentless::hex(&moltis_agentless::random_bytes::<3>()?);
    let name = &name[..name.len().min(MAX_NAME)];
    let copy = [name, format!(".conflict-{}-{random}", time()).as_bytes()].concat();
    Ok(if above.is_empty() { copy } else { [above, b"/", &copy].concat() })
}

/// Now, as `20261130-181500` (UTC).
fn time() -> String {
    let secs = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, rest) = (i64::try_from(secs / 86_400).unwrap_or(0), secs % 86_400);
    // Days since 1970 to a date of the Gregorian calendar.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}-{:02}{:02}{:02}", rest / 3600, rest / 60 % 60, rest % 60)
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
