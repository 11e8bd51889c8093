//! The rules of images, tried against an engine that is made up.

mod fake;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fake::{Fake, Node, Outcome, base, debian};
use moltis_sandbox::{BuildProgress, BuildSink, ImageChoice, Images, Setting};
use proptest::prelude::*;

use super::facts::OsRelease;
use super::{ImageFacts, ImageStore, Manager, Place, Work, label, store};
use crate::engine::{Container, ContainerState, Engine, EngineError, EngineKind, Image};

struct World {
    engine: Arc<Fake>,
    store: ImageStore,
    temp: tempfile::TempDir,
}

fn place(temp: &tempfile::TempDir) -> Place {
    Place { data_dir: temp.path().to_owned(), instance: "one".into(), prefix: "moltis".into() }
}

fn world_of(engine: Fake) -> World {
    let (engine, temp) = (Arc::new(engine), tempfile::tempdir().unwrap());
    let store = ImageStore::new(Arc::clone(&engine) as Arc<dyn Engine>, place(&temp), Work::default());
    World { engine, store, temp }
}

fn world() -> World {
    world_of(Fake::new(EngineKind::Docker, debian()))
}

fn on_base(reference: &str, packages: &[&str]) -> ImageChoice {
    let packages = packages.iter().map(|name| (*name).to_owned()).collect();
    ImageChoice::Base {
        reference: Setting::built_in(reference.to_owned()),
        packages: Setting::built_in(packages),
    }
}

fn finished(reference: &str) -> ImageChoice {
    ImageChoice::Finished { reference: Setting::built_in(reference.to_owned()) }
}

const BASE: &str = "localhost/base:1";

impl World {
    async fn ensure(&self, choice: &ImageChoice) -> moltis_sandbox::Result<super::Ready> {
        self.store.ensure(choice, false, &BuildSink::ignore()).await
    }

    async fn code(&self, choice: &ImageChoice) -> String {
        let code = self.ensure(choice).await.unwrap_err().code().to_owned();
        self.nothing_is_left().await;
        code
    }

