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
        Errno::NOENT => Error::Invalid(say("file-missing").fix("name something that is there")),
        Errno::EXIST => Error::Invalid(say("file-exists").fix(REPLACE)),
        Errno::NOTDIR | Errno::ISDIR | Errno::NOTEMPTY | Errno::LOOP => Error::Invalid(
            say("file-wrong-kind").fix("take another path, or move what is there out of the way"),
        ),
        Errno::ACCESS | Errno::PERM | Errno::BUSY => Error::Refused(
            say("file-denied").fix("change who may write there (`ls -l`), or use another place"),
        ),
        Errno::ROFS => Error::Refused(say("file-read-only").fix("use another place")),
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
            Error::Unavailable(say("disk-full").fix("make room on the disk"))
        }
        Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ => {
            Error::Invalid(say("request-invalid").fix("use a shorter or a plainer name"))
        }
        Errno::XDEV => Error::Invalid(say("file-other-mount").fix("copy it there and remove the old one")),
        _ => Error::Unavailable(say("file-io").fix("see whether the disk is in order, and try again")),
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
    let fix = match found {
        EntryKind::File => "name a folder",
        EntryKind::Directory => "name something in it",
        EntryKind::Symlink => "name what it leads to",
        EntryKind::Other => "leave it out",
    };
    Error::Invalid(Diagnosis::new("file-wrong-kind", format!("`{}` {what}", shown(path))).fix(fix))
}

/// The input cannot be right.
pub fn invalid(code: &'static str, message: String, fix: &str) -> Error {
    Error::Invalid(Diagnosis::new(code, message).fix(fix))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_says_what_to_do() {
        let errnos = (1..134).map(Errno::from_raw_os_error).map(|errno| kernel(errno, "x".to_owned()));
        let kinds = [EntryKind::File, EntryKind::Directory, EntryKind::Symlink, EntryKind::Other];
        let own = [exists(b"x"), too_large(b"x", 1), invalid("request-invalid", "x".to_owned(), "y")];
        for error in errnos.chain(kinds.map(|kind| wrong_kind(b"x", kind))).chain(own) {
            assert!(error.diagnosis().fix.is_some(), "{error:?}");
        }
    }
}
