//! The audit log as several processes write it, on full disks, and after a kill.

// Functions beside tests are of tests, too.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use moltis_egress::audit::{AuditSettings, Filter, Follow, Snapshot, Tally};
use moltis_egress::{Action, Audit, AuditLog, EgressError, Entry, Event, Protocol, Source};

const LONG: Duration = Duration::from_secs(60);

fn entry(session: &str, id: u64) -> Entry {
    Entry {
        timestamp: 1_700_000_000_000 + id,
        session: session.to_owned(),
        id,
        event: Event::Open,
        domain: format!("{id}.example.com"),
        port: 443,
        protocol: Protocol::Https,
        action: if id.is_multiple_of(2) { Action::Allowed } else { Action::Denied },
        source: Source::Config,
        reason: Some("*.example.com".to_owned()),
        bytes_sent: 0,
        bytes_received: 0,
        duration_millis: 0,
    }
}

fn small(max_bytes: u64, kept: u32) -> AuditSettings {
    AuditSettings { max_bytes, kept, ..AuditSettings::default() }
}

fn log(folder: &Path, settings: AuditSettings) -> AuditLog {
    AuditLog::with(folder, settings).0
}

fn read(folder: &Path, filter: &Filter) -> (Vec<Entry>, Tally) {
    let mut entries = Vec::new();
    let snapshot = Snapshot::take(folder).unwrap();
    let tally = snapshot.read(filter, |entry| {
        entries.push(entry);
        ControlFlow::Continue(())
    });
    let tally = tally.unwrap();
    // The end, read backwards, is the same.
    assert_eq!(snapshot.last(filter, usize::MAX).unwrap(), (entries.clone(), tally));
    let last = entries.len().min(3);
    assert_eq!(snapshot.last(filter, 3).unwrap().0, entries[entries.len() - last..]);
    (entries, tally)
}

fn all(folder: &Path) -> (Vec<Entry>, Tally) {
    read(folder, &Filter::default())
}

fn files(folder: &Path) -> Vec<(String, u64)> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap())
        .map(|file| (file.file_name().into_string().unwrap(), file.metadata().unwrap().len()))
        .filter(|(name, _)| name != "network-audit.lock")
        .collect();
    files.sort();
    files
}

fn current(folder: &Path) -> PathBuf {
    folder.join("network-audit.jsonl")
}

/// Runs this test program again with `child` as the only test, as a process of its own.
fn start(folder: &Path, session: &str, count: u64, max_bytes: u64, kept: u32, file_limit: u64) -> Child {
    // A write over the limit is to fail, not to end the process.
    Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" --exact child --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env("AUDIT_CHILD", format!("{session} {count} {max_bytes} {kept} {file_limit}"))
        .env("AUDIT_FOLDER", folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What the processes of the tests below do; alone it does nothing.
#[test]
fn child() {
    let Ok(words) = std::env::var("AUDIT_CHILD") else { return };
    let folder = PathBuf::from(std::env::var_os("AUDIT_FOLDER").unwrap());
    let words: Vec<_> = words.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    if number(4) > 0 {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let most = Some(number(4));
        setrlimit(Resource::Fsize, Rlimit { current: most, maximum: most }).unwrap();
    }
    let log = log(&folder, small(number(2), number(3) as u32));
    for id in 0..number(1) {
        log.record(entry(words[0], id));
        if id % 512 == 511 {
            assert!(log.flush(LONG));
        }
    }
    assert!(log.flush(LONG));
    println!("dropped {}", log.dropped());
}

#[test]
fn entries_are_written_and_read_in_order() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(all(folder.path()), (Vec::new(), Tally::default()));
    let log = log(folder.path(), AuditSettings::default());
    assert_eq!(files(folder.path()), []);
    let entries: Vec<_> = (0..1000).map(|id| entry("s", id)).collect();
    entries.iter().for_each(|entry| log.record(entry.clone()));
    assert!(log.flush(LONG));
    assert_eq!(all(folder.path()), (entries.clone(), Tally::default()));
    let is = fs::metadata(current(folder.path())).unwrap();
    assert_eq!(is.permissions().mode() & 0o7777, 0o600);

    let wanted = |filter: &Filter| read(folder.path(), filter).0.iter().map(|e| e.id).collect::<Vec<_>>();
    let host = |pattern: &str| Filter { host: Some(pattern.parse().unwrap()), ..Filter::default() };
    assert_eq!(wanted(&host("7.example.com")), [7]);
    assert_eq!(wanted(&host("7.example.com:443")), [7]);
    assert_eq!(wanted(&host("7.example.com:80")), [0; 0]);
    assert_eq!(wanted(&host("example.com")).len(), 1000);
    assert_eq!(wanted(&host("*.example.com")).len(), 1000);
    assert_eq!(wanted(&host("*.7.example.com")), [0; 0]);
    assert_eq!(wanted(&host("xample.com")), [0; 0]);
    let since = Filter { since: Some(entry("s", 998).timestamp), ..Filter::default() };
    assert_eq!(wanted(&since), [998, 999]);
    let denied = Filter { action: Some(Action::Denied), ..since };
    assert_eq!(wanted(&denied), [999]);
    let other = Filter { protocol: Some(Protocol::Socks5), ..Filter::default() };
    assert_eq!(wanted(&other), [0; 0]);
    let other = Filter { session: Some("t".into()), ..Filter::default() };
    assert_eq!(wanted(&other), [0; 0]);
}

#[test]
fn what_is_not_written_yet_is_written_when_the_log_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), AuditSettings::default());
    (0..100).for_each(|id| log.record(entry("s", id)));
    drop(log);
    assert_eq!(all(folder.path()).0.len(), 100);
}

