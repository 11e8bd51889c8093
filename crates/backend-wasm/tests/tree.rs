//! Files: whose they are, what shows, and that no name leads out.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use moltis_sandbox::{Backend, Mount, MountMode, Origin, Setting};

use crate::common::{World, names, out, path, read, sh, write};

#[tokio::test(flavor = "multi_thread")]
async fn links_lead_anywhere_inside_and_nowhere_else() {
    let world = World::new();
    let secret = world.temp.path().join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    let secret = secret.to_str().unwrap();
    let sandbox = world.open().await;
    out(&sandbox, "mkdir -p /tmp/d d; echo in >/tmp/d/f; ln -s /tmp/d abs; ln -s ../../../../../../tmp/d/f up; ln -s loop loop").await;
    assert_eq!(out(&sandbox, "cat abs/f; cat up; cat d/../abs/./f").await, "in\nin\nin\n");
    assert_eq!(read(&sandbox, "/home/sandbox/abs/f").await.unwrap(), b"in\n");
    assert_eq!(read(&sandbox, "/home/sandbox/up").await.unwrap(), b"in\n");
    assert_ne!(sh(&sandbox, "cat loop").await.code(), 0);
    let line = format!(
        "ln -s {secret} out; ln -s / top; ln -s ../../../../../../../.. far; ln -s /proc/self/root self"
    );
    out(&sandbox, &line).await;
    for at in ["out", &format!("top{secret}"), &format!("far{secret}"), &format!("self{secret}"), secret] {
        let ran = sh(&sandbox, &format!("cat {at}; cp {at} copy; ls {at}; wc <{at}")).await;
        assert!(!ran.text().contains("of the host"), "{at}: {ran:?}");
        let whole = if at.starts_with('/') { at.to_owned() } else { format!("/home/sandbox/{at}") };
        assert!(read(&sandbox, &whole).await.is_err(), "{at}");
        // What it names inside may be made, but nothing outside changes.
        let _ = sh(&sandbox, &format!("echo changed >{at}; rm -f {at}; mkdir -p {at}/x")).await;
        let _ = write(&sandbox, &whole, b"changed").await;
    }
    assert_eq!(std::fs::read_to_string(secret).unwrap(), "of the host");
    assert_eq!(names(world.temp.path()), ["data", "secret"]);
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_comes_and_goes_never_leads_out() {
    let world = World::new();
    let outside = world.temp.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("f"), "of the host").unwrap();
    let sandbox = world.open().await;
    let home = world.data().join("sandbox/wasm").join(sandbox.id().as_str()).join("home");
    out(&sandbox, "mkdir d; echo inside >d/f").await;
    // Somebody beside it, as a module or another backend's sandbox may be, swaps the folder for a link all the time.
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, racing, aim) = (Arc::clone(&stop), home.clone(), outside.clone());
    let racer = std::thread::spawn(move || {
        symlink(&aim, racing.join("link")).unwrap();
        while !stopped.load(Ordering::Relaxed) {
            for (from, to) in [("d", "aside"), ("link", "d"), ("d", "link"), ("aside", "d")] {
                let _ = std::fs::rename(racing.join(from), racing.join(to));
            }
        }
    });
    for _ in 0..60 {
        let ran = sh(
            &sandbox,
            "cat d/f; echo changed >d/f; cp d/f c; chmod 777 d/f; touch d/new; rm -f d/new; ls d",
        )
        .await;
        assert!(!ran.text().contains("of the host"), "{ran:?}");
        if let Ok(content) = read(&sandbox, "/home/sandbox/d/f").await {
            assert!(content != b"of the host");
        }
        let _ = write(&sandbox, "/home/sandbox/d/g", b"x").await;
        let _ = sandbox.files().remove(&path("/home/sandbox/d/f"), false).await;
        let _ = write(&sandbox, "/home/sandbox/d/f", b"inside").await;
    }
    stop.store(true, Ordering::Relaxed);
    racer.join().unwrap();
    assert_eq!(std::fs::read_to_string(outside.join("f")).unwrap(), "of the host");
    assert_eq!(names(&outside), ["f"]);
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mounts_show_where_they_are_named_and_keep_their_mode() {
    let world = World::new();
    let folder = |name: &str| {
        let folder = world.temp.path().join(name);
        std::fs::create_dir_all(folder.join(".git/hooks")).unwrap();
        std::fs::write(folder.join("f"), name).unwrap();
        folder
    };
    let (files, work, more) = (folder("files"), folder("work"), folder("more"));
    let mount = |source: &std::path::Path, target: &str, mode| Mount {
        source: source.to_owned(),
        target: target.into(),
        mode,
    };
    let mut spec = world.spec("s");
    spec.managed_files = Some(mount(&files, "/home/sandbox/files", MountMode::Ro));
    spec.workspace = Some(Setting::new(mount(&work, "/workspace", MountMode::Rw), Origin::Flag));
    spec.workspace_protect = vec![".git/hooks".into()];
    spec.mounts = vec![Setting::new(mount(&more, "/srv/more", MountMode::Ro), Origin::File)];
    let sandbox = world.backend().open(&spec).await.unwrap();
    assert_eq!(
        out(&sandbox, "pwd; cat f ~/files/f /srv/more/f; echo $MOLTIS_FILES_DIR").await,
        "/workspace\nworkfilesmore/home/sandbox/files\n"
    );
    assert_eq!(
        out(&sandbox, "ls ~; ls -d /srv /srv/more /workspace").await,
        "files\n/srv\n/srv/more\n/workspace\n"
    );
    for line in [
        "echo x >~/files/f",
        "rm ~/files/f",
        "mv ~/files/f /tmp",
        "mkdir /srv/more/d",
        "chmod 777 ~/files/f",
        "echo x >.git/hooks/pre",
        "mv .git g",
        "mv ~/files /tmp/x",
        "ln -s x ~/files/l",
        "touch /srv/x",
    ] {
        assert_ne!(sh(&sandbox, line).await.code(), 0, "{line}");
    }
    sh(&sandbox, "rm -rf .git .git/hooks ~/files /srv/more").await;
    out(&sandbox, "echo after >f; echo x >.git/other; mkdir d; mv f g; cp g ~/g").await;
    assert_eq!(std::fs::read_to_string(work.join("g")).unwrap(), "after\n");
    assert_eq!(names(&work.join(".git")), ["hooks", "other"]);
    assert_eq!(names(&work.join(".git/hooks")), [] as [&str; 0]);
    assert_eq!(names(&files), [".git", "f"]);
    assert_eq!(std::fs::read_to_string(files.join("f")).unwrap(), "files");
    for at in ["/home/sandbox/files/f", "/srv/more/f", "/workspace/.git/hooks/pre"] {
        assert_eq!(write(&sandbox, at, b"x").await.unwrap_err().kind(), "refused", "{at}");
    }
    // What was put in the place of a source is not shown.
    std::fs::rename(&more, world.temp.path().join("gone")).unwrap();
    symlink("/etc", &more).unwrap();
    let error = sandbox.exec(crate::common::shell("ls /srv/more")).await.map(drop).unwrap_err();
    assert_eq!(error.code(), "mount-changed");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn temporary_files_are_bounded() {
    let world = World::new();
    let sandbox = world.open().await;
    write(&sandbox, "/home/sandbox/big", &vec![7; 16 << 20]).await.unwrap();
    let ran =
        sh(&sandbox, "i=0; while cp ~/big /tmp/$i; do i=$((i+1)); [ $i -lt 40 ] || break; done; echo $i")
            .await;
    let made: u32 = ran.text().trim().parse().unwrap();
    assert!((10..=16).contains(&made), "{made}: {}", ran.errors());
    assert_eq!(out(&sandbox, "rm /tmp/*; echo x >/tmp/f; cat /tmp/f").await, "x\n");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_sources_are_refused() {
    let world = World::new();
    std::fs::create_dir_all(world.data()).unwrap();
    for source in ["/", "/proc", "/dev", world.data().to_str().unwrap(), world.temp.path().to_str().unwrap()]
    {
        let mut spec = world.spec("s");
        let mount = Mount { source: source.into(), target: "/workspace".into(), mode: MountMode::Ro };
        spec.workspace = Some(Setting::new(mount, Origin::Flag));
        let backend = world.backend();
        assert_eq!(backend.open(&spec).await.map(drop).unwrap_err().kind(), "refused", "{source}");
        assert_eq!(backend.check(&spec).await.unwrap_err().kind(), "refused", "{source}");
    }
    assert_eq!(names(&world.data().join("sandbox/wasm")), [] as [&str; 0]);
}
