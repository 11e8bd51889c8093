//! Limits bound the whole sandbox; one that is not kept is refused when asked for and listed when built in.

use std::time::Duration;

use moltis_sandbox::{Ending, Origin, Promise, Setting, judge};

use crate::run::shell;
use crate::{Case, Ctx, Fail, Place, Verdict, case, ensure, ensure_eq, fail, patience};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("limits.demands-are-kept-or-refused", demands).law(1),
        case!("limits.defaults-are-kept-or-listed", defaults).law(1),
        case!("limits.memory", memory).law(1).limit(60).alone(),
        case!("limits.memory-of-all-together", memory_together).law(1).limit(60).alone(),
        case!("limits.cpus", cpus).law(1).alone(),
        case!("limits.pids", pids).law(1),
        case!("limits.first-to-be-killed", oom_score),
    ]
}

async fn demands(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut reasons = Vec::new();
    for origin in [Origin::File, Origin::Env, Origin::Session, Origin::Flag, Origin::Api] {
        let mut spec = ctx.spec()?;
        spec.limits.memory = Some(Setting::new(256 << 20, origin));
        reasons.extend(ctx.refused(&ctx.guarantees.memory, &spec, "resource_limits.memory_limit")?);
        let mut spec = ctx.spec()?;
        spec.limits.cpus = Some(Setting::new(0.5, origin));
        reasons.extend(ctx.refused(&ctx.guarantees.cpus, &spec, "resource_limits.cpu_quota")?);
        let mut spec = ctx.spec()?;
        spec.limits.pids = Some(Setting::new(64, origin));
        reasons.extend(ctx.refused(&ctx.guarantees.pids, &spec, "resource_limits.pids_max")?);
    }
    reasons.sort();
    reasons.dedup();
    Ok(if reasons.is_empty() { Verdict::Pass } else { Verdict::Declared(reasons.join("; ")) })
}

async fn defaults(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    spec.limits.memory = Some(Setting::built_in(1 << 30));
    spec.limits.cpus = Some(Setting::built_in(1.0));
    spec.limits.pids = Some(Setting::built_in(512));
    let left_off: Vec<(String, String)> = judge(&spec, ctx.backend.name(), &ctx.guarantees, &[])?
        .into_iter()
        .filter(|n| n.key.starts_with("resource_limits"))
        .map(|n| (n.key, n.reason))
        .collect();
    let mut expected = Vec::new();
    for (key, promise) in [
        ("resource_limits.memory_limit", &ctx.guarantees.memory),
        ("resource_limits.cpu_quota", &ctx.guarantees.cpus),
        ("resource_limits.pids_max", &ctx.guarantees.pids),
    ] {
        if let Promise::NotEnforced(reason) = promise {
            expected.push((key.to_owned(), reason.clone()));
        }
    }
    ensure_eq!(left_off, expected, "what is listed as left off");
    // Either way the sandbox opens and works.
    ensure_eq!(ctx.open(&spec).await?.out("echo works").await?, "works\n", "with built-in limits");
    Ok(Verdict::Pass)
}

/// Takes so many MiB and says so.
fn eater(place: &Place, mib: u32) -> String {
    if !place.processes {
        // A shell's variable is there several times while it is made.
        let mib = mib / 3;
        return format!("x=$(head -c {mib}M /dev/zero | tr '\\0' x); echo had");
    }
    format!("python3 -c 'b=bytearray({mib}<<20); b[::4096]=b\"x\"*len(b[::4096]); print(\"had\")'")
}

async fn memory(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    spec.limits.memory = Some(Setting::new(96 << 20, Origin::Flag));
    if let Some(reason) = ctx.refused(&ctx.guarantees.memory, &spec, "resource_limits.memory_limit")? {
        return Ok(Verdict::Declared(reason));
    }
    let place = ctx.open(&spec).await?;
    ensure_eq!(place.out(eater(&place, 24)).await?, "had\n", "within the limit");
    let ran = place.sh(eater(&place, 200)).await?;
    ensure!(
        !ran.text().contains("had") && ran.outcome.exit_code() != 0,
        "200 MiB under a limit of 96: {ran:?}"
    );
    ensure_eq!(ran.outcome.ending, Ending::Exited, "ending");
    ensure_eq!(place.out("echo alive").await?, "alive\n", "afterwards");
    Ok(Verdict::Pass)
}