#[test]
fn addresses_are_found_by_block() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), AuditSettings::default());
    for (id, domain) in
        ["10.1.2.3", "192.168.0.1", "[fd00::1]", "fd00::2", "ten.example"].into_iter().enumerate()
    {
        log.record(Entry { domain: domain.into(), ..entry("s", id as u64) });
    }
    assert!(log.flush(LONG));
    for (block, expected) in [
        ("10.0.0.0/8", &[0][..]),
        ("0.0.0.0/0", &[0, 1]),
        ("fd00::/8", &[2, 3]),
        ("fd00::1", &[2]),
        ("::/0", &[2, 3]),
        ("192.168.0.0/32", &[]),
        ("*", &[0, 1, 2, 3, 4]),
    ] {
        let filter = Filter { host: Some(block.parse().unwrap()), ..Filter::default() };
        let found: Vec<_> = read(folder.path(), &filter).0.iter().map(|e| e.id).collect();
        assert_eq!(found, expected, "{block}");
    }
}

#[test]
fn files_are_put_aside_by_size_and_the_oldest_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), small(20_000, 2));
    for id in 0..1000 {
        log.record(entry("s", id));
        if id % 10 == 9 {
            assert!(log.flush(LONG));
        }
    }
    let names: Vec<_> = files(folder.path()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["network-audit.jsonl", "network-audit.jsonl.1", "network-audit.jsonl.2"]);
    assert!(files(folder.path()).iter().all(|(_, bytes)| *bytes <= 20_000));
    let (entries, tally) = all(folder.path());
    assert_eq!(tally, Tally::default());
    let first = entries[0].id;
    assert!(first > 0 && entries.iter().map(|e| e.id).eq(first..1000));
}

#[test]
fn a_rotation_that_was_cut_short_is_made_up_for() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), small(2_000, 4));
    let mut id = 0;
    let mut fill = || {
        for _ in 0..8 {
            log.record(entry("s", id));
            id += 1;
        }
        assert!(log.flush(LONG));
    };
    for _ in 0..12 {
        fill();
    }
    // As after .4 was given up and .3 had become .4, and after .1 had become .2.
    fs::rename(folder.path().join("network-audit.jsonl.1"), folder.path().join("network-audit.jsonl.2"))
        .unwrap();
    let before = fs::metadata(folder.path().join("network-audit.jsonl.4")).unwrap().ino();
    fill();
    assert_eq!(files(folder.path()).len(), 5);
    assert_eq!(fs::metadata(folder.path().join("network-audit.jsonl.4")).unwrap().ino(), before);
    let ids: Vec<_> = all(folder.path()).0.iter().map(|e| e.id).collect();
    assert!(ids.is_sorted() && ids.last() == Some(&(id - 1)));
}

#[test]
fn many_processes_write_and_rotate_at_once_and_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a", "b", "c", "d"];
    let mut follow = Snapshot::take(folder.path()).unwrap().follow();
    // Enough files are kept for all of it: every entry must be there, once.
    let children: Vec<_> = names.map(|name| start(folder.path(), name, 3000, 400_000, 16, 0)).into();
    let mut followed = Vec::new();
    let mut running = children;
    while !running.is_empty() {
        poll(&mut follow, &mut followed);
        running.retain_mut(|child| match child.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success());
                false
            }
            None => true,
        });
        std::thread::sleep(Duration::from_millis(5));
    }
    poll(&mut follow, &mut followed);
    let (entries, tally) = all(folder.path());
    assert_eq!(tally, Tally::default());
    assert!(files(folder.path()).len() > 5, "{:?}", files(folder.path()));
    for name in names {
        let ids = |entries: &[Entry]| -> Vec<u64> {
            entries.iter().filter(|e| e.session == name).map(|e| e.id).collect()
        };
        assert!(ids(&entries).into_iter().eq(0..3000), "{name}");
        assert!(ids(&followed).into_iter().eq(0..3000), "{name}, followed");
    }
}

