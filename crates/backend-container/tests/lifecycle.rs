//! Sandboxes from their opening to their end: found again, outliving and not outliving who opened them, and nothing left.

use std::time::{Duration, Instant};

use moltis_backend_container::engine::{ContainerSpec, ContainerState};
use moltis_sandbox::{Backend, Command, ExecEvent, Lifetime, SandboxId, SandboxSpec, SessionKey};

use super::rig::{SOON, asked, background, eventually, limiting, names, rigs, sh};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warm_session_needs_no_engine() {
    for rig in rigs("a_warm_session_needs_no_engine").await {
        let spec = rig.spec("warm");
        let first = rig.open(&spec).await;
        assert!(first.is_new());
        assert_eq!(sh(&first, "echo $((6*7)); id -u").await.ok(), "42\n1000\n", "{}", rig.name);
        let alone = rig.without_engine();
        let found = alone.adopt(&spec).await.unwrap().unwrap();
        assert!(!found.is_new());
        assert_eq!(sh(&found, "echo here").await.ok(), "here\n");
        assert!(alone.find(&spec.id()).await.unwrap().is_some());
        let listed = alone.list().await.unwrap();
        assert_eq!(listed.len(), 1);
        assert!(listed[0].running && listed[0].id == spec.id());
        // Opening may make something, and so needs one.
        let error = alone.open(&rig.spec("new")).await.map(|_| ()).unwrap_err();
        assert!(error.is_engine_failure(), "{}: {error:?}", rig.name);
        // It can be ended without one too: its agent does what it is told, and the real engine removes the container.
        assert!(!rig.again().open(&spec).await.unwrap().is_new());
        first.close().await.unwrap();
        rig.until_nothing_is_left().await;
        assert!(rig.again().adopt(&spec).await.unwrap().is_none());
        let error = sh_error(&found).await;
        assert_eq!(error.kind(), "unavailable", "{}: {error:?}", rig.name);
    }
}

