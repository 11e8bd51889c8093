//! Sessions at Vercel, from the command line to a stand-in and back.

use std::sync::Arc;

use moltis_backend_namespaces::NamespacesBackend;
use moltis_testkit::remote::vercel::Vercel;

use crate::support::{Place, Ran};

/// A stand-in, and a place whose environment knows of it.
struct Rented {
    place: Place,
    vercel: Vercel,
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
        let vercel = runtime.block_on(Vercel::start(Arc::new(backend)));
        Self { place: Place::new(), vercel, _machines: machines, runtime }
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.place.moltis(args);
        command.envs([
            ("VERCEL_TOKEN", Vercel::TOKEN),
            ("VERCEL_PROJECT_ID", Vercel::PROJECT),
            ("VERCEL_TEAM_ID", Vercel::TEAM),
            ("VERCEL_API_URL", &self.vercel.url()),
        ]);
        let ran: Ran = command.output().unwrap().into();
        assert!(!ran.stdout.contains(Vercel::TOKEN) && !ran.stderr.contains(Vercel::TOKEN), "{ran:?}");
        ran
    }
}

#[test]
fn a_command_runs_on_a_machine_that_ends_with_it() {
    let rented = Rented::new();
    let ran = rented.run(&["exec", "--backend", "vercel", "echo out; echo err >&2; exit 7"]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(7), "out\n"), "{ran:?}");
    assert!(ran.stderr.contains("err\n"), "{ran:?}");
    let refused = rented.run(&["exec", "--backend", "vercel", "--pids", "5", "true"]);
    assert_eq!(refused.status, Some(125), "{refused:?}");
    assert!(refused.stderr.contains("demand-not-kept"), "{refused:?}");
    assert_eq!((rented.vercel.machines(), rented.vercel.made()), (vec![], 1));
    assert_eq!(rented.vercel.wrong(), Vec::<String>::new());
}

#[test]
fn a_session_keeps_its_machine_and_gets_a_new_one_when_its_time_is_up() {
    let rented = Rented::new();
    let first = rented.run(&["exec", "--session", "s", "--backend", "vercel", "echo kept >/tmp/kept"]);
    assert_eq!(first.status, Some(0), "{first:?}");
    let again = rented.run(&["exec", "--session", "s", "cat /tmp/kept"]);
    assert_eq!((again.status, again.stdout.as_str()), (Some(0), "kept\n"), "{again:?}");
    let listed = rented.run(&["sandbox", "ps", "--json"]);
    assert!(listed.stdout.contains("\"vercel\""), "{listed:?}");
    // And one on which packages were installed, which is gone.
    assert_eq!((rented.vercel.made(), rented.vercel.machines().len()), (2, 1));
    rented.runtime.block_on(rented.vercel.expire());
    let anew = rented.run(&["exec", "--session", "s", "--json", "cat /tmp/kept || echo anew"]);
    let answer = anew.json();
    assert_eq!(answer["stdout"], "anew\n", "{anew:?}");
    assert!(!answer["restarted"].is_null(), "{anew:?}");
    // Made from what was kept of that.
    assert_eq!((rented.vercel.made(), rented.vercel.machines().len()), (3, 1));
    let removed = rented.run(&["session", "rm", "s"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
    assert_eq!(rented.vercel.machines(), Vec::<String>::new());
    assert_eq!(rented.vercel.wrong(), Vec::<String>::new());
}

#[test]
fn auto_picks_it_only_with_a_token_and_says_so() {
    let rented = Rented::new();
    let ran = rented.run(&["exec", "--json", "echo there"]);
    let answer = ran.json();
    assert_eq!(
        (answer["backend"].as_str(), answer["stdout"].as_str()),
        (Some("vercel"), Some("there\n")),
        "{ran:?}"
    );
    assert!(answer["notes"].to_string().contains("auto picked a provider"), "{ran:?}");
    let status = rented.run(&["sandbox", "status", "--json"]);
    assert!(status.stdout.contains("API v2"), "{status:?}");
    let without = rented.place.run(["sandbox", "status", "--json"]);
    assert!(without.stdout.contains("vercel-not-configured"), "{without:?}");
    let here = rented.place.run(["exec", "--json", "echo here"]).json();
    assert_ne!(here["backend"], "vercel");
    assert_eq!((rented.vercel.machines(), rented.vercel.made()), (vec![], 1));
}
