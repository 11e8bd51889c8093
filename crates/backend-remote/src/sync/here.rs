//! What is brought here, and copies of what both sides changed.

use super::look::There;
use super::there::groups;
use super::*;

impl Carrier {
    /// Gives what changed there, too, a name of its own.
    pub(super) async fn keep_twice(
        &self,
        state: &mut State,
        report: &mut Report,
        paths: &[Vec<u8>],
    ) -> Result<()> {
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
    pub(super) async fn bring_here(
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
    pub(super) fn took(
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
