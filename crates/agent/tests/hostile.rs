//! Agents that lie, flood, or say nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::StreamExt;
use moltis_agent::client::Patience;
use moltis_agent::presence::{Presence, presence};
use moltis_agent::{AgentSandbox, Channel, Error, Transport};
use moltis_agent_protocol::frame::{HEADER_BYTES, encode_control};
use moltis_agent_protocol::hello::hello;
use moltis_agent_protocol::message::*;
use moltis_agent_protocol::{HELLO_BYTES, Header, Kind};
use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{ExecEvent, GuestPath, Sandbox};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::agent::{alone, resident, sandbox, sh};

/// Says something to whoever connects, again and again if it is to.
#[derive(Clone)]
struct Liar {
    first: Vec<u8>,
    forever: Vec<u8>,
    stays: bool,
}

#[async_trait]
impl Transport for Liar {
    async fn connect(&self) -> Result<Channel, Error> {
        let (host, mut theirs) = UnixStream::pair().unwrap();
        let liar = self.clone();
        tokio::spawn(async move {
            let mut opening = [0; HELLO_BYTES + HEADER_BYTES];
            theirs.read_exact(&mut opening).await.unwrap();
            let header = Header::decode(*opening.last_chunk().unwrap()).unwrap();
            theirs.read_exact(&mut vec![0; header.length]).await.unwrap();
            if theirs.write_all(&liar.first).await.is_err() {
                return;
            }
            while !liar.forever.is_empty() {
                if theirs.write_all(&liar.forever).await.is_err() {
                    return;
                }
            }
            if liar.stays {
                let _ = theirs.read_to_end(&mut Vec::new()).await;
            }
        });
        Ok(Channel::unix(host))
    }
}

const IMPATIENT: Patience = Patience {
    hello: Duration::from_millis(300),
    answer: Duration::from_millis(300),
    work: Duration::from_millis(300),
    grace: Duration::from_millis(300),
};

fn liar(parts: &[&[u8]]) -> Liar {
    Liar { first: parts.concat(), forever: Vec::new(), stays: true }
}

fn facing(liar: Liar) -> AgentSandbox {
    sandbox(Arc::new(liar), IMPATIENT)
}

fn control(reply: &Reply) -> Vec<u8> {
    encode_control(reply).unwrap()
}

fn raw(kind: Kind, payload: &[u8]) -> Vec<u8> {
    [&Header { kind, length: payload.len() }.encode()[..], payload].concat()
}

fn started() -> Vec<u8> {
    control(&Reply::Started { process: 1, pid: 2 })
}

fn any() -> GuestPath {
    GuestPath::new("/x").unwrap()
}

/// How an exec against this agent ends, and how much came before.
async fn outcome(liar: Liar) -> (String, usize) {
    let mut request = sh("true");
    request.timeout = Some(Duration::from_millis(200));
    let start = Instant::now();
    let result = match facing(liar).exec(request).await {
        Err(error) => (format!("{} {}", error.kind(), error.code()), 0),
        Ok(mut exec) => {
            let mut got = 0;
            loop {
                match exec.events.next().await {
                    Some(Ok(ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes))) => got += bytes.len(),
                    Some(Ok(ExecEvent::Exit(_))) => break ("exit".to_owned(), got),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break (format!("{} {}", error.kind(), error.code()), got),
                    None => break ("end".to_owned(), got),
                }
            }
        }
    };
    assert!(start.elapsed() < Duration::from_secs(10), "{result:?} took too long");
    result
}

