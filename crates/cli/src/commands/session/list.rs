//! `moltis session list`.

use std::collections::HashMap;

use moltis_runtime::store::{SandboxState, Session};
use moltis_runtime::{Runtime, SandboxInfo};
use moltis_sandbox::SessionKey;
use serde_json::{Map, Value, json};

use super::overridden;
use crate::failure::Failure;
use crate::{output, render};

/// Runs it; gives the exit status.
pub async fn run(runtime: &Runtime, json: bool) -> Result<i32, Failure> {
    let sessions = all(runtime).await?;
    let sandboxes: HashMap<SessionKey, SandboxInfo> = runtime
        .sandboxes()
        .await?
        .into_iter()
        .filter_map(|info| Some((info.session.clone()?, info)))
        .collect();
    if json {
        let told: Vec<_> =
            sessions.iter().map(|session| told(session, sandboxes.get(&session.key))).collect();
        return output::print_json(&json!({ "sessions": told }));
    }
    if sessions.is_empty() {
        return output::print("There are no sessions. `moltis exec --session KEY` makes one.\n");
    }
    let mut rows = vec![["SESSION", "BACKEND", "SANDBOX", "USED", "SETS"].map(str::to_owned).to_vec()];
    for session in &sessions {
        let sandbox = sandboxes.get(&session.key);
        let sets: Vec<_> =
            overridden(session).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        rows.push(vec![
            render::name(session.key.as_str()),
            session.sandbox.as_ref().map_or("-".to_owned(), |row| row.backend.to_string()),
            state(session, sandbox),
            render::age(session.last_used_millis),
            if sets.is_empty() { "-".to_owned() } else { render::one_line(&sets.join(" ")) },
        ]);
    }
    output::print(&render::table(&rows))
}

async fn all(runtime: &Runtime) -> Result<Vec<Session>, Failure> {
    let mut sessions: Vec<Session> = Vec::new();
    loop {
        let after = sessions.last().map(|session| session.key.clone());
        let page = runtime.sessions(after.as_ref()).await?;
        if page.is_empty() {
            return Ok(sessions);
        }
        sessions.extend(page);
    }
}

/// A session as JSON: what is stored, whether its sandbox runs, and what there is of it.
pub fn told(session: &Session, sandbox: Option<&SandboxInfo>) -> Map<String, Value> {
    let mut fields = output::present(json!(session));
    fields.insert("running".to_owned(), sandbox.is_some_and(|info| info.running).into());
    if let Some(info) = sandbox {
        fields.insert("sandbox".to_owned(), json!(info));
    }
    fields
}

/// What there is of a session's sandbox, in a word or two.
pub fn state(session: &Session, sandbox: Option<&SandboxInfo>) -> String {
    let Some(row) = &session.sandbox else {
        return session.ended.map_or("-".to_owned(), |why| format!("ended ({})", why.as_str()));
    };
    match (row.state, sandbox) {
        (SandboxState::Opening, _) => "opening".to_owned(),
        (SandboxState::Closing, _) => "closing".to_owned(),
        (SandboxState::Running, Some(info)) if info.running => match info.activity {
            Some(activity) if activity.operations > 0 => format!("running ({} busy)", activity.operations),
            _ => "running".to_owned(),
        },
        // It has its files still.
        (SandboxState::Running, Some(SandboxInfo { provider: Some(told), .. })) => {
            render::one_line(&told.state)
        }
        (SandboxState::Running, _) => "gone".to_owned(),
    }
}
