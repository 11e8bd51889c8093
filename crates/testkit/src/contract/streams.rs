//! Output: apart, whole, binary-safe, as it comes, and held back when nobody reads.

use std::time::{Duration, Instant};

use moltis_sandbox::{Ending, ExecEvent, Status};

use crate::run::{contains, eventually, shell};
use crate::{Case, Ctx, Fail, Verdict, case, ensure, ensure_eq, fail, patience};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("streams.apart", apart),
        case!("streams.binary", binary),
        case!("streams.empty", empty),
        case!("streams.large", large).limit(60),
        case!("streams.as-it-comes", as_it_comes),
        case!("streams.held-back", held_back).law(5),
        case!("streams.stall-is-its-own", stall_is_its_own).law(5),
        case!("streams.closed-early", closed_early),
        case!("streams.no-last-newline", no_last_newline),
        case!("streams.reader-ends", reader_ends),
        case!("streams.output-of-the-killed", output_of_the_killed).law(4),
    ]
}

async fn apart(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let ran = place.sh("for i in 1 2 3; do echo o$i; echo e$i >&2; done").await?.good()?;
    ensure_eq!(ran.text(), "o1\no2\no3\n", "stdout");
    ensure_eq!(ran.errors(), "e1\ne2\ne3\n", "stderr");
    ensure_eq!((ran.outcome.stdout_bytes, ran.outcome.stderr_bytes), (9, 9), "bytes counted");
    Ok(Verdict::Pass)
}

async fn binary(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let line = r#"i=0; while [ $i -lt 256 ]; do printf "\\$(printf %03o $i)"; i=$((i+1)); done >all; cat all; cat all >&2"#;
    let ran = place.sh(format!("cd {}; {line}", place.tmp)).await?.good()?;
    let all: Vec<u8> = (0..=255).collect();
    ensure_eq!(ran.stdout, all, "all byte values on stdout");
    ensure_eq!(ran.stderr, all, "all byte values on stderr");
    Ok(Verdict::Pass)
}

async fn empty(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let ran = place.sh(":").await?.good()?;
    ensure_eq!((ran.stdout.len(), ran.stderr.len()), (0, 0), "output of nothing");
    ensure_eq!((ran.outcome.stdout_bytes, ran.outcome.stderr_bytes), (0, 0), "bytes counted");
    Ok(Verdict::Pass)
}

async fn large(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    // Numbered lines: a lost, doubled or swapped piece shows. Both streams at once, in big and small writes.
    let line = "seq 1 2000000 & seq 3000000 -1 2000001 >&2; wait";
    let ran = place.sh(line).await?.good()?;
    let mut out = Vec::with_capacity(16 << 20);
    let mut err = Vec::with_capacity(8 << 20);
    for n in 1..=2_000_000 {
        out.extend_from_slice(format!("{n}\n").as_bytes());
    }
    for n in (2_000_001..=3_000_000).rev() {
        err.extend_from_slice(format!("{n}\n").as_bytes());
    }
    ensure_eq!(ran.outcome.stdout_bytes, out.len() as u64, "stdout bytes counted");
    ensure_eq!(ran.outcome.stderr_bytes, err.len() as u64, "stderr bytes counted");
    ensure!(ran.stdout == out, "stdout differs; {} bytes of {}", ran.stdout.len(), out.len());
    ensure!(ran.stderr == err, "stderr differs; {} bytes of {}", ran.stderr.len(), err.len());
    Ok(Verdict::Pass)
}

async fn as_it_comes(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut live = place.start(shell("echo first; sleep 3; echo last")).await?;
    let started = Instant::now();
    live.until("first\n", Duration::from_secs(2)).await?;
    ensure!(started.elapsed() < patience(Duration::from_secs(2)), "the first line came late");
    ensure!(!contains(&live.stdout, b"last"), "the first line came with the last");
    ensure!(live.outcome.is_none(), "over before it was");
    let ran = live.finish(Duration::from_secs(10)).await?.good()?;
    ensure_eq!(ran.text(), "first\nlast\n", "output");
    ensure!(ran.outcome.duration >= Duration::from_secs(3), "took {:?}", ran.outcome.duration);
    Ok(Verdict::Pass)
}

/// A command that writes blocks of 64 KiB and keeps count of them in a file, which stands still when it is held back.
const WRITER: &str = "dd if=/dev/zero of=block bs=65536 count=1 2>/dev/null; n=0; \
     while [ $n -lt 1600 ]; do cat block || exit 9; n=$((n+1)); echo $n >count; done";

