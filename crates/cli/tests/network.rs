//! `moltis network`: the log, questions and rules.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use moltis_egress::{Action, Asked, Audit, AuditLog, Entry, Event, Protocol, Source};
use moltis_runtime::store::{Asking, Database, Result, Said, Store, now_millis};
use moltis_sandbox::SessionKey;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::support::Place;

const AT: u64 = 1_800_000_000_000;

fn entry(id: u64, domain: &str, action: Action) -> Entry {
    Entry {
        timestamp: AT + id * 1000,
        session: "s1".into(),
        id,
        event: Event::Open,
        domain: domain.into(),
        port: 443,
        protocol: Protocol::Https,
        action,
        source: if action == Action::Allowed { Source::Config } else { Source::Unknown },
        reason: Some(if action == Action::Allowed { "*.example.com" } else { "no rule names it" }.into()),
        bytes_sent: 0,
        bytes_received: 0,
        duration_millis: 0,
    }
}

fn closed(id: u64, domain: &str) -> Entry {
    Entry {
        event: Event::Close,
        bytes_sent: 100,
        bytes_received: 5 << 20,
        duration_millis: 1500,
        ..entry(id, domain, Action::Allowed)
    }
}

/// Writes entries as a proxy does.
fn record(place: &Place, entries: impl IntoIterator<Item = Entry>) {
    std::fs::create_dir_all(place.data()).unwrap();
    std::fs::set_permissions(place.data(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let log = AuditLog::new(place.data());
    entries.into_iter().for_each(|entry| log.record(entry));
    assert!(log.flush(Duration::from_secs(30)));
    assert_eq!(log.dropped(), 0);
}

pub fn some(place: &Place) {
    record(
        place,
        [
            entry(1, "a.example.com", Action::Allowed),
            closed(1, "a.example.com"),
            entry(2, "evil.example", Action::Denied),
            Entry {
                protocol: Protocol::Socks5,
                session: "s 2".into(),
                port: 22,
                ..entry(3, "a.example.com", Action::Denied)
            },
        ],
    );
}

fn configure(place: &Place, lines: &str) {
    std::fs::write(place.config().join("moltis.toml"), format!("[tools.exec.sandbox]\n{lines}\n")).unwrap();
}

fn in_store<T>(place: &Place, work: impl FnOnce(&mut Database) -> Result<T>) -> T {
    Store::new(place.data()).run_blocking(work).unwrap()
}

/// Asks as a proxy does; gives the question's number.
pub fn ask(place: &Place, session: &str, host: &str, port: u16) -> String {
    let asked =
        Asked { host: host.into(), port, protocol: Protocol::Https, timeout: Duration::from_secs(600) };
    let key = SessionKey::new(session).unwrap();
    match in_store(place, |db| db.ask_approval(&key, &asked, now_millis())) {
        Asking::Waiting { approval, .. } => approval.id.to_string(),
        Asking::TooMany => panic!("too many"),
    }
}

#[test]
fn the_log_is_shown_filtered_and_counted() {
    let place = Place::new();
    place.run(["network", "audit"]).is(0, "No entries.\n", "");
    place.run(["network", "stats"]).is(0, "No entries.\n", "");
    assert!(!place.data().exists(), "looking makes nothing");
    some(&place);
    let lines = [
        "2027-01-15T08:00:01Z  allowed  https    a.example.com:443  s1  config: *.example.com\n",
        "2027-01-15T08:00:01Z  closed   https    a.example.com:443  s1  sent 100 B, received 5.0 MiB, 1.5s\n",
        "2027-01-15T08:00:02Z  denied   https    evil.example:443  s1  unknown: no rule names it\n",
        "2027-01-15T08:00:03Z  denied   socks5   a.example.com:22  \"s 2\"  unknown: no rule names it\n",
    ];
    place.run(["network", "audit"]).is(0, &lines.concat(), "");
    for (flags, which) in [
        (&["--domain", "example.com"][..], &[0, 1, 3][..]),
        (&["--domain", "EXAMPLE.com:443"], &[0, 1]),
        (&["--domain", "*.a.example.com"], &[]),
        (&["--protocol", "socks5"], &[3]),
        (&["--action", "denied"], &[2, 3]),
        (&["--session", "s 2"], &[3]),
        (&["--since", "2027-01-15T08:00:02Z"], &[2, 3]),
        (&["--since", "2027-01-15"], &[0, 1, 2, 3]),
        (&["--limit", "1"], &[3]),
        (&["--limit", "2", "--action", "allowed"], &[0, 1]),
    ] {
        let ran = place.run([&["network", "audit"], flags].concat());
        let expected: String = which.iter().map(|at| lines[*at]).collect();
        let expected = if which.is_empty() { "No entries.\n" } else { &expected };
        ran.is(0, expected, "");
    }
    let told = place.run(["network", "audit", "--limit", "1", "--json"]).json();
    let entry = json!({"timestamp": AT + 3000, "session": "s 2", "id": 3, "event": "open", "domain": "a.example.com",
        "port": 22, "protocol": "socks5", "action": "denied", "source": "unknown", "reason": "no rule names it",
        "sentBytes": 0, "receivedBytes": 0, "durationMs": 0});
    let expected =
        json!({"entries": [entry], "more": true, "droppedEntries": 0, "unreadableLines": 0, "warnings": []});
    assert_eq!(told, expected);

    let stats = place.run(["network", "stats"]).stdout;
    let rows: Vec<Vec<&str>> = stats.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1][..7], ["a.example.com", "1", "1", "100", "B", "5.0", "MiB"]);
    assert_eq!(rows[2][..3], ["evil.example", "0", "1"]);
    assert_eq!(rows[3][..3], ["(all)", "1", "2"]);
    let told = place.run(["network", "stats", "--json", "--limit", "1", "--since", "2027-01-15"]).json();
    let counted = json!({"domain": "a.example.com", "allowed": 1, "denied": 1, "sentBytes": 100,
                         "receivedBytes": 5 << 20, "lastMillis": AT + 3000});
    assert_eq!((&told["domains"], &told["domainsTotal"]), (&json!([counted]), &json!(2)));
    assert_eq!((&told["total"]["denied"], &told["droppedEntries"]), (&json!(2), &json!(0)));
}

