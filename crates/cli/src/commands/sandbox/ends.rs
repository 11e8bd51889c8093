//! `moltis sandbox stop`, `rm` and `prune`: ending sandboxes that were named, and those that are of no use.

use std::ffi::OsStr;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _};

use moltis_runtime::{LegacyContainer, Runtime, SandboxInfo, Stopped};
use moltis_sandbox::{Diagnosis, Legacy, SandboxId, SessionKey};
use serde_json::{Map, Value, json};

use super::short;
use crate::args;
use crate::failure::Failure;
use crate::{output, render};

/// Fewest digits of an id that name it.
const FEWEST: usize = 4;

/// A sandbox that was named.
struct Named {
    id: SandboxId,
    session: Option<SessionKey>,
    running: bool,
}

impl Named {
    /// Which one it is, and what became of it.
    fn told(&self, what: Value) -> Map<String, Value> {
        let mut told = output::present(json!({ "sandboxId": self.id, "session": self.session }));
        told.extend(output::present(what));
        told
    }

    fn show(&self) -> String {
        self.session.as_ref().map_or_else(|| short(&self.id).to_owned(), |key| render::name(key.as_str()))
    }
}

/// `moltis sandbox stop`.
pub async fn stop(runtime: &Runtime, args: &args::Names) -> Result<i32, Failure> {
    let mut stopped = Vec::new();
    let mut text = String::new();
    for named in all(runtime, args, false).await? {
        let ended = match &named.session {
            Some(key) => runtime.stop_sandbox(key).await? == Stopped::Ended,
            None => {
                runtime.remove_sandbox(&named.id).await?;
                named.running
            }
        };
        let what = if ended { "stopped" } else { "did not run:" };
        text.push_str(&format!("{what} {}\n", named.show()));
        stopped.push(named.told(json!({ "ended": ended })));
    }
    print(args.json, "stopped", stopped, &text)
}

/// `moltis sandbox rm`.
pub async fn remove(runtime: &Runtime, args: &args::Names) -> Result<i32, Failure> {
    let mut removed = Vec::new();
    let mut text = String::new();
    for named in all(runtime, args, true).await? {
        runtime.remove_sandbox(&named.id).await?;
        text.push_str(&format!("removed {}\n", named.show()));
        removed.push(named.told(json!({})));
    }
    print(args.json, "removed", removed, &text)
}

/// `moltis sandbox prune`.
pub async fn prune(runtime: &Runtime, args: &args::Prune) -> Result<i32, Failure> {
    let pruned = runtime.prune(args.idle).await?;
    let likely = if args.legacy { likely(runtime, args).await? } else { Likely::default() };
    if args.json {
        let removed: Vec<_> = pruned.removed.iter().map(|id| json!({ "sandboxId": id })).collect();
        let mut told = json!({ "removed": removed, "kept": pruned.kept });
        let legacy: Vec<_> = pruned.legacy.iter().chain(&likely.removed).collect();
        if args.legacy || !legacy.is_empty() {
            told["legacyRemoved"] = json!(legacy);
            told["legacyKept"] = json!(likely.kept);
        }
        return output::print_json(&told);
    }
    let mut text: String = pruned.removed.iter().map(|id| format!("removed {}\n", short(id))).collect();
    for found in pruned.legacy.iter().chain(&likely.removed) {
        text.push_str(&format!("removed {}\n", line(found)));
    }
    if !likely.asked {
        likely.kept.iter().for_each(|found| text.push_str(&format!("kept {}\n", line(found))));
    }
    text.push_str(&format!("{} removed, {} kept\n", pruned.removed.len(), pruned.kept));
    if !likely.kept.is_empty() && !likely.asked {
        text.push_str("`moltis sandbox prune --legacy --yes` removes those that merely have such a name\n");
    }
    output::print(&text)
}

/// Containers that merely have a likely name, and what became of them.
#[derive(Default)]
struct Likely {
    removed: Vec<LegacyContainer>,
    kept: Vec<LegacyContainer>,
    /// Whether a person has seen them and said no.
    asked: bool,
}

