//! Sessions: listed, looked at, made, changed, forgotten; what they ran.

use std::collections::HashMap;

use axum::http::Method;
use moltis_config::value::number::write_duration;
use moltis_config::words::Words as _;
use moltis_runtime::json::Remembered;
use moltis_runtime::store::{
    HistoryCursor, KeyScope, Patch, SandboxState, Session, SessionOverrides, SessionPatch, StoredSandbox,
};
use moltis_runtime::{ExplainRequest, Explained, Explanation, Runtime, SandboxInfo, Stopped};
use moltis_sandbox::{DomainPattern, Origin, SessionKey, Setting};
use serde_json::{Map, Value, json};

use super::words;
use crate::ask::AskedSettings;
use crate::call::{Call, json as json_answer, ok, session_key};
use crate::grants::{self, Asked};
use crate::problem::Problem;
use crate::route::{Answered, Bound, Route, Rule, query};
use crate::schema::{count, flag, has, list as list_of, may, named, object, text, text_of};

/// Sessions whose state is looked up for one page at most; the others say what is written down.
const LOOKED_UP: usize = 200;

/// The routes.
pub fn routes() -> Vec<Route> {
    let of = |route: Route| route.part("session", words::SESSION, words::session()).runs();
    vec![
        Route::new(Method::GET, "/api/v1/sessions", "listSessions", Rule::read(Bound::Filtered), list)
            .about("Sessions", "Sessions in the order of their keys")
            .with(words::page())
            .with([query(
                "contains",
                "Those whose keys hold this text, in letters of any case",
                text_of(1, 512),
            )])
            .runs()
            .answers(
                200,
                "A page of them",
                object(
                    "",
                    [
                        has("sessions", "", list_of(named("Session"))),
                        may("next", "The cursor of the next page, if there is one", text()),
                    ],
                ),
            ),
        of(Route::new(
            Method::GET,
            "/api/v1/sessions/{session}",
            "getSession",
            Rule::read(Bound::Session),
            show,
        ))
        .about("Sessions", "One session, its sandbox, and what would become of its next command")
        .answers(200, "The session", named("SessionDetails")),
        of(Route::new(
            Method::PUT,
            "/api/v1/sessions/{session}",
            "createSession",
            Rule::write(Bound::Session),
            create,
        ))
        .about("Sessions", "Make a session; one that is there must agree with what is asked for")
        .json(named("Settings"))
        .or_nothing()
        .answers(200, "It was there", named("Session"))
        .answers(201, "It was made", named("Session")),
        of(Route::new(
            Method::PATCH,
            "/api/v1/sessions/{session}",
            "changeSession",
            Rule::write(Bound::Session),
            change,
        ))
        .about("Sessions", "Change what a session sets: what is absent stays, `null` clears")
        .more("A sandbox that runs stays as it is until the next command; what it may reach holds at once.")
        .json(named("SessionPatch"))
        .answers(200, "It was changed", named("Session"))
        .answers(201, "It was made", named("Session")),
        of(Route::new(
            Method::DELETE,
            "/api/v1/sessions/{session}",
            "removeSession",
            Rule::write(Bound::Session),
            remove,
        ))
        .about("Sessions", "Forget a session, after its sandbox was ended with all that runs in it")
        .with([query(
            "purge",
            "Remove its home and its snapshots too; those that others begin from stay",
            flag(),
        )])
        .answers(
            200,
            "It is gone",
            object(
                "",
                [
                    has("homeRemoved", "Whether a home of its own went with it", flag()),
                    has("snapshotsRemoved", "How many snapshots went with it", count()),
                ],
            ),
        ),
        of(Route::new(
            Method::POST,
            "/api/v1/sessions/{session}/stop",
            "stopSession",
            Rule::write(Bound::Session),
            stop,
        ))
        .about("Sessions", "End its sandbox with all that runs in it; the session and its home stay")
        .answers(200, "None runs any more", object("", [has("ended", "Whether one ran", flag())])),
        of(Route::new(
            Method::GET,
            "/api/v1/sessions/{session}/history",
            "getHistory",
            Rule::read(Bound::Session),
            history,
        ))
        .about("Sessions", "What the session ran, newest first")
        .with(words::page())
        .with([query("output", "With the beginning and the end of what was printed", flag())])
        .answers(
            200,
            "A page of it",
            object(
                "",
                [
                    has("commands", "", list_of(named("HistoryEntry"))),
                    may("next", "The cursor of the next page, if there is one", text()),
                ],
            ),
        ),
    ]
}

