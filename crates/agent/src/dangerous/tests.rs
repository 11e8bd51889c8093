//! What is found, and what was made since.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;

const GLOBS: &[&str] = &[".git/hooks", ".git/config", ".gitmodules", ".envrc", ".vscode", ".moltis*"];

fn globs() -> Vec<String> {
    GLOBS.iter().map(|glob| (*glob).to_owned()).collect()
}

fn patterns() -> Patterns {
    Patterns::new(&globs())
}

fn make(root: &Path, paths: &[&str]) {
    for path in paths {
        let path = root.join(path);
        match path.to_str().unwrap().strip_suffix('/') {
            Some(directory) => fs::create_dir_all(directory).unwrap(),
            None => {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
        }
    }
}

fn survey(root: &Path) -> Survey {
    Survey::take(fs::File::open(root).unwrap().as_fd(), &patterns()).unwrap()
}

fn made(survey: &Survey, root: &Path) -> Vec<String> {
    let made = survey.made_since(fs::File::open(root).unwrap().as_fd(), &patterns());
    assert!(made.whole);
    made.paths.into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
}

/// Lets times pass that the kernel tells apart.
fn settle() {
    std::thread::sleep(Duration::from_millis(150));
}

#[test]
fn all_of_a_folder_is_looked_through_but_for_stores() {
    let temp = tempfile::tempdir().unwrap();
    make(
        temp.path(),
        &[
            ".git/hooks/",
            ".git/config",
            ".git/objects/ab/config",
            ".git/modules/libs/lib/config",
            ".git/worktrees/w/commondir",
            ".envrc",
            "sub/deep/.vscode/settings.json",
            "sub/deep/.vscode/.vscode/x",
            "libs/lib/.git",
            "node_modules/p/.vscode/x",
            "target/CACHEDIR.TAG",
            "target/debug/.envrc",
            "other/target/.envrc",
        ],
    );
    symlink(".vscode", temp.path().join("sub/.vscode")).unwrap();
    symlink("/etc", temp.path().join("sub/etc")).unwrap();
    let survey = survey(temp.path());
    assert!(survey.is_whole());
    let mut found: Vec<(String, Kind)> = survey
        .found()
        .iter()
        .map(|found| (String::from_utf8(found.path.to_vec()).unwrap(), found.kind))
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [
        (".envrc", Kind::File),
        (".git/config", Kind::File),
        (".git/hooks", Kind::Directory),
        (".git/modules/libs/lib/config", Kind::File),
        (".git/worktrees/w/commondir", Kind::File),
        ("libs/lib/.git", Kind::File),
        ("other/target/.envrc", Kind::File),
        ("sub/.vscode", Kind::Link),
        ("sub/deep/.vscode", Kind::Directory),
    ];
    assert_eq!(found, expected.map(|(path, kind)| (path.to_owned(), kind)));
}

#[test]
fn what_is_made_is_told_wherever_it_is_made() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    make(root, &[".git/config", ".git/objects/", ".envrc", "a/b/c/f", "d/.vscode/", "e/"]);
    settle();
    let before = survey(root);
    assert_eq!(made(&before, root), Vec::<String>::new());
    make(root, &["a/b/c/.vscode/x", ".git/hooks/pre-commit", ".git/commondir", "new/er/.git/config", "f"]);
    make(root, &[".git/modules/m/hooks/x", "node_modules/p/.envrc", ".git/objects/config"]);
    symlink("/tmp/evil", root.join("e/.moltis.toml")).unwrap();
    symlink("f", root.join("e/.git")).unwrap();
    let told = [
        ".git/commondir",
        ".git/hooks",
        ".git/modules/m/hooks",
        "a/b/c/.vscode",
        "e/.git",
        "e/.moltis.toml",
        "new/er/.git/config",
    ];
    assert_eq!(made(&before, root), told);
    // What is taken away again is no danger.
    fs::remove_dir_all(root.join("new")).unwrap();
    fs::remove_dir_all(root.join("e")).unwrap();
    assert_eq!(made(&before, root), told[..4]);
}

#[test]
fn what_moves_with_its_folder_is_no_news_and_what_takes_its_place_is() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    make(root, &["a/.git/config", "b/x", "l/"]);
    symlink("one", root.join("l/.envrc")).unwrap();
    settle();
    let before = survey(root);
    fs::rename(root.join("a"), root.join("moved")).unwrap();
    assert_eq!(made(&before, root), Vec::<String>::new());
    make(root, &["a/.git/config"]);
    assert_eq!(made(&before, root), ["a/.git/config"]);
    fs::remove_file(root.join("l/.envrc")).unwrap();
    symlink("two", root.join("l/.envrc")).unwrap();
    assert_eq!(made(&before, root), ["a/.git/config", "l/.envrc"]);
    // A link in the place of a directory is not followed, and what it leads to is not taken for what was there.
    fs::rename(root.join("b"), root.join("c")).unwrap();
    symlink("c", root.join("b")).unwrap();
    make(root, &["c/.envrc"]);
    assert_eq!(made(&before, root), ["a/.git/config", "c/.envrc", "l/.envrc"]);
}

