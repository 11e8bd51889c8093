//! File operations over a socket pair, with the host's part played here.

use std::ffi::{CString, OsStr};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use moltis_agent_protocol::frame::{self, HEADER_BYTES, Header, Kind, MAX_RAW};
use moltis_agent_protocol::message::{ByteString, EntryKind, FailureCode, Metadata};

use moltis_agent_protocol::tar;

use super::*;

/// A directory that is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("moltis-files-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = Command::new("chmod")
            .args(["-R", "u+rwx"])
            .arg(&self.0)
            .stderr(std::process::Stdio::null())
            .status();
        // Deeper than what fs::remove_dir_all can name.
        let _ = Command::new("rm").arg("-rf").arg(&self.0).status();
    }
}

/// What the agent answered.
#[derive(Debug, Default)]
struct Answer {
    replies: Vec<Reply>,
    data: Vec<u8>,
    eof: bool,
    result: Option<io::Result<()>>,
}

impl Answer {
    fn failure(&self) -> FailureCode {
        match self.replies.last() {
            Some(Reply::Failed(failure)) => failure.code,
            other => panic!("no failure but {other:?}"),
        }
    }

    fn metadata(&self) -> Metadata {
        match self.replies.last() {
            Some(Reply::Metadata(metadata)) => metadata.clone(),
            other => panic!("no metadata but {other:?}"),
        }
    }

    fn done(&self) {
        assert_eq!(self.replies, [Reply::Done]);
    }
}

/// What the host sends, in frames.
fn frames(content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in content.chunks(MAX_RAW) {
        out.extend_from_slice(&Header { kind: Kind::Data, length: part.len() }.encode());
        out.extend_from_slice(part);
    }
    out.extend_from_slice(&Header { kind: Kind::Eof, length: 0 }.encode());
    out
}

fn ask(request: FileRequest) -> Answer {
    ask_with(request, Vec::new())
}

fn ask_with(request: FileRequest, sent: Vec<u8>) -> Answer {
    let (mut host, ours) = UnixStream::pair().unwrap();
    let mut sending = host.try_clone().unwrap();
    let agent = std::thread::spawn(move || handle(Connection::new(ours.into()), request));
    let sender = std::thread::spawn(move || {
        // The agent may hang up before it has read all.
        let _ = sending.write_all(&sent);
        if !sent.is_empty() {
            let _ = sending.shutdown(std::net::Shutdown::Write);
        }
    });
    let mut answer = Answer::default();
    loop {
        let mut header = [0; HEADER_BYTES];
        if host.read_exact(&mut header).is_err() {
            break;
        }
        let header = Header::decode(header).unwrap();
        let mut payload = vec![0; header.length];
        host.read_exact(&mut payload).unwrap();
        match header.kind {
            Kind::Control => answer.replies.push(frame::decode_control(&payload).unwrap()),
            Kind::Data => {
                assert!(!payload.is_empty());
                answer.data.extend_from_slice(&payload);
            }
            Kind::Eof => answer.eof = true,
            other => panic!("{other:?}"),
        }
    }
    sender.join().unwrap();
    answer.result = Some(agent.join().unwrap());
    answer
}

fn bytes(path: impl AsRef<Path>) -> ByteString {
    ByteString::from(path.as_ref().as_os_str().as_bytes())
}

fn write(
    path: impl AsRef<Path>,
    mode: Option<u32>,
    overwrite: bool,
    parents: bool,
    content: &[u8],
) -> Answer {
    ask_with(FileRequest::Write { path: bytes(path), mode, overwrite, parents }, frames(content))
}

fn read(path: impl AsRef<Path>) -> Answer {
    ask(FileRequest::Read { path: bytes(path), offset: 0, length: None })
}

fn names(path: &Path) -> Vec<Vec<u8>> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_vec()).collect();
    names.sort();
    names
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn paths_that_cannot_be_are_invalid() {
    for path in ["", "relative", "./x"] {
        assert_eq!(read(path).failure(), FailureCode::Invalid);
    }
    assert_eq!(read("/a\0b").failure(), FailureCode::Invalid);
    assert_eq!(read("/nowhere/at/all").failure(), FailureCode::NotFound);
    assert_eq!(read(format!("/{}", "x".repeat(300))).failure(), FailureCode::Invalid);
}