#[tokio::test]
async fn every_lie_ends_as_lost_within_bounds() {
    let hi = hello();
    let mut other = hello();
    other[6..].copy_from_slice(&999u16.to_le_bytes());
    let exited = |left| {
        control(&Reply::Exited(Exited {
            left,
            ending: Ending::Exited,
            micros: 1,
            stdout_bytes: 0,
            stderr_bytes: 0,
            leftovers: Vec::new(),
            leftovers_total: 0,
        }))
    };
    let long_failure = control(&Reply::Failed(Failure {
        code: FailureCode::Cwd,
        message: "x".repeat(200_000),
        errno: Some(i32::MAX),
    }));
    let cases: Vec<(&str, Liar, &str)> = vec![
        ("nothing", liar(&[]), "lost agent-silent"),
        ("half a hello", liar(&[&hi[..3]]), "lost agent-silent"),
        ("no hello", liar(&[b"HTTP/1.1 200 OK\r\n"]), "lost agent-protocol"),
        ("another version", liar(&[&other]), "unavailable agent-version"),
        ("no answer", liar(&[&hi]), "lost agent-silent"),
        ("an unknown frame", liar(&[&hi, &[77, 0, 0, 0, 0]]), "lost agent-protocol"),
        ("a frame above its limit", liar(&[&hi, &[1, 255, 255, 255, 255]]), "lost agent-protocol"),
        ("a reply above ours", liar(&[&hi, &[1, 0, 0, 16, 0]]), "lost agent-protocol"),
        ("raw bytes first", liar(&[&hi, &raw(Kind::Stdout, b"x")]), "lost agent-protocol"),
        ("garbage", liar(&[&hi, &raw(Kind::Control, &[255; 50])]), "lost agent-protocol"),
        ("another answer", liar(&[&hi, &control(&Reply::Done)]), "lost agent-protocol"),
        (
            "bytes after an answer",
            liar(&[&hi, &raw(Kind::Control, &[0, 0, 0, 0, 0, 0])]),
            "lost agent-protocol",
        ),
        ("a long failure", liar(&[&hi, &long_failure]), "invalid cwd-missing"),
        ("silence after the time", liar(&[&hi, &started()]), "lost agent-silent"),
        ("a file's bytes", liar(&[&hi, &started(), &raw(Kind::Data, b"x")]), "lost agent-protocol"),
        ("an end of file", liar(&[&hi, &started(), &raw(Kind::Eof, b"")]), "lost agent-protocol"),
        ("an empty frame", liar(&[&hi, &started(), &raw(Kind::Stdout, b"")]), "lost agent-protocol"),
        ("a second start", liar(&[&hi, &started(), &started()]), "lost agent-protocol"),
        ("no such status", liar(&[&hi, &started(), &exited(Left::Code(300))]), "lost agent-protocol"),
        ("no such signal", liar(&[&hi, &started(), &exited(Left::Signal(-9))]), "lost agent-protocol"),
        ("the truth", liar(&[&hi, &started(), &exited(Left::Code(0))]), "exit"),
    ];
    for (what, liar, expected) in cases {
        assert_eq!(outcome(liar.clone()).await.0, expected, "{what}");
        if expected.ends_with("agent-silent") {
            let gone = Liar { stays: false, ..liar };
            assert_eq!(outcome(gone).await.0, "lost agent-lost", "{what}, and then hung up");
        }
    }
    let whole = [&hi[..], &started(), &raw(Kind::Stdout, &[1; 1000]), &exited(Left::Code(0))].concat();
    for cut in (0..whole.len()).step_by(7) {
        let gone = Liar { first: whole[..cut].to_vec(), forever: Vec::new(), stays: false };
        assert_eq!(outcome(gone).await.0, "lost agent-lost", "cut at {cut}");
    }
}

#[tokio::test]
async fn a_message_is_cut() {
    let long = control(&Reply::Failed(Failure {
        code: FailureCode::Io,
        message: "\u{1b}[31m".repeat(40_000),
        errno: None,
    }));
    let error = facing(liar(&[&hello(), &long])).files().stat(&any(), true).await.unwrap_err();
    assert!(error.diagnosis().message.len() < 2000);
}

#[test]
fn endless_answers_are_held_back_and_not_collected() {
    alone("hostile::endless_answers");
}

