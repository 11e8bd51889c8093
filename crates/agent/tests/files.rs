//! Files.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt;
use moltis_sandbox::files::{TreeSummary, WriteOptions};
use moltis_sandbox::{ByteStream, EntryKind, Error, GuestPath, Result, Sandbox};

use crate::agent::{Agent, alone, path, resident, until};

fn stream(parts: Vec<Result<Bytes>>) -> ByteStream {
    Box::pin(futures_util::stream::iter(parts))
}

fn once(content: impl Into<Bytes>) -> ByteStream {
    stream(vec![Ok(content.into())])
}

async fn all(mut content: ByteStream) -> Result<Vec<u8>> {
    let mut got = Vec::new();
    while let Some(part) = content.next().await {
        got.extend_from_slice(&part?);
    }
    Ok(got)
}

const OVER: WriteOptions = WriteOptions { mode: None, overwrite: true, parents: false };

fn code<T>(result: Result<T>) -> (&'static str, String) {
    let error = result.err().expect("an error");
    (error.kind(), error.code().to_owned())
}

#[tokio::test]
async fn a_file_is_written_read_and_looked_at() {
    let agent = Agent::start();
    let sandbox = agent.sandbox();
    let files = sandbox.files();
    let place = agent.dir.path().join(OsStr::from_bytes(b"a\xff/b"));
    let file = path(&place);
    let options = WriteOptions { mode: Some(0o750), overwrite: false, parents: true };
    let content: Vec<u8> = (0..1_000_000u32).map(|i| (i * 3) as u8).collect();
    let parts = content.chunks(300_000).map(|part| Ok(Bytes::copy_from_slice(part))).collect();
    let written = files.write(&file, options.clone(), stream(parts)).await.unwrap();
    assert_eq!((written.kind, written.size, written.mode), (EntryKind::File, 1_000_000, 0o750));
    assert_eq!(files.stat(&file, false).await.unwrap(), written);
    assert_eq!(fs::read(&place).unwrap(), content);
    let got = files.read(&file, 10, Some(999_000)).await.unwrap();
    assert_eq!(got.metadata, written);
    assert_eq!(all(got.content).await.unwrap(), content[10..999_010]);

    assert_eq!(code(files.write(&file, options, once("x")).await), ("invalid", "file-exists".into()));
    let failing = stream(vec![
        Ok(Bytes::from_static(b"half")),
        Err(Error::Invalid(moltis_sandbox::Diagnosis::new("test", "the source broke"))),
    ]);
    assert_eq!(code(files.write(&file, OVER, failing).await), ("invalid", "test".into()));
    until("the temporary file is gone", || fs::read_dir(place.parent().unwrap()).unwrap().count() == 1).await;
    assert_eq!(fs::read(&place).unwrap(), content);
    let kept = files.write(&file, OVER, once("new")).await.unwrap();
    assert_eq!((kept.size, kept.mode), (3, 0o750));
}

