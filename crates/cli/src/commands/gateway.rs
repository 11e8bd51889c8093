//! `moltis gateway`: the HTTP server, its token and its keys.

use std::io::IsTerminal;
use std::net::IpAddr;
use std::time::Duration;

use moltis_config::value::text::Address;
use moltis_config::value::{Context, Text};
use moltis_gateway::log::{Filter, Log};
use moltis_gateway::routes::system::{MAX_EXPIRES, new_key};
use moltis_gateway::{Banner, Options, Token, secrets, server};
use moltis_runtime::Runtime;
use moltis_runtime::store::{ApiKey, KeyScope, now_millis};
use moltis_sandbox::{Diagnosis, Error};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{self, GatewayCommand, Global, Key};
use crate::failure::Failure;
use crate::flags::flag;
use crate::signals::Signals;
use crate::{output, render};

/// Longest time that requests are given to end.
const MAX_DEADLINE: Duration = Duration::from_secs(3600);

/// Runs it, or what is about it; gives the exit status.
pub async fn run(global: &Global, args: args::Gateway) -> Result<i32, Failure> {
    match &args.command {
        None => serve(global, &args).await,
        Some(GatewayCommand::Token(token)) => another_token(&super::runtime(global)?, token.json).await,
        Some(GatewayCommand::Key(key)) => {
            let runtime = super::runtime(global)?;
            match key {
                Key::Create(args) => create(&runtime, args).await,
                Key::List(args) => list(&runtime, args.json).await,
                Key::Revoke(args) => revoke(&runtime, args).await,
            }
        }
    }
}

async fn serve(global: &Global, args: &args::Gateway) -> Result<i32, Failure> {
    let bind: Option<IpAddr> =
        flag("--bind", args.bind.as_deref(), |text| Address::parse(text, &Context::default()))?;
    let deadline = flag("--deadline", args.deadline.as_deref(), moltis_config::parse_duration)?;
    if deadline.is_some_and(|deadline| deadline > MAX_DEADLINE) {
        let told = Diagnosis::new("config-out-of-range", "--deadline: that is too long");
        return Err(Failure::usage(told.fix("use a time from 1s to 1h")));
    }
    let options = Options {
        load: super::options(global),
        bind,
        port: args.port,
        allow_unencrypted: args.allow_unencrypted,
        deadline,
        mounts: Vec::new(),
    };
    let loaded = super::load(&options.load)?;
    Log::begin(Filter::read(&loaded.config.gateway.log.value));
    // Caught before anything starts, so that none can leave it half-way.
    let mut signals = Signals::catch_but_hangup().map_err(Failure::runtime)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(Failure::runtime)?;
    let on_terminal = !args.json && std::io::stdout().is_terminal();
    let running = tokio::select! {
        running = moltis_gateway::start(options, on_terminal) => running?,
        number = signals.next() => return Ok(128 + number),
    };
    let printed = if args.json {
        output::print_json(&told(running.banner()))?
    } else {
        output::print(&banner(running.banner()))?
    };
    // Whoever started it may have closed its output, and wants it to run still.
    let _ = printed;
    loop {
        tokio::select! {
            _ = signals.next() => break,
            _ = hangup.recv() => running.reload().await,
        }
    }
    crate::say!("moltis: ending; sandboxes go on");
    let ending = running.end();
    let untold = tokio::select! {
        untold = ending => untold,
        // A second signal does not wait.
        number = signals.next() => return Ok(128 + number),
    };
    if let Some(untold) = untold {
        render::warning(&untold);
    }
    Ok(0)
}

/// What is said at the start, for people.
fn banner(banner: &Banner) -> String {
    let mut text = format!("moltis {}\n", env!("CARGO_PKG_VERSION"));
    let backend = banner.backend.map_or("no".to_owned(), |backend| backend.to_string());
    text.push_str(&format!("sandbox: {backend} backend\n"));
    for warning in &banner.warnings {
        let fix = warning.fix.as_ref().map(|fix| format!(" ({fix})")).unwrap_or_default();
        text.push_str(&format!("warning: {}\n", render::one_line(&format!("{warning}{fix}"))));
    }
    text.push_str(&format!("listening on {}\n", banner.url));
    text.push_str(&format!("private socket: {}\n", render::name(&banner.socket.to_string_lossy())));
    text.push_str(&match &banner.token {
        Token::Shown(token) => format!("log in with the admin token: {token}\n"),
        Token::Written(place) => {
            format!("log in with the admin token in {}\n", render::name(&place.to_string_lossy()))
        }
        Token::Known => "log in with the admin token; `moltis gateway token` makes another one\n".to_owned(),
    });
    text
}

