//! The agent in real containers: what commands may not do, what they cannot break, and how fast each way to it is.

use std::time::{Duration, Instant};

use moltis_agent::client::Patience;
use moltis_agent::sandbox::{hold, status};
use moltis_agent::{Error, RelaySecret, Transport};
use moltis_sandbox::{Command, Ending, ExecRequest, Sandbox};

use crate::agent::{collect, sh, until};
use crate::container::{Carrier, Container, docker};
use crate::relay::{contract, first_output, gone, patient, text};

async fn python(sandbox: &moltis_agent::AgentSandbox, script: &str) -> String {
    let argv = ["python3", "-c", script].map(Into::into).to_vec();
    let exec = sandbox.exec(ExecRequest::new(Command::Argv(argv))).await.unwrap();
    let (stdout, stderr, _) = collect(exec).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&stderr), "");
    String::from_utf8(stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_holds_in_a_container() {
    let Some(container) = Container::of_docker("busybox", &[], |_| {}) else { return };
    let (relay, _carrier) = container.relay().await;
    contract(container.transport(), "/tmp").await;
    contract(relay, "/tmp").await;
    drop(docker(&["stop", container.name()]).unwrap());
}

#[tokio::test]
async fn a_command_has_no_privileges_and_no_way_to_them() {
    let Some(container) = Container::of_docker("debian", &[], |_| {}) else { return };
    let sandbox = patient(container.transport());
    let status =
        text(&sandbox, "cat /proc/self/status /proc/self/oom_score_adj; ls -l /proc/1/fd 2>&1").await;
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap().trim().to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!((&field("NoNewPrivs")[..], &field("Seccomp")[..]), ("1", "2"));
    assert_eq!(field("Seccomp_filters"), "2", "the engine's, and ours");
    assert!(status.contains("\n500\n"), "{status}");
    assert!(status.contains("Permission denied"), "{status}");
    let (ioctl, clone, unshare) = (libc::SYS_ioctl, libc::SYS_clone, libc::SYS_unshare);
    let mut calls = vec![
        ("clone3", libc::SYS_clone3, 0, 0, libc::ENOSYS),
        ("TIOCSTI", ioctl, 0, 0x5412, libc::EPERM),
        ("TIOCLINUX", ioctl, 0, 0x541c, libc::EPERM),
        ("a user namespace", unshare, 0x1000_0000, 0, libc::EPERM),
        ("a user namespace", clone, 0x1000_0011, 0, libc::EPERM),
        ("AF_VSOCK", libc::SYS_socket, 40, 1, libc::EPERM),
        ("AF_ALG", libc::SYS_socket, 38, 5, libc::EPERM),
        ("AF_PACKET", libc::SYS_socket, 17, 3, libc::EPERM),
        ("AF_VSOCK pair", libc::SYS_socketpair, 40, 1, libc::EPERM),
    ];
    for (name, number) in [
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("io_uring_enter", libc::SYS_io_uring_enter),
        ("io_uring_register", libc::SYS_io_uring_register),
        ("add_key", libc::SYS_add_key),
        ("request_key", libc::SYS_request_key),
        ("keyctl", libc::SYS_keyctl),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("bpf", libc::SYS_bpf),
        ("perf_event_open", libc::SYS_perf_event_open),
    ] {
        calls.push((name, number, 0, 0, libc::EPERM));
    }
    if cfg!(target_arch = "x86_64") {
        calls.push(("x32", 0x4000_0000 | libc::SYS_getpid, 0, 0, libc::EPERM));
    }
    let script: String = calls
        .iter()
        .map(|(_, number, first, second, _)| {
            format!("$! = 0; syscall({number}, {first}, {second}, 0, 0, 0); print $! + 0, qq(\\n);")
        })
        .collect();
    let argv = ["perl", "-e", &script].map(Into::into).to_vec();
    let (answers, ..) =
        collect(sandbox.exec(ExecRequest::new(Command::Argv(argv))).await.unwrap()).await.unwrap();
    let answers = String::from_utf8(answers).unwrap();
    for ((name, .., expected), answer) in calls.iter().zip(answers.lines()) {
        assert_eq!(answer, expected.to_string(), "{name}");
    }
    assert_eq!(answers.lines().count(), calls.len());
    // The control: what programs need still works.
    let needed = "import socket, threading, subprocess\nfor f in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6): \
                  socket.socket(f)\nt = threading.Thread(target=print, args=('thread',))\nt.start(); t.join()\n\
                  print(subprocess.run(['echo', 'fork'], capture_output=True).stdout.decode(), end='')";
    assert_eq!(python(&sandbox, needed).await, "thread\nfork\n");
}

/// What a process inside hears that says this to the agent's socket.
fn speaking(bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('/.moltis/agent/agent.sock')\nd = b''\ntry:\n  \
         s.sendall(bytes.fromhex('{hex}'))\n  d = s.recv(100)\nexcept OSError: pass\nprint(len(d))"
    )
}

