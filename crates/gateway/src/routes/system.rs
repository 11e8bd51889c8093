//! The gateway itself: its state, logins, keys, metrics, the document of its API, the page.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use moltis_runtime::store::{KeyScope, Login, NewApiKey, SandboxState, Session, now_millis};
use moltis_sandbox::{Diagnosis, SessionKey};
use serde::Deserialize;
use serde_json::{Value, json};

use super::words;
use crate::assets;
use crate::auth::{LOGIN_MILLIS, cookie, cookie_name};
use crate::call::{Call, json as json_answer, nothing, ok};
use crate::identity::{ADMIN, Who};
use crate::openapi;
use crate::problem::Problem;
use crate::route::{Answered, Bound, Route, Rule};
use crate::schema::{count, has, list, may, named, object, text, text_of, word};
use crate::secrets;
use crate::state::scopes;

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/", "getPage", Rule::OPEN, page).about("Gateway", "The page").answers_in(
            200,
            "It",
            vec![("text/html", text())],
        ),
        Route::new(Method::GET, "/assets/{file}", "getPageFile", Rule::OPEN, file)
            .about("Gateway", "A file of the page")
            .part("file", "Its name, which holds a hash of what is in it", text_of(1, 200))
            .answers_in(
                200,
                "It",
                vec![("text/javascript", text()), ("text/css", text()), ("application/octet-stream", text())],
            ),
        Route::new(Method::GET, "/icon.svg", "getIcon", Rule::OPEN, file)
            .about("Gateway", "The page's icon")
            .fails(&[404])
            .answers_in(200, "It", vec![("image/svg+xml", text())]),
        Route::new(Method::GET, "/healthz", "getHealth", Rule::OPEN, |_| async { plain(200, "ok\n") })
            .about("Gateway", "Whether the gateway answers")
            .answers_in(200, "It does", vec![("text/plain", text())]),
        Route::new(Method::GET, "/readyz", "getReadiness", Rule::OPEN, ready)
            .about(
                "Gateway",
                "Whether it takes requests: not before what ran was taken over, nor while it ends",
            )
            .answers_in(200, "It does", vec![("text/plain", text())]),
        Route::new(Method::GET, "/metrics", "getMetrics", Rule::read(Bound::Never), metrics)
            .about(
                "Gateway",
                "What is counted, in the text form of Prometheus; nothing is labelled by session",
            )
            .answers_in(200, "The counts", vec![("text/plain", text())]),
        Route::new(Method::GET, "/api/v1/openapi.json", "getApi", Rule::OPEN, |_| async {
            ok(openapi::document())
        })
        .about("Gateway", "The document of this API")
        .answers(200, "It", json!({ "type": "object" })),
        Route::new(Method::GET, "/api/v1/status", "getStatus", Rule::read(Bound::Filtered), status)
            .about("Gateway", "What the gateway is and does")
            .runs()
            .answers(200, "Its state", named("Status")),
        Route::new(Method::GET, "/api/v1/me", "getMe", Rule::read(Bound::Filtered), me)
            .about("Gateway", "Who the caller is, and what he may do")
            .answers(200, "The caller", named("Me")),
        Route::new(Method::POST, "/api/v1/login", "login", Rule::OPEN, login)
            .about("Gateway", "Log in with the admin token or an API key: a cookie, and a secret that goes with it")
            .more(
                "Whatever is no plain GET also needs the secret, as the header `X-Moltis-Secret`. A login by a key may do \
                 what the key may, as long as that holds.",
            )
            .json(object("", [has("token", "The admin token, or an API key", text_of(1, 512))]))
            .fails(&[401])
            .answers(
                200,
                "Logged in",
                object(
                    "",
                    [
                        has("secret", "To be sent as `X-Moltis-Secret`", text()),
                        has("expiresMillis", "When the login ends", count()),
                    ],
                ),
            )
            .telling("set-cookie", "The login"),
        Route::new(Method::POST, "/api/v1/logout", "logout", Rule::read(Bound::Filtered), logout)
            .about("Gateway", "End a login")
            .answers_nothing(204, "It has ended"),
        Route::new(Method::POST, "/api/v1/token", "makeToken", Rule::OWNER, token)
            .about("Gateway", "Make another admin token: the one before, and every login, ends")
            .answers(200, "Shown once", object("", [has("token", "", text())])),
        Route::new(Method::GET, "/api/v1/keys", "listKeys", Rule::admin(Bound::Never), keys)
            .about("Keys", "API keys, without what is secret of them")
            .answers(200, "All of them", object("", [has("keys", "", list(named("Key")))])),
        Route::new(Method::POST, "/api/v1/keys", "createKey", Rule::admin(Bound::Never), create)
            .about("Keys", "Make an API key, whose secret is shown once")
            .json(named("NewKey"))
            .fails(&[409])
            .answers(
                201,
                "It was made",
                object(
                    "",
                    [
                        has("key", "To be sent as `Authorization: Bearer`", text()),
                        has("info", "", named("Key")),
                    ],
                ),
            ),
        Route::new(Method::DELETE, "/api/v1/keys/{name}", "revokeKey", Rule::admin(Bound::Never), revoke)
            .about("Keys", "Revoke an API key, at once")
            .part("name", "Its name", text_of(1, 64))
            .answers_nothing(204, "It holds no more"),
    ]
}

