//! `--env` and `--env-file`: the variables that a command is given.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use moltis_sandbox::Diagnosis;

use crate::failure::Failure;
use crate::render;

/// Largest environment file in bytes.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// Variables of all `--env-file`s, then of all `--env`s: later ones win.
pub fn collect(files: &[impl AsRef<Path>], flags: &[OsString]) -> Result<Vec<(OsString, OsString)>, Failure> {
    let mut variables = Vec::new();
    for file in files {
        read_file(file.as_ref(), &mut variables)?;
    }
    for flag in flags {
        variables.extend(parse(flag, &Place::Flag)?);
    }
    Ok(variables)
}

/// `NAME=VALUE`, or `NAME` for the caller's own value; nothing when the caller has none, which is said.
fn parse(word: &OsStr, place: &Place<'_>) -> Result<Option<(OsString, OsString)>, Failure> {
    let bytes = word.as_bytes();
    let (name, value) = match bytes.iter().position(|b| *b == b'=') {
        Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
        None => (bytes, None),
    };
    if !is_name(name) {
        return Err(place.invalid(place.misnamed(name), fix(name)));
    }
    if bytes.contains(&0) {
        return Err(place.invalid(format!("{place}: a value cannot hold a NUL byte"), "take it out"));
    }
    let value = match value {
        Some(value) => Some(OsString::from_vec(value.to_vec())),
        None => std::env::var_os(word),
    };
    if value.is_none() {
        let name = String::from_utf8_lossy(name);
        match place {
            Place::Flag => crate::say!("moltis: {name} is not set here and is left out"),
            Place::File(..) => crate::say!(
                "moltis: {name} is not set here and is left out ({})",
                render::one_line(&place.to_string())
            ),
        }
    }
    Ok(value.map(|value| (OsString::from_vec(name.to_vec()), value)))
}

/// Where a variable is named.
enum Place<'a> {
    Flag,
    File(&'a Path, usize),
}

impl Place<'_> {
    /// The failure; a file may be right another time, a flag never.
    fn invalid(&self, message: String, fix: &str) -> Failure {
        let diagnosis = Diagnosis::new("env-name-invalid", message).fix(fix);
        match self {
            Self::Flag => Failure::usage(diagnosis),
            Self::File(..) => Failure::invalid(diagnosis),
        }
    }

    /// What is wrong with a name. Lines of a file may be secrets, and are not repeated.
    fn misnamed(&self, name: &[u8]) -> String {
        match self {
            Self::Flag => {
                format!("{self}: {:?} is no name of a variable", String::from_utf8_lossy(name))
            }
            Self::File(..) => format!("{self}: what is before the `=` is no name of a variable"),
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("--env"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
        }
    }
}

fn is_name(name: &[u8]) -> bool {
    let [first, rest @ ..] = name else { return false };
    let is_letter = |b: &u8| b.is_ascii_alphabetic() || *b == b'_';
    is_letter(first) && rest.iter().all(|b| is_letter(b) || b.is_ascii_digit())
}

/// What makes a name of this.
fn fix(name: &[u8]) -> &'static str {
    if name.trim_ascii_start().starts_with(b"export ") {
        "write NAME=VALUE without `export`"
    } else if name.trim_ascii() != name {
        "write NAME=VALUE without spaces around the name"
    } else {
        "write NAME=VALUE, or NAME alone to pass on the caller's value; a name has letters, digits and _, and no digit \
         first"
    }
}

fn read_file(path: &Path, variables: &mut Vec<(OsString, OsString)>) -> Result<(), Failure> {
    let unreadable = |cause: String| {
        Failure::invalid(
            Diagnosis::new(
                "env-file-unreadable",
                format!("cannot read the environment file {}", path.display()),
            )
            .cause(cause)
            .fix("name a readable file of NAME=VALUE lines"),
        )
    };
    let mut content = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| unreadable(e.to_string()))?;
    // A device or a pipe has no length that could be asked for.
    file.take(MAX_FILE + 1).read_to_end(&mut content).map_err(|e| unreadable(e.to_string()))?;
    if content.len() as u64 > MAX_FILE {
        return Err(unreadable(format!("it holds more than {MAX_FILE} bytes")));
    }
    for (number, line) in content.split(|b| *b == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.trim_ascii().is_empty() || line.trim_ascii_start().starts_with(b"#") {
            continue;
        }
        variables.extend(parse(OsStr::from_bytes(line), &Place::File(path, number + 1))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(words: &[&str]) -> Result<Vec<(OsString, OsString)>, Failure> {
        collect(&[] as &[&Path], &words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn values_may_hold_anything_but_nul() {
        let got = flags(&["A=1", "B=x=y z", "C="]).unwrap_or_default();
        let want: Vec<(OsString, OsString)> =
            [("A", "1"), ("B", "x=y z"), ("C", "")].map(|(n, v)| (n.into(), v.into())).into();
        assert_eq!(got, want);
    }

    #[test]
    fn a_name_is_needed() {
        for word in ["=x", "", "B =1", " B=1", "export C=1", "1A=1", "A-B=1", "A.B", "é=1"] {
            assert!(flags(&[word]).is_err(), "{word}");
        }
        assert!(flags(&["_a1=", "A_b=1"]).is_ok());
    }

    #[test]
    fn files_skip_comments_and_keep_spaces() {
        let file = std::env::temp_dir().join(format!("moltis-env-{}", std::process::id()));
        std::fs::write(&file, "# no\n\nA= 1 \r\n  # no\nB=2").unwrap();
        let got = collect(&[&file], &[]).unwrap_or_default();
        std::fs::remove_file(&file).unwrap();
        let want: Vec<(OsString, OsString)> =
            [("A", " 1 "), ("B", "2")].map(|(n, v)| (n.into(), v.into())).into();
        assert_eq!(got, want);
    }
}