fn poll(follow: &mut Follow, into: &mut Vec<Entry>) -> Tally {
    let polled = follow.poll(&Filter::default(), |entry| {
        into.push(entry);
        ControlFlow::Continue(())
    });
    polled.unwrap()
}

#[test]
fn following_begins_where_the_snapshot_ended_and_crosses_rotations() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), small(4_000, 4));
    (0..10).for_each(|id| log.record(entry("s", id)));
    assert!(log.flush(LONG));
    // Half a line, as of a writer that is at it.
    append(folder.path(), b"{\"timestamp\":");
    let mut follow = Snapshot::take(folder.path()).unwrap().follow();
    let mut followed = Vec::new();
    assert_eq!(poll(&mut follow, &mut followed), Tally::default());
    assert_eq!(followed, []);
    for id in 10..60 {
        log.record(entry("s", id));
        assert!(log.flush(LONG));
    }
    // It could not keep up: three files were written meanwhile.
    assert_eq!(poll(&mut follow, &mut followed), Tally { unreadable: 1, dropped: 0 });
    assert!(followed.iter().map(|e| e.id).eq(10..60));
    fs::write(current(folder.path()), "").unwrap();
    assert_eq!(poll(&mut follow, &mut followed), Tally::default());
    log.record(entry("s", 60));
    assert!(log.flush(LONG));
    poll(&mut follow, &mut followed);
    assert_eq!(followed.last().map(|e| e.id), Some(60));
}

fn append(folder: &Path, bytes: &[u8]) {
    use std::io::Write;
    let file = fs::OpenOptions::new().create(true).append(true).open(current(folder));
    file.unwrap().write_all(bytes).unwrap();
}

#[test]
fn a_line_that_was_torn_spoils_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let record = |id| {
        let log = log(folder.path(), AuditSettings::default());
        log.record(entry("s", id));
    };
    record(1);
    append(folder.path(), b"{\"timestamp\":17,\"session\":\"s\",\"dom");
    assert_eq!(all(folder.path()).1, Tally { unreadable: 1, dropped: 0 });
    record(2);
    append(folder.path(), &[0; 5000]);
    append(folder.path(), &[b'x'; 70_000]);
    record(3);
    append(folder.path(), b"\n\xff\n{}\n");
    record(4);
    let (entries, tally) = all(folder.path());
    assert_eq!(entries.iter().map(|e| e.id).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(tally, Tally { unreadable: 5, dropped: 0 });
}

#[test]
fn a_process_that_is_killed_spoils_no_line_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let until = Instant::now() + Duration::from_secs(3);
    let mut killed = 0;
    while Instant::now() < until {
        let mut children = ["x", "y"].map(|name| start(folder.path(), name, 1 << 40, 100_000, 3, 0));
        std::thread::sleep(Duration::from_millis(60 + killed * 7 % 50));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
            killed += 1;
        }
    }
    let (entries, tally) = all(folder.path());
    assert!(!entries.is_empty());
    // Each that was killed can leave one half line.
    assert!(tally.unreadable <= killed && tally.dropped == 0, "{tally:?} {killed}");
    let log = log(folder.path(), AuditSettings::default());
    log.record(entry("after", 1));
    assert!(log.flush(LONG));
    assert_eq!(all(folder.path()).0.last(), Some(&entry("after", 1)));
}

#[test]
fn what_does_not_fit_on_the_disk_is_dropped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let output = start(folder.path(), "full", 2000, 1 << 30, 4, 50_000).wait_with_output().unwrap();
    assert!(output.status.success());
    let (entries, tally) = all(folder.path());
    // No half line stays.
    assert_eq!(tally, Tally::default());
    assert!(entries.iter().map(|e| e.id).eq(0..entries.len() as u64));
    assert!((100..400).contains(&entries.len()), "{}", entries.len());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(&format!("dropped {}\n", 2000 - entries.len())), "{said}");
}

#[test]
fn dropped_entries_are_told_of_once_there_is_room() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("data");
    let log = log(&folder, AuditSettings::default());
    (0..3).for_each(|id| log.record(entry("s", id)));
    assert!(log.flush(LONG));
    assert_eq!(log.dropped(), 3);
    assert!(log.trouble().unwrap().contains("cannot use the audit log"));
    fs::create_dir(&folder).unwrap();
    log.record(entry("s", 3));
    assert!(log.flush(LONG));
    assert_eq!((log.dropped(), log.trouble()), (3, None));
    let (entries, tally) = all(&folder);
    assert_eq!((entries, tally), (vec![entry("s", 3)], Tally { unreadable: 0, dropped: 3 }));
    let later = Filter { since: Some(u64::MAX), ..Filter::default() };
    assert_eq!(read(&folder, &later).1, Tally::default());
}

