//! What is carried at all.

use std::fs;
use std::os::unix::fs::symlink;

use super::rig::{Rig, paths, put, read, tree};
use crate::sync::Bounds;

#[tokio::test]
async fn secrets_never_go_there_unless_they_are_listed() {
    let mut rig = Rig::new();
    for path in
        [".env", "sub/.env.local", ".ssh/id_rsa", ".aws/credentials", ".npmrc", "server.pem", "test.pem"]
    {
        put(&rig.here, path, "secret");
    }
    put(&rig.here, "code", "x");
    let outside = rig.root.path().join("outside");
    fs::write(&outside, "secret of the host").unwrap();
    symlink(&outside, rig.here.join("link")).unwrap();
    rig.terms.listed = vec!["test.pem".to_owned()];
    let report = rig.both().await;
    let there: Vec<_> = tree(&rig.there).into_keys().map(|path| path.display().to_string()).collect();
    assert_eq!(there, ["code", "link", "sub", "test.pem"]);
    assert!(fs::symlink_metadata(rig.there.join("link")).unwrap().is_symlink());
    assert_eq!(paths(&report.secrets), [".aws", ".env", ".npmrc", ".ssh", "server.pem", "sub/.env.local"]);
    assert!(report.notes()[0].contains("workspace_upload"), "{:?}", report.notes());
    assert_eq!(rig.both().await.notes(), Vec::<String>::new(), "named once");
    // One that is made there stays there, and does not replace the one here.
    put(&rig.there, ".env", "made there");
    rig.both().await;
    assert_eq!(read(&rig.here, ".env").as_deref(), Some("secret"));
    // No file of the workspace can list a secret.
    put(&rig.here, ".moltisignore", "!.env\n!.npmrc\n");
    rig.both().await;
    assert_eq!(read(&rig.there, ".npmrc"), None);
}

#[tokio::test]
async fn ignored_things_stay_where_they_are_on_both_sides() {
    let rig = Rig::new();
    put(&rig.here, ".gitignore", "target/\n*.log\n");
    put(&rig.here, ".moltisignore", "big\n!keep.log\n");
    put(&rig.here, "target/debug/x", "built here");
    put(&rig.here, "a.log", "here");
    put(&rig.here, "keep.log", "kept");
    put(&rig.here, "big", "big");
    put(&rig.here, "src/x", "x");
    rig.both().await;
    let there: Vec<_> = tree(&rig.there).into_keys().map(|path| path.display().to_string()).collect();
    assert_eq!(there, [".gitignore", ".moltisignore", "keep.log", "src", "src/x"]);
    put(&rig.there, "target/release/y", "built there");
    put(&rig.there, "b.log", "there");
    put(&rig.there, "src/y", "y");
    rig.both().await;
    assert_eq!(read(&rig.here, "src/y").as_deref(), Some("y"));
    assert_eq!((read(&rig.here, "target/release/y"), read(&rig.here, "b.log")), (None, None));
    // What becomes ignored is not taken for removed.
    put(&rig.here, ".gitignore", "target/\n*.log\nsrc/\n");
    rig.both().await;
    assert_eq!(
        (read(&rig.here, "src/y").as_deref(), read(&rig.there, "src/y").as_deref()),
        (Some("y"), Some("y"))
    );
    put(&rig.there, "src/y", "changed there");
    rig.both().await;
    assert_eq!(read(&rig.here, "src/y").as_deref(), Some("y"));
}

