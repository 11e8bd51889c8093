//! Images: found, built, fetched, moved from other engines, removed.

use std::io::Write;
use std::sync::Mutex;

use moltis_backend_container::engine::{BuildSpec, EngineError, Progress, ProgressSink};
use moltis_testkit::apple::Version;
use tokio::io::AsyncReadExt;

use super::{IMAGE, runs, tested};

#[derive(Default)]
struct Told(Mutex<Vec<Progress>>);

impl ProgressSink for Told {
    fn progress(&self, progress: Progress) {
        self.0.lock().unwrap().push(progress);
    }
}

#[tokio::test]
async fn images_are_found_by_name_id_and_label() {
    for version in Version::ALL {
        let tested = tested(version).await;
        let engine = &tested.engine;
        tested.standin.image("localhost/other:2", None, &[("x", "y")]);
        let image = engine.image(IMAGE).await.unwrap().unwrap();
        assert!(image.id.starts_with("sha256:"));
        assert_eq!(
            (&image.tags[..], &*image.arch, &*image.os),
            (&[IMAGE.to_owned()][..], std::env::consts::ARCH, "linux")
        );
        assert_eq!(
            (image.env, image.created_secs),
            (vec!["PATH=/bin".to_owned(), "IMAGE=yes".to_owned()], 1_767_323_045)
        );
        let by_id = engine.image(&image.id).await.unwrap().unwrap();
        assert_eq!((by_id.id, by_id.tags), (image.id, image.tags));
        for gone in ["localhost/gone:1", "sha256:00", "", "--all"] {
            assert_eq!(engine.image(gone).await.unwrap(), None, "{gone}");
        }
        let count = async |labels: &[(&str, &str)]| engine.images(labels).await.unwrap().len();
        assert_eq!(count(&[]).await, 2);
        assert_eq!(count(&[("made", "by test")]).await, 2);
        assert_eq!(count(&[("made", "by others")]).await, 0);
        engine.remove_image("localhost/other:2").await.unwrap();
        engine.remove_image("localhost/other:2").await.unwrap();
        assert_eq!(count(&[("made", "")]).await, 1);
    }
}

#[tokio::test]
async fn an_image_in_use_stays() {
    if !runs("apple::images::an_image_in_use_stays") {
        return;
    }
    let tested = tested(Version::V1_1).await;
    let id = tested.running("one").await;
    let result = tested.engine.remove_image(&tested.image).await;
    assert!(matches!(result, Err(EngineError::Conflict { .. })), "{result:?}");
    tested.engine.remove(&id).await.unwrap();
    tested.engine.remove_image(&tested.image).await.unwrap();
    assert_eq!(tested.engine.image(IMAGE).await.unwrap(), None);
}

#[tokio::test]
async fn images_are_fetched() {
    let tested = tested(Version::V0_9).await;
    tested.standin.publish(IMAGE);
    tested.engine.remove_image(IMAGE).await.unwrap();
    tested.engine.pull(IMAGE, &()).await.unwrap();
    assert_eq!(tested.engine.image(IMAGE).await.unwrap().unwrap().id, tested.image);
    for gone in ["localhost/gone:1", "--help", ""] {
        match tested.engine.pull(gone, &()).await {
            Err(EngineError::CannotPull { reference, message }) => {
                assert!(reference == gone && !message.is_empty())
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn images_are_built_with_progress() {
    if !runs("apple::images::images_are_built_with_progress") {
        return;
    }
    for version in Version::ALL {
        let tested = tested(version).await;
        let spec = BuildSpec {
            dockerfile: format!("FROM {IMAGE}\nRUN echo installing; echo more > /made\nENV ADDED=1\n"),
            tag: "localhost/built:1".to_owned(),
            labels: [("ours".to_owned(), "yes".to_owned())].into(),
        };
        let told = Told::default();
        let id = tested.engine.build(&spec, &told).await.unwrap();
        let image = tested.engine.image("localhost/built:1").await.unwrap().unwrap();
        assert_eq!((&image.id, image.labels.get("ours").map(String::as_str)), (&id, Some("yes")));
        assert!(image.env.contains(&"ADDED=1".to_owned()));
        let told = told.0.into_inner().unwrap();
        let step = |number, what: &str| Progress::Step { number, total: 3, what: what.to_owned() };
        assert!(told.contains(&step(1, &format!("FROM {IMAGE}"))), "{told:?}");
        assert!(told.contains(&Progress::Log("installing".to_owned())), "{told:?}");
        let broken = BuildSpec {
            dockerfile: format!("FROM {IMAGE}\nRUN echo 'Error: VM never booted' >&2; exit 5"),
            tag: "localhost/broken:1".to_owned(),
            ..BuildSpec::default()
        };
        match tested.engine.build(&broken, &()).await {
            Err(EngineError::BuildFailed { log, .. }) => {
                assert!(log.iter().any(|line| line == "Error: VM never booted"), "{log:?}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(tested.engine.image("localhost/broken:1").await.unwrap(), None);
    }
}

#[tokio::test]
async fn what_other_engines_save_is_loaded() {
    for version in Version::ALL {
        let tested = tested(version).await;
        // As `docker save` writes it.
        let layer = {
            let mut layer = tar::Builder::new(Vec::new());
            append(&mut layer, "etc/os-release", b"ID=debian\n");
            layer.into_inner().unwrap()
        };
        let arch = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
        let config =
            format!(r#"{{"architecture":"{arch}","os":"linux","config":{{"Env":["A=1"]}},"rootfs":{{}}}}"#);
        let mut archive = tar::Builder::new(Vec::new());
        append(&mut archive, "1.json", config.as_bytes());
        append(&mut archive, "1/layer.tar", &layer);
        append(
            &mut archive,
            "manifest.json",
            br#"[{"Config":"1.json","RepoTags":["localhost/moved:1"],"Layers":["1/layer.tar"]}]"#,
        );
        let archive = archive.into_inner().unwrap();
        tested.engine.load(Box::new(std::io::Cursor::new(archive))).await.unwrap();
        let image = tested.engine.image("localhost/moved:1").await.unwrap().unwrap();
        assert_eq!(image.env, ["A=1"]);
        // And what it saves itself.
        let mut saved = Vec::new();
        tested.engine.save(&image.id).await.unwrap().read_to_end(&mut saved).await.unwrap();
        tested.engine.remove_image("localhost/moved:1").await.unwrap();
        tested.engine.load(Box::new(std::io::Cursor::new(saved))).await.unwrap();
        assert_eq!(tested.engine.image("localhost/moved:1").await.unwrap().unwrap().id, image.id);
        let gone = tested.engine.save("localhost/gone:1").await.map(drop);
        assert!(matches!(gone, Err(EngineError::NoSuchImage { .. })), "{gone:?}");
        let mut garbage = Vec::new();
        garbage.write_all(&[7; 5000]).unwrap();
        assert!(tested.engine.load(Box::new(std::io::Cursor::new(garbage))).await.is_err());
    }
}

fn append(archive: &mut tar::Builder<Vec<u8>>, name: &str, bytes: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    archive.append_data(&mut header, name, bytes).unwrap();
}
