//! How long a sandbox lives: until its opener closes it or goes, or until it has been idle; what is there afterwards; and
//! what a crash of its agent leaves.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use moltis_sandbox::exec::TerminalSize;
use moltis_sandbox::{Backend, Error, Guarantees, Lifetime, MountMode, Promise, SandboxId, SandboxSpec};

use super::background::background;
use crate::run::{eventually, shell};
use crate::{Case, Ctx, Fail, Live, Place, Verdict, case, ensure, ensure_eq, fail, patience};

/// An idle time that no case waits for.
pub(super) const LONG: Duration = Duration::from_secs(60);

pub(super) fn cases() -> Vec<Case> {
    let of_sessions = [
        case!("lifetime.same-key-same-sandbox", same_key),
        case!("lifetime.idle", idle).limit(90),
        case!("lifetime.idle-not-in-use", idle_not_in_use).limit(90),
        case!("lifetime.taken-up-begins-anew", taken_up).limit(90),
        case!("lifetime.removed", removed).law(7),
        case!("lifetime.purged", purged),
    ];
    let mut all = vec![case!("lifetime.temporary-is-temporary", temporary)];
    all.extend(of_sessions.map(|case| case.needs(|promised| &promised.adopt)));
    // Both leave a command behind that has no caller.
    let with_commands = [
        case!("lifetime.found-again", found_again).law(8),
        case!("lifetime.agent-killed", agent_killed).law(8),
    ];
    all.extend(with_commands.map(|case| case.needs(found_with_commands)));
    all.push(case!("lifetime.ends-with-its-handle", ends_with_its_handle));
    all.push(case!("lifetime.listed", listed));
    all
}

/// To be found again with a command that has no caller.
pub(super) fn found_with_commands(promised: &Guarantees) -> &Promise {
    match promised.background {
        Promise::Held => &promised.adopt,
        Promise::NotEnforced(_) => &promised.background,
    }
}

async fn temporary(ctx: &Ctx) -> Result<Verdict, Fail> {
    let spec = ctx.spec()?;
    let place = ctx.open(&spec).await?;
    let x = place.path("x");
    place.out(format!("echo 1 >{x}")).await?;
    ensure_eq!(place.out(format!("cat {x}")).await?, "1\n", "a file between two commands");
    if ctx.guarantees.filesystem.is_held() {
        place.out("test -x /tmp -a -k /tmp").await?;
    }
    place.close().await?;
    let place = ctx.open(&spec).await?;
    ensure!(place.is_new(), "a closed sandbox was found again");
    ensure_eq!(place.out(format!("ls -A {}", place.tmp)).await?, "", "the same folder in the next one");
    Ok(Verdict::Pass)
}

async fn same_key(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.session(LONG)?;
    let first = ctx.open(&spec).await?;
    let marker = ctx.marker();
    first.out(format!("echo 1 >{}; setsid {} >/dev/null 2>&1 &", first.path("x"), marker.sleep())).await?;
    let second = ctx.open(&spec).await?;
    ensure_eq!((first.id(), second.id()), (second.id(), &spec.id()), "ids");
    ensure!(first.is_new() && !second.is_new(), "new {} and {}", first.is_new(), second.is_new());
    ensure_eq!(second.out(format!("cat {}", second.path("x"))).await?, "1\n", "the same sandbox");
    // A changed spec is another sandbox.
    spec.workspace = ctx.spec_with_workspace(&ctx.folder("work")?, MountMode::Ro)?.workspace;
    let third = ctx.open(&spec).await?;
    ensure!(third.is_new(), "a changed spec found the old sandbox");
    ensure_eq!(third.out(format!("ls -A {}", third.tmp)).await?, "", "the new one's folder");
    if third.shared_kernel {
        ensure_eq!(marker.on_host(), Vec::<u32>::new(), "processes of the old one");
    }
    third.close().await?;
    Ok(Verdict::Pass)
}

