//! Files: whole, by range, atomic, with odd names, as trees, and never through what is not a file.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use futures_util::StreamExt;
use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{EntryKind, Error, Files, GuestPath};

use crate::tree::{self, Node, Tree};
use crate::{Case, Ctx, Fail, Verdict, case, ensure, ensure_eq, fail};

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
        for folder in ["/tmp", "/home/sandbox"] {
            let path = format!("{folder}/{name}");
            put(place.files(), &path, content.clone()).await?;
            ensure!(get(place.files(), &path).await? == content, "{path} differs when read");
            let ran = place.sh(format!("cat {path}")).await?.good()?;
            ensure!(ran.stdout == content, "{path} differs when seen by a command");
        }
    }
    place.out("echo from inside >/tmp/made; id -u >/tmp/uid").await?;
    ensure_eq!(get(place.files(), "/tmp/made").await?, b"from inside\n", "a command's file");
    let owner = place.out("stat -c %u /tmp/small /tmp/made | sort -u | wc -l").await?;
    ensure_eq!(owner.trim(), "1", "owners of written and made files");
    Ok(Verdict::Pass)
}

async fn ranges(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let data = noise(1_000_000);
    put(place.files(), "/tmp/f", data.clone()).await?;
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
        let found = place.files().read(&at("/tmp/f")?, offset, length).await?;
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
        let path = [b"/tmp/".as_slice(), name].concat();
        place.files().write(&at(&path)?, PLAIN, tree::stream(name.to_vec())).await?;
        ensure_eq!(
            tree::collect(place.files().read(&at(&path)?, 0, None).await?.content).await?,
            name,
            "content"
        );
    }
    let long = format!("/tmp/{}", "n".repeat(255));
    put(place.files(), &long, "long").await?;
    let mut found = BTreeSet::new();
    let mut list = place.files().list(&at("/tmp")?).await?;
    while let Some(entry) = list.next().await {
        found.insert(entry?.name.as_bytes().to_vec());
    }
    let mut expected: BTreeSet<Vec<u8>> = names.iter().map(|n| n.to_vec()).collect();
    expected.insert(vec![b'n'; 255]);
    ensure_eq!(found, expected, "names listed");
    let seen = place.sh("find /tmp -mindepth 1 -print0").await?.good()?.stdout;
    let seen: BTreeSet<Vec<u8>> = seen
        .split(|b| *b == 0)
        .filter_map(|n| n.strip_prefix(b"/tmp/".as_slice()))
        .map(<[u8]>::to_vec)
        .collect();
    ensure_eq!(seen, expected, "names that a command sees");
    Ok(Verdict::Pass)
}

async fn modes(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    put(files, "/tmp/plain", "x").await?;
    let plain = files.stat(&at("/tmp/plain")?, false).await?.mode;
    ensure!(plain & 0o7133 == 0 && plain & 0o600 == 0o600, "mode of a new file: {plain:o}");
    let with = WriteOptions { mode: Some(0o755), overwrite: true, parents: false };
    let made = files.write(&at("/tmp/tool")?, with, tree::stream("#!/bin/sh\necho ran\n")).await?;
    ensure_eq!(made.mode, 0o755, "mode asked for");
    ensure_eq!(place.out("/tmp/tool").await?, "ran\n", "it runs");
    // An existing file keeps its mode, unless one is given.
    put(files, "/tmp/tool", "#!/bin/sh\necho again\n").await?;
    ensure_eq!(files.stat(&at("/tmp/tool")?, false).await?.mode, 0o755, "mode kept");
    ensure_eq!(place.out("/tmp/tool").await?, "again\n", "it still runs");
    let with = WriteOptions { mode: Some(0o600), overwrite: true, parents: false };
    ensure_eq!(files.write(&at("/tmp/tool")?, with, tree::stream("x")).await?.mode, 0o600, "mode changed");
    Ok(Verdict::Pass)
}

