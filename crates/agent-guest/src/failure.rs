//! Failures as the host is told them.

use moltis_agent_protocol::message::{Failure, FailureCode};
use rustix::io::Errno;

/// A failure that is the request's own fault.
pub fn invalid(message: impl Into<String>) -> Failure {
    Failure { code: FailureCode::Invalid, message: message.into(), errno: None }
}

/// Something named that is not there.
pub fn not_found(message: impl Into<String>) -> Failure {
    Failure { code: FailureCode::NotFound, message: message.into(), errno: None }
}

/// The kernel refused `what` with `errno`, where nothing more exact can be said.
pub fn kernel(what: &str, errno: Errno) -> Failure {
    let code = match errno {
        Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::NOBUFS => FailureCode::Exhausted,
        Errno::NOSPC if what.contains("terminal") => FailureCode::Exhausted,
        _ => FailureCode::Io,
    };
    Failure { code, message: format!("{what}: {errno}"), errno: Some(errno.raw_os_error()) }
}

/// The sandbox is in use.
pub fn busy() -> Failure {
    Failure { code: FailureCode::Busy, message: "something uses the sandbox".to_owned(), errno: None }
}
