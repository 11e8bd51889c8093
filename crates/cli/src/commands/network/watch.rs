//! Going on with what comes until somebody says that it is enough, or nobody reads it any more.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::failure::Failure;
use crate::output::BROKEN_PIPE;
use crate::signals::Signals;

/// How often it is looked whether there is more.
const LOOK: Duration = Duration::from_millis(200);

/// Calls `look` again and again. It prints what there is and gives the exit status so far, which is 0 while there is
/// somebody who reads. A signal ends it with that signal's status.
pub async fn watch(mut look: impl AsyncFnMut() -> Result<i32, Failure>) -> Result<i32, Failure> {
    let mut signals = Signals::catch().map_err(Failure::runtime)?;
    loop {
        match look().await? {
            0 if is_read() => {}
            0 => return Ok(BROKEN_PIPE),
            status => return Ok(status),
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            signal = signals.next() => return Ok(128 + signal),
        }
    }
}

/// Whether somebody reads our output. A pipe tells when its reader is gone, also while there is nothing to print.
fn is_read() -> bool {
    let stdout = std::io::stdout();
    let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut asked, Some(&now)) {
        Ok(_) => !asked[0].revents().intersects(PollFlags::ERR),
        Err(_) => true,
    }
}
