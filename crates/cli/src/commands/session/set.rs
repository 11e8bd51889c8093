//! `moltis session set`.

use std::collections::BTreeMap;

use moltis_config::value::domain::Domain;
use moltis_config::value::{Context, Text};
use moltis_config::words::{OnUnknown, Words};
use moltis_config::{parse_duration, parse_fuel, suggest, unused};
use moltis_runtime::explain::Fate;
use moltis_runtime::store::{Caller, EnvValue, LimitPatch, Patch, Session, SessionPatch, StoredWorkspace};
use moltis_runtime::{ExplainRequest, Explanation, Runtime};
use moltis_sandbox::{Diagnosis, DomainPattern, Error};
use serde_json::json;

use super::list;
use crate::args;
use crate::failure::Failure;
use crate::{environment, flags, output, render};

/// Runs it; gives the exit status.
pub async fn run(runtime: &Runtime, args: &args::Set) -> Result<i32, Failure> {
    let key = flags::session_key(&args.key)?;
    let patch = patch(args)?;
    let before = runtime.session(&key).await?;
    let (after, made) = runtime.set_session(&key, patch, &Caller::this_user()).await.map_err(refused)?;
    let next = runtime.explain(&ExplainRequest { session: Some(key.clone()), ..Default::default() }).await?;
    let warnings = without_use(args);
    if args.json {
        let all = runtime.sandboxes().await?;
        let sandbox = all.iter().find(|info| info.session.as_ref() == Some(&key));
        let refusal = next.refusal.as_ref();
        let mut told = list::told(&after, sandbox);
        told.extend(output::present(json!({
            "made": made,
            "fate": next.sandbox,
            "refusal": refusal.map(|e| json!({ "kind": e.kind(), "error": e.diagnosis() })),
            "warnings": warnings,
        })));
        return output::print_json(&told);
    }
    warnings.iter().for_each(render::warning);
    let name = render::name(key.as_str());
    let what = match &before {
        _ if made => format!("made the session {name}"),
        // A value of a variable may have changed, and is not shown.
        Some(before) if same(before, &after) && args.env.is_empty() && args.env_file.is_empty() => {
            format!("the session {name} is as it was")
        }
        _ => format!("changed the session {name}"),
    };
    output::print(&format!(
        "{what}; {}\n",
        effect(&next, before.is_some_and(|before| reaches_otherwise(&before, &after)))
    ))
}

/// Whether what it may reach is what changed.
fn reaches_otherwise(before: &Session, after: &Session) -> bool {
    let reach = |session: &Session| {
        let set = &session.overrides;
        (set.network, set.trusted_domains.clone(), set.denied_domains.clone(), set.on_unknown)
    };
    reach(before) != reach(after)
}

/// What was set and does nothing in this version.
fn without_use(args: &args::Set) -> Vec<Diagnosis> {
    [("--wasm-fuel-limit", "wasm_fuel_limit", args.wasm_fuel_limit.is_some())]
        .into_iter()
        .filter(|(_, key, is_set)| *is_set && !unused::is_used(&format!("tools.exec.sandbox.{key}")))
        .map(|(flag, ..)| unused::warning(flag))
        .collect()
}

/// A value that cannot be right is one of the command line.
fn refused(error: Error) -> Failure {
    let is_value = error.code() == "override-invalid";
    let failure = Failure::from(error);
    if is_value { failure.of_usage() } else { failure }
}

fn same(before: &Session, after: &Session) -> bool {
    (&before.overrides, &before.env) == (&after.overrides, &after.env)
}

/// When the change takes effect.
fn effect(next: &Explanation, is_of_network: bool) -> String {
    if let Some(error) = &next.refusal {
        let message = render::one_line(&error.diagnosis().message);
        return match error.code() {
            "sandbox-busy" => {
                "its sandbox is in use and stays as it was: commands are refused until what runs in it has ended, or \
                 `exec --recreate` ends it"
                    .to_owned()
            }
            code => format!("as things are, its next command would be refused: {message} [{code}]"),
        };
    }
    match next.sandbox {
        Fate::New => "it holds from the next command on".to_owned(),
        Fate::Used if is_of_network => "its sandbox stays; what it may reach holds at once".to_owned(),
        Fate::Used => "its sandbox stays, and it holds from the next command on".to_owned(),
        Fate::MadeAnew => {
            "its sandbox stays as it was until the next command, which makes it anew".to_owned()
        }
    }
}

/// What can be unset. `env.NAME` too.
const NAMES: [&str; 14] = [
    "backend",
    "network",
    "image",
    "workspace",
    "memory",
    "cpus",
    "pids",
    "env",
    "sandbox",
    "idle-ttl",
    "trusted-domains",
    "denied-domains",
    "on-unknown",
    "wasm-fuel-limit",
];

