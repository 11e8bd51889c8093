//! Snapshots of sessions: what is in them, what begins from them, and what is left when something dies in between.

use moltis_config::words::HomePersistence;
use moltis_runtime::Runtime;
use moltis_runtime::store::{Caller, Gone, Making, NewSnapshot, SnapshotHome, Store};
use moltis_sandbox::BackendName::{Namespaces, RestrictedHost};
use moltis_sandbox::Result;

use crate::sessions::{Here, background, key, open, out, request, set, stored};

fn me() -> Caller {
    Caller::this_user()
}

fn with(here: &Here, home: HomePersistence) -> Runtime {
    here.runtime_with(|config| config.tools.exec.sandbox.home_persistence.value = home)
}

/// The archives that lie in the data directory.
fn archives(here: &Here) -> Vec<String> {
    let folder = here.data().join("sandbox/snapshots");
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    found.sort();
    found
}

fn code<T>(result: Result<T>) -> String {
    result.map(|_| ()).unwrap_err().code().to_owned()
}

#[tokio::test]
async fn a_session_goes_back_to_what_it_was_each_time_that_its_sandbox_is_made() {
    for home in [HomePersistence::Session, HomePersistence::Off, HomePersistence::Shared] {
        let here = Here::new(Namespaces);
        let runtime = with(&here, home);
        let mut session = open(&runtime, "s").await;
        let make = "mkdir -p -m 750 /tmp/d ~/d; echo one >/tmp/d/x; echo one >~/d/x; ln -s /etc/hostname ~/d/link; \
                    mkfifo /tmp/fifo; echo hidden >~/.dot; chmod 600 ~/.dot";
        out(&mut session, make).await;
        let taken = runtime.take_snapshot(&key("s"), Some("first"), &me()).await.unwrap();
        let copied = home != HomePersistence::Shared;
        assert_eq!(taken.snapshot.home == SnapshotHome::Copied, copied);
        assert_eq!(taken.notes.len(), if copied { 2 } else { 3 }, "{:?}", taken.notes);
        out(&mut session, "rm -r /tmp/d; echo two >/tmp/y; echo two >~/d/x; touch ~/new; rm ~/.dot").await;
        drop(session);
        runtime.restore_session(&key("s"), Some("first"), false).await.unwrap();
        for round in 0..2 {
            let mut session = open(&runtime, "s").await;
            let look = "ls /tmp; cat /tmp/d/x ~/d/x; readlink ~/d/link; stat -c %a /tmp/d; ls -A ~ | grep -v files; \
                        stat -c %a ~/.dot";
            let said = out(&mut session, look).await;
            let expected = match copied {
                true => "d\none\none\n/etc/hostname\n750\n.dot\nd\n600\n",
                // The shared one is nobody's to take back.
                false => "d\none\ntwo\n/etc/hostname\n750\nd\nnew\n",
            };
            assert_eq!(said, expected, "{home:?} {round}");
            out(&mut session, "echo three >/tmp/d/x").await;
            drop(session);
            runtime.stop_sandbox(&key("s")).await.unwrap();
        }
        let mut session = open(&runtime, "s").await;
        if home == HomePersistence::Session {
            // A home that lasts is replaced once, and is the session's again from then on.
            out(&mut session, "echo mine >~/d/x").await;
            runtime.stop_sandbox(&key("s")).await.unwrap();
            assert_eq!(out(&mut open(&runtime, "s").await, "cat ~/d/x").await, "mine\n");
        }
        drop(session);
        here.end().await;
    }
}

