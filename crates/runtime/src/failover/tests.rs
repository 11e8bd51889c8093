//! Failover by fake backends, through runtimes that live long.

use std::sync::atomic::Ordering;

use moltis_sandbox::{Error, Network, SessionKey, Setting};

use super::*;
use crate::fakes::{Fake, Machine, open, ran, request, run, unreachable_engine};
use crate::store::{Caller, Gone, Patch, SessionPatch};
use crate::{Overrides, Runtime, SessionRequest};

fn moves(runtime: &Runtime) -> Vec<(BackendName, BackendName)> {
    runtime.failed_over().into_iter().map(|failed| (failed.from, failed.to)).collect()
}

use BackendName::{AppleContainer, Docker, Namespaces, Podman, RestrictedHost};

const DOCKER: BackendChoice = BackendChoice::Named(Docker);
const LINUX: [BackendName; 3] = [Docker, Namespaces, RestrictedHost];

#[tokio::test]
async fn the_command_in_flight_is_lost_and_what_follows_runs_on_the_next() {
    let machine = Machine::new(&LINUX, DOCKER);
    let runtime = machine.start().await;
    assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Docker);
    assert!(matches!(ran(&runtime, "s", "die").await, Err(Error::Lost(_))));
    assert_eq!(moves(&runtime), [(Docker, Namespaces)]);
    let mut session = open(&runtime, "s").await.unwrap();
    assert_eq!((session.backend, session.restarted), (Namespaces, Some(Gone::Failover)));
    assert!(session.notes[0].contains("docker failed"), "{:?}", session.notes);
    assert!(session.notes[0].contains("namespaces"), "{:?}", session.notes);
    assert_eq!(run(&mut session, "two").await.unwrap(), Namespaces);
    // It is said once that it moved, and with each answer why it runs there.
    let next = open(&runtime, "s").await.unwrap();
    assert_eq!((next.restarted, next.notes.len()), (None, 1));
    // No command ran twice.
    assert_eq!(*machine.engine(Docker).ran.lock().unwrap(), ["one", "die"]);
    assert_eq!(*machine.engine(Namespaces).ran.lock().unwrap(), ["two"]);
    let status = runtime.backends().await;
    let docker = status.iter().find(|status| status.backend == Docker).unwrap();
    assert_eq!(docker.failed_over, Some(runtime.failed_over()[0].clone()));
    let told = serde_json::to_value(&docker.failed_over).unwrap();
    assert_eq!(
        (told["to"].as_str(), told["why"]["code"].as_str()),
        (Some("namespaces"), Some("engine-unreachable"))
    );
}

#[tokio::test]
async fn it_stays_with_the_stand_in_until_a_restart() {
    let machine = Machine::new(&LINUX, DOCKER);
    let runtime = machine.start().await;
    assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Docker);
    machine.down(Docker, true);
    assert_eq!(ran(&runtime, "t", "one").await.unwrap(), Namespaces);
    machine.down(Docker, false);
    assert_eq!(ran(&runtime, "new", "one").await.unwrap(), Namespaces);
    // Also where the old one would still answer.
    assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Namespaces);
    assert_eq!(ran(&runtime, "t", "one").await.unwrap(), Namespaces);
    drop(runtime);
    let runtime = machine.start().await;
    assert_eq!(moves(&runtime), []);
    let back = open(&runtime, "s").await.unwrap();
    assert_eq!((back.backend, back.restarted), (Docker, Some(Gone::Failover)));
    // Whether its home is the same one there depends on whose engine it is.
    let others: Vec<_> = back.notes.iter().filter(|note| !note.starts_with("home: ")).collect();
    assert_eq!(others, Vec::<&String>::new());
}

#[tokio::test]
async fn a_backend_that_there_is_not_is_refused_before_anything_is_stored() {
    let machine = Machine::new(&LINUX, DOCKER);
    let runtime = machine.start().await;
    let missing = BackendChoice::Named(Podman);
    let patch = SessionPatch { sandbox_backend: Patch::Set(missing), ..SessionPatch::default() };
    let key = SessionKey::new("s").unwrap();
    let refused = runtime.set_session(&key, patch, &Caller::this_user()).await.unwrap_err();
    assert_eq!(refused.code(), "backend-not-built");
    let settings = Overrides { backend: Some(Setting::new(missing, Origin::Flag)), ..Overrides::default() };
    let asked = SessionRequest { settings, ..SessionRequest::new(key.clone()) };
    assert_eq!(runtime.open_session(&asked).await.map(drop).unwrap_err().code(), "backend-not-built");
    assert_eq!(runtime.session(&key).await.unwrap(), None);
}

