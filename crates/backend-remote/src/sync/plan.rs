//! What is to be carried which way: both sides as they are, held against what they were when they last agreed.

use std::collections::{BTreeSet, HashSet};

use super::node::{Node, Seen, Tree, above};
use super::rules::Rules;

/// Both sides, then and now.
pub struct Sides<'a> {
    /// This machine's side, when it was last dealt with.
    pub host_then: &'a Tree,
    /// The far side, when it was last dealt with. Where the two differ, that is meant to stay so until one changes.
    pub far_then: &'a Tree,
    /// This machine's side.
    pub host: &'a Tree,
    /// The far side.
    pub far: &'a Tree,
    /// Paths here of which nothing is known, with all below them.
    pub host_unknown: &'a BTreeSet<Vec<u8>>,
    /// The same of the far side.
    pub far_unknown: &'a HashSet<Vec<u8>>,
    /// Whether what is not in `far` is gone there.
    pub far_whole: bool,
    /// What was on its way there when somebody was interrupted: what the far side has of it is nobody's work.
    pub pushing: &'a HashSet<Vec<u8>>,
    /// Whether changes come back at all.
    pub writable: bool,
}

/// Why something stays in the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The host would run it.
    Protected,
    /// The workspace is read-only.
    ReadOnly,
}

/// What is to be done, each list in the order of paths.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Nothing is to be carried: the two agree, or nothing changed.
    pub settled: Vec<Vec<u8>>,
    /// Goes there.
    pub push: Vec<Vec<u8>>,
    /// Goes there no more.
    pub push_gone: Vec<Vec<u8>>,
    /// Comes here.
    pub pull: Vec<Vec<u8>>,
    /// Is no more here.
    pub pull_gone: Vec<Vec<u8>>,
    /// Changed on both sides: the far one gets a name of its own, and all is looked at again.
    pub conflicts: Vec<Vec<u8>>,
    /// Changed there, and stays there.
    pub held: Vec<(Vec<u8>, Why)>,
}

/// Decides for every path.
pub fn plan(sides: &Sides<'_>, rules: &Rules) -> Plan {
    let mut plan = Plan::default();
    let trees = [sides.host_then, sides.far_then, sides.host, sides.far];
    let paths: BTreeSet<&Vec<u8>> = trees.into_iter().flat_map(Tree::keys).collect();
    for path in paths {
        let get = |tree: &'_ Tree| tree.get(path).map(|seen: &Seen| seen.node.clone());
        let is_unknown = |has: &dyn Fn(&[u8]) -> bool| has(path) || above(path).any(has);
        let [host_then, far_then] = [get(sides.host_then), get(sides.far_then)];
        let (mut host, mut far) = (get(sides.host), get(sides.far));
        if host.is_none() && is_unknown(&|path| sides.host_unknown.contains(path)) {
            host.clone_from(&host_then);
        }
        if far.is_none()
            && far_then.is_some()
            && (!sides.far_whole || is_unknown(&|path| sides.far_unknown.contains(path)))
        {
            far.clone_from(&far_then);
        }
        if host == far {
            plan.settled.push(path.clone());
            continue;
        }
        let path = path.clone();
        let is_directory = far.as_ref().or(far_then.as_ref()).is_some_and(Node::is_directory);
        let is_protected = || rules.is_protected(&path, is_directory);
        match (host != host_then, far != far_then) {
            (false, false) => plan.settled.push(path),
            (true, false) => plan.go(path, host.as_ref()),
            (false, true) => {
                if is_protected() {
                    plan.held.push((path, Why::Protected));
                } else if !sides.writable {
                    plan.held.push((path, Why::ReadOnly));
                } else if far.is_some() {
                    plan.pull.push(path);
                } else {
                    plan.pull_gone.push(path);
                }
            }
            (true, true) => match (&host, &far) {
                (Some(_), None) => plan.go(path, host.as_ref()),
                _ if sides.pushing.contains(&path) => plan.go(path, host.as_ref()),
                (None, _) if is_protected() => plan.held.push((path, Why::Protected)),
                (None, _) if !sides.writable => plan.held.push((path, Why::ReadOnly)),
                // What was changed is worth more than that it was removed.
                (None, _) => plan.pull.push(path),
                (Some(host), Some(far)) if is_protected() || differ_by_mode(host, far) => {
                    plan.go(path, Some(host));
                }
                _ => plan.conflicts.push(path),
            },
        }
    }
    plan.clashes(sides);
    let conflicts: HashSet<Vec<u8>> = plan.conflicts.iter().cloned().collect();
    plan.conflicts.retain(|path| !above(path).any(|above| conflicts.contains(above)));
    plan
}

impl Plan {
    /// A directory on one side in which something changed, and something else of its name on the other: both are kept.
    fn clashes(&mut self, sides: &Sides<'_>) {
        let is_directory =
            |tree: &Tree, path: &[u8]| tree.get(path).is_some_and(|seen| seen.node.is_directory());
        let has_below = |paths: &[Vec<u8>], path: &[u8]| {
            let first = [path, b"/"].concat();
            let at = paths.partition_point(|other| *other < first);
            paths.get(at).is_some_and(|other| other.starts_with(&first))
        };
        let coming = |path: &&Vec<u8>| !is_directory(sides.far, path) && has_below(&self.push, path);
        let going = |path: &&Vec<u8>| !is_directory(sides.host, path) && has_below(&self.pull, path);
        let clashing: Vec<Vec<u8>> =
            self.pull.iter().filter(coming).chain(self.push.iter().filter(going)).cloned().collect();
        self.conflicts.extend(clashing);
    }

