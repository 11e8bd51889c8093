//! Standard input: reaches the command whole, ends, and is held back when the command does not read.

use std::time::Duration;

use bytes::Bytes;
use moltis_sandbox::ExecEvent;

use crate::run::shell;
use crate::{Case, Ctx, Fail, Verdict, case, ensure, ensure_eq, fail, patience};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("stdin.echo", echo),
        case!("stdin.none", none),
        case!("stdin.binary-and-large", large).limit(60),
        case!("stdin.not-read", not_read),
        case!("stdin.held-back", held_back).law(5),
        case!("stdin.interactive", interactive),
        case!("stdin.closed-by-the-command", closed_by_the_command),
    ]
}

async fn echo(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut request = shell("tr a-z A-Z; echo end");
    request.stdin = true;
    let mut live = place.start(request).await?;
    live.say("hello\n").await?;
    live.exec.control.close_stdin().await?;
    let ran = live.finish(Duration::from_secs(10)).await?.good()?;
    ensure_eq!(ran.text(), "HELLO\nend\n", "output");
    Ok(Verdict::Pass)
}

async fn none(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    ensure_eq!(place.out("cat; wc -c").await?.trim(), "0", "bytes read when the caller sends none");
    Ok(Verdict::Pass)
}

async fn large(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut request = shell("cat");
    request.stdin = true;
    request.timeout = Some(patience(Duration::from_secs(50)));
    let live = place.start(request).await?;
    // A fixed pseudo-random sequence, so that any change shows.
    let mut state = 1_u64;
    let data: Vec<u8> = (0..16 << 20)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    let data = Bytes::from(data);
    let crate::Live { exec, .. } = live;
    let (mut events, mut control) = (exec.events, exec.control);
    let sent = data.clone();
    let sending = tokio::spawn(async move {
        for at in (0..sent.len()).step_by(100_000) {
            control.stdin(sent.slice(at..sent.len().min(at + 100_000))).await?;
        }
        control.close_stdin().await?;
        Ok::<_, moltis_sandbox::Error>(control)
    });
    let mut back = Vec::with_capacity(data.len());
    let mut outcome = None;
    while let Some(event) = events.next().await {
        match event? {
            ExecEvent::Stdout(bytes) => back.extend_from_slice(&bytes),
            ExecEvent::Exit(end) => outcome = Some(end),
            other => fail!("{other:?}"),
        }
    }
    let _control = sending.await.map_err(|e| Fail::new(e.to_string()))??;
    ensure!(back == data, "came back changed: {} bytes of {}", back.len(), data.len());
    ensure_eq!(outcome.map(|o| o.stdout_bytes), Some(data.len() as u64), "bytes counted");
    Ok(Verdict::Pass)
}

async fn not_read(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut request = shell("exit 3");
    request.stdin = true;
    let mut live = place.start(request).await?;
    // Succeeds without effect, however late.
    for _ in 0..50 {
        live.say(vec![b'x'; 65_536]).await?;
    }
    live.exec.control.close_stdin().await?;
    let ran = live.finish(Duration::from_secs(10)).await?;
    ensure_eq!(ran.outcome.exit_code(), 3, "exit code");
    Ok(Verdict::Pass)
}

async fn held_back(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut request = shell("sleep 2; wc -c");
    request.stdin = true;
    let mut live = place.start(request).await?;
    let mut sent = 0_u64;
    let piece = Bytes::from(vec![b'x'; 65_536]);
    let mut held = false;
    while sent < 64 << 20 {
        // A send that does not finish has still to be finished: it is not known how much of it went.
        let mut sending = Box::pin(live.exec.control.stdin(piece.clone()));
        let Ok(result) = tokio::time::timeout(Duration::from_millis(700), &mut sending).await else {
            held = true;
            sending.await?;
            sent += 65_536;
            break;
        };
        result?;
        sent += 65_536;
    }
    ensure!(held, "{sent} bytes were taken while the command did not read");
    ensure!(sent < 16 << 20, "{sent} bytes lie between a sender and a command that does not read");
    live.exec.control.close_stdin().await?;
    let ran = live.finish(Duration::from_secs(15)).await?.good()?;
    ensure_eq!(ran.text().trim(), sent.to_string(), "bytes that arrived");
    Ok(Verdict::Pass)
}

async fn interactive(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut request = shell("while read l; do echo \"<$l>\"; done; echo over");
    request.stdin = true;
    let mut live = place.start(request).await?;
    for n in 1..=20 {
        live.say(format!("line {n}\n")).await?;
        live.until(&format!("<line {n}>\n"), Duration::from_secs(5)).await?;
    }
    live.exec.control.close_stdin().await?;
    let ran = live.finish(Duration::from_secs(5)).await?.good()?;
    ensure!(ran.text().ends_with("<line 20>\nover\n"), "output {:?}", ran.text());
    Ok(Verdict::Pass)
}

async fn closed_by_the_command(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut request = shell("exec 0<&-; echo closed; sleep 1; echo done");
    request.stdin = true;
    let mut live = place.start(request).await?;
    live.until("closed", Duration::from_secs(5)).await?;
    for _ in 0..20 {
        live.say(vec![b'x'; 65_536]).await?;
    }
    let ran = live.finish(Duration::from_secs(10)).await?.good()?;
    ensure_eq!(ran.text(), "closed\ndone\n", "output");
    Ok(Verdict::Pass)
}