#[tokio::test]
async fn a_session_that_is_held_moves_too() {
    let machine = Machine::new(&LINUX, DOCKER);
    let runtime = machine.start().await;
    let mut held = open(&runtime, "s").await.unwrap();
    assert_eq!(run(&mut held, "one").await.unwrap(), Docker);
    machine.down(Docker, true);
    assert_eq!(ran(&runtime, "t", "one").await.unwrap(), Namespaces);
    assert_eq!(run(&mut held, "two").await.unwrap(), Namespaces);
    assert_eq!(held.restarted, Some(Gone::Failover));
    assert_eq!(*machine.engine(Docker).ran.lock().unwrap(), ["one"]);
}

#[tokio::test]
async fn an_opening_that_failed_goes_on_at_once() {
    for choice in [DOCKER, BackendChoice::Auto] {
        let machine = Machine::new(&LINUX, choice);
        let runtime = machine.start().await;
        machine.down(Docker, true);
        let session = open(&runtime, "s").await.unwrap();
        assert_eq!((session.backend, session.restarted), (Namespaces, None), "{choice}");
        let opened = runtime.open(&Overrides::default()).await.unwrap();
        assert_eq!(opened.backend, Namespaces);
        assert!(opened.notes[0].contains("docker failed"), "{:?}", opened.notes);
        assert_eq!(moves(&runtime), [(Docker, Namespaces)]);
    }
}

#[tokio::test]
async fn what_a_command_printed_or_a_sandbox_that_died_is_no_failure_of_the_engine() {
    let machine = Machine::new(&LINUX, DOCKER);
    let runtime = machine.start().await;
    for line in ["Cannot connect to the Docker daemon. Is the docker daemon running?", "connection refused"] {
        assert_eq!(ran(&runtime, "s", line).await.unwrap(), Docker);
    }
    assert!(matches!(ran(&runtime, "s", "break").await, Err(Error::Lost(_))));
    assert_eq!(moves(&runtime), []);
    assert_eq!(ran(&runtime, "s", "again").await.unwrap(), Docker);
}

#[tokio::test]
async fn the_policy_says_how_far() {
    // With nothing left that isolates.
    let machine = Machine::new(&[Docker, RestrictedHost], DOCKER).policy(Policy::Isolated);
    let runtime = machine.start().await;
    machine.down(Docker, true);
    assert_eq!(open(&runtime, "s").await.map(drop).unwrap_err().code(), "engine-unreachable");
    assert_eq!(moves(&runtime), []);
    machine.down(Docker, false);
    assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Docker);
    // With something that does.
    let machine = Machine::new(&LINUX, DOCKER).policy(Policy::Isolated);
    let runtime = machine.start().await;
    machine.down(Docker, true);
    assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Namespaces);
    // When that fails too, not on the host; `auto` neither.
    machine.down(Namespaces, true);
    machine.engine(Namespaces).live.lock().unwrap().clear();
    assert_eq!(open(&runtime, "s").await.map(drop).unwrap_err().kind(), "unavailable");
    for choice in [DOCKER, BackendChoice::Auto] {
        let machine = Machine::new(&LINUX, choice).policy(Policy::Off);
        let runtime = machine.start().await;
        machine.down(Docker, true);
        assert_eq!(open(&runtime, "s").await.map(drop).unwrap_err().code(), "engine-unreachable");
        assert_eq!(moves(&runtime), []);
        machine.down(Docker, false);
        assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Docker);
    }
}

#[tokio::test]
async fn auto_that_isolates_is_not_taken_to_the_host_under_isolated() {
    let machine = Machine::new(&[Docker, RestrictedHost], BackendChoice::Auto).policy(Policy::Isolated);
    let runtime = machine.start().await;
    machine.down(Docker, true);
    for name in ["s", "t"] {
        assert_eq!(open(&runtime, name).await.map(drop).unwrap_err().code(), "engine-unreachable");
    }
}

