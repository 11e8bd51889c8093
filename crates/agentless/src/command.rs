//! A request as words for a shell, and a shell's number as an end.

use std::time::Instant;

use moltis_sandbox::{Diagnosis, Error, Result, Status};

use crate::escape;

/// Longest single argument in bytes: the kernel's `MAX_ARG_STRLEN` without the NUL.
const MAX_STRING: usize = 128 * 1024 - 1;

/// Variables as text. `carrier` is who carries them: "an engine", "a provider".
///
/// # Errors
/// `env-value-invalid`, which names the variable.
pub fn variables(
    env: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)],
    carrier: &str,
) -> Result<Vec<(String, String)>> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let mut all = Vec::with_capacity(env.len());
    for (name, value) in env {
        match (text(name.as_ref()), text(value.as_ref())) {
            (Some(name), Some(value)) => all.push((name, value)),
            _ => return Err(not_text(name.as_ref(), carrier)),
        }
    }
    Ok(all)
}

/// Whether a shell takes this for the name of a variable.
pub fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// A variable that cannot be carried.
pub fn not_text(name: &[u8], carrier: &str) -> Error {
    let name = String::from_utf8_lossy(name).into_owned();
    Error::Invalid(
        Diagnosis::new("env-value-invalid", format!("the variable {name} is no text"))
            .cause(format!(
                "a sandbox without an agent gets its variables through {carrier}, which carries text (UTF-8) only"
            ))
            .fix("write the value to a file and pass the file's name"),
    )
}

/// Words for a script. If they are not all text they are escaped, and the word at `flag` is then `1`.
///
/// # Errors
/// `command-too-long`, when one is above the kernel's limit once it is escaped.
pub fn words(all: &[&[u8]], flag: usize, carrier: &str) -> Result<Vec<String>> {
    let (is_escaped, mut words) = escape::words(all);
    if is_escaped {
        if let Some(word) = words.get_mut(flag) {
            "1".clone_into(word);
        }
        if let Some(long) = words.iter().find(|word| word.len() > MAX_STRING) {
            return Err(too_long(long.len(), carrier));
        }
    }
    Ok(words)
}

/// An argument above the kernel's limit.
pub fn too_long(length: usize, carrier: &str) -> Error {
    Error::Invalid(
        Diagnosis::new(
            "command-too-long",
            format!(
                "an argument of the command is {length} bytes long once it is escaped, above {MAX_STRING}"
            ),
        )
        .cause(format!("{carrier} carries text only, and other bytes take five times the room"))
        .fix("write it to a file, and pass the file's name"),
    )
}

/// What a shell's number means: it tells signals from 129 on.
pub fn status(code: i32) -> Status {
    match code {
        129..=192 => Status::Signal(code - 128),
        code => Status::Code(code & 0xff),
    }
}

/// Waits until then; absent: forever.
pub async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_a_shell_tells_them() {
        for (code, want) in [
            (0, Status::Code(0)),
            (128, Status::Code(128)),
            (137, Status::Signal(9)),
            (192, Status::Signal(64)),
            (255, Status::Code(255)),
        ] {
            assert_eq!(status(code), want);
        }
    }

    #[test]
    fn what_is_no_text_is_escaped_and_flagged_up_to_a_limit() {
        assert_eq!(words(&[b"0", b"a"], 0, "x").unwrap(), ["0", "a"]);
        assert_eq!(words(&[b"0", b"\xff"], 0, "x").unwrap(), ["1", "\\0377"]);
        let long = vec![0xff; MAX_STRING / 5 + 1];
        assert_eq!(words(&[b"0", &long], 0, "x").unwrap_err().code(), "command-too-long");
        assert_eq!(variables(&[(b"A", b"\xff")], "x").unwrap_err().code(), "env-value-invalid");
    }
}