async fn overwrite(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    put(files, "/tmp/f", "old").await?;
    let not = WriteOptions { mode: None, overwrite: false, parents: false };
    match files.write(&at("/tmp/f")?, not.clone(), tree::stream("new")).await {
        Err(Error::Invalid(_) | Error::Refused(_)) => {}
        other => fail!("an existing file was replaced: {other:?}"),
    }
    ensure_eq!(get(files, "/tmp/f").await?, b"old", "content");
    files.write(&at("/tmp/g")?, not.clone(), tree::stream("new")).await?;
    ensure_eq!(get(files, "/tmp/g").await?, b"new", "content of a new one");
    ensure!(files.write(&at("/tmp/a/b/c")?, not, tree::stream("x")).await.is_err(), "made folders unasked");
    let parents = WriteOptions { mode: None, overwrite: false, parents: true };
    files.write(&at("/tmp/a/b/c")?, parents, tree::stream("deep")).await?;
    ensure_eq!(place.out("cat /tmp/a/b/c; ls -A /tmp").await?, "deepa\nf\ng\n", "what is there");
    Ok(Verdict::Pass)
}

async fn atomic(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    put(files, "/tmp/f", "old content").await?;
    // A source that breaks off leaves the old content, and nothing else.
    let written = files.write(&at("/tmp/f")?, PLAIN, tree::broken_stream(vec![b'n'; 200_000])).await;
    ensure!(written.is_err(), "a broken source was taken for a whole file");
    ensure_eq!(get(files, "/tmp/f").await?, b"old content", "content");
    let clean =
        crate::run::eventually(Duration::from_secs(3), async || Ok(place.out("ls -A /tmp").await? == "f\n"))
            .await?;
    ensure!(clean, "a broken write leaves {:?}", place.out("ls -A /tmp").await?);
    // A reader sees the old or the new content, never a part.
    let marker = place
        .start(crate::run::shell(
            "echo on; i=0; while [ $i -lt 400 ]; do wc -c </tmp/f; i=$((i+1)); done | sort -u | tr '\\n' ' '",
        ))
        .await?;
    for round in 0..30 {
        put(files, "/tmp/f", vec![b'n'; if round % 2 == 0 { 300_000 } else { 11 }]).await?;
    }
    let text = marker.finish(Duration::from_secs(20)).await?.good()?.text();
    let sizes: BTreeSet<&str> = text.split_whitespace().filter(|w| *w != "on").collect();
    ensure!(sizes.iter().all(|s| *s == "11" || *s == "300000"), "sizes seen by a reader: {sizes:?}");
    Ok(Verdict::Pass)
}

async fn list_and_stat(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    place
        .out("cd /tmp; mkdir d; chmod 750 d; printf abc >f; chmod 640 f; ln -s f l; mkfifo p; touch -d @1000000000 f")
        .await?;
    let mut found = Vec::new();
    let mut list = files.list(&at("/tmp")?).await?;
    while let Some(entry) = list.next().await {
        let entry = entry?;
        let m = entry.metadata;
        let target = m.target.map(|t| t.to_string_lossy().into_owned());
        found.push((entry.name.to_string_lossy().into_owned(), m.kind, m.mode & 0o777, target));
    }
    let find = |name: &str| found.iter().find(|f| f.0 == name).cloned();
    ensure_eq!(found.len(), 4, "entries {found:?}");
    ensure_eq!(find("d"), Some(("d".into(), EntryKind::Directory, 0o750, None)), "the folder");
    ensure_eq!(find("f"), Some(("f".into(), EntryKind::File, 0o640, None)), "the file");
    ensure_eq!(find("l").map(|l| (l.1, l.3)), Some((EntryKind::Symlink, Some("f".to_owned()))), "the link");
    ensure_eq!(find("p").map(|p| p.1), Some(EntryKind::Other), "the pipe");
    let file = files.stat(&at("/tmp/f")?, false).await?;
    ensure_eq!(
        (file.kind, file.size, file.mode & 0o7777, file.modified_nanos),
        (EntryKind::File, 3, 0o640, 1_000_000_000_000_000_000),
        "what is known of the file"
    );
    let link = files.stat(&at("/tmp/l")?, false).await?;
    ensure_eq!((link.kind, link.size), (EntryKind::Symlink, 1), "the link itself");
    ensure_eq!(files.stat(&at("/tmp/l")?, true).await?, file, "through the link");
    ensure_eq!(files.stat(&at("/")?, false).await?.kind, EntryKind::Directory, "the root");
    // Many entries, over several answers.
    place.out("mkdir /tmp/d/many; cd /tmp/d/many; seq 1 3000 | xargs touch").await?;
    ensure_eq!(files.list(&at("/tmp/d/many")?).await?.count().await, 3000, "entries of a large folder");
    Ok(Verdict::Pass)
}

