//! `moltis mcp`: the tools of one sandbox for a model's client, over standard input and output.

use moltis_mcp::stdio::{Broken, serve};
use moltis_mcp::{Place, Server};
use moltis_runtime::Runtime;
use moltis_sandbox::Diagnosis;
use tokio::io::{stdin, stdout};

use crate::args::{self, Global};
use crate::failure::Failure;
use crate::signals::Signals;
use crate::{flags, place, render};

/// Serves until the client closes its end; gives the exit status. Standard output is the protocol's alone.
pub async fn run(global: &Global, args: args::Mcp) -> Result<i32, Failure> {
    let runtime = super::runtime(global)?;
    let overrides = flags::overrides(&args.sandbox)?;
    let place = match place::session(&args.session, overrides.clone())? {
        Some(request) => Place::Session(request),
        None => Place::Own(overrides),
    };
    place::tell_questions(&runtime, place::questions(false));
    let mut signals = Signals::catch().map_err(Failure::runtime)?;
    let mut told = None;
    let server = Server::new(runtime.clone(), place);
    let served = serve(&server, stdin(), stdout(), async { told = Some(signals.next().await) }).await;
    // Whoever sends another signal does not want to wait for the end of what is there.
    tokio::select! {
        () = put_away(&runtime, server) => {}
        number = signals.next() => return Ok(128 + number),
    }
    served.map_err(|error| match error {
        Broken::Begin(_) => Failure::invalid(
            Diagnosis::new("mcp-not-spoken", "what came on standard input is no MCP")
                .cause(error)
                .fix("let an MCP client start it (docs/mcp.md); it is no command for a terminal"),
        ),
    })?;
    Ok(told.map_or(0, |number| 128 + number))
}

async fn put_away(runtime: &Runtime, server: Server) {
    if let Err(error) = server.close().await {
        render::warning(error.diagnosis());
    }
    drop(server);
    if let Some(untold) = runtime.finish_network().await {
        render::warning(&untold);
    }
}
