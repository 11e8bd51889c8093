//! `list_directory`: what a directory holds.

use futures_util::StreamExt;
use moltis_sandbox::{Entry, EntryKind, Files, Result};
use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{LOOKS, shown};
use crate::answer::Answered;
use crate::schema::{array, boolean, input, integer, may, needs, object, output, string, word};
use crate::server::Call;

/// Entries that an answer holds unless the call says otherwise, and at most.
const LIMIT: (u64, u64) = (200, 1000);

/// Entries that are held to be sorted.
const HELD: usize = 20_000;

#[derive(Deserialize)]
pub(crate) struct Arguments {
    path: Option<String>,
    limit: Option<u64>,
}

pub(crate) fn tool() -> Tool {
    let entry = object(
        "An entry",
        vec![
            needs("name", string("Its name")),
            needs("kind", word("What it is", &["file", "directory", "symlink", "other"])),
            needs("size", integer("Bytes of a file", 0, None)),
            needs("modifiedMillis", integer("Last change, in milliseconds since 1970", 0, None)),
            may("target", string("Where a link leads")),
        ],
    );
    super::tool(
        "list_directory",
        "List a directory",
        "Lists what a directory of the sandbox holds, by name, hidden files too. For files deeper down use glob.",
        input(vec![
            may("path", string("The directory; otherwise the one in which commands run")),
            may("limit", integer("Entries to give at most; otherwise 200", 1, Some(LIMIT.1))),
        ]),
        output(vec![
            needs("path", string("The directory, from the root")),
            needs("entries", array("What it holds, by name", entry)),
            needs("total", integer("How many entries there are", 0, None)),
            needs("more", boolean("Whether there are others than these")),
        ]),
        &LOOKS,
    )
}

pub(crate) async fn run(call: &Call, args: Arguments) -> Result<Answered> {
    let open = call.open().await?;
    let path = open.path(args.path.as_deref().unwrap_or("."))?;
    let files = open.files(call.runtime()).await;
    let mut listed = files.list(&path).await?;
    let mut entries: Vec<Entry> = Vec::new();
    let mut total = 0u64;
    while let Some(entry) = listed.next().await {
        let entry = entry?;
        total += 1;
        if entries.len() < HELD {
            entries.push(entry);
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let limit = args.limit.unwrap_or(LIMIT.0).clamp(1, LIMIT.1);
    entries.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let name = shown::path(path.as_bytes());
    let more = (entries.len() as u64) < total;
    let mut text = format!("{name}: {}\n", shown::count(total, "entry", "entries"));
    for entry in &entries {
        text.push_str(&line(entry));
    }
    if more {
        text.push_str(&format!(
            "[the first {} by name; set `limit`, or look for some by glob]\n",
            entries.len()
        ));
    }
    let entries: Vec<_> = entries.iter().map(told).collect();
    Ok(Answered::new(text, json!({ "path": name, "entries": entries, "total": total, "more": more })))
}

/// As `ls` marks what is no file.
fn line(entry: &Entry) -> String {
    let name = entry.name.to_string_lossy();
    let metadata = &entry.metadata;
    match metadata.kind {
        EntryKind::Directory => format!("{name}/\n"),
        EntryKind::Symlink => {
            let target =
                metadata.target.as_ref().map_or_else(String::new, |t| t.to_string_lossy().into_owned());
            format!("{name} -> {target}\n")
        }
        EntryKind::File if metadata.mode & 0o111 != 0 => format!("{name}*  {} bytes\n", metadata.size),
        EntryKind::File => format!("{name}  {} bytes\n", metadata.size),
        EntryKind::Other => format!("{name}  (no file)\n"),
    }
}

fn told(entry: &Entry) -> Value {
    let metadata = &entry.metadata;
    let mut told = json!({
        "name": entry.name.to_string_lossy(),
        "kind": metadata.kind,
        "size": metadata.size,
        "modifiedMillis": millis(metadata.modified_nanos),
    });
    if let Some(target) = &metadata.target {
        told["target"] = target.to_string_lossy().into();
    }
    told
}

/// A point in time that may be before 1970.
pub(crate) fn millis(nanos: i64) -> u64 {
    u64::try_from(nanos / 1_000_000).unwrap_or(0)
}