#[tokio::test]
async fn nobody_inside_speaks_to_the_agent_or_in_its_place() {
    use moltis_agent_protocol::{Request, frame, hello, relay};

    let Some(container) = Container::of_docker("debian", &[], |_| {}) else { return };
    let (relay, _carrier) = container.relay().await;
    let sandbox = patient(container.transport());
    let opening = [&hello::hello()[..], &frame::encode_control(&Request::Status).unwrap()].concat();
    assert_eq!(python(&sandbox, &speaking(&opening)).await, "0\n");
    let guessed = [&relay::preface(&[0; 32])[..], &opening].concat();
    assert_eq!(python(&sandbox, &speaking(&guessed)).await, "0\n");
    let right = [&relay::preface(container.secret.as_bytes())[..], &opening].concat();
    assert_ne!(python(&sandbox, &speaking(&right)).await, "0\n", "the secret is what counts");

    // One of theirs in its place.
    let replaced = "import os, socket\nos.unlink('/.moltis/agent/agent.sock')\ns = socket.socket(socket.AF_UNIX)\n\
                    s.bind('/.moltis/agent/agent.sock')\ns.listen()\nos.chmod('/.moltis/agent/agent.sock', 0o666)\n\
                    print('there', flush=True)\nwhile True: s.accept()";
    let argv = ["python3", "-c", replaced].map(Into::into).to_vec();
    let mut impostor = sandbox.exec(ExecRequest::new(Command::Argv(argv))).await.unwrap();
    assert_eq!(first_output(&mut impostor).await, b"there\n");
    assert!(matches!(container.transport().connect().await, Err(Error::Impostor(_))));
    assert_eq!(text(&sandbox, "echo reached").await, "reached\n", "by the handle of the agent's own");
    assert_eq!(text(&patient(relay), "echo reached").await, "reached\n");
    let (late, child) = container.relay_as("0:0", &container.secret);
    assert!(matches!(late.ready(Duration::from_secs(20)).await, Err(Error::Gone)));
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("does not belong to the first process"), "{said}");
    drop(impostor);
}