#[test]
fn a_writer_that_is_stopped_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let lock = fs::File::create(folder.path().join("network-audit.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let log = log(folder.path(), AuditSettings { queue: 4, ..AuditSettings::default() });
    log.record(entry("s", 0));
    std::thread::sleep(Duration::from_millis(50));
    let since = Instant::now();
    (1..10).for_each(|id| log.record(entry("s", id)));
    assert!(since.elapsed() < Duration::from_millis(50));
    assert!(!log.flush(Duration::from_millis(50)));
    assert_eq!(log.dropped(), 5);
    // Readers wait a moment and then read without it.
    assert_eq!(Snapshot::take(folder.path()).unwrap().last(&Filter::default(), 9).unwrap().0, []);
    drop(lock);
    assert!(log.flush(LONG));
    drop(log);
    let (entries, tally) = all(folder.path());
    assert_eq!(entries.iter().map(|e| e.id).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(tally.dropped, 5);

    let lock = fs::File::open(folder.path().join("network-audit.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let other = self::log(folder.path(), AuditSettings::default());
    other.record(entry("s", 11));
    let since = Instant::now();
    drop(other);
    assert!(since.elapsed() < Duration::from_secs(3), "dropping it gives up");
}

#[test]
fn what_is_no_file_of_ours_is_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    fs::write(&outside, "").unwrap();
    let place = current(folder.path());
    let make: [(&str, &dyn Fn()); 3] = [
        ("a link", &|| symlink(&outside, &place).unwrap()),
        ("a directory", &|| fs::create_dir(&place).unwrap()),
        ("no regular file", &|| {
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &place,
                kind,
                rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
                0,
            )
            .unwrap();
        }),
    ];
    for (what, make) in make {
        make();
        let log = log(folder.path(), AuditSettings::default());
        log.record(entry("s", 1));
        assert!(log.flush(LONG));
        assert_eq!(log.dropped(), 1, "{what}");
        assert!(log.trouble().unwrap().ends_with(&format!(" is {what}")), "{:?}", log.trouble());
        let read = Snapshot::take(folder.path());
        assert!(matches!(read, Err(EgressError::AuditNotOurs { found, .. }) if found == what));
        drop(log);
        if what == "a directory" { fs::remove_dir(&place).unwrap() } else { fs::remove_file(&place).unwrap() }
    }
    assert_eq!(fs::read(&outside).unwrap(), b"");
    fs::write(&place, "").unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o644)).unwrap();
    log(folder.path(), AuditSettings::default()).record(entry("s", 1));
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn the_ring_holds_the_latest_of_the_file_and_of_this_process() {
    let folder = tempfile::tempdir().unwrap();
    let settings = AuditSettings { ring: 5, max_bytes: 500, ..AuditSettings::default() };
    let ids = |log: &AuditLog| log.latest().iter().map(|e| e.id).collect::<Vec<_>>();
    let log = self::log(folder.path(), settings.clone());
    assert_eq!(ids(&log), [0; 0]);
    for id in 0..7 {
        log.record(entry("s", id));
        assert!(log.flush(LONG));
    }
    assert_eq!(ids(&log), [2, 3, 4, 5, 6]);
    drop(log);
    let log = self::log(folder.path(), settings);
    let mut live = log.subscribe();
    log.record(entry("s", 7));
    assert_eq!(ids(&log), [3, 4, 5, 6, 7]);
    assert_eq!(*live.try_recv().unwrap(), entry("s", 7));
    assert!(live.try_recv().is_err());
}

#[test]
fn texts_are_bounded_before_they_are_held() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), AuditSettings { ring: 1, ..AuditSettings::default() });
    let long = "é\n".repeat(100_000);
    log.record(Entry { session: long.clone(), domain: long.clone(), reason: Some(long), ..entry("", 1) });
    assert!(log.flush(LONG));
    let held = log.latest()[0].clone();
    let lengths = (held.session.len(), held.domain.len(), held.reason.as_ref().unwrap().len());
    assert_eq!(lengths, (512, 252, 320));
    assert_eq!(all(folder.path()).0, [(*held).clone()]);
}

/// Every process has its own: none is taken twice.
#[test]
fn nothing_is_written_twice_while_files_change_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start(folder.path(), "r", 20_000, 30_000, 16, 0);
    while child.try_wait().unwrap().is_none() {
        let Ok(snapshot) = Snapshot::take(folder.path()) else { continue };
        let mut seen = HashSet::new();
        let mut last = None;
        let tally = snapshot.read(&Filter::default(), |entry| {
            assert!(seen.insert(entry.id), "{} twice", entry.id);
            assert!(last.replace(entry.id).is_none_or(|last| last < entry.id));
            ControlFlow::Continue(())
        });
        assert_eq!(tally.unwrap(), Tally::default());
    }
    assert!(child.wait().unwrap().success());
}
