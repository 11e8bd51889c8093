//! Runs the contract, or cases of it, on machines with a real guest: where there is a kernel that boots.
//!
//! `machines-contract [CASE-PREFIX]…`, with `MOLTIS_FIRECRACKER`, `MOLTIS_KERNEL`, `MOLTIS_ROOTFS` and `MOLTIS_CACHE`, a
//! folder beside the temporary ones; `MOLTIS_TESTKIT_SLOW` where the processor is emulated. Each case has a data directory of
//! its own; what their machines begin from is made before the first one, in that folder.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_backend_firecracker::{Config, FirecrackerBackend};
use moltis_testkit::runner::{self, Report};
use moltis_testkit::{Case, Ctx, Fail, Subject, Verdict, matrix};

fn main() -> ExitCode {
    let named = |name: &str| std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set"));
    let (firecracker, kernel, rootfs, cache) =
        (named("MOLTIS_FIRECRACKER"), named("MOLTIS_KERNEL"), named("MOLTIS_ROOTFS"), named("MOLTIS_CACHE"));
    let subject = Subject::new("firecracker", move |folders| {
        let mut config = Config::new(folders.data.clone());
        config.cache_dir = cache.clone().into();
        config.firecracker = firecracker.clone().into();
        config.kernel = kernel.clone().into();
        config.rootfs = rootfs.clone().into();
        config.vcpus = 1;
        config.memory_mb = 256;
        config.serves_within = Duration::from_secs(240);
        Arc::new(FirecrackerBackend::new(config))
    });
    let cases = moltis_testkit::all();
    runner::child(std::slice::from_ref(&subject), &cases);
    let prefixes: Vec<String> = std::env::args().skip(1).collect();
    let chosen =
        |case: &Case| prefixes.is_empty() || prefixes.iter().any(|prefix| case.id.starts_with(&**prefix));
    let cases: Vec<Case> = cases.into_iter().filter(chosen).collect();
    // The first machine is booted, and takes longer than a case may.
    let begun = Instant::now();
    if let Err(why) = first(&subject) {
        println!("no machine can be opened: {why}");
        return ExitCode::FAILURE;
    }
    println!("a machine was booted in {:.1} s", begun.elapsed().as_secs_f64());
    let reports = runner::run_all("firecracker", &cases, 1, |report| println!("{}", matrix::line(report)));
    let count = |is: fn(&Report) -> bool| reports.iter().filter(|report| is(report)).count();
    let failed = count(|report| report.result.is_err());
    let declared = count(|report| matches!(report.result, Ok(Verdict::Declared(_))));
    println!("{} passed, {declared} declared, {failed} failed", reports.len() - declared - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Opens a machine, which leaves its snapshot to the others.
#[tokio::main]
async fn first(subject: &Subject) -> Result<(), Fail> {
    let ctx = Ctx::new(subject).await?;
    ctx.place().await?;
    ctx.finish().await
}
