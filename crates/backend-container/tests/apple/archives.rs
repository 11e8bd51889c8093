//! Files into and out of containers.

use moltis_backend_container::engine::EngineError;
use moltis_testkit::apple::Version;
use tokio::io::AsyncReadExt;

use super::{Tested, runs, tested};

async fn files(tested: &Tested, id: &str, path: &str) -> Result<Vec<(String, String)>, EngineError> {
    let mut bytes = Vec::new();
    tested.engine.get_archive(id, path).await?.read_to_end(&mut bytes).await.unwrap();
    let mut found = Vec::new();
    for entry in tar::Archive::new(&bytes[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string().trim_start_matches("./").to_owned();
        let mut text =
            entry.link_name().unwrap().map(|to| format!("-> {}", to.display())).unwrap_or_default();
        std::io::Read::read_to_string(&mut entry, &mut text).unwrap();
        found.push((name, text));
    }
    Ok(found)
}

fn pair(name: &str, text: &str) -> (String, String) {
    (name.to_owned(), text.to_owned())
}

#[tokio::test]
async fn a_container_that_was_never_started_shows_its_images_files() {
    for version in Version::ALL {
        let tested = tested(version).await;
        let id = tested.engine.create(&tested.spec("one")).await.unwrap();
        assert_eq!(files(&tested, &id, "/etc/motd").await.unwrap(), [pair("motd", "hello\n")]);
        let names: Vec<String> =
            files(&tested, &id, "/etc").await.unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["etc/", "etc/motd", "etc/passwd"]);
        if moltis_testkit::need::program("busybox").is_some() {
            assert_eq!(files(&tested, &id, "/bin/sh").await.unwrap(), [pair("sh", "-> busybox")]);
        }
        let gone = files(&tested, &id, "/gone").await;
        assert!(matches!(gone, Err(EngineError::NoSuchPath { .. })), "{gone:?}");
        let put = tested.engine.put_archive(&id, "/", Vec::new()).await;
        assert!(matches!(put, Err(EngineError::Refused { .. })), "{put:?}");
        tested.engine.remove(&id).await.unwrap();
        let gone = files(&tested, &id, "/etc").await;
        assert!(matches!(gone, Err(EngineError::NoSuchContainer { .. })), "{gone:?}");
    }
}

#[tokio::test]
async fn files_go_into_a_running_container_and_come_out() {
    if !runs("apple::archives::files_go_into_a_running_container_and_come_out") {
        return;
    }
    for version in [Version::V0_5, Version::V1_1] {
        let tested = tested(version).await;
        let mut spec = tested.spec("one");
        let memory =
            moltis_backend_container::engine::Tmpfs { target: "/tmp".to_owned(), options: String::new() };
        spec.tmpfs = vec![memory];
        let id = tested.engine.create(&spec).await.unwrap();
        tested.engine.start(&id).await.unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        let text = "x".repeat(3_000_000);
        for (name, text) in [("dir/a", "first\n"), ("dir/b", &text)] {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            archive.append_data(&mut header, name, text.as_bytes()).unwrap();
        }
        tested.engine.put_archive(&id, "/tmp", archive.into_inner().unwrap()).await.unwrap();
        let mut found = files(&tested, &id, "/tmp/dir").await.unwrap();
        found.sort();
        assert_eq!(found, [pair("dir/", ""), pair("dir/a", "first\n"), pair("dir/b", &text)]);
        let gone = files(&tested, &id, "/tmp/gone").await;
        assert!(matches!(gone, Err(EngineError::NoSuchPath { .. })), "{gone:?}");
        let put = tested.engine.put_archive(&id, "/tmp/gone", Vec::new()).await;
        assert!(matches!(put, Err(EngineError::Refused { .. })), "{put:?}");
        tested.engine.remove(&id).await.unwrap();
    }
}
