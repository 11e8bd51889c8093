//! What the kernel's refusal of a file operation is called. The host shows the kernel's own words beside the message.

use moltis_agent_protocol::message::{Failure, FailureCode};
use rustix::io::Errno;

/// Longest name in a message, in bytes.
const MAX_SHOWN: usize = 400;

/// A failure that the kernel reported. `message` is a sentence that names the thing and says what did not happen.
pub fn kernel(errno: Errno, message: impl Into<String>) -> Failure {
    Failure { code: code(errno), message: message.into(), errno: Some(errno.raw_os_error()) }
}

/// A failure that was found without the kernel.
pub fn plain(code: FailureCode, message: impl Into<String>) -> Failure {
    Failure { code, message: message.into(), errno: None }
}

/// A path for a message: lossy where it is not UTF-8, cut where it is long.
pub fn shown(path: &[u8]) -> String {
    match path.get(..MAX_SHOWN) {
        Some(start) if path.len() > MAX_SHOWN => format!("{}…", String::from_utf8_lossy(start)),
        _ => String::from_utf8_lossy(path).into_owned(),
    }
}

fn code(errno: Errno) -> FailureCode {
    match errno {
        Errno::NOENT => FailureCode::NotFound,
        Errno::EXIST => FailureCode::Exists,
        Errno::NOTDIR | Errno::ISDIR | Errno::NOTEMPTY | Errno::LOOP | Errno::TXTBSY => {
            FailureCode::WrongKind
        }
        Errno::ACCESS | Errno::PERM | Errno::BUSY => FailureCode::Denied,
        Errno::ROFS => FailureCode::ReadOnly,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => FailureCode::Full,
        Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ => FailureCode::Invalid,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN => FailureCode::Exhausted,
        _ => FailureCode::Io,
    }
}