async fn found_again(ctx: &Ctx) -> Result<Verdict, Fail> {
    let spec = ctx.session(LONG)?;
    let first = ctx.backend.open(&spec).await?;
    let place = ctx.keep(first).await?;
    let marker = ctx.marker();
    place.out(format!("echo 1 >{}", place.path("x"))).await?;
    drop(place.start(background(marker.sleep())).await?);
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    drop(place);
    let again = ctx.backend_again().open(&spec).await?;
    ensure!(!again.is_new(), "not found again");
    let again = ctx.keep(again).await?;
    ensure_eq!(again.out(format!("cat {}", again.path("x"))).await?, "1\n", "its files");
    ensure_eq!(again.processes().await?.len(), 1, "background commands");
    ensure_eq!(marker.count(&again).await?, 1, "its processes");
    again.close().await?;
    Ok(Verdict::Pass)
}

async fn idle(ctx: &Ctx) -> Result<Verdict, Fail> {
    let spec = ctx.session(Duration::from_millis(1500))?;
    let place = ctx.open(&spec).await?;
    let marker = ctx.marker();
    // A running command is use; what it leaves is not.
    place.sh(format!("setsid {} >/dev/null 2>&1 & sleep 2.5", marker.sleep())).await?.good()?;
    if place.processes {
        ensure_eq!(marker.count(&place).await?, 1, "alive after a command longer than the idle time");
    }
    let gone = if ctx.shared_kernel() {
        eventually(Duration::from_secs(8), async || Ok(marker.on_host().is_empty())).await?
    } else {
        tokio::time::sleep(Duration::from_secs(4)).await;
        true
    };
    ensure!(gone, "an idle sandbox does not end");
    let place = ctx.open(&spec).await?;
    ensure!(place.is_new(), "the sandbox that ended was found again");
    place.close().await?;
    Ok(Verdict::Pass)
}

async fn removed(ctx: &Ctx) -> Result<Verdict, Fail> {
    let (kept, gone) = (ctx.open(&ctx.session(LONG)?).await?, ctx.open(&ctx.session(LONG)?).await?);
    let marker = ctx.marker();
    let live = gone.start(shell(marker.sleep())).await?;
    marker.wait_for(&gone, 1, Duration::from_secs(5)).await?;
    ctx.backend_again().remove(gone.id()).await?;
    if ctx.shared_kernel() {
        ensure_eq!(marker.on_host(), Vec::<u32>::new(), "processes left");
    }
    drop(live);
    ensure_eq!(kept.out("echo alive").await?, "alive\n", "the other one");
    let ids: Vec<_> = ctx.backend.list().await?.into_iter().map(|r| r.id).collect();
    ensure_eq!(ids, [kept.id().clone()], "sandboxes listed");
    kept.close().await?;
    Ok(Verdict::Pass)
}

async fn listed(ctx: &Ctx) -> Result<Verdict, Fail> {
    ensure_eq!(ctx.backend.list().await?, [], "sandboxes of a new data directory");
    let mut specs = vec![ctx.spec()?, ctx.spec()?];
    if ctx.guarantees.adopt.is_held() {
        specs[1].lifetime = Lifetime::Idle(LONG);
    }
    let mut places = Vec::new();
    for spec in &specs {
        places.push(ctx.open(spec).await?);
    }
    if ctx.guarantees.adopt.is_held() {
        let listed = ctx.backend.list().await?;
        let found = listed.iter().find(|r| r.id == specs[1].id());
        let Some(found) = found else { fail!("the session's sandbox is not listed: {listed:?}") };
        ensure_eq!((found.running, &found.fingerprint), (true, &specs[1].fingerprint()), "its record");
    }
    for place in places {
        place.close().await?;
    }
    ensure_eq!(ctx.backend.list().await?, [], "sandboxes after closing all");
    Ok(Verdict::Pass)
}

/// Whether a sandbox of this id runs, as another process sees it. Asking is no use of it.
pub(super) async fn runs(backend: &dyn Backend, id: &SandboxId) -> Result<bool, Fail> {
    Ok(backend.find(id).await?.is_some())
}

/// Waits until it does not run any more.
async fn ends(ctx: &Ctx, id: &SandboxId, within: Duration) -> Result<bool, Fail> {
    let other = ctx.backend_again();
    eventually(within, async || Ok(!runs(other.as_ref(), id).await?)).await
}

/// Ways of using a sandbox.
#[derive(Clone, Copy, Debug)]
enum Use {
    Command,
    Background,
    Terminal,
    Reading,
    Forwarding,
}