    async fn nothing_is_left(&self) {
        assert!(self.store.0.work.settled(Duration::from_secs(5)).await);
        self.engine.with(|state| assert_eq!(state.containers, []));
        let folder = super::facts::folder(self.temp.path());
        let left = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| !name.to_string_lossy().ends_with(".json")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test]
async fn an_image_is_looked_into_once_and_nothing_of_it_runs() {
    let world = world();
    let facts = world.store.look(&base()).await.unwrap();
    let expected = ImageFacts {
        os_release: OsRelease { id: "debian".into(), name: "Debian 12".into(), ..OsRelease::default() },
        passwd: "root:x:0:0:root:/root:/bin/sh\n".into(),
        group: "root:x:0:\n".into(),
        has_shell: true,
        has_home: true,
        home_entries: vec![".profile".into(), "notes".into()],
        has_more_in_home: false,
        has_workspace: false,
        has_moltis: false,
        manager: Some(Manager::Apt),
    };
    assert_eq!(facts, expected);
    assert_eq!(world.store.look(&base()).await.unwrap(), expected);
    world.nothing_is_left().await;
    world.engine.with(|state| {
        let [spec] = state.made.as_slice() else { panic!("it was looked into more than once") };
        assert_eq!((spec.binds.len(), spec.volumes.len(), spec.auto_remove), (0, 0, false));
        let labels: Vec<_> =
            spec.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(labels, [(label::INSTANCE, "one"), (label::LOOK, "1")]);
    });
}

#[tokio::test]
async fn what_leads_nowhere_or_in_circles_is_not_there() {
    let many: Vec<&'static str> = (0..50).map(|n: usize| &*format!("{n:02}").leak()).collect();
    let files = [
        ("/bin/sh", Node::Link("/bin/a")),
        ("/bin/a", Node::Link("sh")),
        ("/etc/passwd", Node::Link("/etc/shadow\0x")),
        ("/etc/group", Node::Directory(&["x"])),
        ("/sbin/apk", Node::File(b"no program")),
        ("/home/sandbox", Node::Directory(many.leak())),
        ("/workspace", Node::Directory(&[])),
        ("/.moltis", Node::Link("gone")),
    ];
    let world = world_of(Fake::new(EngineKind::Podman, files.into()));
    let expected = ImageFacts {
        has_home: true,
        home_entries: (0..32).map(|n| format!("{n:02}")).collect(),
        has_more_in_home: true,
        has_workspace: true,
        has_moltis: true,
        ..ImageFacts::default()
    };
    assert_eq!(world.store.look(&base()).await.unwrap(), expected);
}

#[tokio::test]
async fn a_look_that_fails_or_is_given_up_leaves_no_container() {
    let mut files = debian();
    files.insert("/etc/group", Node::Raw(vec![1; 2048]));
    let world = world_of(Fake::new(EngineKind::Docker, files));
    assert_eq!(world.store.look(&base()).await.unwrap_err().code(), "engine-answer");
    world.nothing_is_left().await;

    let world = self::world();
    let image = base();
    let made = || world.engine.with(|state| state.made.len());
    let begun = async {
        while made() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = begun => {}
        _ = world.store.look(&image) => panic!("it was quicker than anything"),
    }
    world.nothing_is_left().await;
    assert_eq!(made(), 1);
}

#[tokio::test]
async fn what_a_killed_process_left_is_swept_and_what_is_not_ours_stays() {
    let world = world();
    let (now, _) = store::now();
    let container = |id: &str, instance: &str, look: bool, state, age: u64| Container {
        id: id.into(),
        labels: [(label::INSTANCE.to_owned(), instance.to_owned())]
            .into_iter()
            .chain(look.then(|| (label::LOOK.to_owned(), "1".to_owned())))
            .collect(),
        state,
        created_secs: now - age,
        ..Container::default()
    };
    use ContainerState::{Created, Running};
    world.engine.with(|state| {
        state.containers = vec![
            container("old", "one", true, Created, 4000),
            container("new", "one", true, Created, 5),
            container("others", "two", true, Created, 4000),
            container("sandbox", "one", false, Running, 4000),
            container("odd", "one", true, Running, 4000),
        ];
    });
    world.store.look(&base()).await.unwrap();
    let left = world.engine.with(|state| state.containers.iter().map(|c| c.id.clone()).collect::<Vec<_>>());
    assert_eq!(left, ["new", "others", "sandbox", "odd"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever an engine sends of an image, looking ends, and leaves nothing.
    #[test]
    fn any_archive_is_looked_at_to_an_end(raw in prop::collection::vec(any::<u8>(), 0..3000), zero in any::<bool>()) {
        let mut raw = raw;
        if zero && raw.len() > 600 {
            raw[512..600].fill(0);
        }
        let files = ["/etc/passwd", "/bin/sh", "/home/sandbox", "/etc/os-release"];
        let files = files.into_iter().map(|path| (path, Node::Raw(raw.clone()))).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = world_of(Fake::new(EngineKind::Docker, files));
            let _ = world.store.look(&base()).await;
            world.nothing_is_left().await;
        });
    }
}

#[tokio::test]
async fn what_is_not_there_is_built_and_what_is_there_is_used() {
    let world = world();
    let choice = on_base(BASE, &["@python", "jq"]);
    assert!(!world.store.is_ready(&choice).await.unwrap());
    let first = world.ensure(&choice).await.unwrap();
    assert!(first.new && first.reference.starts_with("localhost/moltis-sandbox:"));
    assert!(world.store.is_ready(&choice).await.unwrap());
    let second = world.ensure(&choice).await.unwrap();
    assert!(!second.new && second.image == first.image);
    world.nothing_is_left().await;
    // With nothing to install the base itself is it.
    let bare = world.ensure(&on_base(BASE, &[])).await.unwrap();
    assert_eq!((bare.reference.as_str(), bare.new, bare.image), (BASE, false, base()));
    // Anew if it is asked for, and then no step may come from the engine's cache.
    let third = world.store.ensure(&choice, true, &BuildSink::ignore()).await.unwrap();
    assert!(third.new && third.image.id != first.image.id);
    world.engine.with(|state| {
        assert_eq!(state.built.len(), 2);
        assert_ne!(state.built[0].dockerfile, state.built[1].dockerfile);
        assert!(state.built[0].dockerfile.starts_with(&format!("FROM {}\n", base().id)));
    });
}

#[tokio::test]
async fn a_tag_that_somebody_else_set_is_not_taken_for_ours() {
    let world = world();
    let choice = on_base(BASE, &["jq"]);
    let tag = world.ensure(&choice).await.unwrap().reference;
    world.engine.with(|state| state.images.iter_mut().for_each(|image| image.labels.clear()));
    assert!(!world.store.is_ready(&choice).await.unwrap());
    assert!(world.ensure(&choice).await.unwrap().new);
    assert!(world.engine.image(&tag).await.unwrap().unwrap().labels.contains_key(label::IMAGE));
}

#[tokio::test]
async fn those_who_want_the_same_image_share_one_build() {
    let world = world();
    *world.engine.outcome.lock().unwrap() = Outcome::Built(Duration::from_millis(150));
    let choice = on_base(BASE, &["jq"]);
    // Another process, as far as locks are concerned.
    let other =
        ImageStore::new(Arc::clone(&world.engine) as Arc<dyn Engine>, place(&world.temp), Work::default());
    let (sink, mut told) = BuildSink::channel();
    let late = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        other.ensure(&choice, false, &sink).await
    };
    let (a, b, c) = tokio::join!(world.ensure(&choice), world.ensure(&choice), late);
    let (a, b, c) = (a.unwrap(), b.unwrap(), c.unwrap());
    assert_eq!((a.new, b.new, c.new), (true, false, false));
    assert_eq!(world.engine.with(|state| state.built.len()), 1);
    let step = BuildProgress::Step("waiting for another build of this image".into());
    assert_eq!(told.try_recv().ok(), Some(step));
    world.nothing_is_left().await;
}

