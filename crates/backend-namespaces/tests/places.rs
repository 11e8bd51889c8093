//! File systems that cannot do everything: full ones, read-only ones, and those without idmapped mounts. Root makes
//! them in a mount namespace of its own, in which this test binary is run again.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use moltis_backend_namespaces::{Config, NamespacesBackend};
use moltis_sandbox::Backend;
use moltis_sandbox::MountMode::{Ro, Rw};

use super::support::{asked, is_root, mount, names, sh, spec};

const PLACE: &str = "MOLTIS_TEST_PLACE";

/// Runs one of the tests below with a file system mounted.
fn again(test: &str, mount: &str) {
    if !is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let line = "mount $0 none \"$1\" && exec \"$2\" --exact \"$3\" --nocapture";
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", &line.replace("$0", mount), ""])
        .arg(place.path())
        .arg(std::env::current_exe().unwrap())
        .arg(format!("places::{test}"))
        .env(PLACE, place.path())
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn place() -> Option<PathBuf> {
    std::env::var_os(PLACE).map(PathBuf::from)
}

fn backend(data_dir: &Path) -> NamespacesBackend {
    NamespacesBackend::new(Config { data_dir: data_dir.to_owned(), config_dir: None })
}

#[test]
fn a_full_data_directory_is_named() {
    again("in_a_full_place", "-t tmpfs -o nr_inodes=2,mode=0700");
}

#[tokio::test]
async fn in_a_full_place() {
    let Some(place) = place() else { return };
    let error = backend(&place).open(&spec("s")).await.err().unwrap();
    assert_eq!(error.code(), "data-dir-full", "{error:?}");
    assert!(error.diagnosis().fix.is_some());
}

#[test]
fn a_read_only_data_directory_is_named() {
    again("in_a_read_only_place", "-t tmpfs -o ro");
}

#[tokio::test]
async fn in_a_read_only_place() {
    let Some(place) = place() else { return };
    let error = backend(&place).open(&spec("s")).await.err().unwrap();
    assert_eq!(error.code(), "data-dir-read-only", "{error:?}");
}

#[test]
fn without_idmapped_mounts_our_folders_are_given_away_and_others_are_refused() {
    // The kernel's one simple file system that has none.
    again("in_a_place_without_idmapped_mounts", "-t ramfs");
}

#[tokio::test]
async fn in_a_place_without_idmapped_mounts() {
    let Some(place) = place() else { return };
    let data = place.join("data");
    let home = data.join("home");
    fs::create_dir_all(home.join("deep")).unwrap();
    fs::write(home.join("deep/f"), "old").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", home.join("link")).unwrap();
    let workspace = place.join("workspace");
    fs::create_dir(&workspace).unwrap();
    fs::write(workspace.join("f"), "mine").unwrap();
    let before = fs::metadata("/etc/passwd").unwrap().uid();

    let backend = backend(&data);
    let mut with = spec("s");
    with.home = Some(home.clone());
    with.workspace = Some(asked(mount(&workspace, "/workspace", Ro)));
    let sandbox = backend.open(&with).await.unwrap();
    assert_eq!(
        sh(&sandbox, "cat ~/deep/f /workspace/f; echo new > ~/deep/f; touch ~/g").await.ok(),
        "oldmine"
    );
    sandbox.close().await.unwrap();
    let given = fs::metadata(&home).unwrap().uid();
    assert_ne!(given, 0);
    for name in ["deep", "deep/f", "link", "g"] {
        assert_eq!(fs::symlink_metadata(home.join(name)).unwrap().uid(), given, "{name}");
    }
    assert_eq!(fs::metadata("/etc/passwd").unwrap().uid(), before);

    with.workspace = Some(asked(mount(&workspace, "/workspace", Rw)));
    let error = backend.open(&with).await.err().unwrap();
    assert!(matches!(error, moltis_sandbox::Error::Refused(_)), "{error:?}");
    assert_eq!(error.code(), "workspace-not-mappable");
    assert_eq!(names(&data.join("run")), Vec::<String>::new());
    chown(&workspace, Some(given), Some(given)).unwrap();
    let sandbox = backend.open(&with).await.unwrap();
    sh(&sandbox, "touch /workspace/g").await.ok();
    sandbox.close().await.unwrap();
}