/// The same for programs. The token is for people.
fn told(banner: &Banner) -> serde_json::Map<String, serde_json::Value> {
    let token = match &banner.token {
        Token::Written(place) => Some(place),
        Token::Shown(_) | Token::Known => None,
    };
    output::present(json!({
        "url": banner.url,
        "address": banner.address,
        "socket": banner.socket,
        "backend": banner.backend,
        "warnings": banner.warnings,
        "tokenFile": token,
        "pid": std::process::id(),
    }))
}

async fn another_token(runtime: &Runtime, json: bool) -> Result<i32, Failure> {
    let token = secrets::draw(secrets::TOKEN).map_err(Error::from)?;
    let hash = secrets::hash(&token);
    runtime.store().run(move |db| db.set_admin_token(&hash)).await.map_err(Error::from)?;
    // One that stands in a file is over.
    let _ = std::fs::remove_file(runtime.config().data_dir.value.join(server::TOKEN_FILE));
    if json {
        return output::print_json(&json!({ "token": token }));
    }
    output::print(&format!("{token}\n"))
}

async fn create(runtime: &Runtime, args: &args::CreateKey) -> Result<i32, Failure> {
    let scope = KeyScope::ALL.into_iter().find(|scope| scope.as_str() == args.scope);
    let scope = scope.unwrap_or(KeyScope::Write);
    let mut patterns = Vec::new();
    for pattern in &args.session {
        patterns.push(pattern.to_string_lossy().into_owned());
    }
    let expires = flag("--expires", args.expires.as_deref(), moltis_config::parse_duration)?;
    let expires = expires.map(|time| time.as_secs().clamp(1, MAX_EXPIRES));
    let patterns = (!patterns.is_empty()).then_some(patterns);
    let new = new_key(args.name.clone(), scope, patterns, expires)
        .map_err(|problem| Failure::usage(problem.into_diagnosis()))?;
    let key = secrets::draw(secrets::KEY).map_err(Error::from)?;
    let hash = secrets::hash(&key);
    let made = runtime.store().run(move |db| db.create_key(&new, &hash, now_millis())).await;
    let made = made.map_err(Error::from)?;
    if args.json {
        return output::print_json(&json!({ "secret": key, "info": made }));
    }
    output::print(&format!("{key}\n"))
}

async fn list(runtime: &Runtime, json: bool) -> Result<i32, Failure> {
    let keys = runtime.store().run(|db| db.keys()).await.map_err(Error::from)?;
    if json {
        return output::print_json(&json!({ "keys": keys }));
    }
    if keys.is_empty() {
        return output::print("There are no API keys. `moltis gateway key create NAME` makes one.\n");
    }
    let mut rows = vec![["NAME", "SCOPE", "SESSIONS", "MADE", "USED", "ENDS"].map(str::to_owned).to_vec()];
    rows.extend(keys.iter().map(row));
    output::print(&render::table(&rows))
}

fn row(key: &ApiKey) -> Vec<String> {
    let sessions = key.sessions.as_ref().map_or("all".to_owned(), |patterns| {
        patterns.iter().map(|pattern| render::name(pattern)).collect::<Vec<_>>().join(" ")
    });
    let ends = key.expires_millis.map_or("-".to_owned(), |at| {
        moltis_runtime::time::short(i64::try_from(at / 1000).unwrap_or(i64::MAX))
    });
    vec![
        render::name(&key.name),
        key.scope.as_str().to_owned(),
        sessions,
        render::age(key.created_millis),
        key.last_used_millis.map_or("-".to_owned(), render::age),
        ends,
    ]
}

async fn revoke(runtime: &Runtime, args: &args::RevokeKeys) -> Result<i32, Failure> {
    let known = runtime.store().run(|db| db.keys()).await.map_err(Error::from)?;
    // A name that is wrong leaves the others as they are.
    for name in &args.names {
        if !known.iter().any(|key| key.name == *name) {
            return Err(Failure::invalid(
                Diagnosis::new("key-missing", format!("there is no API key {name:?}"))
                    .fix("`moltis gateway key list` names those that there are"),
            ));
        }
    }
    for name in args.names.clone() {
        runtime.store().run(move |db| db.revoke_key(&name)).await.map_err(Error::from)?;
    }
    if args.json {
        return output::print_json(&json!({ "revoked": args.names }));
    }
    let lines: String = args.names.iter().map(|name| format!("revoked {}\n", render::name(name))).collect();
    output::print(&lines)
}
