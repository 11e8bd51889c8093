//! Background commands: without a caller, with kept output, watched from any offset, ended by name.

use std::time::{Duration, Instant};

use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{Ending, Error, ExecRequest, Promise, Status};

use crate::run::{eventually, shell};
use crate::{Case, Ctx, Fail, Live, Place, Verdict, case, ensure, ensure_eq, fail, patience};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("background.outlives-the-caller", outlives),
        case!("background.output-since", output_since),
        case!("background.exit", exit),
        case!("background.follow", follow),
        case!("background.input-and-signal", input_and_signal),
        case!("background.stop", stop).law(4),
        case!("background.watchers-are-not-callers", watchers).law(4),
        case!("background.output-bounded", output_bounded).law(5).limit(60),
        case!("background.time-out", time_out).law(4),
        case!("background.unknown", unknown),
    ]
}

/// A request for a shell line that stays without a caller.
pub(super) fn background(line: impl Into<Vec<u8>>) -> ExecRequest {
    let mut request = shell(line);
    request.background = true;
    request.timeout = None;
    request
}

async fn unless_there(ctx: &Ctx) -> Result<Option<Verdict>, Fail> {
    let Promise::NotEnforced(reason) = &ctx.guarantees.background else { return Ok(None) };
    let place = ctx.place().await?;
    match place.sandbox.exec(background(format!("touch {}", place.path("ran")))).await {
        Err(Error::Refused(_)) => {}
        Err(e) => fail!("{} instead of refused: {e}", e.kind()),
        Ok(_) => fail!("no background commands are promised, yet one was started"),
    }
    place.is_empty().await?;
    Ok(Some(Verdict::Declared(reason.clone())))
}

macro_rules! need_background {
    ($ctx:expr) => {
        if let Some(verdict) = unless_there($ctx).await? {
            return Ok(verdict);
        }
    };
}

/// Starts a background command and lets go of it.
async fn begin(place: &Place, request: ExecRequest) -> Result<ProcessId, Fail> {
    Ok(place.start(request).await?.process)
}

async fn watch(
    place: &Place,
    process: ProcessId,
    stdout: u64,
    stderr: u64,
    follow: bool,
) -> Result<Live, Fail> {
    Live::of(place.attach(process, stdout, stderr, follow).await?, Instant::now()).await
}

/// What there is of a background command's output from these offsets on, and whether it is over.
pub(super) async fn look(place: &Place, process: ProcessId, stdout: u64, stderr: u64) -> Result<Live, Fail> {
    let mut live = watch(place, process, stdout, stderr, false).await?;
    let reading = async {
        while live.step().await? {}
        Ok::<_, Fail>(())
    };
    match tokio::time::timeout(patience(Duration::from_secs(10)), reading).await {
        Ok(done) => done?,
        Err(_) => fail!("looking at what is there does not end"),
    }
    Ok(live)
}

async fn outlives(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_background!(ctx);
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let process = begin(&place, background(format!("echo begun; exec {}", marker.sleep()))).await?;
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    tokio::time::sleep(Duration::from_millis(700)).await;
    ensure_eq!(marker.count(&place).await?, 1, "it lives on without its caller");
    let all = place.processes().await?;
    ensure_eq!(all.len(), 1, "background commands listed: {all:?}");
    ensure_eq!((all[0].id, all[0].background, &all[0].outcome), (process, true, &None), "the one listed");
    ensure!(all[0].command.contains("echo begun"), "its command: {:?}", all[0].command);
    place.stop(process).await?;
    Ok(Verdict::Pass)
}