/// A session as it is told: what is stored, and what there is of its sandbox.
pub fn told(session: &Session, sandbox: Option<&SandboxInfo>) -> Map<String, Value> {
    let mut fields = match json!(session) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let state = match (&session.sandbox, sandbox) {
        (None, _) => "none",
        (Some(StoredSandbox { state: SandboxState::Opening, .. }), _) => "opening",
        (Some(StoredSandbox { state: SandboxState::Closing, .. }), _) => "closing",
        (Some(_), Some(info)) if !info.running => "gone",
        (Some(_), _) => "running",
    };
    fields.insert("state".to_owned(), state.into());
    if let Some(row) = &session.sandbox {
        fields.insert("backend".to_owned(), json!(row.backend));
    }
    if let Some(info) = sandbox {
        fields.insert("sandbox".to_owned(), json!(info));
    }
    fields
}

async fn list(call: Call) -> Answered {
    let most = usize::try_from(call.number("limit").unwrap_or(words::SHOWN)).unwrap_or(usize::MAX);
    let mut after = call.query("cursor").map(session_key).transpose()?;
    let contains = call.query("contains").map(str::to_lowercase);
    let wanted = |key: &SessionKey| {
        call.who.sees(key) && contains.as_ref().is_none_or(|text| key.as_str().to_lowercase().contains(text))
    };
    let runtime = call.runtime();
    let (mut found, mut next) = (Vec::new(), None);
    'pages: loop {
        let page = runtime.sessions(after.as_ref()).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.key.clone());
        for session in page.into_iter().filter(|session| wanted(&session.key)) {
            if found.len() == most {
                next = found.last().map(|session: &Session| session.key.clone());
                break 'pages;
            }
            found.push(session);
        }
    }
    let sandboxes = if found.len() <= LOOKED_UP { by_session(&runtime).await? } else { HashMap::new() };
    let sessions: Vec<_> = found.iter().map(|session| told(session, sandboxes.get(&session.key))).collect();
    let mut answer = json!({ "sessions": sessions });
    if let Some(next) = next {
        answer["next"] = json!(next);
    }
    ok(&answer)
}

async fn by_session(runtime: &Runtime) -> Result<HashMap<SessionKey, SandboxInfo>, Problem> {
    let all = runtime.sandboxes().await?;
    Ok(all.into_iter().filter_map(|info| Some((info.session.clone()?, info))).collect())
}

async fn show(call: Call) -> Answered {
    let key = call.session()?;
    let runtime = call.runtime();
    let session = runtime.existing_session(&key).await?;
    let sandbox = by_session(&runtime).await?.remove(&key);
    let remembered = runtime.remembered(&session).await?;
    let next = runtime.explain(&ExplainRequest { session: Some(key), ..Default::default() }).await?;
    let mut fields = told(&session, sandbox.as_ref());
    fields.insert("commandsRemembered".to_owned(), remembered.into());
    // What it says of the host, such as folders, is for whoever runs it.
    fields.insert("fate".to_owned(), json!(next.sandbox));
    fields.insert("because".to_owned(), next.because.into());
    let plain = if session.overrides == SessionOverrides::default() {
        None
    } else {
        Some(runtime.explain(&ExplainRequest::default()).await?)
    };
    let admin = call.who.has(KeyScope::Admin);
    fields.insert(
        "settings".to_owned(),
        settings(&runtime, &session, &next.settings, plain.as_ref(), admin).into(),
    );
    let mounts = next.mounts.iter().map(|mount| {
        let mut told = json!({ "target": mount.target, "mode": mount.mode });
        if admin {
            told["source"] = mount.source.display().to_string().into();
        }
        told
    });
    fields.insert("mounts".to_owned(), mounts.collect());
    fields.insert("notEnforced".to_owned(), json!(next.not_enforced));
    fields.insert("notes".to_owned(), json!(next.notes));
    if let Some(error) = next.refusal {
        fields.insert("refusal".to_owned(), Problem::from(error).document());
    }
    ok(&fields)
}

/// Keys whose values name folders of the host.
const HOST_PATHS: [&str; 3] = ["workspace", "mounts", "rootfs"];

