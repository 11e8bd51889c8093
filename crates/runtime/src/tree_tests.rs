//! Trees through both ends, and what hostile archives and folders try.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use bytes::Bytes;
use futures_util::StreamExt;
use moltis_agent_protocol::tar::{BLOCK, Entry, Kind, padding};
use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{ByteStream, EntryKind, Files, GuestPath, Result};
use rustix::fs::{Mode, OFlags};

use crate::ManagedFiles;
use crate::local_files::{self, LeftOut, Unpacked};
use crate::tree::object::NotOpened;
use crate::tree::part::Part;
use crate::tree::place::Place;
use crate::tree::remove::remove;

fn path(text: &str) -> GuestPath {
    GuestPath::new(text).unwrap()
}

fn bytes(content: impl Into<Bytes>) -> ByteStream {
    let content = content.into();
    Box::pin(futures_util::stream::iter([Ok(content)]))
}

fn managed(folder: &Path) -> ManagedFiles {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    ManagedFiles::new(rustix::fs::open(folder, flags, Mode::empty()).unwrap())
}

const NEW: WriteOptions = WriteOptions { mode: None, overwrite: false, parents: false };

async fn put(files: &ManagedFiles, at: &str, content: &'static str, options: WriteOptions) -> Result<u32> {
    files.write(&path(at), options, bytes(content)).await.map(|metadata| metadata.mode)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn code<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.unwrap_err().code().to_owned()
}

fn metadata(mode: u32) -> moltis_sandbox::Metadata {
    moltis_sandbox::Metadata {
        kind: EntryKind::Directory,
        size: 0,
        mode,
        modified_nanos: 1_500_000_000,
        uid: 0,
        gid: 0,
        target: None,
    }
}

