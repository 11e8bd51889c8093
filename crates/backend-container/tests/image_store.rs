//! Images of real engines: looked into, built, shared, given up, refused. Every image of these tests carries an instance
//! of its own, and is removed by that.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_backend_container::engine::{Engine, EngineKind, Environment, connect};
use moltis_backend_container::image::{ImageStore, Manager, Place, Work};
use moltis_sandbox::{BuildProgress, BuildSink, ImageChoice, Images, Setting};
use moltis_testkit::need;

use super::support::{self, unique};

const DEBIAN: &str = "localhost/sandbox-base:debian";
const BUSYBOX: &str = "localhost/sandbox-base:busybox";

/// The label by which what these tests build is found again.
const INSTANCE: &str = "org.moltis.instance";

/// An engine with images of one instance, which go when this is dropped.
struct World {
    name: &'static str,
    engine: Arc<dyn Engine>,
    place: Place,
    work: Work,
    _temp: tempfile::TempDir,
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

fn in_a_thread<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work)
    });
    thread.join().unwrap()
}

impl World {
    fn new(name: &'static str, engine: Arc<dyn Engine>) -> Self {
        let temp = tempfile::tempdir().unwrap();
        // No two tests build the same tag.
        let instance = unique("image");
        let prefix = instance.replace("moltis-test-image", "mti");
        let place = Place { data_dir: temp.path().to_owned(), instance, prefix };
        Self { name, engine, place, work: Work::default(), _temp: temp }
    }

    fn store(&self) -> ImageStore {
        ImageStore::new(Arc::clone(&self.engine), self.place.clone(), self.work.clone())
    }

    async fn nothing_is_left(&self, images: usize) {
        assert!(self.work.settled(Duration::from_secs(30)).await, "{}", self.name);
        let ours = [(INSTANCE, self.place.instance.as_str())];
        assert_eq!(self.engine.containers(&ours).await.unwrap(), [], "{}", self.name);
        assert_eq!(self.engine.images(&ours).await.unwrap().len(), images, "{}", self.name);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let (engine, instance) = (Arc::clone(&self.engine), self.place.instance.clone());
        in_a_thread(async move {
            let ours = [(INSTANCE, instance.as_str())];
            for container in engine.containers(&ours).await.unwrap_or_default() {
                let _ = engine.remove(&container.id).await;
            }
            for image in engine.images(&ours).await.unwrap_or_default() {
                for name in image.tags.iter().chain([&image.id]) {
                    let _ = engine.remove_image(name).await;
                }
            }
        });
    }
}

/// A world on each engine that answers here and has these images.
async fn worlds(test: &str, images: &[&str]) -> Vec<World> {
    let mut worlds = Vec::new();
    for tested in support::engines(test).await {
        let mut missing = None;
        for image in images {
            if tested.engine.image(image).await.unwrap().is_none() {
                missing = Some(format!("there is no {image}"));
            }
        }
        match missing {
            Some(missing) => need::skip(&format!("{test} ({})", tested.name), &missing),
            None => worlds.push(World::new(tested.name, tested.engine)),
        }
    }
    worlds
}

#[tokio::test]
async fn images_are_looked_into() {
    for world in worlds("images_are_looked_into", &[DEBIAN, BUSYBOX]).await {
        let (name, store) = (world.name, world.store());
        let image = world.engine.image(DEBIAN).await.unwrap().unwrap();
        let begin = Instant::now();
        let facts = store.look(&image).await.unwrap();
        eprintln!("{name}: looking into {DEBIAN} took {:?}", begin.elapsed());
        assert_eq!(facts.os_release.id, "debian", "{name}");
        assert!(facts.passwd.starts_with("root:x:0:0:root:/root:/bin/bash\n"), "{name}: {facts:?}");
        assert!(facts.group.starts_with("root:x:0:\n"), "{name}");
        assert_eq!((facts.has_shell, facts.manager), (true, Some(Manager::Apt)), "{name}");
        assert!(!facts.has_home && !facts.has_workspace && !facts.has_moltis, "{name}: {facts:?}");
        let image = world.engine.image(BUSYBOX).await.unwrap().unwrap();
        let facts = store.look(&image).await.unwrap();
        assert_eq!((facts.has_shell, facts.manager, facts.has_workspace), (true, None, true), "{name}");
        world.nothing_is_left(0).await;
    }
}

