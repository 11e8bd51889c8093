//! Files: whole, by range, atomic, with odd names, as trees, and never through what is not a file.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use futures_util::StreamExt;
use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{EntryKind, Error, Files, GuestPath};

use crate::tree::{self, Node, Tree};
use crate::{Case, Ctx, Fail, Place, Verdict, case, ensure, ensure_eq, fail, patience};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("files.write-and-read", write_and_read),
        case!("files.ranges", ranges),
        case!("files.odd-names", odd_names),
        case!("files.modes", modes),
        case!("files.overwrite", overwrite),
        case!("files.atomic", atomic),
        case!("files.list-and-stat", list_and_stat),
        case!("files.make-move-remove", make_move_remove),
        case!("files.errors", errors),
        case!("files.only-files-are-opened", only_files).law(3),
        case!("files.links", links).law(3),
        case!("files.remove-follows-no-link", remove_follows_no_link).law(3),
        case!("files.large", large).limit(60),
        case!("files.held-back", held_back).law(5),
        case!("files.tree", whole_tree),
        case!("files.tree-that-leaves", tree_that_leaves).law(3),
        case!("files.tree-large", tree_large).limit(60),
    ]
}

/// A guest path of the case's.
pub(crate) fn at(path: impl AsRef<[u8]>) -> Result<GuestPath, Fail> {
    GuestPath::new(path.as_ref()).ok_or_else(|| Fail::new("a path of the case itself is wrong"))
}

const PLAIN: WriteOptions = WriteOptions { mode: None, overwrite: true, parents: false };

/// A path in the sandbox's folder for files; the folder itself for the empty name.
fn own(place: &Place, name: &str) -> Result<GuestPath, Fail> {
    at(if name.is_empty() { place.tmp.clone() } else { place.path(name) })
}

/// The same as one command: what it prints of a line that is run there.
async fn there(place: &Place, line: &str) -> Result<String, Fail> {
    place.out(format!("cd {}; {line}", place.tmp)).await
}

async fn put(files: &dyn Files, path: &str, content: impl Into<bytes::Bytes>) -> Result<(), Fail> {
    let content: bytes::Bytes = content.into();
    let length = content.len() as u64;
    let metadata = files.write(&at(path)?, PLAIN, tree::stream(content)).await?;
    ensure_eq!((metadata.kind, metadata.size), (EntryKind::File, length), "what was written to {path}");
    Ok(())
}

