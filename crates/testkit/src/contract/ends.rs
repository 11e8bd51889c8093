//! Ends: at once with the main process, and of the whole descent when time is up, on cancel, and when the caller is lost.

use std::time::{Duration, Instant};

use moltis_sandbox::{Ending, ExecRequest, Status};

use crate::run::{argv, eventually, shell};
use crate::{Case, Ctx, Fail, Marker, Place, Verdict, case, ensure, ensure_eq, fail, patience};

/// How long the ending of a descent may take: it is asked to stop first.
const GRACE: Duration = Duration::from_secs(8);

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("ends.at-once", at_once).law(4),
        case!("ends.leftovers-hold-output", leftovers_hold_output).law(4),
        case!("ends.leftovers-counted", leftovers_counted).law(4),
        case!("ends.leftovers-not-of-others", leftovers_not_of_others).law(4),
        case!("ends.time-out", time_out).law(4),
        case!("ends.time-out-short", time_out_short).law(4),
        case!("ends.asked-to-stop-first", asked_to_stop_first).law(4),
        case!("ends.ignores-term", ignores_term).law(4),
        case!("ends.setsid", setsid).law(4),
        case!("ends.double-fork", double_fork).law(4),
        case!("ends.fork-storm", fork_storm).law(4).limit(60),
        case!("ends.stopped-descent", stopped_descent).law(4),
        case!("ends.cancel", cancel).law(4),
        case!("ends.signal", signal).law(4),
        case!("ends.lost-caller", lost_caller).law(4),
        case!("ends.lost-caller-of-a-writer", lost_caller_of_a_writer).law(4),
        case!("ends.lost-caller-ignoring-term", lost_caller_ignoring_term).law(4),
        case!("ends.deadline-is-the-agents", deadline_is_the_agents).law(4),
        case!("ends.time-out-with-leftovers", time_out_with_leftovers).law(4),
        case!("ends.beside-others", beside_others).law(4),
        case!("ends.close", close).law(4),
    ]
}

async fn at_once(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let ran =
        place.sh(format!("{} >/dev/null 2>&1 & sleep 0.2; echo started", marker.sleep())).await?.good()?;
    ensure!(ran.took < patience(Duration::from_secs(2)), "the answer took {:?}", ran.took);
    ensure_eq!(ran.text(), "started\n", "output");
    ensure_eq!(ran.outcome.leftovers_total, 1, "leftovers counted");
    let named: Vec<_> = ran.outcome.leftovers.iter().map(|l| l.command.as_str()).collect();
    ensure_eq!(named, [marker.sleep().as_str()], "leftovers named");
    // It lives on, under the pid that was named.
    let pid = ran.outcome.leftovers[0].pid;
    let line = place.out(format!("tr '\\0' ' ' </proc/{pid}/cmdline")).await?;
    ensure_eq!(line.trim(), marker.sleep(), "what runs under that pid");
    ensure_eq!(marker.count(&place).await?, 1, "processes that live on");
    Ok(Verdict::Pass)
}

async fn leftovers_hold_output(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    // The child keeps both outputs open and writes later: neither may hold up the answer.
    let late = patience(Duration::from_secs(1)).as_secs();
    let line = format!("(sleep {late}; echo late; echo late >&2; exec {}) & printf begun", marker.sleep());
    let ran = place.sh(line).await?.good()?;
    ensure!(ran.took < patience(Duration::from_millis(900)), "the answer took {:?}", ran.took);
    ensure_eq!(ran.text(), "begun", "output");
    ensure_eq!(ran.outcome.leftovers_total > 0, true, "leftovers");
    // Nobody reads it any more, and that must not stop or kill it.
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    Ok(Verdict::Pass)
}

async fn leftovers_counted(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let line = format!(
        "i=0; while [ $i -lt 70 ]; do {} >/dev/null 2>&1 & i=$((i+1)); done; sleep 0.2",
        marker.sleep()
    );
    let ran = place.sh(line).await?.good()?;
    ensure_eq!(ran.outcome.leftovers_total, 70, "leftovers counted");
    ensure_eq!(ran.outcome.leftovers.len(), 64, "leftovers named");
    marker.wait_for(&place, 70, Duration::from_secs(5)).await?;
    ensure_eq!(marker.count(&place).await?, 70, "processes that live on");
    Ok(Verdict::Pass)
}