#[tokio::test]
async fn packages_are_installed_once_and_found_again() {
    for world in worlds("packages_are_installed_once_and_found_again", &[DEBIAN]).await {
        let (name, store) = (world.name, world.store());
        let choice = on_base(DEBIAN, &["tree"]);
        // Two processes, as far as locks are concerned, and two callers in one of them.
        let other = ImageStore::new(Arc::clone(&world.engine), world.place.clone(), Work::default());
        let (sink, mut told) = BuildSink::channel();
        let seen = tokio::spawn(async move {
            let mut all = Vec::new();
            while let Some(progress) = told.recv().await {
                all.push(progress);
            }
            all
        });
        let begin = Instant::now();
        let ignore = BuildSink::ignore();
        let (a, b, c) = tokio::join!(
            store.ensure(&choice, false, &sink),
            store.ensure(&choice, false, &ignore),
            other.ensure(&choice, false, &ignore),
        );
        drop(sink);
        let (a, b, c) = (a.unwrap(), b.unwrap(), c.unwrap());
        eprintln!("{name}: building took {:?}", begin.elapsed());
        assert_eq!([a.new, b.new, c.new].iter().filter(|new| **new).count(), 1, "{name}");
        assert_eq!((&a.image, &a.image), (&b.image, &c.image), "{name}");
        let seen = seen.await.unwrap();
        let is_step = |part: &str| {
            seen.iter().any(|told| matches!(told, BuildProgress::Step(step) if step.contains(part)))
        };
        assert!(
            is_step("installing 1 package by apt-get") || is_step("waiting for another"),
            "{name}: {seen:?}"
        );
        let begin = Instant::now();
        assert!(store.is_ready(&choice).await.unwrap());
        eprintln!("{name}: finding it took {:?}", begin.elapsed());
        world.nothing_is_left(1).await;

        let facts = store.look(&a.image).await.unwrap();
        assert_eq!(facts.manager, Some(Manager::Apt));
        let spec = moltis_backend_container::engine::ContainerSpec {
            name: unique("tree"),
            image: a.image.id.clone(),
            argv: support::words(&["/usr/bin/tree", "--version"]),
            directory: "/".to_owned(),
            labels: [(INSTANCE.to_owned(), world.place.instance.clone())].into(),
            keep_logs: true,
            ..Default::default()
        };
        let id = world.engine.create(&spec).await.unwrap();
        world.engine.start(&id).await.unwrap();
        world.engine.wait(&id).await.unwrap();
        let printed = String::from_utf8(world.engine.logs(&id, 1000).await.unwrap()).unwrap();
        assert!(printed.contains("tree v"), "{name}: {printed}");
        let listed = store.list().await.unwrap();
        assert_eq!(listed.len(), 1, "{name}");
        assert_eq!((listed[0].tag.as_str(), listed[0].in_use), (a.reference.as_str(), true), "{name}");
        assert_eq!(store.remove(&a.reference).await.unwrap_err().code(), "image-in-use", "{name}");
        let kept = store.clean(&[]).await.unwrap().kept;
        assert_eq!(kept, std::slice::from_ref(&a.reference), "{name}");
        world.engine.remove(&id).await.unwrap();
        assert_eq!(store.clean(std::slice::from_ref(&choice)).await.unwrap().kept.len(), 1, "{name}");
        assert_eq!(store.remove(DEBIAN).await.unwrap_err().code(), "image-not-ours", "{name}");
        store.remove(&a.reference).await.unwrap();
        assert!(!store.is_ready(&choice).await.unwrap(), "{name}");
        world.nothing_is_left(0).await;
    }
}

#[tokio::test]
async fn the_package_that_does_not_exist_is_named() {
    for world in worlds("the_package_that_does_not_exist_is_named", &[DEBIAN]).await {
        let (name, store) = (world.name, world.store());
        let choice = on_base(DEBIAN, &["tree", "moltis-no-such-package", "file"]);
        let error = store.ensure(&choice, false, &BuildSink::ignore()).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), ("unavailable", "image-build-failed"), "{name}: {error}");
        let message = &error.diagnosis().message;
        assert!(
            message.ends_with("the package moltis-no-such-package cannot be installed"),
            "{name}: {error}"
        );
        // Podman's program tells the step, and not what it printed.
        let program = name == "podman-cli" || world.engine.endpoint() == "podman";
        let told = if program { "while running" } else { "Unable to locate" };
        assert!(error.to_string().contains(told), "{name}: {error}");
        assert!(!store.is_ready(&choice).await.unwrap(), "{name}");
        world.nothing_is_left(0).await;
    }
}

