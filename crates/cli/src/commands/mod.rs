//! The commands of the program, a module each.

mod bench;
mod completions;
mod config;
mod cp;
mod exec;
mod explain;
mod files;
mod forward;
#[cfg(feature = "serve")]
mod gateway;
mod history;
#[cfg(feature = "serve")]
mod mcp;
mod network;
mod process;
mod sandbox;
mod session;
mod shell;
#[cfg(not(feature = "serve"))]
mod unbuilt;

use moltis_config::{Loaded, Options};
use moltis_runtime::Runtime;

use crate::args::{Cli, Command, Global};
use crate::failure::Failure;
use crate::render;

#[cfg(not(feature = "serve"))]
use unbuilt::{gateway, mcp};

/// Runs one command; gives the exit status. What each command needs while it waits is on the heap: on the stack all
/// would take the room of the largest.
pub async fn run(cli: Cli) -> Result<i32, Failure> {
    let global = cli.global;
    match cli.command {
        Command::Exec(args) => {
            let json = args.json;
            Box::pin(exec::run(&global, *args)).await.map_err(|failure| failure.in_json(json))
        }
        Command::Shell(args) => Box::pin(shell::run(&global, *args)).await,
        Command::Files(command) => Box::pin(files::run(&global, command)).await,
        Command::Cp(args) => {
            let json = args.json;
            Box::pin(cp::run(&global, *args)).await.map_err(|failure| failure.in_json(json))
        }
        Command::Mcp(args) => Box::pin(mcp::run(&global, *args)).await,
        Command::Gateway(args) => {
            let json = args.json();
            Box::pin(gateway::run(&global, *args)).await.map_err(|failure| failure.in_json(json))
        }
        Command::Completions(args) => completions::run(args.shell),
        Command::Process(command) => {
            let json = command.json();
            Box::pin(process::run(&global, command)).await.map_err(|failure| failure.in_json(json))
        }
        Command::Session(command) => {
            let json = command.json();
            Box::pin(session::run(&global, command)).await.map_err(|failure| failure.in_json(json))
        }
        Command::History(args) => {
            Box::pin(history::run(&global, &args)).await.map_err(|failure| failure.in_json(args.json))
        }
        Command::Sandbox(command) => {
            let json = command.json();
            Box::pin(sandbox::run(&global, command)).await.map_err(|failure| failure.in_json(json))
        }
        Command::Network(command) => {
            let json = command.json();
            Box::pin(network::run(&global, command)).await.map_err(|failure| failure.in_json(json))
        }
        Command::Config(command) => config::run(&global, &command),
        Command::Forward(args) => {
            let json = args.json;
            Box::pin(forward::run(&global, args)).await.map_err(|failure| failure.in_json(json))
        }
        Command::Bench(args) => {
            let json = args.json;
            Box::pin(bench::run(&global, args)).await.map_err(|failure| failure.in_json(json))
        }
    }
}

/// What loading the configuration depends on, from the process and the global flags.
fn options(global: &Global) -> Options {
    Options { config_path: global.config.clone(), data_dir: global.data_dir.clone(), ..Options::of_process() }
}

/// Reads the configuration that the global flags name.
fn load(options: &Options) -> Result<Loaded, Failure> {
    moltis_config::load(options).map_err(|error| Failure::all_invalid(error.diagnoses()))
}

/// The runtime of this process.
fn runtime(global: &Global) -> Result<Runtime, Failure> {
    let options = options(global);
    let loaded = load(&options)?;
    for warning in &loaded.warnings {
        render::warning(warning);
    }
    let config_dir = moltis_config::paths::config_dir(&options.env);
    Ok(Runtime::new(loaded.config, config_dir, loaded.files_read))
}
