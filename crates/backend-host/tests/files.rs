//! File tools reach the session's folder, the workspace and managed files, and nothing else.

use std::os::unix::fs::symlink;
use std::path::Path;

use futures_util::stream;
use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{Error, Files, Mount, MountMode, Result};

use crate::common::*;

const NEW: WriteOptions = WriteOptions { mode: None, overwrite: true, parents: false };

async fn read(files: &dyn Files, path: &Path) -> Result<Vec<u8>> {
    let mut content = files.read(&guest(path), 0, None).await?.content;
    let mut bytes = Vec::new();
    while let Some(part) = std::future::poll_fn(|cx| content.as_mut().poll_next(cx)).await {
        bytes.extend_from_slice(&part?);
    }
    Ok(bytes)
}

async fn write(files: &dyn Files, path: &Path, parents: bool) -> Result<()> {
    let content = Box::pin(stream::iter([Ok("written".into())]));
    files.write(&guest(path), WriteOptions { parents, ..NEW }, content).await.map(drop)
}

#[track_caller]
fn refused<T>(result: Result<T>, code: &str) {
    match result {
        Ok(_) => panic!("not refused"),
        Err(error) => assert_eq!((matches!(error, Error::Refused(_)), error.code()), (true, code), "{error}"),
    }
}

#[tokio::test]
async fn only_three_folders_are_reached_by_whatever_path() {
    let here = Here::new();
    only_three_folders(&here.path()).await;
}

/// Also run as an ordinary user.
pub async fn only_three_folders(base: &Path) {
    let make = |name: &str| {
        let path = base.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    let (work, managed, outside) = (make("work"), make("files"), make("outside"));
    std::fs::write(outside.join("secret"), "secret").unwrap();
    std::fs::write(managed.join("manual"), "manual").unwrap();
    symlink(outside.join("secret"), work.join("to-file")).unwrap();
    symlink(&outside, work.join("to-folder")).unwrap();
    symlink("../outside", work.join("relative")).unwrap();
    symlink(work.join("inside"), work.join("to-inside")).unwrap();
    symlink(outside.join("new"), work.join("to-nothing")).unwrap();
    let mut spec = with_workspace(ephemeral(), &work, MountMode::Rw);
    spec.managed_files =
        Some(Mount { source: managed.clone(), target: "/home/sandbox/files".into(), mode: MountMode::Ro });
    let backend = moltis_backend_host::RestrictedHostBackend::new(config(base));
    let sandbox = open(&backend, &spec).await;
    let files = sandbox.files();

    // Inside all works, by links too.
    write(files, &work.join("inside"), false).await.unwrap();
    assert_eq!(read(files, &work.join("to-inside")).await.unwrap(), b"written");
    assert_eq!(read(files, &work.join("to-folder/../work/inside")).await.unwrap(), b"written");
    write(files, &work.join("a/b/c"), true).await.unwrap();
    files.mkdir(&guest(work.join("d/e")), true).await.unwrap();
    files.rename(&guest(work.join("a/b/c")), &guest(work.join("d/c")), false).await.unwrap();
    files.remove(&guest(work.join("a")), true).await.unwrap();
    let scratch = base.join("data/sandbox/scratch").join(sandbox.id().as_str());
    write(files, &scratch.join("own"), false).await.unwrap();
    assert_eq!(read(files, &managed.join("manual")).await.unwrap(), b"manual");
    assert_eq!(
        files.stat(&guest(work.join("to-file")), false).await.unwrap().kind,
        moltis_sandbox::EntryKind::Symlink
    );

    // Outside nothing does.
    for path in ["/etc/passwd", "/proc/self/environ"].map(Path::new) {
        refused(read(files, path).await, "file-denied");
    }
    for way in ["to-file", "to-folder/secret", "relative/secret", "../outside/secret"] {
        let path = work.join(way);
        refused(read(files, &path).await, "file-denied");
        refused(files.stat(&guest(&path), true).await, "file-denied");
        refused(write(files, &path, false).await, "file-denied");
        refused(files.download(&guest(&path)).await.map(drop), "file-denied");
    }
    for way in ["to-folder", "relative", "../outside", "/"] {
        let path = work.join(way);
        refused(files.list(&guest(&path)).await.map(drop), "file-denied");
        refused(write(files, &path.join("new"), true).await, "file-denied");
        refused(files.mkdir(&guest(path.join("new")), false).await, "file-denied");
        refused(files.mkdir(&guest(path.join("new/er")), true).await, "file-denied");
        refused(files.remove(&guest(path.join("secret")), false).await, "file-denied");
        let tar = Box::pin(stream::iter([Ok(vec![0u8; 1024].into())]));
        refused(files.upload(&guest(path.join("new")), tar).await, "file-denied");
        let (from, to) = (guest(work.join("inside")), guest(path.join("new")));
        refused(files.rename(&from, &to, false).await, "file-denied");
        refused(files.rename(&guest(path.join("secret")), &from, true).await, "file-denied");
    }
    refused(write(files, &work.join("to-nothing"), false).await, "file-denied");
    refused(files.remove(&guest(&work), true).await, "file-denied");
    for path in [managed.join("new"), managed.join("manual")] {
        refused(write(files, &path, false).await, "file-read-only");
    }
    refused(files.remove(&guest(managed.join("manual")), false).await, "file-read-only");
    refused(
        files.rename(&guest(managed.join("manual")), &guest(work.join("m")), false).await,
        "file-read-only",
    );

    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"secret");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn a_read_only_workspace_is_so_for_file_tools() {
    let here = Here::new();
    let work = here.folder("work");
    std::fs::write(work.join("file"), "x").unwrap();
    let sandbox = open(&here.restricted(), &with_workspace(ephemeral(), &work, MountMode::Ro)).await;
    assert_eq!(read(sandbox.files(), &work.join("file")).await.unwrap(), b"x");
    refused(write(sandbox.files(), &work.join("file"), false).await, "file-read-only");
    refused(sandbox.files().mkdir(&guest(work.join("a/b")), true).await, "file-read-only");
    close(&here, sandbox).await;
}