#[tokio::test]
async fn a_base_with_nothing_to_install_by_is_refused_by_name() {
    for world in worlds("a_base_with_nothing_to_install_by_is_refused_by_name", &[BUSYBOX]).await {
        let store = world.store();
        let error = store.ensure(&on_base(BUSYBOX, &["jq"]), false, &BuildSink::ignore()).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), ("refused", "image-no-package-manager"), "{error}");
        let bare = store.ensure(&on_base(BUSYBOX, &[]), false, &BuildSink::ignore()).await.unwrap();
        assert_eq!((bare.reference.as_str(), bare.new), (BUSYBOX, false));
        let gone = finished("localhost/moltis-no-such-image:1");
        let error = store.ensure(&gone, false, &BuildSink::ignore()).await.unwrap_err();
        assert_eq!(error.code(), "image-unavailable", "{}: {error}", world.name);
        world.nothing_is_left(0).await;
    }
}

/// Names of all images and containers of an engine, also those that it does not list by itself.
fn everything(name: &str) -> Vec<String> {
    let lists: &[&[&str]] = match name {
        "docker" => &[&["docker", "ps", "-aq", "--no-trunc"]],
        _ => &[&["podman", "ps", "-aq", "--no-trunc", "--external"]],
    };
    let mut all = Vec::new();
    for list in lists {
        let listed = Command::new(list[0]).args(&list[1..]).stderr(Stdio::null()).output().unwrap();
        all.extend(String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned));
    }
    all
}

#[tokio::test]
async fn a_build_that_is_given_up_leaves_nothing() {
    for world in worlds("a_build_that_is_given_up_leaves_nothing", &[DEBIAN]).await {
        let (name, store) = (world.name, world.store());
        let (sink, mut told) = BuildSink::channel();
        let choice = on_base(DEBIAN, &["build-essential", "tree"]);
        let building = store.ensure(&choice, false, &sink);
        let installs = async {
            while let Some(progress) = told.recv().await {
                // It is in the middle of it.
                if matches!(&progress, BuildProgress::Log(line) if line.starts_with("Get:")) {
                    return;
                }
            }
        };
        tokio::select! {
            ended = building => panic!("{name}: {ended:?}"),
            () = installs => {}
        }
        let begin = Instant::now();
        // Others build on these engines meanwhile: what is waited for is that nothing of this build runs.
        let script = |line: &[u8]| {
            let has = |what: &[u8]| line.windows(what.len()).any(|part| part == what);
            has(b"moltis-build:") && has(b"build-essential\0tree")
        };
        while processes(script) {
            assert!(begin.elapsed() < Duration::from_secs(120), "{name}: the build goes on");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        eprintln!("{name}: the build ended {:?} after it was given up", begin.elapsed());
        assert!(!store.is_ready(&choice).await.unwrap(), "{name}");
        // Containers of a build carry no label of ours; each that is there now belongs to somebody who lives.
        while left_by_builds(name) {
            assert!(begin.elapsed() < Duration::from_secs(150), "{name}: {:?}", everything(name));
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        world.nothing_is_left(0).await;
    }
}

fn processes(is: impl Fn(&[u8]) -> bool) -> bool {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok()).any(|line| is(&line))
}

/// Whether there is a container of a build with our packages.
fn left_by_builds(name: &str) -> bool {
    let program = if name == "docker" { "docker" } else { "podman" };
    everything(name).iter().any(|id| {
        let shown = Command::new(program).args(["inspect", id]).stderr(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).contains("\"build-essential\",")
    })
}

#[tokio::test]
async fn an_image_for_another_architecture_is_refused() {
    for world in worlds("an_image_for_another_architecture_is_refused", &[BUSYBOX]).await {
        let (name, store) = (world.name, world.store());
        let tag = format!("localhost/{}:arm64", world.place.prefix);
        let archive = foreign(&tag, &world.place.instance);
        world.engine.load(Box::new(std::io::Cursor::new(archive))).await.unwrap();
        let error = store.ensure(&finished(&tag), false, &BuildSink::ignore()).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), ("refused", "image-wrong-architecture"), "{name}: {error}");
        assert_eq!(store.check(&tag).await.unwrap_err().code(), "image-wrong-architecture", "{name}");
        store.check(BUSYBOX).await.unwrap();
        world.nothing_is_left(1).await;
    }
}

