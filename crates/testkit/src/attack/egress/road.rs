//! Through the proxy to where the policy does not lead: each case is a list of conversations with it, had in a sandbox
//! with the real proxy, and, as the control, with a proxy that defends nothing.

use std::sync::Arc;

use moltis_egress::{Action, ProxyLimits, Source};
use moltis_sandbox::Promise;
use serde_json::json;

use super::world::{Entries, Road, World, proxy, proxy_of};
use crate::attack::{all_reached, all_stopped, inside, outside};
use crate::case::Control;
use crate::{Case, Ctx, Fail, Verdict, ensure, ensure_eq, fail};

pub(super) fn cases() -> Vec<Case> {
    // Each of these is a list of conversations and a policy.
    macro_rules! through {
        ($id:literal, $attack:path) => {
            Case::new($id, |ctx| Box::pin(refused(ctx, $attack)))
                .control(|ctx| Box::pin(reached(ctx, $attack)))
                .law(1)
                .limit(90)
        };
    }
    vec![
        through!("egress.unlisted", unlisted),
        through!("egress.empty-list", empty_list),
        through!("egress.forbidden-port", forbidden_port),
        through!("egress.private-names", private_names),
        through!("egress.private-addresses", private_addresses),
        through!("egress.rebinding", rebinding),
        through!("egress.own-addresses", own_addresses),
        through!("egress.host-unlike-target", host_unlike_target),
        through!("egress.sni-unlike-connect", sni_unlike_connect),
        through!("egress.userinfo", userinfo),
        through!("egress.smuggling", smuggling),
        through!("egress.kept-alive", kept_alive),
        through!("egress.socks", socks),
        through!("egress.split-replies", split_replies),
        Case::new("egress.other-session", |ctx| Box::pin(other_session(ctx)))
            .control(|ctx| Box::pin(reached(ctx, empty_list)))
            .law(1)
            .limit(90),
    ]
}

/// A list of conversations.
struct Attack {
    /// What the policy lets through.
    trusted: Vec<String>,
    /// What is said, piece by piece, and what must be in the answer for it to have got through.
    talks: Vec<Talk>,
    /// Whether the proxy takes `own` for a server of Moltis's; otherwise it is like any other of the host.
    listens: bool,
}

impl Attack {
    fn of(trusted: Vec<String>, talks: Vec<Talk>) -> Self {
        Self { trusted, talks, listens: false }
    }
}

struct Talk {
    say: Vec<Vec<u8>>,
    want: Vec<&'static str>,
    /// Whether the machine may lack what it aims at, so that the control cannot work everywhere.
    optional: bool,
}

impl Talk {
    fn call(&self, port: u16) -> String {
        let say: Vec<String> = self.say.iter().map(|piece| hex(piece)).collect();
        format!("talk={}", json!({ "port": port, "say": say, "want": self.want }))
    }

