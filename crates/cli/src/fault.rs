//! Faults of the program itself and of what it was started with: they are told like every other error.

use std::io;
use std::panic::PanicHookInfo;

use moltis_sandbox::Diagnosis;
use rustix::io::Errno;
use rustix::process::{Resource, Signal, getrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Failure, Statuses};
use crate::{args, terminal};

/// Descriptors that must be free: what the longest command opens at once, and room.
const DESCRIPTORS: usize = 32;

/// From now on a panic, on whatever thread, is one error with a code, and the program ends.
pub fn tell_panics() {
    let status = args::status_at_fault();
    std::panic::set_hook(Box::new(move |panic| {
        terminal::put_back();
        let failure = Failure::invalid(
            Diagnosis::new("internal", "moltis has a fault and cannot go on")
                .cause(cause(panic))
                .fix("report it, with this text and what you ran"),
        );
        std::process::exit(failure.report(Statuses { usage: status, fault: status }));
    }));
}

fn cause(panic: &PanicHookInfo<'_>) -> String {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("not told");
    match panic.location() {
        // The path would be that of the machine which built it.
        Some(place) => {
            let file = place.file().rsplit('/').next().unwrap_or_default();
            format!("{text} ({file}:{})", place.line())
        }
        None => text.to_owned(),
    }
}

/// Sees that there are descriptors enough. Libraries do not all take their lack for an error.
///
/// # Errors
/// `too-few-descriptors`.
pub fn see_descriptors() -> Result<(), Failure> {
    let mut held = Vec::with_capacity(DESCRIPTORS);
    while held.len() < DESCRIPTORS {
        match rustix::io::dup(io::stdin()) {
            Ok(descriptor) => held.push(descriptor),
            Err(Errno::MFILE) => {
                let limit = getrlimit(Resource::Nofile).current;
                let limit = limit.map_or(String::new(), |limit| format!(" of {limit}"));
                return Err(Failure::invalid(
                    Diagnosis::new("too-few-descriptors", "moltis may open too few files")
                        .cause(format!("{}{limit} are free, and it needs {DESCRIPTORS}", held.len()))
                        .fix("raise the limit, as with `ulimit -n 1024`"),
                ));
            }
            // Whatever it is, it is told where it matters.
            Err(_) => break,
        }
    }
    Ok(())
}

/// Makes a write beyond `ulimit -f` an error instead of a silent end. Caught and not ignored: every program that is
/// started finds the signal's default. Called inside a runtime.
pub fn outlive_full_files() {
    // Without it such a write ends the program, as it does any other.
    let _ = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()));
}
