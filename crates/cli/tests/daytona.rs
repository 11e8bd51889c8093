//! Sessions at Daytona, from the command line to a stand-in and back.

use std::sync::Arc;

use moltis_backend_namespaces::NamespacesBackend;
use moltis_testkit::remote::daytona::{Age, Daytona};

use crate::support::{Place, Ran};

/// A stand-in, and a place whose environment knows of it.
struct Rented {
    place: Place,
    daytona: Daytona,
    _machines: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

impl Rented {
    fn new() -> Self {
        let machines = tempfile::tempdir().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let data_dir = machines.path().to_owned();
        let backend =
            NamespacesBackend::new(moltis_backend_namespaces::Config { data_dir, config_dir: None });
        let daytona = runtime.block_on(Daytona::start(Arc::new(backend), Age::Newer));
        Self { place: Place::new(), daytona, _machines: machines, runtime }
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.place.moltis(args);
        command.envs([("DAYTONA_API_KEY", Daytona::KEY), ("DAYTONA_API_URL", &self.daytona.url())]);
        let ran: Ran = command.output().unwrap().into();
        assert!(!ran.stdout.contains(Daytona::KEY) && !ran.stderr.contains(Daytona::KEY), "{ran:?}");
        ran
    }
}

#[test]
fn a_command_runs_in_a_sandbox_that_ends_with_it() {
    let rented = Rented::new();
    let ran = rented.run(&["exec", "--backend", "daytona", "echo out; echo err >&2; exit 7"]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(7), "out\n"), "{ran:?}");
    assert!(ran.stderr.contains("err\n"), "{ran:?}");
    let refused = rented.run(&["exec", "--backend", "daytona", "--pids", "7", "true"]);
    assert_eq!(refused.status, Some(125), "{refused:?}");
    assert!(refused.stderr.contains("demand-not-kept"), "{refused:?}");
    let odd = rented.run(&["exec", "--backend", "daytona", "--env", "a.b=1", "true"]);
    assert_eq!(odd.status, Some(125), "{odd:?}");
    assert!(odd.stderr.contains("env-name-invalid"), "{odd:?}");
    assert_eq!(rented.daytona.machines(), Vec::<String>::new());
    assert_eq!(rented.daytona.wrong(), Vec::<String>::new());
}

#[test]
fn a_session_keeps_its_sandbox_and_the_answer_says_when_there_is_another_one() {
    let rented = Rented::new();
    let first = rented.run(&["exec", "--session", "s", "--backend", "daytona", "echo kept >/tmp/kept"]);
    assert_eq!(first.status, Some(0), "{first:?}");
    let again = rented.run(&["exec", "--session", "s", "cat /tmp/kept"]);
    assert_eq!((again.status, again.stdout.as_str()), (Some(0), "kept\n"), "{again:?}");
    let listed = rented.run(&["sandbox", "ps", "--json"]);
    assert!(listed.stdout.contains("\"daytona\""), "{listed:?}");
    // It was stopped, and has its files still; then it was removed.
    rented.runtime.block_on(rented.daytona.expire());
    let pruned = rented.run(&["sandbox", "prune", "--json"]);
    assert_eq!(pruned.status, Some(0), "{pruned:?}");
    let line = "cat /tmp/kept 2>/dev/null || echo anew";
    let revived = rented.run(&["exec", "--session", "s", "--json", line]);
    let answer = revived.json();
    assert_eq!(answer["stdout"], "kept\n", "{revived:?}");
    assert!(answer["restarted"].is_null(), "{revived:?}");
    assert!(answer["notes"].to_string().contains("was started again"), "{revived:?}");
    assert_eq!((rented.daytona.made(), rented.daytona.machines().len()), (1, 1));
    rented.runtime.block_on(rented.daytona.remove_all());
    let anew = rented.run(&["exec", "--session", "s", "--json", line]);
    let answer = anew.json();
    assert_eq!(answer["stdout"], "anew\n", "{anew:?}");
    assert!(!answer["restarted"].is_null(), "{anew:?}");
    assert_eq!((rented.daytona.made(), rented.daytona.machines().len()), (2, 1));
    let removed = rented.run(&["session", "rm", "s"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
    assert_eq!(rented.daytona.machines(), Vec::<String>::new());
    assert_eq!(rented.daytona.wrong(), Vec::<String>::new());
}

#[test]
fn auto_picks_it_only_with_a_key_and_says_so() {
    let rented = Rented::new();
    let ran = rented.run(&["exec", "--json", "echo there"]);
    let answer = ran.json();
    assert_eq!(
        (answer["backend"].as_str(), answer["stdout"].as_str()),
        (Some("daytona"), Some("there\n")),
        "{ran:?}"
    );
    assert!(answer["notes"].to_string().contains("auto picked a provider"), "{ran:?}");
    let status = rented.run(&["sandbox", "status", "--json"]);
    assert!(status.stdout.contains("is removed 60 minutes later"), "{status:?}");
    let without = rented.place.run(["sandbox", "status", "--json"]);
    assert!(without.stdout.contains("daytona-not-configured"), "{without:?}");
    let here = rented.place.run(["exec", "--json", "echo here"]).json();
    assert_ne!(here["backend"], "daytona");
    assert_eq!((rented.daytona.machines(), rented.daytona.made()), (vec![], 1));
}

#[test]
fn a_sandbox_that_the_provider_alone_knows_of_is_listed_and_pruned() {
    let rented = Rented::new();
    let made = rented.run(&["exec", "--session", "s", "--backend", "daytona", "true"]);
    assert_eq!(made.status, Some(0), "{made:?}");
    let listed = rented.run(&["sandbox", "ps", "--json"]).json();
    let told = listed["sandboxes"][0].clone();
    let name = rented.daytona.machines().remove(0);
    let provider = serde_json::json!({ "name": name, "state": "started", "known": true });
    assert_eq!((&told["provider"], &told["session"]), (&provider, &serde_json::json!("s")), "{told}");
    // As when a data directory is put back from an older copy.
    let id = told["id"].as_str().unwrap();
    std::fs::remove_file(rented.place.data().join(format!("remote/daytona/{id}.json"))).unwrap();
    let listed = rented.run(&["sandbox", "ps"]);
    assert!(listed.stdout.contains("started, unknown here"), "{listed:?}");
    assert!(listed.stdout.contains("gone"), "the session's own is not there any more: {listed:?}");
    let pruned = rented.run(&["sandbox", "prune"]);
    assert_eq!(pruned.status, Some(0), "{pruned:?}");
    assert_eq!(rented.daytona.machines(), Vec::<String>::new());
    assert_eq!(rented.daytona.wrong(), Vec::<String>::new());
}
