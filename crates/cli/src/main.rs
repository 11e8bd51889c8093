//! The `moltis` program: reads the command line, runs one command, exits with its status.

/// Prints a line to standard error, as `eprintln!` does; a reader that is gone is no reason to panic.
macro_rules! say {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($line)*);
    }};
}
use say;

mod args;
mod building;
mod commands;
mod copy;
mod drive;
mod environment;
mod failure;
mod fault;
mod flags;
mod output;
mod place;
mod printer;
mod render;
mod screen;
mod signal_name;
mod signals;
mod stdin;
mod terminal;
mod transfer;

use std::process::ExitCode;

use clap::Parser;
use failure::Failure;
use tokio::runtime::{Builder, Runtime};

/// Counts what the in-process shell allocates, so that a sandbox's memory limit bounds it.
#[cfg(feature = "wasm")]
#[global_allocator]
static ALLOCATOR: moltis_runtime::Metering<std::alloc::System> = moltis_runtime::Metering(std::alloc::System);

fn main() -> ExitCode {
    // A background command of the in-process shell has a process of this program to itself.
    #[cfg(feature = "wasm")]
    if let Some(status) = moltis_runtime::keeper() {
        return status;
    }
    fault::tell_panics();
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return args::usage_error(error),
    };
    let statuses = cli.command.statuses();
    if !cli.command.serves() {
        // One command at a time runs here: what blocks for a moment holds nobody up.
        moltis_sandbox::blocking::allow_here();
    }
    let result = start(cli.command.is_gateway()).and_then(|runtime| {
        let result = runtime.block_on(commands::run(cli));
        // Its threads are not waited for: the process ends.
        runtime.shutdown_background();
        result
    });
    match result {
        // A thread may still sit in a blocking read of standard input: leave without waiting for it.
        Ok(status) => std::process::exit(status),
        Err(failure) => std::process::exit(failure.report(statuses)),
    }
}

fn start(many: bool) -> Result<Runtime, Failure> {
    fault::see_descriptors()?;
    let mut builder = if many { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    let runtime = builder.enable_all().build().map_err(Failure::runtime)?;
    let inside = runtime.enter();
    fault::outlive_full_files();
    drop(inside);
    Ok(runtime)
}
