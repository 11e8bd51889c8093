//! Forwarding over socket pairs, with the host's and PID 1's part played here.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use moltis_agent_protocol::frame::{self, HEADER_BYTES, Header};
use moltis_agent_protocol::hello::{self, HELLO_BYTES};
use moltis_agent_protocol::message::Request;

use super::*;
use crate::control;

fn reply(host: &mut UnixStream) -> Reply {
    let mut header = [0; HEADER_BYTES];
    host.read_exact(&mut header).unwrap();
    let mut payload = vec![0; Header::decode(header).unwrap().length];
    host.read_exact(&mut payload).unwrap();
    frame::decode_control(&payload).unwrap()
}

fn connected(port: u16) -> (UnixStream, JoinHandle<io::Result<()>>) {
    let (host, ours) = UnixStream::pair().unwrap();
    let agent = std::thread::spawn(move || connect(Connection::new(ours.into()), port));
    (host, agent)
}

#[test]
fn each_direction_ends_by_itself() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut host, agent) = connected(server.local_addr().unwrap().port());
    assert_eq!(reply(&mut host), Reply::Connected);
    let (mut inside, _) = server.accept().unwrap();
    let sent: Vec<u8> = (0..5_000_000u32).map(|i| (i * 31) as u8).collect();
    let expected = sent.clone();
    let reading = std::thread::spawn(move || {
        let mut got = Vec::new();
        inside.read_to_end(&mut got).unwrap();
        assert!(got == expected);
        inside.write_all(b"the answer after the end").unwrap();
        inside.write_all(&got).unwrap();
    });
    host.write_all(&sent).unwrap();
    host.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    host.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"the answer after the end") && answer.ends_with(&sent));
    reading.join().unwrap();
    agent.join().unwrap().unwrap();
}

#[test]
fn a_side_that_goes_takes_the_other_along() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    for host_first in [true, false] {
        let (mut host, agent) = connected(server.local_addr().unwrap().port());
        assert_eq!(reply(&mut host), Reply::Connected);
        let (mut inside, _) = server.accept().unwrap();
        if host_first {
            drop(host);
            assert_eq!(inside.read(&mut [0]).unwrap(), 0);
        } else {
            drop(inside);
            assert_eq!(host.read(&mut [0]).unwrap(), 0);
            drop(host);
        }
        agent.join().unwrap().unwrap();
    }
}

#[test]
fn nobody_there_is_said() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (port, code) in [(unused, FailureCode::ConnectionRefused), (0, FailureCode::Invalid)] {
        let (mut host, agent) = connected(port);
        match reply(&mut host) {
            Reply::Failed(failure) => assert_eq!(failure.code, code),
            other => panic!("{other:?}"),
        }
        agent.join().unwrap().unwrap();
    }
}

/// A listener, as the host and PID 1 see it.
struct Listening {
    host: UnixStream,
    port: u16,
    control: OwnedFd,
    agent: Option<JoinHandle<io::Result<()>>>,
}

const NUMBER: u32 = 7;

impl Listening {
    fn new() -> Self {
        let (mut host, ours) = UnixStream::pair().unwrap();
        let (control, theirs) = control::pair().unwrap();
        let agent = std::thread::spawn(move || listen(Connection::new(ours.into()), 0, NUMBER, theirs));
        let Reply::Listening { listener: NUMBER, port } = reply(&mut host) else { panic!("no listener") };
        Self { host, port, control, agent: Some(agent) }
    }

    fn token(&mut self) -> u64 {
        match reply(&mut self.host) {
            Reply::Incoming { token } => token,
            other => panic!("{other:?}"),
        }
    }

    fn accept(&self, listener: u32, token: u64) -> (UnixStream, Reply) {
        let (mut host, theirs) = UnixStream::pair().unwrap();
        let packet = frame::encode_control(&Request::Accept { listener, token }).unwrap();
        control::send_with_fd(self.control.as_fd(), &packet[HEADER_BYTES..], Some(theirs.as_fd())).unwrap();
        drop(theirs);
        let mut theirs = [0; HELLO_BYTES];
        host.read_exact(&mut theirs).unwrap();
        assert_eq!(theirs, hello::hello());
        let answer = reply(&mut host);
        (host, answer)
    }

    fn end(mut self) {
        self.host.shutdown(Shutdown::Both).unwrap();
        self.agent.take().unwrap().join().unwrap().unwrap();
    }
}

#[test]
fn connections_made_inside_are_taken_over() {
    let mut listening = Listening::new();
    let mut inside: Vec<_> = (0..200u8)
        .map(|number| {
            let mut stream = TcpStream::connect(("127.0.0.1", listening.port)).unwrap();
            stream.write_all(&[number; 100]).unwrap();
            stream
        })
        .collect();
    let mut outside: Vec<_> = (0..200)
        .map(|_| {
            let token = listening.token();
            let (host, answer) = listening.accept(NUMBER, token);
            assert_eq!(answer, Reply::Connected);
            (token, host)
        })
        .collect();
    for (token, _) in &outside {
        let (_, answer) = listening.accept(NUMBER, *token);
        assert!(
            matches!(answer, Reply::Failed(failure) if failure.code == FailureCode::NotFound),
            "once only"
        );
    }
    let (_, answer) = listening.accept(NUMBER + 1, 1);
    assert!(matches!(answer, Reply::Failed(_)));
    for (inside, (_, outside)) in inside.iter_mut().zip(&mut outside) {
        let mut got = [0; 100];
        outside.read_exact(&mut got).unwrap();
        outside.write_all(&got[..10]).unwrap();
        outside.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        inside.read_to_end(&mut back).unwrap();
        assert_eq!(back, &got[..10]);
    }
    // What is still open ends with the listener.
    let mut last = inside.pop().unwrap();
    last.write_all(b"x").unwrap();
    listening.end();
    let (_, host) = outside.pop().as_mut().map(|(token, host)| (*token, host.try_clone().unwrap())).unwrap();
    let mut rest = Vec::new();
    let _ = (&host).read_to_end(&mut rest);
    assert!(last.write_all(&[0; 1 << 20]).is_err() || last.read(&mut [0]).is_ok());
}

#[test]
fn what_waits_is_bounded() {
    let mut listening = Listening::new();
    let port = listening.port;
    let inside: Vec<_> = (0..1100).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let tokens: Vec<_> = (0..1024).map(|_| listening.token()).collect();
    listening.host.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(listening.host.read(&mut [0; HEADER_BYTES]).is_err(), "no more are announced");
    listening.host.set_read_timeout(None).unwrap();
    let taken: Vec<_> = tokens[..76].iter().map(|token| listening.accept(NUMBER, *token)).collect();
    assert!(taken.iter().all(|(_, answer)| *answer == Reply::Connected));
    for _ in 0..76 {
        listening.token();
    }
    drop(inside);
    listening.end();
}
