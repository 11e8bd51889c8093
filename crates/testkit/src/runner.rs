//! Runs cases: one process a case, so that what it leaves behind, hangs on or breaks is its own.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::panic::AssertUnwindSafe;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use moltis_sandbox::{Guarantees, Promise};
use serde::{Deserialize, Serialize};

use crate::case::Control;
use crate::{Case, Ctx, Fail, Subject, Verdict, patience};

/// Variable that tells a process which case of which subject it is to run.
const CASE: &str = "MOLTIS_TESTKIT_CASE";

/// Variable whose value must never be seen inside a sandbox or in anything of its data directory.
pub const CANARY: &str = "MOLTIS_TESTKIT_CANARY";

/// What stands before the report on standard output.
const REPORT: &str = "moltis-testkit-report: ";

/// Time for opening, closing and the control, on top of a case's own.
const MARGIN: Duration = Duration::from_secs(40);

/// How a case ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The case.
    pub id: String,
    /// The subject.
    pub subject: String,
    /// How it ended.
    pub result: Result<Verdict, Fail>,
    /// How long it took, in milliseconds.
    pub millis: u64,
}

/// What a backend says of itself before any case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Standing {
    /// The subject.
    pub subject: String,
    /// What it keeps here, or why it is not usable.
    pub keeps: Result<Guarantees, Fail>,
}

/// Everything that one run of the suite found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// One for each subject.
    pub standings: Vec<Standing>,
    /// One for each case and subject.
    pub reports: Vec<Report>,
}

/// Asks a backend what it keeps here. Blocks.
pub fn standing(subject: &Subject) -> Standing {
    let asked = async { Ok::<_, Fail>(Ctx::new(subject).await?.guarantees) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let keeps = runtime.map_err(Fail::from).and_then(|runtime| runtime.block_on(asked));
    Standing { subject: subject.name.clone(), keeps }
}

/// Runs one case in this process.
pub async fn run_here(subject: &Subject, case: &Case) -> Report {
    let started = Instant::now();
    let result = judged(subject, case).await;
    Report {
        id: case.id.to_owned(),
        subject: subject.name.clone(),
        result,
        millis: started.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
    }
}

async fn judged(subject: &Subject, case: &Case) -> Result<Verdict, Fail> {
    if let Some((_, why)) = subject.apart.iter().find(|(id, _)| *id == case.id) {
        return Ok(Verdict::Declared((*why).to_owned()));
    }
    let limit = patience(case.limit);
    let ctx = Ctx::new(subject).await?;
    if let Some(Promise::NotEnforced(reason)) = case.needs.map(|needs| needs(&ctx.guarantees)) {
        return Ok(Verdict::Declared(reason.clone()));
    }
    let controlled = match case.control {
        None => Control::Works,
        Some(control) => {
            let run = tokio::time::timeout(limit, control(&ctx)).await;
            let run = run.map_err(|_| Fail::new(format!("the control took longer than {limit:?}")))?;
            run.map_err(|e| Fail::new(format!("the control is wrong: {e}")))?
        }
    };
    let verdict = match tokio::time::timeout(limit, AssertUnwindSafe((case.run)(&ctx)).catch_unwind()).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(panic)) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
            Err(Fail::new(format!("panicked: {text}")))
        }
        Err(_) => Err(Fail::new(format!("took longer than {limit:?}"))),
    };
    // What a failed case leaves is not the backend's fault, but it is cleared away all the same.
    let left = ctx.finish().await;
    let verdict = verdict?;
    left?;
    Ok(match (verdict, controlled) {
        (Verdict::Pass, Control::NotHere(why)) => Verdict::Uncontrolled(why),
        (verdict, _) => verdict,
    })
}

/// To be called first in `main` of a program that runs cases: if this process is one that runs a case, it does so and
/// does not return.
pub fn child(subjects: &[Subject], cases: &[Case]) {
    let Some(what) = std::env::var_os(CASE) else { return };
    let what = what.to_string_lossy().into_owned();
    let (subject, id) = what.split_once('\n').unwrap_or_default();
    let subject = subjects.iter().find(|s| s.name == subject);
    let case = cases.iter().find(|c| c.id == id);
    let (Some(subject), Some(case)) = (subject, case) else {
        eprintln!("no such case: {what:?}");
        std::process::exit(2);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let report = match runtime {
        Ok(runtime) => runtime.block_on(run_here(subject, case)),
        Err(e) => {
            eprintln!("no runtime: {e}");
            std::process::exit(2);
        }
    };
    println!("{REPORT}{}", serde_json::to_string(&report).unwrap_or_default());
    std::process::exit(0);
}

/// Runs one case in a process of its own, which is this same program again.
pub fn run_apart(subject: &str, case: &Case) -> Report {
    let started = Instant::now();
    let result = apart(subject, case);
    let millis = started.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
    match result {
        Ok(report) => Report { millis, ..report },
        Err(fail) => {
            Report { id: case.id.to_owned(), subject: subject.to_owned(), result: Err(fail), millis }
        }
    }
}

fn apart(subject: &str, case: &Case) -> Result<Report, Fail> {
    let program = std::env::current_exe()?;
    let mut child = Command::new(program)
        .env(CASE, format!("{subject}\n{}", case.id))
        .env(CANARY, format!("canary-{}-{:?}", std::process::id(), Instant::now()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let mut out = child.stdout.take().ok_or_else(|| Fail::new("no stdout"))?;
    let mut err = child.stderr.take().ok_or_else(|| Fail::new("no stderr"))?;
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = out.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = err.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let controls = if case.control.is_some() { 2 } else { 1 };
    let end = Instant::now() + patience(case.limit * controls + MARGIN);
    let mut killed = false;
    while child.try_wait()?.is_none() {
        if Instant::now() >= end {
            killed = true;
            if let Some(pid) = rustix::process::Pid::from_raw(child.id().try_into().unwrap_or(0)) {
                let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
            }
            child.wait()?;
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // A process that outlived the case and holds its output would make these wait for ever; the pipes are given up.
    let settle = Instant::now() + Duration::from_secs(5);
    while !(reader.is_finished() && errors.is_finished()) {
        if Instant::now() >= settle {
            return Err(Fail::new("something outlived the case and holds its output open"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let (text, errors) = (reader.join().unwrap_or_default(), errors.join().unwrap_or_default());
    if killed {
        return Err(Fail::new(format!("hung and was killed; stderr {errors:?}")));
    }
    let report = text.lines().rev().find_map(|line| line.strip_prefix(REPORT));
    let Some(report) = report else {
        return Err(Fail::new(format!("died without a report; stderr {errors:?}")));
    };
    serde_json::from_str(report).map_err(|e| Fail::new(format!("unreadable report: {e}")))
}

/// Runs many cases, `jobs` at a time, those that need the machine alone one after the other at the end.
pub fn run_all(
    subject: &str,
    cases: &[Case],
    jobs: usize,
    mut seen: impl FnMut(&Report) + Send,
) -> Vec<Report> {
    let seen = Mutex::new(&mut seen);
    let done = Mutex::new(Vec::with_capacity(cases.len()));
    let run = |case: &Case| {
        let report = run_apart(subject, case);
        if let (Ok(mut seen), Ok(mut done)) = (seen.lock(), done.lock()) {
            seen(&report);
            done.push(report);
        }
    };
    let (alone, together): (Vec<_>, Vec<_>) = cases.iter().partition(|case| case.alone);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(case) = together.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run(case);
                }
            });
        }
    });
    for case in alone {
        run(case);
    }
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|r| cases.iter().position(|c| c.id == r.id));
    done
}
