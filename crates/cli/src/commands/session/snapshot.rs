//! `moltis session snapshot`, `snapshots`, `restore`, `fork`, `rm-snapshot`.

use moltis_runtime::Runtime;
use moltis_runtime::store::{Caller, Snapshot, SnapshotHome};
use serde_json::json;

use crate::failure::Failure;
use crate::{args, flags, output, render};

/// Takes one; gives the exit status.
pub async fn take(runtime: &Runtime, args: &args::Snapshot) -> Result<i32, Failure> {
    let key = flags::session_key(&args.key)?;
    let taken = runtime.take_snapshot(&key, args.name.as_deref(), &Caller::this_user()).await;
    let taken = taken.map_err(|error| match error.code() {
        // It cannot be right, whatever there is.
        "snapshot-name-invalid" => Failure::from(error).of_usage(),
        _ => error.into(),
    })?;
    if args.json {
        return output::print_json(&json!(taken));
    }
    let mut text = format!("{}\n", line(&taken.snapshot));
    for note in &taken.notes {
        text.push_str(&format!("  {}\n", render::one_line(note)));
    }
    output::print(&text)
}

/// Lists them.
pub async fn list(runtime: &Runtime, args: &args::Snapshots) -> Result<i32, Failure> {
    let key = args.key.as_ref().map(|key| flags::session_key(key)).transpose()?;
    let snapshots = runtime.snapshots(key.as_ref()).await?;
    if args.json {
        return output::print_json(&json!({ "snapshots": snapshots }));
    }
    let lines = snapshots.iter().map(|snapshot| match &key {
        Some(_) => format!("{}\n", line(snapshot)),
        None => format!("{}: {}\n", render::name(snapshot.session.as_str()), line(snapshot)),
    });
    let text: String = lines.collect();
    output::print(if text.is_empty() { "no snapshots\n" } else { &text })
}

/// Has a session begin from one.
pub async fn restore(runtime: &Runtime, args: &args::Restore) -> Result<i32, Failure> {
    let key = flags::session_key(&args.key)?;
    let session = runtime.restore_session(&key, args.snapshot.as_deref(), args.recreate).await?;
    if args.json {
        return output::print_json(&json!(session));
    }
    let name = render::name(key.as_str());
    output::print(&match &session.begins {
        Some(begins) => format!("{name} begins from {} with its next command\n", begins.snapshot),
        None => format!("{name} begins from no snapshot any more\n"),
    })
}

/// Makes a session that begins where another one is.
pub async fn fork(runtime: &Runtime, args: &args::Fork) -> Result<i32, Failure> {
    let (key, new) = (flags::session_key(&args.key)?, flags::session_key(&args.new)?);
    let by = Caller::this_user();
    let from = runtime.existing_session(&key).await?;
    let (session, notes) = runtime.fork_session(&from, &new, args.snapshot.as_deref(), &by).await?;
    if args.json {
        let mut told = json!(session);
        if !notes.is_empty() {
            told["notes"] = json!(notes);
        }
        return output::print_json(&told);
    }
    let from = session.begins.map_or_else(String::new, |begins| format!(" from {}", begins.snapshot));
    let mut text = format!("made {}, which begins{from}\n", render::name(new.as_str()));
    for note in &notes {
        text.push_str(&format!("  {}\n", render::one_line(note)));
    }
    output::print(&text)
}

/// Removes some.
pub async fn remove(runtime: &Runtime, args: &args::RmSnapshot) -> Result<i32, Failure> {
    let key = flags::session_key(&args.key)?;
    let mut removed = Vec::new();
    for word in &args.snapshots {
        removed.push(runtime.remove_snapshot(&key, word).await?);
    }
    if args.json {
        return output::print_json(&json!({ "removed": removed }));
    }
    let text: String = removed.iter().map(|id| format!("removed {id}\n")).collect();
    output::print(&text)
}

fn line(snapshot: &Snapshot) -> String {
    let name = snapshot.name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
    let home = match snapshot.home {
        SnapshotHome::Copied => "with the home",
        SnapshotHome::Shared => "without the home, which is shared",
    };
    format!("{}{name} ({}, {}, {home})", snapshot.id, snapshot.backend, render::size(snapshot.bytes))
}