async fn sh_error(sandbox: &std::sync::Arc<dyn moltis_sandbox::Sandbox>) -> moltis_sandbox::Error {
    super::rig::run(sandbox, Command::Shell("true".into())).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_background_command_outlives_a_killed_opener() {
    for rig in rigs("a_background_command_outlives_a_killed_opener").await {
        let mut other = rig.process("background", "back");
        assert_eq!(other.says().await, "true");
        other.kill().await;
        let spec = rig.spec("back");
        let sandbox = rig.backend.adopt(&spec).await.unwrap().unwrap();
        let running: Vec<_> = sandbox.processes().await.unwrap();
        let running: Vec<_> = running.into_iter().filter(|process| process.background).collect();
        assert_eq!(running.len(), 1, "{}: {running:?}", rig.name);
        assert!(running[0].outcome.is_none());
        assert!(!sandbox.close_if_idle().await.unwrap(), "{}", rig.name);
        let mut exec = sandbox.attach(running[0].id, 0, 0, true).await.unwrap();
        sh(&sandbox, "echo middle > /tmp/pipe").await.ok();
        let mut said = Vec::new();
        while let Some(event) = exec.events.next().await {
            if let ExecEvent::Stdout(bytes) = event.unwrap() {
                said.extend_from_slice(&bytes);
            }
        }
        assert_eq!(String::from_utf8(said).unwrap(), "on\nmiddle\nover\n", "{}", rig.name);
        // The watching ends a moment after its last event.
        drop(exec);
        let what = format!("{}: it stays in use", rig.name);
        eventually(&what, async || sandbox.close_if_idle().await.unwrap()).await;
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_sandbox_ends_itself_and_the_next_is_new() {
    for rig in rigs("an_idle_sandbox_ends_itself_and_the_next_is_new").await {
        let spec = SandboxSpec { lifetime: Lifetime::Idle(Duration::from_millis(700)), ..rig.spec("idle") };
        let sandbox = rig.open(&spec).await;
        sh(&sandbox, "touch /tmp/x; sleep 1.5").await.ok();
        rig.until_nothing_is_left().await;
        let again = rig.open(&spec).await;
        assert!(again.is_new());
        assert_eq!(sh(&again, "ls /tmp").await.ok(), "", "{}", rig.name);
        again.close().await.unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_spec_makes_another_sandbox() {
    for rig in rigs("another_spec_makes_another_sandbox").await {
        let spec = rig.spec("print");
        let first = rig.open(&spec).await;
        let before = rig.container().await;
        let mut other = spec.clone();
        other.limits.pids = Some(asked(77));
        assert!(rig.backend.adopt(&other).await.unwrap().is_none(), "{}", rig.name);
        let second = rig.open(&other).await;
        assert!(second.is_new());
        assert_ne!(rig.container().await.id, before.id);
        assert_eq!(sh(&second, "echo on").await.ok(), "on\n");
        assert_eq!(sh_error(&first).await.kind(), "unavailable", "{}", rig.name);
        // The end of the one that is gone is not the end of the other.
        first.close().await.unwrap();
        assert_eq!(sh(&second, "echo on").await.ok(), "on\n");
        second.close().await.unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ephemeral_sandbox_ends_with_its_holder() {
    for rig in rigs("an_ephemeral_sandbox_ends_with_its_holder").await {
        let mut other = rig.process("ephemeral", "brief");
        assert_eq!(other.says().await, "true");
        let container = rig.container().await;
        assert_eq!(container.state, ContainerState::Running);
        other.kill().await;
        let what = format!("{}: it lives on", rig.name);
        eventually(&what, async || rig.containers().await.is_empty()).await;
        // What its holder could not clear away is swept.
        let backend = rig.again();
        let sandbox = backend.open(&rig.spec("sweeper")).await.unwrap();
        eventually("its folder is left", async || rig.folders().len() == 1).await;
        sandbox.close().await.unwrap();

        let spec = SandboxSpec { lifetime: Lifetime::Ephemeral, ..rig.spec("dropped") };
        let sandbox = rig.open(&spec).await;
        background(&sandbox, "sleep 100").await;
        drop(sandbox);
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_silent_is_removed_by_its_processes() {
    for rig in limiting("one_that_is_silent_is_removed_by_its_processes").await {
        let spec = rig.spec("silent");
        rig.open(&spec).await;
        let container = rig.container().await;
        rig.cli(&["pause", &container.id]).await;
        rig.backend.remove(&spec.id()).await.unwrap();
        rig.until_nothing_is_left().await;
        // Nothing is there any more, which is no error.
        rig.backend.remove(&spec.id()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_without_a_folder_is_known_by_its_labels() {
    for rig in rigs("one_without_a_folder_is_known_by_its_labels").await {
        let spec = rig.spec("bare");
        rig.open(&spec).await;
        std::fs::remove_dir_all(rig.run_folder(&spec)).unwrap();
        let listed = rig.again().list().await.unwrap();
        assert_eq!(listed.len(), 1, "{}", rig.name);
        assert!(listed[0].running);
        assert_eq!((&listed[0].id, &listed[0].fingerprint), (&spec.id(), &spec.fingerprint()));
        assert!(rig.again().adopt(&spec).await.unwrap().is_none());
        // A young one may be about to be written down, and one of the same session is in the way.
        let again = rig.open(&spec).await;
        assert!(again.is_new());
        rig.container().await;
        std::fs::remove_dir_all(rig.run_folder(&spec)).unwrap();
        rig.again().remove(&spec.id()).await.unwrap();
        rig.until_nothing_is_left().await;
        assert!(rig.again().list().await.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leftovers_are_swept_and_nothing_else() {
    for rig in rigs("leftovers_are_swept_and_nothing_else").await {
        let neighbour = rig.another();
        let (ours, theirs) = (rig.spec("kept"), neighbour.spec("kept"));
        let kept = rig.open(&ours).await;
        let other = neighbour.open(&theirs).await;
        let (mine, foreign) = (rig.container().await, neighbour.container().await);
        assert_ne!(mine.labels["org.moltis.instance"], foreign.labels["org.moltis.instance"]);

        // Containers with our label that nothing is written down of: an old one, and one that may be in the making.
        let make = async |key: &str, created: u64, like: &moltis_backend_container::engine::Container| {
            let mut spec = ContainerSpec {
                name: mine.name.replace(&ours.id().as_str()[..24], key),
                image: mine.image.clone(),
                user: (1000, 1000),
                argv: ["/bin/sleep", "100"].map(str::to_owned).to_vec(),
                directory: "/".to_owned(),
                labels: like.labels.clone(),
                ..ContainerSpec::default()
            };
            let id = SandboxId::of(&SessionKey::new(key).unwrap());
            spec.labels.insert("org.moltis.session".to_owned(), id.to_string());
            spec.labels.insert("org.moltis.created".to_owned(), created.to_string());
            let id = rig.engine.create(&spec).await.unwrap();
            rig.engine.start(&id).await.unwrap();
            id
        };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let old = make("old", 1000, &mine).await;
        let young = make("young", now, &mine).await;
        let others = make("others", 1000, &foreign).await;
        // Folders without a container: one whose maker died before it wrote, one whose container is gone.
        let empty = rig.run_folder(&rig.spec("never"));
        std::fs::create_dir(&empty).unwrap();
        let gone = rig.spec("gone");
        rig.open(&gone).await;
        let container = rig
            .containers()
            .await
            .into_iter()
            .find(|c| c.labels.get("org.moltis.session").map(String::as_str) == Some(gone.id().as_str()));
        rig.engine.remove(&container.unwrap().id).await.unwrap();

        let sweeper = rig.again();
        let last = sweeper.open(&rig.spec("last")).await.unwrap();
        let exists = async |id: &str| rig.engine.inspect(id).await.unwrap().is_some();
        let what = format!("{}: the old one stays", rig.name);
        eventually(&what, async || !exists(&old).await).await;
        eventually("folders stay", async || rig.folders().len() == 2).await;
        assert!(exists(&young).await && exists(&others).await && exists(&mine.id).await);
        assert!(exists(&foreign.id).await, "{}: another data directory's", rig.name);
        for sandbox in [&kept, &other, &last] {
            assert_eq!(sh(sandbox, "echo on").await.ok(), "on\n");
        }
        for id in [young, others] {
            rig.engine.remove(&id).await.unwrap();
        }
        for sandbox in [kept, other, last] {
            sandbox.close().await.unwrap();
        }
        rig.until_nothing_is_left().await;
        neighbour.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_data_directory_holds_nothing() {
    for rig in rigs("a_copy_of_a_data_directory_holds_nothing").await {
        let spec = rig.spec("copied");
        let original = rig.open(&spec).await;
        let to = rig.path("copy");
        let copied = std::process::Command::new("cp").arg("-a").arg(rig.data()).arg(&to).status().unwrap();
        assert!(copied.success());
        let copy = rig.on(&to);
        assert!(copy.adopt(&spec).await.unwrap().is_none(), "{}", rig.name);
        assert!(copy.find(&spec.id()).await.unwrap().is_none());
        assert!(copy.list().await.unwrap().is_empty());
        copy.remove(&spec.id()).await.unwrap();
        assert_eq!(sh(&original, "echo on").await.ok(), "on\n");
        let other = copy.open(&spec).await.unwrap();
        assert!(other.is_new());
        assert_eq!(rig.containers().await.len(), 2, "{}", rig.name);
        other.close().await.unwrap();
        assert_eq!(sh(&original, "echo on").await.ok(), "on\n");
        original.close().await.unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_keys_and_odd_prefixes_are_names_nowhere() {
    for rig in rigs("long_keys_and_odd_prefixes_are_names_nowhere").await {
        let mut keys = ["x".repeat(300), format!("{}y", "x".repeat(299)), "../\n'\"$(id) ж".to_owned()];
        for (at, key) in keys.iter_mut().enumerate() {
            let mut spec = rig.spec(key);
            spec.container_prefix.push_str(["-A_b.9", "", ".-"][at]);
            let sandbox = rig.open(&spec).await;
            let container = rig.container().await;
            assert!(!container.name.contains("xxx") && container.name.len() < 64, "{}", container.name);
            assert!(container.labels.values().all(|value| !value.contains("xxx")));
            assert_eq!(sh(&sandbox, "echo on").await.ok(), "on\n");
            sandbox.close().await.unwrap();
        }
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_taken_is_told() {
    for rig in rigs("a_name_that_is_taken_is_told").await {
        let spec = rig.spec("taken");
        let sandbox = rig.open(&spec).await;
        let ours = rig.container().await;
        sandbox.close().await.unwrap();
        let stranger = ContainerSpec {
            name: ours.name.clone(),
            image: ours.image.clone(),
            user: (1000, 1000),
            argv: ["/bin/sleep", "100"].map(str::to_owned).to_vec(),
            directory: "/".to_owned(),
            ..ContainerSpec::default()
        };
        let id = rig.engine.create(&stranger).await.unwrap();
        let error = rig.refusal(&spec).await;
        assert_eq!((error.kind(), error.code()), ("unavailable", "container-name-taken"), "{}", rig.name);
        assert!(error.diagnosis().message.contains(&ours.name));
        assert!(rig.engine.inspect(&id).await.unwrap().is_some(), "{}: it was removed", rig.name);
        rig.engine.remove(&id).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_open_one_session_at_once() {
    for rig in rigs("many_processes_open_one_session_at_once").await {
        let mut all: Vec<_> = (0..16).map(|_| rig.process("open", "one")).collect();
        let mut new = 0;
        for other in &mut all {
            new += usize::from(other.says().await == "true");
        }
        assert_eq!(new, 1, "{}", rig.name);
        rig.container().await;
        for other in &mut all {
            other.kill().await;
        }
        let spec = rig.spec("one");
        rig.backend.adopt(&spec).await.unwrap().unwrap().close().await.unwrap();
        rig.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opener_that_is_killed_leaves_nothing_that_stays() {
    for rig in rigs("an_opener_that_is_killed_leaves_nothing_that_stays").await {
        let since = Instant::now();
        let mut whole = rig.process("open", "whole");
        whole.says().await;
        let whole_time = since.elapsed();
        whole.kill().await;
        rig.backend.remove(&rig.spec("whole").id()).await.unwrap();
        let moments = if moltis_testkit::need::long() { 20 } else { 6 };
        for moment in 0..moments {
            let spec = rig.spec("killed");
            let mut other = rig.process("open", "killed");
            tokio::time::sleep(whole_time * moment / moments).await;
            other.kill().await;
            if moment % 2 == 0 {
                // The session goes on with a sandbox that works.
                let again = rig.again();
                let sandbox = tokio::time::timeout(SOON * 2, again.open(&spec)).await.unwrap().unwrap();
                assert_eq!(sh(&sandbox, "echo on").await.ok(), "on\n", "{} {moment}", rig.name);
                rig.container().await;
                sandbox.close().await.unwrap();
            } else {
                // Or is given up: all that is listed is removed.
                let again = rig.again();
                let written = names(&rig.data().join("run").join(rig.name));
                let listed = again.list().await.unwrap();
                for id in written.iter().filter_map(|name| SandboxId::parse(name)) {
                    again.remove(&id).await.unwrap();
                }
                for record in listed {
                    again.remove(&record.id).await.unwrap();
                }
            }
            assert_eq!(rig.folders(), Vec::<String>::new(), "{} {moment}", rig.name);
            rig.until_nothing_is_left().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_kept_ready_becomes_a_sessions() {
    for rig in rigs("one_that_was_kept_ready_becomes_a_sessions").await {
        let (pooled, spec) = (rig.spec("pool"), rig.spec("session"));
        rig.open(&pooled).await;
        let id = rig.container().await.id;
        let sandbox = rig.backend.assign(&pooled, &spec).await.unwrap();
        assert!(sandbox.is_new());
        assert_eq!(sh(&sandbox, "echo on").await.ok(), "on\n", "{}", rig.name);
        let other = rig.again();
        assert!(other.find(&pooled.id()).await.unwrap().is_none());
        assert!(other.adopt(&pooled).await.unwrap().is_none());
        let found = other.adopt(&spec).await.unwrap().unwrap();
        assert_eq!(sh(&found, "echo on").await.ok(), "on\n");
        let listed = other.list().await.unwrap();
        assert_eq!(listed.len(), 1, "{}: {listed:?}", rig.name);
        assert_eq!((&listed[0].id, &listed[0].fingerprint), (&spec.id(), &spec.fingerprint()));
        // Removing what it was made for, which its label still says, is not the end of it.
        other.remove(&pooled.id()).await.unwrap();
        assert_eq!(rig.container().await.id, id, "{}", rig.name);
        assert_eq!(sh(&found, "echo on").await.ok(), "on\n", "{}", rig.name);
        other.remove(&spec.id()).await.unwrap();
        rig.until_nothing_is_left().await;
    }
}
