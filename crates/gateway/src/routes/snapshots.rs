//! Snapshots of sessions: taken, listed, removed; sessions that begin from one.

use axum::http::Method;
use moltis_runtime::store::Session;
use moltis_sandbox::SessionKey;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::sessions::told;
use super::words;
use crate::call::{Call, failed, ok, session_key};
use crate::grants::{self, Asked};
use crate::once;
use crate::problem::Problem;
use crate::route::{Answered, Bound, Route, Rule};
use crate::schema::{flag, has, list as list_of, may, named, object, or_null, text, text_of};

/// The routes.
pub fn routes() -> Vec<Route> {
    let of = |route: Route| route.part("session", words::SESSION, words::session()).runs();
    vec![
        of(Route::new(
            Method::GET,
            "/api/v1/sessions/{session}/snapshots",
            "listSnapshots",
            Rule::read(Bound::Session),
            list,
        ))
        .about("Sessions", "The snapshots of a session, oldest first")
        .more("The session need not be there any more: its snapshots stay unless it was purged.")
        .answers(200, "All of them", object("", [has("snapshots", "", list_of(named("Snapshot")))])),
        once::told(of(Route::new(
            Method::POST,
            "/api/v1/sessions/{session}/snapshots",
            "takeSnapshot",
            Rule::write(Bound::Session),
            take,
        ))
        .about("Sessions", "Take a snapshot of what was written to a session's sandbox")
        .more(
            "The sandbox is started if it does not run. Commands run on; processes and memory are not in it.",
        )
        .json(object("", [may("name", "What to call it, beside its id", or_null(text_of(1, 64)))]))
        .or_nothing()
        .with([once::param()])
        .answers(201, "It was taken", named("TakenSnapshot"))),
        of(Route::new(
            Method::DELETE,
            "/api/v1/sessions/{session}/snapshots/{snapshot}",
            "removeSnapshot",
            Rule::write(Bound::Session),
            remove,
        ))
        .part("snapshot", "Its id or name", text_of(1, 64))
        .about("Sessions", "Remove a snapshot that no session begins from")
        .answers(200, "It is gone", object("", [has("removed", "Its id", text())])),
        once::told(of(Route::new(
            Method::POST,
            "/api/v1/sessions/{session}/restore",
            "restoreSession",
            Rule::write(Bound::Session),
            restore,
        ))
        .about("Sessions", "Have a session begin from one of its snapshots, or from none")
        .more("Its sandbox is ended. A home of its own is replaced when the next one starts.")
        .json(object(
            "",
            [
                has("snapshot", "Id or name; `null`: none", or_null(text_of(1, 64))),
                may("recreate", "End what runs in the sandbox", flag()),
            ],
        ))
        .with([once::param()])
        .answers(200, "It begins there", named("Session"))),
        once::told(of(Route::new(
            Method::POST,
            "/api/v1/sessions/{session}/fork",
            "forkSession",
            Rule::write(Bound::Session),
            fork,
        ))
        .about("Sessions", "Make a new session that begins where this one is, and sets what it sets")
        .json(object(
            "",
            [
                has("session", "The key of the new one", text_of(1, 512)),
                may("snapshot", "Id or name; absent: one that is taken now", or_null(text_of(1, 64))),
            ],
        ))
        .with([once::param()])
        .answers(201, "It was made", named("Session"))),
    ]
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct AskedSnapshot {
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AskedRestore {
    /// `null` must be said: from none is not what somebody means who says nothing.
    #[serde(deserialize_with = "Option::deserialize")]
    snapshot: Option<String>,
    #[serde(default)]
    recreate: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AskedFork {
    session: String,
    #[serde(default)]
    snapshot: Option<String>,
}

async fn list(call: Call) -> Answered {
    let key = call.session()?;
    let snapshots = call.runtime().snapshots(Some(&key)).await?;
    ok(&json!({ "snapshots": snapshots }))
}

async fn take(mut call: Call) -> Answered {
    let key = call.session()?;
    let (asked, body): (AskedSnapshot, _) = call.json_and_bytes().await?;
    let (runtime, by, of) = (call.runtime(), call.caller(), key.clone());
    let work = async move { told_as(&runtime.take_snapshot(&of, asked.name.as_deref(), &by).await?) };
    once::run(&call, &[b"takeSnapshot", key.as_str().as_bytes(), &body], 201, work).await
}

async fn remove(call: Call) -> Answered {
    let key = call.session()?;
    let removed = call.runtime().remove_snapshot(&key, call.part("snapshot")).await?;
    ok(&json!({ "removed": removed }))
}

async fn restore(mut call: Call) -> Answered {
    let key = call.session()?;
    let (asked, body): (AskedRestore, _) = call.json_and_bytes().await?;
    let (runtime, of) = (call.runtime(), key.clone());
    let work = async move {
        let session = runtime.restore_session(&of, asked.snapshot.as_deref(), asked.recreate).await?;
        told_as(&told(&session, None))
    };
    once::run(&call, &[b"restoreSession", key.as_str().as_bytes(), &body], 200, work).await
}

async fn fork(mut call: Call) -> Answered {
    let key = call.session()?;
    let (asked, body): (AskedFork, _) = call.json_and_bytes().await?;
    let new: SessionKey = session_key(&asked.session)?;
    call.see(&new)?;
    let (runtime, who, by, of) = (call.runtime(), call.who.clone(), call.caller(), key.clone());
    let work = async move {
        let from = runtime.existing_session(&of).await?;
        // The new one sets what this one does: whoever makes it must be allowed to set that.
        grants::see(&runtime, &who, set_by(&from)).await?;
        let (session, _) = runtime.fork_session(&from, &new, asked.snapshot.as_deref(), &by).await?;
        told_as(&told(&session, None))
    };
    once::run(&call, &[b"forkSession", key.as_str().as_bytes(), &body], 201, work).await
}

/// An answer as JSON.
fn told_as(answer: &impl Serialize) -> Result<Value, Problem> {
    serde_json::to_value(answer)
        .map_err(|error| failed("answer-failed", "the answer cannot be written").cause(error))
}

fn set_by(session: &Session) -> Asked<'_> {
    let set = &session.overrides;
    Asked {
        enabled: set.sandbox_enabled,
        backend: set.sandbox_backend,
        network: set.network,
        image: set.sandbox_image.as_ref(),
        workspace: set.workspace.as_ref().map(|workspace| &*workspace.source),
    }
}
