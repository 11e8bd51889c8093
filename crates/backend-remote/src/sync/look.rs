//! What there is on both sides.

use super::*;

/// The far side.
pub(super) struct There {
    pub(super) tree: Tree,
    /// Inodes of files that have more than one name.
    pub(super) names: HashMap<Vec<u8>, u64>,
    pub(super) unknown: HashSet<Vec<u8>>,
    pub(super) whole: bool,
    pub(super) word: String,
    pub(super) settled_before: i64,
}

impl Carrier {
    pub(super) async fn look_here(&self, known: &Tree) -> Result<Scan> {
        let (top, known) = (Arc::clone(&self.top), known.clone());
        let rules = Rules::new(&self.terms.protect, &self.terms.listed);
        let bounds = self.bounds;
        on_disk(move || scan(&top, &known, rules, bounds)).await
    }

    pub(super) fn tell_left_out(&self, state: &mut State, report: &mut Report, scan: &Scan) {
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
    pub(super) async fn look_there(&self, state: &State, scan: &Scan) -> Result<There> {
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

    /// Looks what there is after it was taken there.
    pub(super) async fn see(
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

pub(super) fn set(tree: &mut Tree, path: &[u8], seen: Option<&Seen>) {
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
pub(super) fn settle(
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
