//! Many at once: commands in one sandbox, callers of one key, sandboxes side by side.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use moltis_sandbox::Lifetime;

use crate::run::shell;
use crate::{Case, Ctx, Fail, Verdict, case, ensure, ensure_eq, patience};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("concurrency.commands", commands),
        case!("concurrency.in-parallel", in_parallel),
        case!("concurrency.one-after-the-other", one_after_the_other),
        case!("concurrency.sandboxes", sandboxes).limit(60),
        case!("concurrency.one-key", one_key).needs(|promised| &promised.adopt),
        case!("concurrency.descriptors", descriptors).limit(120),
        case!("concurrency.abandoned", abandoned).limit(120),
    ]
}

async fn commands(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let runs = (0..48).map(|n| {
        let place = place.clone();
        async move {
            let ran = place.sh(format!("echo {n}; seq 1 {}; echo e{n} >&2; exit {}", n * 100, n % 7)).await?;
            let mut expected = format!("{n}\n");
            expected.extend((1..=n * 100).map(|i| format!("{i}\n")));
            ensure!(ran.text() == expected, "command {n} has another's output: {} bytes", ran.stdout.len());
            ensure_eq!(ran.errors(), format!("e{n}\n"), "stderr of {n}");
            ensure_eq!(ran.outcome.exit_code(), n % 7, "exit code of {n}");
            Ok(ran.process)
        }
    });
    let ids: BTreeSet<_> = join_all(runs).await.into_iter().collect::<Result<_, Fail>>()?;
    ensure_eq!(ids.len(), 48, "numbers of 48 commands");
    Ok(Verdict::Pass)
}

async fn in_parallel(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let started = Instant::now();
    let runs = (0..16).map(|_| {
        let place = place.clone();
        async move { place.sh("sleep 1").await?.good() }
    });
    join_all(runs).await.into_iter().collect::<Result<Vec<_>, Fail>>()?;
    ensure!(started.elapsed() < patience(Duration::from_secs(8)), "16 × 1 s took {:?}", started.elapsed());
    Ok(Verdict::Pass)
}

async fn one_after_the_other(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    for n in 0..200 {
        ensure_eq!(place.out(format!("echo {n}")).await?, format!("{n}\n"), "output of command {n}");
    }
    // Nothing of them stays: the agent and the command that looks.
    let descent = if place.shared_kernel {
        let held = place.start(shell("sleep 5")).await?;
        let descent = crate::process::descent(std::process::id());
        let zombies: Vec<_> = descent.iter().filter(|pid| crate::process::is_zombie(**pid)).collect();
        ensure_eq!(zombies, Vec::<&u32>::new(), "zombies");
        drop(held);
        descent.len()
    } else {
        place.out("ls -d /proc/[0-9]* | wc -l").await?.trim().parse().unwrap_or(usize::MAX)
    };
    ensure!(descent < 12, "{descent} processes after 200 commands");
    Ok(Verdict::Pass)
}

async fn sandboxes(ctx: &Ctx) -> Result<Verdict, Fail> {
    let opened =
        join_all((0..12).map(|_| ctx.place())).await.into_iter().collect::<Result<Vec<_>, Fail>>()?;
    let ids: BTreeSet<_> = opened.iter().map(|p| p.id().clone()).collect();
    ensure_eq!(ids.len(), 12, "ids");
    let runs = opened.iter().enumerate().map(|(n, place)| async move {
        let x = place.path("x");
        place.out(format!("echo {n} >{x}; sleep 0.2; cat {x}")).await
    });
    let texts = join_all(runs).await.into_iter().collect::<Result<Vec<_>, Fail>>()?;
    ensure_eq!(texts, (0..12).map(|n| format!("{n}\n")).collect::<Vec<_>>(), "each sees its own");
    join_all(opened.iter().map(|p| p.close())).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(Verdict::Pass)
}

async fn one_key(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    spec.lifetime = Lifetime::Idle(Duration::from_secs(60));
    // From one process and from others at the same moment, in tasks of their own.
    let backends = [ctx.backend.clone(), ctx.backend_again(), ctx.backend_again(), ctx.backend_again()];
    let opening = (0..16).map(|n| {
        let (backend, spec) = (backends[n % backends.len()].clone(), spec.clone());
        tokio::spawn(async move { backend.open(&spec).await })
    });
    let mut opened = Vec::new();
    for answer in join_all(opening).await {
        opened.push(answer.map_err(|e| Fail::new(e.to_string()))??);
    }
    let new = opened.iter().filter(|s| s.is_new()).count();
    ensure_eq!(new, 1, "sandboxes made for one key");
    let mut places = Vec::new();
    for sandbox in opened {
        places.push(ctx.keep(sandbox).await?);
    }
    places[0].out(format!("echo shared >{}", places[0].path("x"))).await?;
    let seen = places.iter().map(|place| place.out(format!("cat {}", place.path("x"))));
    for text in join_all(seen).await {
        ensure_eq!(text?, "shared\n", "the same sandbox");
    }
    ensure_eq!(ctx.backend.list().await?.len(), 1, "sandboxes listed");
    places[0].close().await?;
    Ok(Verdict::Pass)
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map(Iterator::count).unwrap_or(0)
}

async fn descriptors(ctx: &Ctx) -> Result<Verdict, Fail> {
    // Once, so that what is made once a process is there.
    let warm = ctx.backend.open(&ctx.spec()?).await?;
    warm.close().await?;
    drop(warm);
    let before = open_descriptors();
    for _ in 0..10 {
        let sandbox = ctx.backend.open(&ctx.spec()?).await?;
        let mut exec = sandbox.exec(shell("echo x")).await?;
        while let Some(event) = exec.events.next().await {
            event?;
        }
        drop(sandbox.exec(shell("sleep 100")).await?);
        sandbox.close().await?;
    }
    let mut after = open_descriptors();
    for _ in 0..40 {
        if after <= before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        after = open_descriptors();
    }
    ensure!(after <= before, "{before} descriptors before ten sandboxes, {after} after");
    Ok(Verdict::Pass)
}

async fn abandoned(ctx: &Ctx) -> Result<Verdict, Fail> {
    // Opening that is given up half-way leaves nothing; the end of the case looks for it.
    for millis in [0, 1, 3, 6, 12, 25] {
        let spec = ctx.spec()?;
        let opening = ctx.backend.open(&spec);
        let _ = tokio::time::timeout(Duration::from_millis(millis), opening).await;
    }
    // What they made ends; what is left of it on disk goes when the data directory is looked at next.
    let own = std::process::id();
    // An engine is asked, by its program maybe, for all that it takes to open each of them before that is undone.
    let within = Duration::from_secs(if ctx.has_image() { 60 } else { 5 });
    let ended = crate::run::eventually(within, async || Ok(crate::process::descent(own) == [own])).await?;
    let rest: Vec<String> = crate::process::descent(own)
        .into_iter()
        .map(|pid| format!("{pid} {}", crate::process::command_line(pid)))
        .collect();
    ensure!(ended, "abandoned openings leave processes: {rest:?}");
    // What an engine was asked for is carried to its end and then undone.
    let undone = crate::run::eventually(Duration::from_secs(60), async || {
        Ok(ctx.backend.list().await?.is_empty() && crate::leak::run_folders(&ctx.folders.data).is_empty())
    })
    .await?;
    let folders = crate::leak::run_folders(&ctx.folders.data);
    ensure!(undone, "sandboxes listed: {:?}, run folders: {folders:?}", ctx.backend.list().await?);
    ensure_eq!(ctx.place().await?.out("echo works").await?, "works\n", "afterwards");
    Ok(Verdict::Pass)
}