#[tokio::test]
async fn the_last_who_leaves_ends_the_build_and_others_do_not() {
    let world = world();
    *world.engine.outcome.lock().unwrap() = Outcome::Built(Duration::from_millis(200));
    let choice = on_base(BASE, &["jq"]);
    let building = || world.engine.building.load(Ordering::SeqCst);
    let gone = tokio::time::timeout(Duration::from_millis(60), world.ensure(&choice)).await;
    assert!(gone.is_err());
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!((building(), world.engine.with(|state| state.built.len())), (0, 0));
    world.nothing_is_left().await;

    let (gone, stays) = tokio::join!(
        tokio::time::timeout(Duration::from_millis(60), world.ensure(&choice)),
        world.ensure(&choice)
    );
    assert!(gone.is_err());
    stays.unwrap();
    assert_eq!(world.engine.with(|state| state.built.len()), 1);
}

#[tokio::test]
async fn a_build_that_failed_names_the_package_and_is_not_kept() {
    let world = world();
    let choice = on_base(BASE, &["jq", "nonsense"]);
    let log = &[
        "E: Unable to locate package nonsense",
        "moltis-build: package nonsense",
        "moltis-build: package rm",
    ];
    *world.engine.outcome.lock().unwrap() = Outcome::Failed(log);
    let (sink, mut told) = BuildSink::channel();
    let error = world.store.ensure(&choice, false, &sink).await.unwrap_err();
    assert_eq!(error.code(), "image-build-failed");
    assert!(error.diagnosis().message.contains("the package nonsense cannot"), "{error}");
    let mut lines = Vec::new();
    while let Ok(progress) = told.try_recv() {
        lines.push(progress);
    }
    assert!(lines.contains(&BuildProgress::Log(log[0].into())), "{lines:?}");
    assert!(!world.store.is_ready(&choice).await.unwrap());
    world.nothing_is_left().await;

    let full = EngineError::Full { engine: EngineKind::Docker, message: "no space left".into() };
    *world.engine.outcome.lock().unwrap() = Outcome::Error(full);
    assert_eq!(world.code(&choice).await, "engine-disk-full");
    *world.engine.outcome.lock().unwrap() = Outcome::Built(Duration::ZERO);
    assert!(world.ensure(&choice).await.unwrap().new);
}

