//! Work that blocks, off the threads that others share; with an error of this crate's when it broke off.

use std::io;

use crate::error::Error;

/// Does work that blocks for a moment. If the caller goes away it is carried on to its end, and what it made is dropped,
/// which cleans up.
///
/// # Errors
/// Its own; [`Error::System`] when it broke off.
pub async fn short<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Error> + Send + 'static,
{
    moltis_sandbox::blocking::short(work).await.map_err(broke_off)?
}

/// As [`short`] for work that may wait: it never takes the thread that hears signals.
///
/// # Errors
/// As [`short`].
pub async fn long<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Error> + Send + 'static,
{
    moltis_sandbox::blocking::long(work).await.map_err(broke_off)?
}

/// Waits for something that is carried on to its end even if nobody waits for it any more.
///
/// # Errors
/// As [`short`].
pub async fn whole<T, E>(work: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Error> + Send + 'static,
{
    tokio::spawn(work).await.map_err(broke_off)?
}

fn broke_off(cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::System { what: "a thread broke off", cause: io::Error::other(cause) }
}
