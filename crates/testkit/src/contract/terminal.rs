//! Terminals: a real one, of the size asked for, that can be resized, interrupted and hung up.

use std::time::Duration;

use moltis_sandbox::exec::TerminalSize;
use moltis_sandbox::{Ending, Error, ExecRequest, Status};

use crate::run::shell;
use crate::{Case, Ctx, Fail, Verdict, case, ensure, ensure_eq, fail};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("terminal.is-one", is_one),
        case!("terminal.size", size),
        case!("terminal.interrupt", interrupt),
        case!("terminal.end-of-file", end_of_file),
        case!("terminal.shell", interactive_shell),
        case!("terminal.hang-up", hang_up).law(4),
        case!("terminal.large", large),
        case!("terminal.job-control", job_control),
    ]
}

fn on_terminal(line: &str) -> ExecRequest {
    let mut request = shell(line);
    request.terminal = Some(TerminalSize { rows: 24, columns: 80 });
    request.stdin = true;
    request
}

/// Where a backend has no terminals, asking for one is refused before anything runs.
async fn unless_there(ctx: &Ctx) -> Result<Option<Verdict>, Fail> {
    let moltis_sandbox::Promise::NotEnforced(reason) = &ctx.guarantees.terminal else { return Ok(None) };
    let place = ctx.place().await?;
    match place.sandbox.exec(on_terminal(&format!("touch {}", place.path("ran")))).await {
        Err(Error::Refused(_)) => {}
        Err(e) => fail!("{} instead of refused: {e}", e.kind()),
        Ok(_) => fail!("no terminal is promised, yet one was opened"),
    }
    place.is_empty().await?;
    Ok(Some(Verdict::Declared(reason.clone())))
}

macro_rules! need_terminal {
    ($ctx:expr) => {
        if let Some(verdict) = unless_there($ctx).await? {
            return Ok(verdict);
        }
    };
}

async fn is_one(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_terminal!(ctx);
    let place = ctx.place().await?;
    let line = "for fd in 0 1 2; do test -t $fd && echo $fd; done; echo $TERM | grep -c .; \
                echo err >&2; (echo tty >/dev/tty) && tty";
    let ran = place.run(on_terminal(line)).await?.good()?;
    let text = ran.text();
    ensure!(text.starts_with("0\r\n1\r\n2\r\n1\r\nerr\r\ntty\r\n/dev/pts/"), "output {text:?}");
    ensure_eq!(ran.errors(), "", "stderr of a terminal");
    ensure_eq!(place.out("test -t 0 || test -t 1 || echo none").await?, "none\n", "without a terminal");
    Ok(Verdict::Pass)
}

async fn size(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_terminal!(ctx);
    let place = ctx.place().await?;
    let mut live =
        place.start(on_terminal("trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done")).await?;
    live.until("24 80\r\n", Duration::from_secs(5)).await?;
    live.exec.control.resize(TerminalSize { rows: 50, columns: 132 }).await?;
    live.until("50 132\r\n", Duration::from_secs(5)).await?;
    live.exec.control.cancel().await?;
    ensure_eq!(live.finish(Duration::from_secs(8)).await?.outcome.ending, Ending::Cancelled, "ending");
    Ok(Verdict::Pass)
}

async fn interrupt(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_terminal!(ctx);
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let mut live =
        place.start(on_terminal(&format!("echo ready; {}; echo not reached", marker.sleep()))).await?;
    live.until("ready", Duration::from_secs(5)).await?;
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    live.say("\x03").await?;
    let ran = live.finish(Duration::from_secs(8)).await?;
    ensure!(!ran.text().contains("not reached"), "output {:?}", ran.text());
    ensure!(
        ran.outcome.status == Status::Signal(2) || ran.outcome.status == Status::Code(130),
        "status {:?}",
        ran.outcome.status
    );
    marker.wait_for(&place, 0, Duration::from_secs(5)).await?;
    Ok(Verdict::Pass)
}

async fn end_of_file(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_terminal!(ctx);
    let place = ctx.place().await?;
    let mut live = place.start(on_terminal("stty -echo; echo ready; cat; echo over")).await?;
    live.until("ready", Duration::from_secs(5)).await?;
    live.say("line\n").await?;
    live.until("line", Duration::from_secs(5)).await?;
    live.say("\x04").await?;
    let ran = live.finish(Duration::from_secs(8)).await?.good()?;
    ensure_eq!(ran.text(), "ready\r\nline\r\nover\r\n", "output");
    Ok(Verdict::Pass)
}

async fn interactive_shell(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_terminal!(ctx);
    let place = ctx.place().await?;
    let mut request = on_terminal("PS1='prompt> ' exec sh -i");
    request.timeout = None;
    let mut live = place.start(request).await?;
    live.until("prompt> ", Duration::from_secs(5)).await?;
    live.say("echo $((40+2))\n").await?;
    live.until("42\r\n", Duration::from_secs(5)).await?;
    live.say("exit 9\n").await?;
    ensure_eq!(live.finish(Duration::from_secs(8)).await?.outcome.status, Status::Code(9), "status");
    Ok(Verdict::Pass)
}

async fn hang_up(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_terminal!(ctx);
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let mut request = on_terminal(&format!("trap '' HUP TERM; setsid {0} & {0}", marker.sleep()));
    request.timeout = None;
    let live = place.start(request).await?;
    marker.wait_for(&place, 2, Duration::from_secs(5)).await?;
    drop(live);
    marker.wait_for(&place, 0, Duration::from_secs(8)).await?;
    Ok(Verdict::Pass)
}

async fn large(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_terminal!(ctx);
    let place = ctx.place().await?;
    let ran = place.run(on_terminal("seq 1 200000")).await?.good()?;
    let expected: String = (1..=200_000).map(|n| format!("{n}\r\n")).collect();
    ensure!(ran.text() == expected, "{} bytes of {}", ran.stdout.len(), expected.len());
    ensure_eq!(ran.outcome.stdout_bytes, expected.len() as u64, "bytes counted");
    Ok(Verdict::Pass)
}

async fn job_control(ctx: &Ctx) -> Result<Verdict, Fail> {
    need_terminal!(ctx);
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let mut request = on_terminal("PS1='prompt> ' exec sh -i");
    request.timeout = None;
    let mut live = place.start(request).await?;
    live.until("prompt> ", Duration::from_secs(5)).await?;
    live.say(format!("{}\n", marker.sleep())).await?;
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    live.say("\x1a").await?;
    live.until("Stopped", Duration::from_secs(5)).await?;
    live.say("kill %1; fg; echo back:$?\n").await?;
    live.until("back:", Duration::from_secs(5)).await?;
    marker.wait_for(&place, 0, Duration::from_secs(5)).await?;
    live.say("exit\n").await?;
    live.finish(Duration::from_secs(8)).await?;
    Ok(Verdict::Pass)
}
