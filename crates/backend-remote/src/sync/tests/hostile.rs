//! A far side that lies: nothing is ever written outside, and nothing that was not asked for.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use moltis_sandbox::files::ByteStream;
use moltis_sandbox::{Error, Result};

use super::rig::{Rig, Thing, put, read, tree};
use crate::sync::{Bounds, Far};

/// Says what it was told to say.
struct Liar {
    list: Vec<u8>,
    archive: Vec<u8>,
}

#[async_trait]
impl Far for Liar {
    async fn run(&self, script: &str, args: &[&[u8]], _: Option<ByteStream>) -> Result<ByteStream> {
        let said = if script.contains("-maxdepth 0") {
            [&b"f 1700000000.5 1 w\n"[..], &self.list].concat()
        } else if script.contains("sha256sum --") {
            args.iter().flat_map(|name| [&b"0".repeat(64)[..], b"  ", name, b"\n"].concat()).collect()
        } else if script.contains("tar -cf") {
            self.archive.clone()
        } else {
            Vec::new()
        };
        Ok(Box::pin(futures_util::stream::iter([Ok(Bytes::from(said))])))
    }
}

fn listed(entries: &[(&str, &str, &str)]) -> Vec<u8> {
    let mut list = Vec::new();
    for (number, (kind, path, target)) in entries.iter().enumerate() {
        list.extend(format!("{kind} 644 4 {number} 1 1.0 1.0 ./{path}\0{target}\0").into_bytes());
    }
    list
}

fn entry(kind: u8, name: &str, target: &str, content: &[u8], size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
    header.set_mode(0o4777);
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_size(size);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().div_ceil(512) * 512, 0);
    bytes
}

struct Outside {
    rig: Rig,
    before: BTreeMap<PathBuf, Thing>,
}

impl Outside {
    fn new() -> Self {
        let rig = Rig::new();
        put(rig.root.path(), "outside/secret", "untouched");
        put(&rig.here, "mine", "mine");
        let before = tree(&rig.root.path().join("outside"));
        Self { rig, before }
    }

    /// Carries with the liar; what it came to. Nothing outside may have changed.
    async fn carry(&self, list: Vec<u8>, archive: Vec<u8>) -> Result<crate::sync::Report, Error> {
        self.rig.store().forget();
        // A machine whose state is known, so that all it says is new.
        let honest = Arc::new(Liar { list: listed(&[("f", "mine", "")]), archive: Vec::new() });
        let _ = self.rig.to(honest).both().await;
        let done = self.rig.to(Arc::new(Liar { list, archive })).both().await;
        assert_eq!(tree(&self.rig.root.path().join("outside")), self.before);
        let names: Vec<_> =
            fs::read_dir(self.rig.root.path()).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        done
    }
}

#[tokio::test]
async fn a_list_of_names_that_lead_out_is_refused_whole() {
    let outside = Outside::new();
    for path in ["../outside/secret", "a/../../outside/x", "./x", "a//b", ""] {
        let error = outside.carry(listed(&[("f", path, "")]), Vec::new()).await.unwrap_err();
        assert_eq!(error.code(), "workspace-not-carried", "{path}");
    }
    let absolute = b"f 644 4 1 1 1.0 1.0 /etc/passwd\0\0".to_vec();
    assert_eq!(outside.carry(absolute, Vec::new()).await.unwrap_err().code(), "workspace-not-carried");
    let twice = listed(&[("f", "a", ""), ("d", "a", "")]);
    assert_eq!(outside.carry(twice, Vec::new()).await.unwrap_err().code(), "workspace-not-carried");
}

