//! Where paths lead, and what may be changed.

use std::os::unix::fs::symlink;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::*;

fn root(at: &str, folder: &std::path::Path, writable: bool) -> Root {
    let handle = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    Root::new(at, handle, true, writable)
}

fn place(tree: &Tree, path: &str, follow: Follow) -> Result<String, Errno> {
    Ok(match tree.walk(path.as_bytes(), follow)? {
        Spot::Bare { place } => format!("bare /{}", String::from_utf8(place.join(&b'/')).unwrap()),
        Spot::Root { root } => format!("root {}", String::from_utf8(tree.roots()[root].path()).unwrap()),
        Spot::Entry { place, .. } => format!("/{}", String::from_utf8(place.join(&b'/')).unwrap()),
    })
}

#[test]
fn a_path_leads_where_it_does_inside() {
    let temp = tempfile::tempdir().unwrap();
    let (home, tmp) = (temp.path().join("home"), temp.path().join("tmp"));
    for folder in [&home, &tmp] {
        std::fs::create_dir_all(folder.join("d/e")).unwrap();
    }
    std::fs::write(home.join("f"), "").unwrap();
    for (target, link) in [
        ("/tmp/d", "abs"),
        ("d/e", "rel"),
        ("../../../../tmp", "up"),
        ("loop", "loop"),
        ("/etc/passwd", "etc"),
        ("none/x", "dangling"),
    ] {
        symlink(target, home.join(link)).unwrap();
    }
    let tree = Tree::new(vec![
        root("/home/sandbox", &home, true),
        root("/tmp", &tmp, true),
        root("/home/sandbox/files", &tmp, false),
    ]);
    for (path, expected) in [
        ("/", Ok("bare /")),
        ("/home", Ok("bare /home")),
        ("/home/./sandbox/", Ok("root /home/sandbox")),
        ("/../../tmp/..//tmp", Ok("root /tmp")),
        ("/home/sandbox/abs/e", Ok("/tmp/d/e")),
        ("/home/sandbox/abs/e/../../d/new", Ok("/tmp/d/new")),
        ("/home/sandbox/rel", Ok("/home/sandbox/d/e")),
        ("/home/sandbox/rel/..", Ok("/home/sandbox/d")),
        ("/home/sandbox/up/d", Ok("/tmp/d")),
        ("/home/sandbox/files", Ok("root /home/sandbox/files")),
        ("/home/sandbox/d/../files/d", Ok("/home/sandbox/files/d")),
        ("/home/sandbox/loop", Err(Errno::LOOP)),
        ("/home/sandbox/etc", Err(Errno::NOENT)),
        ("/home/sandbox/dangling", Err(Errno::NOENT)),
        ("/home/sandbox/f/x", Err(Errno::NOTDIR)),
        ("/home/sandbox/none/x", Err(Errno::NOENT)),
        ("/etc", Err(Errno::NOENT)),
    ] {
        assert_eq!(place(&tree, path, Follow::All), expected.map(str::to_owned), "{path}");
    }
    assert_eq!(place(&tree, "/home/sandbox/abs", Follow::Way).unwrap(), "/home/sandbox/abs");
    assert_eq!(place(&tree, "/home/sandbox/abs/e", Follow::Never), Err(Errno::LOOP));
    let long = "x/".repeat(5000);
    assert!(tree.walk(long.as_bytes(), Follow::All).is_err());
    assert_eq!(tree.walk("n".repeat(300).as_bytes(), Follow::All).unwrap_err(), Errno::NAMETOOLONG);
}

#[test]
fn what_is_protected_stays_with_what_it_is_in() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(temp.path().join(".git/hooks")).unwrap();
    let mut root = root("/w", temp.path(), true);
    root.protected = [b".git/hooks".to_vec(), b".envrc".to_vec()].into();
    for (below, expected) in [
        ("", false),
        ("f", false),
        (".git", true),
        (".git/hooks", true),
        (".git/hooks/x", true),
        (".git/other", false),
        (".git/hooks2", false),
        (".envrc", true),
        (".envrc2", false),
    ] {
        assert_eq!(root.is_protected(below.as_bytes()), expected, "{below}");
    }
    let tree = Tree::new(vec![root]);
    let may = |path: &str| tree.may_change(&tree.walk(path.as_bytes(), Follow::Way).unwrap());
    assert_eq!(may("/w/f"), Ok(()));
    assert_eq!(may("/w/.git/hooks/x"), Err(Errno::ROFS));
    assert_eq!(may("/"), Err(Errno::ROFS));
}
