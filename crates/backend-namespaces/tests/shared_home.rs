//! Two sandboxes with one home: what one does to the mounts of the other.

use std::sync::Arc;

use moltis_sandbox::MountMode::Rw;
use moltis_sandbox::{Error, GuestPath, Sandbox};

use super::support::{Host, asked, lasting, mount, names, sh, spec, try_sh};

const CODE: &str = "files-mount-lost";

async fn is_refused(sandbox: &Arc<dyn Sandbox>, why: &str) {
    match try_sh(sandbox, "touch ~/files/ran").await {
        Err(Error::Unavailable(diagnosis)) if diagnosis.code == CODE => {
            assert!(diagnosis.message.contains("/home/sandbox/"), "{diagnosis:?}");
        }
        other => panic!("{why}: {other:?}"),
    }
    let path = GuestPath::new("/home/sandbox/files").unwrap();
    let error = sandbox.files().stat(&path, false).await.err().unwrap_or_else(|| panic!("{why}"));
    assert_eq!(error.code(), CODE, "{why}");
}

#[tokio::test]
async fn nothing_runs_once_the_managed_files_are_not_where_they_were() {
    let host = Host::new();
    let (home, files) = (host.own_folder("home"), host.own_folder("files"));
    for (what, does) in [
        ("renamed", "mv ~/files ~/elsewhere"),
        ("removed", "rmdir ~/files"),
        ("replaced by a link", "mv ~/files ~/x && ln -s /tmp ~/files"),
        ("replaced by a link to itself elsewhere", "mv ~/files ~/y && ln -s y ~/files"),
        ("replaced by a folder", "mv ~/files ~/z && mkdir ~/files"),
        ("exchanged", "mkdir ~/w && mv --exchange ~/w ~/files || { mv ~/files ~/v && mv ~/w ~/files; }"),
    ] {
        let mut victim = lasting("victim");
        victim.home = Some(home.clone());
        victim.managed_files = Some(mount(&files, "/home/sandbox/files", Rw));
        let (victim, victims) = (host.open(&victim).await, victim);
        sh(&victim, "touch ~/files/before").await.ok();
        let mut other = spec("other");
        other.home = Some(home.clone());
        let other = host.open(&other).await;
        sh(&other, does).await.ok();
        is_refused(&victim, what).await;
        other.close().await.unwrap();
        // Whoever opens it anew has the files again.
        victim.close().await.unwrap();
        let again = host.open(&victims).await;
        assert!(again.is_new());
        assert_eq!(sh(&again, "ls ~/files").await.ok(), "before\n", "{what}");
        again.close().await.unwrap();
        assert_eq!(names(&files), ["before"], "{what}");
    }
}

#[tokio::test]
async fn a_mount_in_its_place_again_is_in_its_place() {
    let host = Host::new();
    let home = host.own_folder("home");
    let mut victim = spec("victim");
    victim.home = Some(home.clone());
    victim.managed_files = Some(mount(host.own_folder("files"), "/home/sandbox/files", Rw));
    victim.mounts = vec![asked(mount(host.folder("cache"), "/home/sandbox/.cache/tool", Rw))];
    let victim = host.open(&victim).await;
    let mut other = spec("other");
    other.home = Some(home);
    let other = host.open(&other).await;
    sh(&other, "mv ~/files ~/x").await.ok();
    is_refused(&victim, "renamed").await;
    sh(&other, "mv ~/x ~/files").await.ok();
    sh(&victim, "touch ~/files/after").await.ok();
    // Any mount in the home can be taken away like this.
    sh(&other, "mv ~/.cache ~/.cache-2; mkdir -p ~/.cache/tool").await.ok();
    is_refused(&victim, "another mount").await;
}