/// An archive as `docker save` writes it, of an image for another architecture.
fn foreign(tag: &str, instance: &str) -> Vec<u8> {
    use moltis_agent_protocol::tar::{Entry, Kind, padding};
    use sha2::{Digest, Sha256};

    let pack = |files: &[(&str, &[u8])]| {
        let mut archive = Vec::new();
        for (name, content) in files {
            let (name, size) = (name.as_bytes(), content.len() as u64);
            let entry =
                Entry { kind: Kind::File, name, target: b"", mode: 0o644, uid: 0, gid: 0, size, mtime: 0 };
            entry.write(&mut archive);
            archive.extend_from_slice(content);
            archive.resize(archive.len() + padding(size), 0);
        }
        archive.resize(archive.len() + 1024, 0);
        archive
    };
    let hash =
        |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let layer = pack(&[("hello", b"hello")]);
    let config = serde_json::json!({
        "architecture": "arm64",
        "os": "linux",
        "created": "2024-01-01T00:00:00Z",
        "config": { "Labels": { INSTANCE: instance }, "Cmd": ["/hello"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hash(&layer))] },
        "history": [{ "created": "2024-01-01T00:00:00Z", "created_by": "a test" }],
    })
    .to_string();
    let name = format!("{}.json", hash(config.as_bytes()));
    let manifest =
        serde_json::json!([{ "Config": name, "RepoTags": [tag], "Layers": ["layer.tar"] }]).to_string();
    pack(&[(&name, config.as_bytes()), ("layer.tar", &layer), ("manifest.json", manifest.as_bytes())])
}

/// A Docker daemon of this test's own.
struct Daemon {
    child: std::process::Child,
    mounted: tempfile::TempDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::TERM,
        );
        let _ = self.child.wait();
        let data = self.mounted.path().join("data");
        // What the daemon mounted below it goes with it.
        let _ = rustix::mount::unmount(&data, rustix::mount::UnmountFlags::DETACH);
    }
}

fn daemon(megabytes: u32) -> Result<(Daemon, Environment), String> {
    let dockerd = need::program("dockerd").ok_or("there is no dockerd")?;
    // With a network namespace of its own it leaves the bridge of the machine's daemon alone.
    let unshare = need::program("unshare").ok_or("there is no unshare")?;
    let mounted = tempfile::tempdir().unwrap();
    let at = |name: &str| mounted.path().join(name);
    std::fs::create_dir(at("data")).unwrap();
    let options = std::ffi::CString::new(format!("size={megabytes}m")).unwrap();
    rustix::mount::mount(
        "tmpfs",
        at("data"),
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        options.as_c_str(),
    )
    .map_err(|errno| errno.to_string())?;
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let child = Command::new(unshare)
        .arg("--net")
        .arg(dockerd)
        .args([
            format!("-Hunix://{}", at("docker.sock").display()),
            flag("data-root", &at("data")),
            flag("exec-root", &at("exec")),
            flag("pidfile", &at("pid")),
        ])
        .args([
            "--storage-driver=vfs",
            "--iptables=false",
            "--bridge=none",
            "--exec-opt=native.cgroupdriver=cgroupfs",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let host = format!("unix://{}", at("docker.sock").display());
    let daemon = Daemon { child, mounted };
    Ok((daemon, support::with(&[("DOCKER_HOST", &host)])))
}

#[tokio::test]
async fn a_full_disk_is_called_one() {
    const TEST: &str = "a_full_disk_is_called_one";
    if !need::as_root(TEST, "a second dockerd is started") {
        return;
    }
    let (_daemon, environment) = match daemon(520) {
        Ok(made) => made,
        Err(why) => return need::skip(TEST, &why),
    };
    let begin = Instant::now();
    let engine = loop {
        match connect(EngineKind::Docker, &environment).await {
            Ok(engine) if engine.info().await.is_ok() => break engine,
            _ if begin.elapsed() > Duration::from_secs(30) => {
                return need::skip(TEST, "a second dockerd does not start");
            }
            _ => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    };
    let Some(from) = worlds(TEST, &[DEBIAN]).await.into_iter().find(|world| world.name == "docker") else {
        return;
    };
    let world = World::new("docker", engine);
    world.engine.load(from.engine.save(DEBIAN).await.unwrap()).await.unwrap();
    // A copy of the base fits no more.
    let error =
        world.store().ensure(&on_base(DEBIAN, &["tree"]), false, &BuildSink::ignore()).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("unavailable", "engine-disk-full"), "{error}");
    assert!(error.diagnosis().fix.is_some());
    drop(world);
}