async fn make_move_remove(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    files.mkdir(&at("/tmp/a")?, false).await?;
    ensure!(files.mkdir(&at("/tmp/a")?, false).await.is_err(), "made twice");
    files.mkdir(&at("/tmp/a")?, true).await?;
    ensure!(files.mkdir(&at("/tmp/x/y/z")?, false).await.is_err(), "made without those above");
    files.mkdir(&at("/tmp/a/b/c")?, true).await?;
    put(files, "/tmp/a/f", "f").await?;
    put(files, "/tmp/g", "g").await?;
    ensure!(files.rename(&at("/tmp/a/f")?, &at("/tmp/g")?, false).await.is_err(), "replaced unasked");
    ensure_eq!(get(files, "/tmp/g").await?, b"g", "the target");
    files.rename(&at("/tmp/a/f")?, &at("/tmp/g")?, true).await?;
    ensure_eq!(get(files, "/tmp/g").await?, b"f", "the target");
    files.rename(&at("/tmp/a/b")?, &at("/tmp/a/moved")?, false).await?;
    ensure_eq!(
        place.out("cd /tmp; find . | sort").await?,
        ".\n./a\n./a/moved\n./a/moved/c\n./g\n",
        "what is there"
    );
    ensure!(files.remove(&at("/tmp/a")?, false).await.is_err(), "a full folder was removed");
    files.remove(&at("/tmp/a")?, true).await?;
    files.remove(&at("/tmp/g")?, false).await?;
    ensure_eq!(place.out("ls -A /tmp").await?, "", "what is there in the end");
    Ok(Verdict::Pass)
}

