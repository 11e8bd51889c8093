//! Opens machines with a real guest, runs commands in them and says how long each step takes: the first one is booted, the
//! others begin from its snapshot. Each must be one of its own.
//!
//! `machines DATA_DIR FIRECRACKER KERNEL ROOTFS [COUNT]`

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use moltis_backend_firecracker::{Config, FirecrackerBackend, Step};
use moltis_sandbox::{
    Backend, Command, Detection, ExecEvent, ExecRequest, Files, GuestPath, Lifetime, Network, Origin,
    Sandbox, SandboxSpec, SessionKey, Setting, Status,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct Said {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: Status,
}

async fn run(sandbox: &Arc<dyn Sandbox>, line: &str, limit: u64) -> Said {
    let mut request = ExecRequest::new(Command::Shell(line.into()));
    request.timeout = Some(Duration::from_secs(limit));
    let mut exec = sandbox.exec(request).await.unwrap();
    let mut said = Said { stdout: Vec::new(), stderr: Vec::new(), status: Status::Code(-1) };
    while let Some(event) = exec.events.next().await {
        match event.unwrap() {
            ExecEvent::Stdout(bytes) => said.stdout.extend_from_slice(&bytes),
            ExecEvent::Stderr(bytes) => said.stderr.extend_from_slice(&bytes),
            ExecEvent::Exit(outcome) => said.status = outcome.status,
            _ => {}
        }
    }
    said
}

async fn text(sandbox: &Arc<dyn Sandbox>, line: &str) -> String {
    let said = run(sandbox, line, 300).await;
    let text = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    if said.status != Status::Code(0) {
        println!("! {line}: {:?} {}", said.status, String::from_utf8_lossy(&said.stderr));
    }
    text
}

fn spec(key: &str, lifetime: Lifetime) -> SandboxSpec {
    let mut spec = SandboxSpec::new(SessionKey::new(key).unwrap(), lifetime);
    spec.limits.pids = Some(Setting::built_in(256));
    spec
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let mut config = Config::new(arguments[1].clone().into());
    config.firecracker = arguments[2].clone().into();
    config.kernel = arguments[3].clone().into();
    config.rootfs = arguments[4].clone().into();
    let count: u32 = arguments.get(5).map_or(2, |count| count.parse().unwrap());
    config.memory_mb = 256;
    config.vcpus = 1;
    config.serves_within = Duration::from_secs(240);
    let began = Arc::new(Mutex::new(Instant::now()));
    let clock = Arc::clone(&began);
    config.watch = Some(Arc::new(move |step: Step| {
        let took = clock.lock().unwrap().elapsed();
        println!("  {step:?} after {:.1} ms", took.as_secs_f64() * 1000.0);
    }));
    let backend = FirecrackerBackend::new(config);
    match backend.detect().await {
        Detection::Usable(usable) => println!("usable: {} {:?}", usable.version, usable.notes),
        Detection::Unusable(why) | Detection::Failing(why) => {
            println!("not usable: {why:?}");
            std::process::exit(1);
        }
    }
    let idle = Lifetime::Idle(Duration::from_secs(600));
    let mut identities = Vec::new();
    for number in 0..count {
        *began.lock().unwrap() = Instant::now();
        println!("machine {number}");
        let lifetime = if number == 1 { Lifetime::Ephemeral } else { idle };
        let opened = backend.open(&spec(&format!("machine {number}"), lifetime)).await;
        let sandbox = match opened {
            Ok(sandbox) => sandbox,
            Err(error) => {
                println!("not opened: {error:?}");
                std::process::exit(1);
            }
        };
        println!("  opened after {:.1} ms", began.lock().unwrap().elapsed().as_secs_f64() * 1000.0);
        if number == 0 {
            for line in [
                "id",
                "hostname; pwd; echo $HOME; uname -sr",
                "ps",
                "cat /proc/mounts",
                "ls -l /dev",
                "grep -E 'Cap|NoNewPrivs|Seccomp' /proc/self/status",
                "date -u; ls -la /; cat /etc/passwd",
                "ip addr 2>/dev/null || cat /proc/net/dev",
                "ulimit -u; ulimit -c",
                "dd if=/dev/zero of=/home/sandbox/f bs=1M count=64 2>&1; df -h /home/sandbox",
                "cat /dev/vda; mknod /tmp/x b 254 0; mount -t tmpfs none /tmp; chroot / true; true",
            ] {
                let said = run(&sandbox, line, 300).await;
                let (out, err) =
                    (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
                println!("  $ {line} -> {:?}\n{out}{err}", said.status);
            }
        }
        let start = Instant::now();
        let identity =
            text(&sandbox, "cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1; date +%s").await;
        println!("  {identity:?} in {:.1} ms", start.elapsed().as_secs_f64() * 1000.0);
        identities.push(identity);
        let big = run(&sandbox, "head -c 5000000 /dev/zero; echo end >&2; exit 7", 300).await;
        assert_eq!(
            (big.stdout.len(), big.stderr.as_slice(), big.status),
            (5_000_000, &b"end\n"[..], Status::Code(7))
        );
        let late = run(&sandbox, "sleep 1000 & sleep 1000", 1).await;
        println!("  late: {:?}", late.status);
        assert_eq!(text(&sandbox, "ps | grep -c '[s]leep 1000' || true").await, "0");
        files(&sandbox).await;
        half_close(&sandbox).await;
        if number == 0 {
            let adopted = backend.adopt(&spec("machine 0", idle)).await.unwrap().expect("it is found again");
            assert_eq!(text(&adopted, "echo adopted").await, "adopted");
            let forks =
                run(&sandbox, "i=0; while [ $i -lt 400 ]; do sleep 20 & i=$((i+1)); done; echo made $i", 30)
                    .await;
            println!("  forks: {:?} {}", forks.status, String::from_utf8_lossy(&forks.stdout));
            assert_eq!(text(&sandbox, "echo after the forks").await, "after the forks");
        }
    }
    println!("listed: {}", backend.list().await.unwrap().len());
    let mut open = spec("open", idle);
    open.network = Setting::new(Network::Open, Origin::Flag);
    *began.lock().unwrap() = Instant::now();
    match backend.open(&open).await {
        Ok(sandbox) => {
            println!(
                "open: {}",
                text(&sandbox, "ip addr; ip route; cat /etc/resolv.conf; ping -c1 -W5 10.0.2.2 || true")
                    .await
            );
            sandbox.close().await.unwrap();
        }
        Err(error) => println!("open: {error}"),
    }
    for number in 0..count {
        backend.remove(&spec(&format!("machine {number}"), idle).id()).await.unwrap();
    }
    println!("listed: {}", backend.list().await.unwrap().len());
    let machines: std::collections::BTreeSet<_> =
        identities.iter().map(|identity| identity.lines().next().unwrap_or_default().to_owned()).collect();
    assert_eq!(machines.len(), identities.len(), "{identities:?}");
    println!("done");
}

async fn files(sandbox: &Arc<dyn Sandbox>) {
    let files: &dyn Files = sandbox.files();
    let path = GuestPath::new("/home/sandbox/here").unwrap();
    assert_eq!(text(sandbox, "printf written > /home/sandbox/here; cat /home/sandbox/here").await, "written");
    let found = files.stat(&path, false).await.unwrap();
    println!("  file: {} bytes", found.size);
}

/// A stream whose one direction ends before the other begins.
async fn half_close(sandbox: &Arc<dyn Sandbox>) {
    let mut listener = sandbox.listen(0).await.unwrap();
    let port = listener.port();
    let line = format!("printf question | nc 127.0.0.1 {port}");
    let asked = {
        let sandbox = Arc::clone(sandbox);
        tokio::spawn(async move { run(&sandbox, &line, 60).await })
    };
    let accepted = tokio::time::timeout(Duration::from_secs(120), listener.accept()).await;
    let Ok(Ok(mut stream)) = accepted else { return println!("! nothing came to the port") };
    let mut question = [0; 8];
    stream.read_exact(&mut question).await.unwrap();
    assert_eq!(&question, b"question");
    stream.write_all(b"answer").await.unwrap();
    stream.shutdown().await.unwrap();
    drop(stream);
    let said = asked.await.unwrap();
    assert_eq!(said.stdout, b"answer", "{:?} {}", said.status, String::from_utf8_lossy(&said.stderr));
    println!("  forwarded");
}