#[tokio::test]
async fn under_any_a_session_follows_to_the_host_and_is_told_so_loudly() {
    for choice in [DOCKER, BackendChoice::Auto] {
        let machine = Machine::new(&[Docker, RestrictedHost], choice);
        let runtime = machine.start().await;
        assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Docker);
        assert!(matches!(ran(&runtime, "s", "die").await, Err(Error::Lost(_))));
        let session = open(&runtime, "s").await.unwrap();
        assert_eq!((session.backend, session.restarted), (RestrictedHost, Some(Gone::Failover)), "{choice}");
        assert!(session.notes[0].contains("NO ISOLATION"), "{:?}", session.notes);
        let keys: Vec<_> = session.not_enforced.iter().map(|left| left.key.as_str()).collect();
        assert_eq!(keys[..2], ["sandbox", "network"], "{choice}");
        // Whoever asks for what the host does not keep is refused, and told both.
        let mut asks = request("s");
        asks.settings.network = Some(Setting::new(Network::Blocked, Origin::Flag));
        let error = runtime.open_session(&asks).await.map(drop).unwrap_err();
        assert_eq!((error.code(), error.kind()), ("demand-not-kept", "refused"));
        let message = &error.diagnosis().message;
        assert!(message.contains("docker has failed") && message.contains("`network`"), "{message}");
    }
}

#[tokio::test]
async fn a_session_that_did_not_run_on_the_failed_one_is_not_taken_to_the_host() {
    let machine = Machine::new(&[Docker, Namespaces, RestrictedHost], BackendChoice::Auto);
    machine.down(Docker, true);
    let runtime = machine.start().await;
    assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Namespaces);
    // It was not there at the start, and namespaces has no chain.
    machine.down(Namespaces, true);
    machine.engine(Namespaces).live.lock().unwrap().clear();
    assert_eq!(open(&runtime, "s").await.map(drop).unwrap_err().kind(), "unavailable");
    assert_eq!(moves(&runtime), []);
}

#[tokio::test]
async fn a_demand_that_the_stand_in_does_not_keep_is_refused_with_both_facts() {
    let mut weak = Fake::new(Namespaces);
    weak.memory = false;
    let machine = Machine::of(vec![Fake::new(Docker), weak, Fake::new(RestrictedHost)], DOCKER);
    let runtime = machine.start().await;
    let mut asks = request("s");
    asks.settings.memory = Some(Setting::new(1 << 30, Origin::Flag));
    assert_eq!(run(&mut runtime.open_session(&asks).await.unwrap(), "one").await.unwrap(), Docker);
    machine.down(Docker, true);
    // One that asks for nothing goes on; this one does not, and not to the host either.
    assert_eq!(ran(&runtime, "t", "one").await.unwrap(), Namespaces);
    let error = open(&runtime, "s").await.map(drop).unwrap_err();
    assert_eq!((error.code(), error.kind()), ("demand-not-kept", "refused"));
    let told = error.diagnosis();
    assert!(told.message.starts_with("docker has failed, and namespaces cannot keep"), "{told:?}");
    assert!(told.cause.as_deref().unwrap().contains("does not answer"), "{told:?}");
    assert!(told.fix.as_deref().unwrap().starts_with("mend docker and restart Moltis"), "{told:?}");
    // A finished image is such a demand.
    let mut asks = request("u");
    asks.settings.image = Some(Setting::new(moltis_config::parse_image("debian:12").unwrap(), Origin::Flag));
    let error = runtime.open_session(&asks).await.map(drop).unwrap_err();
    assert!(error.diagnosis().message.contains("`image` = debian:12"), "{error}");
    assert_eq!(moves(&runtime), [(Docker, Namespaces)]);
}

#[tokio::test]
async fn a_session_that_names_the_failed_one_is_taken_nowhere() {
    let machine = Machine::new(&LINUX, BackendChoice::Auto);
    let runtime = machine.start().await;
    let mut asks = request("s");
    asks.settings.backend = Some(Setting::new(DOCKER, Origin::Flag));
    assert_eq!(run(&mut runtime.open_session(&asks).await.unwrap(), "one").await.unwrap(), Docker);
    machine.down(Docker, true);
    assert_eq!(ran(&runtime, "t", "one").await.unwrap(), Namespaces);
    for again in [request("s"), asks] {
        let error = runtime.open_session(&again).await.map(drop).unwrap_err();
        assert_eq!((error.code(), error.kind()), ("backend-failed", "unavailable"));
        assert!(error.diagnosis().fix.as_deref().unwrap().contains("session set s --unset backend"));
    }
    // A flag that names it after a session went elsewhere is a demand for that command.
    let machine = Machine::new(&LINUX, DOCKER);
    let runtime = machine.start().await;
    machine.down(Docker, true);
    assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Namespaces);
    let mut asks = request("s");
    asks.settings.backend = Some(Setting::new(DOCKER, Origin::Flag));
    assert_eq!(runtime.open_session(&asks).await.map(drop).unwrap_err().code(), "backend-failed");
}

