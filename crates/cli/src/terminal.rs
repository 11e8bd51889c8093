//! Our own terminal while a command runs on one inside: raw mode, put back whatever happens, and its size.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

use moltis_sandbox::Diagnosis;
use moltis_sandbox::exec::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// The mode that a fault of ours puts back, when nothing is dropped any more.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Puts back the mode that was there before any raw mode of ours.
pub fn put_back() {
    // Whoever holds it at such a moment has not changed the mode yet.
    if let Ok(remembered) = BEFORE.try_lock()
        && let Some(before) = &*remembered
    {
        // The terminal may be gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
    }
}

/// Raw mode of standard input; dropping it puts the old mode back.
pub struct RawMode {
    before: Termios,
    raw: Termios,
}

impl RawMode {
    /// Turns it on.
    pub fn enter() -> Result<Self, Failure> {
        let stdin = io::stdin();
        let before = tcgetattr(&stdin).map_err(|_| not_a_terminal())?;
        let mut raw = before.clone();
        raw.make_raw();
        if let Ok(mut remembered) = BEFORE.lock() {
            *remembered = Some(before.clone());
        }
        tcsetattr(&stdin, OptionalActions::Now, &raw).map_err(|_| not_a_terminal())?;
        Ok(Self { before, raw })
    }

    /// While we are stopped from outside whoever has the terminal meanwhile finds the old mode, and when we go on it is
    /// raw again.
    pub async fn keep(&self) -> Infallible {
        let of = |wanted: Signal| signal(SignalKind::from_raw(wanted.as_raw()));
        let (Ok(mut stopped), Ok(mut continued)) = (of(Signal::TSTP), of(Signal::CONT)) else {
            return std::future::pending().await;
        };
        loop {
            tokio::select! {
                _ = stopped.recv() => {
                    self.leave();
                    // It stops us here, until somebody lets us go on.
                    let _ = kill_process(getpid(), Signal::STOP);
                }
                _ = continued.recv() => {}
            }
            // The terminal may be gone; what runs on it hears of that by itself.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.raw);
        }
    }

    /// Puts the old mode back.
    pub fn leave(&self) {
        // The terminal may be gone; there is nothing to put back then.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        self.leave();
    }
}

fn not_a_terminal() -> Failure {
    Failure::invalid(
        Diagnosis::new("not-a-terminal", "--tty needs a terminal, and standard input is none")
            .fix("leave --tty off, or run it from a terminal"),
    )
}

/// Sees that a shell has a terminal to be on.
///
/// # Errors
/// When standard input or output is none.
pub fn required() -> Result<(), Failure> {
    use std::io::IsTerminal;
    let missing = match (io::stdin().is_terminal(), io::stdout().is_terminal()) {
        (true, true) => return Ok(()),
        (false, _) => "standard input",
        (true, false) => "standard output",
    };
    Err(Failure::invalid(
        Diagnosis::new("not-a-terminal", format!("a shell needs a terminal, and {missing} is none"))
            .fix("run it from a terminal, or run commands without one by `moltis exec`"),
    ))
}

/// Variables that tell a command which terminal it draws for.
pub fn variables() -> Option<(OsString, OsString)> {
    let term = std::env::var_os("TERM").filter(|term| !term.is_empty())?;
    Some(("TERM".into(), term))
}

/// Size of our terminal; 24 × 80 when it does not say.
pub fn size() -> TerminalSize {
    let size_of = |fd: BorrowedFd<'_>| tcgetwinsize(fd).ok().filter(|s| s.ws_row > 0 && s.ws_col > 0);
    size_of(io::stdout().as_fd()).or_else(|| size_of(io::stdin().as_fd())).map_or(
        TerminalSize { rows: 24, columns: 80 },
        |s| TerminalSize { rows: s.ws_row, columns: s.ws_col },
    )
}