/// What a session's sandbox is to be, beside what it would be if the session set nothing.
fn settings(
    runtime: &Runtime,
    session: &Session,
    all: &[Explained],
    plain: Option<&Explanation>,
    admin: bool,
) -> Vec<Value> {
    let sandbox = &runtime.config().tools.exec.sandbox;
    let listed = |patterns: &[DomainPattern]| {
        let all: Vec<_> = patterns.iter().map(ToString::to_string).collect();
        (!all.is_empty()).then(|| all.join(", "))
    };
    // What is not in the answer about a sandbox of its own, or is another there.
    let of_config = |key: &str| match key {
        "sandboxEnabled" => Some(Some((sandbox.mode.value.word() != "off").to_string())),
        "idle_ttl" => Some(Some(write_duration(sandbox.idle_ttl.value))),
        "trusted_domains" => Some(listed(&sandbox.trusted_domains.value)),
        "denied_domains" => Some(listed(&sandbox.denied_domains.value)),
        "on_unknown" => Some(Some(sandbox.on_unknown.value.word().to_owned())),
        "wasm_fuel_limit" => Some(Some(sandbox.wasm_fuel_limit.value.to_string())),
        _ => None,
    };
    let configured = |setting: &Explained| match (of_config(setting.key), plain) {
        (Some(value), _) => value,
        (None, Some(plain)) if !setting.key.starts_with("home_") => {
            plain.settings.iter().find(|other| other.key == setting.key).and_then(|o| o.value.clone())
        }
        (None, _) => setting.value.clone(),
    };
    let told = |setting: &Explained| {
        let mut told = json!(setting);
        if let Some(configured) = configured(setting) {
            told["configured"] = configured.into();
        }
        told
    };
    let mut all: Vec<Explained> =
        all.iter().filter(|setting| admin || !HOST_PATHS.contains(&setting.key)).cloned().collect();
    // Without the network `trusted`, or elsewhere than on `wasm`, they are of no effect, and set all the same.
    let overrides = &session.overrides;
    let origin = |is_own: bool, configured| if is_own { Origin::Session } else { configured };
    let domains =
        |key, own: &Option<Vec<DomainPattern>>, configured: &Setting<Vec<DomainPattern>>| Explained {
            key,
            value: listed(own.as_ref().unwrap_or(&configured.value)),
            origin: origin(own.is_some(), configured.origin),
        };
    let (own, fuel) = (overrides.on_unknown, overrides.wasm_fuel_limit);
    for setting in [
        domains("trusted_domains", &overrides.trusted_domains, &sandbox.trusted_domains),
        domains("denied_domains", &overrides.denied_domains, &sandbox.denied_domains),
        Explained {
            key: "on_unknown",
            value: Some(own.unwrap_or(sandbox.on_unknown.value).word().to_owned()),
            origin: origin(own.is_some(), sandbox.on_unknown.origin),
        },
        Explained {
            key: "wasm_fuel_limit",
            value: Some(fuel.unwrap_or(sandbox.wasm_fuel_limit.value).to_string()),
            origin: origin(fuel.is_some(), sandbox.wasm_fuel_limit.origin),
        },
    ] {
        if !all.iter().any(|there| there.key == setting.key) {
            all.push(setting);
        }
    }
    all.iter().map(told).collect()
}

async fn create(mut call: Call) -> Answered {
    let key = call.session()?;
    let asked: AskedSettings = call.json().await?;
    let runtime = call.runtime();
    let settings = asked.overrides(&runtime, &call.who).await?;
    let (session, made) = runtime.create_session(&key, &settings, &call.caller()).await?;
    json_answer(if made { 201 } else { 200 }, &told(&session, None))
}

fn set<T>(patch: &Patch<T>) -> Option<&T> {
    match patch {
        Patch::Set(value) => Some(value),
        Patch::Keep | Patch::Clear => None,
    }
}

async fn change(mut call: Call) -> Answered {
    let key = call.session()?;
    let patch: SessionPatch = call.json().await?;
    let runtime = call.runtime();
    let asked = Asked {
        enabled: set(&patch.sandbox_enabled).copied(),
        backend: set(&patch.sandbox_backend).copied(),
        network: set(&patch.network).copied(),
        image: set(&patch.sandbox_image),
        workspace: set(&patch.workspace).map(|workspace| &*workspace.source),
    };
    grants::see(&runtime, &call.who, asked).await?;
    let (session, made) = runtime.set_session(&key, patch, &call.caller()).await?;
    json_answer(if made { 201 } else { 200 }, &told(&session, None))
}

async fn remove(call: Call) -> Answered {
    let removed = call.runtime().remove_session(&call.session()?, call.says("purge")).await?;
    ok(&json!({ "homeRemoved": removed.home, "snapshotsRemoved": removed.snapshots }))
}

async fn stop(call: Call) -> Answered {
    let stopped = call.runtime().stop_sandbox(&call.session()?).await?;
    ok(&json!({ "ended": stopped == Stopped::Ended }))
}

async fn history(call: Call) -> Answered {
    let key = call.session()?;
    let before = match call.query("cursor") {
        Some(text) => Some(HistoryCursor(text.parse().map_err(|_| {
            Problem::invalid("param-invalid", "`cursor` cannot be right").fix("use `next` of the page before")
        })?)),
        None => None,
    };
    let most = usize::try_from(call.number("limit").unwrap_or(words::SHOWN)).unwrap_or(usize::MAX);
    let page = call.runtime().history(&key, before, most).await?;
    let output = call.says("output");
    let commands: Vec<_> = page.entries.iter().map(|entry| Remembered::new(entry, output)).collect();
    let mut answer = json!({ "commands": commands });
    if let Some(next) = page.next {
        answer["next"] = next.0.to_string().into();
    }
    ok(&answer)
}