#[tokio::test]
async fn nothing_is_written_through_a_link() {
    let outside = Outside::new();
    let to = outside.rig.root.path().join("outside");
    // A link and something beneath it, both new.
    let list = listed(&[("f", "mine", ""), ("l", "a", to.to_str().unwrap()), ("f", "a/secret", "")]);
    let archive = [entry(b'0', "./a/secret", "", b"evil", 4), vec![0; 1024]].concat();
    let _ = outside.carry(list, archive.clone()).await;
    // A link that is here already.
    let _ = fs::remove_file(outside.rig.here.join("a"));
    symlink(&to, outside.rig.here.join("a")).unwrap();
    let _ = outside.carry(listed(&[("f", "mine", ""), ("d", "a", ""), ("f", "a/secret", "")]), archive).await;
    assert_eq!(fs::read_link(outside.rig.here.join("a")).unwrap(), to);
}

#[tokio::test]
async fn an_archive_that_lies_puts_nothing_anywhere_else() {
    let outside = Outside::new();
    let to = outside.rig.root.path().join("outside");
    let to = to.to_str().unwrap();
    let wanted = || listed(&[("f", "mine", ""), ("f", "new", "")]);
    let end = vec![0; 1024];
    let good = entry(b'0', "./new", "", b"good", 4);
    for (what, bad) in [
        ("absolute", entry(b'0', &format!("{to}/x"), "", b"evil", 4)),
        ("climbing", entry(b'0', "./../outside/x", "", b"evil", 4)),
        ("link", entry(b'2', "./new", to, b"", 0)),
        ("hard link", entry(b'1', "./new", to, b"", 0)),
        ("device", entry(b'3', "./new", "", b"", 0)),
        ("fifo", entry(b'6', "./new", "", b"", 0)),
        ("not asked for", entry(b'0', "./mine", "", b"evil", 4)),
        ("newline", entry(b'0', "./ne\nw", "", b"evil", 4)),
        ("twice", [good.clone(), entry(b'0', "./new", "", b"evil", 4)].concat()),
        ("huge", entry(b'0', "./new", "", b"x", 1 << 40)),
        ("sparse", entry(b'S', "./new", "", b"x", 1)),
        ("cut", entry(b'0', "./new", "", b"", 512)[..512].to_vec()),
        ("junk", b"not an archive at all".repeat(100)),
    ] {
        let archive = [bad, if what == "cut" { Vec::new() } else { end.clone() }].concat();
        let error = outside.carry(wanted(), archive).await.err();
        assert!(error.is_some(), "{what}");
        assert_eq!(read(&outside.rig.here, "mine").as_deref(), Some("mine"), "{what}");
        let new = read(&outside.rig.here, "new");
        assert_eq!(new.as_deref(), (what == "twice").then_some("good"), "{what}");
        let _ = fs::remove_file(outside.rig.here.join("new"));
        let left: Vec<_> = tree(&outside.rig.here).into_keys().collect();
        assert_eq!(left, [PathBuf::from("mine")], "{what}");
    }
    // A mode never makes a program run as somebody else.
    outside.carry(wanted(), [good, end].concat()).await.unwrap();
    assert_eq!(tree(&outside.rig.here)[&PathBuf::from("new")], Thing::File(b"good".to_vec(), 0o777));
}

#[tokio::test]
async fn an_endless_far_side_is_bounded() {
    let mut outside = Outside::new();
    outside.rig.bounds = Bounds { entries: 10, bytes: 1000 };
    let many: Vec<_> = (0..100).map(|n| format!("f{n}")).collect();
    let many: Vec<_> = many.iter().map(|path| ("f", path.as_str(), "")).collect();
    let error = outside.carry(listed(&many), Vec::new()).await.unwrap_err();
    assert_eq!(error.code(), "workspace-too-large");
    // It says that a file is small, and sends a large one.
    let archive = [entry(b'0', "./new", "", &[b'x'; 4096], 4096), vec![0; 1024]].concat();
    let list = listed(&[("f", "mine", ""), ("f", "new", "")]);
    assert_eq!(outside.carry(list, archive).await.unwrap_err().code(), "workspace-too-large");
    assert_eq!(read(&outside.rig.here, "new"), None);
}