async fn leftovers_not_of_others(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let running = place.start(shell(marker.sleep())).await?;
    let left = ctx.marker();
    place.sh(format!("{} >/dev/null 2>&1 &", left.sleep())).await?.good()?;
    let ran = place.sh("echo alone").await?.good()?;
    ensure_eq!(ran.outcome.leftovers, [], "leftovers of a command that left none");
    ensure_eq!(ran.outcome.leftovers_total, 0, "leftovers counted");
    drop(running);
    Ok(Verdict::Pass)
}

/// Runs a line that makes `count` marked processes, and holds it to its time-out.
async fn must_time_out(place: &Place, line: String, marker: &Marker, count: usize) -> Result<(), Fail> {
    let mut request = shell(line);
    request.timeout = Some(Duration::from_secs(2));
    let live = place.start(request).await?;
    marker.wait_for(place, count, Duration::from_millis(1900)).await?;
    let ran = live.finish(Duration::from_secs(2) + GRACE).await?;
    ensure_eq!(ran.outcome.ending, Ending::TimedOut, "ending");
    ensure_eq!(ran.outcome.exit_code(), 124, "exit code");
    ensure!(ran.took >= Duration::from_secs(2), "over after {:?}", ran.took);
    ensure_eq!(ran.outcome.leftovers_total, 0, "leftovers after a time-out");
    ensure_eq!(marker.count(place).await?, 0, "processes left when the answer came");
    Ok(())
}

async fn time_out(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let mut request = shell(format!("echo so far; {0} & {0}", marker.sleep()));
    request.timeout = Some(Duration::from_secs(1));
    let ran = place.run(request).await?;
    ensure_eq!(ran.outcome.ending, Ending::TimedOut, "ending");
    ensure_eq!(ran.text(), "so far\n", "output so far");
    ensure!(ran.took >= Duration::from_secs(1), "over after {:?}", ran.took);
    ensure!(ran.took < patience(Duration::from_secs(1) + GRACE), "over after {:?}", ran.took);
    ensure!(ran.outcome.duration >= Duration::from_secs(1), "duration {:?}", ran.outcome.duration);
    ensure_eq!(marker.count(&place).await?, 0, "processes left");
    Ok(Verdict::Pass)
}

async fn time_out_short(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    for millis in [1, 20, 150] {
        let mut request = argv(&["sleep", "30"]);
        request.timeout = Some(Duration::from_millis(millis));
        let ran = place.run(request).await?;
        ensure_eq!(ran.outcome.ending, Ending::TimedOut, "ending after {millis} ms");
        ensure!(ran.took < patience(GRACE), "took {:?}", ran.took);
    }
    let mut request = shell("sleep 0.3; echo in time");
    request.timeout = Some(Duration::from_secs(10));
    ensure_eq!(place.run(request).await?.good()?.text(), "in time\n", "a command within its time");
    Ok(Verdict::Pass)
}

async fn asked_to_stop_first(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let mut request = shell(format!("trap 'echo asked; exit 3' TERM; {} & wait", marker.sleep()));
    request.timeout = Some(Duration::from_secs(1));
    let ran = place.run(request).await?;
    ensure_eq!(ran.outcome.ending, Ending::TimedOut, "ending");
    ensure_eq!(ran.outcome.status, Status::Code(3), "status");
    ensure_eq!(ran.text(), "asked\n", "what a trap for TERM prints");
    ensure_eq!(marker.count(&place).await?, 0, "processes left");
    Ok(Verdict::Pass)
}

async fn ignores_term(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let line = format!("trap '' TERM HUP INT QUIT; {0} & {0} & {0}", marker.sleep());
    must_time_out(&place, line, &marker, 3).await?;
    Ok(Verdict::Pass)
}

async fn setsid(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let line =
        format!("trap '' TERM HUP; setsid {0} & setsid sh -c 'setsid {0} & {0}' & {0}", marker.sleep());
    must_time_out(&place, line, &marker, 4).await?;
    Ok(Verdict::Pass)
}

async fn double_fork(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    // The parents of the sleepers are gone at once, so that nothing links them to the command but the subreaper.
    let line = format!(
        "(setsid sh -c 'trap \"\" TERM HUP; {0} & exit' &) ; (({0} &) &) ; (nohup {0} >/dev/null 2>&1 &) ; {0}",
        marker.sleep()
    );
    must_time_out(&place, line, &marker, 4).await?;
    Ok(Verdict::Pass)
}