async fn errors(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    place.out("cd /tmp; mkdir d; : >f").await?;
    let missing = at("/tmp/none")?;
    let mut kinds = vec![
        ("stat of nothing", files.stat(&missing, true).await.err()),
        ("list of nothing", first_error(files.list(&missing).await).await),
        ("list of a file", first_error(files.list(&at("/tmp/f")?).await).await),
        ("read of nothing", files.read(&missing, 0, None).await.err()),
        ("read of a folder", files.read(&at("/tmp/d")?, 0, None).await.err()),
        ("remove of nothing", files.remove(&missing, true).await.err()),
        ("move of nothing", files.rename(&missing, &at("/tmp/g")?, false).await.err()),
        ("write over a folder", files.write(&at("/tmp/d")?, PLAIN, tree::stream("x")).await.err()),
        ("folder below a file", files.mkdir(&at("/tmp/f/x")?, true).await.err()),
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
    ensure_eq!(place.out("cd /tmp; find . | sort").await?, ".\n./d\n./f\n", "what is there");
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
    place.out("cd /tmp; mkfifo p; ln -s p to-p; ln -s /dev/zero to-zero").await?;
    for path in ["/tmp/p", "/tmp/to-p", "/dev/zero", "/tmp/to-zero", "/dev/null"] {
        let reading = async {
            match files.read(&at(path)?, 0, Some(10)).await {
                Ok(found) => Ok(tree::collect(found.content).await.is_ok()),
                Err(_) => Ok::<_, Fail>(false),
            }
        };
        match tokio::time::timeout(Duration::from_secs(3), reading).await {
            Ok(opened) => ensure!(!opened?, "{path} was opened"),
            Err(_) => fail!("reading {path} hangs"),
        }
    }
    // Writing replaces the name at most; it never goes into the pipe.
    let pipe = at("/tmp/p")?;
    let writing = files.write(&pipe, PLAIN, tree::stream("x"));
    if tokio::time::timeout(Duration::from_secs(3), writing).await.is_err() {
        fail!("writing to a pipe hangs");
    }
    let down = async {
        match files.download(&at("/tmp")?).await {
            Ok(stream) => tree::collect(stream).await.map(|_| ()),
            Err(e) => Err(e.into()),
        }
    };
    if tokio::time::timeout(Duration::from_secs(5), down).await.is_err() {
        fail!("downloading a tree with a pipe in it hangs");
    }
    Ok(Verdict::Pass)
}

async fn links(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    // Links mean what they mean inside, also absolute ones and those that climb.
    place
        .out("cd /tmp; mkdir d; echo in >d/f; ln -s /tmp/d abs; ln -s ../../../../../../../tmp/d/f up; ln -s loop loop")
        .await?;
    ensure_eq!(get(files, "/tmp/abs/f").await?, b"in\n", "through an absolute link");
    ensure_eq!(get(files, "/tmp/up").await?, b"in\n", "through a climbing link");
    ensure_eq!(get(files, "/tmp/d/../d/./f").await?, b"in\n", "through dots");
    ensure!(get(files, "/tmp/loop").await.is_err(), "a loop was read");
    if ctx.guarantees.filesystem.is_held() {
        let secret = ctx.scratch().join("secret");
        std::fs::write(&secret, "of the host")?;
        let secret = secret.to_string_lossy().into_owned();
        place.out(format!("ln -s {secret} /tmp/out; ln -s /proc/1/root /tmp/root")).await?;
        for path in
            [secret.clone(), "/tmp/out".to_owned(), format!("/tmp/root{secret}"), format!("/../..{secret}")]
        {
            if let Ok(content) = get(files, &path).await {
                fail!("{path} was read: {:?}", String::from_utf8_lossy(&content));
            }
        }
        let _ = files.write(&at("/tmp/out")?, PLAIN, tree::stream("changed")).await;
        ensure_eq!(std::fs::read_to_string(ctx.scratch().join("secret"))?, "of the host", "the host's file");
    }
    Ok(Verdict::Pass)
}

async fn remove_follows_no_link(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    place.out("cd /tmp; mkdir kept gone; echo k >kept/f; ln -s /tmp/kept gone/l; ln -s kept l").await?;
    place.files().remove(&at("/tmp/gone")?, true).await?;
    place.files().remove(&at("/tmp/l")?, true).await?;
    ensure_eq!(place.out("cd /tmp; find . | sort").await?, ".\n./kept\n./kept/f\n", "what is there");
    // A folder too deep for recursion, and one that may not be entered.
    place.out("cd /tmp; i=0; while [ $i -lt 1500 ]; do mkdir d && cd d || exit 1; i=$((i+1)); done").await?;
    place.files().remove(&at("/tmp/d")?, true).await?;
    ensure_eq!(place.out("ls -A /tmp").await?, "kept\n", "after a deep tree");
    Ok(Verdict::Pass)
}

async fn large(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let data = noise(48 << 20);
    put(place.files(), "/home/sandbox/big", data.clone()).await?;
    ensure_eq!(place.out("wc -c <~/big").await?.trim(), data.len().to_string(), "size");
    ensure!(get(place.files(), "/home/sandbox/big").await? == data, "came back changed");
    Ok(Verdict::Pass)
}

async fn held_back(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    // A reader that stalls stalls its own stream only, and one that leaves ends it.
    place.out("head -c 64M /dev/zero >/tmp/big").await?;
    let mut stalled = place.files().read(&at("/tmp/big")?, 0, None).await?;
    ensure!(stalled.content.next().await.is_some(), "nothing comes");
    tokio::time::sleep(Duration::from_millis(300)).await;
    put(place.files(), "/tmp/small", "x").await?;
    ensure_eq!(get(place.files(), "/tmp/small").await?, b"x", "another file meanwhile");
    let mut rest = 0;
    while let Some(piece) = stalled.content.next().await {
        rest += piece?.len();
    }
    ensure!(rest > 32 << 20, "{rest} bytes came after the stall");
    drop(place.files().read(&at("/tmp/big")?, 0, None).await?);
    ensure_eq!(get(place.files(), "/tmp/small").await?, b"x", "after a reader left");
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
    let summary = files.upload(&at("/tmp/up/here")?, tree::stream(archive)).await?;
    let bytes: u64 =
        tree.values().map(|n| if let Node::File(_, content) = n { content.len() as u64 } else { 0 }).sum();
    ensure_eq!((summary.entries, summary.bytes), (tree.len() as u64, bytes), "what was unpacked");
    ensure_eq!(
        place.out("/tmp/up/here/link; stat -c %Y /tmp/up/here/data").await?,
        "tool\n1000000000\n",
        "it works inside"
    );
    let back = tree::collect(files.download(&at("/tmp/up/here")?).await?).await?;
    ensure_eq!(tree::read(&back)?, tree, "the tree that comes back");
    // One file, under its own name.
    let one = tree::collect(files.download(&at("/tmp/up/here/bin/tool")?).await?).await?;
    let expected = Tree::from([(b"tool".to_vec(), tree[b"bin/tool".as_slice()].clone())]);
    ensure_eq!(tree::read(&one)?, expected, "one file");
    ensure!(files.download(&at("/tmp/none")?).await.is_err(), "nothing was downloaded");
    Ok(Verdict::Pass)
}

async fn tree_that_leaves(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let files = place.files();
    let file = Node::File(0o644, b"planted".to_vec());
    let climbing: [&[(&[u8], &Node)]; 5] = [
        &[(b"../planted", &file)],
        &[(b"a/../../planted", &file)],
        &[(b"/tmp/planted", &file)],
        &[(b"l", &Node::Link(b"/tmp".to_vec())), (b"l/planted", &file)],
        &[(b"l", &Node::Link(b"..".to_vec())), (b"l/planted", &file)],
    ];
    for (number, entries) in climbing.into_iter().enumerate() {
        let archive = tree::archive(entries.iter().map(|(n, e)| (*n, *e)));
        let answer = files.upload(&at(format!("/tmp/t{number}"))?, tree::stream(archive)).await;
        ensure_eq!(
            place.out("test -e /tmp/planted && echo planted; :").await?,
            "",
            "archive {number} leaves its folder"
        );
        match answer {
            Err(Error::Refused(_) | Error::Invalid(_)) => {}
            other => fail!("archive {number} was taken: {other:?}"),
        }
    }
    for junk in [vec![0xff; 4096], b"not an archive".to_vec(), vec![b'a'; 512 * 7]] {
        ensure!(files.upload(&at("/tmp/junk")?, tree::stream(junk)).await.is_err(), "junk was unpacked");
    }
    // One that breaks off is an error, not a smaller tree.
    let whole = tree::archive([(b"a".as_slice(), &Node::File(0o644, vec![1; 100_000]))]);
    let cut = whole[..50_000].to_vec();
    ensure!(files.upload(&at("/tmp/cut")?, tree::stream(cut)).await.is_err(), "half an archive was unpacked");
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
    let summary = place.files().upload(&at("/home/sandbox/t")?, tree::stream(archive)).await?;
    ensure_eq!(summary.entries, 4040, "entries");
    let back = tree::collect(place.files().download(&at("/home/sandbox/t")?).await?).await?;
    ensure!(tree::read(&back)? == tree, "the tree that comes back differs");
    place.files().remove(&at("/home/sandbox/t")?, true).await?;
    ensure_eq!(place.out("ls -A ~").await?, "", "after removal");
    Ok(Verdict::Pass)
}