impl Use {
    /// Uses it for this long.
    async fn during(self, place: &Place, time: Duration) -> Result<(), Fail> {
        let line = format!("sleep {}", time.as_secs_f64());
        match self {
            Self::Command => drop(place.sh(line).await?.good()?),
            Self::Background => {
                drop(place.start(background(line)).await?);
                tokio::time::sleep(time).await;
            }
            Self::Terminal => {
                let mut request = shell(line);
                request.terminal = Some(TerminalSize { rows: 24, columns: 80 });
                drop(place.run(request).await?.good()?);
            }
            Self::Reading => {
                place.out(format!("head -c 32M /dev/zero >{}", place.path("big"))).await?;
                let path = super::files::at(place.path("big"))?;
                let mut reading = place.files().read(&path, 0, None).await?;
                ensure!(reading.content.next().await.is_some(), "nothing comes");
                tokio::time::sleep(time).await;
            }
            Self::Forwarding => {
                let mut listener = place.listen(0).await?;
                let _connection = super::forward::from_inside(place, &mut listener).await?;
                tokio::time::sleep(time).await;
            }
        }
        Ok(())
    }
}

async fn idle_not_in_use(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut uses = vec![Use::Command, Use::Reading];
    for (promise, further) in [
        (&ctx.guarantees.background, Use::Background),
        (&ctx.guarantees.terminal, Use::Terminal),
        (&ctx.guarantees.forward, Use::Forwarding),
    ] {
        uses.extend(promise.is_held().then_some(further));
    }
    let held = |spec: SandboxSpec, further: Use| async move {
        let place = ctx.open(&spec).await?;
        let (used, looked) = tokio::join!(further.during(&place, Duration::from_millis(2600)), async {
            // Once, late: a look must not be what keeps it alive.
            tokio::time::sleep(Duration::from_millis(2300)).await;
            runs(ctx.backend_again().as_ref(), place.id()).await
        });
        used?;
        ensure!(looked?, "ended while in use: {further:?}");
        ensure!(ends(ctx, place.id(), Duration::from_secs(8)).await?, "does not end after {further:?}");
        ensure!(ctx.backend_again().adopt(&spec).await?.is_none(), "one that ended was adopted");
        let next = ctx.open(&spec).await?;
        ensure!(next.is_new(), "the sandbox that ended was found again");
        next.close().await?;
        Ok(())
    };
    let mut specs = Vec::new();
    for further in uses {
        specs.push((ctx.session(Duration::from_secs(1))?, further));
    }
    let all = join_all(specs.into_iter().map(|(spec, further)| held(spec, further))).await;
    all.into_iter().collect::<Result<Vec<()>, Fail>>()?;
    Ok(Verdict::Pass)
}

async fn taken_up(ctx: &Ctx) -> Result<Verdict, Fail> {
    let spec = ctx.session(Duration::from_millis(2500))?;
    let place = ctx.open(&spec).await?;
    // Whoever takes it up is about to use it: it must not end under the caller's hands.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(1600)).await;
        ensure!(ctx.backend_again().adopt(&spec).await?.is_some(), "ended though it was taken up in between");
    }
    ensure!(ends(ctx, place.id(), Duration::from_secs(8)).await?, "does not end after it was taken up");
    Ok(Verdict::Pass)
}

async fn purged(ctx: &Ctx) -> Result<Verdict, Fail> {
    let (spec, kept) = (ctx.session(LONG)?, ctx.session(LONG)?);
    let (place, other) = (ctx.open(&spec).await?, ctx.open(&kept).await?);
    for place in [&place, &other] {
        place.out(format!("echo mine >{}; mkdir d; echo deep >d/f", place.path("x"))).await?;
    }
    place.close().await?;
    // By another process, as often as it likes, and of what is not there.
    let backend = ctx.backend_again();
    for _ in 0..2 {
        backend.purge(&spec.id()).await?;
    }
    backend.purge(&SandboxId::of(&ctx.key())).await?;
    ensure_eq!(other.out(format!("cat {}", other.path("x"))).await?, "mine\n", "another session's file");
    ensure!(spec.home.as_ref().is_some_and(|home| home.is_dir()), "the home folder is gone");
    let next = ctx.open(&spec).await?;
    ensure_eq!(next.out(format!("ls -A {}", next.tmp)).await?, "", "what the session finds afterwards");
    next.close().await?;
    other.close().await?;
    for id in [spec.id(), kept.id()] {
        backend.purge(&id).await?;
    }
    Ok(Verdict::Pass)
}