async fn page(call: Call) -> Answered {
    Ok(assets::page(&call.parts.headers))
}

async fn file(call: Call) -> Answered {
    assets::file(call.parts.uri.path(), &call.parts.headers)
}

fn plain(status: u16, text: impl Into<Body>) -> Answered {
    let mut response = Response::new(text.into());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}

async fn ready(call: Call) -> Answered {
    let not = |code, message: &str| {
        let told = Diagnosis::new(code, message).fix("ask again");
        Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", told))
    };
    if *call.state.ending.borrow() {
        return not("gateway-ending", "the gateway is about to end");
    }
    if !*call.state.ready.borrow() {
        return not("gateway-starting", "the gateway takes over what runs");
    }
    plain(200, "ready\n")
}

async fn metrics(call: Call) -> Answered {
    let gauges = call.state.gauges().await;
    let mut answered = plain(200, call.state.metrics.text(&gauges))?;
    answered
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    Ok(answered)
}

async fn status(call: Call) -> Answered {
    let state = &call.state;
    let runtime = call.runtime();
    let config = runtime.config();
    let (running, unkept) = running(&call).await?;
    let mut told = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "startedMillis": state.started_millis,
        "ready": *state.ready.borrow(),
        "ending": *state.ending.borrow(),
        "encrypted": state.encrypted,
        "network": config.tools.exec.sandbox.network.value,
        "failedOver": runtime.failed_over(),
        "pool": runtime.pool_status(),
        "requestsRunning": state.metrics.running(),
        "sandboxesRunning": running,
        "notEnforced": [],
        "runningNotEnforced": unkept,
    });
    if let Some(next) = state.next().await {
        told["notEnforced"] = json!(next.not_enforced);
        if let Some(backend) = next.backend {
            told["backend"] = json!(backend);
        }
    }
    if call.who.sessions().is_none() {
        told["warnings"] = json!(state.warnings());
        if let Some(adopted) = state.adopted() {
            told["adopted"] = json!({
                "running": adopted.running, "silent": adopted.silent, "lost": adopted.lost,
                "removed": adopted.pruned.removed.len(),
            });
        }
    }
    ok(&told)
}

/// How many sandboxes run, and what is not enforced in them: each once, with how many sessions lack it. By what was
/// written down when they were opened.
async fn running(call: &Call) -> Result<(usize, Vec<Value>), Problem> {
    let stored = call.runtime().store().run(|db| db.sandboxes()).await?;
    Ok(lacking(stored.iter().filter(|session| call.who.sees(&session.key))))
}