#[test]
fn a_file_is_read_in_ranges() {
    let dir = Dir::new();
    let content: Vec<u8> = (0..700_000u32).map(|i| (i * 7) as u8).collect();
    fs::write(dir.at("f"), &content).unwrap();
    let all = read(dir.at("f"));
    assert!(all.eof && all.data == content);
    assert_eq!(all.metadata().size, 700_000);
    for (offset, length, expected) in [
        (10, Some(20), &content[10..30]),
        (0, Some(0), &content[..0]),
        (699_990, Some(100), &content[699_990..]),
        (700_000, None, &content[..0]),
        (u64::MAX, None, &content[..0]),
        (300_000, None, &content[300_000..]),
    ] {
        let part = ask(FileRequest::Read { path: bytes(dir.at("f")), offset, length });
        assert!(part.eof && part.data == expected, "{offset} {length:?}");
    }
    let proc = read("/proc/self/cmdline");
    assert!(proc.eof && !proc.data.is_empty(), "files of size 0 may have content");
}

#[test]
fn what_is_no_file_is_never_opened() {
    let dir = Dir::new();
    rustix::fs::mknodat(rustix::fs::CWD, dir.at("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let _socket = UnixListener::bind(dir.at("socket")).unwrap();
    symlink("loop", dir.at("loop")).unwrap();
    fs::create_dir(dir.at("d")).unwrap();
    // A writer waits on the FIFO: it would be let go if anybody opened it.
    let path = dir.at("fifo");
    let waiting = std::thread::spawn(move || fs::OpenOptions::new().write(true).open(path).is_ok());
    for name in ["fifo", "socket", "d", "loop"] {
        assert_eq!(read(dir.at(name)).failure(), FailureCode::WrongKind, "{name}");
        assert_eq!(write(dir.at(name), None, true, false, b"x").failure(), FailureCode::WrongKind, "{name}");
        if name != "d" {
            assert_eq!(
                ask(FileRequest::List { path: bytes(dir.at(name)) }).failure(),
                FailureCode::WrongKind
            );
        }
        if !matches!(name, "d" | "loop") {
            let download = ask(FileRequest::Download { path: bytes(dir.at(name)) });
            assert_eq!(download.failure(), FailureCode::WrongKind);
        }
    }
    assert_eq!(read("/dev/zero").failure(), FailureCode::WrongKind);
    assert_eq!(read("/dev/tty").failure(), FailureCode::WrongKind);
    assert_eq!(write("/dev/null", None, true, false, b"x").failure(), FailureCode::WrongKind);
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    let tree = ask(FileRequest::Download { path: bytes(&dir.0) });
    assert!(tree.eof, "they are left out of archives");
    assert!(!waiting.is_finished());
    drop(fs::OpenOptions::new().read(true).open(dir.at("fifo")).unwrap());
    assert!(waiting.join().unwrap());
}

#[test]
fn metadata_tells_links_from_targets() {
    let dir = Dir::new();
    fs::write(dir.at("f"), "12345").unwrap();
    fs::set_permissions(dir.at("f"), Permissions::from_mode(0o4751)).unwrap();
    symlink("f", dir.at("l")).unwrap();
    let stat = |name: &str, follow| ask(FileRequest::Stat { path: bytes(dir.at(name)), follow }).metadata();
    let file = stat("l", true);
    let found = fs::metadata(dir.at("f")).unwrap();
    assert_eq!(file, stat("f", false));
    let expected = Metadata {
        kind: EntryKind::File,
        size: 5,
        mode: 0o4751,
        modified_nanos: found.mtime() * 1_000_000_000 + found.mtime_nsec(),
        uid: found.uid(),
        gid: found.gid(),
        target: None,
    };
    assert_eq!(file, expected);
    let link = stat("l", false);
    assert_eq!((link.kind, link.target), (EntryKind::Symlink, Some(bytes("f"))));
    assert_eq!(stat(".", true).kind, EntryKind::Directory);
}

#[test]
fn a_write_replaces_at_once_and_keeps_the_mode() {
    let dir = Dir::new();
    let new = write(dir.at("f"), None, false, false, b"one").metadata();
    assert_eq!((new.size, new.mode), (3, 0o644));
    assert_eq!(write(dir.at("f"), None, false, false, b"two").failure(), FailureCode::Exists);
    assert_eq!(fs::read(dir.at("f")).unwrap(), b"one");
    fs::set_permissions(dir.at("f"), Permissions::from_mode(0o750)).unwrap();
    assert_eq!(write(dir.at("f"), None, true, false, b"three").metadata().mode, 0o750);
    assert_eq!(write(dir.at("f"), Some(0o6711), true, false, b"four").metadata().mode, 0o711);
    assert_eq!(fs::read(dir.at("f")).unwrap(), b"four");
    let big = vec![7; 3 * MAX_RAW + 5];
    assert_eq!(write(dir.at("big"), Some(0o600), true, false, &big).metadata().size, big.len() as u64);
    assert_eq!(write(dir.at("empty"), None, true, false, b"").metadata().size, 0);
    assert_eq!(names(&dir.0), [b"big".to_vec(), b"empty".to_vec(), b"f".to_vec()]);

    assert_eq!(write(dir.at("a/b/c"), None, true, false, b"x").failure(), FailureCode::NotFound);
    write(dir.at("a/b/c"), None, true, true, b"x").metadata();
    assert_eq!(write(dir.at("f/c"), None, true, true, b"x").failure(), FailureCode::WrongKind);
    assert_eq!(write(dir.at("a"), None, true, false, b"x").failure(), FailureCode::WrongKind);
    assert_eq!(write(dir.at("n/"), None, true, false, b"x").failure(), FailureCode::Invalid);
    assert_eq!(write("/", None, true, false, b"x").failure(), FailureCode::WrongKind);
    assert_eq!(write(dir.at(&"x".repeat(256)), None, true, false, b"x").failure(), FailureCode::Invalid);
}

#[test]
fn a_write_looks_through_links() {
    let dir = Dir::new();
    fs::create_dir(dir.at("d")).unwrap();
    fs::write(dir.at("d/f"), "old").unwrap();
    symlink("d/f", dir.at("l1")).unwrap();
    symlink(dir.at("l1"), dir.at("l2")).unwrap();
    symlink("d/none", dir.at("dangling")).unwrap();
    symlink("d", dir.at("to-dir")).unwrap();
    write(dir.at("l2"), None, true, false, b"new").metadata();
    assert_eq!(fs::read(dir.at("d/f")).unwrap(), b"new");
    assert!(fs::symlink_metadata(dir.at("l2")).unwrap().is_symlink());
    write(dir.at("dangling"), None, false, false, b"made").metadata();
    assert_eq!(fs::read(dir.at("d/none")).unwrap(), b"made");
    assert_eq!(write(dir.at("to-dir"), None, true, false, b"x").failure(), FailureCode::WrongKind);
    assert_eq!(names(&dir.at("d")), [b"f".to_vec(), b"none".to_vec()]);
}

#[test]
fn a_host_that_goes_away_leaves_the_old_content() {
    let dir = Dir::new();
    fs::write(dir.at("f"), "old").unwrap();
    let whole = frames(&vec![1; 600_000]);
    for cut in [1, HEADER_BYTES, 1000, MAX_RAW + HEADER_BYTES, whole.len() - 1, whole.len() - HEADER_BYTES] {
        let request =
            FileRequest::Write { path: bytes(dir.at("f")), mode: None, overwrite: true, parents: false };
        let answer = ask_with(request, whole[..cut].to_vec());
        assert!(answer.replies.is_empty() && matches!(answer.result, Some(Err(_))), "{cut}");
        assert_eq!(fs::read(dir.at("f")).unwrap(), b"old");
        assert_eq!(names(&dir.0), [b"f".to_vec()]);
    }
}

#[test]
fn what_may_not_be_written_is_not_replaced() {
    if is_root() {
        // Nothing is forbidden to root.
        return;
    }
    let dir = Dir::new();
    fs::write(dir.at("f"), "old").unwrap();
    fs::set_permissions(dir.at("f"), Permissions::from_mode(0o444)).unwrap();
    assert_eq!(write(dir.at("f"), None, true, false, b"x").failure(), FailureCode::Denied);
}

#[test]
fn directories_are_made_with_those_above() {
    let dir = Dir::new();
    let mkdir = |name: &str, parents| ask(FileRequest::Mkdir { path: bytes(dir.at(name)), parents });
    mkdir("a", false).done();
    assert_eq!(mkdir("a", false).failure(), FailureCode::Exists);
    mkdir("a", true).done();
    assert_eq!(mkdir("b/c", false).failure(), FailureCode::NotFound);
    mkdir("b/c//d/", true).done();
    fs::write(dir.at("f"), "").unwrap();
    assert_eq!(mkdir("f", true).failure(), FailureCode::WrongKind);
    assert_eq!(mkdir("f/x", true).failure(), FailureCode::WrongKind);
    symlink("nowhere/else", dir.at("dangling")).unwrap();
    assert_eq!(mkdir("dangling/x", true).failure(), FailureCode::NotFound);
    ask(FileRequest::Mkdir { path: bytes("/"), parents: true }).done();
}

#[test]
fn a_move_replaces_only_when_asked() {
    let dir = Dir::new();
    let rename = |from: &str, to: &str, replace| {
        ask(FileRequest::Rename { from: bytes(dir.at(from)), to: bytes(dir.at(to)), replace })
    };
    fs::write(dir.at("a"), "a").unwrap();
    fs::write(dir.at("b"), "b").unwrap();
    fs::create_dir_all(dir.at("d/e")).unwrap();
    assert_eq!(rename("a", "b", false).failure(), FailureCode::Exists);
    rename("a", "b", true).done();
    assert_eq!(fs::read(dir.at("b")).unwrap(), b"a");
    rename("b", "c", false).done();
    assert_eq!(rename("a", "x", false).failure(), FailureCode::NotFound);
    assert_eq!(rename("d", "d/e/f", false).failure(), FailureCode::Invalid);
    assert_eq!(rename("d", "d/e/f", true).failure(), FailureCode::Invalid);
    assert_eq!(rename("d/.", "x", true).failure(), FailureCode::Invalid);
    assert_eq!(rename("c", "d", true).failure(), FailureCode::WrongKind);
    rename("d/", "g/", false).done();
    let other = ask(FileRequest::Rename {
        from: bytes(dir.at("c")),
        to: bytes(format!("/dev/shm/moltis-{}", std::process::id())),
        replace: false,
    });
    match other.replies.last() {
        Some(Reply::Failed(failure)) => {
            assert_eq!((failure.code, failure.errno), (FailureCode::Io, Some(libc::EXDEV)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn removing_a_tree_follows_no_link() {
    let dir = Dir::new();
    fs::create_dir_all(dir.at("outside/x")).unwrap();
    fs::write(dir.at("outside/x/f"), "").unwrap();
    fs::create_dir_all(dir.at("t/a/b")).unwrap();
    fs::write(dir.at("t/a/f"), "").unwrap();
    symlink("../../outside", dir.at("t/a/link")).unwrap();
    symlink("outside", dir.at("top")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, dir.at("t/fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let remove = |name: &str, recursive| ask(FileRequest::Remove { path: bytes(dir.at(name)), recursive });
    assert_eq!(remove("t", false).failure(), FailureCode::WrongKind);
    assert_eq!(remove("t/..", true).failure(), FailureCode::Invalid);
    assert_eq!(
        ask(FileRequest::Remove { path: bytes("/"), recursive: true }).failure(),
        FailureCode::Invalid
    );
    remove("t", true).done();
    remove("top/", true).done();
    assert_eq!(remove("t", true).failure(), FailureCode::NotFound);
    remove("outside/x/f", false).done();
    remove("outside/x", false).done();
    assert_eq!(names(&dir.0), [b"outside".to_vec()]);
}

/// Directories one in another, made by handles since no path is long enough. Returns the deepest.
fn deep(dir: &Path, depth: usize) -> std::os::fd::OwnedFd {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    let mut current = rustix::fs::open(dir, flags, 0.into()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&current, "d", 0o755.into()).unwrap();
        rustix::fs::mkdirat(&current, "e", 0o755.into()).unwrap();
        current = rustix::fs::openat(&current, "d", flags, 0.into()).unwrap();
    }
    current
}

#[test]
fn depth_and_width_are_no_obstacle() {
    let dir = Dir::new();
    fs::create_dir(dir.at("t")).unwrap();
    let deepest = deep(&dir.at("t"), 3000);
    let file = rustix::fs::openat(
        &deepest,
        "f",
        rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CREATE,
        0o644.into(),
    )
    .unwrap();
    rustix::io::write(file, b"deep").unwrap();
    let tar = ask(FileRequest::Download { path: bytes(dir.at("t")) });
    assert!(tar.eof);
    let upload = ask_with(FileRequest::Upload { path: bytes(dir.at("u")) }, frames(&tar.data));
    assert_eq!(upload.replies, [Reply::Unpacked { entries: 6001, bytes: 4 }]);
    let again = ask(FileRequest::Download { path: bytes(dir.at("u")) });
    assert_eq!(again.data.len(), tar.data.len());
    for name in ["t", "u"] {
        ask(FileRequest::Remove { path: bytes(dir.at(name)), recursive: true }).done();
    }

    fs::create_dir(dir.at("wide")).unwrap();
    for i in 0..20_000u32 {
        let name = if i == 7 { b"\xff\xfe non utf-8".to_vec() } else { format!("entry-{i:06}").into_bytes() };
        let path = dir.at("wide").join(OsStr::from_bytes(&name));
        if i % 1000 == 0 { fs::create_dir(path).unwrap() } else { drop(fs::File::create(path).unwrap()) }
    }
    let list = ask(FileRequest::List { path: bytes(dir.at("wide")) });
    assert_eq!(list.replies.last(), Some(&Reply::Done));
    let mut seen: Vec<Vec<u8>> = Vec::new();
    for reply in &list.replies[..list.replies.len() - 1] {
        let Reply::Entries(entries) = reply else { panic!("{reply:?}") };
        assert!(!entries.is_empty() && entries.len() <= 256);
        assert!(frame::encode_control(reply).unwrap().len() <= 64 * 1024 + HEADER_BYTES);
        seen.extend(entries.iter().map(|entry| entry.name.to_vec()));
    }
    seen.sort();
    assert_eq!(seen, names(&dir.at("wide")));
    ask(FileRequest::Remove { path: bytes(dir.at("wide")), recursive: true }).done();
    assert!(names(&dir.0).is_empty());
}

/// A tree with everything that an archive can hold.
fn tree(at: &Path) {
    fs::create_dir_all(at.join("empty")).unwrap();
    fs::create_dir_all(at.join("dir/".to_owned() + &"long-".repeat(40))).unwrap();
    fs::write(at.join("dir/script"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(at.join("dir/script"), Permissions::from_mode(0o755)).unwrap();
    fs::write(at.join(OsStr::from_bytes(b"dir/\xff\xfe")), vec![9; 100_000]).unwrap();
    fs::write(at.join("dir/".to_owned() + &"long-".repeat(40) + "/" + &"n".repeat(255)), "x").unwrap();
    fs::write(at.join("exactly"), vec![1; 512]).unwrap();
    fs::write(at.join("n".repeat(100)), "").unwrap();
    fs::write(at.join("n".repeat(101)), "y").unwrap();
    fs::write(at.join("big"), vec![3; 2 * MAX_RAW + 17]).unwrap();
    symlink("/nowhere/absolute", at.join("absolute")).unwrap();
    symlink("t".repeat(300), at.join("long-target")).unwrap();
    symlink("..", at.join("up")).unwrap();
    fs::write(at.join("secret"), "s").unwrap();
    fs::set_permissions(at.join("secret"), Permissions::from_mode(0o400)).unwrap();
    fs::create_dir(at.join("closed")).unwrap();
    fs::write(at.join("closed/f"), "z").unwrap();
    for (name, secs) in [("dir/script", 1_000_000_000), ("big", 1), ("dir", 1_234_567_890), ("closed", 77)] {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(secs);
        fs::File::open(at.join(name)).unwrap().set_modified(time).unwrap();
    }
    fs::set_permissions(at.join("closed"), Permissions::from_mode(0o555)).unwrap();
}

/// Everything of a tree that counts, sorted.
fn inventory(at: &Path) -> Vec<(Vec<u8>, u32, i64, Vec<u8>)> {
    fn visit(at: &Path, below: &Path, out: &mut Vec<(Vec<u8>, u32, i64, Vec<u8>)>) {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let stat = fs::symlink_metadata(&path).unwrap();
            let content = if stat.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_vec()
            } else if stat.is_file() {
                fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            let name = path.strip_prefix(below).unwrap().as_os_str().as_bytes().to_vec();
            out.push((name, stat.mode(), stat.mtime(), content));
            if stat.is_dir() {
                visit(&path, below, out);
            }
        }
    }
    let mut out = Vec::new();
    visit(at, at, &mut out);
    out.sort();
    out
}

#[test]
fn a_tree_survives_the_round_trip_and_other_tars() {
    let dir = Dir::new();
    fs::create_dir(dir.at("t")).unwrap();
    tree(&dir.at("t"));
    let tar = ask(FileRequest::Download { path: bytes(dir.at("t")) });
    assert!(tar.eof && tar.replies == [Reply::Done]);
    let upload = || ask_with(FileRequest::Upload { path: bytes(dir.at("u/v")) }, frames(&tar.data));
    let expected = inventory(&dir.at("t"));
    let summary = Reply::Unpacked {
        entries: expected.len() as u64,
        bytes: expected
            .iter()
            .filter(|e| e.1 & libc::S_IFMT == libc::S_IFREG)
            .map(|e| e.3.len() as u64)
            .sum(),
    };
    assert_eq!(upload().replies, std::slice::from_ref(&summary));
    assert_eq!(inventory(&dir.at("u/v")), expected);
    fs::set_permissions(dir.at("u/v/closed"), Permissions::from_mode(0o755)).unwrap();
    assert_eq!(upload().replies, [summary], "and again, over what is there");
    assert_eq!(inventory(&dir.at("u/v")), expected);

    // What GNU tar makes of ours, and what we make of its own formats.
    fs::write(dir.at("ours.tar"), &tar.data).unwrap();
    fs::create_dir(dir.at("gnu")).unwrap();
    let run = |args: &[&str]| {
        let output = Command::new("tar").current_dir(&dir.0).args(args).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    };
    run(&["-xpf", "ours.tar", "-C", "gnu", "--delay-directory-restore"]);
    assert_eq!(inventory(&dir.at("gnu")), expected);
    for format in ["gnu", "posix"] {
        run(&["-cf", "theirs.tar", "--format", format, "-C", "t", "."]);
        let theirs = fs::read(dir.at("theirs.tar")).unwrap();
        let path = bytes(dir.at(&format!("from-{format}")));
        let answer = ask_with(FileRequest::Upload { path }, frames(&theirs));
        assert!(matches!(answer.replies[..], [Reply::Unpacked { .. }]), "{answer:?}");
        assert_eq!(inventory(&dir.at(&format!("from-{format}"))), expected, "{format}");
    }

    let one = ask(FileRequest::Download { path: bytes(dir.at("t/dir/script")) });
    let answer = ask_with(FileRequest::Upload { path: bytes(dir.at("one")) }, frames(&one.data));
    assert_eq!(answer.replies, [Reply::Unpacked { entries: 1, bytes: 10 }]);
    assert_eq!(names(&dir.at("one")), [b"script".to_vec()]);
}

/// Kind, name, target, mode and content.
type Raw<'a> = (u8, &'a [u8], &'a [u8], u32, &'a [u8]);

/// An archive of headers and content as they are given.
fn archive(entries: &[Raw<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for (kind, name, target, mode, content) in entries {
        let entry = tar::Entry {
            kind: tar::Kind::File,
            name,
            target,
            mode: *mode,
            uid: 0,
            gid: 0,
            size: content.len() as u64,
            mtime: 5,
        };
        let at = out.len();
        entry.write(&mut out);
        let header = out.len() - tar::BLOCK;
        assert!(header >= at);
        out[header + 156] = *kind;
        out[header + 148..header + 156].fill(b' ');
        let sum: u32 = out[header..].iter().map(|byte| u32::from(*byte)).sum();
        out[header + 148..header + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(tar::BLOCK), 0);
    }
    out.resize(out.len() + 2 * tar::BLOCK, 0);
    out
}

fn unpack(dir: &Dir, content: &[u8]) -> Answer {
    ask_with(FileRequest::Upload { path: bytes(dir.at("u")) }, frames(content))
}

#[test]
fn archives_that_lead_outside_are_refused() {
    let dir = Dir::new();
    fs::create_dir(dir.at("outside")).unwrap();
    fs::write(dir.at("outside/f"), "safe").unwrap();
    for name in [&b"../outside/f"[..], b"/etc/moltis-test", b"a/../../outside/f", b".."] {
        let answer = unpack(&dir, &archive(&[(b'0', name, b"", 0o644, b"x")]));
        assert_eq!(answer.failure(), FailureCode::Escapes);
    }
    let through_link: [&[Raw<'_>]; 3] = [
        &[(b'2', b"l", b"../outside", 0o777, b""), (b'0', b"l/f", b"", 0o644, b"x")],
        &[(b'2', b"l", b"../outside", 0o777, b""), (b'5', b"l/d/", b"", 0o755, b"")],
        &[(b'2', b"l", b"..", 0o777, b""), (b'2', b"l/outside/f", b"x", 0o644, b"")],
    ];
    for entries in through_link {
        assert_eq!(unpack(&dir, &archive(entries)).failure(), FailureCode::Escapes);
    }
    // A link is replaced, not written through.
    let over_link = [
        (b'2', &b"l2"[..], &b"../outside/f"[..], 0o777, &b""[..]),
        (b'0', b"l2", b"", 0o644, b"mine"),
        (b'2', b"l3", b"../outside", 0o777, b""),
        (b'5', b"l3/", b"", 0o700, b""),
    ];
    assert!(matches!(unpack(&dir, &archive(&over_link)).replies[..], [Reply::Unpacked { entries: 4, .. }]));
    assert_eq!(fs::read(dir.at("outside/f")).unwrap(), b"safe");
    assert_eq!(names(&dir.at("outside")), [b"f".to_vec()]);
    assert_eq!(fs::read(dir.at("u/l2")).unwrap(), b"mine");
    assert!(fs::symlink_metadata(dir.at("u/l3")).unwrap().is_dir());
}

#[test]
fn archives_that_hold_more_than_files_are_refused_by_name() {
    let dir = Dir::new();
    for kind in [b'1', b'3', b'4', b'6', b'S', b'Z'] {
        let answer = unpack(&dir, &archive(&[(kind, b"the-entry", b"x", 0o644, b"")]));
        assert_eq!(answer.failure(), FailureCode::WrongKind);
        assert!(format!("{:?}", answer.replies).contains("the-entry"));
    }
    let answer = unpack(&dir, &archive(&[(b'0', b"f", b"", 0o6755, b"x"), (b'5', b"d/", b"", 0o7777, b"")]));
    assert!(matches!(answer.replies[..], [Reply::Unpacked { .. }]));
    for (name, mode) in [("u/f", 0o755), ("u/d", 0o777)] {
        assert_eq!(fs::metadata(dir.at(name)).unwrap().mode() & 0o7777, mode, "no setuid bits");
    }
    fs::create_dir_all(dir.at("u/full/x")).unwrap();
    let answer = unpack(&dir, &archive(&[(b'0', b"full", b"", 0o644, b"x")]));
    assert_eq!(answer.failure(), FailureCode::WrongKind, "a directory does not give way to a file");
}

#[test]
fn broken_archives_are_said_to_be() {
    let dir = Dir::new();
    let good = archive(&[(b'0', b"f", b"", 0o644, &[7; 2000]), (b'0', b"g", b"", 0o644, b"x")]);
    for cut in [1, 511, 513, 1000, 512 + 2000, 512 + 2048 + 100] {
        let answer = unpack(&dir, &good[..cut]);
        assert_eq!(answer.failure(), FailureCode::Invalid, "{cut}");
        if cut < 512 + 2048 {
            assert!(!dir.at("u/f").exists(), "no half files");
        }
    }
    let mut wrong = good.clone();
    wrong[3] ^= 1;
    assert_eq!(unpack(&dir, &wrong).failure(), FailureCode::Invalid);
    assert_eq!(unpack(&dir, &[b'x'; 5000]).failure(), FailureCode::Invalid);
    assert_eq!(
        unpack(&dir, &archive(&[(b'L', b"l", b"", 0, &vec![b'a'; 2 << 20])])).failure(),
        FailureCode::Invalid
    );
    assert_eq!(unpack(&dir, &archive(&[(b'x', b"x", b"", 0, b"nonsense")])).failure(), FailureCode::Invalid);
    assert_eq!(unpack(&dir, &archive(&[(b'2', b"l", b"", 0, b"")])).failure(), FailureCode::Invalid);
    for fine in [&b""[..], &[0; 1024], &good[..512 + 2048]] {
        assert!(matches!(unpack(&dir, fine).replies[..], [Reply::Unpacked { .. }]));
    }
}

#[test]
fn files_that_change_while_they_are_read_do_not_break_the_archive() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = Dir::new();
    fs::create_dir(dir.at("t")).unwrap();
    static STOP: AtomicBool = AtomicBool::new(false);
    let path = dir.at("t/f");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let changing = std::thread::spawn(move || {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        for size in [0, 3 << 20, 100, 1 << 20].into_iter().cycle() {
            if STOP.load(Ordering::Relaxed) {
                break;
            }
            file.set_len(size).unwrap();
        }
    });
    for _ in 0..50 {
        let tar = ask(FileRequest::Download { path: bytes(dir.at("t")) });
        assert!(tar.eof && tar.data.len().is_multiple_of(tar::BLOCK));
        assert!(matches!(unpack(&dir, &tar.data).replies[..], [Reply::Unpacked { entries: 1, .. }]));
    }
    STOP.store(true, Ordering::Relaxed);
    changing.join().unwrap();
}

/// A small file system of its own, where the tests may mount.
struct Small(PathBuf);

impl Small {
    fn mount(dir: &Dir, options: &str) -> Option<Self> {
        let path = dir.at("small");
        fs::create_dir(&path).unwrap();
        let target = CString::new(path.as_os_str().as_bytes()).unwrap();
        let options = CString::new(options).unwrap();
        let data = Some(options.as_c_str());
        rustix::mount::mount("tmpfs", &*target, "tmpfs", rustix::mount::MountFlags::empty(), data).ok()?;
        Some(Self(path))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_leaves_the_old_content() {
    let dir = Dir::new();
    let Some(small) = Small::mount(&dir, "size=1m") else { return };
    fs::write(small.0.join("f"), "old").unwrap();
    let big = vec![1; 2 << 20];
    assert_eq!(write(small.0.join("f"), None, true, false, &big).failure(), FailureCode::Full);
    assert_eq!(fs::read(small.0.join("f")).unwrap(), b"old");
    assert_eq!(names(&small.0), [b"f".to_vec()]);
    let answer = ask_with(
        FileRequest::Upload { path: bytes(small.0.join("u")) },
        frames(&archive(&[(b'0', b"fits", b"", 0o644, b"x"), (b'0', b"the-big-one", b"", 0o644, &big)])),
    );
    assert_eq!(answer.failure(), FailureCode::Full);
    assert!(format!("{:?}", answer.replies).contains("the-big-one"));
    assert_eq!(names(&small.0.join("u")), [b"fits".to_vec()]);
}

#[test]
fn mount_points_survive_the_removal_of_a_tree() {
    let dir = Dir::new();
    let Some(small) = Small::mount(&dir, "size=1m") else { return };
    fs::write(small.0.join("f"), "kept").unwrap();
    let answer = ask(FileRequest::Remove { path: bytes(&dir.0), recursive: true });
    assert_eq!(answer.failure(), FailureCode::Denied);
    assert_eq!(fs::read(small.0.join("f")).unwrap(), b"kept");
}

#[test]
fn read_only_is_called_so() {
    let dir = Dir::new();
    let Some(small) = Small::mount(&dir, "size=1m") else { return };
    fs::write(small.0.join("f"), "old").unwrap();
    let flags = rustix::mount::MountFlags::RDONLY;
    rustix::mount::mount_remount(&small.0, flags, "").unwrap();
    for name in ["f", "new"] {
        assert_eq!(write(small.0.join(name), None, true, false, b"x").failure(), FailureCode::ReadOnly);
    }
    let remove = ask(FileRequest::Remove { path: bytes(small.0.join("f")), recursive: false });
    assert_eq!(remove.failure(), FailureCode::ReadOnly);
    let mkdir = ask(FileRequest::Mkdir { path: bytes(small.0.join("d")), parents: true });
    assert_eq!(mkdir.failure(), FailureCode::ReadOnly);
}
