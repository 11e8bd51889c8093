//! What goes where: single cases, and random trees with random changes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::rig::{Rig, Thing, paths, put, read, tree};

#[tokio::test]
async fn everything_goes_there_and_changes_come_back() {
    let rig = Rig::new();
    put(&rig.here, "src/main.rs", "one");
    put(&rig.here, "run.sh", "#!/bin/sh");
    fs::set_permissions(rig.here.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(rig.here.join("empty")).unwrap();
    symlink("../outside", rig.here.join("link")).unwrap();
    put(&rig.here, "odd \n\\ name/файл", "odd");
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(120));
    put(&rig.here, &long, "long");
    let report = rig.both().await;
    assert_eq!(tree(&rig.there), tree(&rig.here));
    assert_eq!((report.sent, report.fetched, report.notes()), (9, 0, vec![]));
    // Changes there.
    put(&rig.there, "src/main.rs", "two");
    put(&rig.there, "made/deep/new", "new");
    fs::remove_file(rig.there.join("run.sh")).unwrap();
    fs::remove_dir_all(rig.there.join("odd \n\\ name")).unwrap();
    symlink("/etc/passwd", rig.there.join("made/out")).unwrap();
    fs::set_permissions(rig.there.join("made/deep"), fs::Permissions::from_mode(0o500)).unwrap();
    let report = rig.both().await;
    assert_eq!(tree(&rig.here), tree(&rig.there));
    assert_eq!(fs::read_link(rig.here.join("made/out")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!((report.fetched, report.removed_here, report.sent), (5, 3, 0));
    assert_eq!(paths(&report.leading_out), ["made/out"]);
    // And here.
    put(&rig.here, "src/main.rs", "three");
    fs::set_permissions(rig.here.join("src/main.rs"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_dir_all(rig.here.join("made")).unwrap();
    let report = rig.carrier().send().await.unwrap();
    assert_eq!(tree(&rig.there), tree(&rig.here));
    assert_eq!((report.fetched, report.sent, report.removed_there), (0, 1, 4));
}

#[tokio::test]
async fn what_has_not_changed_is_not_sent_nor_asked_for() {
    let rig = Rig::new();
    for number in 0..300 {
        put(&rig.here, &format!("d{}/f{number}", number % 7), &number.to_string());
    }
    let carrier = rig.carrier();
    carrier.both().await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    carrier.both().await.unwrap();
    let before = (rig.far.runs.load(Ordering::SeqCst), rig.far.sent.load(Ordering::SeqCst));
    carrier.send().await.unwrap();
    assert_eq!((rig.far.runs.load(Ordering::SeqCst), rig.far.sent.load(Ordering::SeqCst)), before);
    // Another process knows it from the disk, and asks for one list.
    rig.carrier().fetch().await.unwrap();
    assert_eq!(rig.far.runs.load(Ordering::SeqCst), before.0 + 1);
    assert_eq!(rig.far.sent.load(Ordering::SeqCst), before.1);
    // A change of the same length within the same second is seen.
    put(&rig.there, "d1/f1", "9");
    assert_eq!(rig.both().await.fetched, 1);
    assert_eq!(read(&rig.here, "d1/f1").unwrap(), "9");
}

#[tokio::test]
async fn what_changed_on_both_sides_is_kept_twice_on_both() {
    let rig = Rig::new();
    put(&rig.here, "notes", "old");
    put(&rig.here, "same", "old");
    put(&rig.here, "gone-here", "old");
    put(&rig.here, "gone-there", "old");
    put(&rig.here, "folder/x", "old");
    rig.both().await;
    put(&rig.here, "notes", "mine");
    put(&rig.there, "notes", "theirs");
    put(&rig.here, "same", "equal");
    put(&rig.there, "same", "equal");
    fs::remove_file(rig.here.join("gone-here")).unwrap();
    put(&rig.there, "gone-here", "changed");
    put(&rig.here, "gone-there", "changed");
    fs::remove_file(rig.there.join("gone-there")).unwrap();
    // A folder here in which something changed, and a file of its name there.
    put(&rig.here, "folder/y", "mine");
    fs::remove_dir_all(rig.there.join("folder")).unwrap();
    put(&rig.there, "folder", "a file now");
    let report = rig.both().await;
    let copies = paths(&report.conflicts);
    assert_eq!(copies.len(), 2, "{copies:?}");
    assert!(copies[0].starts_with("folder.conflict-") && copies[1].starts_with("notes.conflict-"));
    let text = |path: &str| read(&rig.here, path);
    assert_eq!(text("notes").as_deref(), Some("mine"));
    assert_eq!(text(&copies[1]).as_deref(), Some("theirs"));
    assert_eq!(text("same").as_deref(), Some("equal"));
    assert_eq!(text("gone-here").as_deref(), Some("changed"));
    assert_eq!(text("gone-there").as_deref(), Some("changed"));
    assert_eq!(text("folder/y").as_deref(), Some("mine"));
    assert_eq!(text(&copies[0]).as_deref(), Some("a file now"));
    assert_eq!(tree(&rig.there), tree(&rig.here));
    assert!(report.notes()[0].contains("notes.conflict-"), "{:?}", report.notes());
}

#[tokio::test]
async fn an_editor_that_is_faster_loses_nothing() {
    let rig = Rig::new();
    put(&rig.here, "file", "old");
    put(&rig.here, "removed", "old");
    rig.both().await;
    put(&rig.there, "file", "theirs");
    fs::remove_file(rig.there.join("removed")).unwrap();
    // After both sides were looked at, and before what came is written.
    let here = rig.here.clone();
    *rig.far.before.lock().unwrap() = Some((
        "tar -cf",
        Box::new(move || {
            put(&here, "file", "typed meanwhile");
        }),
    ));
    let report = rig.both().await;
    assert_eq!(read(&rig.here, "file").as_deref(), Some("typed meanwhile"));
    let copies = paths(&report.conflicts);
    assert_eq!(copies.len(), 1);
    assert_eq!(read(&rig.here, &copies[0]).as_deref(), Some("theirs"));
    assert_eq!(tree(&rig.there), tree(&rig.here));
}

#[tokio::test]
async fn what_is_read_only_never_changes_here() {
    let mut rig = Rig::new();
    rig.terms.writable = false;
    put(&rig.here, "a", "one");
    put(&rig.here, "b", "one");
    rig.both().await;
    let before = tree(&rig.here);
    put(&rig.there, "a", "two");
    put(&rig.there, "new", "x");
    fs::remove_file(rig.there.join("b")).unwrap();
    let report = rig.both().await;
    assert_eq!(tree(&rig.here), before);
    assert_eq!(paths(&report.read_only), ["a", "b", "new"]);
    assert_eq!(rig.both().await.notes(), Vec::<String>::new(), "told once");
    put(&rig.here, "a", "three");
    put(&rig.here, "b", "three");
    rig.both().await;
    assert_eq!((read(&rig.there, "a"), read(&rig.there, "b")), (Some("three".into()), Some("three".into())));
    assert_eq!(read(&rig.there, "new").as_deref(), Some("x"));
}

#[tokio::test]
async fn whoever_was_interrupted_goes_on_and_leaves_no_halves() {
    let rig = Rig::new();
    for number in 0..40 {
        put(&rig.here, &format!("f{number:02}"), &"x".repeat(20_000));
    }
    for cut in [1000, 150_000, 500_000] {
        rig.far.cut.store(cut, Ordering::SeqCst);
        assert!(rig.carrier().both().await.is_err());
    }
    let report = rig.both().await;
    assert_eq!(paths(&report.conflicts), Vec::<String>::new());
    assert_eq!(tree(&rig.there), tree(&rig.here));
    // The state is lost: nothing is, and nothing is taken for a conflict.
    rig.store().forget();
    let report = rig.both().await;
    assert_eq!((paths(&report.conflicts), report.sent), (vec![], 0));
    // Another machine begins with what is here.
    put(&rig.there, "f00", "of the old machine");
    fs::remove_dir_all(&rig.there).unwrap();
    fs::create_dir(&rig.there).unwrap();
    put(&rig.there, "came-with-it", "image");
    put(&rig.there, "f01", "image");
    rig.store().forget();
    rig.both().await;
    assert_eq!(read(&rig.there, "f01"), read(&rig.here, "f01"));
    assert_eq!(read(&rig.here, "came-with-it"), None, "what a machine comes with is its own");
    put(&rig.there, "came-with-it", "changed");
    rig.both().await;
    assert_eq!(read(&rig.here, "came-with-it").as_deref(), Some("changed"));
}

#[tokio::test]
async fn names_of_one_file_come_as_files() {
    let rig = Rig::new();
    rig.both().await;
    put(&rig.there, "one", "content");
    fs::hard_link(rig.there.join("one"), rig.there.join("two")).unwrap();
    fs::hard_link(rig.there.join("one"), rig.there.join("three")).unwrap();
    rig.both().await;
    assert_eq!(tree(&rig.here), tree(&rig.there));
}

/// What is done to one side.
#[derive(Clone, Debug)]
enum Change {
    Write(usize),
    Remove(usize),
    Folder(usize),
    Link(usize),
    Mode(usize),
}

fn path(number: usize) -> PathBuf {
    let names = ["a", "b", "c"];
    let (first, second, third) = (number % 3, number / 3 % 4, number / 12 % 4);
    let mut path = PathBuf::from(names[first]);
    for next in [second, third] {
        match names.get(next) {
            Some(name) => path.push(name),
            None => break,
        }
    }
    path
}

fn clear(path: &Path) {
    match path.symlink_metadata() {
        Ok(about) if about.is_dir() => fs::remove_dir_all(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
}

fn make_way(folder: &Path, path: &Path) -> PathBuf {
    let mut at = folder.to_owned();
    for part in path.parent().unwrap() {
        at.push(part);
        if !at.symlink_metadata().is_ok_and(|about| about.is_dir()) {
            clear(&at);
            fs::create_dir(&at).unwrap();
        }
    }
    folder.join(path)
}

fn change(folder: &Path, change: &Change, content: &str) {
    match change {
        Change::Write(number) => {
            let path = make_way(folder, &path(*number));
            if !path.symlink_metadata().is_ok_and(|about| about.is_file()) {
                clear(&path);
            }
            fs::write(path, content).unwrap();
        }
        Change::Remove(number) => {
            let path = folder.join(path(*number));
            if path.parent().unwrap().symlink_metadata().is_ok_and(|about| about.is_dir()) {
                clear(&path);
            }
        }
        Change::Folder(number) => {
            let path = make_way(folder, &path(*number));
            if !path.symlink_metadata().is_ok_and(|about| about.is_dir()) {
                clear(&path);
                fs::create_dir(path).unwrap();
            }
        }
        Change::Link(number) => {
            let path = make_way(folder, &path(*number));
            clear(&path);
            symlink(format!("../{content}"), path).unwrap();
        }
        Change::Mode(number) => {
            let path = folder.join(path(*number));
            if path.symlink_metadata().is_ok_and(|about| about.is_file()) {
                fs::set_permissions(path, fs::Permissions::from_mode(0o750)).unwrap();
            }
        }
    }
}

fn changes(most: usize) -> impl Strategy<Value = Vec<Change>> {
    let number = 0usize..48;
    let one = prop_oneof![
        4 => number.clone().prop_map(Change::Write),
        2 => number.clone().prop_map(Change::Remove),
        1 => number.clone().prop_map(Change::Folder),
        1 => number.clone().prop_map(Change::Link),
        1 => number.prop_map(Change::Mode),
    ];
    prop::collection::vec(one, 0..most)
}

fn contents(tree: &BTreeMap<PathBuf, Thing>) -> Vec<Vec<u8>> {
    tree.values()
        .filter_map(|thing| match thing {
            Thing::File(content, _) => Some(content.clone()),
            _ => None,
        })
        .collect()
}

async fn hold(rounds: Vec<(Vec<Change>, Vec<Change>)>) {
    let rig = Rig::new();
    rig.both().await;
    for (round, (here, there)) in rounds.iter().enumerate() {
        for (number, one) in here.iter().enumerate() {
            change(&rig.here, one, &format!("here {round} {number}"));
        }
        for (number, one) in there.iter().enumerate() {
            change(&rig.there, one, &format!("there {round} {number}"));
        }
        let (mine, theirs) = (tree(&rig.here), tree(&rig.there));
        let report = rig.both().await;
        let (now, now_there) = (tree(&rig.here), tree(&rig.there));
        assert_eq!(now, now_there, "both sides are the same\n{rounds:?}\n{report:?}");
        if here.is_empty() {
            assert_eq!(now, theirs, "one side alone decides\n{rounds:?}");
        }
        if there.is_empty() {
            assert_eq!(now, mine, "one side alone decides\n{rounds:?}");
        }
        // What was written in this round on either side is still somewhere.
        let all = contents(&now);
        let fresh = [format!("here {round} "), format!("there {round} ")];
        for content in contents(&mine).into_iter().chain(contents(&theirs)) {
            let text = String::from_utf8(content.clone()).unwrap();
            if fresh.iter().any(|fresh| text.starts_with(fresh)) {
                assert!(all.contains(&content), "{text} is lost\n{rounds:?}\n{now:?}");
            }
        }
        // What nobody changed is where it was, unless a folder of it was replaced.
        assert!(now.keys().all(|path| {
            mine.contains_key(path)
                || theirs.contains_key(path)
                || path.to_string_lossy().contains(".conflict-")
        }));
    }
}

/// Files without folders, where a model says exactly what comes of it.
async fn hold_flat(before: Vec<u8>, here: Vec<Option<u8>>, there: Vec<Option<u8>>) {
    let rig = Rig::new();
    let name = |number: usize| format!("file{number}");
    for (number, content) in before.iter().enumerate() {
        if *content > 0 {
            put(&rig.here, &name(number), &content.to_string());
        }
    }
    rig.both().await;
    let mut expected: BTreeMap<String, String> = BTreeMap::new();
    for number in 0..before.len() {
        let was = (before[number] > 0).then_some(before[number]);
        let edit = |folder: &Path, change: Option<u8>| match change {
            None => was,
            Some(0) => {
                let _ = fs::remove_file(folder.join(name(number)));
                None
            }
            Some(content) => {
                put(folder, &name(number), &content.to_string());
                Some(content)
            }
        };
        let (mine, theirs) = (edit(&rig.here, here[number]), edit(&rig.there, there[number]));
        let result = match (mine, theirs) {
            (mine, theirs) if mine == was => theirs,
            (mine, theirs) if theirs == was => mine,
            (None, theirs) => theirs,
            (mine, None) => mine,
            (mine, theirs) if mine == theirs => mine,
            (mine, theirs) => {
                expected.insert(name(number) + ".conflict", theirs.unwrap().to_string());
                mine
            }
        };
        if let Some(content) = result {
            expected.insert(name(number), content.to_string());
        }
    }
    rig.both().await;
    assert_eq!(tree(&rig.here), tree(&rig.there));
    let found: BTreeMap<String, String> = tree(&rig.here)
        .into_iter()
        .map(|(path, thing)| {
            let Thing::File(content, _) = thing else { panic!() };
            let name = path.to_string_lossy().into_owned();
            let name = name.split_once("-2").map_or(name.clone(), |(name, _)| name.to_owned());
            (name, String::from_utf8(content).unwrap())
        })
        .collect();
    assert_eq!(found, expected);
}

fn on_runtime(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_trees_with_random_changes_agree_and_lose_nothing(
        rounds in prop::collection::vec((changes(7), changes(7)), 1..4),
    ) {
        on_runtime(hold(rounds));
    }

    #[test]
    fn one_side_alone_decides(first in changes(10), second in changes(10), third in changes(10)) {
        on_runtime(hold(vec![(first, vec![]), (vec![], second), (third, vec![])]));
    }

    #[test]
    fn files_are_merged_as_the_model_says(
        before in prop::collection::vec(0u8..3, 6),
        here in prop::collection::vec(prop::option::of(0u8..5), 6),
        there in prop::collection::vec(prop::option::of(0u8..5), 6),
    ) {
        on_runtime(hold_flat(before, here, there));
    }
}