#[tokio::test]
async fn only_what_was_usable_at_the_start_fails_over() {
    let machine = Machine::new(&LINUX, DOCKER);
    machine.down(Docker, true);
    let error = machine.try_start().await.map(drop).unwrap_err();
    assert_eq!((error.code(), error.kind()), ("engine-unreachable", "unavailable"));
    let told = error.diagnosis();
    assert!(told.message.contains("`backend = \"docker\"`"), "{told:?}");
    assert_eq!(told.fix.as_deref(), Some("start it; or set `backend = \"auto\"`"));
    // Under `auto` it is passed over, as it always was, and a session that names it gets the error.
    let mut machine = machine;
    machine.config.tools.exec.sandbox.backend = Setting::built_in(BackendChoice::Auto);
    let runtime = machine.start().await;
    assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Namespaces);
    let mut asks = request("t");
    asks.settings.backend = Some(Setting::new(DOCKER, Origin::Flag));
    assert_eq!(runtime.open_session(&asks).await.map(drop).unwrap_err().code(), "engine-unreachable");
    assert_eq!(moves(&runtime), []);
}

#[tokio::test]
async fn one_command_never_goes_to_less_isolation() {
    let machine = Machine::new(&[Docker, RestrictedHost], BackendChoice::Auto);
    let runtime = machine.command();
    assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Docker);
    machine.down(Docker, true);
    machine.engine(Docker).live.lock().unwrap().clear();
    assert_eq!(open(&machine.command(), "s").await.map(drop).unwrap_err().code(), "isolation-lost");
    let machine = Machine::new(&LINUX, DOCKER);
    let runtime = machine.command();
    machine.down(Docker, true);
    assert_eq!(open(&runtime, "s").await.map(drop).unwrap_err().code(), "engine-unreachable");
    assert_eq!(moves(&runtime), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_at_once_make_one_switch() {
    let machine = Machine::new(&LINUX, DOCKER);
    let runtime = machine.start().await;
    for name in 0..20 {
        assert_eq!(ran(&runtime, &format!("s{}", name % 10), "one").await.unwrap(), Docker);
    }
    let all = (0..20).map(|number| {
        let runtime = runtime.clone();
        tokio::spawn(async move {
            let name = format!("s{}", number % 10);
            let first = ran(&runtime, &name, "die").await;
            (first, ran(&runtime, &name, "two").await)
        })
    });
    let mut refused = 0;
    for task in all.collect::<Vec<_>>() {
        let (first, second) = task.await.unwrap();
        // Those that came after the switch ran on the stand-in, whose engine the line takes down as well: it has no
        // chain of its own, so that whoever comes later still runs nowhere.
        match first {
            Ok(_) | Err(Error::Lost(_)) => {}
            Err(Error::Unavailable(_)) => refused += 1,
            Err(error) => panic!("{error:?}"),
        }
        drop(second);
    }
    assert_eq!(moves(&runtime), [(Docker, Namespaces)]);
    let died = machine.engine(Docker).ran.lock().unwrap().iter().filter(|line| *line == "die").count();
    let elsewhere =
        machine.engine(Namespaces).ran.lock().unwrap().iter().filter(|line| *line == "die").count();
    assert_eq!(died + elsewhere + refused, 20);
    assert!(refused == 0 || elsewhere > 0, "{refused} found the stand-in down, which nobody had taken down");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_openings_at_once_make_one_switch() {
    let machine = Machine::new(&LINUX, DOCKER);
    let runtime = machine.start().await;
    machine.down(Docker, true);
    let all: Vec<_> = (0..20)
        .map(|number| {
            let runtime = runtime.clone();
            // Two to a session.
            tokio::spawn(async move { ran(&runtime, &format!("s{}", number / 2), "one").await })
        })
        .collect();
    for task in all {
        assert_eq!(task.await.unwrap().unwrap(), Namespaces);
    }
    assert_eq!(moves(&runtime), [(Docker, Namespaces)]);
    assert_eq!(machine.engine(Namespaces).opened.load(Ordering::SeqCst), 10);
    assert_eq!(machine.engine(Namespaces).ran.lock().unwrap().len(), 20);
}

#[tokio::test]
async fn the_chain_goes_on() {
    let all = [AppleContainer, Podman, Docker, Namespaces, RestrictedHost];
    let apple = BackendChoice::Named(AppleContainer);
    let machine = Machine::new(&all, apple);
    let runtime = machine.start().await;
    assert_eq!(ran(&runtime, "s", "die").await.map(drop).unwrap_err().kind(), "lost");
    assert_eq!(ran(&runtime, "s", "one").await.unwrap(), Docker);
    assert_eq!(ran(&runtime, "s", "die").await.map(drop).unwrap_err().kind(), "lost");
    let session = open(&runtime, "s").await.unwrap();
    assert_eq!((session.backend, session.restarted), (Namespaces, Some(Gone::Failover)));
    assert_eq!(moves(&runtime), [(AppleContainer, Docker), (Docker, Namespaces)]);
    // `auto`: at the place of what failed stands what stands in for it.
    let machine = Machine::new(&all, BackendChoice::Auto);
    let runtime = machine.start().await;
    for (engine, next) in [(AppleContainer, Docker), (Docker, Namespaces)] {
        machine.down(engine, true);
        // One whose sandbox answers notices nothing, until another does.
        assert_eq!(ran(&runtime, &format!("new {next}"), "one").await.unwrap(), next);
        assert_eq!(ran(&runtime, "s", "one").await.unwrap(), next);
    }
}

#[tokio::test]
async fn an_absent_image_takes_auto_on_and_never_a_named_engine() {
    let machine = Machine::new(&LINUX, BackendChoice::Auto);
    let builds = || machine.engine(Docker).builds.load(Ordering::SeqCst);
    machine.engine(Docker).no_image.store(true, Ordering::SeqCst);
    let session = open(&machine.command(), "s").await.unwrap();
    assert_eq!((session.backend, builds()), (Namespaces, 1));
    assert!(session.notes[0].contains("the image cannot be pulled"), "{:?}", session.notes);
    // The next ones do not try again, in a session or without.
    assert_eq!(machine.command().open(&Overrides::default()).await.unwrap().backend, Namespaces);
    assert_eq!(open(&machine.command(), "t").await.unwrap().backend, Namespaces);
    assert_eq!(builds(), 1);
    machine.command().forget_image_failures().await.unwrap();
    assert_eq!(machine.command().open(&Overrides::default()).await.unwrap().backend, Namespaces);
    assert_eq!(builds(), 2);
    // A named engine says what is wrong, and a session that was made for it alone is not left behind.
    let mut asks = request("u");
    asks.settings.backend = Some(Setting::new(DOCKER, Origin::Flag));
    let runtime = machine.command();
    assert_eq!(runtime.open_session(&asks).await.map(drop).unwrap_err().code(), "image-unavailable");
    assert_eq!(runtime.session(&asks.key).await.unwrap(), None);
    // And it is no reason to do without isolation.
    let machine = Machine::new(&[Docker, RestrictedHost], BackendChoice::Auto);
    machine.engine(Docker).no_image.store(true, Ordering::SeqCst);
    for runtime in [machine.command(), machine.start().await] {
        assert_eq!(open(&runtime, "s").await.map(drop).unwrap_err().code(), "image-unavailable");
    }
}

#[test]
fn the_stored_word_is_of_one_runtime() {
    let failed = |from| FailedOver { from, to: Namespaces, why: unreachable_engine(), since_millis: 0 };
    let word = chosen(BackendChoice::Auto, &[Podman, Docker]);
    assert_eq!(word, "auto without podman docker");
    assert_eq!(without(&word), [Podman, Docker]);
    assert!(stood_in(&word) && !stood_in("auto"));
    let both = [failed(Docker), failed(Podman)];
    assert!(still_chosen(&word, BackendChoice::Auto, &both));
    assert!(!still_chosen(&word, BackendChoice::Auto, &both[..1]));
    assert!(!still_chosen(&word, BackendChoice::Auto, &[]));
    assert!(!still_chosen(&word, DOCKER, &both));
    assert!(still_chosen("auto", BackendChoice::Auto, &both));
    assert!(!still_chosen("docker", BackendChoice::Auto, &both));
}
