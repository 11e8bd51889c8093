//! Signals to the program before its command runs.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use moltis_runtime::store::Store;
use moltis_sandbox::SessionKey;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::Place;

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn a_second_signal_does_not_wait_for_an_opening() {
    let place = Place::new();
    place.run(["session", "set", "s"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = Store::new(place.data());
    let key = SessionKey::new("s").unwrap();
    let number = store.run_blocking(move |db| db.session(&key)).unwrap().unwrap().number;
    // While this is held nobody else opens the session's sandbox.
    let lock = runtime.block_on(store.lock_session(number, Duration::from_secs(10))).unwrap();
    for mode in ["--json", "--background"] {
        let mut command = place.moltis(["exec", "--session", "s", mode, "true"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        send(&child, Signal::TERM);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(child.try_wait().unwrap(), None, "the first one waits");
        let begun = Instant::now();
        send(&child, Signal::INT);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    drop(lock);
    place.in_session("s", "true");
}

#[test]
fn a_background_command_that_was_called_off_does_not_stay() {
    let place = Place::new();
    place.in_session("s", "true");
    let mut begun = 0;
    for round in 0..20 {
        let mut command = place.moltis(["exec", "--session", "s", "--background", "sleep 1000"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(round * 2));
        // It may have left already.
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        let output = child.wait_with_output().unwrap();
        begun += usize::from(!output.stdout.is_empty());
    }
    let running = |list: serde_json::Value| {
        list["processes"].as_array().unwrap().iter().filter(|one| one["running"] == true).count()
    };
    assert_eq!(running(place.run(["process", "list", "s", "--json"]).json()), begun);
}