#[test]
fn what_is_missing_or_spoilt_is_told() {
    let place = Place::new();
    some(&place);
    let file = place.data().join("network-audit.jsonl");
    let whole = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{whole}{{\"timestamp\":{AT},\"dropped\":7}}\n{{\"timest")).unwrap();
    for command in ["audit", "stats", "export"] {
        let ran = place.run(["network", command]);
        assert_eq!(ran.status, Some(0), "{ran:?}");
        assert!(ran.stderr.contains("moltis: 7 entries are missing"), "{ran:?}");
        assert!(ran.stderr.contains("moltis: 1 lines of the log cannot be read"), "{ran:?}");
    }
    let told = place.run(["network", "audit", "--json"]).json();
    assert_eq!((&told["droppedEntries"], &told["unreadableLines"]), (&json!(7), &json!(1)));
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
    place.run(["network", "audit"]).fails(1, "audit-not-ours");
    place.run(["network", "stats", "--json"]).fails_in_json(1, "audit-not-ours");
}

#[test]
fn nothing_that_was_written_acts_on_a_terminal() {
    let place = Place::new();
    let hostile = "\u{1b}[2J\n\u{202e}\u{9d}\"=x,";
    record(
        &place,
        [Entry {
            session: hostile.into(),
            reason: Some(hostile.into()),
            ..entry(1, hostile, Action::Denied)
        }],
    );
    for words in [
        &["audit"][..],
        &["audit", "--json"],
        &["stats"],
        &["stats", "--json"],
        &["export"],
        &["export", "--format", "csv"],
    ] {
        let ran = place.run([&["network"], words].concat());
        assert_eq!(ran.status, Some(0), "{ran:?}");
        let acts = |c: char| c.is_control() && !matches!(c, '\n' | '\r');
        assert!(!ran.stdout.contains(acts), "{ran:?}");
        assert_eq!(ran.stdout.contains('\u{202e}'), words.contains(&"--json"), "{ran:?}");
        let lines =
            if words.contains(&"stats") && words.len() == 1 { 3 } else { 1 + usize::from(words.len() == 3) };
        assert_eq!(ran.stdout.lines().count(), lines, "{ran:?}");
    }
    let file = std::fs::read(place.data().join("network-audit.jsonl")).unwrap();
    assert!(file.iter().all(|byte| (0x20..0x7f).contains(byte) || *byte == b'\n'));
}