async fn get(files: &dyn Files, path: &str) -> Result<Vec<u8>, Fail> {
    tree::collect(files.read(&at(path)?, 0, None).await?.content).await
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 7_u64;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

async fn write_and_read(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    for (name, content) in [("empty", Vec::new()), ("small", b"a\0b\n".to_vec()), ("block", noise(300_001))] {
        for folder in [&place.tmp, &place.room] {
            let path = format!("{folder}/{name}");
            put(place.files(), &path, content.clone()).await?;
            ensure!(get(place.files(), &path).await? == content, "{path} differs when read");
            let ran = place.sh(format!("cat {path}")).await?.good()?;
            ensure!(ran.stdout == content, "{path} differs when seen by a command");
        }
    }
    there(&place, "echo from inside >made").await?;
    ensure_eq!(get(place.files(), &place.path("made")).await?, b"from inside\n", "a command's file");
    let owner = there(&place, "stat -c %u small made | sort -u | wc -l").await?;
    ensure_eq!(owner.trim(), "1", "owners of written and made files");
    Ok(Verdict::Pass)
}

async fn ranges(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let data = noise(1_000_000);
    put(place.files(), &place.path("f"), data.clone()).await?;
    for (offset, length) in [
        (0, Some(0)),
        (0, Some(1)),
        (1, Some(999_998)),
        (999_999, Some(10)),
        (1_000_000, None),
        (5_000_000, Some(3)),
        (123_456, None),
        (65_536, Some(65_536)),
        (0, Some(u64::MAX)),
    ] {
        let found = place.files().read(&own(&place, "f")?, offset, length).await?;
        ensure_eq!(found.metadata.size, 1_000_000, "size of the whole file");
        let from = (offset as usize).min(data.len());
        let until = length.map_or(data.len(), |l| from.saturating_add(l as usize).min(data.len()));
        ensure!(
            tree::collect(found.content).await? == data[from..until],
            "range {offset} {length:?} differs"
        );
    }
    Ok(Verdict::Pass)
}

async fn odd_names(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let names: [&[u8]; 9] =
        [b"a b", b"\xff\xfe", "жœ".as_bytes(), b"-rf", b"x\ny", b"'\"", b"*", b"...", b"\\"];
    for name in names {
        let path = [place.tmp.as_bytes(), b"/", name].concat();
        place.files().write(&at(&path)?, PLAIN, tree::stream(name.to_vec())).await?;
        ensure_eq!(
            tree::collect(place.files().read(&at(&path)?, 0, None).await?.content).await?,
            name,
            "content"
        );
    }
    let long = place.path(&"n".repeat(255));
    put(place.files(), &long, "long").await?;
    let mut found = BTreeSet::new();
    let mut list = place.files().list(&own(&place, "")?).await?;
    while let Some(entry) = list.next().await {
        found.insert(entry?.name.as_bytes().to_vec());
    }
    let mut expected: BTreeSet<Vec<u8>> = names.iter().map(|n| n.to_vec()).collect();
    expected.insert(vec![b'n'; 255]);
    ensure_eq!(found, expected, "names listed");
    let seen = place.sh(format!("cd {}; find . -mindepth 1 -print0", place.tmp)).await?.good()?.stdout;
    let seen: BTreeSet<Vec<u8>> = seen
        .split(|b| *b == 0)
        .filter_map(|n| n.strip_prefix(b"./".as_slice()))
        .map(<[u8]>::to_vec)
        .collect();
    ensure_eq!(seen, expected, "names that a command sees");
    Ok(Verdict::Pass)
}

async fn modes(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    put(files, &place.path("plain"), "x").await?;
    let plain = files.stat(&own(&place, "plain")?, false).await?.mode;
    ensure!(plain & 0o7133 == 0 && plain & 0o600 == 0o600, "mode of a new file: {plain:o}");
    let with = WriteOptions { mode: Some(0o755), overwrite: true, parents: false };
    let made = files.write(&own(&place, "tool")?, with, tree::stream("#!/bin/sh\necho ran\n")).await?;
    ensure_eq!(made.mode, 0o755, "mode asked for");
    ensure_eq!(there(&place, "./tool").await?, "ran\n", "it runs");
    // An existing file keeps its mode, unless one is given.
    put(files, &place.path("tool"), "#!/bin/sh\necho again\n").await?;
    ensure_eq!(files.stat(&own(&place, "tool")?, false).await?.mode, 0o755, "mode kept");
    ensure_eq!(there(&place, "./tool").await?, "again\n", "it still runs");
    let with = WriteOptions { mode: Some(0o600), overwrite: true, parents: false };
    ensure_eq!(
        files.write(&own(&place, "tool")?, with, tree::stream("x")).await?.mode,
        0o600,
        "mode changed"
    );
    Ok(Verdict::Pass)
}

async fn overwrite(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    put(files, &place.path("f"), "old").await?;
    let not = WriteOptions { mode: None, overwrite: false, parents: false };
    match files.write(&own(&place, "f")?, not.clone(), tree::stream("new")).await {
        Err(Error::Invalid(_) | Error::Refused(_)) => {}
        other => fail!("an existing file was replaced: {other:?}"),
    }
    ensure_eq!(get(files, &place.path("f")).await?, b"old", "content");
    files.write(&own(&place, "g")?, not.clone(), tree::stream("new")).await?;
    ensure_eq!(get(files, &place.path("g")).await?, b"new", "content of a new one");
    ensure!(
        files.write(&own(&place, "a/b/c")?, not, tree::stream("x")).await.is_err(),
        "made folders unasked"
    );
    let parents = WriteOptions { mode: None, overwrite: false, parents: true };
    files.write(&own(&place, "a/b/c")?, parents, tree::stream("deep")).await?;
    ensure_eq!(there(&place, "cat a/b/c; ls -A").await?, "deepa\nf\ng\n", "what is there");
    Ok(Verdict::Pass)
}

async fn atomic(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    put(files, &place.path("f"), "old content").await?;
    // A source that breaks off leaves the old content, and nothing else.
    let written = files.write(&own(&place, "f")?, PLAIN, tree::broken_stream(vec![b'n'; 200_000])).await;
    ensure!(written.is_err(), "a broken source was taken for a whole file");
    ensure_eq!(get(files, &place.path("f")).await?, b"old content", "content");
    let clean =
        crate::run::eventually(Duration::from_secs(3), async || Ok(there(&place, "ls -A").await? == "f\n"))
            .await?;
    ensure!(clean, "a broken write leaves {:?}", there(&place, "ls -A").await?);
    // A reader sees the old or the new content, never a part.
    let marker = place
        .start(crate::run::shell(format!(
            "echo on; i=0; while [ $i -lt 400 ]; do wc -c <{}; i=$((i+1)); done | sort -u | tr '\\n' ' '",
            place.path("f")
        )))
        .await?;
    for round in 0..30 {
        put(files, &place.path("f"), vec![b'n'; if round % 2 == 0 { 300_000 } else { 11 }]).await?;
    }
    let text = marker.finish(Duration::from_secs(20)).await?.good()?.text();
    let sizes: BTreeSet<&str> = text.split_whitespace().filter(|w| *w != "on").collect();
    ensure!(sizes.iter().all(|s| *s == "11" || *s == "300000"), "sizes seen by a reader: {sizes:?}");
    Ok(Verdict::Pass)
}

async fn list_and_stat(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    there(
        &place,
        "mkdir d; chmod 750 d; printf abc >f; chmod 640 f; ln -s f l; TZ=UTC touch -d '2001-09-09 01:46:40' f",
    )
    .await?;
    // A pipe is between processes.
    if place.processes {
        there(&place, "mkfifo p").await?;
    }
    let mut found = Vec::new();
    let mut list = files.list(&own(&place, "")?).await?;
    while let Some(entry) = list.next().await {
        let entry = entry?;
        let m = entry.metadata;
        let target = m.target.map(|t| t.to_string_lossy().into_owned());
        found.push((entry.name.to_string_lossy().into_owned(), m.kind, m.mode & 0o777, target));
    }
    let find = |name: &str| found.iter().find(|f| f.0 == name).cloned();
    ensure_eq!(found.len(), 3 + usize::from(place.processes), "entries {found:?}");
    ensure_eq!(find("d"), Some(("d".into(), EntryKind::Directory, 0o750, None)), "the folder");
    ensure_eq!(find("f"), Some(("f".into(), EntryKind::File, 0o640, None)), "the file");
    ensure_eq!(find("l").map(|l| (l.1, l.3)), Some((EntryKind::Symlink, Some("f".to_owned()))), "the link");
    let pipe = place.processes.then_some(EntryKind::Other);
    ensure_eq!(find("p").map(|p| p.1), pipe, "the pipe");
    let file = files.stat(&own(&place, "f")?, false).await?;
    ensure_eq!(
        (file.kind, file.size, file.mode & 0o7777, file.modified_nanos),
        (EntryKind::File, 3, 0o640, 1_000_000_000_000_000_000),
        "what is known of the file"
    );
    let link = files.stat(&own(&place, "l")?, false).await?;
    ensure_eq!((link.kind, link.size), (EntryKind::Symlink, 1), "the link itself");
    ensure_eq!(files.stat(&own(&place, "l")?, true).await?, file, "through the link");
    ensure_eq!(files.stat(&own(&place, "")?, false).await?.kind, EntryKind::Directory, "the folder");
    if ctx.guarantees.filesystem.is_held() {
        ensure_eq!(files.stat(&at("/")?, false).await?.kind, EntryKind::Directory, "the root");
    }
    // Many entries, over several answers.
    there(&place, "mkdir d/many; cd d/many; seq 1 3000 | xargs touch").await?;
    ensure_eq!(files.list(&own(&place, "d/many")?).await?.count().await, 3000, "entries of a large folder");
    Ok(Verdict::Pass)
}

async fn make_move_remove(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    files.mkdir(&own(&place, "a")?, false).await?;
    ensure!(files.mkdir(&own(&place, "a")?, false).await.is_err(), "made twice");
    files.mkdir(&own(&place, "a")?, true).await?;
    ensure!(files.mkdir(&own(&place, "x/y/z")?, false).await.is_err(), "made without those above");
    files.mkdir(&own(&place, "a/b/c")?, true).await?;
    put(files, &place.path("a/f"), "f").await?;
    put(files, &place.path("g"), "g").await?;
    ensure!(files.rename(&own(&place, "a/f")?, &own(&place, "g")?, false).await.is_err(), "replaced unasked");
    ensure_eq!(get(files, &place.path("g")).await?, b"g", "the target");
    files.rename(&own(&place, "a/f")?, &own(&place, "g")?, true).await?;
    ensure_eq!(get(files, &place.path("g")).await?, b"f", "the target");
    files.rename(&own(&place, "a/b")?, &own(&place, "a/moved")?, false).await?;
    ensure_eq!(
        there(&place, "find . | sort").await?,
        ".\n./a\n./a/moved\n./a/moved/c\n./g\n",
        "what is there"
    );
    ensure!(files.remove(&own(&place, "a")?, false).await.is_err(), "a full folder was removed");
    files.remove(&own(&place, "a")?, true).await?;
    files.remove(&own(&place, "g")?, false).await?;
    ensure_eq!(there(&place, "ls -A").await?, "", "what is there in the end");
    Ok(Verdict::Pass)
}

async fn errors(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    there(&place, "mkdir d; : >f").await?;
    let missing = own(&place, "none")?;
    let mut kinds = vec![
        ("stat of nothing", files.stat(&missing, true).await.err()),
        ("list of nothing", first_error(files.list(&missing).await).await),
        ("list of a file", first_error(files.list(&own(&place, "f")?).await).await),
        ("read of nothing", files.read(&missing, 0, None).await.err()),
        ("read of a folder", files.read(&own(&place, "d")?, 0, None).await.err()),
        ("remove of nothing", files.remove(&missing, true).await.err()),
        ("move of nothing", files.rename(&missing, &own(&place, "g")?, false).await.err()),
        ("write over a folder", files.write(&own(&place, "d")?, PLAIN, tree::stream("x")).await.err()),
        ("folder below a file", files.mkdir(&own(&place, "f/x")?, true).await.err()),
    ];
    kinds.push(("write to the system", files.write(&at("/usr/x")?, PLAIN, tree::stream("x")).await.err()));
    for (what, error) in kinds {
        match error {
            Some(Error::Invalid(d) | Error::Refused(d)) => {
                ensure!(!d.message.is_empty() && !d.code.is_empty(), "{what}: no words");
            }
            Some(e) => fail!("{what}: {} {e}", e.kind()),
            None => fail!("{what}: no error"),
        }
    }
    ensure_eq!(there(&place, "find . | sort").await?, ".\n./d\n./f\n", "what is there");
    Ok(Verdict::Pass)
}

async fn first_error(list: moltis_sandbox::Result<moltis_sandbox::files::EntryStream>) -> Option<Error> {
    match list {
        Err(e) => Some(e),
        Ok(mut list) => loop {
            match list.next().await {
                None => return None,
                Some(Ok(_)) => {}
                Some(Err(e)) => return Some(e),
            }
        },
    }
}

async fn only_files(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    there(&place, "mkfifo p; ln -s p to-p; ln -s /dev/zero to-zero").await?;
    let own_ones = ["p", "to-p", "to-zero"].map(|name| place.path(name));
    for path in own_ones.iter().map(String::as_str).chain(["/dev/zero", "/dev/null"]) {
        let reading = async {
            match files.read(&at(path)?, 0, Some(10)).await {
                Ok(found) => Ok(tree::collect(found.content).await.is_ok()),
                Err(_) => Ok::<_, Fail>(false),
            }
        };
        match tokio::time::timeout(patience(Duration::from_secs(3)), reading).await {
            Ok(opened) => ensure!(!opened?, "{path} was opened"),
            Err(_) => fail!("reading {path} hangs"),
        }
    }
    // Writing replaces the name at most; it never goes into the pipe.
    let pipe = own(&place, "p")?;
    let writing = files.write(&pipe, PLAIN, tree::stream("x"));
    if tokio::time::timeout(patience(Duration::from_secs(3)), writing).await.is_err() {
        fail!("writing to a pipe hangs");
    }
    let down = async {
        match files.download(&own(&place, "")?).await {
            Ok(stream) => tree::collect(stream).await.map(|_| ()),
            Err(e) => Err(e.into()),
        }
    };
    if tokio::time::timeout(patience(Duration::from_secs(5)), down).await.is_err() {
        fail!("downloading a tree with a pipe in it hangs");
    }
    Ok(Verdict::Pass)
}

async fn links(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    // Links mean what they mean inside, also absolute ones and those that climb.
    let tmp = &place.tmp;
    let climb = "../".repeat(tmp.matches('/').count() + 5);
    let line =
        format!("mkdir d; echo in >d/f; ln -s {tmp}/d abs; ln -s {climb}{tmp}/d/f up; ln -s loop loop");
    there(&place, &line).await?;
    let read = async |name: &str| get(files, &place.path(name)).await;
    ensure_eq!(read("abs/f").await?, b"in\n", "through an absolute link");
    ensure_eq!(read("up").await?, b"in\n", "through a climbing link");
    ensure_eq!(read("d/../d/./f").await?, b"in\n", "through dots");
    ensure!(read("loop").await.is_err(), "a loop was read");
    // The host's files are out of reach for file access everywhere, also where commands see them.
    let secret = ctx.scratch().join("secret");
    std::fs::write(&secret, "of the host")?;
    let secret = secret.to_string_lossy().into_owned();
    there(
        &place,
        &format!("ln -s {secret} out; ln -s /proc/1/root root; ln -s /proc/self/root self; ln -s / top"),
    )
    .await?;
    let mut paths = vec![secret.clone(), place.path("out"), format!("/../..{secret}")];
    paths.extend(["root", "self", "top"].map(|link| format!("{tmp}/{link}{secret}")));
    for path in paths {
        if let Ok(content) = get(files, &path).await {
            fail!("{path} was read: {:?}", String::from_utf8_lossy(&content));
        }
    }
    let _ = files.write(&own(&place, "out")?, PLAIN, tree::stream("changed")).await;
    ensure_eq!(std::fs::read_to_string(ctx.scratch().join("secret"))?, "of the host", "the host's file");
    Ok(Verdict::Pass)
}

async fn remove_follows_no_link(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    there(&place, "mkdir kept gone; echo k >kept/f; ln -s $PWD/kept gone/l; ln -s kept l").await?;
    place.files().remove(&own(&place, "gone")?, true).await?;
    place.files().remove(&own(&place, "l")?, true).await?;
    ensure_eq!(there(&place, "find . | sort").await?, ".\n./kept\n./kept/f\n", "what is there");
    // A folder too deep for recursion, and one that may not be entered.
    there(&place, "mkdir -p $(yes d | head -n 1500 | tr '\\n' /)").await?;
    place.files().remove(&own(&place, "d")?, true).await?;
    ensure_eq!(there(&place, "ls -A").await?, "kept\n", "after a deep tree");
    Ok(Verdict::Pass)
}

async fn large(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    // Where nothing is a process a command holds a file in memory, and takes its time over it.
    let data = noise(if place.processes { 48 << 20 } else { 16 << 20 });
    let big = format!("{}/big", place.room);
    put(place.files(), &big, data.clone()).await?;
    ensure_eq!(place.out(format!("wc -c <{big}")).await?.trim(), data.len().to_string(), "size");
    ensure!(get(place.files(), &big).await? == data, "came back changed");
    Ok(Verdict::Pass)
}

async fn held_back(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    // A reader that stalls stalls its own stream only, and one that leaves ends it.
    there(&place, "head -c 64M /dev/zero >big").await?;
    let mut stalled = place.files().read(&own(&place, "big")?, 0, None).await?;
    ensure!(stalled.content.next().await.is_some(), "nothing comes");
    tokio::time::sleep(Duration::from_millis(300)).await;
    put(place.files(), &place.path("small"), "x").await?;
    ensure_eq!(get(place.files(), &place.path("small")).await?, b"x", "another file meanwhile");
    let mut rest = 0;
    while let Some(piece) = stalled.content.next().await {
        rest += piece?.len();
    }
    ensure!(rest > 32 << 20, "{rest} bytes came after the stall");
    drop(place.files().read(&own(&place, "big")?, 0, None).await?);
    ensure_eq!(get(place.files(), &place.path("small")).await?, b"x", "after a reader left");
    Ok(Verdict::Pass)
}

fn sample() -> Tree {
    let long: Vec<u8> = [b"deep/".as_slice(), &[b'n'; 90]].concat();
    Tree::from([
        (b"bin".to_vec(), Node::Directory(0o755)),
        (b"bin/tool".to_vec(), Node::File(0o755, b"#!/bin/sh\necho tool\n".to_vec())),
        (b"data".to_vec(), Node::File(0o640, noise(70_000))),
        (b"deep".to_vec(), Node::Directory(0o700)),
        (long, Node::File(0o644, Vec::new())),
        (b"empty".to_vec(), Node::Directory(0o755)),
        (b"link".to_vec(), Node::Link(b"bin/tool".to_vec())),
        (b"odd \xff\n".to_vec(), Node::File(0o600, b"odd".to_vec())),
        (b"out".to_vec(), Node::Link(b"/etc/hostname".to_vec())),
    ])
}

async fn whole_tree(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    let tree = sample();
    let archive = tree::archive(tree.iter().map(|(n, e)| (n.as_slice(), e)));
    let summary = files.upload(&own(&place, "up/here")?, tree::stream(archive)).await?;
    let bytes: u64 =
        tree.values().map(|n| if let Node::File(_, content) = n { content.len() as u64 } else { 0 }).sum();
    ensure_eq!((summary.entries, summary.bytes), (tree.len() as u64, bytes), "what was unpacked");
    ensure_eq!(
        there(&place, "up/here/link; stat -c %Y up/here/data").await?,
        "tool\n1000000000\n",
        "it works inside"
    );
    let back = tree::collect(files.download(&own(&place, "up/here")?).await?).await?;
    ensure_eq!(tree::read(&back)?, tree, "the tree that comes back");
    // One file, under its own name.
    let one = tree::collect(files.download(&own(&place, "up/here/bin/tool")?).await?).await?;
    let expected = Tree::from([(b"tool".to_vec(), tree[b"bin/tool".as_slice()].clone())]);
    ensure_eq!(tree::read(&one)?, expected, "one file");
    ensure!(files.download(&own(&place, "none")?).await.is_err(), "nothing was downloaded");
    Ok(Verdict::Pass)
}

async fn tree_that_leaves(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    let file = Node::File(0o644, b"planted".to_vec());
    let planted = place.path("planted");
    let climbing: [&[(&[u8], &Node)]; 5] = [
        &[(b"../planted", &file)],
        &[(b"a/../../planted", &file)],
        &[(planted.as_bytes(), &file)],
        &[(b"l", &Node::Link(place.tmp.clone().into_bytes())), (b"l/planted", &file)],
        &[(b"l", &Node::Link(b"..".to_vec())), (b"l/planted", &file)],
    ];
    for (number, entries) in climbing.into_iter().enumerate() {
        let archive = tree::archive(entries.iter().map(|(n, e)| (*n, *e)));
        let answer = files.upload(&own(&place, &format!("t{number}"))?, tree::stream(archive)).await;
        ensure_eq!(
            there(&place, "test -e planted && echo planted; :").await?,
            "",
            "archive {number} leaves its folder"
        );
        match answer {
            Err(Error::Refused(_) | Error::Invalid(_)) => {}
            other => fail!("archive {number} was taken: {other:?}"),
        }
    }
    for junk in [vec![0xff; 4096], b"not an archive".to_vec(), vec![b'a'; 512 * 7]] {
        ensure!(files.upload(&own(&place, "junk")?, tree::stream(junk)).await.is_err(), "junk was unpacked");
    }
    // One that breaks off is an error, not a smaller tree.
    let whole = tree::archive([(b"a".as_slice(), &Node::File(0o644, vec![1; 100_000]))]);
    let cut = whole[..50_000].to_vec();
    ensure!(
        files.upload(&own(&place, "cut")?, tree::stream(cut)).await.is_err(),
        "half an archive was unpacked"
    );
    Ok(Verdict::Pass)
}

async fn tree_large(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut tree = Tree::new();
    for folder in 0..40 {
        tree.insert(format!("d{folder:02}").into_bytes(), Node::Directory(0o755));
        for file in 0..100 {
            tree.insert(
                format!("d{folder:02}/f{file:02}").into_bytes(),
                Node::File(0o644, format!("{folder} {file}").into_bytes()),
            );
        }
    }
    let archive = tree::archive(tree.iter().map(|(n, e)| (n.as_slice(), e)));
    let target = at(format!("{}/t", place.room))?;
    let summary = place.files().upload(&target, tree::stream(archive)).await?;
    ensure_eq!(summary.entries, 4040, "entries");
    let back = tree::collect(place.files().download(&target).await?).await?;
    ensure!(tree::read(&back)? == tree, "the tree that comes back differs");
    place.files().remove(&target, true).await?;
    ensure_eq!(place.out(format!("ls -A {}", place.room)).await?, "", "after removal");
    Ok(Verdict::Pass)
}
