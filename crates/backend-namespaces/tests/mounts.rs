//! Homes, workspaces, managed files and mounts: who owns what, and what an earlier command may have planted.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use moltis_sandbox::MountMode::{Ro, Rw};

use super::support::{Host, asked, is_root, mount, names, sh, spec};

fn owner(path: &Path) -> (u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid())
}

#[tokio::test]
async fn files_in_home_and_workspace_belong_to_their_owner_outside_and_to_the_sandbox_inside() {
    let host = Host::new();
    let home = host.own_folder("home");
    let workspace = host.folder("workspace");
    if is_root() {
        // An owner who is neither the caller nor the sandbox's user.
        chown(&workspace, Some(12_345), Some(12_346)).unwrap();
    }
    fs::set_permissions(&workspace, fs::Permissions::from_mode(0o700)).unwrap();
    let mut with = spec("s");
    with.home = Some(home.clone());
    with.workspace = Some(asked(mount(&workspace, "/workspace", Rw)));
    let sandbox = host.open(&with).await;
    let said = sh(
        &sandbox,
        "touch ~/a /workspace/b && mkdir /workspace/c && stat -c %u:%g ~/a /workspace/b /workspace",
    )
    .await;
    assert_eq!(said.ok(), "1000:1000\n1000:1000\n1000:1000\n");
    sandbox.close().await.unwrap();
    assert_eq!(owner(&home.join("a")), owner(&home));
    assert_eq!(owner(&workspace.join("b")), owner(&workspace));
    assert_eq!(owner(&workspace.join("c")), owner(&workspace));
    assert_eq!(names(&home), ["a"]);
}

#[tokio::test]
async fn what_is_read_only_stays_as_it_is() {
    let host = Host::new();
    let workspace = host.folder("workspace");
    fs::write(workspace.join("f"), "old").unwrap();
    let files = host.own_folder("files");
    fs::write(files.join("g"), "old").unwrap();
    let mut with = spec("s");
    with.workspace = Some(asked(mount(&workspace, "/workspace", Ro)));
    with.managed_files = Some(mount(&files, "/home/sandbox/files", Ro));
    let sandbox = host.open(&with).await;
    assert_eq!(sh(&sandbox, "cat /workspace/f ~/files/g").await.ok(), "oldold");
    for line in [
        "echo new > /workspace/f",
        "rm /workspace/f",
        "touch /workspace/x",
        "echo new > ~/files/g",
        "mv ~/files ~/x",
    ] {
        assert!(sh(&sandbox, line).await.failed(), "{line}");
    }
    sandbox.close().await.unwrap();
    assert_eq!((names(&workspace), names(&files)), (vec!["f".into()], vec!["g".into()]));
}

#[tokio::test]
async fn what_runs_code_on_the_host_later_is_protected() {
    let host = Host::new();
    let workspace = host.folder("workspace");
    fs::create_dir_all(workspace.join(".git/hooks")).unwrap();
    fs::create_dir_all(workspace.join(".git/objects")).unwrap();
    fs::write(workspace.join(".git/config"), "mine").unwrap();
    fs::write(workspace.join(".envrc"), "mine").unwrap();
    fs::write(workspace.join(".moltis.toml"), "mine").unwrap();
    let mut with = spec("s");
    with.workspace = Some(asked(mount(&workspace, "/workspace", Rw)));
    with.workspace_protect =
        [".git/hooks", ".git/config", ".envrc", ".vscode", ".idea", ".moltis*"].map(String::from).into();
    let sandbox = host.open(&with).await;
    for line in [
        "echo x > .git/config",
        "touch .git/hooks/post-commit",
        "rm -f .envrc",
        "mv .envrc other",
        "echo x > new && mv new .moltis.toml",
        "mv .git moved",
        "rm -rf .git/hooks",
        "ln -f new .git/config",
    ] {
        assert!(sh(&sandbox, &format!("cd /workspace && {line}")).await.failed(), "{line}");
    }
    sh(&sandbox, "cd /workspace && echo o > .git/objects/o && echo f > file && mv file other && rm other")
        .await
        .ok();
    sandbox.close().await.unwrap();
    for file in [".git/config", ".envrc", ".moltis.toml"] {
        assert_eq!(fs::read_to_string(workspace.join(file)).unwrap(), "mine");
    }
    assert_eq!(names(&workspace.join(".git/hooks")), Vec::<String>::new());
    assert_eq!(names(&workspace.join(".git/objects")), ["o"]);
}

