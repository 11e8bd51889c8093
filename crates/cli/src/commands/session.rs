//! `moltis session`: list, show, change and forget sessions.

mod list;
mod set;
mod show;
mod snapshot;

use std::time::Duration;

use moltis_config::value::number::{write_duration, write_size};
use moltis_config::words::Words;
use moltis_runtime::Runtime;
use moltis_runtime::store::Session;
use moltis_sandbox::MountMode;

use crate::args::{self, Global};
use crate::failure::Failure;
use crate::{flags, output, render};

/// Runs one of them; gives the exit status.
pub async fn run(global: &Global, command: args::Session) -> Result<i32, Failure> {
    let runtime = super::runtime(global)?;
    match command {
        args::Session::List(args) => list::run(&runtime, args.json).await,
        args::Session::Show(args) => show::run(&runtime, &args).await,
        args::Session::Set(args) => set::run(&runtime, &args).await,
        args::Session::Rm(args) => remove(&runtime, &args).await,
        args::Session::Snapshot(args) => snapshot::take(&runtime, &args).await,
        args::Session::Snapshots(args) => snapshot::list(&runtime, &args).await,
        args::Session::Restore(args) => snapshot::restore(&runtime, &args).await,
        args::Session::Fork(args) => snapshot::fork(&runtime, &args).await,
        args::Session::RmSnapshot(args) => snapshot::remove(&runtime, &args).await,
    }
}

async fn remove(runtime: &Runtime, args: &args::Rm) -> Result<i32, Failure> {
    let keys = args.keys.iter().map(|key| flags::session_key(key)).collect::<Result<Vec<_>, _>>()?;
    // A name that is wrong leaves the others as they are.
    for key in &keys {
        runtime.existing_session(key).await?;
    }
    let mut removed = Vec::new();
    let mut text = String::new();
    for key in keys {
        let home = runtime.home(&key);
        let gone = runtime.remove_session(&key, args.purge).await?;
        let kept = home.filter(|home| !gone.home && home.exists());
        let fate = match &kept {
            Some(home) => format!("its home stays: {}", render::name(&home.to_string_lossy())),
            None if gone.home => "with its home".to_owned(),
            None => "it had no home".to_owned(),
        };
        text.push_str(&format!("removed {} ({fate})\n", render::name(key.as_str())));
        let left = runtime.snapshots(Some(&key)).await?.len();
        if left > 0 {
            text.push_str(&format!(
                "{left} of its snapshots stay: moltis session snapshots {}\n",
                render::name(key.as_str())
            ));
        }
        removed.push(output::present(serde_json::json!({
            "session": key,
            "homeRemoved": gone.home,
            "homeKept": kept,
            "snapshotsRemoved": gone.snapshots,
            "snapshotsKept": left,
        })));
    }
    if args.json {
        return output::print_json(&serde_json::json!({ "removed": removed }));
    }
    output::print(&text)
}

/// What a session sets, in the words of `session set`. Values of variables are not among it.
fn overridden(session: &Session) -> Vec<(&'static str, String)> {
    let set = &session.overrides;
    let mut all = Vec::new();
    let mut add = |name, value: Option<String>| all.extend(value.map(|value| (name, value)));
    add("sandbox", set.sandbox_enabled.map(|on| if on { "on" } else { "off" }.to_owned()));
    add("backend", set.sandbox_backend.map(|backend| backend.to_string()));
    add("image", set.sandbox_image.as_ref().map(|image| image.as_str().to_owned()));
    add("network", set.network.map(|network| network.to_string()));
    add("memory", set.limits.memory.map(write_size));
    add("cpus", set.limits.cpus.map(|cores| cores.to_string()));
    add("pids", set.limits.pids.map(|count| count.to_string()));
    add(
        "workspace",
        set.workspace.as_ref().map(|workspace| {
            let mode = match workspace.mode {
                Some(MountMode::Ro) => ":ro",
                Some(MountMode::Rw) => ":rw",
                None => "",
            };
            format!("{}{mode}", workspace.source.display())
        }),
    );
    add("idle-ttl", set.idle_ttl_secs.map(|seconds| write_duration(Duration::from_secs(seconds))));
    let list = |list: &Vec<moltis_sandbox::DomainPattern>| {
        list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    };
    add("trusted-domains", set.trusted_domains.as_ref().map(list));
    add("denied-domains", set.denied_domains.as_ref().map(list));
    add("on-unknown", set.on_unknown.map(|word| word.word().to_owned()));
    add("wasm-fuel-limit", set.wasm_fuel_limit.map(|fuel| fuel.to_string()));
    add("env", (!session.env.is_empty()).then(|| session.env.join(",")));
    all
}