fn lacking<'a>(stored: impl Iterator<Item = &'a Session>) -> (usize, Vec<Value>) {
    let mut running = 0;
    let mut lacked: BTreeMap<_, (&str, &SessionKey, usize)> = BTreeMap::new();
    for session in stored {
        let Some(row) = session.sandbox.as_ref().filter(|row| row.state == SandboxState::Running) else {
            continue;
        };
        running += 1;
        for one in &row.judged.not_enforced {
            let place = (row.backend, one.key.as_str());
            lacked.entry(place).or_insert((&one.reason, &session.key, 0)).2 += 1;
        }
    }
    let told = lacked.into_iter().map(|((backend, key), (reason, session, sessions))| {
        json!({ "backend": backend, "key": key, "reason": reason, "session": session, "sessions": sessions })
    });
    (running, told.collect())
}

async fn me(call: Call) -> Answered {
    let kind = match call.who.who() {
        Who::Owner { .. } => "owner",
        Who::Admin => "admin",
        Who::Key { .. } | Who::Nobody => "key",
    };
    let mut told = json!({ "kind": kind, "scope": call.who.scope() });
    if let Who::Key { name } = call.who.who() {
        told["name"] = name.as_str().into();
    }
    if let Some(sessions) = call.who.sessions() {
        told["sessions"] = json!(sessions);
    }
    ok(&told)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Token {
    token: moltis_runtime::store::EnvValue,
}

async fn login(mut call: Call) -> Answered {
    let Token { token } = call.json().await?;
    let from = "login";
    call.state.failures.see(from)?;
    let (hash, runtime, now) = (secrets::hash(token.expose()), call.runtime(), now_millis());
    // The hash of the key, none for the token.
    let found = runtime.store().run(move |db| {
        if db.admin_token()?.is_some_and(|own| own == hash) {
            return Ok(Some(None));
        }
        Ok(db.key_of(&hash, now)?.map(|_| Some(hash)))
    });
    let Some(key_hash) = found.await? else {
        // Counted for all together: nobody can try tokens from many addresses.
        let _ = call.state.failures.take(from);
        call.state.metrics.refused();
        let told = Diagnosis::new("token-wrong", "this is neither the admin token nor an API key that holds")
            .fix("`moltis gateway token` on the gateway's machine makes another token");
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "refused", told));
    };
    let (cookie, secret) = (secrets::draw("ml_")?, secrets::draw("ms_")?);
    let login = Login {
        hash: secrets::hash(&cookie),
        secret_hash: secrets::hash(&secret),
        expires_millis: now + LOGIN_MILLIS,
        key_hash,
    };
    let expires = login.expires_millis;
    runtime.store().run(move |db| db.add_login(&login, now)).await?;
    let mut answered = ok(&json!({ "secret": secret, "expiresMillis": expires }))?;
    put_cookie(&mut answered, &call, &cookie, LOGIN_MILLIS / 1000);
    Ok(answered)
}

fn put_cookie(response: &mut Response, call: &Call, value: &str, seconds: u64) {
    let name = cookie_name(call.state.port);
    // A proxy in front of us speaks TLS for us, and says so.
    let forwarded = call.header("x-forwarded-proto") == Some("https");
    let secure = if call.state.encrypted || forwarded { "; Secure" } else { "" };
    let cookie = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
}

async fn logout(call: Call) -> Answered {
    if let Some(value) = cookie(&call.parts.headers, call.state.port) {
        let hash = secrets::hash(&value);
        call.runtime().store().run(move |db| db.end_login(&hash)).await?;
    }
    let mut answered = nothing()?;
    put_cookie(&mut answered, &call, "", 0);
    Ok(answered)
}

async fn token(call: Call) -> Answered {
    let token = secrets::draw(secrets::TOKEN)?;
    let hash = secrets::hash(&token);
    call.runtime().store().run(move |db| db.set_admin_token(&hash)).await?;
    ok(&json!({ "token": token }))
}

