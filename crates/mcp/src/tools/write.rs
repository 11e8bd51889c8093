//! `write_file`: a whole file, made or replaced at once.

use bytes::Bytes;
use futures_util::stream;
use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{ByteStream, EntryKind, Error, Files, Result};
use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::json;

use super::{Manner, shown};
use crate::answer::Answered;
use crate::error::ToolError;
use crate::schema::{boolean, input, integer, may, needs, output, string};
use crate::server::Call;

#[derive(Deserialize)]
pub(crate) struct Arguments {
    path: String,
    content: String,
    #[serde(default)]
    executable: bool,
}

pub(crate) fn tool() -> Tool {
    super::tool(
        "write_file",
        "Write a file",
        "Writes a whole text file in the sandbox, at once: readers see the old content or the new. Replaces what is \
         there, keeping its mode, and makes directories above it. To change a part of a file, use edit_file.",
        input(vec![
            needs("path", string("The file, from the root or from the directory in which commands run")),
            needs("content", string("All that is to stand in it")),
            may("executable", boolean("Whether it can be run, as a script with a `#!` line")),
        ]),
        output(vec![
            needs("path", string("The file, from the root")),
            needs("bytes", integer("Its size", 0, None)),
            needs("created", boolean("Whether there was none before")),
        ]),
        &Manner { read_only: false, destructive: true, idempotent: true, open_world: false },
    )
}

/// Content in one piece.
pub(crate) fn stream_of(content: Vec<u8>) -> ByteStream {
    Box::pin(stream::once(async move { Ok(Bytes::from(content)) }))
}

pub(crate) async fn run(call: &Call, args: Arguments) -> Result<Answered> {
    let open = call.open().await?;
    let path = open.path(&args.path)?;
    let files = open.files(call.runtime()).await;
    let name = shown::path(path.as_bytes());
    let created = match files.stat(&path, true).await {
        Ok(found) if found.kind == EntryKind::File => false,
        Ok(_) => return Err(ToolError::NotFile(name).into()),
        Err(error) if is_missing(&error) => true,
        Err(error) => return Err(error),
    };
    let mode = args.executable.then_some(0o755);
    let options = WriteOptions { mode, overwrite: true, parents: true };
    let written = files.write(&path, options, stream_of(args.content.into_bytes())).await?;
    let what = if created { "made" } else { "replaced" };
    let text = format!("{what} {name}: {}", shown::count(written.size, "byte", "bytes"));
    Ok(Answered::new(text, json!({ "path": name, "bytes": written.size, "created": created })))
}

/// Whether there is nothing at a path.
pub(crate) fn is_missing(error: &Error) -> bool {
    error.code() == "file-missing"
}
