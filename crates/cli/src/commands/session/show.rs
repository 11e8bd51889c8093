//! `moltis session show`.

use std::fmt::Write as _;

use moltis_runtime::json::Process;
use moltis_runtime::store::Session;
use moltis_runtime::{ExplainRequest, Explanation, Runtime, SandboxInfo};
use moltis_sandbox::ProcessInfo;
use serde_json::json;

use super::{list, overridden};
use crate::args;
use crate::failure::Failure;
use crate::{flags, output, render};

/// Runs it; gives the exit status.
pub async fn run(runtime: &Runtime, args: &args::Show) -> Result<i32, Failure> {
    let key = flags::session_key(&args.key)?;
    let session = runtime.existing_session(&key).await?;
    let all = runtime.sandboxes().await?;
    let sandbox = all.into_iter().find(|info| info.session.as_ref() == Some(&key));
    let processes: Vec<_> = match runtime.find_sandbox(&key).await? {
        Some((_, sandbox)) => sandbox.processes().await?,
        None => Vec::new(),
    };
    let running: Vec<_> = processes.into_iter().filter(|process| process.outcome.is_none()).collect();
    let history = runtime.remembered(&session).await?;
    let home = runtime.home(&key);
    let next = runtime.explain(&ExplainRequest { session: Some(key.clone()), ..Default::default() }).await?;
    if args.json {
        let processes: Vec<_> = running.iter().map(Process::from).collect();
        let refusal = next.refusal.as_ref();
        let mut told = list::told(&session, sandbox.as_ref());
        told.extend(output::present(json!({
            "home": home,
            "processes": processes,
            "commandsRemembered": history,
            "fate": next.sandbox,
            "notEnforced": next.not_enforced,
            "refusal": refusal.map(|e| json!({ "kind": e.kind(), "error": e.diagnosis() })),
        })));
        return output::print_json(&told);
    }
    let mut rows = vec![
        row("session", render::name(key.as_str())),
        row("made", render::age(session.created_millis)),
        row("used", format!("{} by {}", render::age(session.last_used_millis), session.last_used_by)),
        row("sandbox", sandbox_line(&session, sandbox.as_ref())),
        row("home", home.map_or("none that lasts".to_owned(), |home| render::name(&home.to_string_lossy()))),
        row(
            "begins",
            session.begins.as_ref().map_or("from nothing".to_owned(), |begins| {
                format!("from the snapshot {}, each time that its sandbox is made", begins.snapshot)
            }),
        ),
        row("history", format!("{history} commands")),
    ];
    let sets = overridden(&session);
    if sets.is_empty() {
        rows.push(row("sets", "nothing: all is as configured".to_owned()));
    }
    rows.extend(sets.into_iter().map(|(name, value)| row(&format!("sets {name}"), render::one_line(&value))));
    let mut text = render::table(&rows);
    text.push_str(&told(&running, &next));
    output::print(&text)
}

fn row(name: &str, value: String) -> Vec<String> {
    vec![name.to_owned(), value]
}

fn sandbox_line(session: &Session, sandbox: Option<&SandboxInfo>) -> String {
    let state = list::state(session, sandbox);
    let Some(row) = &session.sandbox else { return state };
    let activity = sandbox.and_then(|info| info.activity);
    let since = activity.map_or(String::new(), |activity| {
        format!(", up {}, unused {}", render::span(activity.uptime), render::span(activity.idle))
    });
    format!("{state} on {}{since}, {}", row.backend, &session.sandbox_id.as_str()[..12])
}

/// What runs, and what is to be known of the next command.
fn told(running: &[ProcessInfo], next: &Explanation) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    for process in running {
        let command = render::one_line(&process.command);
        let since = render::age(process.started_millis);
        let _ = writeln!(text, "background {}: {command} (started {since})", process.id);
    }
    for left in &next.not_enforced {
        let _ = writeln!(text, "not enforced: {} ({})", left.key, render::one_line(&left.reason));
    }
    if let Some(error) = &next.refusal {
        let message = render::one_line(&error.diagnosis().message);
        let _ = writeln!(text, "the next command would be refused: {message} [{}]", error.code());
    }
    text
}
