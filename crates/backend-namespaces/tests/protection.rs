//! Names in writable folders that make the host run code: kept as they are where they exist, named where they are made.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use moltis_sandbox::MountMode::{Ro, Rw};
use moltis_sandbox::{Backend, Command, ExecEvent, ExecRequest, SandboxSpec};

use super::support::{Host, asked, lasting, mount, names, outcome, sh, spec};

fn protecting(mut spec: SandboxSpec, workspace: &Path) -> SandboxSpec {
    spec.workspace = Some(asked(mount(workspace, "/workspace", Rw)));
    spec.workspace_protect = [".git/hooks", ".git/config", ".gitmodules", ".envrc", ".vscode", ".moltis*"]
        .map(String::from)
        .into();
    spec
}

fn make(root: &Path, files: &[&str]) {
    for file in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "mine").unwrap();
    }
}

const NONE: [&str; 0] = [];

#[tokio::test]
async fn it_reaches_into_nested_folders_repositories_and_other_mounts() {
    let host = Host::new();
    let (workspace, other, plain) = (host.folder("workspace"), host.folder("other"), host.folder("plain"));
    let protected = [
        ".git/config",
        ".git/config.worktree",
        ".git/modules/lib/config",
        ".git/modules/lib/hooks/post-checkout",
        ".git/worktrees/w/commondir",
        "lib/.git",
        "packages/a/.vscode/tasks.json",
        "vendor/repo/.git/hooks/pre-commit",
        "vendor/repo/.git/config",
    ];
    make(&workspace, &protected);
    make(
        &workspace,
        &["vendor/repo/.git/index", ".git/modules/lib/index", "packages/a/src", "packages/b/src"],
    );
    make(&other, &[".envrc", "deep/er/.git/config"]);
    make(&plain, &[".envrc"]);
    let mut with = protecting(spec("s"), &workspace);
    with.mounts = vec![asked(mount(&other, "/mnt/other", Rw)), asked(mount(&plain, "/mnt/plain", Ro))];
    let sandbox = host.open(&with).await;
    for file in protected {
        for line in [format!("echo x > {file}"), format!("rm -f {file}"), format!("mv {file} elsewhere")] {
            assert!(sh(&sandbox, &format!("cd /workspace && {line}")).await.failed(), "{line}");
        }
    }
    for line in [
        "mv vendor/repo/.git moved",
        "rm -rf vendor/repo/.git/hooks",
        "mv .git/modules/lib .git/modules/x",
        "mv packages/a/.vscode x",
        "echo x > /mnt/other/.envrc",
        "mv /mnt/other/deep/er/.git/config /mnt/other/x",
    ] {
        assert!(sh(&sandbox, &format!("cd /workspace && {line}")).await.failed(), "{line}");
    }
    // What is not named goes on as ever: also renames and links between folders that hold something protected.
    let line = "cd /workspace && echo i > vendor/repo/.git/index && echo i > .git/modules/lib/index \
                && python3 -c 'import os; os.rename(\"packages/a/src\", \"packages/b/moved\"); \
                   os.link(\"packages/b/src\", \"packages/a/linked\")' && touch /mnt/other/new";
    let fine = outcome(&sandbox, line).await;
    assert_eq!((fine.status.shell_code(), fine.newly_dangerous), (0, vec![]), "{:?}", fine.notes);
    assert_eq!(fine.notes, NONE);
    sandbox.close().await.unwrap();
    for file in protected {
        assert_eq!(fs::read_to_string(workspace.join(file)).unwrap(), "mine", "{file}");
    }
    assert_eq!(names(&workspace.join("packages/a")), [".vscode", "linked"]);
}