async fn output_since(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_background!(ctx);
    let place = ctx.place().await?;
    let process = begin(&place, background("printf 0123456789; printf abcdef >&2; sleep 100")).await?;
    let there = eventually(Duration::from_secs(5), async || {
        let seen = look(&place, process, 0, 0).await?;
        Ok(seen.stdout.len() == 10 && seen.stderr.len() == 6)
    })
    .await?;
    ensure!(there, "the output does not come");
    for (stdout, stderr, out, err) in
        [(0, 0, "0123456789", "abcdef"), (4, 6, "456789", ""), (10, 1, "", "bcdef"), (99, 99, "", "")]
    {
        let seen = look(&place, process, stdout, stderr).await?;
        ensure_eq!(String::from_utf8_lossy(&seen.stdout), out, "stdout from {stdout}");
        ensure_eq!(String::from_utf8_lossy(&seen.stderr), err, "stderr from {stderr}");
        ensure!(seen.outcome.is_none(), "it is not over");
        ensure_eq!(seen.missed, (0, 0), "missed");
    }
    place.stop(process).await?;
    Ok(Verdict::Pass)
}

async fn exit(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_background!(ctx);
    let place = ctx.place().await?;
    let process = begin(&place, background("echo out; echo err >&2; exit 7")).await?;
    let over =
        eventually(Duration::from_secs(5), async || Ok(look(&place, process, 0, 0).await?.outcome.is_some()))
            .await?;
    ensure!(over, "its end does not come");
    let seen = look(&place, process, 0, 0).await?;
    let Some(outcome) = seen.outcome else { fail!("its end is forgotten") };
    ensure_eq!((outcome.status, outcome.ending), (Status::Code(7), Ending::Exited), "end");
    ensure_eq!((outcome.stdout_bytes, outcome.stderr_bytes), (4, 4), "bytes counted");
    ensure_eq!((seen.stdout, seen.stderr), (b"out\n".to_vec(), b"err\n".to_vec()), "output after the end");
    let all = place.processes().await?;
    ensure_eq!(all.len(), 1, "listed after the end");
    ensure_eq!(all[0].outcome.as_ref().map(|o| o.status), Some(Status::Code(7)), "status listed");
    ensure_eq!(place.stop(process).await?.status, Status::Code(7), "stopping what is over");
    Ok(Verdict::Pass)
}

async fn follow(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_background!(ctx);
    let place = ctx.place().await?;
    let process = begin(&place, background("for i in 1 2 3 4; do echo $i; sleep 0.4; done; exit 3")).await?;
    let mut live = watch(&place, process, 0, 0, true).await?;
    live.until("2\n", Duration::from_secs(5)).await?;
    ensure!(live.outcome.is_none() && !live.stdout.ends_with(b"4\n"), "all at once");
    let second = watch(&place, process, 2, 0, true).await?;
    for (live, text) in [(live, "1\n2\n3\n4\n"), (second, "2\n3\n4\n")] {
        let ran = live.finish(Duration::from_secs(8)).await?;
        ensure_eq!(ran.text(), text, "what a watcher sees");
        ensure_eq!(ran.outcome.status, Status::Code(3), "status");
    }
    Ok(Verdict::Pass)
}

async fn input_and_signal(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_background!(ctx);
    let place = ctx.place().await?;
    let mut request =
        background("trap 'echo usr1' USR1; while read l; do echo \"<$l>\"; done; echo eof; exit 4");
    request.stdin = true;
    let process = begin(&place, request).await?;
    let mut live = watch(&place, process, 0, 0, true).await?;
    live.say("one\n").await?;
    live.until("<one>\n", Duration::from_secs(5)).await?;
    let mut other = watch(&place, process, 0, 0, true).await?;
    other.say("two\n").await?;
    live.until("<two>\n", Duration::from_secs(5)).await?;
    other.exec.control.signal(10).await?;
    // A shell runs a trap once what it waits for is over.
    other.say("three\n").await?;
    live.until("usr1\n", Duration::from_secs(5)).await?;
    other.exec.control.close_stdin().await?;
    let ran = live.finish(Duration::from_secs(5)).await?;
    ensure_eq!(ran.outcome.status, Status::Code(4), "status after the end of input");
    ensure!(ran.text().ends_with("eof\n"), "output {:?}", ran.text());
    Ok(Verdict::Pass)
}

