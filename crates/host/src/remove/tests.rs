use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

fn folder(path: &Path) -> OwnedFd {
    fs::File::open(path).unwrap().into()
}

fn close(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
}

const DEEP: &str = "deep";

/// A chain of directories that is deeper than any path, with a file in the last.
fn deep(top: &Path) {
    let mut handle = folder(top);
    let name = DEEP.repeat(50);
    for _ in 0..2 * MAX_OPEN + 10 {
        rustix::fs::mkdirat(&handle, &*name, Mode::RWXU).unwrap();
        handle = openat(&handle, &*name, OFlags::RDONLY, Mode::empty()).unwrap();
    }
    openat(&handle, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
}

#[test]
fn whatever_is_there_goes_and_nothing_else() {
    // Nothing is closed to root with its privileges; they are a thread's own.
    std::thread::spawn(|| {
        use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
            .unwrap();
        whatever_goes();
    })
    .join()
    .unwrap();
}

fn whatever_goes() {
    let temp = tempfile::tempdir().unwrap();
    let top = temp.path().join("top");
    let outside = temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "").unwrap();
    let parent = folder(temp.path());
    assert_eq!(tree(&parent, c"top", PATIENCE), Ok(false));

    fs::create_dir(&top).unwrap();
    symlink(&outside, top.join("link")).unwrap();
    fs::write(top.join(".moltis-removed-1"), "").unwrap();
    fs::create_dir_all(top.join(".moltis-removed-2/x")).unwrap();
    for n in 0..40 {
        fs::create_dir_all(top.join(format!("many/{n}/below"))).unwrap();
        fs::write(top.join(format!("many/{n}/file")), "").unwrap();
    }
    deep(&top);
    // Two branches whose depths are moved up.
    fs::create_dir(top.join("other")).unwrap();
    deep(&top.join("other"));
    let name = DEEP.repeat(50);
    close(&top.join(format!("{name}/{name}")));
    close(&top.join("many/7"));
    close(&top);
    assert_eq!(tree(&parent, c"top", PATIENCE), Ok(true));
    assert!(!top.exists());
    assert!(outside.join("file").exists());

    symlink(&outside, &top).unwrap();
    assert_eq!(tree(&parent, c"top", PATIENCE), Err(Errno::NOTDIR.into()));
    assert!(outside.join("file").exists());
}

#[test]
fn a_tree_that_is_refilled_is_given_up() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir_all(temp.path().join("top/sub")).unwrap();
    let parent = folder(temp.path());
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let top = folder(&temp.path().join("top"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The top itself may be gone at some time.
            for number in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let _ = rustix::fs::mkdirat(&top, format!("more-{number}"), Mode::RWXU);
            }
        });
        let removed = tree(&parent, c"top", Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
        // Whichever was faster.
        assert!(matches!(removed, Ok(true) | Err(NotRemoved::Refilled | NotRemoved::Late(_))), "{removed:?}");
    });
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn its_time_is_bounded() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir_all(temp.path().join("top/sub")).unwrap();
    let parent = folder(temp.path());
    assert_eq!(tree(&parent, c"top", Duration::ZERO), Err(NotRemoved::Late(Duration::ZERO)));
    assert_eq!(tree(&parent, c"top", PATIENCE), Ok(true));
}

#[test]
fn what_is_said_names_the_place() {
    let at = |path: &str, errno| NotRemoved::Kernel { path: path.into(), errno }.to_string();
    assert_eq!(at("a/b", Errno::PERM), "`a/b`: Operation not permitted (os error 1)");
    assert_eq!(at("a/b", Errno::XDEV), "`a/b` is a mount point");
    assert_eq!(at("", Errno::BUSY), "it is a mount point");
    assert_eq!(NotRemoved::Late(PATIENCE).to_string(), "it was not done within 30 s");
}