    fn go(&mut self, path: Vec<u8>, host: Option<&Node>) {
        match host {
            Some(_) => self.push.push(path),
            None => self.push_gone.push(path),
        }
    }
}

/// Whether only the modes differ.
pub fn differ_by_mode(one: &Node, other: &Node) -> bool {
    match (one, other) {
        (Node::File { hash: one, .. }, Node::File { hash: other, .. }) => one == other,
        (Node::Directory { .. }, Node::Directory { .. }) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::Stamp;
    use super::*;

    fn tree(files: &[(&str, u8)]) -> Tree {
        let seen = |content: u8| Seen {
            node: Node::File { hash: [content; 32], size: 1, mode: 0o644 },
            stamp: Stamp::default(),
            settled: true,
        };
        files.iter().map(|(path, content)| (path.as_bytes().to_vec(), seen(*content))).collect()
    }

    type Files<'a> = &'a [(&'a str, u8)];

    fn of([host_then, far_then, host, far]: [Files<'_>; 4], writable: bool, pushing: &[&str]) -> Plan {
        let [host_then, far_then, host, far] = [host_then, far_then, host, far].map(tree);
        let pushing = pushing.iter().map(|path| path.as_bytes().to_vec()).collect();
        let (host_unknown, far_unknown) = (BTreeSet::new(), HashSet::new());
        let sides = Sides {
            host_then: &host_then,
            far_then: &far_then,
            host: &host,
            far: &far,
            host_unknown: &host_unknown,
            far_unknown: &far_unknown,
            far_whole: true,
            pushing: &pushing,
            writable,
        };
        plan(&sides, &Rules::new(&[".git/hooks".to_owned()], &[]))
    }

    fn a() -> Vec<Vec<u8>> {
        vec![b"a".to_vec()]
    }

    #[test]
    fn what_changed_on_one_side_goes_to_the_other() {
        let was: Files<'_> = &[("a", 1)];
        let now: Files<'_> = &[("a", 2)];
        assert_eq!(of([was, was, now, was], true, &[]), Plan { push: a(), ..Plan::default() });
        assert_eq!(of([was, was, was, now], true, &[]), Plan { pull: a(), ..Plan::default() });
        assert_eq!(of([was, was, &[], was], true, &[]), Plan { push_gone: a(), ..Plan::default() });
        assert_eq!(of([was, was, was, &[]], true, &[]), Plan { pull_gone: a(), ..Plan::default() });
        assert_eq!(of([was, was, now, now], true, &[]), Plan { settled: a(), ..Plan::default() });
        assert_eq!(of([&[], &[], &[], now], true, &[]), Plan { pull: a(), ..Plan::default() });
    }

    #[test]
    fn what_changed_on_both_sides_is_kept_twice_and_a_change_is_worth_more_than_an_end() {
        let was: Files<'_> = &[("a", 1)];
        let (one, other): (Files<'_>, Files<'_>) = (&[("a", 2)], &[("a", 3)]);
        assert_eq!(of([was, was, one, other], true, &[]), Plan { conflicts: a(), ..Plan::default() });
        assert_eq!(of([was, was, &[], other], true, &[]), Plan { pull: a(), ..Plan::default() });
        assert_eq!(of([was, was, one, &[]], true, &[]), Plan { push: a(), ..Plan::default() });
        // What was half carried there is nobody's work.
        assert_eq!(of([was, was, one, other], true, &["a"]), Plan { push: a(), ..Plan::default() });
    }

    #[test]
    fn what_differs_and_has_not_changed_stays_so() {
        let (one, other): (Files<'_>, Files<'_>) = (&[("a", 2)], &[("a", 3)]);
        assert_eq!(of([one, other, one, other], true, &[]), Plan { settled: a(), ..Plan::default() });
        assert_eq!(of([&[], other, &[], other], true, &[]), Plan { settled: a(), ..Plan::default() });
    }

    #[test]
    fn nothing_comes_back_to_what_is_read_only_or_makes_the_host_run_code() {
        let was: Files<'_> = &[("a", 1)];
        let now: Files<'_> = &[("a", 2)];
        let held = |why| Plan { held: vec![(b"a".to_vec(), why)], ..Plan::default() };
        assert_eq!(of([was, was, was, now], false, &[]), held(Why::ReadOnly));
        assert_eq!(of([was, was, was, &[]], false, &[]), held(Why::ReadOnly));
        let hook: Files<'_> = &[(".git/hooks/x", 1)];
        let path = b".git/hooks/x".to_vec();
        let held = Plan { held: vec![(path.clone(), Why::Protected)], ..Plan::default() };
        assert_eq!(of([&[], &[], &[], hook], true, &[]), held);
        assert_eq!(of([hook, hook, hook, &[]], true, &[]), held);
        let other: Files<'_> = &[(".git/hooks/x", 2)];
        let third: Files<'_> = &[(".git/hooks/x", 3)];
        assert_eq!(of([hook, hook, other, third], true, &[]), Plan { push: vec![path], ..Plan::default() });
    }
}