async fn stop(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_background!(ctx);
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let line = format!("trap '' TERM HUP; setsid {0} & (({0} &) &); {0}", marker.sleep());
    let process = begin(&place, background(line)).await?;
    marker.wait_for(&place, 3, Duration::from_secs(5)).await?;
    let outcome = tokio::time::timeout(patience(Duration::from_secs(8)), place.stop(process)).await;
    let outcome = outcome.map_err(|_| Fail::new("stopping takes longer than 8 s"))??;
    ensure_eq!(outcome.ending, Ending::Cancelled, "ending");
    ensure_eq!(marker.count(&place).await?, 0, "processes left when stop was over");
    Ok(Verdict::Pass)
}

async fn watchers(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_background!(ctx);
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let process = begin(&place, background(format!("{} & yes", marker.sleep()))).await?;
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    // One that leaves at once, and one that stays and never reads: neither ends nor holds up the command.
    drop(watch(&place, process, 0, 0, true).await?);
    let stalled = watch(&place, process, 0, 0, true).await?;
    tokio::time::sleep(Duration::from_millis(700)).await;
    ensure_eq!(marker.count(&place).await?, 1, "it lives on");
    let first = total(&place, process).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let second = total(&place, process).await?;
    ensure!(second > first, "a watcher that does not read holds the command up at {first} bytes");
    drop(stalled);
    place.stop(process).await?;
    Ok(Verdict::Pass)
}

/// Bytes of standard output so far: what is missed and what is kept.
async fn total(place: &Place, process: ProcessId) -> Result<u64, Fail> {
    let seen = look(place, process, 0, 0).await?;
    Ok(seen.missed.0 + seen.stdout.len() as u64)
}

async fn output_bounded(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_background!(ctx);
    let place = ctx.place().await?;
    let process = begin(&place, background("seq 1 10000000; echo end; exit 0")).await?;
    let over = eventually(Duration::from_secs(40), async || {
        Ok(place.processes().await?.iter().any(|p| p.id == process && p.outcome.is_some()))
    })
    .await?;
    ensure!(over, "a background command that prints much does not get on");
    let seen = look(&place, process, 0, 0).await?;
    let length: u64 = (1..=10_000_000_u64).map(|n| n.to_string().len() as u64 + 1).sum::<u64>() + 4;
    ensure_eq!(seen.missed.0 + seen.stdout.len() as u64, length, "missed and kept together");
    ensure!(seen.stdout.len() < 32 << 20, "{} bytes are kept", seen.stdout.len());
    ensure!(seen.stdout.ends_with(b"10000000\nend\n"), "the end is not kept");
    let Some(outcome) = seen.outcome else { fail!("no end") };
    ensure_eq!(outcome.stdout_bytes, length, "bytes counted");
    Ok(Verdict::Pass)
}

async fn time_out(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_background!(ctx);
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let mut request = background(marker.sleep());
    request.timeout = Some(Duration::from_secs(1));
    let process = begin(&place, request).await?;
    marker.wait_for(&place, 1, Duration::from_millis(900)).await?;
    marker.wait_for(&place, 0, Duration::from_secs(9)).await?;
    // Its processes are gone a moment before its end is told.
    let mut ending = None;
    eventually(Duration::from_secs(5), async || {
        ending = look(&place, process, 0, 0).await?.outcome.map(|outcome| outcome.ending);
        Ok(ending.is_some())
    })
    .await?;
    ensure_eq!(ending, Some(Ending::TimedOut), "ending");
    Ok(Verdict::Pass)
}

async fn unknown(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_background!(ctx);
    let place = ctx.place().await?;
    let none = ProcessId(4_000_000);
    match place.attach(none, 0, 0, false).await {
        Err(Error::Invalid(_)) => {}
        Err(e) => fail!("{} instead of invalid: {e}", e.kind()),
        Ok(mut exec) => match exec.events.next().await {
            Some(Err(Error::Invalid(_))) => {}
            other => fail!("watching nothing: {other:?}"),
        },
    }
    match place.stop(none).await {
        Err(Error::Invalid(_)) => {}
        other => fail!("stopping nothing: {other:?}"),
    }
    ensure_eq!(place.processes().await?, [], "listed");
    Ok(Verdict::Pass)
}
