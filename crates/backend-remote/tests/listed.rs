//! The provider's own list of sandboxes, beside what is written down.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use moltis_sandbox::{Backend, Lifetime, Provided, SandboxRecord, SandboxSpec, SessionKey};
use moltis_testkit::remote::Fault;
use moltis_testkit::remote::daytona::Age;

use crate::{daytona, rig};

fn spec(key: &str) -> SandboxSpec {
    SandboxSpec::new(SessionKey::new(key).unwrap(), Lifetime::Idle(Duration::from_secs(1800)))
}

/// Name, state, whether it is known here, and whether it runs.
fn told(record: &SandboxRecord) -> Option<(String, String, bool, bool)> {
    let Provided { name, state, known } = record.provider.clone()?;
    Some((name, state, known, record.running))
}

/// Makes two sandboxes, of which one is forgotten; the other one is told as known, the lost one can be removed, and only it.
async fn a_lost_one_is_listed_and_removed(
    data: &Path,
    backend: impl Fn() -> Arc<dyn Backend>,
    machines: impl Fn() -> Vec<String>,
    running: &str,
) {
    let first = backend();
    assert_eq!(first.list().await.unwrap(), [], "nothing was ever made");
    first.open(&spec("kept")).await.unwrap();
    let lost = first.open(&spec("lost")).await.unwrap();
    let folder = data.join("remote").join(first.name().as_str());
    let written = folder.join(format!("{}.json", lost.id()));
    let entry: serde_json::Value = serde_json::from_slice(&std::fs::read(&written).unwrap()).unwrap();
    std::fs::remove_file(&written).unwrap();
    let name = entry["name"].as_str().unwrap();

    let next = backend();
    let listed = next.list().await.unwrap();
    let of = |id: &moltis_sandbox::SandboxId| listed.iter().find(|record| record.id == *id).unwrap();
    let kept = told(of(&spec("kept").id())).unwrap();
    assert_eq!((listed.len(), kept.1.as_str(), kept.2, kept.3), (2, running, true, true), "{listed:?}");
    assert_eq!(told(of(lost.id())).unwrap(), (name.to_owned(), running.to_owned(), false, true));
    assert!(of(lost.id()).created_secs.abs_diff(of(&spec("kept").id()).created_secs) < 600, "{listed:?}");
    assert!(next.find(lost.id()).await.unwrap().is_none(), "nobody uses it");
    next.discard(&kept.0).await.unwrap();
    assert_eq!(machines().len(), 2, "what is written down is not thrown away");
    next.remove(lost.id()).await.unwrap();
    assert_eq!(machines(), std::slice::from_ref(&kept.0));
    next.remove(&spec("kept").id()).await.unwrap();
    assert_eq!((machines(), next.list().await.unwrap()), (Vec::<String>::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_daytona_alone_knows_of_is_listed_and_can_be_removed() {
    let rig = daytona::Rig::new(Age::Newer).await;
    let machines = || rig.daytona.machines();
    a_lost_one_is_listed_and_removed(rig.data.path(), || rig.backend(), machines, "started").await;
    assert_eq!(rig.daytona.wrong(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_vercel_alone_knows_of_is_listed_and_can_be_removed() {
    let rig = rig::Rig::new().await;
    let machines = || rig.vercel.machines();
    a_lost_one_is_listed_and_removed(rig.data.path(), || rig.backend(), machines, "running").await;
    assert_eq!(rig.vercel.wrong(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_lost_is_thrown_away_and_not_the_one_that_took_its_place() {
    let rig = daytona::Rig::new(Age::Newer).await;
    let first = rig.backend();
    let lost = first.open(&spec("s")).await.unwrap();
    let name = rig.daytona.machines().remove(0);
    std::fs::remove_file(rig.data.path().join(format!("remote/daytona/{}.json", lost.id()))).unwrap();
    // The same process does not look for what others left again.
    let next = first.open(&spec("s")).await.unwrap();
    let known = |record: &SandboxRecord| record.provider.as_ref().map(|told| (told.name == name, told.known));
    let mut listed: Vec<_> = first.list().await.unwrap().iter().filter_map(known).collect();
    listed.sort_unstable();
    assert_eq!(listed, [(false, true), (true, false)]);
    first.discard(&name).await.unwrap();
    assert_eq!((rig.daytona.machines().len(), rig.daytona.machines().contains(&name)), (1, false));
    next.close().await.unwrap();
    assert_eq!(rig.daytona.machines(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_stopped_is_told_so_and_a_list_that_cannot_be_had_hides_nothing() {
    let rig = daytona::Rig::new(Age::Newer).await;
    let backend = rig.backend();
    let sandbox = backend.open(&spec("s")).await.unwrap();
    rig.daytona.expire().await;
    let listed = backend.list().await.unwrap();
    let (name, state, known, runs) = told(&listed[0]).unwrap();
    assert_eq!((state.as_str(), known, runs), ("stopped", true, false));
    assert!(name.starts_with("moltis-"));
    rig.daytona.fail("GET", "/api/sandbox", Fault::Status(403, "Forbidden", None), 1);
    let listed = backend.list().await.unwrap();
    assert_eq!((listed.len(), listed[0].provider.clone()), (1, None));
    sandbox.close().await.unwrap();
    assert_eq!(rig.daytona.machines(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_removed_as_unknown_while_something_that_is_written_down_cannot_be_read() {
    let rig = daytona::Rig::new(Age::Newer).await;
    let kept = rig.backend().open(&spec("kept")).await.unwrap();
    let name = rig.daytona.machines().remove(0);
    let path = rig.data.path().join(format!("remote/daytona/{}.json", kept.id()));
    let written = std::fs::read(&path).unwrap();
    std::fs::write(&path, b"{\"version\":\"of another time\"}").unwrap();

    let next = rig.backend();
    next.open(&spec("next")).await.unwrap().close().await.unwrap();
    assert_eq!(rig.daytona.machines(), std::slice::from_ref(&name));
    let unreadable = |error: &moltis_sandbox::Error| {
        assert_eq!((error.kind(), error.code()), ("unavailable", "journal-unreadable"));
        assert!(error.diagnosis().message.contains(path.to_str().unwrap()), "{error}");
    };
    unreadable(&next.discard(&name).await.unwrap_err());
    let listed = next.list().await.unwrap();
    assert_eq!(
        listed.iter().filter_map(told).collect::<Vec<_>>(),
        [(name.clone(), "started".into(), false, true)]
    );
    unreadable(&next.remove(kept.id()).await.unwrap_err());
    unreadable(&next.open(&spec("kept")).await.err().unwrap());
    assert_eq!(rig.daytona.machines(), [name]);

    std::fs::write(&path, written).unwrap();
    let again = next.open(&spec("kept")).await.unwrap();
    assert!(!again.is_new());
    again.close().await.unwrap();
    assert_eq!(rig.daytona.machines(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_for_what_others_left_that_failed_is_made_again() {
    let rig = daytona::Rig::new(Age::Newer).await;
    let lost = rig.backend().open(&spec("lost")).await.unwrap();
    let name = rig.daytona.machines().remove(0);
    std::fs::remove_file(rig.data.path().join(format!("remote/daytona/{}.json", lost.id()))).unwrap();
    let next = rig.backend();
    rig.daytona.fail("GET", "/api/sandbox", Fault::Status(403, "Forbidden", None), 1);
    let other = next.open(&spec("other")).await.unwrap();
    assert!(rig.daytona.machines().contains(&name), "it could not be looked for");
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while rig.daytona.machines().contains(&name) {
        assert!(std::time::Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(300)).await;
        next.open(&spec("other")).await.unwrap();
    }
    other.close().await.unwrap();
    assert_eq!(rig.daytona.machines(), Vec::<String>::new());
}