async fn fork_storm(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    // Each process makes the next one and goes: always another pid, never the same parent. Bounded by its own clock,
    // so that a backend which fails here does not take the machine along.
    let marker = ctx.marker();
    // Where every process takes long to make, a storm takes long to be one.
    let lasts = patience(Duration::from_secs(2));
    let line = format!(
        "cd {}; {} & end=$(($(date +%s)+{})); \
         storm() {{ trap '' TERM HUP; while [ $(date +%s) -lt $end ]; do (setsid sh -c 'echo >>made; sleep 0.01 & :' &) ; sleep 0.02; done; }}; \
         storm & storm & storm & storm",
        place.tmp,
        marker.sleep(),
        // Longer than it may.
        lasts.as_secs() * 7 + 1
    );
    let mut request = shell(line);
    request.timeout = Some(lasts);
    let ran = place.run(request).await?;
    ensure_eq!(ran.outcome.ending, Ending::TimedOut, "ending");
    ensure!(ran.took < patience(Duration::from_secs(2) + GRACE), "took {:?}", ran.took);
    ensure_eq!(marker.count(&place).await?, 0, "processes left");
    // Nothing of it goes on: what each of its processes adds to stands still.
    let look = format!("wc -l <{}", place.path("made"));
    let made = async || Ok::<u64, Fail>(place.out(look.as_str()).await?.trim().parse().unwrap_or(0));
    let before = made().await?;
    ensure!(before > 20, "a storm of {before} processes is none");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let after = made().await?;
    ensure_eq!(after, before, "processes made until half a second of quiet had passed");
    Ok(Verdict::Pass)
}

async fn stopped_descent(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let line = format!(
        "{0} & {0} & sleep 0.5; kill -STOP $! $(($! - 1)) 2>/dev/null; kill -STOP $$",
        marker.sleep()
    );
    must_time_out(&place, line, &marker, 2).await?;
    Ok(Verdict::Pass)
}

async fn cancel(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    for hostile in ["", "trap '' TERM HUP;"] {
        let marker = ctx.marker();
        let line = format!("{hostile} echo on; setsid {0} & (({0} &) &); {0}", marker.sleep());
        let mut live = place.start(shell(line)).await?;
        live.until("on\n", Duration::from_secs(5)).await?;
        marker.wait_for(&place, 3, Duration::from_secs(5)).await?;
        live.exec.control.cancel().await?;
        let ran = live.finish(GRACE).await?;
        ensure_eq!(ran.outcome.ending, Ending::Cancelled, "ending");
        ensure_eq!(ran.text(), "on\n", "output so far");
        ensure_eq!(marker.count(&place).await?, 0, "processes left when the answer came");
    }
    Ok(Verdict::Pass)
}

async fn signal(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut live =
        place.start(shell("trap 'echo got; exit 7' USR1; echo ready; while :; do sleep 0.05; done")).await?;
    live.until("ready", Duration::from_secs(5)).await?;
    live.exec.control.signal(10).await?;
    let ran = live.finish(Duration::from_secs(5)).await?;
    ensure_eq!(ran.outcome.status, Status::Code(7), "status");
    ensure_eq!(ran.outcome.ending, Ending::Exited, "ending");
    ensure_eq!(ran.text(), "ready\ngot\n", "output");
    // The whole foreground group gets it, as with Ctrl-C.
    let marker = ctx.marker();
    let mut live = place.start(shell(format!("echo ready; {}", marker.sleep()))).await?;
    live.until("ready", Duration::from_secs(5)).await?;
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    live.exec.control.signal(2).await?;
    let ran = live.finish(Duration::from_secs(5)).await?;
    ensure_eq!(ran.outcome.status, Status::Signal(2), "status");
    marker.wait_for(&place, 0, Duration::from_secs(2)).await?;
    Ok(Verdict::Pass)
}

/// Starts a command that makes `count` marked processes, loses its caller, and waits for the end of the descent.
async fn lose(place: &Place, request: ExecRequest, marker: &Marker, count: usize) -> Result<(), Fail> {
    let live = place.start(request).await?;
    marker.wait_for(place, count, Duration::from_secs(5)).await?;
    drop(live);
    let started = Instant::now();
    marker.wait_for(place, 0, GRACE).await?;
    ensure!(started.elapsed() < patience(GRACE), "the descent took {:?} to end", started.elapsed());
    ensure_eq!(marker.inside(place).await?, 0, "processes left, seen from inside");
    Ok(())
}

