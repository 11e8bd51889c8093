//! What would be said of a host.

use moltis_egress::{Action, Refusal, Source, Tested, TestedAddress, Upstream};

use crate::world::{World, asking, policy};

fn tested(domain: &str, action: Action, source: Source, why: &str) -> Tested {
    Tested {
        domain: domain.into(),
        port: 443,
        action,
        source,
        code: None,
        pattern: None,
        why: why.into(),
        asks: false,
        addresses: Vec::new(),
        upstream: None,
    }
}

#[tokio::test]
async fn without_connecting() {
    let world = World::new(policy(&[], &[]));
    let rules = policy(&["*.Good.test", "10.0.0.0/8"], &["bad.good.test", "10.9.0.0/16"]);
    world.names.put("a.good.test", &[&["10.1.1.1", "127.0.0.1", "10.9.9.9"]]);
    let is = async |host: &str| world.proxy.test(&rules, host, 443).await;
    let address = |address: &str, refused: Option<&str>| TestedAddress {
        address: address.parse().unwrap(),
        refused: refused.map(str::to_owned),
    };
    assert_eq!(
        is("A.good.test.").await,
        Ok(Tested {
            pattern: Some("*.good.test".into()),
            addresses: vec![
                address("10.1.1.1", None),
                address("127.0.0.1", Some("loopback, and not listed")),
                address("10.9.9.9", Some("10.9.0.0/16")),
            ],
            ..tested("a.good.test", Action::Allowed, Source::Config, "*.good.test lets it through")
        })
    );
    assert_eq!(
        is("bad.good.test").await,
        Ok(Tested {
            pattern: Some("bad.good.test".into()),
            code: Some("host-denied"),
            ..tested("bad.good.test", Action::Denied, Source::Config, "bad.good.test forbids it")
        })
    );
    assert_eq!(
        is("b.good.test").await,
        Ok(Tested {
            pattern: Some("*.good.test".into()),
            code: Some("name-unresolved"),
            ..tested("b.good.test", Action::Allowed, Source::Unreachable, "the name has no address")
        })
    );
    assert_eq!(
        is("127.0.0.1").await,
        Ok(Tested {
            code: Some("address-refused"),
            ..tested("127.0.0.1", Action::Denied, Source::Address, "loopback, and not listed")
        })
    );
    assert_eq!(
        world.proxy.test(&asking(&[], &[]), "new.test", 443).await,
        Ok(Tested {
            code: Some("host-unknown"),
            asks: true,
            ..tested("new.test", Action::Denied, Source::Unknown, "no rule names it")
        })
    );
    assert_eq!(is("127.1").await, Err(Refusal::Host("it looks like an address; write four decimal numbers")));
    assert_eq!(world.so_far(), Vec::<String>::new());
}

#[tokio::test]
async fn through_another_proxy() {
    let upstream = Upstream::parse("http://u:p@proxy.test:3128", "direct.test").unwrap();
    let world = World::with(policy(&[], &[]), moltis_egress::ProxyLimits::default(), Some(upstream));
    let rules = policy(&["*"], &[]);
    assert_eq!(
        world.proxy.test(&rules, "nowhere.test", 443).await,
        Ok(Tested {
            pattern: Some("*".into()),
            upstream: Some("http://proxy.test:3128".into()),
            ..tested("nowhere.test", Action::Allowed, Source::Config, "* lets it through")
        })
    );
    let refused = world.proxy.test(&rules, "site.test", 443).await.unwrap();
    assert_eq!((refused.action, refused.code), (Action::Denied, Some("address-refused")));
    let direct = world.proxy.test(&rules, "direct.test", 443).await.unwrap();
    assert_eq!((direct.upstream, direct.code), (None, Some("name-unresolved")));
}