#[tokio::test]
async fn refusals_have_their_codes() {
    let agent = Agent::start();
    let sandbox = agent.sandbox();
    let files = sandbox.files();
    let at = |name: &str| path(&agent.dir.path().join(name));
    symlink("loop", agent.dir.path().join("loop")).unwrap();
    fs::create_dir(agent.dir.path().join("d")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        agent.dir.path().join("fifo"),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    assert_eq!(code(files.read(&at("none"), 0, None).await), ("invalid", "file-missing".into()));
    for name in ["d", "fifo", "loop", "agent.sock"] {
        assert_eq!(
            code(files.read(&at(name), 0, None).await),
            ("invalid", "file-wrong-kind".into()),
            "{name}"
        );
        // More content than any buffer between takes: the refusal must be heard while it is being sent.
        let much = stream((0..64).map(|_| Ok(Bytes::from(vec![0; 1 << 20]))).collect());
        assert_eq!(code(files.write(&at(name), OVER, much).await), ("invalid", "file-wrong-kind".into()));
    }
    assert_eq!(code(files.list(&at("fifo")).await), ("invalid", "file-wrong-kind".into()));
    assert_eq!(code(files.list(&at("none")).await), ("invalid", "file-missing".into()));
    assert_eq!(code(files.mkdir(&at("d"), false).await), ("invalid", "file-exists".into()));
    assert_eq!(
        code(files.remove(&GuestPath::new("/").unwrap(), true).await),
        ("invalid", "request-invalid".into())
    );
    files.write(&at("f"), OVER, once("x")).await.unwrap();
    assert_eq!(
        code(files.rename(&at("f"), &at("d/../loop"), false).await),
        ("invalid", "file-exists".into())
    );
    let shm = GuestPath::new(format!("/dev/shm/moltis-agent-{}", std::process::id())).unwrap();
    assert_eq!(code(files.rename(&at("f"), &shm, true).await), ("invalid", "file-other-mount".into()));
    files.rename(&at("f"), &at("g"), false).await.unwrap();
    files.mkdir(&at("x/y/z"), true).await.unwrap();
    files.remove(&at("x"), true).await.unwrap();
    assert_eq!(code(files.download(&at("none")).await), ("invalid", "file-missing".into()));
    assert_eq!(
        code(files.upload(&at("u"), once(vec![b'x'; 4096])).await),
        ("invalid", "request-invalid".into())
    );
}

#[tokio::test]
async fn a_hundred_thousand_entries_are_listed() {
    let agent = Agent::start();
    let dir = agent.dir.path().join("wide");
    fs::create_dir(&dir).unwrap();
    for number in 0..100_000 {
        fs::File::create(dir.join(format!("file-{number:06}"))).unwrap();
    }
    fs::write(dir.join(OsStr::from_bytes(b"\xfe\xff")), "12").unwrap();
    symlink("elsewhere", dir.join("link")).unwrap();
    let sandbox = agent.sandbox();
    let start = Instant::now();
    let mut list = sandbox.files().list(&path(&dir)).await.unwrap();
    let mut seen = BTreeMap::new();
    while let Some(entry) = list.next().await {
        let entry = entry.unwrap();
        assert!(seen.insert(entry.name, entry.metadata).is_none());
    }
    println!("100,002 entries listed in {:?}", start.elapsed());
    assert_eq!(seen.len(), 100_002);
    let odd = &seen[OsStr::from_bytes(b"\xfe\xff")];
    assert_eq!((odd.kind, odd.size), (EntryKind::File, 2));
    assert_eq!(seen[OsStr::new("link")].target.as_deref(), Some(OsStr::new("elsewhere")));
    let start = Instant::now();
    sandbox.files().remove(&path(&dir), true).await.unwrap();
    println!("and removed in {:?}", start.elapsed());
}

/// A tree of files, directories and links, different every time but the same for one seed.
fn random_tree(at: &Path, seed: u64) {
    let mut state = seed;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut directories = vec![at.to_path_buf()];
    fs::create_dir_all(at).unwrap();
    for number in 0..400 {
        let parent = directories[next(directories.len() as u64) as usize].clone();
        let mut name = format!("{number}-").into_bytes();
        for _ in 0..next(120) {
            name.push((1 + next(255)) as u8);
        }
        name.retain(|byte| *byte != b'/');
        let place = parent.join(OsStr::from_bytes(&name));
        match next(4) {
            0 => {
                fs::create_dir(&place).unwrap();
                directories.push(place);
                continue;
            }
            1 => {
                let target = vec![b't'; 1 + next(300) as usize];
                symlink(OsStr::from_bytes(&target), &place).unwrap();
                continue;
            }
            _ => fs::write(&place, vec![number as u8; next(40_000) as usize]).unwrap(),
        }
        let mode = [0o600, 0o644, 0o755, 0o400][next(4) as usize];
        fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(next(2_000_000_000));
        fs::File::open(&place).unwrap().set_modified(time).unwrap();
    }
}

fn inventory(at: &Path) -> BTreeMap<Vec<u8>, (u32, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![at.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let place = entry.unwrap().path();
            let stat = fs::symlink_metadata(&place).unwrap();
            let content = match () {
                () if stat.is_symlink() => fs::read_link(&place).unwrap().as_os_str().as_bytes().to_vec(),
                () if stat.is_file() => fs::read(&place).unwrap(),
                () => Vec::new(),
            };
            let name = place.strip_prefix(at).unwrap().as_os_str().as_bytes().to_vec();
            found.insert(name, (stat.mode(), stat.mtime(), content));
            if stat.is_dir() {
                waiting.push(place);
            }
        }
    }
    found
}

#[tokio::test]
async fn trees_survive_the_round_trip() {
    let agent = Agent::start();
    let sandbox = agent.sandbox();
    let files = sandbox.files();
    for seed in 1..4 {
        let from = agent.dir.path().join(format!("from-{seed}"));
        let to = agent.dir.path().join(format!("to/{seed}"));
        random_tree(&from, seed);
        let expected = inventory(&from);
        // Straight from the one stream into the other.
        let tar = files.download(&path(&from)).await.unwrap();
        let summary = files.upload(&path(&to), tar).await.unwrap();
        let bytes =
            expected.values().filter(|e| e.0 & 0o170_000 == 0o100_000).map(|e| e.2.len() as u64).sum();
        assert_eq!(summary, TreeSummary { entries: expected.len() as u64, bytes });
        assert_eq!(inventory(&to), expected);
    }
}

#[test]
fn large_content_is_never_held() {
    alone("files::large_content");
}

#[tokio::test]
#[ignore = "run by the test above in a process of its own, so that it measures itself alone"]
async fn large_content() {
    let agent = Agent::start();
    let sandbox = agent.sandbox();
    let files = sandbox.files();
    let place = agent.dir.path().join("big");
    let size: u64 = 256 << 20;
    let part = Bytes::from(vec![5; 1 << 20]);
    let before = resident(std::process::id());
    let parts = futures_util::stream::iter((0..256).map(move |_| Ok(part.clone())));
    let start = Instant::now();
    assert_eq!(files.write(&path(&place), OVER, Box::pin(parts)).await.unwrap().size, size);
    println!("256 MiB written in {:?}", start.elapsed());
    let start = Instant::now();
    let mut content = files.download(&path(&place)).await.unwrap();
    let (mut got, mut most) = (0u64, 0);
    while let Some(bytes) = content.next().await {
        got += bytes.unwrap().len() as u64;
        if got.is_multiple_of(16) {
            most = most.max(agent.resident() + resident(std::process::id()).saturating_sub(before));
        }
    }
    println!("and downloaded in {:?}, {most} kB held at most", start.elapsed());
    assert!(got > size && most < 16 * 1024, "{got} {most}");
}