#[tokio::test]
async fn a_fork_sets_what_the_other_sets_and_is_apart_from_it() {
    let here = Here::new(Namespaces);
    let runtime = with(&here, HomePersistence::Session);
    set(&runtime, "s", r#"{"limits": {"pids": 77}, "env": {"A": "secret"}}"#).await;
    out(&mut open(&runtime, "s").await, "echo one >/tmp/x; echo one >~/x").await;
    let (made, _) = runtime.fork_session(&stored(&runtime, "s").await, &key("t"), None, &me()).await.unwrap();
    assert_eq!((&made.overrides, &made.env), (&stored(&runtime, "s").await.overrides, &vec!["A".to_owned()]));
    let mut forked = open(&runtime, "t").await;
    assert_eq!(
        out(&mut forked, "cat /tmp/x ~/x; echo $A; echo two >~/x; echo two >/tmp/x").await,
        "one\none\nsecret\n"
    );
    assert_eq!(out(&mut open(&runtime, "s").await, "cat /tmp/x ~/x").await, "one\none\n");
    let again = runtime.fork_session(&stored(&runtime, "s").await, &key("t"), None, &me()).await;
    assert_eq!(code(again), "session-exists");
    // Whoever looked at what it set has not looked at what it sets now.
    let judged = stored(&runtime, "s").await;
    set(&runtime, "s", r#"{"limits": {"pids": 78}}"#).await;
    let changed = runtime.fork_session(&judged, &key("u"), None, &me()).await;
    assert_eq!(
        (code(changed), runtime.session(&key("u")).await.unwrap()),
        ("session-changed".to_owned(), None)
    );
    // What is refused leaves no snapshot.
    assert_eq!(runtime.snapshots(None).await.unwrap().len(), 1);
    drop(forked);
    runtime.remove_session(&key("t"), false).await.unwrap();
    let onto_a_home = runtime.fork_session(&stored(&runtime, "s").await, &key("t"), None, &me()).await;
    assert_eq!(code(onto_a_home), "fork-home-exists");
    let removed = runtime.remove_session(&key("s"), true).await.unwrap();
    assert_eq!((removed.snapshots, archives(&here)), (1, Vec::new()));
    here.end().await;
}

#[tokio::test]
async fn what_runs_is_not_ended_unless_that_was_asked_for() {
    let here = Here::new(Namespaces);
    let runtime = here.runtime();
    let mut session = open(&runtime, "s").await;
    background(&mut session, "sleep 1000").await;
    runtime.take_snapshot(&key("s"), Some("one"), &me()).await.unwrap();
    assert_eq!(code(runtime.restore_session(&key("s"), Some("one"), false).await), "sandbox-busy");
    assert_eq!(stored(&runtime, "s").await.begins, None);
    let session = runtime.restore_session(&key("s"), Some("one"), true).await.unwrap();
    assert_eq!(session.ended, Some(Gone::Recreated));
    assert_eq!(out(&mut open(&runtime, "s").await, "pgrep -c sleep").await, "0\n");
    here.end().await;
}

#[tokio::test]
async fn a_snapshot_is_used_where_it_was_taken_and_goes_when_nothing_begins_from_it() {
    let here = Here::new(Namespaces);
    let runtime = here.runtime();
    open(&runtime, "s").await;
    let id = runtime.take_snapshot(&key("s"), None, &me()).await.unwrap().snapshot.id;
    runtime.restore_session(&key("s"), Some(id.as_str()), false).await.unwrap();
    assert_eq!(code(runtime.remove_snapshot(&key("s"), id.as_str()).await), "snapshot-in-use");
    assert_eq!(code(runtime.remove_snapshot(&key("t"), id.as_str()).await), "snapshot-missing");
    set(&runtime, "s", r#"{"sandboxBackend": "restricted-host"}"#).await;
    assert_eq!(code(runtime.open_session(&request("s")).await), "snapshot-elsewhere");
    set(&runtime, "s", r#"{"sandboxBackend": null}"#).await;
    runtime.restore_session(&key("s"), None, false).await.unwrap();
    assert_eq!(runtime.remove_snapshot(&key("s"), id.as_str()).await, Ok(id));
    assert_eq!(archives(&here), Vec::<String>::new());
    here.end().await;

    let here = Here::new(RestrictedHost);
    let runtime = here.runtime();
    open(&runtime, "s").await;
    assert_eq!(code(runtime.take_snapshot(&key("s"), None, &me()).await), "snapshot-unsupported");
    here.end().await;
}

#[tokio::test]
async fn a_session_has_so_many_snapshots_and_no_more_and_two_at_once_are_two() {
    let here = Here::new(Namespaces);
    let runtime = here.runtime();
    out(&mut open(&runtime, "s").await, "echo x >/tmp/x").await;
    let (s, by) = (key("s"), me());
    let (one, two) =
        tokio::join!(runtime.take_snapshot(&s, Some("a"), &by), runtime.take_snapshot(&s, Some("b"), &by));
    assert_ne!(one.unwrap().snapshot.id, two.unwrap().snapshot.id);
    let same =
        tokio::join!(runtime.take_snapshot(&s, Some("c"), &by), runtime.take_snapshot(&s, Some("c"), &by));
    let codes: Vec<_> =
        [same.0, same.1].into_iter().filter_map(Result::err).map(|e| e.code().to_owned()).collect();
    assert_eq!(codes, ["snapshot-name-taken"]);
    for _ in 3..32 {
        runtime.take_snapshot(&s, None, &by).await.unwrap();
    }
    assert_eq!(code(runtime.take_snapshot(&s, None, &by).await), "snapshots-full");
    assert_eq!(archives(&here).len(), 32);
    here.end().await;
}

#[tokio::test]
async fn what_a_dead_process_left_half_made_is_removed_and_never_used() {
    let here = Here::new(Namespaces);
    let runtime = here.runtime();
    open(&runtime, "s").await;
    let store = Store::new(here.data());
    let new = NewSnapshot {
        session: key("s"),
        name: Some("half".to_owned()),
        backend: Namespaces,
        home: SnapshotHome::Copied,
    };
    let Making::Begun(id) = store.run(move |db| db.snapshot_making(&new, &me(), 1)).await.unwrap() else {
        panic!("it was not begun")
    };
    let folder = here.data().join("sandbox/snapshots").join(id.as_str());
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("tmp.tar"), "half").unwrap();
    assert_eq!(runtime.snapshots(None).await.unwrap(), []);
    assert_eq!(code(runtime.restore_session(&key("s"), Some("half"), false).await), "snapshot-missing");
    // Whoever takes one has the session to himself, and clears away.
    let taken = runtime.take_snapshot(&key("s"), Some("half"), &me()).await.unwrap();
    assert_eq!(archives(&here), [taken.snapshot.id.to_string()]);
    here.end().await;
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_unpacked_leaves_no_sandbox_and_the_home_as_it_was() {
    let here = Here::new(Namespaces);
    let runtime = with(&here, HomePersistence::Session);
    out(&mut open(&runtime, "s").await, "echo one >~/x").await;
    let id = runtime.take_snapshot(&key("s"), None, &me()).await.unwrap().snapshot.id;
    out(&mut open(&runtime, "s").await, "echo two >~/x").await;
    runtime.restore_session(&key("s"), Some(id.as_str()), false).await.unwrap();
    let home = here.data().join("sandbox/snapshots").join(id.as_str()).join("home.tar");
    let aside = home.with_extension("aside");
    std::fs::rename(&home, &aside).unwrap();
    assert_eq!(code(runtime.open_session(&request("s")).await), "snapshot-unusable");
    assert_eq!(stored(&runtime, "s").await.sandbox, None);
    assert_eq!(std::fs::read_to_string(runtime.home(&key("s")).unwrap().join("x")).unwrap(), "two\n");
    // One that was cut off would take the home with it before that is seen.
    std::fs::write(&home, &std::fs::read(&aside).unwrap()[..1024]).unwrap();
    assert_eq!(code(runtime.open_session(&request("s")).await), "snapshot-unusable");
    assert_eq!(std::fs::read_to_string(runtime.home(&key("s")).unwrap().join("x")).unwrap(), "two\n");
    std::fs::rename(&aside, &home).unwrap();
    assert_eq!(out(&mut open(&runtime, "s").await, "cat ~/x").await, "one\n");
    here.end().await;
}
