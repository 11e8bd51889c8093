//! Images: described, listed, carried from one place to another, built, and not fetched.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use moltis_backend_container::engine::{BuildSpec, EngineError, Progress, ProgressSink};

use super::support::{IMAGE, engines, unique};

/// Keeps what it is told.
#[derive(Default)]
struct Seen(Mutex<Vec<Progress>>);

impl ProgressSink for Seen {
    fn progress(&self, progress: Progress) {
        self.0.lock().unwrap().push(progress);
    }
}

impl Seen {
    fn logged(&self, line: &str) -> bool {
        self.0.lock().unwrap().contains(&Progress::Log(line.to_owned()))
    }
}

#[tokio::test]
async fn images_are_described() {
    for tested in engines("images_are_described").await {
        let image = tested.engine.image(IMAGE).await.unwrap().unwrap();
        assert_eq!(image.id, tested.image);
        assert!(image.id.starts_with("sha256:") && image.id.len() == 71, "{image:?}");
        assert!(image.tags.contains(&IMAGE.to_owned()), "{image:?}");
        assert_eq!((image.arch.as_str(), image.os.as_str()), (std::env::consts::ARCH, "linux"), "{image:?}");
        assert!(image.env[0].starts_with("PATH=") && image.size_bytes > 1_000_000, "{image:?}");
        assert!(image.created_secs > 1_700_000_000, "{image:?}");
        assert_eq!(tested.engine.image(&image.id).await.unwrap(), Some(image), "{}", tested.name);
        assert_eq!(
            tested.engine.image("localhost/moltis-nothing:here").await.unwrap(),
            None,
            "{}",
            tested.name
        );
        // One that is not there is no error.
        tested.engine.remove_image("localhost/moltis-nothing:here").await.unwrap();
    }
}

#[tokio::test]
async fn images_are_built_and_used() {
    for tested in engines("images_are_built_and_used").await {
        let (engine, name) = (&tested.engine, tested.name);
        let key = unique("build");
        let tag = format!("localhost/{key}:1");
        let dockerfile = format!(
            "FROM {IMAGE}\nRUN echo hello; echo oops >&2; printf 'Step 9/9 : x\\n\\033[31mred\\033[0m\\n'; echo x > /built\n\
             ENV A=b\nUSER 5:6\nWORKDIR /var\nVOLUME /data\n"
        );
        let spec =
            BuildSpec { dockerfile, tag: tag.clone(), labels: [(key.clone(), "it's, =1".to_owned())].into() };
        let seen = Seen::default();
        let id = engine.build(&spec, &seen).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        for line in ["hello", "oops", "red", "Step 9/9 : x"] {
            assert!(seen.logged(line), "{name}: {line}: {:?}", seen.0.lock().unwrap());
        }
        let steps: Vec<(u32, String)> = seen
            .0
            .lock()
            .unwrap()
            .iter()
            .filter_map(|progress| match progress {
                Progress::Step { number, what, .. } => Some((*number, what.split(' ').next()?.to_owned())),
                _ => None,
            })
            .collect();
        let words = ["FROM", "RUN", "ENV", "USER", "WORKDIR", "VOLUME"];
        for (index, word) in words.iter().enumerate() {
            assert_eq!(
                steps[index],
                (u32::try_from(index).unwrap() + 1, (*word).to_owned()),
                "{name}: {steps:?}"
            );
        }
        let image = engine.image(&tag).await.unwrap().unwrap();
        assert_eq!(image.id, id, "{name}");
        assert_eq!(image.labels.get(&key), spec.labels.get(&key), "{name}");
        assert!(image.env.contains(&"A=b".to_owned()), "{name}: {image:?}");
        assert_eq!((image.user.as_str(), image.directory.as_str()), ("5:6", "/var"), "{name}");
        assert_eq!(image.volumes, ["/data"], "{name}");

        let listed = |labels: Vec<(String, String)>| async move {
            let labels: Vec<(&str, &str)> = labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            engine.images(&labels).await.unwrap()
        };
        assert_eq!(listed(vec![(key.clone(), "it's, =1".to_owned())]).await, vec![image.clone()], "{name}");
        assert_eq!(listed(vec![(key.clone(), String::new())]).await, vec![image.clone()], "{name}");
        assert_eq!(listed(vec![(key.clone(), "other".to_owned())]).await, [], "{name}");

        let made = tested
            .run(&moltis_backend_container::engine::ContainerSpec { image: id.clone(), ..tested.spec() })
            .await;
        assert_eq!(tested.shell(&made.id, "cat /built; echo $A").await.0, "x\nb\n", "{name}");
        let used = engine.remove_image(&tag).await;
        // Docker takes the tag and keeps the image; by its id it refuses.
        match used {
            Err(EngineError::Conflict { .. }) => {}
            other => panic!("{name}: {other:?}"),
        }
        drop(made);

        // Out and in again.
        let mut saved = Vec::new();
        let mut archive = engine.save(&tag).await.unwrap();
        tokio::io::AsyncReadExt::read_to_end(&mut archive, &mut saved).await.unwrap();
        engine.remove_image(&tag).await.unwrap();
        assert_eq!(engine.image(&id).await.unwrap(), None, "{name}");
        engine.load(Box::new(std::io::Cursor::new(saved))).await.unwrap();
        assert_eq!(engine.image(&tag).await.unwrap().map(|image| image.id), Some(id), "{name}");
        engine.remove_image(&tag).await.unwrap();

        let broken = engine.load(Box::new(std::io::Cursor::new(vec![7; 10_000]))).await;
        assert!(matches!(broken, Err(EngineError::Refused { .. })), "{name}: {broken:?}");
        let missing = engine.save(&tag).await.err();
        assert_eq!(missing, Some(EngineError::NoSuchImage { reference: tag }), "{name}");
    }
}