/// The change that the flags ask for.
fn patch(args: &args::Set) -> Result<SessionPatch, Failure> {
    let asked = flags::overrides(&args.flags)?;
    let domains = |flag: &str, words: &[String]| -> Result<Option<Vec<DomainPattern>>, Failure> {
        let parse = |word: &String| Domain::parse(word, &Context::default());
        let list = words.iter().map(parse).collect::<Result<Vec<_>, _>>();
        let list = list.map_err(|error| Failure::usage(error.diagnosis(flag)))?;
        Ok((!list.is_empty()).then_some(list))
    };
    let env = variables(args)?;
    let mut unset = Unset::read(&args.unset)?;
    let limits = LimitPatch {
        memory: unset.or("memory", asked.memory.map(|s| s.value))?,
        cpus: unset.or("cpus", asked.cpus.map(|s| s.value))?,
        pids: unset.or("pids", asked.pids.map(|s| s.value))?,
    };
    let workspace = asked.workspace.map(|s| StoredWorkspace { source: s.value.source, mode: s.value.mode });
    let on_unknown = flags::flag("--on-unknown", args.on_unknown.as_deref(), OnUnknown::parse)?;
    let fuel = flags::flag("--wasm-fuel-limit", args.wasm_fuel_limit.as_deref(), parse_fuel)?;
    Ok(SessionPatch {
        sandbox_enabled: unset.or("sandbox", switch(args.enabled.as_deref())?)?,
        sandbox_image: unset.or("image", asked.image.map(|s| s.value))?,
        sandbox_backend: unset.or("backend", asked.backend.map(|s| s.value))?,
        network: unset.or("network", asked.network.map(|s| s.value))?,
        limits: if limits == LimitPatch::default() { Patch::Keep } else { Patch::Set(limits) },
        workspace: unset.or("workspace", workspace)?,
        idle_ttl_secs: unset.or("idle-ttl", idle(args.idle_ttl.as_deref())?)?,
        trusted_domains: unset.or("trusted-domains", domains("--trusted-domain", &args.trusted_domain)?)?,
        denied_domains: unset.or("denied-domains", domains("--denied-domain", &args.denied_domain)?)?,
        on_unknown: unset.or("on-unknown", on_unknown)?,
        wasm_fuel_limit: unset.or("wasm-fuel-limit", fuel)?,
        env: unset.env(env)?,
    })
}

fn switch(word: Option<&str>) -> Result<Option<bool>, Failure> {
    match word {
        None => Ok(None),
        Some("on") => Ok(Some(true)),
        Some("off") => Ok(Some(false)),
        Some(other) => Err(Failure::usage(
            Diagnosis::new("config-unknown-word", format!("--sandbox: unknown word `{other}`"))
                .fix("use `on` or `off`"),
        )),
    }
}

fn idle(text: Option<&str>) -> Result<Option<u64>, Failure> {
    let Some(time) = flags::flag("--idle-ttl", text, parse_duration)? else { return Ok(None) };
    if time.subsec_nanos() > 0 {
        return Err(Failure::usage(
            Diagnosis::new("config-out-of-range", "--idle-ttl: a session keeps whole seconds")
                .fix("use a time from 1s to 365d"),
        ));
    }
    Ok(Some(time.as_secs()))
}

/// Variables to set. Their values are stored as text and never shown.
fn variables(args: &args::Set) -> Result<BTreeMap<String, Patch<EnvValue>>, Failure> {
    let collected = environment::collect(&args.env_file, &args.env)?;
    let mut all = BTreeMap::new();
    for (name, value) in collected {
        let shown = name.to_string_lossy().into_owned();
        let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) else {
            return Err(Failure::usage(
                Diagnosis::new("env-not-utf8", format!("the variable {shown:?} cannot be stored"))
                    .cause("its name or its value is not UTF-8")
                    .fix("give it to each command by `moltis exec --env`"),
            ));
        };
        all.insert(name, Patch::Set(EnvValue::new(value)));
    }
    Ok(all)
}

/// What is to be unset.
struct Unset {
    names: Vec<&'static str>,
    variables: Vec<String>,
}

impl Unset {
    fn read(words: &[String]) -> Result<Self, Failure> {
        let mut unset = Self { names: Vec::new(), variables: Vec::new() };
        for word in words {
            if let Some(name) = word.strip_prefix("env.").filter(|name| !name.is_empty()) {
                unset.variables.push(name.to_owned());
            } else if let Some(name) = NAMES.into_iter().find(|name| name == word) {
                unset.names.push(name);
            } else {
                let fix = match suggest(word, NAMES) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("use one of {}, env.NAME", NAMES.join(", ")),
                };
                let message = format!("--unset: there is nothing of the name `{word}` to unset");
                return Err(Failure::usage(Diagnosis::new("unset-unknown", message).fix(fix)));
            }
        }
        Ok(unset)
    }

    /// What becomes of the setting of this name.
    fn or<T>(&mut self, name: &'static str, set: Option<T>) -> Result<Patch<T>, Failure> {
        match (self.names.contains(&name), set) {
            (true, Some(_)) => Err(both(name)),
            (true, None) => Ok(Patch::Clear),
            (false, Some(value)) => Ok(Patch::Set(value)),
            (false, None) => Ok(Patch::Keep),
        }
    }

    fn env(
        &mut self,
        mut set: BTreeMap<String, Patch<EnvValue>>,
    ) -> Result<Patch<BTreeMap<String, Patch<EnvValue>>>, Failure> {
        if self.names.contains(&"env") {
            return if set.is_empty() { Ok(Patch::Clear) } else { Err(both("env")) };
        }
        for name in self.variables.drain(..) {
            if set.insert(name.clone(), Patch::Clear).is_some_and(|before| before != Patch::Clear) {
                return Err(both(&format!("env.{name}")));
            }
        }
        Ok(if set.is_empty() { Patch::Keep } else { Patch::Set(set) })
    }
}

fn both(name: &str) -> Failure {
    Failure::usage(
        Diagnosis::new("set-and-unset", format!("`{name}` is both set and unset"))
            .fix("leave one of the two off"),
    )
}