/// An archive of entries: type, name, content or target, mode.
fn archive(entries: &[(u8, &[u8], &[u8], u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (kind, name, content, mode) in entries {
        let is_file = *kind == b'0';
        let target = if is_file { &b""[..] } else { content };
        let size = if is_file { content.len() as u64 } else { 0 };
        let entry =
            Entry { kind: Kind::File, name, target, mode: *mode, uid: 0, gid: 0, size, mtime: 1_000_000 };
        entry.write(&mut out);
        // Its kind is told by one byte, which counts in the check sum.
        let header = out.len() - BLOCK;
        out[header + 156] = *kind;
        out[header + 148..header + 156].fill(b' ');
        let sum: u32 = out[header..].iter().map(|byte| u32::from(*byte)).sum();
        out[header + 148..header + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        if is_file {
            out.extend_from_slice(content);
            out.resize(out.len() + padding(size), 0);
        }
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

async fn unpacked(to: &Path, entries: &[(u8, &[u8], &[u8], u32)], replace: bool) -> Result<Unpacked> {
    local_files::write_tree(to, bytes(archive(entries)), metadata(0o750), replace).await
}

#[tokio::test]
async fn files_are_written_read_listed_moved_and_removed() {
    let temp = tempfile::tempdir().unwrap();
    let files = managed(temp.path());
    assert_eq!(put(&files, "/a", "one", NEW).await, Ok(0o644));
    assert_eq!(code(put(&files, "/a", "two", NEW).await), "file-exists");
    assert_eq!(fs::read(temp.path().join("a")).unwrap(), b"one");
    let replace = WriteOptions { mode: Some(0o4711), overwrite: true, parents: false };
    assert_eq!(put(&files, "/a", "two", replace).await, Ok(0o755));
    let keep = WriteOptions { overwrite: true, ..NEW };
    assert_eq!(put(&files, "/a", "three", keep.clone()).await, Ok(0o755), "the old one's mode");
    assert_eq!(code(put(&files, "/x/y/b", "b", NEW).await), "file-missing");
    put(&files, "/x/y/b", "b", WriteOptions { parents: true, ..NEW }).await.unwrap();
    assert_eq!(code(put(&files, "/x", "b", keep).await), "file-wrong-kind");

    let read = files.read(&path("/a"), 1, Some(3)).await.unwrap();
    assert_eq!(read.metadata.size, 5);
    let content: Vec<_> = read.content.collect().await;
    assert_eq!(content, [Ok(Bytes::from("hre"))]);
    assert_eq!(code(files.read(&path("/x"), 0, None).await.map(|_| ())), "file-wrong-kind");
    assert_eq!(code(files.read(&path("/../etc/passwd"), 0, None).await.map(|_| ())), "request-invalid");

    assert_eq!(code(files.mkdir(&path("/x"), false).await), "file-exists");
    files.mkdir(&path("/x"), true).await.unwrap();
    files.mkdir(&path("/z"), false).await.unwrap();
    assert_eq!(code(files.rename(&path("/a"), &path("/x/y/b"), false).await), "file-exists");
    assert_eq!(code(files.rename(&path("/x"), &path("/x/y/x"), false).await), "request-invalid");
    files.rename(&path("/a"), &path("/x/y/b"), true).await.unwrap();
    files.rename(&path("/x"), &path("/w"), false).await.unwrap();
    let entries: Vec<_> = files.list(&path("/")).await.unwrap().collect().await;
    let mut seen: Vec<_> =
        entries.into_iter().map(|e| e.unwrap()).map(|e| (e.name, e.metadata.kind)).collect();
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(seen, [("w".into(), EntryKind::Directory), ("z".into(), EntryKind::Directory)]);

    assert_eq!(code(files.remove(&path("/w"), false).await), "file-wrong-kind");
    files.remove(&path("/w"), true).await.unwrap();
    files.remove(&path("/z"), false).await.unwrap();
    assert_eq!(code(files.remove(&path("/z"), false).await), "file-missing");
    assert_eq!(code(files.remove(&path("/"), true).await), "file-wrong-kind");
    assert_eq!(names(temp.path()), Vec::<String>::new());
}

#[tokio::test]
async fn links_and_special_files_are_seen_and_never_used() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    let temp = tempfile::tempdir().unwrap();
    let files = managed(temp.path());
    symlink(outside.path(), temp.path().join("link")).unwrap();
    symlink("secret", temp.path().join("dangling")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, temp.path().join("fifo"), Mode::RWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(temp.path().join("socket")).unwrap();
    for (name, kind) in
        [("/link", EntryKind::Symlink), ("/fifo", EntryKind::Other), ("/socket", EntryKind::Other)]
    {
        assert_eq!(files.stat(&path(name), false).await.unwrap().kind, kind);
        assert_eq!(code(files.read(&path(name), 0, None).await.map(|_| ())), "file-wrong-kind", "{name}");
        let over = WriteOptions { overwrite: true, ..NEW };
        assert_eq!(code(put(&files, name, "x", over).await), "file-wrong-kind", "{name}");
        assert_eq!(code(files.list(&path(name)).await.map(|_| ())), "file-wrong-kind", "{name}");
    }
    assert_eq!(code(files.stat(&path("/link"), true).await), "file-wrong-kind");
    for through in ["/link/secret", "/link/new"] {
        assert_eq!(code(files.read(&path(through), 0, None).await.map(|_| ())), "file-wrong-kind");
        assert_eq!(
            code(put(&files, through, "x", WriteOptions { parents: true, ..NEW }).await),
            "file-wrong-kind"
        );
        assert_eq!(code(files.remove(&path(through), true).await), "file-wrong-kind");
        assert_eq!(code(files.rename(&path(through), &path("/mine"), false).await), "file-wrong-kind");
    }
    assert_eq!(code(files.upload(&path("/link"), bytes(archive(&[]))).await), "file-wrong-kind");
    assert_eq!(code(files.download(&path("/link")).await.map(|_| ())), "file-wrong-kind");
    let link = archive(&[(b'2', b"l", b"/etc/passwd", 0o777)]);
    assert_eq!(code(files.upload(&path("/t"), bytes(link)).await), "file-wrong-kind");
    // Only the files are in a tree.
    put(&files, "/file", "x", NEW).await.unwrap();
    let tar = files.download(&path("/")).await.unwrap();
    let copy = outside.path().join("copy");
    local_files::write_tree(&copy, tar, metadata(0o755), false).await.unwrap();
    assert_eq!(names(&copy), ["file", "t"]);
    files.remove(&path("/link"), true).await.unwrap();
    assert_eq!(names(outside.path()), ["copy", "secret"]);
}

#[tokio::test]
async fn what_breaks_off_leaves_nothing_and_what_is_left_is_removed() {
    let temp = tempfile::tempdir().unwrap();
    let files = managed(temp.path());
    put(&files, "/a", "old", NEW).await.unwrap();
    let wrong = moltis_sandbox::Error::Lost(moltis_sandbox::Diagnosis::new("lost", "lost"));
    let broken: ByteStream = Box::pin(futures_util::stream::iter([Ok(Bytes::from("new")), Err(wrong)]));
    let over = WriteOptions { overwrite: true, ..NEW };
    assert_eq!(code(files.write(&path("/a"), over.clone(), broken).await), "lost");
    assert_eq!(names(temp.path()), ["a"]);
    assert_eq!(fs::read(temp.path().join("a")).unwrap(), b"old");
    // One that is dropped in the middle.
    let silent: ByteStream =
        Box::pin(futures_util::stream::iter([Ok(Bytes::from("x"))]).chain(futures_util::stream::pending()));
    let place = path("/a");
    let mut write = Box::pin(files.write(&place, over, silent));
    assert!(tokio::time::timeout(std::time::Duration::from_millis(200), &mut write).await.is_err());
    assert_eq!(names(temp.path()).len(), 2, "the control: it is under way");
    let left = format!(".moltis-part-{}", "0".repeat(32));
    fs::write(temp.path().join(&left), "left of a killed one").unwrap();
    fs::write(temp.path().join(".moltis-part-mine"), "not ours").unwrap();
    put(&files, "/b", "b", NEW).await.unwrap();
    let now = names(temp.path());
    assert!(!now.contains(&left) && now.len() == 4, "the one under way stays: {now:?}");
    drop(write);
    for _ in 0..200 {
        if names(temp.path()).len() == 3 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(names(temp.path()), [".moltis-part-mine", "a", "b"]);
}

#[tokio::test]
async fn a_file_has_a_largest_size() {
    let temp = tempfile::tempdir().unwrap();
    let files = managed(temp.path());
    let piece = Bytes::from(vec![0; 8 << 20]);
    let endless: ByteStream = Box::pin(futures_util::stream::repeat(Ok(piece)));
    let error = files.write(&path("/a"), NEW, endless).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("refused", "file-too-large"));
    assert_eq!(names(temp.path()), Vec::<String>::new());
}

#[tokio::test]
async fn trees_come_through_both_ends_as_they_are() {
    let temp = tempfile::tempdir().unwrap();
    let (from, to) = (temp.path().join("from"), temp.path().join("to"));
    fs::create_dir_all(from.join("deep/er")).unwrap();
    fs::write(from.join("deep/er/file"), vec![7; 1_000_000]).unwrap();
    fs::write(from.join("run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(from.join("run"), fs::Permissions::from_mode(0o4755)).unwrap();
    let long = "n".repeat(200);
    fs::write(from.join(&long), "").unwrap();
    symlink("../run", from.join("deep/link")).unwrap();
    symlink("/etc/passwd", from.join("out")).unwrap();
    fs::set_permissions(from.join("deep"), fs::Permissions::from_mode(0o500)).unwrap();
    let tar = local_files::read_tree(&from, b"", &LeftOut::default()).await.unwrap();
    let done = local_files::write_tree(&to, tar, metadata(0o750), false).await.unwrap();
    assert_eq!((done.summary.entries, done.summary.bytes), (7, 1_000_010));
    assert_eq!((done.leading_out, done.one_leading_out), (1, Some(b"out".to_vec())));
    assert_eq!(names(&to), ["deep".to_owned(), long, "out".into(), "run".into()]);
    assert_eq!(fs::read(to.join("deep/er/file")).unwrap(), vec![7; 1_000_000]);
    assert_eq!(fs::metadata(to.join("run")).unwrap().mode() & 0o7777, 0o755, "without the setuid bit");
    assert_eq!(fs::metadata(to.join("deep")).unwrap().mode() & 0o7777, 0o500);
    assert_eq!(fs::metadata(&to).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::metadata(&to).unwrap().mtime(), 1);
    assert_eq!(fs::read_link(to.join("deep/link")).unwrap(), Path::new("../run"));
    // A folder that is there keeps its mode.
    fs::set_permissions(to.join("deep"), fs::Permissions::from_mode(0o700)).unwrap();
    let tar = local_files::read_tree(&from, b"", &LeftOut::default()).await.unwrap();
    local_files::write_tree(&to, tar, metadata(0o777), true).await.unwrap();
    for (folder, mode) in [(to.join("deep"), 0o700), (to.join("deep/er"), 0o755), (to.clone(), 0o750)] {
        assert_eq!(fs::metadata(folder).unwrap().mode() & 0o7777, mode);
    }
    let (a, b) = (fs::metadata(from.join("run")).unwrap(), fs::metadata(to.join("run")).unwrap());
    assert_eq!(a.mtime(), b.mtime());
    for folder in [&from, &to] {
        fs::set_permissions(folder.join("deep"), fs::Permissions::from_mode(0o700)).unwrap();
    }
}

#[tokio::test]
async fn hostile_archives_stay_beneath_their_folder() {
    let temp = tempfile::tempdir().unwrap();
    let outside = temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let mut round = 0;
    let mut fresh = || {
        round += 1;
        temp.path().join(format!("to-{round}"))
    };
    for name in [&b"/etc/x"[..], b"../x", b"a/../../x", b".."] {
        assert_eq!(code(unpacked(&fresh(), &[(b'0', name, b"x", 0o644)], false).await), "archive-escapes");
    }
    let target = outside.as_os_str().as_encoded_bytes();
    // A link, then a file through it: the link is made last, and what is in its place by then is no link.
    let through =
        unpacked(&fresh(), &[(b'2', b"l", target, 0o777), (b'0', b"l/x", b"x", 0o644)], false).await;
    assert_eq!(code(through), "file-exists");
    // The link is there already, from the workspace that was copied to.
    let planted = fresh();
    fs::create_dir(&planted).unwrap();
    symlink(&outside, planted.join("l")).unwrap();
    fs::write(outside.join("kept"), "kept").unwrap();
    symlink(outside.join("kept"), planted.join("f")).unwrap();
    for replace in [false, true] {
        let through = unpacked(&planted, &[(b'0', b"l/x", b"x", 0o644)], replace).await;
        assert_eq!(code(through), "file-wrong-kind");
        let through = unpacked(&planted, &[(b'5', b"l", b"", 0o755)], replace).await;
        assert_eq!(code(through), "file-wrong-kind");
        let over = unpacked(&planted, &[(b'0', b"f", b"x", 0o644)], replace).await;
        assert_eq!(code(over), if replace { "file-wrong-kind" } else { "file-exists" });
    }
    let link = temp.path().join("link");
    symlink(&outside, &link).unwrap();
    assert_eq!(code(unpacked(&link, &[(b'0', b"x", b"x", 0o644)], true).await), "file-wrong-kind");
    let one = local_files::write(&planted.join("f"), bytes("x"), metadata(0o644), true).await;
    assert_eq!(code(one), "file-wrong-kind");
    assert_eq!(
        (names(&outside), fs::read(outside.join("kept")).unwrap()),
        (vec!["kept".into()], b"kept".to_vec())
    );
    for kind in [b'1', b'3', b'4', b'6', b'S', b'Z'] {
        assert_eq!(code(unpacked(&fresh(), &[(kind, b"x", b"y", 0o644)], false).await), "file-wrong-kind");
    }
    let mut cut = archive(&[(b'0', b"x", &[1; 5000], 0o644)]);
    cut.truncate(2000);
    let to = fresh();
    assert_eq!(
        code(local_files::write_tree(&to, bytes(cut), metadata(0o755), false).await),
        "request-invalid"
    );
    assert_eq!(names(&to), Vec::<String>::new());
    let twice = fresh();
    let entries: &[(u8, &[u8], &[u8], u32)] = &[(b'0', b"x", b"1", 0o6755), (b'0', b"x", b"2", 0o6755)];
    assert_eq!(code(unpacked(&twice, entries, false).await), "file-exists");
    unpacked(&twice, entries, true).await.unwrap();
    assert_eq!(fs::read(twice.join("x")).unwrap(), b"2");
    assert_eq!(fs::metadata(twice.join("x")).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn what_was_put_in_place_of_a_new_file_is_not_taken_for_it() {
    let temp = tempfile::tempdir().unwrap();
    let folder = rustix::fs::open(temp.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    for replace in [false, true] {
        let part = Part::new(folder.as_fd()).unwrap();
        let name = names(temp.path()).into_iter().find(|name| name.starts_with(".moltis-part-")).unwrap();
        fs::remove_file(temp.path().join(&name)).unwrap();
        symlink("/etc/passwd", temp.path().join(&name)).unwrap();
        let taken = part.take_name(c"file", 0o600, replace);
        assert!(matches!(taken, Err(NotOpened::Kernel(rustix::io::Errno::BUSY))), "{taken:?}");
        fs::remove_file(temp.path().join("file")).unwrap();
    }
}

#[test]
fn closed_directories_are_removed_by_their_owner() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    for (name, mode) in [("a/none", 0o000), ("a/listed", 0o400), ("a/read", 0o500), ("b", 0o100)] {
        fs::create_dir_all(home.join(name).join("in")).unwrap();
        fs::write(home.join(name).join("in/file"), "").unwrap();
        fs::set_permissions(home.join(name).join("in"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(home.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let top = rustix::fs::open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    if rustix::process::geteuid().is_root() {
        // Permissions do not hold for root: another user removes it, by a thread that is his in the eyes of files.
        let give = |place: &Path| std::os::unix::fs::chown(place, Some(61234), Some(61234)).unwrap();
        let mut all = vec![folder.path().to_owned()];
        while let Some(place) = all.pop() {
            give(&place);
            if place.is_dir() {
                all.extend(fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
        fs::set_permissions(&home, fs::Permissions::from_mode(0o000)).unwrap();
        // SAFETY: changes this thread alone, which does nothing else.
        unsafe { libc::syscall(libc::SYS_setfsuid, 61234) };
    }
    let place = Place { directory: top, name: c"home".to_owned() };
    let removed = remove(&place, b"home", true);
    if rustix::process::geteuid().is_root() {
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_setfsuid, 0) };
    }
    removed.unwrap();
    assert!(!home.exists());
}

#[tokio::test]
async fn deep_trees_are_removed_and_refused_where_they_cannot_be_walked() {
    let temp = tempfile::tempdir().unwrap();
    let files = managed(temp.path());
    let deep = format!("/top{}", "/d".repeat(1500));
    files.mkdir(&path(&deep), true).await.unwrap();
    put(&files, &format!("{deep}/file"), "x", NEW).await.unwrap();
    let tar: Vec<_> = files.download(&path("/top")).await.unwrap().collect().await;
    assert_eq!(code(tar.last().unwrap().clone()), "tree-too-deep");
    files.remove(&path("/top"), true).await.unwrap();
    assert_eq!(names(temp.path()), Vec::<String>::new());
}

#[tokio::test]
async fn managed_trees_replace_nothing_without_a_word() {
    let temp = tempfile::tempdir().unwrap();
    let files = managed(temp.path());
    let tree = || bytes(archive(&[(b'5', b"d/", b"", 0o700), (b'0', b"d/run", b"new", 0o6711)]));
    assert_eq!(files.upload(&path("/t"), tree()).await.unwrap().entries, 2);
    assert_eq!(fs::metadata(temp.path().join("t/d/run")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(code(files.upload(&path("/t"), tree()).await), "file-exists");
    files.clone().replacing(true).upload(&path("/t"), tree()).await.unwrap();
    let one = files.download(&path("/t/d/run")).await.unwrap();
    let copy = temp.path().join("copy");
    local_files::write_tree(&copy, one, metadata(0o755), false).await.unwrap();
    assert_eq!(names(&copy), ["run"]);
}

#[tokio::test]
async fn mangled_archives_are_refused_or_unpacked_and_never_lead_out() {
    let temp = tempfile::tempdir().unwrap();
    let long = [b'n'; 300];
    let whole = archive(&[
        (b'5', b"d/", b"", 0o755),
        (b'0', b"d/file", &[7; 1500], 0o644),
        (b'2', b"d/link", b"../..", 0o777),
        (b'0', &long, b"x", 0o755),
        (b'0', b"last", b"", 0o600),
    ]);
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let (mut done, mut refused) = (0, 0);
    for round in 0..400 {
        let mut bytes_of_it = whole.clone();
        for _ in 0..=random(4) {
            let block = random(whole.len() / BLOCK) * BLOCK;
            // The fields of a header: name, numbers, kind, target.
            let at = [random(100), 100 + random(48), 156, 157 + random(100)][random(4)];
            bytes_of_it[block + at] = *b"\0/.0157x2L\xff\x80g".get(random(14)).unwrap_or(&b'K');
            bytes_of_it[block + 148..block + 156].fill(b' ');
            let sum: u32 = bytes_of_it[block..block + BLOCK].iter().map(|byte| u32::from(*byte)).sum();
            bytes_of_it[block + 148..block + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        if random(4) == 0 {
            bytes_of_it.truncate(random(whole.len()));
        }
        let to = temp.path().join("outer").join(round.to_string());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        match local_files::write_tree(&to, bytes(bytes_of_it), metadata(0o755), false).await {
            Ok(_) => done += 1,
            Err(error) => {
                // Work that panicked would have broken the stream.
                assert_ne!(error.code(), "stream-broken");
                refused += 1;
            }
        }
        assert_eq!(names(temp.path()), ["outer"]);
        assert_eq!(names(&temp.path().join("outer")), [round.to_string()]);
        let _ = std::process::Command::new("chmod").args(["-R", "u+rwx"]).arg(&to).output();
        fs::remove_dir_all(&to).unwrap();
    }
    assert!(done > 20 && refused > 20, "{done} {refused}");
}