#[tokio::test]
async fn a_base_without_a_package_manager_is_refused_by_name() {
    let files = [("/bin/sh", Node::Link("busybox")), ("/bin/busybox", Node::Program)];
    let world = world_of(Fake::new(EngineKind::Docker, files.into()));
    let error = world.ensure(&on_base(BASE, &["jq"])).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("refused", "image-no-package-manager"));
    assert!(error.to_string().contains(BASE) && error.diagnosis().fix.is_some(), "{error}");
    world.ensure(&on_base(BASE, &[])).await.unwrap();
    world.nothing_is_left().await;
}

#[tokio::test]
async fn finished_images_are_pulled_and_must_be_for_this_engine() {
    let world = world();
    let image = |id: char, os: &str, arch: &str| Image {
        id: format!("sha256:{}", id.to_string().repeat(64)),
        tags: vec![format!("example.org/{id}:1")],
        arch: arch.into(),
        os: os.into(),
        ..Image::default()
    };
    let images =
        [image('1', "linux", "x86_64"), image('2', "linux", "aarch64"), image('3', "windows", "x86_64")];
    world.engine.with(|state| {
        state.registry = images.iter().map(|image| (image.tags[0].clone(), image.clone())).collect();
    });
    world.store.check("example.org/2:1").await.unwrap();
    let ready = world.ensure(&finished("example.org/1:1")).await.unwrap();
    assert!(ready.new && ready.image == images[0]);
    assert_eq!(world.code(&finished("example.org/2:1")).await, "image-wrong-architecture");
    assert_eq!(world.code(&finished("example.org/3:1")).await, "image-wrong-architecture");
    // Now that it is there that can be told without fetching it.
    assert_eq!(world.store.check("example.org/2:1").await.unwrap_err().code(), "image-wrong-architecture");
    assert_eq!(world.code(&on_base("example.org/2:1", &["jq"])).await, "image-wrong-architecture");
    assert_eq!(world.code(&finished("example.org/none:1")).await, "image-unavailable");
    assert_eq!(world.code(&finished("--privileged")).await, "image-invalid");
    assert_eq!(world.code(&on_base(BASE, &["@pyhton"])).await, "package-invalid");
    assert_eq!(world.engine.with(|state| state.built.len()), 0);
}