#[tokio::test]
async fn what_is_made_is_named_in_the_answer_of_whoever_asks() {
    let host = Host::new();
    let (workspace, other) = (host.folder("workspace"), host.folder("other"));
    make(&workspace, &[".git/config", ".git/HEAD", "a/b/f", ".envrc"]);
    make(&other, &["f"]);
    let mut with = protecting(lasting("s"), &workspace);
    with.mounts = vec![asked(mount(&other, "/mnt/other", Rw))];
    let sandbox = host.open(&with).await;
    assert_eq!(outcome(&sandbox, "cd /workspace && touch new a/b/g && mkdir c").await.newly_dangerous, NONE);
    let line = "cd /workspace && mkdir -p .git/hooks sub/repo/.git/hooks a/.vscode && touch .git/commondir \
                && echo 'gitdir: /tmp' > a/b/.git && ln -s /tmp/evil .moltis.toml && touch /mnt/other/.gitmodules";
    let told = [
        "/workspace/.git/commondir",
        "/workspace/.git/hooks",
        "/workspace/.moltis.toml",
        "/workspace/a/.vscode",
        "/workspace/a/b/.git",
        "/workspace/sub/repo/.git/hooks",
        "/mnt/other/.gitmodules",
    ];
    let made = outcome(&sandbox, line).await;
    assert_eq!(
        (made.newly_dangerous.as_slice(), made.newly_dangerous_total),
        (&told.map(String::from)[..], 7)
    );
    drop(sandbox);
    // Another process that comes to the same sandbox, and one that knows only its id.
    let adopted = host.other().adopt(&with).await.unwrap().unwrap();
    assert_eq!(outcome(&adopted, "true").await.newly_dangerous, told);
    let found = host.other().find(&with.id()).await.unwrap().unwrap();
    assert_eq!(outcome(&found, "rm -r /workspace/sub").await.newly_dangerous.len(), 6);
    // What a background command makes is told to whoever watches or ends it.
    let mut request = ExecRequest::new(Command::Shell("touch /workspace/c/.envrc; sleep 1000".into()));
    request.background = true;
    let mut exec = adopted.exec(request).await.unwrap();
    let Some(Ok(ExecEvent::Started(process))) = exec.events.next().await else { panic!() };
    while !workspace.join("c/.envrc").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let stopped = adopted.stop(process).await.unwrap();
    assert!(stopped.newly_dangerous.contains(&"/workspace/c/.envrc".to_owned()), "{stopped:?}");
    adopted.close().await.unwrap();
    // A new sandbox protects them, and has nothing to tell; but a link cannot be protected.
    fs::remove_file(workspace.join(".moltis.toml")).unwrap();
    symlink("b/f", workspace.join("a/.envrc")).unwrap();
    let again = host.open(&with).await;
    let line = "cd /workspace && echo x > a/b/.git";
    let end = outcome(&again, line).await;
    assert_eq!((end.status.shell_code(), end.newly_dangerous), (2, vec![]));
    assert_eq!(end.notes.len(), 1);
    assert!(end.notes[0].contains("`/workspace/a/.envrc`"), "{:?}", end.notes);
    again.close().await.unwrap();
    assert_eq!(host.left_behind(), NONE);
}

#[tokio::test]
async fn a_look_at_the_folders_costs_little() {
    let host = Host::new();
    let workspace = host.folder("workspace");
    for number in 0..200 {
        make(&workspace, &[&format!("{}/{number}/f", number % 10)]);
    }
    // Else they are too young to be believed.
    tokio::time::sleep(Duration::from_millis(150)).await;
    let with = protecting(spec("with"), &workspace);
    let mut without = with.clone();
    without.key = moltis_sandbox::SessionKey::new("without").unwrap();
    without.workspace_protect.clear();
    let (with, without) = (host.open(&with).await, host.open(&without).await);
    let mut best = [Duration::MAX; 2];
    for _ in 0..100 {
        for (best, sandbox) in best.iter_mut().zip([&without, &with]) {
            let start = Instant::now();
            outcome(sandbox, "true").await;
            *best = start.elapsed().min(*best);
        }
    }
    println!("a command without a look at 211 directories {:?}, with it {:?}", best[0], best[1]);
    assert!(best[1] < best[0] + Duration::from_millis(20));
}
