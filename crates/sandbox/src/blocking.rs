//! Work that blocks for a moment: a look at a file, a row of a database, a process that is started.
//!
//! On a thread that others share it goes to a thread of its own. A program that does one thing at a time says so with
//! [`allow_here`], and saves the way there and back, which costs more than most of that work.

use std::cell::Cell;
use std::fmt;

thread_local! {
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// Says that short blocking work may be done on this thread, which runs nothing that others wait for.
pub fn allow_here() {
    HERE.set(true);
}

/// The work broke off: it panicked, or the program ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broke(String);

impl fmt::Display for Broke {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broke {}

/// Does work that blocks for a moment, here if that is allowed, else on a thread of its own. If the caller goes away
/// work that has begun is carried on to its end, and its result is dropped.
///
/// # Errors
/// When it broke off.
pub async fn short<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Broke> {
    if HERE.get() {
        return Ok(work());
    }
    long(work).await
}

/// Does work that may block for long on a thread of its own. If the caller goes away it is carried on to its end, and
/// its result is dropped.
///
/// # Errors
/// When it broke off.
pub async fn long<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Broke> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Broke(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_stays_on_the_thread_only_where_that_was_said() {
        let here = std::thread::current().id();
        let thread = || std::thread::current().id();
        assert_ne!(short(thread).await.unwrap(), here);
        allow_here();
        assert_eq!(short(thread).await.unwrap(), here);
        assert_ne!(long(thread).await.unwrap(), here);
        HERE.set(false);
        assert!(short(|| panic!("as it should")).await.is_err());
    }
}