#[tokio::test]
async fn what_makes_the_host_run_code_goes_there_and_never_comes_back() {
    let rig = Rig::new();
    put(&rig.here, ".git/config", "[core]");
    put(&rig.here, ".git/hooks/pre-commit", "mine");
    put(&rig.here, ".git/HEAD", "ref: x");
    rig.both().await;
    assert_eq!(tree(&rig.there), tree(&rig.here));
    put(&rig.there, ".git/config", "[core]\nfsmonitor=evil");
    put(&rig.there, ".git/hooks/pre-commit", "evil");
    put(&rig.there, ".git/hooks/post-checkout", "evil");
    put(&rig.there, "sub/.vscode/tasks.json", "evil");
    put(&rig.there, "lib/.git", "gitdir: ../evil");
    put(&rig.there, ".moltisignore", "!.env");
    put(&rig.there, ".git/objects/aa", "blob");
    put(&rig.there, ".git/HEAD", "ref: y");
    let before = [".git/config", ".git/hooks/pre-commit"].map(|path| read(&rig.here, path));
    let report = rig.both().await;
    assert_eq!([".git/config", ".git/hooks/pre-commit"].map(|path| read(&rig.here, path)), before);
    for path in [".git/hooks/post-checkout", "sub/.vscode/tasks.json", "lib/.git", ".moltisignore"] {
        assert_eq!(read(&rig.here, path), None, "{path}");
    }
    assert_eq!(read(&rig.here, ".git/objects/aa").as_deref(), Some("blob"));
    assert_eq!(read(&rig.here, ".git/HEAD").as_deref(), Some("ref: y"));
    assert_eq!(
        paths(&report.protected),
        [
            ".git/config",
            ".git/hooks/post-checkout",
            ".git/hooks/pre-commit",
            ".moltisignore",
            "lib/.git",
            "sub/.vscode",
            "sub/.vscode/tasks.json"
        ]
    );
}

#[tokio::test]
async fn too_much_is_refused_before_anything_is_sent_and_names_what_is_large() {
    let mut rig = Rig::new();
    put(&rig.here, "small", "x");
    put(&rig.here, "data/huge.bin", &"x".repeat(300_000));
    rig.bounds = Bounds { entries: 100, bytes: 200_000 };
    let error = rig.carrier().both().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("refused", "workspace-too-large"));
    let why = format!("{:?}", error.diagnosis());
    assert!(why.contains("data/huge.bin") && why.contains(".moltisignore"), "{why}");
    assert!(tree(&rig.there).is_empty());
    rig.bounds = Bounds { entries: 2, bytes: 1 << 30 };
    assert_eq!(rig.carrier().both().await.unwrap_err().code(), "workspace-too-large");
    // What grows there is not brought here.
    rig.bounds = Bounds { entries: 100, bytes: 400_000 };
    rig.both().await;
    put(&rig.there, "grown.bin", &"y".repeat(200_000));
    let error = rig.carrier().both().await.unwrap_err();
    assert_eq!(error.code(), "workspace-too-large");
    assert!(format!("{error:?}").contains("grown.bin"), "{error:?}");
    assert_eq!(read(&rig.here, "grown.bin"), None);
}

#[tokio::test]
async fn busybox_s_tools_do_as_well() {
    let Some(busybox) =
        ["/bin/busybox", "/usr/bin/busybox"].map(std::path::Path::new).into_iter().find(|p| p.exists())
    else {
        println!("not tried: there is no busybox here");
        return;
    };
    let tools = tempfile::tempdir().unwrap();
    for name in [
        "sh",
        "find",
        "stat",
        "sha256sum",
        "tar",
        "date",
        "mktemp",
        "rm",
        "rmdir",
        "mkdir",
        "chmod",
        "mv",
        "cat",
        "head",
        "readlink",
    ] {
        symlink(busybox, tools.path().join(name)).unwrap();
    }
    let rig = Rig::with(Some(tools.path().to_owned()));
    put(&rig.here, "a b/c\n//d", "one");
    put(&rig.here, "back\\slash", "one");
    symlink("to\nnowhere", rig.here.join("link")).unwrap();
    rig.both().await;
    assert_eq!(tree(&rig.there), tree(&rig.here));
    put(&rig.there, "a b/c\n//d", "two");
    put(&rig.there, "back\\slash", "two");
    put(&rig.there, "new/x", "x");
    fs::remove_file(rig.there.join("link")).unwrap();
    let report = rig.both().await;
    assert_eq!(report.notes(), Vec::<String>::new());
    assert_eq!(tree(&rig.here), tree(&rig.there));
    put(&rig.here, "new/x", "y");
    fs::remove_dir_all(rig.here.join("a b")).unwrap();
    rig.both().await;
    assert_eq!(tree(&rig.there), tree(&rig.here));
}
