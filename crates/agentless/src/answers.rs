//! What the scripts of files print, and what their ends mean.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use moltis_sandbox::{Diagnosis, Entry, EntryKind, Error, GuestPath, Metadata, Result};

use crate::said::plain;

/// What a script's end means. The words are those of its tools in the C locale.
pub fn wrong(code: i32, words: &[u8], path: &GuestPath) -> Error {
    let said = plain(words);
    let has = |text: &str| said.contains(text);
    let path: String =
        path.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
    let told = |code: &'static str, what: &str| {
        let diagnosis = Diagnosis::new(code, format!("`{path}` {what}"));
        if said.is_empty() { diagnosis } else { diagnosis.cause(&said) }
    };
    let code = match code {
        1 | 2 if has("No such file or directory") => 41,
        1 | 2 if has("File exists") => 42,
        1 | 2 if has("Not a directory") || has("Is a directory") || has("symbolic links") => 43,
        1 | 2 if has("Permission denied") || has("not permitted") => 44,
        1 | 2 if has("Read-only file system") => 45,
        1 | 2 if has("No space left") || has("quota") => 46,
        code => code,
    };
    match code {
        41 => Error::Invalid(
            told("file-missing", "does not exist").fix("name something that is there inside the sandbox"),
        ),
        42 => Error::Invalid(
            told("file-exists", "exists already").fix("take another name, or ask for it to be replaced"),
        ),
        43 => Error::Invalid(told("file-wrong-kind", "is of another kind than this takes")),
        44 => Error::Refused(
            told("file-denied", "may not be used so by the sandbox's user")
                .fix("use another place inside the sandbox, or one that its user may change"),
        ),
        45 => Error::Refused(
            told("file-read-only", "cannot be written to")
                .fix("use a place that can be written, as the home or /tmp; a workspace can be if it is named with `:rw`"),
        ),
        46 => Error::Unavailable(
            told("disk-full", "does not fit").fix("remove files inside the sandbox, or make room on the disk behind it"),
        ),
        48 => Error::Unavailable(told("file-changed", "changed while it was being written")),
        _ => Error::Invalid(told("file-failed", "could not be worked on")),
    }
}

/// A tool that did not end in time.
pub fn slow(path: &GuestPath, within: Duration) -> Error {
    Error::Lost(Diagnosis::new(
        "agent-silent",
        format!("work on `{path}` was ended after {} s", within.as_secs()),
    ))
}

/// More than is kept in memory.
pub fn too_much() -> Error {
    Error::Invalid(Diagnosis::new(
        "file-list-too-long",
        "the answer is longer than can be carried without an agent",
    ))
}

/// Metadata as `stat -c '%f %s %Y %u %g'` prints it.
pub fn metadata(line: &str) -> Option<Metadata> {
    let mut words = line.split(' ');
    let bits = u32::from_str_radix(words.next()?, 16).ok()?;
    let size = words.next()?.parse().ok()?;
    let seconds: i64 = words.next()?.parse().ok()?;
    let uid = words.next()?.parse().ok()?;
    let gid = words.next()?.parse().ok()?;
    Some(Metadata {
        kind: match bits & 0o170_000 {
            0o100_000 => EntryKind::File,
            0o040_000 => EntryKind::Directory,
            0o120_000 => EntryKind::Symlink,
            _ => EntryKind::Other,
        },
        size,
        mode: bits & 0o7777,
        modified_nanos: seconds.saturating_mul(1_000_000_000),
        uid,
        gid,
        target: None,
    })
}

/// The first line of an answer as metadata, and what comes after it.
pub fn first_line(bytes: &[u8]) -> Result<(Metadata, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (line, rest) = bytes.split_at(end);
    let found = std::str::from_utf8(line).ok().and_then(metadata).ok_or_else(|| unlike(line))?;
    Ok((found, rest.get(1..).unwrap_or_default()))
}

/// What none of our scripts prints.
pub fn unlike(line: &[u8]) -> Error {
    Error::Unavailable(
        Diagnosis::new("agent-protocol", "the sandbox's tools said something else than expected")
            .cause(plain(line)),
    )
}

/// The entries of a directory: records that end with two slashes, which no name holds, and the links among them with
/// their targets.
pub fn entries(bytes: &[u8]) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut rest = bytes;
    while let Some(first) = rest.first().filter(|first| **first != b'=') {
        let end = rest.windows(3).position(|w| w == b"//\n").ok_or_else(|| unlike(&[*first]))?;
        let record = &rest[..end];
        rest = &rest[end + 3..];
        let mut spaces = record.iter().enumerate().filter(|(_, byte)| **byte == b' ').map(|(at, _)| at);
        let at = spaces.nth(4).ok_or_else(|| unlike(record))?;
        let (line, name) = record.split_at(at);
        let name = name[1..].strip_prefix(b"./").ok_or_else(|| unlike(record))?;
        let found = std::str::from_utf8(line).ok().and_then(metadata).ok_or_else(|| unlike(line))?;
        entries.push(Entry { name: OsString::from_vec(name.to_vec()), metadata: found });
    }
    rest = rest.strip_prefix(b"=\n").unwrap_or_default();
    let mut links: std::collections::HashMap<OsString, usize> = entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.metadata.kind == EntryKind::Symlink)
        .map(|(at, entry)| (entry.name.clone(), at))
        .collect();
    while let Some(end) = rest.windows(2).position(|w| w == b"//") {
        let Some(name) = rest[..end].strip_prefix(b"./") else { break };
        rest = &rest[end + 2..];
        let Some(at) = links.remove(&OsString::from_vec(name.to_vec())) else { break };
        let length = usize::try_from(entries[at].metadata.size).unwrap_or(usize::MAX);
        let Some(target) = rest.get(..length).filter(|_| rest.get(length) == Some(&b'\n')) else { break };
        entries[at].metadata.target = Some(OsString::from_vec(target.to_vec()));
        rest = &rest[length + 1..];
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_whatever_names_are_in_them() {
        let listed =
            b"81a4 3 1000000000 0 0 ./a b\n=//\na1ff 4 5 1 2 ./l//\n41ed 40 6 0 0 ./d//\n=\n./l//x//y\n";
        let found = entries(listed).unwrap();
        let names: Vec<_> = found.iter().map(|e| e.name.to_string_lossy().into_owned()).collect();
        assert_eq!(names, ["a b\n=", "l", "d"]);
        assert_eq!(
            (found[0].metadata.mode, found[0].metadata.modified_nanos),
            (0o644, 1_000_000_000_000_000_000)
        );
        assert_eq!(found[1].metadata.target, Some("x//y".into()));
        assert_eq!(found[2].metadata.kind, EntryKind::Directory);
        assert!(entries(b"junk").is_err() && entries(b"81a4 3 1 0 0 a//\n").is_err());
    }
}
