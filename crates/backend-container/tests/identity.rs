//! Whose files are whose: what is made inside belongs outside to whom it should, and host root is nobody inside.

use std::os::unix::fs::MetadataExt;

use moltis_sandbox::MountMode::{Ro, Rw};

use moltis_testkit::need;

use super::rig::{asked, mount, rigs, roots_rigs, set_mode, sh};

/// Why a test is root's.
const OTHERS: &str = "files are given to others, and root's are there";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_root_all_files_are_the_callers() {
    // Root has none but rootful engines.
    if need::root() {
        return;
    }
    for rig in rigs("without_root_all_files_are_the_callers").await {
        let own = |path: &std::path::Path| {
            let found = std::fs::symlink_metadata(path).unwrap();
            (found.uid(), found.gid())
        };
        let caller = own(&rig.folder("mine", 0));
        let (workspace, shown) = (rig.folder("w", 0), rig.folder("s", 0));
        let home = rig.own_folder("sandbox/home/shared", 0o700);
        let files = rig.own_folder("files", 0o700);
        // What others may not read, its owner inside may.
        std::fs::write(shown.join("private"), "read\n").unwrap();
        set_mode(&shown.join("private"), 0o600);
        set_mode(&shown, 0o700);
        let mut spec = rig.spec("mine");
        spec.workspace = Some(asked(mount(&workspace, "/workspace", Rw)));
        spec.mounts = vec![asked(mount(&shown, "/srv/shown", Ro))];
        spec.home = Some(home.clone());
        spec.managed_files = Some(mount(&files, "/home/sandbox/files", Rw));
        let sandbox = rig.open(&spec).await;
        let line = "id -u; id -un; cat /srv/shown/private; touch /srv/shown/x 2>/dev/null || echo no; \
                    mkdir d; ln -s nowhere d/l; touch ~/h ~/files/f; chmod 600 ~/files/f; stat -c %u . ~ ~/files";
        let said = sh(&sandbox, line).await.ok();
        assert_eq!(said, "1000\nsandbox\nread\nno\n1000\n1000\n1000\n", "{}", rig.name);
        for path in [workspace.join("d"), workspace.join("d/l"), home.join("h"), files.join("f")] {
            assert_eq!(own(&path), caller, "{} {}", rig.name, path.display());
        }
        // Root outside is nobody inside, and so is everybody else.
        let said = sh(&sandbox, "cat /proc/self/uid_map | wc -l; stat -c %u /proc/sys").await.ok();
        assert!(said.ends_with("\n65534\n"), "{}: {said}", rig.name);
        sandbox.close().await.unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_in_a_workspace_are_its_owners() {
    for rig in roots_rigs("files_in_a_workspace_are_its_owners", OTHERS).await {
        let folder = rig.folder("w", 1234);
        let mut spec = rig.spec("owned");
        spec.workspace = Some(asked(mount(&folder, "/workspace", Rw)));
        spec.home = Some(rig.own_folder("sandbox/home/shared-1234", 0o700));
        let sandbox = rig.open(&spec).await;
        let said = sh(&sandbox, "pwd; id -u; id -g; touch f; mkdir d; touch ~/h; id -un").await.ok();
        assert_eq!(said, "/workspace\n1234\n1234\nsandbox\n", "{}", rig.name);
        for path in [folder.join("f"), folder.join("d"), rig.data().join("sandbox/home/shared-1234/h")] {
            let found = std::fs::metadata(&path).unwrap();
            assert_eq!((found.uid(), found.gid()), (1234, 1234), "{} {}", rig.name, path.display());
        }
        sandbox.close().await.unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_of_root_cannot_be_written_to() {
    for rig in roots_rigs("a_workspace_of_root_cannot_be_written_to", OTHERS).await {
        let folder = rig.folder("w", 0);
        std::fs::write(folder.join("f"), "read").unwrap();
        let mut spec = rig.spec("root");
        spec.workspace = Some(asked(mount(&folder, "/workspace", Rw)));
        let error = rig.refusal(&spec).await;
        assert_eq!((error.kind(), error.code()), ("refused", "workspace-owned-by-root"), "{}", rig.name);
        assert!(error.diagnosis().fix.is_some());
        // It can be shown.
        spec.workspace = Some(asked(mount(&folder, "/workspace", Ro)));
        let sandbox = rig.open(&spec).await;
        assert_eq!(sh(&sandbox, "cat f; id -u; touch g 2>/dev/null || echo no").await.ok(), "read1000\nno\n");
        sandbox.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managed_files_are_read_and_those_of_root_not_written() {
    for rig in roots_rigs("managed_files_are_read_and_those_of_root_not_written", OTHERS).await {
        let files = rig.own_folder("files", 0o755);
        std::fs::write(files.join("f"), "managed").unwrap();
        let mut spec = rig.spec("files");
        spec.managed_files = Some(mount(&files, "/home/sandbox/files", Ro));
        let sandbox = rig.open(&spec).await;
        let said =
            sh(&sandbox, "cat ~/files/f; echo; echo $MOLTIS_FILES_DIR; touch ~/files/g || echo no").await;
        assert_eq!(said.ok(), "managed\n/home/sandbox/files\nno\n", "{}", rig.name);
        sandbox.close().await.unwrap();
        rig.until_nothing_is_left().await;

        spec.managed_files = Some(mount(&files, "/home/sandbox/files", Rw));
        let error = rig.refusal(&spec).await;
        assert_eq!((error.kind(), error.code()), ("refused", "mount-owned-by-root"), "{}", rig.name);
        assert!(error.diagnosis().message.contains("managed files"), "{error:?}");

        // What nobody inside could look into is not shown as if it were empty.
        super::rig::set_mode(&files, 0o700);
        spec.managed_files = Some(mount(&files, "/home/sandbox/files", Ro));
        let sandbox = rig.open(&spec).await;
        let notes = sh(&sandbox, "true").await.outcome.notes;
        assert!(notes.iter().any(|note| note.contains("is closed to")), "{}: {notes:?}", rig.name);
        sandbox.close().await.unwrap();
        rig.until_nothing_is_left().await;
        spec.managed_files_origin = moltis_sandbox::Origin::File;
        let error = rig.refusal(&spec).await;
        assert_eq!((error.kind(), error.code()), ("refused", "managed-files-closed"), "{}", rig.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_root_is_nobody_inside() {
    for rig in rigs("host_root_is_nobody_inside").await {
        let sandbox = rig.open(&rig.spec("nobody")).await;
        let container = rig.container().await;
        let status = std::fs::read_to_string(format!("/proc/{}/status", container.pid)).unwrap();
        let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        for ids in [line("Uid:"), line("Gid:")] {
            assert!(ids.split('\t').skip(1).all(|id| id != "0"), "{}: {ids}", rig.name);
        }
        let said = sh(&sandbox, "cat /proc/1/environ 2>/dev/null || echo closed; id -G").await.ok();
        assert_eq!(said, "closed\n1000\n", "{}", rig.name);
        sandbox.close().await.unwrap();
    }
}