async fn held_back(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut request = shell(format!("cd {}; {WRITER}", place.tmp));
    let count = format!("cat {} 2>/dev/null || echo 0", place.path("count"));
    request.timeout = Some(patience(Duration::from_secs(60)));
    let mut exec = place.sandbox.exec(request).await?;
    match exec.events.next().await {
        Some(Ok(ExecEvent::Started(_))) => {}
        other => fail!("the first event is {other:?}"),
    }
    // It stands still once whatever lies between is full.
    let mut counts = Vec::new();
    let still = eventually(Duration::from_secs(10), async || {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let now: u64 = place.out(count.as_str()).await?.trim().parse().unwrap_or(0);
        let same = now > 0 && counts.last() == Some(&now);
        counts.push(now);
        Ok(same)
    })
    .await?;
    ensure!(still, "the command is not held back: blocks written {counts:?}");
    let stuck = counts.last().copied().unwrap_or(0) * 65_536;
    ensure!(stuck < 16 << 20, "{stuck} bytes lie between the command and a reader that does not read");
    // Once read, everything comes.
    let mut bytes = 0;
    let mut outcome = None;
    while let Some(event) = exec.events.next().await {
        match event? {
            ExecEvent::Stdout(piece) => bytes += piece.len() as u64,
            ExecEvent::Exit(end) => outcome = Some(end),
            other => fail!("{other:?}"),
        }
    }
    ensure_eq!(bytes, 1600 * 65_536, "bytes in the end");
    let Some(outcome) = outcome else { fail!("no Exit") };
    ensure_eq!((outcome.status, outcome.stdout_bytes), (Status::Code(0), bytes), "status and bytes counted");
    Ok(Verdict::Pass)
}

async fn stall_is_its_own(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut request = shell("cat /dev/zero");
    request.timeout = Some(patience(Duration::from_secs(60)));
    let stalled = place.start(request).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    for _ in 0..20 {
        let ran = place.sh("echo quick").await?.good()?;
        ensure_eq!(ran.text(), "quick\n", "another command's output");
        ensure!(ran.took < patience(Duration::from_secs(2)), "took {:?} beside a stalled reader", ran.took);
    }
    drop(stalled);
    Ok(Verdict::Pass)
}

async fn closed_early(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let ran = place.sh("echo a; exec 1>&-; sleep 0.3; echo b >&2; exec 2>&-; sleep 0.3; exit 5").await?;
    ensure_eq!((ran.text(), ran.errors()), ("a\n".to_owned(), "b\n".to_owned()), "output");
    ensure_eq!(ran.outcome.status, Status::Code(5), "the command goes on after closing its output");
    ensure!(ran.outcome.duration >= Duration::from_millis(600), "over early: {:?}", ran.outcome.duration);
    Ok(Verdict::Pass)
}

async fn no_last_newline(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    for _ in 0..50 {
        let ran = place.sh("printf abc; printf def >&2").await?.good()?;
        ensure_eq!((ran.text(), ran.errors()), ("abc".to_owned(), "def".to_owned()), "the last bytes");
    }
    Ok(Verdict::Pass)
}

/// Signals 32 and 33 are the C library's own, which no program can set; without an agent they are as the engine was
/// started with them.
const C_LIBRARY_S: u64 = 0b11 << 31;

async fn reader_ends(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    // SIGPIPE must have its default in commands, or `yes | head` never ends.
    let ran = place.sh("yes | head -n 2; echo over").await?.good()?;
    ensure_eq!(ran.text(), "y\ny\nover\n", "output");
    if !place.processes {
        return Ok(Verdict::Pass);
    }
    let text = place.out("grep -E '^Sig(Ign|Blk)' /proc/self/status").await?;
    for line in text.lines() {
        let mask = line.rsplit(char::is_whitespace).next().unwrap_or_default();
        let mask = u64::from_str_radix(mask, 16).map_err(|e| Fail::new(format!("{line}: {e}")))?;
        ensure!(mask & !C_LIBRARY_S == 0, "signals are ignored or blocked: {line}");
    }
    Ok(Verdict::Pass)
}

async fn output_of_the_killed(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut request = shell("seq 1 100000; echo done >&2; sleep 100");
    request.timeout = Some(Duration::from_secs(2));
    let ran = place.run(request).await?;
    ensure_eq!(ran.outcome.ending, Ending::TimedOut, "ending");
    let expected: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    ensure!(ran.text() == expected, "output so far: {} bytes of {}", ran.stdout.len(), expected.len());
    ensure_eq!(ran.errors(), "done\n", "stderr so far");
    Ok(Verdict::Pass)
}