#[tokio::test]
async fn a_link_that_is_to_be_protected_is_refused_unless_the_workspace_is_read_only() {
    let host = Host::new();
    let workspace = host.folder("workspace");
    fs::create_dir(workspace.join("env")).unwrap();
    fs::write(workspace.join("env/envrc"), "mine").unwrap();
    symlink("env/envrc", workspace.join(".envrc")).unwrap();
    let mut with = spec("s");
    with.workspace = Some(asked(mount(&workspace, "/workspace", Rw)));
    with.workspace_protect = vec![".envrc".into()];
    let error = host.refusal(&with).await;
    assert!(matches!(error, moltis_sandbox::Error::Refused(_)), "{error:?}");
    assert_eq!(error.code(), "workspace-link-not-protectable");
    assert!(error.diagnosis().message.contains("workspace/.envrc"), "{error:?}");
    assert!(error.diagnosis().fix.as_ref().unwrap().contains(":ro"), "{error:?}");
    with.workspace = Some(asked(mount(&workspace, "/workspace", Ro)));
    host.open(&with).await.close().await.unwrap();
}

#[tokio::test]
async fn a_link_in_the_home_is_not_followed() {
    let host = Host::new();
    let outside = host.folder("outside");
    let files = host.own_folder("files");
    fs::write(files.join("f"), "managed").unwrap();
    for plant in ["/etc", "/proc/self/root", "..", "../../../../..", outside.to_str().unwrap(), "files"] {
        let home = host.own_folder("home");
        symlink(plant, home.join("files")).unwrap();
        let mut with = spec("s");
        with.home = Some(home.clone());
        with.managed_files = Some(mount(&files, "/home/sandbox/files", Rw));
        let sandbox = host.open(&with).await;
        assert_eq!(sh(&sandbox, "cat ~/files/f; ls -A ~").await.ok(), "managedfiles\nfiles.displaced-1\n");
        sh(&sandbox, "echo new > ~/files/new").await.ok();
        sandbox.close().await.unwrap();
        assert_eq!(names(&files), ["f", "new"]);
        fs::remove_file(files.join("new")).unwrap();
        assert!(home.join("files").symlink_metadata().unwrap().is_dir());
        fs::remove_dir_all(&home).unwrap();
    }
    assert_eq!(names(&outside), Vec::<String>::new());
}

#[tokio::test]
async fn a_file_in_the_place_of_managed_files_is_kept_aside() {
    let host = Host::new();
    let home = host.own_folder("home");
    fs::write(home.join("files"), "precious").unwrap();
    fs::write(home.join("files.displaced-1"), "older").unwrap();
    let mut with = spec("s");
    with.home = Some(home.clone());
    with.managed_files = Some(mount(host.own_folder("files"), "/home/sandbox/files", Ro));
    let sandbox = host.open(&with).await;
    sandbox.close().await.unwrap();
    assert_eq!(names(&home), ["files", "files.displaced-1", "files.displaced-2"]);
    assert_eq!(fs::read_to_string(home.join("files.displaced-2")).unwrap(), "precious");
}

#[tokio::test]
async fn a_link_on_the_way_to_a_mount_point_is_an_error() {
    let host = Host::new();
    let home = host.own_folder("home");
    symlink("/tmp", home.join(".cache")).unwrap();
    let mut with = spec("s");
    with.home = Some(home);
    with.mounts = vec![asked(mount(host.folder("m"), "/home/sandbox/.cache/m", Ro))];
    let error = host.refusal(&with).await;
    assert_eq!(error.code(), "mount-target-unusable", "{error:?}");
}

#[tokio::test]
async fn folders_and_files_can_be_mounted_anywhere_and_within_each_other() {
    let host = Host::new();
    let outer = host.folder("outer");
    fs::create_dir(outer.join("inner")).unwrap();
    fs::write(host.folder("inner").join("i"), "i").unwrap();
    fs::write(host.path("file"), "f").unwrap();
    let mut with = spec("s");
    with.home = Some(host.own_folder("home"));
    with.mounts = vec![
        asked(mount(host.path("inner"), "/data/outer/inner", Ro)),
        asked(mount(&outer, "/data/outer", Rw)),
        asked(mount(host.path("file"), "/home/sandbox/.config/deep/file", Ro)),
        asked(mount(host.path("inner"), "/mnt/cache", Rw)),
    ];
    let sandbox = host.open(&with).await;
    let said = sh(
        &sandbox,
        "cat /data/outer/inner/i ~/.config/deep/file; echo o > /data/outer/o; echo n > /mnt/cache/n",
    )
    .await;
    assert_eq!(said.ok(), "if");
    assert!(sh(&sandbox, "echo x > /data/outer/inner/x").await.failed());
    assert!(sh(&sandbox, "echo x > ~/.config/deep/file").await.failed());
    sandbox.close().await.unwrap();
    assert_eq!(names(&outer), ["inner", "o"]);
    assert_eq!(names(&host.path("inner")), ["i", "n"]);
    assert_eq!(owner(&outer.join("o")), owner(&outer));
}

#[tokio::test]
async fn nothing_mounted_inside_shows_outside() {
    let host = Host::new();
    let home = host.own_folder("home");
    let mut with = spec("s");
    with.home = Some(home.clone());
    with.managed_files = Some(mount(host.own_folder("files"), "/home/sandbox/files", Ro));
    let before = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let sandbox = host.open(&with).await;
    assert_eq!(fs::read_to_string("/proc/self/mountinfo").unwrap(), before);
    sandbox.close().await.unwrap();
}
