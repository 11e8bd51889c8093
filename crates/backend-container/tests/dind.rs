//! This program in a container beside those that it makes: it speaks to the engine around it, which knows its folders by
//! other names. The program is this test, run again in the container.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use moltis_backend_container::engine::{Bind, ContainerSpec, EngineKind, NetworkMode, Relabel};

use super::rig::{Rig, SOON, roots_rigs};
use super::support::unique;

const IMAGE: &str = "localhost/sandbox-base:debian";

/// What the program in the container said. `binds` are folders of the host's and what they are inside.
async fn inside(rig: &Rig, binds: &[(&Path, &str)], vars: &[(&str, &str)]) -> String {
    let socket = match rig.kind {
        EngineKind::Docker => "/var/run/docker.sock",
        _ => "/run/podman/podman.sock",
    };
    let bind = |source: &Path, target: &str| Bind {
        source: source.to_owned(),
        target: target.to_owned(),
        read_only: false,
        relabel: Relabel::Not,
    };
    let program = std::env::current_exe().unwrap();
    let own = [(program.as_path(), "/test"), (Path::new(socket), socket)];
    let mut env = vec![
        ("MOLTIS_TEST_ACTION".to_owned(), "once".to_owned()),
        ("MOLTIS_TEST_ENGINE".to_owned(), rig.name.to_owned()),
        ("MOLTIS_TEST_KEY".to_owned(), unique("inner")),
        ("MOLTIS_TEST_PREFIX".to_owned(), rig.prefix().to_owned()),
    ];
    env.extend(vars.iter().map(|(name, value)| (format!("MOLTIS_TEST_{name}"), (*value).to_owned())));
    let spec = ContainerSpec {
        name: format!("{}-outer", rig.prefix()),
        image: rig.engine.image(IMAGE).await.unwrap().unwrap().id,
        user: (0, 0),
        argv: ["/test", "--exact", "rig::another_process", "--nocapture", "--test-threads", "1"]
            .map(str::to_owned)
            .to_vec(),
        directory: "/".to_owned(),
        env,
        binds: own.iter().chain(binds).map(|(source, target)| bind(source, target)).collect(),
        network: NetworkMode::None,
        keep_logs: true,
        ..ContainerSpec::default()
    };
    let id = rig.engine.create(&spec).await.unwrap();
    rig.engine.start(&id).await.unwrap();
    tokio::time::timeout(SOON * 4, rig.engine.wait(&id)).await.expect("it hangs").unwrap();
    let said = String::from_utf8_lossy(&rig.engine.logs(&id, 20_000).await.unwrap()).into_owned();
    rig.engine.remove(&id).await.unwrap();
    let line = said.lines().find_map(|line| line.split_once("said:").map(|(_, said)| said.to_owned()));
    line.unwrap_or_else(|| panic!("{}: {said}", rig.name))
}

async fn with_image(test: &str) -> Vec<Rig> {
    let mut found = Vec::new();
    for rig in roots_rigs(test, "the engine's socket is root's").await {
        match rig.engine.image(IMAGE).await {
            Ok(Some(_)) => found.push(rig),
            _ => {
                moltis_testkit::need::skip(&format!("{test} ({})", rig.name), &format!("there is no {IMAGE}"))
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_are_made_from_within_a_container() {
    for rig in with_image("sandboxes_are_made_from_within_a_container").await {
        let data: PathBuf = rig.own_folder("", 0o700);
        let folder = rig.folder("w", 1234);
        let binds = [(data.as_path(), "/srv/moltis"), (folder.as_path(), "/work")];
        let vars = [("DATA", "/srv/moltis"), ("WORKSPACE", "/work")];
        let said = inside(&rig, &binds, &vars).await;
        assert_eq!(said, "1234 made  true 0", "{}", rig.name);
        let made = std::fs::metadata(folder.join("made")).unwrap();
        assert_eq!(made.uid(), 1234, "{}", rig.name);
        rig.until_nothing_is_left().await;

        // A data directory below what is mounted, which the engine is told of by name.
        let host = data.display().to_string();
        let vars = [("DATA", "/srv/moltis"), ("HOST_DATA", &host), ("WORKSPACE", "/work")];
        assert_eq!(inside(&rig, &binds, &vars).await, "1234 made  true 0", "{}", rig.name);
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_engine_cannot_see_is_refused_by_name() {
    for rig in with_image("what_the_engine_cannot_see_is_refused_by_name").await {
        let data: PathBuf = rig.own_folder("", 0o700);
        let binds = [(data.as_path(), "/srv/moltis")];
        let said = inside(&rig, &binds, &[("DATA", "/srv/moltis"), ("WORKSPACE", "/opt")]).await;
        assert!(
            said.starts_with("mount-not-visible ") || said.starts_with("workspace-owned-by-root "),
            "{said}"
        );
        // On the container's own root file system.
        let said = inside(&rig, &[], &[("DATA", "/opt/data")]).await;
        assert!(said.starts_with("host-data-dir-unknown "), "{}: {said}", rig.name);
        rig.until_nothing_is_left().await;
    }
}