#[test]
fn the_log_is_exported_whole() {
    let place = Place::new();
    some(&place);
    let file = std::fs::read_to_string(place.data().join("network-audit.jsonl")).unwrap();
    place.run(["network", "export"]).is(0, &file, "");
    let csv = place.run(["network", "export", "--format", "csv", "--action", "allowed"]).stdout;
    let expected = [
        "time,timestamp,session,id,event,domain,port,protocol,action,source,reason,sentBytes,receivedBytes,durationMs",
        "2027-01-15T08:00:01Z,1800000001000,\"s1\",1,open,\"a.example.com\",443,https,allowed,config,\"*.example.com\",0,0,0",
        "2027-01-15T08:00:01Z,1800000001000,\"s1\",1,close,\"a.example.com\",443,https,allowed,config,\"*.example.com\",100,5242880,1500",
    ];
    assert_eq!(csv, expected.map(|line| format!("{line}\r\n")).concat());
    let to = place.path("out.jsonl");
    let words = ["network", "export", "--output", to.to_str().unwrap()];
    assert!(place.run(words).stdout.starts_with("wrote 4 entries to /"));
    assert_eq!(std::fs::read_to_string(&to).unwrap(), file);
    assert_eq!(std::fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
    place.run(words).fails(1, "output-exists");
    std::fs::remove_file(&to).unwrap();
    let told = place.run([&words[..], &["--json"]].concat()).json();
    assert_eq!((&told["entries"], &told["output"]), (&json!(4), &json!(to)));
    // Many entries and a reader that leaves.
    record(&place, (0..5000).map(|id| entry(id, "many.example", Action::Denied)));
    let mut child = place.moltis(["network", "export"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn words_that_are_wrong_are_told_with_what_was_meant() {
    let place = Place::new();
    for (words, code, part) in [
        (&["audit", "--protocol", "sock5"][..], "config-unknown-word", "did you mean `socks5`?"),
        (&["audit", "--action", "alowed"], "config-unknown-word", "did you mean `allowed`?"),
        (&["export", "--format", "jsonll", "--output", "x"], "config-unknown-word", "did you mean `jsonl`?"),
        (&["audit", "--since", "yesterday"], "config-malformed", "10m"),
        (&["audit", "--domain", "a b"], "config-malformed", "--domain"),
        (&["audit", "--session", ""], "session-key-invalid", ""),
        (&["allow", "https://a.example/x"], "config-malformed", "without the scheme"),
        (&["allow", "a.example", "--session"], "session-key-missing", "--session KEY"),
        (&["deny", "99999999999999999999"], "approval-missing", ""),
        (&["rules", "remove", "*.*"], "config-malformed", ""),
        (&["allow", "xn--a.example"], "config-malformed", "international"),
    ] {
        let words = [&["network"], words].concat();
        let ran = place.run(&words);
        ran.fails(2, code);
        assert!(ran.stderr.contains(part), "wanted {part}: {ran:?}");
        place.run([&words[..], &["--json"]].concat()).fails_in_json(2, code);
    }
    for words in [
        &["network"][..],
        &["network", "allow"],
        &["network", "allow", "a.example", "--once", "--always"],
        &["network", "export", "--json"],
        &["network", "adit"],
        &["network", "rules", "remove"],
    ] {
        assert_eq!(place.run(words).status, Some(2), "{words:?}");
    }
    let ran = place.run(["network", "audti"]);
    assert!(ran.stderr.contains("'audit'"), "{ran:?}");
}

fn follow(place: &Place, words: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = place
        .moltis([&["network"], words, &["--follow"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

fn line(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    line
}

fn ends(child: &mut Child, status: i32) {
    let since = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(status));
    assert!(since.elapsed() < Duration::from_secs(5));
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "");
}

#[test]
fn following_shows_what_comes_and_ends_cleanly() {
    let place = Place::new();
    some(&place);
    let (mut child, mut lines) = follow(&place, &["audit", "--domain", "evil.example", "--limit", "5"]);
    assert!(line(&mut lines).starts_with("2027-01-15T08:00:02Z  denied"));
    record(&place, [entry(8, "a.example.com", Action::Denied), entry(9, "evil.example", Action::Denied)]);
    assert!(line(&mut lines).starts_with("2027-01-15T08:00:09Z  denied"));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    ends(&mut child, 130);

    let (mut child, mut lines) = follow(&place, &["audit", "--json", "--limit", "1"]);
    let told: serde_json::Value = serde_json::from_str(&line(&mut lines)).unwrap();
    assert_eq!(told["id"], 9);
    // Nobody reads it any more, and nothing more comes.
    drop(lines);
    ends(&mut child, 141);

    let place = Place::new();
    let (mut child, mut lines) = follow(&place, &["audit"]);
    while !place.data().exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    some(&place);
    assert!(line(&mut lines).starts_with("2027-01-15T08:00:01Z  allowed"));
    let (mut pending, mut questions) = follow(&place, &["pending", "--session", "s"]);
    let id = ask(&place, "s", "a.example", 443);
    ask(&place, "t", "b.example", 443);
    assert_eq!(line(&mut questions), format!("{id}  a.example:443  s  9m left\n"));
    for child in [&mut child, &mut pending] {
        kill_process(Pid::from_child(child), Signal::TERM).unwrap();
        ends(child, 143);
    }
}

#[test]
fn rules_are_made_listed_and_forgotten() {
    let place = Place::new();
    configure(
        &place,
        "network = \"trusted\"\ntrusted_domains = [\"pypi.org\"]\ndenied_domains = [\"*.evil.example\", \"10.0.0.0/8\"]",
    );
    let run = |words: &[&str]| place.run([&["network"], words].concat());
    let rules = |words: &[&str]| {
        let told = place.run([&["network", "rules", "--json"], words].concat()).json();
        let of = |rule: &serde_json::Value| {
            ["action", "pattern", "origin"].map(|name| rule[name].as_str().unwrap().to_owned()).join(" ")
        };
        told["rules"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    let config = ["allow pypi.org config", "deny *.evil.example config", "deny 10.0.0.0/8 config"];
    assert_eq!(rules(&[]), config);
    assert!(!place.data().exists(), "looking makes nothing");

    run(&["allow", "*.Example.com:443"]).is(0, "allowed *.example.com:443 for good\n", "");
    run(&["allow", "*.example.com:443"]).is(0, "*.example.com:443 was allowed for good before\n", "");
    run(&["allow", "*.bücher.example"]).is(0, "allowed *.xn--bcher-kva.example for good\n", "");
    run(&["rules", "remove", "*.BÜCHER.example"]).is(
        0,
        "forgot that *.xn--bcher-kva.example is allowed\n",
        "",
    );
    run(&["deny", "bad.example"]).is(0, "denied bad.example for good\n", "");
    run(&["deny", "*.example.com:443"]).is(
        0,
        "denied *.example.com:443 for good, instead of what was said before\n",
        "",
    );
    let told = run(&["allow", "bad.example", "--json"]).json();
    let expected = json!({"pattern": "bad.example", "action": "allow", "for": "always", "replaced": "deny", "answered": []});
    assert_eq!(told, expected);

    run(&["allow", "x.example", "--session", "s"]).fails(1, "session-missing");
    place.run(["session", "set", "s", "--network", "trusted"]);
    run(&["allow", "x.example", "--session", "s"]).is(0, "allowed x.example for the session s\n", "");
    run(&["deny", "y.example", "--session", "s"]).is(0, "denied y.example for the session s\n", "");
    let good = ["deny *.example.com:443 rule", "allow bad.example rule"];
    let own = ["allow x.example session", "deny y.example session"];
    assert_eq!(rules(&["--session", "s"]), [&config[..], &good, &own].concat());
    assert_eq!(rules(&[]), [&config[..], &good].concat());
    let table = run(&["rules", "--session", "s"]).stdout;
    assert!(table.contains("cli:") && table.lines().count() == 8, "{table}");
    let overrides = place.run(["session", "show", "s", "--json"]).json()["overrides"].clone();
    assert_eq!(overrides["trustedDomains"], json!(["x.example"]));

    // What would stay denied is not said to be allowed.
    for (words, part) in [
        (&["allow", "a.evil.example"][..], "`denied_domains` denies *.evil.example"),
        (&["allow", "*.b.evil.example:443", "--session", "s"], "`denied_domains` denies *.evil.example"),
        (&["allow", "10.1.2.3"], "`denied_domains` denies 10.0.0.0/8"),
        (&["allow", "a.example.com:443"], "moltis network rules remove '*.example.com:443'"),
        (&["allow", "y.example:1", "--session", "s"], "--unset denied-domains"),
    ] {
        let ran = run(words);
        ran.fails(1, "domain-denied");
        assert!(ran.stderr.contains(part), "wanted {part}: {ran:?}");
    }
    assert_eq!(run(&["allow", "y.example", "--session", "s"]).status, Some(0));
    assert_eq!(run(&["allow", "a.example.com:80"]).status, Some(0));

    run(&["rules", "remove", "bad.example", "nothing.example"]).fails(1, "rule-missing");
    assert!(rules(&[]).contains(&"allow bad.example rule".to_owned()));
    let ran = run(&["rules", "remove", "pypi.org"]);
    ran.fails(1, "rule-missing");
    assert!(ran.stderr.contains("moltis.toml"), "{ran:?}");
    run(&["rules", "remove", "bad.example", "a.example.com:80"]).is(
        0,
        "forgot that bad.example is allowed\nforgot that a.example.com:80 is allowed\n",
        "",
    );
    let told = run(&["rules", "forget", "*.example.com:443", "--json"]).json();
    assert_eq!(told["removed"][0]["pattern"], "*.example.com:443");
    assert_eq!(rules(&[]), config);
}

#[test]
fn rules_without_effect_are_warned_of() {
    let place = Place::new();
    let ran = place.run(["network", "allow", "a.example"]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), "allowed a.example for good\n"));
    assert!(ran.stderr.contains("the network of the configuration is `blocked`"), "{ran:?}");
    place.run(["session", "set", "s", "--network", "open"]);
    let told = place.run(["network", "deny", "a.example", "--session", "s", "--json"]).json();
    assert_eq!(told["warnings"][0]["code"], "network-not-trusted");
    place.run(["session", "set", "s", "--network", "trusted"]);
    let ran = place.run(["network", "allow", "b.example", "--session", "s"]);
    ran.is(0, "allowed b.example for the session s\n", "");
}

#[test]
fn a_host_is_tested_without_being_reached() {
    let place = Place::new();
    configure(
        &place,
        "network = \"trusted\"\ntrusted_domains = [\"*.example\", \"localhost:1\", \"192.0.2.1\"]\n\
         denied_domains = [\"bad.example\"]",
    );
    let test = |words: &[&str]| place.run([&["network", "test"], words].concat());
    test(&["bad.example"]).is(1, "bad.example:443: denied (config: bad.example forbids it)\n", "");
    test(&["other.test:80"]).is(1, "other.test:80: denied (unknown: no rule names it)\n", "");
    // The documentation's own addresses are nobody's.
    let ran = test(&["192.0.2.1:8080"]);
    assert_eq!((ran.status, ran.stdout.lines().nth(1)), (Some(0), Some("  192.0.2.1")), "{ran:?}");
    let ran = test(&["LOCALHOST:1"]);
    assert_eq!(ran.status, Some(1), "{ran:?}");
    assert!(ran.stdout.starts_with("localhost:1: denied (address: "), "{ran:?}");
    let told = test(&["[::1]:5", "--json"]).json();
    assert_eq!(
        (&told["domain"], &told["action"], &told["source"]),
        (&json!("::1"), &json!("denied"), &json!("address"))
    );

    place.run(["session", "set", "s", "--on-unknown", "ask"]);
    let ran = test(&["other.test", "--session", "s"]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stdout.starts_with("other.test:443: asked about (unknown: "), "{ran:?}");
    place.run(["network", "deny", "192.0.2.0/24", "--session", "s"]);
    let ran = test(&["192.0.2.1", "--session", "s"]);
    ran.is(1, "192.0.2.1:443: denied (session: 192.0.2.0/24 forbids it)\n", "");
    for host in ["a b", "https://a.example", "a.example:0", "127.1", "::1:x"] {
        test(&[host]).fails(2, "config-malformed");
        test(&[host, "--json"]).fails_in_json(2, "config-malformed");
    }
    assert!(!place.data().join("network-audit.jsonl").exists(), "nothing is written down");
}

#[test]
fn questions_are_listed_and_answered_once() {
    let place = Place::new();
    configure(&place, "network = \"trusted\"\non_unknown = \"ask\"");
    place.run(["network", "pending"]).is(0, "No questions.\n", "");
    assert!(!place.data().exists(), "looking makes nothing");
    place.run(["session", "set", "s 1"]);
    let ids: Vec<_> = [("s 1", 443), ("s 1", 80), ("eph", 443), ("eph", 8443)]
        .iter()
        .map(|(session, port)| ask(&place, session, "a.example", *port))
        .collect();
    let table = place.run(["network", "pending"]).stdout;
    assert_eq!(table.lines().count(), 5, "{table}");
    let first: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        (first[..5].join(" "), first.last()),
        ("1 a.example:443 https \"s 1\"".to_owned(), Some(&"9m"))
    );
    let told = place.run(["network", "pending", "--session", "eph", "--json"]).json();
    let first = &told["pending"][0];
    assert_eq!(
        (&first["id"], &first["session"], &first["host"]),
        (&json!(3), &json!("eph"), &json!("a.example"))
    );
    assert_eq!(told["pending"].as_array().unwrap().len(), 2);

    let run = |words: &[&str]| place.run([&["network"], words].concat());
    run(&["allow", &ids[0]]).is(0, "question 1, a.example:443 for \"s 1\": allowed this once\n", "");
    let ran = run(&["deny", &ids[0]]);
    ran.fails(1, "approval-over");
    assert!(ran.stderr.contains("it was allowed, this once, by cli:"), "{ran:?}");
    run(&["allow", "99"]).fails(1, "approval-missing");
    run(&["allow", &ids[1], "--session", "other"]).fails(1, "approval-elsewhere");
    run(&["allow", &ids[1], "--session", "s 1"]).is(
        0,
        "question 2, a.example:80 for \"s 1\": allowed for the session\n",
        "",
    );
    let told = run(&["deny", &ids[2], "--session", "--json"]).json();
    let said = &told["answered"];
    assert_eq!((&told["decision"], said.as_array().unwrap().len()), (&json!("denySession"), 2), "{told}");
    assert_eq!((&said[1]["id"], &said[1]["decision"]), (&json!(4), &json!("denySession")));
    place.run(["network", "pending"]).is(0, "No questions.\n", "");
    let rules = run(&["rules", "--session", "eph", "--json"]).json();
    assert_eq!(rules["rules"], json!([{"pattern": "a.example", "action": "deny", "origin": "session"}]));

    let id = ask(&place, "s 2", "b.example", 443);
    run(&["allow", "c.example", "--once"]).fails(1, "approval-missing");
    run(&["deny", "b.example", "--once"]).is(
        0,
        &format!("question {id}, b.example:443 for \"s 2\": denied\n"),
        "",
    );
    let id = ask(&place, "s 2", "b.example", 443);
    let answered = format!("allowed *.example for good\nquestion {id}, b.example:443 for \"s 2\": allowed\n");
    run(&["allow", "*.example"]).is(0, &answered, "");
    let id = ask(&place, "s 2", "b.test", 443);
    run(&["deny", &id, "--always"]).is(
        0,
        &format!("question {id}, b.test:443 for \"s 2\": denied for good\n"),
        "",
    );
    let rules = run(&["rules", "--json"]).json();
    assert_eq!(rules["rules"].as_array().unwrap().len(), 2);
    let last = moltis_runtime::store::ApprovalId(id.parse().unwrap());
    let said = in_store(&place, |db| db.approval(last)).unwrap().said;
    assert!(matches!(said, Some(Said::Decided { .. })));
}
