//! Work that is carried to its end though whoever asked for it goes away: half of an opening would have to be swept by
//! the next one.

use moltis_sandbox::{BuildProgress, Error};
use tokio::sync::mpsc::Receiver;

use crate::call::failed;
use crate::problem::Problem;

/// Carries it to its end. What comes of it is dropped if nobody waits any more.
///
/// # Errors
/// Those of the work; `opening-broke` when it panicked.
pub async fn carry<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Problem> {
    let (tell, told) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        // Dropping what was opened puts it away.
        drop(tell.send(work.await));
    });
    match told.await {
        Ok(done) => Ok(done?),
        Err(_) => Err(failed("opening-broke", "opening the sandbox broke off")),
    }
}

/// Waits for work that tells how it goes on, which nobody wants to hear. Once the caller goes away an image that is made
/// ready for it is given up.
pub async fn unheard<T>(work: impl Future<Output = T>, mut progress: Receiver<BuildProgress>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            Some(_) = progress.recv() => {}
        }
    }
}
