//! An agent through a relay keeps the contract that it keeps through a socket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use moltis_agent::client::Patience;
use moltis_agent::sandbox::{hold, status};
use moltis_agent::{AgentSandbox, Error, RelaySecret, RelayTransport, Transport};
use moltis_agent_protocol::hello::hello;
use moltis_agent_protocol::relay::{self, Header, Kind};
use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{Ending, ExecEvent, GuestPath, Sandbox, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::agent::{collect, sandbox, sh, until};
use crate::container::Container;

const MIB: usize = 1024 * 1024;

/// A sandbox that waits as long as it takes.
pub fn patient(transport: Arc<dyn Transport>) -> AgentSandbox {
    sandbox(transport, Patience::default())
}

pub async fn text(sandbox: &AgentSandbox, line: &str) -> String {
    let (stdout, ..) = collect(sandbox.exec(sh(line)).await.unwrap()).await.unwrap();
    String::from_utf8(stdout).unwrap()
}

/// What must hold whatever the way to the agent is. `writable` is a directory inside.
pub async fn contract(transport: Arc<dyn Transport>, writable: &str) {
    let sandbox = patient(Arc::clone(&transport));
    let exec = sandbox.exec(sh("printf out; echo err >&2; exit 3")).await.unwrap();
    let (stdout, stderr, outcome) = collect(exec).await.unwrap();
    assert_eq!((&stdout[..], &stderr[..], outcome.status), (&b"out"[..], &b"err\n"[..], Status::Code(3)));

    // Standard input, and its end.
    let mut request = sh("cat; echo end");
    request.stdin = true;
    let mut exec = sandbox.exec(request).await.unwrap();
    exec.control.stdin(Bytes::from_static(b"in ")).await.unwrap();
    exec.control.close_stdin().await.unwrap();
    assert_eq!(collect(exec).await.unwrap().0, b"in end\n");

    // Time-outs and cancels reach the whole descent, and so does the loss of the caller.
    let mut request = sh("trap '' TERM; setsid sleep 1000 & echo $!; sleep 1000");
    request.timeout = Some(Duration::from_millis(300));
    let (stdout, _, outcome) = collect(sandbox.exec(request).await.unwrap()).await.unwrap();
    assert_eq!(outcome.ending, Ending::TimedOut);
    gone(&sandbox, &stdout).await;
    let mut exec = sandbox.exec(sh("setsid sleep 1000 & echo $!; wait")).await.unwrap();
    let stdout = first_output(&mut exec).await;
    drop(exec);
    gone(&sandbox, &stdout).await;

    // Files.
    let path = GuestPath::new(format!("{writable}/file").as_bytes()).unwrap();
    let content = futures_util::stream::iter([Ok(Bytes::from(vec![7; 3 * MIB]))]);
    let options = WriteOptions { mode: None, overwrite: true, parents: false };
    sandbox.files().write(&path, options, Box::pin(content)).await.unwrap();
    assert_eq!(text(&sandbox, &format!("wc -c <{writable}/file")).await.trim(), (3 * MIB).to_string());
    assert_eq!(sandbox.files().stat(&path, true).await.unwrap().size, 3 * MIB as u64);
    sandbox.files().remove(&path, false).await.unwrap();
    assert_eq!(sandbox.files().stat(&path, true).await.unwrap_err().code(), "file-missing");

    // The proxy port, which the agent itself connects to from inside.
    let mut forwarder = sandbox.egress().await.unwrap();
    let port = forwarder.port();
    let sent: Vec<u8> =
        (0..8 * MIB).map(|n| (n as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    for _ in 0..3 {
        let (inside, outside) = tokio::join!(sandbox.connect(port), forwarder.accept());
        let (mut inside, mut outside) = (inside.unwrap(), outside.unwrap());
        let echo = async {
            let mut all = Vec::new();
            outside.read_to_end(&mut all).await.unwrap();
            outside.write_all(&all).await.unwrap();
            outside.shutdown().await.unwrap();
        };
        let program = async {
            inside.write_all(&sent).await.unwrap();
            inside.shutdown().await.unwrap();
            let mut back = Vec::new();
            inside.read_to_end(&mut back).await.unwrap();
            assert!(back == sent);
        };
        tokio::join!(echo, program);
    }
    drop(forwarder);
    let mut answer = Vec::new();
    for _ in 0..100 {
        let mut inside = sandbox.connect(port).await.unwrap();
        answer.clear();
        inside.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let _ = inside.read_to_end(&mut answer).await;
        if answer.starts_with(b"HTTP/1.1 503 ") {
            break;
        }
    }
    assert!(answer.starts_with(b"HTTP/1.1 503 "), "{}", String::from_utf8_lossy(&answer));

    // Much, in both directions.
    let (stdout, ..) = collect(sandbox.exec(sh("head -c 67108864 /dev/zero")).await.unwrap()).await.unwrap();
    assert_eq!(stdout.len(), 64 * MIB);
    let mut request = sh("wc -c");
    request.stdin = true;
    let mut exec = sandbox.exec(request).await.unwrap();
    for _ in 0..64 {
        exec.control.stdin(Bytes::from(vec![1; MIB])).await.unwrap();
    }
    exec.control.close_stdin().await.unwrap();
    let (stdout, ..) = collect(exec).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&stdout).trim(), (64 * MIB).to_string());

    // One that nobody reads, and one whose input is not read, beside others.
    let mut stalled = sandbox.exec(sh("cat /dev/zero")).await.unwrap();
    assert!(matches!(stalled.events.next().await, Some(Ok(ExecEvent::Started(_)))));
    let mut request = sh("sleep 1000");
    request.stdin = true;
    let mut deaf = sandbox.exec(request).await.unwrap();
    let writing = async {
        loop {
            deaf.control.stdin(Bytes::from(vec![1; MIB])).await.unwrap();
        }
    };
    assert!(tokio::time::timeout(Duration::from_millis(500), writing).await.is_err(), "it is held back");
    let began = Instant::now();
    let (stdout, ..) = collect(sandbox.exec(sh("head -c 8388608 /dev/zero")).await.unwrap()).await.unwrap();
    assert_eq!(stdout.len(), 8 * MIB);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop((stalled, deaf));

    // Many at once.
    let mut all = Vec::new();
    for _ in 0..300 {
        let mut request = sh("read line; echo $line");
        request.stdin = true;
        all.push(sandbox.exec(request).await.unwrap());
    }
    for (number, exec) in all.iter_mut().enumerate() {
        exec.control.stdin(Bytes::from(format!("{number}\n"))).await.unwrap();
    }
    for (number, exec) in all.into_iter().enumerate() {
        assert_eq!(collect(exec).await.unwrap().0, format!("{number}\n").into_bytes());
    }
    until("nothing is in use", || true).await;
    for _ in 0..200 {
        if status(&*transport, Patience::default()).await.unwrap().busy == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("something is still in use");
}

/// What a command first writes.
pub async fn first_output(exec: &mut moltis_sandbox::Exec) -> Vec<u8> {
    loop {
        match exec.events.next().await {
            Some(Ok(ExecEvent::Stdout(bytes))) => return bytes.to_vec(),
            Some(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Waits until a process inside is gone.
pub async fn gone(sandbox: &AgentSandbox, pid: &[u8]) {
    let pid = String::from_utf8_lossy(pid).trim().to_owned();
    for _ in 0..200 {
        let state = format!("grep -q '^State:.[^Z]' /proc/{pid}/status 2>/dev/null && echo lives; true");
        if text(sandbox, &state).await.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{pid} lives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_holds_through_a_socket_and_through_a_relay() {
    let Some(container) = Container::of_namespaces() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (relay, _carrier) = container.relay().await;
    contract(container.transport(), dir.path().to_str().unwrap()).await;
    contract(relay, dir.path().to_str().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_ends_takes_its_commands_along() {
    let Some(container) = Container::of_namespaces() else { return };
    let (relay, mut carrier) = container.relay().await;
    let sandbox = patient(relay.clone());
    let mut exec = sandbox.exec(sh("setsid sleep 1000 & echo $!; wait")).await.unwrap();
    let pid = first_output(&mut exec).await;
    // The tool forwards its end to the relay.
    let children = format!("/proc/{0}/task/{0}/children", carrier.0.id());
    let inside: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(inside).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    carrier.0.wait().unwrap();
    let error = loop {
        match exec.events.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error,
            None => panic!("no error"),
        }
    };
    assert_eq!((error.kind(), error.code()), ("lost", "agent-lost"));
    relay.ended().await;
    assert!(matches!(relay.connect().await, Err(Error::Gone)));
    let (again, carrier) = container.relay().await;
    gone(&patient(again.clone()), &pid).await;

    // Letting go of it ends it.
    let mut exec = patient(again.clone()).exec(sh("setsid sleep 1000 & echo $!; wait")).await.unwrap();
    let pid = first_output(&mut exec).await;
    drop((again, exec));
    let mut carrier = carrier;
    let began = Instant::now();
    while carrier.0.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gone(&patient(container.transport()), &pid).await;
}

#[tokio::test]
async fn another_secret_is_not_believed() {
    let Some(container) = Container::of_namespaces() else { return };
    let (_relay, _carrier) = container.relay().await;
    let (other, child) = container.relay_as("0:0", &RelaySecret::generate().unwrap());
    assert!(matches!(other.ready(Duration::from_secs(20)).await, Err(Error::Gone)));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(70));
    assert_eq!(output.stderr, b"moltis-guest: the agent knows another secret, or none\n");
}

#[tokio::test]
async fn a_held_sandbox_ends_with_its_holder_through_a_relay_too() {
    let Some(mut container) = Container::of_namespaces() else { return };
    let (relay, _carrier) = container.relay().await;
    let held = hold(&*relay, Patience::default()).await.unwrap();
    let error = hold(&*container.transport(), Patience::default()).await.unwrap_err();
    assert!(matches!(error, Error::Failed(..)), "{error:?}");
    assert!(!container.has_ended());
    drop(held);
    until("it ends", || container.has_ended()).await;
    relay.ended().await;
}

/// What a relay that says this makes of a connection.
async fn facing(parts: &[&[u8]]) -> (RelayTransport, tokio::io::DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let (reader, writer) = tokio::io::split(ours);
    let relay = RelayTransport::new(reader, writer, &RelaySecret::from_bytes([9; 32]));
    let mut theirs = theirs;
    theirs.write_all(&parts.concat()).await.unwrap();
    (relay, theirs)
}

#[tokio::test]
async fn relays_that_lie_are_let_go() {
    let say = |stream, kind, length| Header { stream, kind, length }.encode();
    let hi = hello();
    let mut other = hi;
    other[6] = 99;
    let window = relay::WINDOW as usize;
    let too_much: Vec<u8> = (0..=window / relay::MAX_DATA)
        .flat_map(|_| [&say(1, Kind::Data, relay::MAX_DATA as u32)[..], &[0; relay::MAX_DATA]].concat())
        .collect();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("no hello", b"HTTP/1.1".to_vec()),
        ("another version", other.to_vec()),
        ("no frame", [&hi[..], &[0; 9]].concat()),
        ("a stream of its own", [&hi[..], &say(1, Kind::Open, 0)].concat()),
        ("a stream that was never opened", [&hi[..], &say(2, Kind::Eof, 0)].concat()),
        ("too much", [&hi[..], &too_much].concat()),
        ("credit for nothing", [&hi[..], &say(1, Kind::Credit, 1)].concat()),
        ("two ends", [&hi[..], &say(1, Kind::Eof, 0), &say(1, Kind::Eof, 0)].concat()),
        ("bytes after the end", [&hi[..], &say(1, Kind::Eof, 0), &say(1, Kind::Data, 1), b"x"].concat()),
        ("a word after the reset", [&hi[..], &say(1, Kind::Reset, 0), &say(1, Kind::Eof, 0)].concat()),
    ];
    for (what, said) in cases {
        let (ours, mut theirs) = tokio::io::duplex(4 << 20);
        let (reader, writer) = tokio::io::split(ours);
        let relay = RelayTransport::new(reader, writer, &RelaySecret::from_bytes([9; 32]));
        let mut open = relay.connect().await.unwrap();
        theirs.write_all(&said).await.unwrap();
        tokio::time::timeout(Duration::from_secs(5), relay.ended()).await.expect(what);
        let error = relay.connect().await.unwrap_err();
        let is_version = what == "another version";
        assert!(matches!(error, Error::Version(_)) == is_version, "{what}: {error:?}");
        assert!(is_version || matches!(error, Error::Gone), "{what}: {error:?}");
        drop(std::mem::replace(&mut open, relay_channel().await));
    }
    let (silent, _theirs) = facing(&[]).await;
    assert!(matches!(silent.ready(Duration::from_millis(100)).await, Err(Error::Silent(_))));
}

async fn relay_channel() -> moltis_agent::Channel {
    let (one, _) = tokio::io::duplex(1);
    moltis_agent::Channel::new(one)
}

#[tokio::test]
async fn what_a_relay_hears_is_the_secret_and_whole_frames() {
    let (relay, mut theirs) = facing(&[&hello()]).await;
    relay.ready(Duration::from_secs(5)).await.unwrap();
    let asking = status(&relay, Patience { hello: Duration::from_millis(300), ..Patience::default() });
    assert!(matches!(asking.await, Err(Error::Silent(_))));
    let mut heard = vec![0; 8 + 32 + 9 + 9];
    theirs.read_exact(&mut heard).await.unwrap();
    assert_eq!(heard[..8], hello());
    assert_eq!(heard[8..40], [9; 32]);
    assert_eq!(heard[40..49], Header { stream: 1, kind: Kind::Open, length: 0 }.encode());
    let data = Header::decode(heard[49..].try_into().unwrap()).unwrap();
    assert_eq!((data.stream, data.kind), (1, Kind::Data));
    let mut rest = vec![0; data.payload() + 9];
    theirs.read_exact(&mut rest).await.unwrap();
    assert!(rest.starts_with(&hello()));
    // The caller has gone.
    assert!([Kind::Reset, Kind::Eof].contains(&Header::decode(*rest.last_chunk().unwrap()).unwrap().kind));
}
