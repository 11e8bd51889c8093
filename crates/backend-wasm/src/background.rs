//! Background commands. Each is held by a process of its own ([`keeper`]) where this program can be one, else by this
//! one. Its output lies in the sandbox's folder, where every process finds it ([`kept`], [`spool`]); its input, signals
//! and end go through a socket there ([`control`]).

mod control;
mod holder;
mod keeper;
mod kept;
mod spool;
mod watch;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_sandbox::exec::{Exec, ProcessId};
use moltis_sandbox::{Diagnosis, Error as SandboxError, Outcome, ProcessInfo, Result as SandboxResult};

use crate::commands::Asked;
use crate::error::{Error, Result, blocking};
use crate::sandbox::Inner;
use kept::{Kept, all};

pub use keeper::keeper;

/// How long ending one may take.
const PATIENCE: Duration = Duration::from_secs(8);

/// Most that run in one sandbox.
const MAX_RUNNING: usize = 64;

/// How many are remembered that are over.
const REMEMBERED: usize = 32;

/// Starts one.
///
/// # Errors
/// As a command in the foreground; [`Error::Full`].
pub async fn start(inner: &Arc<Inner>, asked: Asked) -> SandboxResult<Exec> {
    let (looked, judged) = (Arc::clone(inner), asked.clone());
    let place = inner.place();
    blocking(move || {
        let _busy = looked.begin(false)?.hold()?;
        judged.has_directory(&looked.tree()?, &looked)?;
        make_room(&place)
    })
    .await?;
    let number = inner.shared.number();
    if keeper::can_be_one() {
        keeper::start(inner, number, asked).await?;
    } else {
        holder::start(inner, number, asked).await?;
    }
    attach(inner, ProcessId(number), 0, 0, true).await
}

fn make_room(place: &Path) -> Result<()> {
    let (running, over): (Vec<Kept>, Vec<Kept>) = all(place).into_iter().partition(Kept::is_held);
    if running.len() >= MAX_RUNNING {
        return Err(Error::Full(format!("{MAX_RUNNING} run in its background already")));
    }
    let forgotten = (over.len() + 1).saturating_sub(REMEMBERED);
    over.iter().take(forgotten).try_for_each(Kept::remove)
}

/// Those that are known, oldest first.
///
/// # Errors
/// When the runtime shuts down.
pub async fn list(inner: &Arc<Inner>) -> SandboxResult<Vec<ProcessInfo>> {
    let place = inner.place();
    Ok(blocking(move || Ok(all(&place).iter().map(Kept::info).collect())).await?)
}

fn unknown(process: ProcessId) -> SandboxError {
    SandboxError::Invalid(
        Diagnosis::new("process-missing", format!("{process} is no background command"))
            .fix("list the sandbox's background commands"),
    )
}

async fn find(inner: &Arc<Inner>, process: ProcessId) -> SandboxResult<Kept> {
    let place = inner.place();
    let found = blocking(move || Ok(Kept::find(&place, process.0))).await?;
    found.ok_or_else(|| unknown(process))
}

/// Watches one from these offsets on.
///
/// # Errors
/// `Invalid` for one that is not known.
pub async fn attach(
    inner: &Arc<Inner>,
    process: ProcessId,
    stdout: u64,
    stderr: u64,
    follow: bool,
) -> SandboxResult<Exec> {
    let kept = find(inner, process).await?;
    Ok(watch::exec(kept, [stdout, stderr], follow))
}

/// Ends one and waits for its end.
///
/// # Errors
/// `Invalid` for one that is not known; `Lost` for one whose process died.
pub async fn stop(inner: &Arc<Inner>, process: ProcessId) -> SandboxResult<Outcome> {
    let kept = find(inner, process).await?;
    let stopped = crate::error::long(move || {
        let until = Instant::now() + PATIENCE;
        loop {
            let held = kept.is_held();
            if let Some(outcome) = kept.outcome() {
                return Ok(Some(outcome));
            }
            if !held || Instant::now() > until {
                return Ok(None);
            }
            control::end(&kept);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    stopped.await?.ok_or_else(lost)
}

fn lost() -> SandboxError {
    SandboxError::Lost(
        Diagnosis::new("background-lost", "the process that held the background command is gone")
            .fix("start it again if it is safe to run it twice"),
    )
}

/// How many run that other processes hold. Blocks for a moment.
pub fn held_apart(place: &Path) -> u32 {
    if !keeper::can_be_one() {
        return 0;
    }
    u32::try_from(all(place).iter().filter(|kept| kept.is_held()).count()).unwrap_or(u32::MAX)
}

/// Ends all of a sandbox, and waits for them as long as is sensible. Blocks.
pub fn end_all(place: &Path) {
    let until = Instant::now() + PATIENCE / 2;
    let mut running: Vec<Kept> = all(place);
    loop {
        running.retain(Kept::is_held);
        if running.is_empty() || Instant::now() > until {
            return;
        }
        running.iter().for_each(control::end);
        std::thread::sleep(Duration::from_millis(5));
    }
}
