//! `--env` and `--env-file`: the variables that a command is given.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use moltis_sandbox::Diagnosis;

use crate::failure::Failure;

/// Largest environment file in bytes.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// Variables of all `--env-file`s, then of all `--env`s: later ones win.
pub fn collect(files: &[impl AsRef<Path>], flags: &[OsString]) -> Result<Vec<(OsString, OsString)>, Failure> {
    let mut variables = Vec::new();
    for file in files {
        read_file(file.as_ref(), &mut variables)?;
    }
    for flag in flags {
        variables.extend(parse(flag, || format!("--env {}", flag.to_string_lossy()))?);
    }
    Ok(variables)
}

/// `NAME=VALUE`, or `NAME` for the caller's own value; nothing when the caller has none.
fn parse(word: &OsStr, place: impl Fn() -> String) -> Result<Option<(OsString, OsString)>, Failure> {
    let bytes = word.as_bytes();
    let (name, value) = match bytes.iter().position(|b| *b == b'=') {
        Some(at) => (&bytes[..at], Some(OsString::from_vec(bytes[at + 1..].to_vec()))),
        None => (bytes, std::env::var_os(word)),
    };
    if name.is_empty() || bytes.contains(&0) {
        return Err(Failure::invalid(
            Diagnosis::new("env-name-invalid", format!("{}: a variable needs a name", place()))
                .fix("write NAME=VALUE, or NAME alone to pass on the caller's value"),
        ));
    }
    Ok(value.map(|value| (OsString::from_vec(name.to_vec()), value)))
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
        let place = || format!("{}:{}", path.display(), number + 1);
        variables.extend(parse(OsStr::from_bytes(line), place)?);
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
        assert!(flags(&["=x"]).is_err());
        assert!(flags(&[""]).is_err());
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