async fn lost_caller(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let line = format!("setsid {0} & (({0} &) &); {0}", marker.sleep());
    lose(&place, shell(line), &marker, 3).await?;
    // Only the stream is dropped, the control is kept.
    let marker = ctx.marker();
    let live = place.start(shell(marker.sleep())).await?;
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    let crate::Live { exec, .. } = live;
    let moltis_sandbox::Exec { events, control } = exec;
    drop(events);
    marker.wait_for(&place, 0, GRACE).await?;
    drop(control);
    Ok(Verdict::Pass)
}

async fn lost_caller_of_a_writer(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    lose(&place, shell(format!("{} & yes", marker.sleep())), &marker, 1).await?;
    Ok(Verdict::Pass)
}

async fn lost_caller_ignoring_term(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let mut request = shell(format!("trap '' TERM HUP PIPE; {0} & {0}", marker.sleep()));
    request.stdin = true;
    lose(&place, request, &marker, 2).await?;
    Ok(Verdict::Pass)
}

async fn deadline_is_the_agents(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    // Nobody reads, all pipes are full, and still the time is up.
    let mut request = shell(format!("{} & yes", marker.sleep()));
    request.timeout = Some(Duration::from_secs(2));
    let live = place.start(request).await?;
    marker.wait_for(&place, 1, Duration::from_millis(1900)).await?;
    marker.wait_for(&place, 0, Duration::from_secs(2) + GRACE).await?;
    let ran = live.finish(GRACE).await?;
    ensure_eq!(ran.outcome.ending, Ending::TimedOut, "ending");
    ensure!(!ran.stdout.is_empty(), "the output so far is lost");
    Ok(Verdict::Pass)
}

async fn time_out_with_leftovers(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    // The deadline is that of the command; what it left behind in time stays.
    let mut request = shell(format!("{} >/dev/null 2>&1 &", marker.sleep()));
    request.timeout = Some(Duration::from_secs(1));
    let ran = place.run(request).await?.good()?;
    ensure_eq!(ran.outcome.leftovers_total, 1, "leftovers");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    ensure_eq!(marker.count(&place).await?, 1, "leftovers after the command's time");
    Ok(Verdict::Pass)
}

async fn beside_others(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let (kept, ended) = (ctx.marker(), ctx.marker());
    let mut other = place.start(shell(format!("{} & read x; echo alive", kept.sleep()))).await?;
    kept.wait_for(&place, 1, Duration::from_secs(5)).await?;
    let mut request = shell(ended.sleep());
    request.timeout = Some(Duration::from_millis(500));
    ensure_eq!(place.run(request).await?.outcome.ending, Ending::TimedOut, "ending");
    let left = (if place.processes { ended.count(&place).await? } else { 0 }, kept.count(&place).await?);
    ensure_eq!(left, (0, 1), "processes left");
    other.exec.control.cancel().await?;
    let ran = other.finish(GRACE).await?;
    // It read an empty standard input and may have said so before it was cancelled.
    ensure!(ran.outcome.ending == Ending::Cancelled || ran.text() == "alive\n", "{:?}", ran.outcome);
    Ok(Verdict::Pass)
}

async fn close(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    place.sh(format!("setsid {} >/dev/null 2>&1 &", marker.sleep())).await?.good()?;
    let live = place.start(shell(format!("trap '' TERM; {}", marker.sleep()))).await?;
    marker.wait_for(&place, 2, Duration::from_secs(5)).await?;
    let started = Instant::now();
    place.close().await?;
    ensure!(started.elapsed() < patience(GRACE), "closing took {:?}", started.elapsed());
    ensure_eq!(
        crate::leak::run_folders(&ctx.folders.data),
        Vec::<String>::new(),
        "folders left when close was over"
    );
    if ctx.shared_kernel() {
        ensure_eq!(marker.on_host(), Vec::<u32>::new(), "processes left when close was over");
    }
    // The command that ran is not said to have ended well.
    match live.finish(GRACE).await {
        Err(_) => {}
        Ok(ran) => ensure!(
            ran.outcome.ending == Ending::Cancelled || ran.outcome.status == Status::Signal(9),
            "a command in a closed sandbox ended {:?}",
            ran.outcome
        ),
    }
    let gone = eventually(Duration::from_secs(2), async || {
        Ok(match place.sandbox.exec(shell("echo alive")).await {
            Err(moltis_sandbox::Error::Unavailable(_) | moltis_sandbox::Error::Lost(_)) => true,
            Err(e) => fail!("{} {e}", e.kind()),
            Ok(_) => false,
        })
    })
    .await?;
    ensure!(gone, "a closed sandbox runs commands");
    Ok(Verdict::Pass)
}
