//! Figures, not judgements: run with `--ignored --nocapture`, and with `MOLTIS_GUEST` naming the binary as shipped.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use moltis_agent_protocol::message::*;

use crate::client::*;

const ROUNDS: usize = 2000;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn time(rounds: usize, mut what: impl FnMut()) -> Vec<Duration> {
    let one = |()| {
        let began = Instant::now();
        what();
        began.elapsed()
    };
    std::iter::repeat_n((), rounds).map(one).collect()
}

fn spawn_sh() {
    assert!(Command::new("/bin/sh").args(["-c", "true"]).stdin(Stdio::null()).status().unwrap().success());
}

#[test]
#[ignore = "measures"]
fn warm_exec() {
    let agent = Agent::start();
    let exec = || assert_eq!(agent.run(command(&["/bin/true"])).end.left, Left::Code(0));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS / 100 {
        theirs.extend(time(100, spawn_sh));
        ours.extend(time(100, exec));
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!(
        "exec of true: {ours:?}; sh -c true: {theirs:?}; {:.2} x",
        ours.as_secs_f64() / theirs.as_secs_f64()
    );
    println!("agent resident: {} KiB", resident(agent.pid()));
}

#[test]
#[ignore = "measures"]
fn sixteen_callers() {
    let agent = Agent::start();
    let rate = |what: &(dyn Fn() + Sync)| {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| (0..ROUNDS / 16).for_each(|_| what()));
            }
        });
        ROUNDS as f64 / began.elapsed().as_secs_f64()
    };
    let exec = || assert_eq!(agent.run(command(&["/bin/true"])).end.left, Left::Code(0));
    let (theirs, ours) = (rate(&spawn_sh), rate(&exec));
    println!("16 callers: {ours:.0}/s; sh -c true: {theirs:.0}/s; {:.2} x", ours / theirs);
}

#[test]
#[ignore = "measures"]
fn throughput() {
    const BYTES: u64 = 2 << 30;
    let agent = Agent::start();
    let line = format!("head -c {BYTES} /dev/zero");
    let mut buffer = vec![0; 256 * 1024];
    let began = Instant::now();
    let mut child = Command::new("sh").args(["-c", &line]).stdout(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    while pipe.read(&mut buffer).unwrap() > 0 {}
    child.wait().unwrap();
    let theirs = began.elapsed();

    let began = Instant::now();
    let mut conn = agent.open(&Request::Exec(sh(&line)));
    let (_, pid) = conn.started();
    let supervisor = parent(pid);
    // Read as the host does: header, then payload into a buffer that is kept.
    let mut header = [0; 5];
    let (mut count, mut most) = (0, 0);
    while conn.stream.read_exact(&mut header).is_ok() && header[0] == 3 {
        let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]) as usize;
        conn.stream.read_exact(&mut buffer[..length]).unwrap();
        count += length as u64;
        if count % (1 << 26) < length as u64 && count < BYTES / 2 {
            most = most.max(resident(supervisor));
        }
    }
    assert_eq!(count, BYTES);
    let ours = began.elapsed();
    println!(
        "2 GiB: {ours:?}; plain pipe: {theirs:?}; {:.2} x the rate; supervisor {most} KiB",
        theirs.as_secs_f64() / ours.as_secs_f64()
    );
}