#[tokio::test]
#[ignore = "run by the test above in a process of its own, so that it measures itself alone"]
async fn endless_answers() {
    let entries: Vec<_> = (0..256)
        .map(|number| Entry {
            name: ByteString::from(format!("{number}").into_bytes()),
            metadata: Metadata {
                kind: EntryKind::File,
                size: 0,
                mode: 0,
                modified_nanos: 0,
                uid: 0,
                gid: 0,
                target: None,
            },
        })
        .collect();
    let before = resident(std::process::id());
    let endless = |first: Vec<u8>, forever: Vec<u8>| Liar { first, forever, stays: true };
    let list = facing(endless(hello().to_vec(), control(&Reply::Entries(entries))));
    let mut listing = list.files().list(&any()).await.unwrap();
    for _ in 0..100_000 {
        listing.next().await.unwrap().unwrap();
    }
    let metadata = control(&Reply::Metadata(Metadata {
        kind: EntryKind::File,
        size: 1,
        mode: 0,
        modified_nanos: 0,
        uid: 0,
        gid: 0,
        target: None,
    }));
    let file = facing(endless([&hello()[..], &metadata].concat(), raw(Kind::Data, &[0; 256 * 1024])));
    let mut content = file.files().read(&any(), 0, Some(1)).await.unwrap().content;
    for _ in 0..1000 {
        content.next().await.unwrap().unwrap();
    }
    let output = facing(endless([&hello()[..], &started()].concat(), raw(Kind::Stderr, &[0; 256 * 1024])));
    let mut exec = output.exec(sh("true")).await.unwrap();
    for _ in 0..1000 {
        exec.events.next().await.unwrap().unwrap();
    }
    let held = resident(std::process::id()).saturating_sub(before);
    assert!(held < 16 * 1024, "{held} kB");
    drop((listing, content, exec));
}

#[tokio::test]
async fn lists_and_files_are_checked() {
    let hi = hello();
    let entry = |name: &[u8]| {
        control(&Reply::Entries(vec![Entry {
            name: ByteString::from(name),
            metadata: Metadata {
                kind: EntryKind::Directory,
                size: 0,
                mode: 0,
                modified_nanos: 0,
                uid: 0,
                gid: 0,
                target: None,
            },
        }]))
    };
    for first in [entry(b".."), entry(b"a/b"), entry(b""), control(&Reply::Entries(Vec::new())), started()] {
        let sandbox = facing(liar(&[&hi, &first]));
        let error = match sandbox.files().list(&any()).await {
            Err(error) => error,
            Ok(mut list) => list.next().await.unwrap().unwrap_err(),
        };
        assert_eq!((error.kind(), error.code()), ("lost", "agent-protocol"));
    }
    let options = WriteOptions { mode: None, overwrite: true, parents: false };
    let early = facing(liar(&[&hi, &control(&Reply::Done)]));
    let endless = Box::pin(futures_util::stream::repeat(Ok(bytes::Bytes::from_static(&[0; 4096]))));
    let error = early.files().write(&any(), options.clone(), endless).await.unwrap_err();
    assert_eq!(error.code(), "agent-protocol");
    let deaf = facing(liar(&[&hi]));
    let small = Box::pin(futures_util::stream::iter([Ok(bytes::Bytes::from_static(b"x"))]));
    assert_eq!(deaf.files().write(&any(), options, small).await.unwrap_err().code(), "agent-silent");
    let stuck = facing(liar(&[&hi, &control(&Reply::Done), &raw(Kind::Data, b"half")]));
    let mut tree = stuck.files().download(&any()).await.unwrap();
    assert_eq!(tree.next().await.unwrap().unwrap(), "half");
    assert_eq!(tree.next().await.unwrap().unwrap_err().code(), "agent-silent");
    assert!(tree.next().await.is_none());
    for reply in [Reply::Connected, Reply::Listening { listener: 1, port: 0 }, Reply::Done] {
        assert_eq!(
            facing(liar(&[&hi, &control(&reply)])).listen(0).await.err().unwrap().code(),
            "agent-protocol"
        );
    }
}

#[tokio::test]
async fn whoever_lives_is_silent_or_foreign_and_never_taken_for_dead() {
    let mut other = hello();
    other[6..].copy_from_slice(&999u16.to_le_bytes());
    let status = control(&Reply::Status(Status { busy: 0, idle_millis: 0, commands: 0, uptime_millis: 0 }));
    let busy = control(&Reply::Failed(Failure { code: FailureCode::Busy, message: "m".into(), errno: None }));
    let gone = Liar { first: Vec::new(), forever: Vec::new(), stays: false };
    for (liar, expected) in [
        (liar(&[&hello(), &status]), "answers"),
        (liar(&[&other]), "sandbox-foreign"),
        (liar(&[b"GET / HTTP/1.1"]), "sandbox-foreign"),
        (liar(&[&hello(), &control(&Reply::Connected)]), "sandbox-foreign"),
        (liar(&[&hello(), &busy]), "sandbox-foreign"),
        (liar(&[]), "sandbox-silent"),
        (liar(&[&hello()]), "sandbox-silent"),
        (gone, "sandbox-silent"),
    ] {
        for over in [false, true] {
            let begun = Instant::now();
            let ends = |patience: Duration| async move {
                tokio::time::sleep(if over { Duration::ZERO } else { patience }).await;
                over
            };
            let code = match presence(&liar, 77, Some(5), ends).await {
                Presence::Answers => "answers".to_owned(),
                Presence::Over => "over".to_owned(),
                Presence::Silent(error) | Presence::Foreign(error) => {
                    let said = error.diagnosis();
                    assert!(said.fix.is_some() && said.cause.as_ref().unwrap().contains(" 77 "), "{said:?}");
                    assert_eq!(error.kind(), "unavailable");
                    error.code().to_owned()
                }
            };
            let expected = if over && expected != "answers" { "over" } else { expected };
            assert_eq!(code, expected);
            assert!(begun.elapsed() < Duration::from_secs(4), "{code}");
        }
    }
}