#[test]
fn a_link_on_the_way_to_a_folder_leads_nowhere() {
    let temp = tempfile::tempdir().unwrap();
    let (root, outside) = (temp.path().join("root"), temp.path().join("outside"));
    make(&root, &["way/deep/f"]);
    settle();
    let before = survey(&root);
    let folder = fs::File::open(&root).unwrap();
    let open = |path: &str| super::walk::open(folder.as_fd(), path.as_bytes(), rustix::fs::OFlags::PATH);
    assert!(open("way/deep").is_ok());
    // The very folder that was there, reached through a link.
    fs::rename(root.join("way"), &outside).unwrap();
    symlink(&outside, root.join("way")).unwrap();
    assert_eq!(open("way/deep").unwrap_err(), rustix::io::Errno::LOOP);
    make(&outside, &["deep/.envrc"]);
    let after = before.made_since(folder.as_fd(), &patterns());
    assert!(after.whole && after.paths.is_empty(), "{after:?}");
}

#[test]
fn a_change_right_after_the_look_is_not_missed() {
    for _ in 0..50 {
        let temp = tempfile::tempdir().unwrap();
        make(temp.path(), &["a/"]);
        let before = survey(temp.path());
        make(temp.path(), &["a/.envrc"]);
        assert_eq!(made(&before, temp.path()), ["a/.envrc"]);
    }
}

#[test]
fn a_folder_that_is_too_large_is_said_to_be() {
    let temp = tempfile::tempdir().unwrap();
    for number in 0..1_100 {
        make(temp.path(), &[&format!("{number}/.envrc")]);
    }
    let before = survey(temp.path());
    assert!(!before.is_whole());
    assert_eq!(before.found().len(), 1_000);
    let deep = tempfile::tempdir().unwrap();
    make(deep.path(), &[&format!("{}.envrc", "d/".repeat(60))]);
    assert!(!survey(deep.path()).is_whole());
}

#[test]
fn names_are_not_lost_among_very_many() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    make(root, &["sub/f"]);
    settle();
    let before = survey(root);
    for number in 0..51_000 {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join(number.to_string()),
            rustix::fs::FileType::RegularFile,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
    }
    make(root, &[".envrc", ".git/hooks/pre-commit", "sub/.gitmodules"]);
    let made = before.made_since(fs::File::open(root).unwrap().as_fd(), &patterns());
    assert!(!made.whole);
    assert_eq!(made.paths, [&b".envrc"[..], b".git/hooks", b"sub/.gitmodules"]);
}

#[test]
fn an_outcome_names_what_was_made_and_what_cannot_be_watched() {
    let temp = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(temp.path()).unwrap();
    make(&root, &["a/"]);
    symlink("x", root.join("a/.envrc")).unwrap();
    let handle = fs::File::open(&root).unwrap();
    let watched = Watched::begin(&root, handle.as_fd(), b"/workspace", &globs()).unwrap();
    let watched = decode(&encode(&[watched]).unwrap()).unwrap();
    for number in 0..40 {
        make(&root, &[&format!("{number:02}{}/.vscode/", "x".repeat(250))]);
    }
    let mut outcome = crate::exec::outcome(crate::exec::tests::exited()).unwrap();
    tell(&watched, true, &mut outcome);
    assert_eq!((outcome.newly_dangerous.len(), outcome.newly_dangerous_total), (32, 40));
    assert!(outcome.newly_dangerous[0].starts_with("/workspace/00x"));
    assert!(outcome.newly_dangerous.iter().all(|name| name.len() <= 256 + '…'.len_utf8()));
    assert_eq!(outcome.notes.len(), 1);
    assert!(outcome.notes[0].contains("`/workspace/a/.envrc`"), "{:?}", outcome.notes);
    let mut next = crate::exec::outcome(crate::exec::tests::exited()).unwrap();
    tell(&watched, false, &mut next);
    assert_eq!((next.newly_dangerous_total, next.notes), (40, vec![]), "what was told once is known");
    assert!(decode(b"").is_none() && decode(&[9, 9]).is_none());
}

#[test]
fn a_look_at_an_ordinary_folder_takes_no_time() {
    let temp = tempfile::tempdir().unwrap();
    for number in 0..400 {
        make(temp.path(), &[&format!("{}/{number}/file", number % 20)]);
        for file in 0..10 {
            make(temp.path(), &[&format!("{}/{number}/{file}", number % 20)]);
        }
    }
    settle();
    let best = |work: &dyn Fn()| {
        (0..20)
            .map(|_| {
                let start = Instant::now();
                work();
                start.elapsed()
            })
            .min()
            .unwrap()
    };
    let before = survey(temp.path());
    let first = best(&|| drop(survey(temp.path())));
    let again = best(&|| drop(made(&before, temp.path())));
    println!("421 directories, 4400 files: first look {first:?}, later ones {again:?}");
    // A debug build on a machine at work; what matters is that later looks do not read it all again.
    assert!(again < first, "{again:?} {first:?}");
}