#[tokio::test]
async fn failed_builds_leave_nothing() {
    for tested in engines("failed_builds_leave_nothing").await {
        let tag = format!("localhost/{}:1", unique("fail"));
        let build = |dockerfile: &str| {
            let spec =
                BuildSpec { dockerfile: dockerfile.to_owned(), tag: tag.clone(), labels: Default::default() };
            let engine = tested.engine.clone();
            async move { engine.build(&spec, &()).await }
        };
        let error = build(&format!("FROM {IMAGE}\nRUN echo E: no package frob >&2; exit 100\n")).await;
        let Err(EngineError::BuildFailed { message, log }) = error else {
            panic!("{}: {error:?}", tested.name)
        };
        assert!(message.contains("100"), "{}: {message}", tested.name);
        assert!(log.iter().any(|line| line == "E: no package frob"), "{}: {log:?}", tested.name);
        let error = build("FROM localhost/moltis-nothing:here\n").await;
        assert!(matches!(error, Err(EngineError::BuildFailed { .. })), "{}: {error:?}", tested.name);
        let error = build("FRUM x\n").await;
        assert!(matches!(error, Err(EngineError::BuildFailed { .. })), "{}: {error:?}", tested.name);
        assert_eq!(tested.engine.image(&tag).await.unwrap(), None, "{}", tested.name);
    }
}

/// Processes that run with this argument.
fn running(argument: &str) -> usize {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .filter(|line| {
            line.split(|byte| *byte == 0).collect::<Vec<_>>() == [&b"sleep"[..], argument.as_bytes(), b""]
        })
        .count()
}

#[tokio::test]
async fn a_build_that_is_let_go_of_ends() {
    for (index, tested) in engines("a_build_that_is_let_go_of_ends").await.into_iter().enumerate() {
        let tag = format!("localhost/{}:1", unique("cancel"));
        // An argument that no other process has.
        let seconds = format!("9{}{index}.5", std::process::id());
        let spec = BuildSpec {
            dockerfile: format!("FROM {IMAGE}\nRUN sleep {seconds}\n"),
            tag: tag.clone(),
            labels: Default::default(),
        };
        let seen = Seen::default();
        let before = if tested.name == "docker" { BTreeSet::new() } else { working_containers().await };
        let since = Instant::now();
        {
            let build = tested.engine.build(&spec, &seen);
            tokio::pin!(build);
            while running(&seconds) == 0 {
                let ended = tokio::time::timeout(Duration::from_millis(50), &mut build).await;
                assert!(ended.is_err(), "{}: {ended:?}", tested.name);
                assert!(since.elapsed() < Duration::from_secs(60), "{}: it does not run", tested.name);
            }
        }
        let since = Instant::now();
        while running(&seconds) > 0 {
            assert!(since.elapsed() < Duration::from_secs(20), "{}: it goes on", tested.name);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(tested.engine.image(&tag).await.unwrap(), None, "{}", tested.name);
        // What Podman worked in goes too, in the moments after.
        let since = Instant::now();
        while tested.name != "docker" && !working_containers().await.is_subset(&before) {
            assert!(since.elapsed() < Duration::from_secs(20), "{}: a working container stays", tested.name);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Containers that Podman's builds work in; other tests may build at the same time, but not for long.
async fn working_containers() -> BTreeSet<String> {
    let output = tokio::process::Command::new("podman")
        .args(["ps", "--all", "--external", "--filter", "status=unknown", "--quiet"])
        .output()
        .await
        .unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn what_cannot_be_fetched_is_said() {
    for tested in engines("what_cannot_be_fetched_is_said").await {
        // Nobody listens at port 1.
        let reference = "localhost:1/moltis/nothing:here".to_owned();
        let error = tested.engine.pull(&reference, &()).await;
        let Err(EngineError::CannotPull { reference: named, message }) = error else { panic!("{error:?}") };
        assert_eq!(named, reference);
        assert!(message.contains("refused"), "{}: {message}", tested.name);
        let error = tested.engine.pull("../x?y", &()).await;
        assert!(
            matches!(error, Err(EngineError::Refused { .. } | EngineError::CannotPull { .. })),
            "{}: {error:?}",
            tested.name
        );
    }
}

#[tokio::test]
async fn engines_describe_themselves() {
    for tested in engines("engines_describe_themselves").await {
        let info = tested.engine.info().await.unwrap();
        let uname = rustix::system::uname();
        assert_eq!(info.kernel, uname.release().to_str().unwrap(), "{}", tested.name);
        assert_eq!(info.arch, std::env::consts::ARCH, "{}", tested.name);
        assert_eq!(info.place, moltis_backend_container::engine::Place::Here, "{}", tested.name);
        assert!(info.version.starts_with(|c: char| c.is_ascii_digit()), "{}: {info:?}", tested.name);
        assert!(
            info.confinement.seccomp && info.rootless != moltis_testkit::need::root(),
            "{}: {info:?}",
            tested.name
        );
        assert!(info.cgroup_version > 0, "{}: {info:?}", tested.name);
        // Podman without root cannot limit anything where there are no groups that a user may make.
        let limits = !info.rootless || info.cgroup_version > 1;
        for support in [&info.memory, &info.cpus, &info.pids] {
            assert_eq!(support.is_yes(), limits, "{}: {info:?}", tested.name);
        }
        assert!(info.runtimes.contains(&"runc".to_owned()), "{}: {info:?}", tested.name);
        assert!(!info.runtimes.contains(&"kata".to_owned()), "{}: {info:?}", tested.name);
    }
}
