//! `moltis sandbox`: the backends and what they keep, and the sandboxes that there are.

mod ends;
mod images;

use std::fmt::Write as _;

use moltis_runtime::{BackendStatus, Runtime};
use moltis_sandbox::{Guarantees, Promise, SnapshotKind};

use super::explain;
use crate::args::{self, Global};
use crate::failure::Failure;
use crate::output;
use crate::render;

/// Runs one of them; gives the exit status.
pub async fn run(global: &Global, command: args::Sandbox) -> Result<i32, Failure> {
    let runtime = super::runtime(global)?;
    match command {
        args::Sandbox::Status(args) => status(&runtime, args.json).await,
        args::Sandbox::Explain(args) => explain::run(&runtime, &args).await,
        args::Sandbox::Ps(args) => ps(&runtime, args.json).await,
        args::Sandbox::Stop(args) => ends::stop(&runtime, &args).await,
        args::Sandbox::Rm(args) => ends::remove(&runtime, &args).await,
        args::Sandbox::Prune(args) => ends::prune(&runtime, &args).await,
        args::Sandbox::Disk(args) => disk(&runtime, args.json).await,
        args::Sandbox::Build(args) => images::build(&runtime, &args).await,
        args::Sandbox::List(args) => images::list(&runtime, &args).await,
        args::Sandbox::Remove(args) => images::remove(&runtime, &args).await,
        args::Sandbox::Clean(args) => images::clean(&runtime, &args).await,
    }
}

async fn ps(runtime: &Runtime, json: bool) -> Result<i32, Failure> {
    let sandboxes = runtime.sandboxes().await?;
    if json {
        return output::print_json(&serde_json::json!({ "sandboxes": sandboxes }));
    }
    if sandboxes.is_empty() {
        return output::print("There are no sandboxes.\n");
    }
    let heads =
        ["SESSION", "ID", "BACKEND", "STATE", "UP", "UNUSED", "OPERATIONS", "BACKGROUND", "MEMORY", "CPU"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(sandboxes.iter().map(|info| {
        let activity =
            |show: fn(moltis_sandbox::Activity) -> String| info.activity.map_or("-".to_owned(), show);
        let usage = |show: fn(moltis_sandbox::Usage) -> String| info.usage.map_or("-".to_owned(), show);
        vec![
            info.session.as_ref().map_or("-".to_owned(), |key| render::name(key.as_str())),
            short(&info.id).to_owned(),
            info.backend.to_string(),
            state(info),
            activity(|activity| render::span(activity.uptime)),
            activity(|activity| render::span(activity.idle)),
            activity(|activity| activity.operations.to_string()),
            if info.running { info.background.to_string() } else { "-".to_owned() },
            usage(|usage| render::size(usage.memory_bytes)),
            usage(|usage| render::span(usage.cpu)),
        ]
    }));
    output::print(&render::table(&rows))
}

/// What there is of a sandbox, in a word or two.
fn state(info: &moltis_runtime::SandboxInfo) -> String {
    match &info.provider {
        Some(told) if !told.known => format!("{}, unknown here", render::one_line(&told.state)),
        Some(told) if !info.running => render::one_line(&told.state),
        _ => if info.running { "running" } else { "gone" }.to_owned(),
    }
}

/// As much of an id as people are shown.
fn short(id: &moltis_sandbox::SandboxId) -> &str {
    &id.as_str()[..12]
}

fn images_of(count: u64) -> String {
    if count == 1 { "1 image".to_owned() } else { format!("{count} images") }
}

async fn disk(runtime: &Runtime, json: bool) -> Result<i32, Failure> {
    let disk = runtime.disk().await?;
    if json {
        return output::print_json(&disk);
    }
    let mut rows: Vec<_> = disk
        .parts
        .iter()
        .map(|part| {
            let entries = format!("{} entries", part.usage.entries);
            let path = render::name(&part.path.to_string_lossy());
            vec![part.name.to_owned(), render::size(part.usage.bytes), entries, path]
        })
        .collect();
    rows.extend(disk.images.iter().map(|used| {
        let what = format!("images in {}", used.backend);
        vec![
            what,
            render::size(used.bytes),
            images_of(used.images),
            "shared layers counted for each".to_owned(),
        ]
    }));
    let (free, floor) = (render::size(disk.free_bytes), render::size(disk.floor_bytes));
    rows.push(vec!["free".to_owned(), free, format!("no new command below {floor}")]);
    let printed = output::print(&render::table(&rows))?;
    for part in &disk.parts {
        if let Some(unseen) = &part.usage.unseen {
            let unseen = render::one_line(&unseen.to_string());
            crate::say!("moltis: {} could not be counted as a whole: {unseen}", part.name);
        }
    }
    Ok(printed)
}

async fn status(runtime: &Runtime, json: bool) -> Result<i32, Failure> {
    let backends = runtime.backends().await;
    // That the store is broken says nothing about the backends.
    let warning = match runtime.shared_home_warning().await {
        Ok(warning) => warning,
        Err(error) => Some(error.diagnosis().clone()),
    };
    let (upstream, wrong) = match runtime.upstream() {
        Ok(upstream) => (upstream, None),
        Err(error) => (None, Some(error.diagnosis().clone())),
    };
    let warnings: Vec<_> = warning.into_iter().chain(wrong).collect();
    if json {
        return output::print_json(&output::present(serde_json::json!({
            "backends": backends, "upstream": upstream, "warnings": warnings,
        })));
    }
    let mut text = String::new();
    let is_absent =
        |status: &&BackendStatus| status.reason.as_ref().is_some_and(|r| r.code == "backend-not-built");
    for backend in backends.iter().filter(|status| !is_absent(status)) {
        describe(&mut text, backend);
    }
    let absent: Vec<_> = backends.iter().filter(is_absent).map(|status| status.backend.as_str()).collect();
    if !absent.is_empty() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "○ not part of this version: {}", absent.join(", "));
    }
    if let Some(upstream) = upstream {
        let upstream = render::one_line(&upstream);
        let _ = writeln!(text, "network trusted goes on through {upstream}, which resolves the names");
    }
    let printed = output::print(&text)?;
    warnings.iter().for_each(render::warning);
    Ok(printed)
}

