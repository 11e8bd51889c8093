//! Sessions that outlive the program: callers that are killed, and many at once.

use std::collections::BTreeSet;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::support::Place;

/// Numbers that look drawn by lot and are the same in every run.
struct Lot(u64);

impl Lot {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn start(place: &Place, session: &str, line: &str) -> Child {
    let mut command = place.moltis(["exec", "--backend", "namespaces", "--session", session, line]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn inside(place: &Place, session: &str, line: &str) -> String {
    let ran = place.run(["exec", "--session", session, line]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    ran.stdout
}

/// Waits until `so` holds.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !so() {
        assert!(since.elapsed() < Duration::from_secs(30), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_caller_that_is_killed_takes_its_command_with_it_and_nothing_else() {
    let place = Place::new();
    let mut lot = Lot(7);
    let begun =
        place.run(["exec", "--backend", "namespaces", "--session", "s", "--background", "sleep 3333"]);
    let process = begun.stdout.trim().to_owned();
    // The shell of the background command may not have become it yet.
    inside(
        &place,
        "s",
        "echo kept > /tmp/kept; until pgrep -fx 'sleep 3333' > /tmp/pid; do sleep 0.02; done",
    );
    for round in 0..50 {
        let line = format!("echo {round} >> begun; sleep 60.{round}; echo {round} >> ended");
        let mut caller = start(&place, "s", &line);
        std::thread::sleep(Duration::from_millis(lot.below(40)));
        caller.kill().unwrap();
        caller.wait().unwrap();
    }
    until("the commands have ended", || inside(&place, "s", "pgrep -f '[s]leep 60' | wc -l").trim() == "0");
    // The sandbox is the same, with all that is not a dead caller's.
    assert_eq!(
        inside(&place, "s", "cat /tmp/kept; cmp /tmp/pid - < /tmp/pid; ls ended 2>&1 | wc -l"),
        "kept\n1\n"
    );
    assert_eq!(inside(&place, "s", "kill -0 $(cat /tmp/pid) && echo alive"), "alive\n");
    let listed = place.run(["process", "list", "s", "--json"]).json();
    let running: Vec<_> =
        listed["processes"].as_array().unwrap().iter().map(|p| p["process"].to_string()).collect();
    assert_eq!(running, [process]);
    // Each that began is in the history, and none is said to run still but the background one.
    let begun: BTreeSet<_> = inside(&place, "s", "cat begun").lines().map(str::to_owned).collect();
    let history = place.run(["history", "s", "--limit", "1000", "--json"]).json();
    let history = history["entries"].as_array().unwrap();
    for round in &begun {
        let line = format!("echo {round} >> begun;");
        let known = history.iter().find(|c| c["command"].as_str().unwrap().starts_with(&line));
        assert_eq!(known.map(|c| &c["state"]), Some(&"lost".into()), "{line}");
    }
    let still: Vec<_> = history.iter().filter(|c| c["state"] == "running").map(|c| &c["command"]).collect();
    assert_eq!(still, ["sleep 3333"]);
}

#[test]
fn the_next_command_of_the_session_is_told_once_what_was_lost() {
    let place = Place::new();
    place.exec(["--session", "s", "true"]);
    place.exec(["--session", "other", "true"]);
    // Those that are told by the answer, by that of a background command, and by an error.
    for told_by in [&["true"][..], &["--background", "true"], &["--", "/nowhere"]] {
        inside(&place, "s", "rm -f /tmp/begun");
        let mut caller = start(&place, "s", "touch /tmp/begun; sleep 60");
        until("it has begun", || inside(&place, "s", "ls /tmp").contains("begun"));
        caller.kill().unwrap();
        caller.wait().unwrap();
        // Another session's command is not the one to tell.
        assert_eq!(place.exec(["--session", "other", "true"]).without_promises().stderr, "");
        let told = place.exec(["--session", "s", "--json"].iter().chain(told_by)).json();
        assert_eq!(told["lost"][0]["command"], "touch /tmp/begun; sleep 60", "{told}");
    }
    assert_eq!(place.exec(["--session", "s", "--json", "true"]).json()["lost"], serde_json::Value::Null);
}

#[test]
fn a_caller_that_is_killed_while_it_starts_a_sandbox_leaves_one_that_works_or_none() {
    let place = Place::new();
    let mut lot = Lot(11);
    for round in 0..50 {
        let session = format!("s{}", round % 10);
        let mut caller = start(&place, &session, "echo x >> /tmp/ran; sleep 60");
        std::thread::sleep(Duration::from_millis(lot.below(30)));
        caller.kill().unwrap();
        caller.wait().unwrap();
        if round % 10 == 9 {
            // In the next round they are made anew.
            for number in 0..10 {
                place.run(["sandbox", "stop", &format!("s{number}")]);
            }
        }
    }
    for number in 0..10 {
        let session = format!("s{number}");
        let ran = place.run(["exec", "--backend", "namespaces", "--session", &session, "echo works"]);
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), "works\n"), "{ran:?}");
    }
    let listed = place.run(["sandbox", "ps", "--json"]).json();
    assert_eq!(listed["sandboxes"].as_array().unwrap().len(), 10);
}

#[test]
fn sixteen_callers_share_one_session_and_sixteen_have_one_each() {
    for sessions in [1, 16] {
        let place = Place::new();
        let threads: Vec<_> = (0..16)
            .map(|caller| {
                let runs: Vec<_> = (0..8)
                    .map(|run| {
                        let session = format!("s{}", caller % sessions);
                        let line = format!("echo {caller}.{run} >> all; echo {caller}.{run}");
                        place.moltis(["exec", "--backend", "namespaces", "--session", &session, &line])
                    })
                    .collect();
                std::thread::spawn(move || {
                    for mut command in runs {
                        let ran = command.output().unwrap();
                        assert!(ran.status.success(), "{ran:?}");
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let all = inside(&place, "s0", "sort all | uniq | wc -l; wc -l < all");
        // The home is shared by all sessions.
        assert_eq!(all, "128\n128\n");
        let listed = place.run(["sandbox", "ps", "--json"]).json();
        assert_eq!(listed["sandboxes"].as_array().unwrap().len(), sessions);
        let sessions = place.run(["session", "list", "--json"]).json();
        let used: usize = sessions["sessions"].as_array().unwrap().len();
        assert_eq!(used, listed["sandboxes"].as_array().unwrap().len());
    }
}
