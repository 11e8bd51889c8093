//! Using things up: processes, memory, the temporary folder, descriptors, output.

use std::time::Duration;

use moltis_sandbox::{Ending, Origin, Setting};

use super::{all_reached, all_stopped, inside, outside};
use crate::case::Control;
use crate::run::shell;
use crate::{Case, Ctx, Fail, Verdict, case, ensure, ensure_eq, tree};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("attack.fork-bomb", fork_bomb)
            .control(|ctx| Box::pin(fork_control(ctx)))
            .law(4)
            .limit(60)
            .alone(),
        case!("attack.memory-bomb", memory_bomb)
            .control(|ctx| Box::pin(memory_control(ctx)))
            .law(1)
            .limit(60)
            .alone(),
        case!("attack.full-tmp", full_tmp).control(|ctx| Box::pin(full_tmp_control(ctx))).limit(60).alone(),
        case!("attack.output-flood", output_flood)
            .control(|ctx| Box::pin(output_control(ctx)))
            .law(5)
            .limit(60)
            .alone(),
    ]
}

async fn fork_control(_ctx: &Ctx) -> Result<Control, Fail> {
    all_reached(&outside(&["many-processes=300"]).await?, &[])
}

async fn fork_bomb(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    spec.limits.pids = Some(Setting::new(64, Origin::Flag));
    if let Some(reason) = ctx.refused(&ctx.guarantees.pids, &spec, "resource_limits.pids_max")? {
        return Ok(Verdict::Declared(reason));
    }
    let place = ctx.open(&spec).await?;
    // First a bomb that stops by itself: if it is not stopped, the real one must not be lit.
    if place.processes {
        all_stopped(&inside(&place, &["many-processes=300"]).await?)?;
    }
    // The main process needs no further fork: a shell whose fork fails would leave by itself before its time, and what
    // it leaves running may stay.
    let bomb =
        "trap '' TERM HUP; bomb() { bomb | bomb & }; (while :; do bomb; done) 2>/dev/null & exec sleep 60";
    let mut request = shell(bomb);
    request.timeout = Some(Duration::from_secs(3));
    let ran = place.start(request).await?.finish(Duration::from_secs(25)).await?;
    ensure_eq!(ran.outcome.ending, Ending::TimedOut, "ending of a fork bomb");
    let quiet = crate::run::eventually(Duration::from_secs(10), async || {
        Ok(match place.sandbox.exec(shell("ls -d /proc/[0-9]* | wc -l")).await {
            Ok(exec) => {
                let ran = crate::Live::of(exec, std::time::Instant::now()).await?;
                let ran = ran.finish(Duration::from_secs(10)).await?;
                ran.text().trim().parse::<u32>().is_ok_and(|n| n < 10)
            }
            Err(_) => false,
        })
    })
    .await?;
    ensure!(quiet, "the bomb goes on after its time");
    Ok(Verdict::Pass)
}

async fn memory_control(_ctx: &Ctx) -> Result<Control, Fail> {
    all_reached(&outside(&["much-memory=256"]).await?, &[])
}

async fn memory_bomb(ctx: &Ctx) -> Result<Verdict, Fail> {
    let spec = limited(ctx)?;
    if let Some(reason) = ctx.refused(&ctx.guarantees.memory, &spec, "resource_limits.memory_limit")? {
        return Ok(Verdict::Declared(reason));
    }
    let place = ctx.open(&spec).await?;
    if place.processes {
        all_stopped(&inside(&place, &["much-memory=256"]).await?)?;
    }
    // Files in /tmp are memory, and many processes together are one bomb. What they break is their own sandbox at most:
    // then the outcome is said to be lost, and the next sandbox opens.
    let flood =
        "for i in 1 2 3 4 5 6 7 8; do (head -c 100M /dev/zero | tail -c 100M >/dev/null) & done; wait";
    for line in ["head -c 200M /dev/zero >/tmp/big; wc -c </tmp/big; rm -f /tmp/big", flood] {
        let mut request = shell(line);
        request.timeout = Some(Duration::from_secs(15));
        let place = ctx.open(&limited(ctx)?).await?;
        match place.start(request).await?.finish(Duration::from_secs(30)).await {
            Ok(ran) => {
                let size: u64 = ran.text().trim().parse().unwrap_or(0);
                ensure!(size < 200 << 20, "200 MiB in /tmp under a limit of 128");
            }
            Err(e) => ensure!(e.0.contains("lost ["), "{e}"),
        }
    }
    ensure_eq!(ctx.open(&limited(ctx)?).await?.out("echo alive").await?, "alive\n", "afterwards");
    Ok(Verdict::Pass)
}