fn describe(text: &mut String, status: &BackendStatus) {
    // Writing to a String cannot fail.
    if let Some(failed) = &status.failed_over {
        let why = render::one_line(&failed.why.message);
        let _ = writeln!(text, "! {} failed: {why}; {} took over until a restart", failed.from, failed.to);
    }
    if let Some(details) = &status.details {
        let _ = writeln!(text, "● {}  usable  {}", status.backend, render::one_line(&details.version));
        for note in &details.notes {
            let _ = writeln!(text, "  {}", render::one_line(note));
        }
        for left in &details.left_off {
            let _ = writeln!(text, "  left off: {}: {}", left.key, render::one_line(&left.reason));
        }
        let mut rows: Vec<_> = promises(&details.guarantees)
            .map(|(name, promise)| match promise {
                Promise::Held => vec![format!("  {name}"), "held".to_owned()],
                Promise::NotEnforced(reason) => {
                    vec![format!("  {name}"), format!("not enforced: {}", render::one_line(reason))]
                }
            })
            .collect();
        let snapshots = match status.snapshots {
            Some(SnapshotKind::FileSystem) => "of what was written",
            Some(SnapshotKind::MemoryAndFileSystem) => "of what was written, and of memory",
            None => "none",
        };
        rows.push(vec!["  snapshots".to_owned(), snapshots.to_owned()]);
        text.push_str(&render::table(&rows));
    }
    if let Some(reason) = &status.reason {
        let _ = writeln!(text, "○ {}  not usable  [{}]", status.backend, reason.code);
        let _ = writeln!(text, "  {}", render::one_line(&reason.message));
        for (label, line) in [("cause", &reason.cause), ("fix", &reason.fix)] {
            if let Some(line) = line {
                let _ = writeln!(text, "  {label}: {}", render::one_line(line));
            }
        }
    }
}

/// The promises by the names that people read.
fn promises(guarantees: &Guarantees) -> impl Iterator<Item = (&'static str, &Promise)> {
    let Guarantees {
        filesystem,
        kernel,
        environment,
        network_blocked,
        network_trusted,
        network_open,
        memory,
        cpus,
        pids,
        terminal,
        background,
        forward,
        workspace,
        home,
        managed_files,
        adopt,
        images,
        packages,
        rootfs,
        runtime,
        gpus,
        host_podman,
        nested_podman,
    } = guarantees;
    [
        ("files isolated", filesystem),
        ("own kernel", kernel),
        ("environment cleared", environment),
        ("network blocked", network_blocked),
        ("network trusted", network_trusted),
        ("network open", network_open),
        ("memory limit", memory),
        ("cpu limit", cpus),
        ("process limit", pids),
        ("terminal", terminal),
        ("background commands", background),
        ("port forwarding", forward),
        ("workspace", workspace),
        ("lasting home", home),
        ("managed files", managed_files),
        ("found again after a restart", adopt),
        ("images", images),
        ("packages", packages),
        ("root directory", rootfs),
        ("OCI runtime", runtime),
        ("GPUs", gpus),
        ("host's Podman", host_podman),
        ("nested Podman", nested_podman),
    ]
    .into_iter()
}