#[tokio::test]
async fn only_ours_are_listed_removed_and_cleaned() {
    let world = world();
    let (used, wanted, needless) =
        (on_base(BASE, &["jq"]), on_base(BASE, &["git"]), on_base(BASE, &["tree", "@python"]));
    let mut tags = Vec::new();
    for choice in [&used, &wanted, &needless] {
        tags.push(world.ensure(choice).await.unwrap());
    }
    let others = Image {
        id: format!("sha256:{}", "e".repeat(64)),
        tags: vec!["localhost/moltis-sandbox:mine".into()],
        labels: [(label::IMAGE, "1"), (label::INSTANCE, "two")].map(|(a, b)| (a.into(), b.into())).into(),
        ..base()
    };
    let sandbox = Container {
        id: "c".into(),
        name: "n".into(),
        image: tags[0].image.id.clone(),
        labels: [("org.moltis.session".to_owned(), "0123456789abcdef".to_owned())].into(),
        ..Container::default()
    };
    world.engine.with(|state| {
        state.images.push(others.clone());
        state.containers.push(sandbox);
    });
    let listed = world.store.list().await.unwrap();
    let listed: Vec<_> = listed.iter().map(|i| (i.tag.clone(), i.in_use, i.packages.join(" "))).collect();
    let expected = [
        (tags[2].reference.clone(), false, "tree python3 python3-dev python3-pip python3-venv".to_owned()),
        (tags[1].reference.clone(), false, "git".to_owned()),
        (tags[0].reference.clone(), true, "jq".to_owned()),
    ];
    assert_eq!(listed, expected);

    let code = async |tag: &str| world.store.remove(tag).await.unwrap_err().code().to_owned();
    assert_eq!(code("localhost/moltis-sandbox:mine").await, "image-not-ours");
    assert_eq!(code(BASE).await, "image-not-ours");
    assert_eq!(code("nothing").await, "image-missing");
    assert_eq!(code("-f").await, "image-invalid");
    let error = world.store.remove(&tags[0].reference).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("refused", "image-in-use"));
    assert_eq!(error.diagnosis().cause.as_deref(), Some("sandbox 0123456789ab"));

    let cleaned = world.store.clean(std::slice::from_ref(&wanted)).await.unwrap();
    assert_eq!(cleaned.removed, [tags[2].reference.clone()]);
    assert_eq!(cleaned.kept, [tags[1].reference.clone(), tags[0].reference.clone()]);
    assert_eq!(cleaned.freed_bytes, 100);
    // The base is gone: what was built on it is not, as long as a session names it.
    world.engine.with(|state| {
        state.images.retain(|image| image.id != base().id);
        state.containers.clear();
    });
    let cleaned = world.store.clean(&[wanted]).await.unwrap();
    assert_eq!(
        (cleaned.removed, cleaned.kept),
        (vec![tags[0].reference.clone()], vec![tags[1].reference.clone()])
    );
    let bare = tags[1].reference.rsplit(':').next().unwrap();
    world.store.remove(bare).await.unwrap();
    world.engine.with(|state| assert_eq!(state.images, [others]));
}

#[tokio::test]
async fn what_an_engine_cannot_build_well_others_build_for_it() {
    let temp = tempfile::tempdir().unwrap();
    let (mut down, docker) =
        (Fake::new(EngineKind::Podman, debian()), Fake::new(EngineKind::Docker, debian()));
    down.down = true;
    let mut apple = Fake::new(EngineKind::Apple, debian());
    apple.world = Arc::clone(&docker.world);
    let (apple, down, docker) = (Arc::new(apple), Arc::new(down), Arc::new(docker));
    let builders = vec![down as Arc<dyn Engine>, Arc::clone(&docker) as Arc<dyn Engine>];
    let store = ImageStore::new(Arc::clone(&apple) as Arc<dyn Engine>, place(&temp), Work::default())
        .with_builders(builders);
    let choice = on_base(BASE, &["jq"]);
    let sink = BuildSink::ignore();
    let ensure = || store.ensure(&choice, false, &sink);
    let first = ensure().await.unwrap();
    assert!(first.new);
    let second = ensure().await.unwrap();
    assert!(!second.new && second.image == first.image);
    assert_eq!(docker.with(|state| state.built.len()), 1);
    apple.with(|state| {
        assert_eq!((state.built.len(), state.moved.as_slice()), (0, &[first.reference.clone()][..]))
    });
    let cleaned = store.clean(std::slice::from_ref(&choice)).await.unwrap();
    assert_eq!(cleaned.kept, std::slice::from_ref(&first.reference));

    // A package that fails there is no reason to try it again elsewhere.
    *docker.outcome.lock().unwrap() = Outcome::Failed(&["moltis-build: package x"]);
    let failed = store.ensure(&on_base(BASE, &["x"]), false, &BuildSink::ignore()).await.unwrap_err();
    assert_eq!(failed.code(), "image-build-failed");
    assert_eq!(apple.with(|state| state.built.len()), 0);

    // With none of them it builds itself, on the name.
    let alone = ImageStore::new(Arc::clone(&apple) as Arc<dyn Engine>, place(&temp), Work::default());
    let own = alone.ensure(&on_base(BASE, &["git"]), false, &BuildSink::ignore()).await.unwrap();
    assert!(own.new);
    apple.with(|state| assert!(state.built[0].dockerfile.starts_with("FROM localhost/base:1\n")));
}
