//! Paths as the host sends them.

use moltis_agent_protocol::message::{Failure, FailureCode};

use super::failure::{plain, shown};

/// Longest path in bytes: the kernel's `PATH_MAX` without the NUL.
const MAX_PATH: usize = 4095;

/// An absolute path without NUL that the kernel can take.
pub fn checked(path: &[u8]) -> Result<&[u8], Failure> {
    let wrong = |why: &str| Err(plain(FailureCode::Invalid, format!("`{}` {why}", shown(path))));
    if path.first() != Some(&b'/') {
        return wrong("is not an absolute path");
    }
    if path.contains(&0) {
        return wrong("holds a NUL byte");
    }
    if path.len() > MAX_PATH {
        return wrong("is longer than a path can be");
    }
    Ok(path)
}

/// The directory part and the last name of a path. Slashes at the end do not count. `None` when the last name is none
/// that an entry can have: of `/`, `.` and `..`.
///
/// The directory part of a relative path without a slash is `.`.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let path = &path[..end];
    let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..=slash], &path[slash + 1..]),
        None => (&b"."[..], path),
    };
    (name != b"." && name != b"..").then_some((directory, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_count() {
        assert!(checked(b"/a\xff/../b").is_ok());
        for wrong in [&b""[..], b"a", b"./a", b"/a\0", &[b'/'; 4096]] {
            assert_eq!(checked(wrong).unwrap_err().code, FailureCode::Invalid);
        }
    }

    #[test]
    fn the_last_name_is_one_that_an_entry_can_have() {
        let cases: Vec<(&[u8], Option<_>)> = vec![
            (b"/a", Some((&b"/"[..], &b"a"[..]))),
            (b"/a/b//", Some((b"/a/", b"b"))),
            (b"b", Some((b".", b"b"))),
            (b"../b", Some((b"../", b"b"))),
            (b"/", None),
            (b"//", None),
            (b"/a/.", None),
            (b"/a/../", None),
            (b"..", None),
        ];
        for (path, expected) in cases {
            assert_eq!(split(path), expected, "{}", shown(path));
        }
    }
}