async fn keys(call: Call) -> Answered {
    let keys = call.runtime().store().run(|db| db.keys()).await?;
    ok(&json!({ "keys": keys }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewKey {
    name: String,
    scope: KeyScope,
    #[serde(default)]
    sessions: Option<Vec<String>>,
    #[serde(default)]
    expires_secs: Option<u64>,
}

/// Longest time that a key is given, in seconds: ten years.
pub const MAX_EXPIRES: u64 = 10 * 365 * 24 * 3600;

/// Sees that a key could be made so.
///
/// # Errors
/// `key-name-invalid`, `key-sessions-invalid`, `value-out-of-range`.
pub fn new_key(
    name: String,
    scope: KeyScope,
    sessions: Option<Vec<String>>,
    expires_secs: Option<u64>,
) -> Result<NewApiKey, Problem> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) || name == ADMIN {
        return Err(Problem::invalid("key-name-invalid", format!("{name:?} is no name of a key"))
            .fix("use 1 to 64 letters, digits, `-`, `_` and `.`, and not `admin`"));
    }
    if let Some(patterns) = &sessions {
        let wrong = |pattern: &String| SessionKey::new(pattern.as_str()).is_none();
        if patterns.is_empty() || patterns.len() > 64 || patterns.iter().any(wrong) {
            return Err(Problem::invalid("key-sessions-invalid", "the patterns of sessions cannot be right")
                .fix("use 1 to 64 patterns of 1 to 512 bytes, in which `*` stands for any text; none: every session"));
        }
        if scope == KeyScope::Admin {
            return Err(Problem::invalid(
                "key-sessions-invalid",
                "a key with `operator.admin` cannot be bound",
            )
            .fix("give it another scope, or bind it to nothing"));
        }
    }
    if expires_secs.is_some_and(|seconds| !(1..=MAX_EXPIRES).contains(&seconds)) {
        return Err(Problem::invalid("value-out-of-range", "`expiresSecs` is out of range")
            .fix(format!("use 1 to {MAX_EXPIRES}")));
    }
    let expires_millis = expires_secs.map(|seconds| now_millis() + seconds * 1000);
    Ok(NewApiKey { name, scope, sessions, expires_millis })
}

async fn create(mut call: Call) -> Answered {
    let NewKey { name, scope, sessions, expires_secs } = call.json().await?;
    let new = new_key(name, scope, sessions, expires_secs)?;
    let key = secrets::draw(secrets::KEY)?;
    let hash = secrets::hash(&key);
    let made = call.runtime().store().run(move |db| db.create_key(&new, &hash, now_millis())).await?;
    json_answer(201, &json!({ "key": key, "info": made }))
}

async fn revoke(call: Call) -> Answered {
    let name = call.part("name").to_owned();
    let wanted = name.clone();
    match call.runtime().store().run(move |db| db.revoke_key(&wanted)).await? {
        Some(_) => nothing(),
        None => Err(Problem::missing("key-missing", format!("there is no key {name:?}"))
            .fix("GET /api/v1/keys lists those that there are")),
    }
}

/// A new key as a request asks for it.
pub fn new_key_schema() -> Value {
    object(
        "An API key that is to be made",
        [
            has("name", "1 to 64 letters, digits, `-`, `_` and `.`", text_of(1, 64)),
            has("scope", "What it may do", word(&scopes())),
            may(
                "sessions",
                "Patterns of the sessions that it sees, in which `*` stands for any text; absent: every session",
                crate::schema::or_null(json!({
                    "type": "array", "items": words::session(), "minItems": 1, "maxItems": 64
                })),
            ),
            may(
                "expiresSecs",
                "Seconds until it is refused",
                crate::schema::or_null(crate::schema::number(1, MAX_EXPIRES as i64)),
            ),
        ],
    )
}