#[tokio::test]
async fn a_secret_of_a_command_is_not_believed() {
    let Some(container) = Container::of_docker("debian", &[], |_| {}) else { return };
    let sandbox = patient(container.transport());
    text(&sandbox, "true").await;
    let (late, child) = container.relay_as("0:0", &RelaySecret::generate().unwrap());
    assert!(matches!(late.ready(Duration::from_secs(20)).await, Err(Error::Gone)));
    assert!(!child.wait_with_output().unwrap().status.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_everybody_and_forking_without_end_break_neither_agent_nor_relay() {
    let flags = ["--pids-limit", "300", "--memory", "512m"];
    let Some(container) = Container::of_docker("busybox", &flags, |_| {}) else { return };
    let (relay, _carrier) = container.relay().await;
    let (same_user, _second) = container.relay_as("1000:1000", &container.secret);
    let _second = Carrier(_second);
    same_user.ready(Duration::from_secs(20)).await.unwrap();
    for transport in [container.transport(), relay.clone()] {
        let sandbox = patient(transport);
        let mut request = sh("kill -9 -1; while :; do :; done");
        request.timeout = Some(Duration::from_secs(1));
        if let Ok(exec) = sandbox.exec(request).await {
            let _ = collect(exec).await;
        }
        assert_eq!(text(&sandbox, "echo alive").await, "alive\n");
        // The shell itself must neither fork nor become another program: once the bomb has taken every process, that ends it.
        let mut request = sh("bomb() { bomb | bomb & }; bomb; while :; do :; done");
        request.timeout = Some(Duration::from_secs(2));
        let began = Instant::now();
        let (_, said, outcome) = collect(sandbox.exec(request).await.unwrap()).await.unwrap();
        let said = String::from_utf8_lossy(&said[said.len().saturating_sub(500)..]).into_owned();
        assert_eq!(outcome.ending, Ending::TimedOut, "{said}");
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        let left = text(&sandbox, "ps | grep -c '[b]omb'; true").await;
        assert_eq!(left.trim(), "0");
    }
    // One of the commands' own user was killed with them, unless Landlock keeps their signals from it.
    match status(&same_user, Patience::default()).await {
        Ok(_) => {}
        Err(Error::Gone | Error::Lost(_)) => same_user.ended().await,
        Err(error) => panic!("{error}"),
    }
    let again = container.relay().await;
    assert_eq!(text(&patient(again.0.clone()), "echo again").await, "again\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_killed_takes_its_commands_along() {
    let Some(container) = Container::of_docker("busybox", &[], |_| {}) else { return };
    let (relay, mut carrier) = container.relay().await;
    let mut exec = patient(relay.clone()).exec(sh("setsid sleep 1000 & echo $!; wait")).await.unwrap();
    let pid = first_output(&mut exec).await;
    // The engine's tool alone: the engine must let go of the relay's input.
    carrier.0.kill().unwrap();
    let error = loop {
        match exec.events.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error,
            None => panic!("no error"),
        }
    };
    assert_eq!((error.kind(), error.code()), ("lost", "agent-lost"));
    assert!(matches!(relay.connect().await, Err(Error::Gone)));
    let sandbox = patient(container.transport());
    gone(&sandbox, &pid).await;
    let mut left = String::new();
    for _ in 0..100 {
        left = text(&sandbox, "ps | grep '[g]uest relay'; true").await;
        if left.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the relay lives: {left}");
}

#[tokio::test]
async fn an_engine_ends_it_at_once_and_a_holder_does() {
    let Some(mut container) = Container::of_docker("busybox", &[], |_| {}) else { return };
    text(&patient(container.transport()), "setsid sleep 1000 >/dev/null 2>&1 & kill -TERM 1; true").await;
    assert!(!container.has_ended());
    let began = Instant::now();
    docker(&["stop", "--time", "10", container.name()]).unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(container.has_ended());
    let Some(mut container) = Container::of_docker("busybox", &[], |args| args.held = true) else { return };
    let held = hold(&*container.transport(), Patience::default()).await.unwrap();
    assert!(!container.has_ended());
    drop(held);
    until("it ends", || container.has_ended()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn measure() {
    // It measures, which means nothing beside other tests.
    if !moltis_testkit::need::long() {
        return;
    }
    let Some(container) = Container::of_docker("busybox", &[], |_| {}) else { return };
    let (relay, _carrier) = container.relay().await;
    let ways: [(&str, std::sync::Arc<dyn Transport>); 2] =
        [("socket", container.transport()), ("relay", relay)];
    for (name, transport) in ways {
        let sandbox = patient(transport);
        let mut times = Vec::new();
        for _ in 0..300 {
            let began = Instant::now();
            let argv = ExecRequest::new(Command::Argv(vec!["/bin/true".into()]));
            collect(sandbox.exec(argv).await.unwrap()).await.unwrap();
            times.push(began.elapsed());
        }
        times.sort();
        let began = Instant::now();
        let mut exec = sandbox.exec(sh("dd if=/dev/zero bs=64k count=4096 2>/dev/null")).await.unwrap();
        let mut count = 0;
        while let Some(Ok(event)) = exec.events.next().await {
            if let moltis_sandbox::ExecEvent::Stdout(bytes) = event {
                count += bytes.len();
            }
        }
        let rate = count as f64 / began.elapsed().as_secs_f64() / 1e6;
        println!("{name}: true p50 {:?}, p95 {:?}; {rate:.0} MB/s out", times[150], times[285]);
    }
    let began = Instant::now();
    let mut child = std::process::Command::new("dd")
        .args(["if=/dev/zero", "bs=64k", "count=4096", "status=none"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::copy(&mut child.stdout.take().unwrap(), &mut Sink).unwrap();
    child.wait().unwrap();
    println!("a plain pipe: {:.0} MB/s", 268.435456 / began.elapsed().as_secs_f64());
    let mut times: Vec<_> = (0..20)
        .map(|_| {
            let began = Instant::now();
            docker(&["exec", container.name(), "/bin/true"]).unwrap();
            began.elapsed()
        })
        .collect();
    times.sort();
    println!("docker exec: true p50 {:?}", times[10]);
}

/// Not the standard library's, into which a pipe is spliced without being read.
struct Sink;

impl std::io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
