//! WASI modules: in pipelines, with files, and their five ends.

use std::time::Duration;

use moltis_sandbox::{Backend, Ending};

use crate::common::{World, compiled, names, out, run, sh, shell, with_input, write};

#[tokio::test(flavor = "multi_thread")]
async fn they_run_by_name_and_by_path_in_pipelines() {
    let mut world = World::new();
    world.module("hello", "hello");
    let cat = world.module("copy", "copy");
    world.module("tell", "tell");
    let sandbox = world.open().await;
    assert_eq!(out(&sandbox, "hello").await, "hello\n");
    assert_eq!(out(&sandbox, "hello | copy | tr a-z A-Z").await, "HELLO\n");
    assert_eq!(out(&sandbox, "seq 1 20000 | copy | copy | wc -l").await.trim(), "20000");
    assert_eq!(
        out(&sandbox, "hello >f; copy <f; x=$(hello); echo $x; for i in 1 2; do hello; done").await,
        "hello\nhello\nhello\nhello\n"
    );
    assert_eq!(out(&sandbox, "while :; do echo y; done | copy | head -2").await, "y\ny\n");
    // By path, wherever it lies inside.
    write(&sandbox, "/home/sandbox/bin/mine.wasm", &std::fs::read(cat).unwrap()).await.unwrap();
    for line in [
        "echo x | bin/mine.wasm",
        "cd bin; echo x | ./mine.wasm",
        "echo x | ~/bin/mine.wasm",
        "echo x | $HOME/bin/mine.wasm",
        "p=bin/mine.wasm; echo x | $p",
        "echo x | /home/sandbox/bin/mine.wasm",
        "cd bin; for f in *.wasm; do echo x | ./$f; done",
        "ln -s bin/mine.wasm l.wasm; echo x | ./l.wasm",
        "printf '#!/bin/sh\\nbin/mine.wasm\\n' >s; chmod +x s; echo x | ./s",
        "echo x | bash -c bin/mine.wasm",
        "echo x | command bin/mine.wasm",
    ] {
        assert_eq!(out(&sandbox, line).await, "x\n", "{line}");
    }
    let mut request = shell("A=1 B='x y' tell 'a b' '' c");
    request.env = vec![("C".into(), "of the request".into())];
    let ran = run(&sandbox, request).await;
    assert_eq!(ran.text(), "tell\0a b\0\0c\0");
    let told = ran.errors();
    for variable in ["A=1\0", "B=x y\0", "C=of the request\0", "HOME=/home/sandbox\0"] {
        assert!(told.contains(variable), "{told:?}");
    }
    assert!(!told.contains("CARGO") && !told.contains(world.temp.path().to_str().unwrap()), "{told:?}");
    let ran = sh(&sandbox, "./nothing.wasm").await;
    assert_eq!(ran.code(), 127, "{ran:?}");
    out(&sandbox, "echo no >no.wasm").await;
    assert_eq!(sh(&sandbox, "./no.wasm").await.code(), 126);
    let ran = with_input(&sandbox, shell("copy; exit 5"), &[b"by\0te", b"s\xff"]).await;
    assert_eq!((ran.stdout.as_slice(), ran.code()), (&b"by\0tes\xff"[..], 5));
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_end_has_its_code() {
    let mut world = World::new();
    world.fuel = 50_000_000;
    world.module("seven", "seven");
    world.module("spin", "spin");
    world.module("trap", "trap");
    world.module("deep", "deep");
    world.module("grow", "grow");
    world.module("tables", "tables");
    world.module("wild", "wild");
    let mut spec = world.spec("s");
    spec.limits.memory = Some(moltis_sandbox::Setting::built_in(64 << 20));
    let sandbox = moltis_sandbox::Backend::open(&world.backend(), &spec).await.unwrap();
    assert_eq!(sh(&sandbox, "seven").await.code(), 7);
    for (name, code, word, out_of_memory) in [
        ("spin", 137, "wasm-fuel-exhausted", false),
        ("trap", 134, "wasm-trap", false),
        ("deep", 134, "wasm-trap", false),
        ("wild", 134, "wasm-trap", false),
        ("grow", 137, "wasm-memory-exhausted", true),
        ("tables", 137, "wasm-fuel-exhausted", false),
    ] {
        let ran = sh(&sandbox, name).await;
        assert_eq!((ran.code(), ran.outcome.out_of_memory), (code, out_of_memory), "{name}: {ran:?}");
        assert!(ran.errors().contains(word), "{name}: {ran:?}");
        assert!(ran.outcome.notes.iter().any(|note| note.starts_with(word)), "{name}: {ran:?}");
    }
    // The shell goes on, and its memory is whole again.
    assert_eq!(sh(&sandbox, "grow; echo $?; grow || echo again").await.text(), "137\nagain\n");
    sandbox.close().await.unwrap();
    // With fuel enough the deadline is the command's.
    world.fuel = u64::MAX / 4;
    let sandbox = world.open().await;
    let mut request = shell("echo so far; spin");
    request.timeout = Some(Duration::from_millis(400));
    let ran = run(&sandbox, request).await;
    assert_eq!(
        (ran.outcome.ending, ran.outcome.exit_code(), ran.text().as_str()),
        (Ending::TimedOut, 124, "so far\n")
    );
    assert!(ran.took < Duration::from_secs(3), "{:?}", ran.took);
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_compiled_is_kept_by_its_content_in_a_folder_of_our_own() {
    use std::os::unix::fs::MetadataExt;

    let mut world = World::new();
    let hello = world.module("hello", "hello");
    world.commands.insert("again".to_owned(), hello.clone());
    let backend = world.backend();
    let prepared = backend.prepare(&moltis_sandbox::BuildSink::ignore()).await.unwrap();
    let prepared: Vec<_> = prepared.iter().map(|one| (one.name.as_str(), one.new)).collect();
    assert_eq!(prepared, [("again", true), ("hello", false)]);
    let cache = world.data().join("cache/wasm");
    assert_eq!(std::fs::metadata(&cache).unwrap().mode() & 0o777, 0o700);
    let modules = || names(&cache).into_iter().filter(|name| name.ends_with(".cwasm")).collect::<Vec<_>>();
    let kept = modules();
    assert_eq!(kept.len(), 1);
    let sandbox = world.open().await;
    assert_eq!(out(&sandbox, "hello; again").await, "hello\nhello\n");
    write(&sandbox, "/tmp/copy.wasm", &std::fs::read(&hello).unwrap()).await.unwrap();
    assert_eq!(out(&sandbox, "/tmp/copy.wasm").await, "hello\n");
    assert_eq!(modules(), kept, "the same content is compiled once");
    // Another content at the same place is another module.
    std::fs::write(&hello, compiled("nine")).unwrap();
    assert_eq!(sh(&sandbox, "hello").await.code(), 9);
    assert_eq!(modules().len(), 2);
    // What somebody damaged is compiled anew.
    for name in modules() {
        std::fs::write(cache.join(name), b"junk").unwrap();
    }
    let fresh = world.open_as("other").await;
    assert_eq!(sh(&fresh, "hello").await.code(), 9);
    fresh.close().await.unwrap();
    sandbox.close().await.unwrap();
    // What a sandbox brings lies apart.
    let sandbox = world.open().await;
    write(&sandbox, "/tmp/own.wasm", &compiled("seven")).await.unwrap();
    assert_eq!(sh(&sandbox, "/tmp/own.wasm").await.code(), 7);
    sandbox.close().await.unwrap();
    let own = names(&cache.join("inside")).into_iter().filter(|name| name.ends_with(".cwasm")).count();
    assert_eq!((own, modules().len()), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_module_are_the_sandboxs() {
    let mut world = World::new();
    world.module("look", "look");
    std::fs::create_dir_all(world.data()).unwrap();
    std::fs::write(world.data().join("secret"), "s").unwrap();
    let sandbox = world.open().await;
    assert_eq!(out(&sandbox, "mkdir d; cd d; look; cat out").await, "/home/sandbox\n/tmp\n.\nout");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_fills_its_folder_is_ended_and_one_that_finds_it_full_is_not() {
    let mut world = World::new();
    world.fuel = 1 << 40;
    world.module("fill", "fill");
    world.module("hello", "hello");
    let sandbox = world.open().await;
    let ran = sh(&sandbox, "cd /tmp; fill").await;
    assert_eq!(ran.code(), 137, "{ran:?}");
    let word = "wasm-quota-exhausted: fill: it wrote more than /tmp may hold (256 MiB)";
    assert_eq!(ran.outcome.notes, [word]);
    assert!(!ran.outcome.out_of_memory && ran.errors().contains("wasm-quota-exhausted"), "{ran:?}");
    // Nothing more goes there, and what does not write goes on.
    let ran = sh(&sandbox, "echo more >/tmp/more").await;
    assert_ne!(ran.code(), 0, "{ran:?}");
    assert_eq!(
        out(&sandbox, "cd /tmp; sleep 1 | hello; rm fill; echo more >more; cat more").await,
        "hello\nmore\n"
    );
    sandbox.close().await.unwrap();
}
