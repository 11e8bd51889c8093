//! What the kernel's refusal of a file operation is called. The codes are those of a sandbox's files.

use moltis_sandbox::{Diagnosis, EntryKind, Error};
use rustix::io::Errno;

/// Longest name in a message, in bytes.
const MAX_SHOWN: usize = 400;

/// A path for a message: lossy where it is not UTF-8, cut where it is long.
pub fn shown(path: &[u8]) -> String {
    match path.get(..MAX_SHOWN) {
        Some(start) if path.len() > MAX_SHOWN => format!("{}…", String::from_utf8_lossy(start)),
        _ => String::from_utf8_lossy(path).into_owned(),
    }
}

/// A failure that the kernel reported. `message` names the thing and says what did not happen.
pub fn kernel(errno: Errno, message: String) -> Error {
    let say = |code| Diagnosis::new(code, message).cause(std::io::Error::from(errno));
    match errno {
        Errno::NOENT => Error::Invalid(say("file-missing")),
        Errno::EXIST => Error::Invalid(say("file-exists").fix(REPLACE)),
        Errno::NOTDIR | Errno::ISDIR | Errno::NOTEMPTY | Errno::LOOP => {
            Error::Invalid(say("file-wrong-kind"))
        }
        Errno::ACCESS | Errno::PERM | Errno::BUSY => Error::Refused(say("file-denied")),
        Errno::ROFS => Error::Refused(say("file-read-only")),
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
            Error::Unavailable(say("disk-full").fix("make room on the disk"))
        }
        Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ => Error::Invalid(say("request-invalid")),
        Errno::XDEV => Error::Invalid(say("file-other-mount").fix("copy it there and remove the old one")),
        _ => Error::Unavailable(say("file-io")),
    }
}

const REPLACE: &str = "take another name, or ask for it to be replaced (`--overwrite`)";

/// Something is there already.
pub fn exists(path: &[u8]) -> Error {
    Error::Invalid(Diagnosis::new("file-exists", format!("`{}` exists", shown(path))).fix(REPLACE))
}

/// Something is not of the kind that is needed.
pub fn wrong_kind(path: &[u8], found: EntryKind) -> Error {
    let what = match found {
        EntryKind::File => "is a file",
        EntryKind::Directory => "is a directory",
        EntryKind::Symlink => "is a link, and links are not followed here",
        EntryKind::Other => "is a FIFO, socket or device, which is never opened",
    };
    Error::Invalid(Diagnosis::new("file-wrong-kind", format!("`{}` {what}", shown(path))))
}

/// The input cannot be right.
pub fn invalid(code: &'static str, message: String) -> Error {
    Error::Invalid(Diagnosis::new(code, message))
}

/// A file is larger than it may be.
pub fn too_large(path: &[u8], limit: u64) -> Error {
    Error::Refused(
        Diagnosis::new(
            "file-too-large",
            format!("`{}` is larger than the {} MiB that a file may have here", shown(path), limit >> 20),
        )
        .fix("split it, or keep it in a workspace"),
    )
}