async fn likely(runtime: &Runtime, args: &args::Prune) -> Result<Likely, Failure> {
    let found: Vec<_> =
        runtime.legacy().await.into_iter().filter(|found| !found.legacy.ours_by_label).collect();
    if found.is_empty() {
        return Ok(Likely::default());
    }
    let can_ask = !args.json && io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && (!can_ask || !confirmed(&found).await?) {
        return Ok(Likely { kept: found, asked: can_ask, ..Likely::default() });
    }
    for found in &found {
        runtime.discard(found).await?;
    }
    Ok(Likely { removed: found, ..Likely::default() })
}

/// Lists them and asks; anything but yes is no.
async fn confirmed(found: &[LegacyContainer]) -> Result<bool, Failure> {
    for found in found {
        crate::say!("{}", line(found));
    }
    crate::say!(
        "They merely have a name as an earlier version gave its containers, and may be somebody else's."
    );
    crate::say!("Remove them all? Type yes:");
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        io::stdin().lock().take(64).read_line(&mut answer).map(|_| answer)
    });
    let answer = answer.await.ok().and_then(Result::ok).unwrap_or_default();
    Ok(matches!(answer.trim(), "yes" | "y"))
}

fn line(found: &LegacyContainer) -> String {
    let Legacy { name, why, .. } = &found.legacy;
    format!("{} {}: {}", found.backend, render::one_line(name), render::one_line(why))
}

fn print(json: bool, name: &str, told: Vec<Map<String, Value>>, text: &str) -> Result<i32, Failure> {
    if json { output::print_json(&json!({ name: told })) } else { output::print(text) }
}

/// The sandboxes that the words name. One that names nothing leaves all others as they are.
async fn all(runtime: &Runtime, args: &args::Names, any_id: bool) -> Result<Vec<Named>, Failure> {
    let known = runtime.sandboxes().await?;
    let mut all = Vec::new();
    for name in &args.names {
        all.push(one(runtime, &known, name, any_id).await?);
    }
    Ok(all)
}

/// The sandbox of a session of this name, else the one whose id begins so. With `any_id` a whole id need not be known.
async fn one(runtime: &Runtime, known: &[SandboxInfo], name: &OsStr, any_id: bool) -> Result<Named, Failure> {
    let shown = render::one_line(&format!("{:?}", name.to_string_lossy()));
    let missing = || {
        Failure::invalid(
            Diagnosis::new("sandbox-missing", format!("{shown} is no session, and no sandbox's id"))
                .fix("`moltis sandbox ps` names the sandboxes that there are"),
        )
    };
    let text = name.to_str().ok_or_else(missing)?;
    let of = |info: &SandboxInfo| Named {
        id: info.id.clone(),
        session: info.session.clone(),
        running: info.running,
    };
    if let Some(key) = SessionKey::new(text)
        && let Some(session) = runtime.session(&key).await?
    {
        return Ok(Named { id: session.sandbox_id, session: Some(key), running: false });
    }
    let found: Vec<_> = known.iter().filter(|info| info.id.as_str().starts_with(text)).collect();
    match (found.as_slice(), SandboxId::parse(text)) {
        (_, _) if text.len() < FEWEST => Err(missing()),
        ([], Some(id)) if any_id => Ok(Named { id, session: None, running: false }),
        ([], _) => Err(missing()),
        ([first, rest @ ..], _) if rest.iter().all(|info| info.id == first.id) => Ok(of(first)),
        (several, _) => {
            let ids: Vec<_> = several.iter().map(|info| info.id.as_str()).collect();
            let message = format!("{shown} begins the ids of {} sandboxes", several.len());
            Err(Failure::invalid(
                Diagnosis::new("sandbox-ambiguous", message)
                    .cause(ids.join(", "))
                    .fix("write more of the id"),
            ))
        }
    }
}
