//! Snapshots of a container's root: kept, begun from, removed, and never in the way of images.

use moltis_sandbox::{Backend, Beginning, SnapshotId};

use super::rig::{rigs, sh};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_to_the_root_is_where_another_begins() {
    for rig in rigs("what_was_written_to_the_root_is_where_another_begins").await {
        let id = SnapshotId::parse("snap-00000000000000aa").unwrap();
        let spec = rig.spec("first");
        let first = rig.open(&spec).await;
        sh(
            &first,
            "mkdir /var/tmp/d && echo one >/var/tmp/d/x && chmod 640 /var/tmp/d/x && ln -s x /var/tmp/d/link",
        )
        .await
        .ok();
        let root = rig.backend.commit(&spec, &id).await.unwrap().expect("its root can be written to");
        sh(&first, "echo two >/var/tmp/d/x").await.ok();
        let mut begun = rig.spec("second");
        begun.begins = Some(Beginning { snapshot: id.clone(), root: Some(root.clone()) });
        let second = rig.open(&begun).await;
        let said =
            sh(&second, "cat /var/tmp/d/x; stat -c %a /var/tmp/d/x; readlink /var/tmp/d/link").await.ok();
        assert_eq!(said, "one\n640\nx\n", "{}", rig.name);
        // It is no image of ours to be listed, removed or cleaned away.
        let images = rig.backend.images().unwrap();
        assert_eq!(images.list().await.unwrap(), [], "{}", rig.name);
        assert_eq!(images.remove(&root).await.unwrap_err().code(), "image-not-ours", "{}", rig.name);
        // Its commands have the variables that those of the first have, and no other.
        let env = "env | grep -v '^_=' | cut -d= -f1 | sort";
        assert_eq!(sh(&second, env).await.ok(), sh(&first, env).await.ok(), "{}", rig.name);
        first.close().await.unwrap();
        second.close().await.unwrap();
        rig.backend.uncommit(&id).await.unwrap();
        rig.backend.uncommit(&id).await.unwrap();
        assert_eq!(rig.engine.image(&root).await.unwrap(), None, "{}", rig.name);
        assert_eq!(rig.refusal(&begun).await.code(), "snapshot-image-missing", "{}", rig.name);
        rig.until_nothing_is_left().await;
    }
}
