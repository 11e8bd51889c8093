//! `moltis exec`: one command in a sandbox, with its output as it comes and its exit status as ours.

use std::time::Duration;

use moltis_runtime::answer::Answer;
use moltis_runtime::{Capped, Runtime};
use moltis_sandbox::exec::{Command, Ending, ExecEvent, ExecRequest, Outcome};
use serde_json::json;

use crate::args::{self, Global};
use crate::drive::{Driven, drive, exit_status, on_terminal};
use crate::failure::Failure;
use crate::flags::{self, flag, guest_directory};
use crate::output::{self, BROKEN_PIPE};
use crate::place::{self, Opening, Place};
use crate::printer::{Printer, leftovers};
use crate::signals::Signals;
use crate::{environment, stdin, terminal};

/// Runs the command; gives its exit status.
pub async fn run(global: &Global, args: args::Exec) -> Result<i32, Failure> {
    let runtime = super::runtime(global)?;
    let request = request(&runtime, &args)?;
    let overrides = flags::overrides(&args.sandbox)?;
    let session = place::session(&args.session, overrides.clone())?;
    let cap = flag("--max-output", args.max_output.as_deref(), moltis_config::parse_size)?;
    let questions = if args.json { place::no_questions() } else { place::questions(args.tty) };
    // Signals are caught before anything starts, so that none can leave it behind.
    let mut signals = Signals::catch().map_err(Failure::runtime)?;
    let mut place = match Place::open(&runtime, overrides, session, questions, &mut signals).await? {
        Opening::Open(place) => place,
        Opening::Told(number) => return Ok(128 + number),
    };
    let result = if args.background {
        background(&mut place, request, args.json, &mut signals).await
    } else if args.json {
        collected(&runtime, &mut place, request, cap, &mut signals).await
    } else {
        streamed(&mut place, request, cap, &mut signals).await
    };
    let result = result.map_err(|failure| place.failed(failure, args.json));
    place.put_away().await;
    result
}

/// What to run, from the flags.
fn request(runtime: &Runtime, args: &args::Exec) -> Result<ExecRequest, Failure> {
    let command = match &args.line {
        Some(line) => Command::Shell(line.clone()),
        None => Command::Argv(args.program.clone()),
    };
    let mut request = ExecRequest::new(command);
    request.env = environment::collect(&args.env_file, &args.env)?;
    request.cwd = args.cwd.clone().map(guest_directory).transpose()?;
    let timeout = flag("--timeout", args.timeout.as_deref(), moltis_config::parse_timeout)?;
    // A terminal is somebody at work, and a background command has nobody who waits: they have no time-out unless one
    // is given.
    request.timeout = timeout.or_else(|| (!args.tty && !args.background).then(|| runtime.default_timeout()));
    request.background = args.background;
    // A background command's input is sent later.
    request.stdin = args.background || (!args.no_stdin && stdin::wanted(args.tty));
    request.terminal = args.tty.then(terminal::size);
    if args.tty {
        // What the command draws is for our terminal; one that --env names wins.
        request.env.splice(0..0, terminal::variables());
    }
    Ok(request)
}

/// Starts it and says by which number it is found again. A signal meanwhile ends it: nobody would know its number.
async fn background(
    place: &mut Place,
    request: ExecRequest,
    json: bool,
    signals: &mut Signals,
) -> Result<i32, Failure> {
    let starting = async {
        let mut exec = place.exec(request).await?;
        loop {
            match exec.events.next().await {
                Some(Ok(ExecEvent::Started(process))) => return Ok(process),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Failure::from(error)),
                None => return Err(moltis_runtime::error::ended_without_exit().into()),
            }
        }
    };
    let process = match signals.race(starting, || true).await {
        Ok(started) => started?,
        Err(number) => return Ok(128 + number),
    };
    if let Some(number) = signals.ended_by {
        // If it cannot be reached it has ended with its sandbox; a second signal does not wait.
        let _ = signals.race(place.stop().command(process), || false).await;
        return Ok(128 + number);
    }
    if !json {
        place.warn();
        return output::print(&format!("{process}\n"));
    }
    let mut told = place.told();
    told.insert("process".to_owned(), json!(process));
    told.insert("notEnforced".to_owned(), json!(place.not_enforced()));
    output::print_json(&told)
}