async fn memory_together(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    spec.limits.memory = Some(Setting::new(128 << 20, Origin::Flag));
    if let Some(reason) = ctx.refused(&ctx.guarantees.memory, &spec, "resource_limits.memory_limit")? {
        return Ok(Verdict::Declared(reason));
    }
    let place = ctx.open(&spec).await?;
    // Six of 40 MiB, each well below the limit; together they are not.
    let ran = if place.processes {
        let line = format!(
            "cd {}; for i in 1 2 3 4 5 6; do (python3 -c 'b=bytearray(40<<20); b[::4096]=b\"x\"*len(b[::4096]); import time; \
             time.sleep(3); open(\"kept\",\"a\").write(\"x\")' 2>/dev/null) & done; wait; cat kept 2>/dev/null | wc -c",
            place.tmp
        );
        place.sh(line).await?
    } else {
        // Each is a command: one that goes beyond the limit ends with all that it is.
        let line = format!(
            "x=$(head -c 40M /dev/zero | tr '\\0' x); sleep 3; printf x >>{0}; echo ${{#x}}",
            place.path("kept")
        );
        let runs = (0..6).map(|_| place.sh(line.as_str()));
        for ran in futures_util::future::join_all(runs).await {
            let ran = ran?;
            let length = (40 << 20).to_string();
            ensure!(
                ran.outcome.out_of_memory || ran.text().trim() == length,
                "neither kept nor ended: {ran:?}"
            );
        }
        place.sh(format!("cat {} 2>/dev/null | wc -c", place.path("kept"))).await?
    };
    // Whoever is killed for another's sake had its memory for a while: what counts is who still has it.
    let kept: u32 = ran.text().trim().parse().unwrap_or(6);
    ensure!(kept < 4, "{kept} of six kept their 40 MiB under a limit of 128: {ran:?}");
    ensure_eq!(place.out("echo alive").await?, "alive\n", "afterwards");
    Ok(Verdict::Pass)
}

async fn cpus(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    spec.limits.cpus = Some(Setting::new(0.25, Origin::Flag));
    if let Some(reason) = ctx.refused(&ctx.guarantees.cpus, &spec, "resource_limits.cpu_quota")? {
        return Ok(Verdict::Declared(reason));
    }
    let place = ctx.open(&spec).await?;
    // Spinners for four seconds of wall time, as many as get their share on a busy machine too: a quarter of a core is one
    // second for all together.
    let line = "spin() { end=$(($(date +%s%N)+4000000000)); while [ $(date +%s%N) -lt $end ]; do :; done; }; \
                for i in 1 2 3 4 5 6 7 8; do spin & done; wait; cat /proc/self/stat >/dev/null; times";
    let ran = place.sh(line).await?.good()?;
    let seconds: f64 = ran
        .text()
        .split_whitespace()
        .filter_map(|t| {
            let (minutes, seconds) = t.trim_end_matches('s').split_once('m')?;
            Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
        })
        .sum();
    ensure!(seconds > 0.1, "nothing was measured: {:?}", ran.text());
    ensure!(seconds < 2.2, "{seconds} s of processor time in 4 s under a quota of 0.25");
    Ok(Verdict::Pass)
}

async fn pids(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    spec.limits.pids = Some(Setting::new(40, Origin::Flag));
    if let Some(reason) = ctx.refused(&ctx.guarantees.pids, &spec, "resource_limits.pids_max")? {
        return Ok(Verdict::Declared(reason));
    }
    let place = ctx.open(&spec).await?;
    let marker = ctx.marker();
    let forker = format!(
        "import os,sys\nn=0\nfor i in range(120):\n  try: p=os.fork()\n  except OSError: break\n  \
         if p==0: os.execvp('sleep',{:?}.split())\n  n+=1\nprint(n)",
        marker.sleep()
    );
    let ran = place.run(crate::run::argv(&["python3", "-c", &forker])).await?.good()?;
    let made: u32 = ran.text().trim().parse().map_err(|_| Fail::new(format!("printed {:?}", ran.text())))?;
    ensure!((10..=40).contains(&made), "{made} processes under a limit of 40");
    ensure_eq!(ran.outcome.leftovers_total, made, "all of them are leftovers");
    // Full, but not broken: the sandbox says what is wrong or still runs, and closes.
    match tokio::time::timeout(patience(Duration::from_secs(5)), place.sandbox.exec(shell("echo alive")))
        .await
    {
        Err(_) => fail!("a full sandbox hangs"),
        Ok(Ok(_) | Err(moltis_sandbox::Error::Unavailable(_))) => {}
        Ok(Err(e)) => fail!("{} {e}", e.kind()),
    }
    Ok(Verdict::Pass)
}

async fn oom_score(ctx: &Ctx) -> Result<Verdict, Fail> {
    if !ctx.shared_kernel() {
        return Ok(Verdict::Declared("the kernel is the sandbox's own".into()));
    }
    let place = ctx.place().await?;
    let score: i32 = place.out("cat /proc/self/oom_score_adj").await?.trim().parse().unwrap_or(0);
    ensure!(score >= 500, "oom_score_adj of a command is {score}");
    if !ctx.guarantees.filesystem.is_held() {
        // Whoever may lower it as a user of the host may do so there.
        return Ok(Verdict::Pass);
    }
    let lowered = place.sh("echo -500 >/proc/self/oom_score_adj").await?;
    ensure!(lowered.outcome.exit_code() != 0, "a command can make itself the last to be killed");
    Ok(Verdict::Pass)
}
