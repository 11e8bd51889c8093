//! Files of a writable workspace that run code on the host later (SECURITY 7): found by globs, never through a link.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, openat2, statat};
use rustix::io::Errno;

use crate::error::Result;
use crate::root::names;
use crate::sources::Judged;

/// Deepest directory that `**` looks into.
const MAX_DEPTH: usize = 64;

/// Matches at most; more would make a sandbox with so many mounts that it could hardly start.
const MAX_MATCHES: usize = 2_000;

/// What was found, as paths relative to the workspace.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Protected {
    /// Directories between the workspace and a match, outer ones first.
    pub above: Vec<Vec<u8>>,
    /// Files and directories that match.
    pub matches: Vec<Vec<u8>>,
}

/// Looks for existing matches of the globs below the workspace. `*`, `?` and `[…]` match within a name, `**` any
/// number of directories. Links are no matches: what they lead to is either protected itself or not in the workspace.
///
/// # Errors
/// When a directory cannot be read, or there are more matches than can be mounted.
pub fn matches(workspace: &Judged, globs: &[String]) -> Result<Protected> {
    let mut found = BTreeSet::new();
    for glob in globs {
        let parts: Vec<&[u8]> = glob
            .as_bytes()
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty() && *part != b".")
            .collect();
        if !parts.is_empty() {
            walk(&workspace.handle, &mut Vec::new(), &parts, MAX_DEPTH, &mut found)?;
        }
    }
    // What lies in a match is protected with it.
    let matches: Vec<Vec<u8>> =
        found.iter().filter(|path| !ancestors(path).any(|above| found.contains(above))).cloned().collect();
    let above: BTreeSet<Vec<u8>> =
        matches.iter().flat_map(|path| ancestors(path).map(<[u8]>::to_vec)).collect();
    Ok(Protected { above: above.into_iter().collect(), matches })
}

fn walk(
    directory: &OwnedFd,
    path: &mut Vec<u8>,
    parts: &[&[u8]],
    depth: usize,
    found: &mut BTreeSet<Vec<u8>>,
) -> Result<()> {
    let [part, rest @ ..] = parts else { return Ok(()) };
    if depth == 0 {
        return Ok(());
    }
    if *part == b"**" {
        walk(directory, path, rest, depth, found)?;
        for name in names(directory)? {
            enter(directory, path, &name, parts, depth, found)?;
        }
        return Ok(());
    }
    let candidates = if part.iter().any(|byte| b"*?[".contains(byte)) {
        names(directory)?.into_iter().filter(|name| name_matches(part, name)).collect()
    } else {
        vec![part.to_vec()]
    };
    for name in candidates {
        if rest.is_empty() {
            take(directory, path, &name, found)?;
        } else {
            enter(directory, path, &name, rest, depth, found)?;
        }
    }
    Ok(())
}

/// Goes on in a directory, if the name is one.
fn enter(
    directory: &OwnedFd,
    path: &mut Vec<u8>,
    name: &[u8],
    parts: &[&[u8]],
    depth: usize,
    found: &mut BTreeSet<Vec<u8>>,
) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match openat2(directory, name, flags, Mode::empty(), resolve) {
        Ok(below) => {
            let length = path.len();
            push(path, name);
            let walked = walk(&below, path, parts, depth - 1, found);
            path.truncate(length);
            walked
        }
        Err(_) => Ok(()),
    }
}

fn take(directory: &OwnedFd, path: &[u8], name: &[u8], found: &mut BTreeSet<Vec<u8>>) -> Result<()> {
    let kind = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => FileType::from_raw_mode(stat.st_mode),
        Err(_) => return Ok(()),
    };
    if matches!(kind, FileType::Directory | FileType::RegularFile) {
        let mut whole = path.to_vec();
        push(&mut whole, name);
        found.insert(whole);
        if found.len() > MAX_MATCHES {
            return Err(crate::error::Error::system("too many files of the workspace are to be protected")(
                Errno::NOSPC,
            ));
        }
    }
    Ok(())
}

fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// The directories above a relative path, outermost first, without the workspace itself.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at])
}

/// Whether a name matches one part of a glob. A leading dot is not special.
fn name_matches(glob: &[u8], name: &[u8]) -> bool {
    match (glob, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|skip| name_matches(rest, &name[skip..])),
        ([b'?', rest @ ..], [_, name @ ..]) => name_matches(rest, name),
        ([b'[', rest @ ..], [byte, name @ ..]) => match rest.iter().skip(1).position(|b| *b == b']') {
            Some(end) => {
                let (set, rest) = (&rest[..=end], &rest[end + 2..]);
                in_set(set, *byte) && name_matches(rest, name)
            }
            None => *byte == b'[' && name_matches(rest, name),
        },
        ([first, rest @ ..], [byte, name @ ..]) => first == byte && name_matches(rest, name),
        _ => false,
    }
}

fn in_set(set: &[u8], byte: u8) -> bool {
    let (negated, set) = match set {
        [b'!' | b'^', rest @ ..] if !rest.is_empty() => (true, rest),
        set => (false, set),
    };
    let mut at = 0;
    let mut hit = false;
    while at < set.len() {
        if at + 2 < set.len() && set[at + 1] == b'-' {
            hit |= (set[at]..=set[at + 2]).contains(&byte);
            at += 3;
        } else {
            hit |= set[at] == byte;
            at += 1;
        }
    }
    hit != negated
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Caller;
    use crate::sources::{Judge, Role};
    use std::path::Path;

    #[test]
    fn names_match_globs() {
        for (glob, name, matches) in [
            (".moltis*", ".moltis", true),
            (".moltis*", ".moltis.toml", true),
            (".moltis*", "moltis", false),
            ("a?c", "abc", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[", "[", true),
            ("*.y*l", "a.yaml", true),
        ] {
            assert_eq!(name_matches(glob.as_bytes(), name.as_bytes()), matches, "{glob} {name}");
        }
    }

    #[test]
    fn existing_matches_are_found_and_links_are_not() {
        let temp = tempfile::tempdir().unwrap();
        let at = |path: &str| temp.path().join(path);
        for directory in [".git/hooks", ".vscode", "sub/.git/hooks", "plain"] {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        for file in [".git/config", ".moltis.toml", "plain/x", "sub/.git/config"] {
            std::fs::write(at(file), "").unwrap();
        }
        std::os::unix::fs::symlink("/etc", at(".idea")).unwrap();
        std::os::unix::fs::symlink("plain", at("link")).unwrap();
        let nowhere = Path::new("/nonexistent-data");
        let caller = Caller { uid: 1, gid: 1, name: None, homes: Vec::new() };
        let workspace =
            Judge::new(nowhere, None, &caller).unwrap().judge(Role::Workspace, temp.path()).unwrap();
        let globs: Vec<String> =
            [".git/hooks", ".git/config", ".vscode", ".idea", ".moltis*", ".envrc", "link/x"]
                .map(String::from)
                .into();
        let found = matches(&workspace, &globs).unwrap();
        let expected: Vec<&[u8]> = vec![b".git/config", b".git/hooks", b".moltis.toml", b".vscode"];
        assert_eq!(found.matches, expected);
        assert_eq!(found.above, vec![b".git".to_vec()]);
        let deep = matches(&workspace, &["**/.git/config".into()]).unwrap();
        let expected: Vec<&[u8]> = vec![b".git/config", b"sub/.git/config"];
        assert_eq!(deep.matches, expected);
    }
}