/// Prints output as it comes.
async fn streamed(
    place: &mut Place,
    request: ExecRequest,
    cap: Option<u64>,
    signals: &mut Signals,
) -> Result<i32, Failure> {
    let timeout = request.timeout;
    let driven = if request.terminal.is_some() {
        on_terminal(place, request, cap, signals).await?
    } else {
        piped(place, request, cap, signals).await?
    };
    let outcome = match driven {
        Driven::Ended(outcome) => outcome,
        Driven::Closed => return Ok(BROKEN_PIPE),
        Driven::Told(number) => return Ok(128 + number),
    };
    epilogue(&outcome, timeout, place.session().is_some());
    Ok(exit_status(&outcome, signals))
}

/// Runs it without a terminal.
async fn piped(
    place: &mut Place,
    request: ExecRequest,
    cap: Option<u64>,
    signals: &mut Signals,
) -> Result<Driven, Failure> {
    let mut printer = Printer::new(cap);
    let driven = drive(place, request, signals, async |place, event| {
        if let ExecEvent::Started(_) = &event {
            // Only now is it certain that there is something to be said of.
            place.warn();
        }
        printer.print(event).await
    });
    let driven = driven.await;
    match driven {
        Ok(Driven::Ended(_)) => {}
        Ok(Driven::Closed) => return printer.finish().await.map(|_| Driven::Closed),
        // What it drew may have left the terminal in any state.
        Ok(Driven::Told(_)) | Err(_) => {
            printer.hurry().await;
            return driven;
        }
    }
    match signals.race(printer.finish(), || true).await {
        Err(number) => Ok(Driven::Told(number)),
        Ok(Ok(true)) => driven,
        Ok(Ok(false)) => Ok(Driven::Closed),
        Ok(Err(failure)) => Err(failure),
    }
}

/// Prints one JSON object at the end.
async fn collected(
    runtime: &Runtime,
    place: &mut Place,
    request: ExecRequest,
    cap: Option<u64>,
    signals: &mut Signals,
) -> Result<i32, Failure> {
    let cap = cap.unwrap_or_else(|| runtime.max_output_bytes());
    let cap = usize::try_from(cap).unwrap_or(usize::MAX);
    let mut stdout = Capped::new(cap);
    let mut stderr = Capped::new(cap);
    let driven = drive(place, request, signals, async |_, event| {
        match event {
            ExecEvent::Stdout(bytes) => drop(stdout.push(&bytes)),
            ExecEvent::Stderr(bytes) => drop(stderr.push(&bytes)),
            ExecEvent::Started(_) | ExecEvent::Missed { .. } | ExecEvent::Exit(_) => {}
        }
        Ok(())
    })
    .await?;
    let outcome = match driven {
        Driven::Ended(outcome) => outcome,
        Driven::Closed => return Ok(BROKEN_PIPE),
        Driven::Told(number) => return Ok(128 + number),
    };
    let status = exit_status(&outcome, signals);
    let answer = Answer {
        session: place.session().cloned(),
        backend: place.backend(),
        sandbox_id: place.sandbox_id().clone(),
        outcome,
        exit_code: status,
        stdout: stdout.into(),
        stderr: stderr.into(),
        not_enforced: place.not_enforced().to_vec(),
        notes: place.notes().to_vec(),
        restarted: place.restarted(),
        lost: place.lost().to_vec(),
    };
    let line = output::json_line(&answer)?;
    // Its reader may stall like any other, and signals are heard then too.
    let mut printer = Printer::new(None);
    let written = async move {
        // A reader that is gone shows at the end.
        let _ = printer.print(ExecEvent::Stdout(line.into())).await;
        printer.finish().await
    };
    match signals.race(written, || true).await {
        Err(number) => Ok(128 + number),
        Ok(Ok(true)) => Ok(status),
        Ok(Ok(false)) => Ok(BROKEN_PIPE),
        Ok(Err(failure)) => Err(failure),
    }
}

/// Says after the output how it ended, where the exit status alone would not.
fn epilogue(outcome: &Outcome, timeout: Option<Duration>, stays: bool) {
    if outcome.ending == Ending::TimedOut {
        let time = timeout.map(|t| format!(" of {} s", t.as_secs_f64())).unwrap_or_default();
        crate::say!(
            "moltis: its time{time} was up: the command and all that it started were ended (--timeout sets it)"
        );
    }
    leftovers(outcome, stays);
}