#[tokio::test]
async fn a_sandbox_that_is_in_use_is_not_closed() {
    let busy = control(&Reply::Failed(Failure { code: FailureCode::Busy, message: "m".into(), errno: None }));
    assert_eq!(facing(liar(&[&hello(), &busy])).close_if_idle().await, Ok(false));
    assert_eq!(facing(liar(&[&hello(), &control(&Reply::Done)])).close_if_idle().await, Ok(true));
    let error = facing(liar(&[])).close_if_idle().await.unwrap_err();
    assert_eq!(error.code(), "agent-silent");
    let error = facing(liar(&[&hello(), &control(&Reply::Connected)])).close_if_idle().await.unwrap_err();
    assert_eq!(error.code(), "agent-protocol");
}

/// A forwarder that gets no descriptors: all that a host passes is closed.
struct Blind;

#[async_trait]
impl Transport for Blind {
    async fn connect(&self) -> Result<Channel, Error> {
        let (host, mut theirs) = UnixStream::pair().unwrap();
        tokio::spawn(async move {
            let mut opening = [0; HELLO_BYTES + HEADER_BYTES];
            theirs.read_exact(&mut opening).await.unwrap();
            let header = Header::decode(*opening.last_chunk().unwrap()).unwrap();
            let mut payload = vec![0; header.length];
            theirs.read_exact(&mut payload).await.unwrap();
            let reply = match moltis_agent_protocol::frame::decode_control(&payload).unwrap() {
                Request::Egress { .. } => Reply::Standing { host: 7, port: 3128 },
                Request::Carry { host: 7 } => Reply::Connected,
                other => panic!("{other:?}"),
            };
            theirs.write_all(&[&hello()[..], &control(&reply)].concat()).await.unwrap();
            // An ordinary read lets the descriptors go.
            let mut said = Vec::new();
            let _ = theirs.read_to_end(&mut said).await;
        });
        Ok(Channel::unix(host))
    }
}

#[tokio::test]
async fn a_host_whose_ends_are_lost_makes_connections_instead() {
    let mut forwarder = sandbox(Arc::new(Blind), Patience::default()).egress().await.unwrap();
    for _ in 0..3 {
        let accepted = tokio::time::timeout(Duration::from_secs(20), forwarder.accept()).await;
        assert!(accepted.unwrap().is_ok());
    }
}

#[tokio::test]
async fn what_a_sandbox_takes_is_told_or_not_known_or_an_error() {
    let failed = |code| {
        let message = "the request cannot be read".to_owned();
        control(&Reply::Failed(Failure { code, message, errno: None }))
    };
    let told = |reply: Vec<u8>| async move {
        facing(liar(&[&hello(), &reply])).usage().await.map_err(|error| error.kind().to_string())
    };
    let most = Usage { memory_bytes: u64::MAX, cpu_micros: u64::MAX };
    let expected = moltis_sandbox::Usage { memory_bytes: u64::MAX, cpu: Duration::from_micros(u64::MAX) };
    assert_eq!(told(control(&Reply::Usage(most))).await, Ok(Some(expected)));
    // An agent that was made before there was this question, and one with too many processes.
    assert_eq!(told(failed(FailureCode::Invalid)).await, Ok(None));
    assert_eq!(told(failed(FailureCode::Exhausted)).await, Ok(None));
    assert!(told(failed(FailureCode::Io)).await.is_err());
    assert!(told(control(&Reply::Done)).await.is_err());
    // One that says nothing holds up nobody for long.
    assert!(told(Vec::new()).await.is_err());
}
