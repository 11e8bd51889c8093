//! What a machine at Vercel has and may reach: packages by a snapshot, and a list of hosts.

use std::time::Duration;

use moltis_sandbox::{Error, ImageChoice, Lifetime, Network, Origin, SandboxSpec, SessionKey, Setting};
use moltis_testkit::remote::Fault;
use serde_json::json;

use crate::rig::Rig;

fn spec(key: &str, packages: &[&str], origin: Origin) -> SandboxSpec {
    let mut spec = SandboxSpec::new(SessionKey::new(key).unwrap(), Lifetime::Idle(Duration::from_secs(1800)));
    spec.image = Some(ImageChoice::Base {
        reference: Setting::built_in("docker.io/library/ubuntu:24.04".to_owned()),
        packages: Setting::new(packages.iter().map(|name| (*name).to_owned()).collect(), origin),
    });
    spec
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packages_are_installed_once_and_kept_as_a_snapshot() {
    let rig = Rig::new().await;
    let first = rig.backend().open(&spec("a", &["jq", "@python"], Origin::File)).await.unwrap();
    let (packages, policy) = rig.vercel.looks_like(&rig.vercel.machines()[0]).await;
    assert!(packages.contains(&"jq".to_owned()) && packages.contains(&"python3".to_owned()), "{packages:?}");
    assert_eq!(policy, json!({ "mode": "deny-all" }), "its own network was never open");
    assert_eq!((rig.vercel.made(), rig.vercel.snapshots(), rig.vercel.machines().len()), (2, 1, 1));
    // Another session, in another process, starts from it.
    let second = rig.backend().open(&spec("b", &["jq", "@python"], Origin::File)).await.unwrap();
    assert_eq!((rig.vercel.made(), rig.vercel.snapshots()), (3, 1));
    // It ends before its time: it is made anew.
    rig.vercel.forget_snapshots();
    let third = rig.backend().open(&spec("c", &["jq", "@python"], Origin::File)).await.unwrap();
    assert_eq!((rig.vercel.made(), rig.vercel.snapshots()), (5, 1));
    // Others are others.
    let fourth = rig.backend().open(&spec("d", &["jq"], Origin::File)).await.unwrap();
    assert_eq!(rig.vercel.snapshots(), 2);
    for sandbox in [first, second, third, fourth] {
        sandbox.close().await.unwrap();
    }
    assert_eq!((rig.vercel.machines(), rig.vercel.wrong()), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_package_that_is_not_known_is_named_and_of_the_usual_ones_left_out() {
    let rig = Rig::new().await;
    let error = rig.backend().open(&spec("a", &["jq", "unknown-thing"], Origin::File)).await.err().unwrap();
    assert_eq!((error.kind(), error.code()), ("unavailable", "packages-failed"));
    assert!(format!("{error:?}").contains("unknown-thing"), "{error:?}");
    assert_eq!((rig.vercel.machines(), rig.vercel.snapshots()), (vec![], 0));
    let usual = rig.backend().open(&spec("a", &["jq", "unknown-thing"], Origin::Default)).await.unwrap();
    let (packages, _) = rig.vercel.looks_like(&rig.vercel.machines()[0]).await;
    assert_eq!(packages, ["jq"]);
    usual.close().await.unwrap();
    // What is used once is not worth the time, unless somebody asked for it.
    let mut once = spec("b", &["jq"], Origin::Default);
    once.lifetime = Lifetime::Ephemeral;
    let before = rig.vercel.made();
    rig.backend().open(&once).await.unwrap().close().await.unwrap();
    assert_eq!(rig.vercel.made(), before + 1);
    assert_eq!((rig.vercel.machines(), rig.vercel.wrong()), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_while_packages_are_installed_leaves_nothing() {
    let rig = Rig::new().await;
    for (path, fault) in [
        ("/snapshot", Fault::Status(500, "internal", None)),
        ("/snapshot", Fault::CutAfter),
        ("/cmd", Fault::Status(402, "payment_required", None)),
        ("/extend-timeout", Fault::Status(500, "internal", None)),
    ] {
        rig.vercel.fail("POST", path, fault.clone(), 1);
        let opened = rig.backend().open(&spec("a", &["jq"], Origin::File)).await;
        let error: Error = opened.err().unwrap();
        assert_eq!(error.kind(), "unavailable", "{path} {fault:?}: {error}");
        assert_eq!(rig.vercel.machines(), Vec::<String>::new(), "{path} {fault:?}");
    }
    rig.backend().open(&spec("a", &["jq"], Origin::File)).await.unwrap().close().await.unwrap();
    assert_eq!((rig.vercel.machines(), rig.vercel.wrong()), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_provider_is_told_what_may_be_reached() {
    let rig = Rig::new().await;
    let backend = rig.backend();
    let mut spec = spec("a", &[], Origin::File);
    spec.network = Setting::new(Network::Trusted, Origin::Flag);
    let sandbox = backend.open(&spec).await.unwrap();
    assert!(sandbox.takes_list());
    let name = rig.vercel.machines()[0].clone();
    let now = async || rig.vercel.looks_like(&name).await.1;
    let told = || rig.vercel.calls().iter().filter(|call| call.ends_with("/network-policy")).count();
    assert_eq!(now().await, json!({ "mode": "deny-all" }), "nothing before the list");
    sandbox.allow(&[]).await.unwrap();
    assert_eq!(told(), 0, "it is so already");
    let hosts = ["*.a.org".to_owned(), "b.org".to_owned()];
    sandbox.allow(&hosts).await.unwrap();
    sandbox.allow(&hosts).await.unwrap();
    assert_eq!(now().await, json!({ "mode": "custom", "allowedDomains": ["*.a.org", "b.org"] }));
    assert_eq!(told(), 1);
    // Another process knows nothing of it, and says it again.
    let found = rig.backend().adopt(&spec).await.unwrap().unwrap();
    found.allow(&[]).await.unwrap();
    assert_eq!(now().await, json!({ "mode": "deny-all" }));
    // What was not taken is an error, and said again the next time.
    rig.vercel.fail("POST", "/network-policy", Fault::Status(403, "forbidden", None), 1);
    assert_eq!(found.allow(&hosts).await.unwrap_err().code(), "provider-forbidden");
    found.allow(&hosts).await.unwrap();
    assert_eq!(now().await["mode"], "custom");
    found.close().await.unwrap();
    spec.network = Setting::new(Network::Open, Origin::Flag);
    let open = backend.open(&spec).await.unwrap();
    assert!(!open.takes_list());
    open.close().await.unwrap();
    assert_eq!((rig.vercel.machines(), rig.vercel.wrong()), (vec![], vec![]));
}
