//! Secrets: what a caller hands a command reaches that command and nothing else, and nothing of the caller's environment
//! comes in.

use std::path::Path;
use std::time::Duration;

use moltis_sandbox::GuestPath;

use crate::run::shell;
use crate::runner::CANARY;
use crate::{Case, Ctx, Fail, Verdict, case, ensure, ensure_eq, fail};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("secrets.not-on-command-lines", command_lines).law(9),
        case!("secrets.not-on-disk", on_disk).law(9),
        case!("secrets.not-in-errors", in_errors).law(9),
        case!("secrets.callers-environment-stays-out", callers_environment)
            .law(9)
            .needs(|promised| &promised.environment),
        case!("secrets.callers-environment-out-of-sight", out_of_sight)
            .law(9)
            .needs(|promised| &promised.filesystem),
        case!("secrets.other-commands", other_commands).law(9),
    ]
}

const SECRET: &str = "s3cr3t-0f-th3-c4ll3r";

fn with_secret(line: &str) -> moltis_sandbox::ExecRequest {
    let mut request = shell(line);
    request.env.push(("TOKEN".into(), SECRET.into()));
    request
}

async fn command_lines(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut live = place.start(with_secret("echo ${#TOKEN}; sleep 3")).await?;
    live.until(&format!("{}\n", SECRET.len()), Duration::from_secs(5)).await?;
    for pid in crate::process::pids() {
        let line = crate::process::command_line(pid);
        ensure!(!line.contains(SECRET), "process {pid} shows the secret: {line}");
    }
    Ok(Verdict::Pass)
}

/// Files below a folder that hold the text.
fn holding(folder: &Path, text: &str) -> Result<Vec<String>, Fail> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && crate::run::contains(&std::fs::read(entry.path())?, text.as_bytes()) {
                found.push(entry.path().display().to_string());
            }
        }
    }
    Ok(found)
}

async fn on_disk(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    // Something is found where it is put, so that finding nothing means something.
    let put = ctx.folders.data.join("put");
    std::fs::write(&put, SECRET)?;
    ensure_eq!(holding(&ctx.folders.data, SECRET)?, [put.display().to_string()], "files that hold it");
    std::fs::remove_file(put)?;
    place.run(with_secret("echo $TOKEN; sleep 0.1")).await?.good()?;
    ensure_eq!(holding(&ctx.folders.data, SECRET)?, Vec::<String>::new(), "files that hold it");
    let canary = canary()?;
    ensure_eq!(
        holding(&ctx.folders.data, &canary)?,
        Vec::<String>::new(),
        "files that hold the caller's environment"
    );
    Ok(Verdict::Pass)
}

async fn in_errors(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut requests = vec![with_secret("a\0b"), with_secret(&"x".repeat(4 << 20))];
    let mut cwd = with_secret("true");
    cwd.cwd = GuestPath::new("/no/such/folder");
    requests.push(cwd);
    let mut name = with_secret("true");
    name.env.push(("A=B".into(), SECRET.into()));
    requests.push(name);
    let mut value = shell("true");
    value.env.push(("TOKEN".into(), format!("{SECRET}\0").into()));
    requests.push(value);
    let mut missing = crate::run::argv(&["/no/such/program"]);
    missing.env.push(("TOKEN".into(), SECRET.into()));
    requests.push(missing);
    for (number, request) in requests.into_iter().enumerate() {
        let said = match place.sandbox.exec(request).await {
            Err(e) => format!("{e:?}"),
            Ok(mut exec) => {
                let mut said = String::new();
                while let Some(event) = exec.events.next().await {
                    said.push_str(&format!("{event:?}"));
                }
                said
            }
        };
        ensure!(!said.is_empty(), "request {number} said nothing");
        ensure!(!said.contains(SECRET), "request {number} gives the secret away: {said}");
    }
    Ok(Verdict::Pass)
}

/// The value in the caller's environment that must not be seen.
fn canary() -> Result<String, Fail> {
    let canary = std::env::var(CANARY).unwrap_or_default();
    ensure!(!canary.is_empty(), "the case has no canary: it is not run by the runner");
    let own = std::fs::read("/proc/self/environ")?;
    ensure!(crate::run::contains(&own, canary.as_bytes()), "the canary is not in the caller's environment");
    Ok(canary)
}

async fn callers_environment(ctx: &Ctx) -> Result<Verdict, Fail> {
    let canary = canary()?;
    let place = ctx.place().await?;
    let line = if place.processes { "env; tr '\\0' '\\n' </proc/self/environ" } else { "env; set" };
    let text = place.out(line).await?;
    ensure!(text.contains("PATH="), "no environment shows at all: {text:?}");
    ensure!(!text.contains(&canary), "the caller's environment comes in");
    ensure!(!text.contains(CANARY), "names of the caller's environment come in");
    Ok(Verdict::Pass)
}

async fn out_of_sight(ctx: &Ctx) -> Result<Verdict, Fail> {
    let canary = canary()?;
    let place = ctx.place().await?;
    let text = place.out("env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await?;
    ensure!(!text.contains(&canary), "the caller's environment shows inside");
    ensure!(!text.contains(CANARY), "names of the caller's environment show inside");
    Ok(Verdict::Pass)
}

async fn other_commands(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    place.run(with_secret("true")).await?.good()?;
    let text = place.out("env").await?;
    if text.contains(SECRET) {
        fail!("one command's environment reaches the next");
    }
    // Not even while the agent still holds it: its memory and environment are closed to commands.
    let live = place.start(with_secret("sleep 5")).await?;
    let text = place.out("cat /proc/1/environ /proc/1/cmdline 2>/dev/null | tr '\\0' '\\n'; :").await?;
    ensure!(!text.contains(SECRET), "the agent shows it");
    drop(live);
    Ok(Verdict::Pass)
}
