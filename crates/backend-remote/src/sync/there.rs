//! What is sent there.

use super::look::There;
use super::*;

impl Carrier {
    /// Whether what is to come fits.
    pub(super) fn fits(&self, plan: &Plan, scan: &Scan, there: &There) -> Result<()> {
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
    pub(super) async fn send_there(
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
}

/// Files in groups of one archive each: not too many bytes, and no two names of one file, which an archive would tell as
/// a link.
pub(super) fn groups(
    files: Vec<(Vec<u8>, Seen)>,
    names: &HashMap<Vec<u8>, u64>,
) -> Vec<Vec<(Vec<u8>, Seen)>> {
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
