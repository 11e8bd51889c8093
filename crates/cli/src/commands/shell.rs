//! `moltis shell`: somebody at work in a sandbox, on a terminal.

use moltis_sandbox::exec::{Command, ExecRequest};

use crate::args::{self, Global};
use crate::drive::{Driven, exit_status, on_terminal};
use crate::failure::Failure;
use crate::output::BROKEN_PIPE;
use crate::place::{self, Opening, Place};
use crate::signals::Signals;
use crate::{environment, flags, printer, terminal};

/// An interactive shell of those that there are. It reads its own files, as no other command does.
const SHELL: &str = "command -v bash >/dev/null 2>&1 && exec bash -i; exec sh -i";

/// Runs it; gives the exit status.
pub async fn run(global: &Global, args: args::Shell) -> Result<i32, Failure> {
    terminal::required()?;
    let runtime = super::runtime(global)?;
    let request = request(&args)?;
    let overrides = flags::overrides(&args.sandbox)?;
    let session = place::session(&args.session, overrides.clone())?;
    let questions = place::questions(true);
    // Signals are caught before anything starts, so that none can leave it behind.
    let mut signals = Signals::catch().map_err(Failure::runtime)?;
    let mut place = match Place::open(&runtime, overrides, session, questions, &mut signals).await? {
        Opening::Open(place) => place,
        Opening::Told(number) => return Ok(128 + number),
    };
    let result = converse(&mut place, request, &mut signals).await;
    let result = result.map_err(|failure| place.failed(failure, false));
    place.put_away().await;
    result
}

/// What to run, from the flags.
fn request(args: &args::Shell) -> Result<ExecRequest, Failure> {
    let command = if args.program.is_empty() {
        Command::Shell(SHELL.into())
    } else {
        Command::Argv(args.program.clone())
    };
    let mut request = ExecRequest::new(command);
    request.env = environment::collect(&args.env_file, &args.env)?;
    request.env.splice(0..0, terminal::variables());
    request.cwd = args.cwd.clone().map(flags::guest_directory).transpose()?;
    request.stdin = true;
    request.terminal = Some(terminal::size());
    Ok(request)
}

async fn converse(place: &mut Place, request: ExecRequest, signals: &mut Signals) -> Result<i32, Failure> {
    match on_terminal(place, request, None, signals).await? {
        Driven::Ended(outcome) => {
            printer::leftovers(&outcome, place.session().is_some());
            Ok(exit_status(&outcome, signals))
        }
        Driven::Closed => Ok(BROKEN_PIPE),
        Driven::Told(number) => Ok(128 + number),
    }
}