async fn agent_killed(ctx: &Ctx) -> Result<Verdict, Fail> {
    if !ctx.shared_kernel() {
        return Ok(Verdict::Declared("its first process is a kernel's own, out of the host's reach".into()));
    }
    let spec = ctx.session(LONG)?;
    let place = ctx.open(&spec).await?;
    let marker = ctx.marker();
    place.sh(format!("setsid {} >/dev/null 2>&1 &", marker.sleep())).await?.good()?;
    drop(place.start(background(marker.sleep())).await?);
    let live = place.start(shell(format!("trap '' TERM; {}", marker.sleep()))).await?;
    marker.wait_for(&place, 3, Duration::from_secs(5)).await?;
    // Its first process: a child of its opener's, or of an engine's, and then known by its number inside.
    let mut agents = crate::process::children(std::process::id());
    // Other cases may have sandboxes of the same opener at the same time.
    let above: Vec<u32> = marker.on_host().into_iter().flat_map(crate::process::all_above).collect();
    if agents.iter().any(|agent| above.contains(agent)) {
        agents.retain(|agent| above.contains(agent));
    }
    if agents.is_empty() {
        let marked = marker.on_host();
        agents = marked.first().and_then(|pid| crate::process::first_above(*pid)).into_iter().collect();
    }
    ensure!(!agents.is_empty(), "the sandbox's first process is not found");
    for agent in agents {
        if let Some(pid) = rustix::process::Pid::from_raw(agent.try_into().unwrap_or(0)) {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL)
                .map_err(std::io::Error::from)?;
        }
    }
    ensure!(ends(ctx, place.id(), Duration::from_secs(5)).await?, "found again without its agent");
    ensure!(ctx.backend_again().adopt(&spec).await?.is_none(), "adopted without its agent");
    match live.finish(Duration::from_secs(10)).await {
        Err(fail) => ensure!(fail.0.contains("lost ["), "the command that ran is not lost: {fail}"),
        Ok(ran) => {
            ensure!(ran.outcome.exit_code() != 0, "the command that ran ended well: {:?}", ran.outcome)
        }
    }
    match place.sandbox.exec(shell("echo alive")).await {
        Err(Error::Unavailable(_) | Error::Lost(_)) => {}
        Err(e) => fail!("{} {e}", e.kind()),
        Ok(_) => fail!("a dead sandbox runs commands"),
    }
    let next = tokio::time::timeout(patience(Duration::from_secs(10)), ctx.open(&spec)).await;
    let next = next.map_err(|_| Fail::new("opening after a crash takes longer than 10 s"))??;
    ensure!(next.is_new(), "the dead one was found again");
    ensure_eq!(next.processes().await?, [], "background commands of the new one");
    ensure_eq!(next.out("echo works").await?, "works\n", "the new one");
    let gone = eventually(Duration::from_secs(8), async || Ok(marker.on_host().is_empty())).await?;
    ensure!(gone, "processes of the dead one live on");
    next.close().await?;
    Ok(Verdict::Pass)
}

async fn ends_with_its_handle(ctx: &Ctx) -> Result<Verdict, Fail> {
    let spec = ctx.spec()?;
    let sandbox = ctx.backend.open(&spec).await?;
    let marker = ctx.marker();
    let line = format!("setsid {0} >/dev/null 2>&1 & echo on; {0}", marker.sleep());
    let mut live = Live::of(sandbox.exec(shell(line)).await?, Instant::now()).await?;
    live.until("on\n", Duration::from_secs(5)).await?;
    drop((live, sandbox));
    ensure!(ends(ctx, &spec.id(), Duration::from_secs(8)).await?, "it outlives its handle");
    if ctx.shared_kernel() {
        let gone = eventually(Duration::from_secs(8), async || Ok(marker.on_host().is_empty())).await?;
        ensure!(gone, "its processes outlive its handle");
    }
    let next = ctx.open(&spec).await?;
    ensure!(next.is_new(), "a temporary sandbox was found again");
    Ok(Verdict::Pass)
}