/// A spec with a memory limit of 128 MiB.
fn limited(ctx: &Ctx) -> Result<moltis_sandbox::SandboxSpec, Fail> {
    let mut spec = ctx.spec()?;
    spec.limits.memory = Some(Setting::new(128 << 20, Origin::Flag));
    Ok(spec)
}

/// MiB that `/tmp` holds in a sandbox.
const MOST: u64 = 4096;

async fn full_tmp_control(ctx: &Ctx) -> Result<Control, Fail> {
    // A folder of the host takes more than a sandbox's /tmp may.
    let call = format!("fill-folder={}:1024", ctx.scratch().display());
    all_reached(&outside(&[&call]).await?, &[])
}

async fn full_tmp(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let text = place.out("df -Pm /tmp | awk 'NR==2{print $2}'").await?;
    let size: u64 = text.trim().parse().map_err(|_| Fail::new(format!("df said {text:?}")))?;
    ensure!(size > 0 && size < MOST, "/tmp holds {size} MiB");
    if place.processes {
        all_stopped(&inside(&place, &[&format!("fill-folder=/tmp:{}", size + 1)]).await?)?;
    }
    let ran = place.sh(format!("head -c {}M /dev/zero >/tmp/fill", size + 1)).await?;
    ensure!(ran.outcome.exit_code() != 0 && ran.errors().contains("No space"), "not full: {}", ran.errors());
    // Full, commands still run, print, and use their home; file access says what is wrong.
    let ran = place.sh("seq 1 200000 | tail -n 1; echo home >~/f; cat ~/f").await?.good()?;
    ensure_eq!(ran.text(), "200000\nhome\n", "a command with a full /tmp");
    let options = moltis_sandbox::files::WriteOptions { mode: None, overwrite: true, parents: false };
    let written = place
        .files()
        .write(&crate::contract::files::at("/tmp/x")?, options, tree::stream(vec![1; 1 << 20]))
        .await;
    ensure!(written.is_err(), "a file was written to a full /tmp");
    place.out("rm /tmp/fill; echo again >/tmp/x; cat /tmp/x").await?;
    Ok(Verdict::Pass)
}

async fn output_control(_ctx: &Ctx) -> Result<Control, Fail> {
    // Output that is collected without a bound grows as fast as it comes.
    let ran = crate::program::plain(
        "/bin/sh",
        &["-c", "head -c 100M /dev/zero | wc -c"],
        "",
        Duration::from_secs(20),
    )
    .await?;
    ensure_eq!(ran.stdout.trim(), "104857600", "bytes that a plain program prints");
    Ok(Control::Works)
}

async fn output_flood(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    // Many commands print without an end and nobody reads: neither side may grow.
    let mut floods = Vec::new();
    for number in 0..8 {
        // What a job prints is the memory of its shell where it is no process.
        let lines = if place.processes { ["yes | cat & yes >&2"; 2] } else { ["yes | cat", "yes >&2"] };
        let mut request = shell(lines[number % 2]);
        request.timeout = Some(Duration::from_secs(40));
        floods.push(place.start(request).await?);
    }
    let own = || crate::process::memory(std::process::id()).unwrap_or(0);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = own();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = own();
    ensure!(after < before + (8 << 20), "the caller grew from {before} to {after} bytes");
    ensure!(after < 128 << 20, "the caller holds {after} bytes");
    ensure_eq!(place.out("echo alive").await?, "alive\n", "beside eight floods");
    drop(floods);
    Ok(Verdict::Pass)
}