    fn optional(mut self) -> Self {
        self.optional = true;
        self
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn talk(want: &'static str, pieces: &[&[u8]]) -> Talk {
    Talk { say: pieces.iter().map(|piece| piece.to_vec()).collect(), want: vec![want], optional: false }
}

/// CONNECT to what stands there as it is, and something through the tunnel.
fn connect(target: &str, want: &'static str) -> Talk {
    let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    talk(want, &[head.as_bytes(), b"hello"])
}

/// A plain request for a URL without its scheme.
fn get(url: &str, want: &'static str) -> Talk {
    let host = url.split('/').next().unwrap_or_default();
    talk(want, &[format!("GET http://{url} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()])
}

/// SOCKS 5 with this address part, and something through the tunnel.
fn socks_to(address: &[u8], port: u16, want: &'static str) -> Talk {
    let request = [&[5, 1, 0][..], address, &port.to_be_bytes()].concat();
    talk(want, &[&[5, 1, 0], &request, b"hello"])
}

fn socks_name(name: &str, port: u16, want: &'static str) -> Talk {
    let length = u8::try_from(name.len()).unwrap_or(u8::MAX);
    socks_to(&[&[3, length][..], name.as_bytes()].concat(), port, want)
}

/// All three ways to a host.
fn each_way(host: &str, port: u16, want: &'static str) -> [Talk; 3] {
    [
        connect(&format!("{host}:{port}"), want),
        get(&format!("{host}:{port}/"), want),
        socks_name(host, port, want),
    ]
}

/// What most policies let through: `good.test` on any port, and its address on its own port.
fn usual(world: &World) -> Vec<String> {
    vec!["good.test".to_owned(), format!("127.0.0.1:{}", world.good.port)]
}

/// Opens a road if the backend has one, and sees that what is allowed gets through.
macro_rules! need_trusted {
    ($ctx:expr) => {
        if let Promise::NotEnforced(reason) = &$ctx.guarantees.network_trusted {
            return Ok(Verdict::Declared(reason.clone()));
        }
    };
}
pub(super) use need_trusted;

/// What is allowed does get through, so that what does not was stopped by the policy.
pub(super) async fn works(road: &Road, world: &World) -> Result<(), Fail> {
    let call = connect(&format!("good.test:{}", world.good.port), "WORD-good").call(road.port);
    let found = inside(&road.place, &[&call]).await?;
    ensure!(found.iter().all(|found| found.reached), "what is allowed does not get through: {found:?}");
    Ok(())
}

/// Entries hold nothing that a terminal or a reader of lines would obey.
pub(super) fn entries_are_plain(entries: &Entries) -> Result<(), Fail> {
    for entry in entries.all() {
        let texts = [Some(&entry.domain), entry.reason.as_ref(), Some(&entry.session)];
        let plain = texts.into_iter().flatten().all(|text| !text.chars().any(char::is_control));
        ensure!(plain && entry.domain.len() <= 253, "an entry holds what it must not: {entry:?}");
    }
    Ok(())
}

async fn refused(ctx: &Ctx, attack: fn(&World) -> Attack) -> Result<Verdict, Fail> {
    need_trusted!(ctx);
    let world = World::new().await?;
    let Attack { trusted, talks, listens } = attack(&world);
    let own = listens.then_some(world.own.port);
    let (proxy, entries) = proxy_of(&world, ProxyLimits::default(), own);
    let road = Road::open(ctx, &proxy, "attacked", &usual(&world)).await?;
    works(&road, &world).await?;
    let before = entries.all().len();
    road.policy.send_replace(super::world::policy(&trusted));
    for some in talks.chunks(6) {
        let calls: Vec<String> = some.iter().map(|talk| talk.call(road.port)).collect();
        let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
        all_stopped(&inside(&road.place, &calls).await?).map_err(|e| {
            let said: Vec<String> =
                some.iter().map(|t| String::from_utf8_lossy(&t.say.concat()).into_owned()).collect();
            Fail::new(format!("{e}; said {said:?}; entries {:?}", &entries.all()[before..]))
        })?;
    }
    ensure!(!world.evil.heard_anything(), "what nobody may reach was reached");
    ensure!(!world.own.heard_anything(), "Moltis's own server was reached");
    entries_are_plain(&entries)?;
    // Every one of them is told of, and none let through but as what is allowed.
    let told = entries.all();
    ensure!(told.len() > before, "nothing was written down");
    for entry in &told[before..] {
        let fine = entry.action == Action::Denied
            || entry.domain == "good.test"
            || entry.domain == "rebind.test"
            || entry.source == Source::Unreachable;
        ensure!(fine, "let through: {entry:?}");
    }
    road.policy.send_replace(super::world::policy(&usual(&world)));
    works(&road, &world).await?;
    Ok(Verdict::Pass)
}

async fn reached(_ctx: &Ctx, attack: fn(&World) -> Attack) -> Result<Control, Fail> {
    let world = World::new().await?;
    let (port, _task) = world.naive().await?;
    let talks = attack(&world).talks;
    let calls: Vec<String> = talks.iter().map(|talk| talk.call(port)).collect();
    let optional: Vec<&str> =
        calls.iter().zip(&talks).filter(|(_, talk)| talk.optional).map(|(call, _)| call.as_str()).collect();
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    all_reached(&outside(&calls).await?, &optional)
}

fn unlisted(world: &World) -> Attack {
    let port = world.evil.port;
    let mut talks = Vec::new();
    for host in ["evil.test", "EVIL.test.", "x.good.test", "xgood.test", "good.test.evil.test"] {
        talks.extend(each_way(host, port, "WORD-evil"));
    }
    Attack::of(usual(world), talks)
}

fn empty_list(world: &World) -> Attack {
    Attack::of(Vec::new(), each_way("good.test", world.good.port, "WORD-good").into())
}

fn forbidden_port(world: &World) -> Attack {
    let trusted = vec![format!("good.test:{}", world.good.port), "127.0.0.1".to_owned()];
    Attack::of(trusted, each_way("good.test", world.twin.port, "WORD-twin").into())
}

fn private_names(world: &World) -> Attack {
    let port = world.own.port;
    let mut talks: Vec<Talk> = each_way("evil.test", world.evil.port, "WORD-evil").into();
    for host in ["mapped.test", "zero.test", "six.test", "own.test"] {
        talks.extend(each_way(host, port, "WORD-own").map(Talk::optional));
    }
    talks.extend(each_way("both.test", world.evil.port, "WORD-"));
    talks.extend(each_way("metadata.test", 80, "HTTP/1.1 200 OK\r\nContent-Length").map(Talk::optional));
    Attack::of(vec!["*".to_owned()], talks)
}

fn private_addresses(world: &World) -> Attack {
    let port = world.own.port;
    let mut talks = Vec::new();
    for host in ["127.0.0.2", "127.1", "2130706434", "0x7f000002", "0177.0.0.2", "0.0.0.0", "localhost", "0"]
    {
        talks.extend(each_way(host, port, "WORD-own"));
    }
    for host in ["[::1]", "[::ffff:127.0.0.2]", "[::ffff:7f00:2]", "[::]", "[64:ff9b::7f00:2]"] {
        talks.push(connect(&format!("{host}:{port}"), "WORD-own").optional());
        talks.push(get(&format!("{host}:{port}/"), "WORD-own").optional());
    }
    if let Some(address) = world.address {
        talks.extend(each_way(&address.to_string(), port, "WORD-own"));
    }
    Attack::of(vec!["*".to_owned()], talks)
}

/// The name may be reached and so may its first address; the one that it has a moment later may not.
fn rebinding(world: &World) -> Attack {
    let (good, evil) = ([[127, 0, 0, 1].into()], [[127, 0, 0, 2].into()]);
    let turns: Vec<&[std::net::IpAddr]> = (0..40).flat_map(|_| [&good[..], &evil[..]]).collect();
    world.names.put("rebind.test", &turns);
    let trusted = vec!["rebind.test".to_owned(), "127.0.0.1".to_owned()];
    let mut talks = Vec::new();
    for _ in 0..3 {
        talks.extend(each_way("rebind.test", world.evil.port, "WORD-evil"));
    }
    Attack::of(trusted, talks)
}

/// What Moltis listens on is out of reach even where somebody lists it.
fn own_addresses(world: &World) -> Attack {
    let trusted = ["*", "127.0.0.0/8", "0.0.0.0/0", "::1"].map(str::to_owned).into();
    let mut talks: Vec<Talk> = each_way("127.0.0.1", world.own.port, "WORD-own").into();
    talks.extend(each_way("good.test", world.own.port, "WORD-own"));
    talks.extend(each_way("localhost", world.own.port, "WORD-own"));
    talks.push(connect(&format!("[::1]:{}", world.own.port), "WORD-own").optional());
    Attack { listens: true, ..Attack::of(trusted, talks) }
}

/// Requests for what is allowed that name another host to the server.
fn host_unlike_target(world: &World) -> Attack {
    let port = world.good.port;
    let mut talks = Vec::new();
    for fields in [
        "Host: evil.test\r\n".to_owned(),
        format!("Host: good.test:{port}\r\nHost: evil.test\r\n"),
        format!("Host: evil.test\r\nHost: good.test:{port}\r\n"),
        format!("Host: good.test:{port}, evil.test\r\n"),
        format!("Host: good.test:{port}@evil.test\r\n"),
        format!("Host: good.test:{port}\r\n evil.test\r\n"),
        format!("Host:\tevil.test\r\nX-Host: good.test:{port}\r\n"),
    ] {
        let request = format!("GET http://good.test:{port}/ HTTP/1.1\r\n{fields}\r\n");
        let mut talk = talk("WORD-good", &[request.as_bytes()]);
        talk.want.push("evil.test");
        talks.push(talk);
    }
    Attack::of(usual(world), talks)
}

/// A TLS greeting for these names.
fn client_hello(names: &[&str]) -> Vec<u8> {
    fn sized(bytes: &[u8], width: usize) -> Vec<u8> {
        let length = bytes.len().to_be_bytes();
        [&length[length.len() - width..], bytes].concat()
    }
    let list: Vec<u8> =
        names.iter().flat_map(|name| [&[0][..], &sized(name.as_bytes(), 2)].concat()).collect();
    let server_name = [&[0, 0][..], &sized(&sized(&list, 2), 2)].concat();
    let versions = [0, 43, 0, 3, 2, 3, 4];
    let extensions = sized(&[&versions[..], &server_name].concat(), 2);
    let body = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 1], &[1, 0], &extensions].concat();
    [&[1][..], &sized(&body, 3)].concat()
}

/// Records of at most this many bytes each.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
    message.chunks(size).flat_map(record).collect()
}

fn sni_unlike_connect(world: &World) -> Attack {
    let port = world.good.port;
    let head = format!("CONNECT good.test:{port} HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n");
    let mut talks = Vec::new();
    for (names, size) in [
        (&["evil.test"][..], 16384),
        (&["xgood.test"], 16384),
        (&["good.test.evil.test"], 16384),
        (&["evil.test"], 40),
        (&["evil.test"], 1),
        (&["good.test", "evil.test"], 16384),
        (&["evil.test", "good.test"], 16384),
        (&["good.test\0.evil.test"], 16384),
    ] {
        talks.push(talk("WORD-good", &[head.as_bytes(), &records(&client_hello(names), size)]));
    }
    let socks = socks_name("good.test", port, "WORD-good");
    let hello = records(&client_hello(&["evil.test"]), 16384);
    talks.push(talk("WORD-good", &[&socks.say[0], &socks.say[1], &hello]));
    // All at once, before the answer.
    talks.push(talk("WORD-good", &[&[head.as_bytes(), &hello].concat(), b"more"]));
    Attack::of(usual(world), talks)
}

fn userinfo(world: &World) -> Attack {
    let (good, port) = (world.good.port, world.evil.port);
    let mut talks = vec![
        connect(&format!("good.test@evil.test:{port}"), "WORD-evil"),
        connect(&format!("good.test:{good}@evil.test:{port}"), "WORD-evil"),
        get(&format!("good.test@evil.test:{port}/"), "WORD-evil"),
        get(&format!("good.test:{good}@evil.test:{port}/"), "WORD-evil"),
        get(&format!("good.test%40evil.test@evil.test:{port}/"), "WORD-evil"),
        get(&format!("a:b@127.0.0.2:{port}/"), "WORD-evil"),
    ];
    let url =
        format!("GET http://good.test:{good}@evil.test:{port}/ HTTP/1.1\r\nHost: good.test:{good}\r\n\r\n");
    talks.push(talk("WORD-evil", &[url.as_bytes()]));
    Attack::of(usual(world), talks)
}

/// Requests whose end two readers see in two places, with a second one for another host behind the first.
fn smuggling(world: &World) -> Attack {
    let (good, evil) = (world.good.port, world.evil.port);
    let second = format!("GET http://evil.test:{evil}/smuggled HTTP/1.1\r\nHost: evil.test:{evil}\r\n\r\n");
    let length = second.len() + 5;
    let bodies = [
        (format!("Content-Length: 0\r\nContent-Length: {length}\r\n"), ""),
        (format!("Content-Length: {length}\r\nContent-Length: 0\r\n"), ""),
        ("Content-Length: 0, 90\r\n".to_owned(), ""),
        (format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"), "0\r\n\r\n"),
        (format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"), "0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n".to_owned(), "0\r\n\r\n"),
        ("Transfer-Encoding: chunked, identity\r\n".to_owned(), "0\r\n\r\n"),
        ("Transfer-Encoding: identity, chunked\r\nContent-Length: 5\r\n".to_owned(), "0\r\n\r\n"),
        ("Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n".to_owned(), "0\r\n\r\n"),
        ("Transfer-Encoding : chunked\r\nContent-Length: 5\r\n".to_owned(), "0\r\n\r\n"),
        ("Transfer-Encoding:\u{b}chunked\r\nContent-Length: 5\r\n".to_owned(), "0\r\n\r\n"),
        ("X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: 5\r\n".to_owned(), "0\r\n\r\n"),
        ("X: y\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n".to_owned(), "0\r\n\r\n"),
        ("Connection: content-length\r\nContent-Length: 5\r\n".to_owned(), "0\r\n\r\n"),
        ("Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n".to_owned(), "0\r\n\r\n"),
        ("Expect: 100-continue\r\nContent-Length: 0\r\n".to_owned(), ""),
        (
            "Upgrade: h2c\r\nConnection: upgrade, http2-settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
                .to_owned(),
            "",
        ),
        ("Upgrade: websocket\r\nConnection: upgrade\r\n".to_owned(), ""),
        ("Transfer-Encoding: chunked\r\n".to_owned(), "0x0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n".to_owned(), "+0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n".to_owned(), "0 \r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n".to_owned(), "10000000000000000\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n".to_owned(), "0;a=\n\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n".to_owned(), "1\r\nA0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n".to_owned(), "1\nA\n0\n\n"),
    ];
    let mut talks = Vec::new();
    for (fields, body) in bodies {
        let first =
            format!("POST http://good.test:{good}/ HTTP/1.1\r\nHost: good.test:{good}\r\n{fields}\r\n{body}");
        let mut talk = talk("WORD-good", &[format!("{first}{second}").as_bytes()]);
        talk.want.push("GET http://evil.test");
        talks.push(talk);
    }
    let bare = format!("GET http://good.test:{good}/ HTTP/1.1\nHost: good.test:{good}\n\n{second}");
    let old = format!(
        "POST http://good.test:{good}/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{second}"
    );
    for text in [bare, old] {
        let mut talk = talk("WORD-good", &[text.as_bytes()]);
        talk.want.push("GET http://evil.test");
        talks.push(talk);
    }
    Attack::of(usual(world), talks)
}

/// A first request that is allowed, and a second one on the same connection that is not.
fn kept_alive(world: &World) -> Attack {
    let (good, evil) = (world.good.port, world.evil.port);
    let first = format!("GET http://good.test:{good}/ HTTP/1.1\r\nHost: good.test:{good}\r\n\r\n");
    let seconds = [
        format!("GET http://evil.test:{evil}/ HTTP/1.1\r\nHost: evil.test:{evil}\r\n\r\n"),
        format!("GET http://evil.test:{evil}/ HTTP/1.1\r\nHost: good.test:{good}\r\n\r\n"),
        format!(
            "POST http://evil.test:{evil}/ HTTP/1.1\r\nHost: evil.test:{evil}\r\nContent-Length: 0\r\n\r\n"
        ),
    ];
    let mut talks: Vec<Talk> =
        seconds.iter().map(|second| talk("WORD-evil", &[first.as_bytes(), second.as_bytes()])).collect();
    let tunnel = format!("CONNECT evil.test:{evil} HTTP/1.1\r\nHost: evil.test:{evil}\r\n\r\n");
    talks.push(talk("WORD-evil", &[first.as_bytes(), tunnel.as_bytes(), b"hello"]));
    Attack::of(usual(world), talks)
}

fn socks(world: &World) -> Attack {
    let port = world.own.port;
    let six = |address: &str| {
        let address: std::net::Ipv6Addr = address.parse().expect("an address");
        [&[4][..], &address.octets()].concat()
    };
    let mut talks = vec![
        socks_to(&[1, 127, 0, 0, 2], port, "WORD-own"),
        socks_to(&[1, 0, 0, 0, 0], port, "WORD-own"),
        socks_to(&six("::1"), port, "WORD-own").optional(),
        socks_to(&six("::ffff:127.0.0.2"), port, "WORD-own").optional(),
        socks_name("127.0.0.2", port, "WORD-own"),
        socks_name("localhost", port, "WORD-own"),
        socks_name("evil.test", world.evil.port, "WORD-evil"),
        // BIND, and UDP through the proxy: the proxy that defends nothing takes either for CONNECT.
        talk(
            "WORD-own",
            &[&[5, 1, 0], &[&[5, 2, 0, 1, 127, 0, 0, 1][..], &port.to_be_bytes()].concat(), b"x"],
        ),
        talk(
            "WORD-own",
            &[&[5, 1, 0], &[&[5, 3, 0, 1, 127, 0, 0, 1][..], &port.to_be_bytes()].concat(), b"x"],
        ),
    ];
    if let Some(std::net::IpAddr::V4(address)) = world.address {
        talks.push(socks_to(&[&[1][..], &address.octets()].concat(), port, "WORD-own"));
    }
    Attack::of(vec!["*".to_owned()], talks)
}

/// What is told comes back in an answer: it must not make a field, or a second answer, of its own.
fn split_replies(world: &World) -> Attack {
    let mut talks = Vec::new();
    for text in [
        "CONNECT nobody.test%0d%0aX-Made: yes:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http://nobody.test/%0d%0aX-Made:%20yes HTTP/1.1\r\nHost: nobody.test\r\n\r\n",
        "GET http://nobody%0d%0aX-Made:%20yes.test/ HTTP/1.1\r\nHost: nobody.test\r\n\r\n",
        "GET http://nobody.test/ HTTP/1.1\r\nHost: nobody.test\r\nReferer: a\r\nX-Made: yes\r\n\r\n",
    ] {
        talks.push(talk("\nX-Made:", &[text.as_bytes()]));
    }
    Attack::of(usual(world), talks)
}

/// What one session may reach is nothing to another: each has its own port on its own loopback.
async fn other_session(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_trusted!(ctx);
    let world = World::new().await?;
    let (proxy, entries) = proxy(&world, ProxyLimits::default());
    let one = Road::open(ctx, &proxy, "one", &usual(&world)).await?;
    let other = Road::open(ctx, &proxy, "other", &[]).await?;
    works(&one, &world).await?;
    let mut ports = vec![one.port, other.port];
    ports.dedup();
    let talks: Vec<Talk> = each_way("good.test", world.good.port, "WORD-good").into();
    let calls: Vec<String> =
        ports.iter().flat_map(|port| talks.iter().map(|talk| talk.call(*port))).collect();
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    all_stopped(&inside(&other.place, &calls).await?)?;
    let of = |key: &str| -> Vec<Arc<str>> {
        let all = entries.all();
        let of_key = all.iter().filter(|entry| entry.session == key);
        of_key.map(|entry| format!("{:?}", entry.action).into()).collect()
    };
    ensure!(of("one").iter().all(|action| &**action == "Allowed"), "of the one: {:?}", of("one"));
    ensure_eq!(of("other"), vec![Arc::from("Denied"); of("other").len()], "of the other");
    if of("other").len() < talks.len() {
        fail!("not all that the other asked for was written down: {:?}", entries.all());
    }
    Ok(Verdict::Pass)
}
