//! The tools, a module each: what a model is told of one, what it takes, what it does.

mod edit;
mod exec;
mod glob;
mod grep;
mod ignored;
mod info;
mod list;
mod process;
mod read;
mod shown;
mod walk;
mod write;

use std::sync::{Arc, LazyLock};

use moltis_sandbox::{Error, Result};
use rmcp::model::{CallToolResult, JsonObject, Tool, ToolAnnotations};
use serde::de::DeserializeOwned;

use crate::answer::{Answered, failed};
use crate::arguments;
use crate::error::ToolError;
use crate::server::Call;

/// Every tool, in the order in which a model reads them.
pub(crate) fn all() -> &'static [Tool] {
    static ALL: LazyLock<Vec<Tool>> = LazyLock::new(|| {
        vec![
            exec::tool(),
            read::tool(),
            write::tool(),
            edit::tool(),
            list::tool(),
            glob::tool(),
            grep::tool(),
            process::start::tool(),
            process::output::tool(),
            process::input::tool(),
            process::stop::tool(),
            info::tool(),
        ]
    });
    &ALL
}

/// What a tool may do to the world, as clients ask their users.
struct Manner {
    /// It changes nothing.
    read_only: bool,
    /// It may remove or overwrite.
    destructive: bool,
    /// Doing it twice is doing it once.
    idempotent: bool,
    /// It may reach something outside of the sandbox.
    open_world: bool,
}

const LOOKS: Manner = Manner { read_only: true, destructive: false, idempotent: true, open_world: false };

/// One entry of the list.
fn tool(
    name: &'static str,
    title: &'static str,
    description: &'static str,
    input: Arc<JsonObject>,
    output: Arc<JsonObject>,
    manner: &Manner,
) -> Tool {
    let Manner { read_only, destructive, idempotent, open_world } = *manner;
    Tool::new(name, description, input).with_title(title).with_raw_output_schema(output).with_annotations(
        ToolAnnotations::with_title(title)
            .read_only(read_only)
            .destructive(destructive)
            .idempotent(idempotent)
            .open_world(open_world),
    )
}

/// Runs a tool. What goes wrong is an answer of the tool, which the model reads, and never one of the protocol.
pub(crate) async fn run(call: &Call, tool: &'static Tool, arguments: Option<JsonObject>) -> CallToolResult {
    let mut news = Vec::new();
    let done = match &*tool.name {
        // It ends its command, and is told how that ended.
        "exec" => with(tool, arguments, async |args| exec::run(call, args, &mut news).await).await,
        _ => {
            tokio::select! {
                done = quick(call, tool, arguments) => done,
                () = call.ended() => Err(ToolError::Cancelled.into()),
            }
        }
    };
    match done {
        Ok(answered) => answered.into(),
        Err(error) => failed(&error, &news),
    }
}

async fn quick(call: &Call, tool: &'static Tool, arguments: Option<JsonObject>) -> Result<Answered> {
    match &*tool.name {
        "read_file" => with(tool, arguments, async |args| read::run(call, args).await).await,
        "write_file" => with(tool, arguments, async |args| write::run(call, args).await).await,
        "edit_file" => with(tool, arguments, async |args| edit::run(call, args).await).await,
        "list_directory" => with(tool, arguments, async |args| list::run(call, args).await).await,
        "glob" => with(tool, arguments, async |args| glob::run(call, args).await).await,
        "grep" => with(tool, arguments, async |args| grep::run(call, args).await).await,
        "process_start" => with(tool, arguments, async |args| process::start::run(call, args).await).await,
        "process_output" => with(tool, arguments, async |args| process::output::run(call, args).await).await,
        "process_input" => with(tool, arguments, async |args| process::input::run(call, args).await).await,
        "process_stop" => with(tool, arguments, async |args| process::stop::run(call, args).await).await,
        "sandbox_info" => with(tool, arguments, async |args| info::run(call, args).await).await,
        other => Err(Error::from(ToolError::Broke(format!("nothing does `{other}`")))),
    }
}

async fn with<T: DeserializeOwned>(
    tool: &'static Tool,
    arguments: Option<JsonObject>,
    work: impl AsyncFnOnce(T) -> Result<Answered>,
) -> Result<Answered> {
    let name = match &tool.name {
        std::borrow::Cow::Borrowed(name) => *name,
        std::borrow::Cow::Owned(_) => "it",
    };
    work(arguments::read(name, tool, arguments)?).await
}
