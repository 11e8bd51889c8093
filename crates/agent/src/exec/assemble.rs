//! From a request to what the agent is told: program, environment, directory.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use moltis_agent_protocol::message::{ByteString, ExecStart};
use moltis_sandbox::{Command, Diagnosis, Error, ExecRequest, Result};

use crate::error::TOO_LONG_FIX;
use crate::sandbox::Place;

/// Longest single argument or variable in bytes: the kernel's `MAX_ARG_STRLEN` without the NUL.
const MAX_STRING: usize = 128 * 1024 - 1;

/// Longest command line and environment together in bytes. The kernel takes a quarter of the stack limit, usually
/// 2 MiB; the agent says so where it takes less.
const MAX_TOTAL: usize = 2 * 1024 * 1024;

const TERM: &str = "TERM";

/// What the agent is told to run in `place`.
///
/// # Errors
/// `Invalid` for a command or an environment that no kernel takes.
pub fn assemble(place: &Place, request: ExecRequest) -> Result<ExecStart> {
    let argv = argv(place, request.command)?;
    let env = environment(place, request.env, request.terminal.is_some())?;
    let total = argv.iter().map(|arg| arg.len() + 1).sum::<usize>()
        + env.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>();
    if total > MAX_TOTAL {
        return Err(Error::Invalid(
            Diagnosis::new(
                "command-too-long",
                format!("the command and its environment are {total} bytes long, above {MAX_TOTAL}"),
            )
            .fix(TOO_LONG_FIX),
        ));
    }
    Ok(ExecStart {
        argv,
        env,
        cwd: request.cwd.or_else(|| place.cwd.clone()).map(|path| ByteString::from(path.as_bytes())),
        stdin: request.stdin,
        timeout_millis: request.timeout.map_or(0, millis),
        terminal: request.terminal.map(|size| (size.rows, size.columns)),
        background: request.background,
    })
}

fn argv(place: &Place, command: Command) -> Result<Vec<ByteString>> {
    let words = match command {
        Command::Shell(line) => {
            if line.is_empty() {
                return Err(empty());
            }
            let mut words = vec![place.shell.clone(), "-c".into()];
            // A line that looks like an option would be taken for one.
            if matches!(line.as_bytes().first(), Some(b'-' | b'+')) {
                words.push("--".into());
            }
            words.push(line);
            words
        }
        Command::Argv(words) => {
            if words.first().is_none_or(|program| program.is_empty()) {
                return Err(empty());
            }
            words
        }
    };
    for word in &words {
        if word.as_bytes().contains(&0) {
            return Err(Error::Invalid(
                Diagnosis::new("command-nul", "the command holds a NUL byte, which no program can be given")
                    .fix("remove it, or pass the data on standard input"),
            ));
        }
        if word.len() > MAX_STRING {
            return Err(Error::Invalid(
                Diagnosis::new(
                    "command-too-long",
                    format!("an argument of the command is {} bytes long, above {MAX_STRING}", word.len()),
                )
                .cause("the kernel takes no longer one (MAX_ARG_STRLEN)")
                .fix(TOO_LONG_FIX),
            ));
        }
    }
    Ok(words.into_iter().map(bytes).collect())
}

fn empty() -> Error {
    Error::Invalid(
        Diagnosis::new("command-empty", "the command is empty").fix("say what to run, for instance `true`"),
    )
}

/// The place's variables, then the request's; of equal names the last stays.
fn environment(
    place: &Place,
    request: Vec<(OsString, OsString)>,
    terminal: bool,
) -> Result<Vec<(ByteString, ByteString)>> {
    for (name, value) in &request {
        judge(name, value)?;
    }
    // TERM tells programs that there is a terminal: the place's own counts only where there is one.
    let own = place.env.iter().filter(|(name, _)| name != TERM).cloned();
    let term = terminal.then(|| (OsString::from(TERM), OsString::from("xterm-256color")));
    let all: Vec<_> = own.chain(term).chain(request).collect();
    let mut seen = HashSet::with_capacity(all.len());
    let mut kept: Vec<bool> = all.iter().rev().map(|(name, _)| seen.insert(name.clone())).collect();
    kept.reverse();
    Ok(all
        .into_iter()
        .zip(kept)
        .filter(|(_, kept)| *kept)
        .map(|((name, value), _)| (bytes(name), bytes(value)))
        .collect())
}

fn judge(name: &OsStr, value: &OsStr) -> Result<()> {
    let shown = name.to_string_lossy();
    if name.is_empty() || name.as_bytes().contains(&b'=') || name.as_bytes().contains(&0) {
        return Err(Error::Invalid(
            Diagnosis::new("env-name-invalid", format!("`{shown}` cannot be the name of a variable"))
                .cause("a name is not empty and holds neither `=` nor a NUL byte"),
        ));
    }
    if value.as_bytes().contains(&0) {
        return Err(Error::Invalid(Diagnosis::new(
            "env-value-invalid",
            format!("the value of the variable {shown} holds a NUL byte"),
        )));
    }
    if name.len() + 1 + value.len() > MAX_STRING {
        return Err(Error::Invalid(
            Diagnosis::new(
                "env-value-too-long",
                format!(
                    "the variable {shown} is {} bytes long, above {MAX_STRING}",
                    name.len() + 1 + value.len()
                ),
            )
            .cause("the kernel takes no longer one (MAX_ARG_STRLEN)")
            .fix("write the value to a file and pass the file's name"),
        ));
    }
    Ok(())
}

fn bytes(string: OsString) -> ByteString {
    ByteString::from(string.into_vec())
}

/// Whole milliseconds, rounded up: 0 would mean no time-out at all.
fn millis(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use moltis_sandbox::GuestPath;
    use moltis_sandbox::exec::TerminalSize;

    use super::*;

    fn place() -> Place {
        Place {
            env: vec![("HOME".into(), "/home/sandbox".into()), ("TERM".into(), "dumb".into())],
            cwd: GuestPath::new("/home/sandbox"),
            shell: "/bin/sh".into(),
        }
    }

    fn shell(line: &str) -> ExecRequest {
        ExecRequest::new(Command::Shell(line.into()))
    }

    fn strings(list: &[ByteString]) -> Vec<String> {
        list.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    fn variables(start: &ExecStart) -> Vec<String> {
        start
            .env
            .iter()
            .map(|(name, value)| {
                format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
            })
            .collect()
    }

    fn code(request: ExecRequest) -> String {
        let error = assemble(&place(), request).unwrap_err();
        assert_eq!(error.kind(), "invalid");
        error.code().to_owned()
    }

    #[test]
    fn a_line_goes_to_the_shell_as_one_word() {
        let start = assemble(&place(), shell("echo 'a b'; exit 3")).unwrap();
        assert_eq!(strings(&start.argv), ["/bin/sh", "-c", "echo 'a b'; exit 3"]);
        assert_eq!(start.cwd.unwrap().as_slice(), b"/home/sandbox");
        let start = assemble(&place(), shell("-n; echo")).unwrap();
        assert_eq!(strings(&start.argv), ["/bin/sh", "-c", "--", "-n; echo"]);
    }

    #[test]
    fn later_variables_win_and_term_needs_a_terminal() {
        let mut request = shell("true");
        request.env =
            vec![("A".into(), "1".into()), ("HOME".into(), "/elsewhere".into()), ("A".into(), "2".into())];
        let start = assemble(&place(), request.clone()).unwrap();
        assert_eq!(variables(&start), ["HOME=/elsewhere", "A=2"]);
        request.terminal = Some(TerminalSize { rows: 24, columns: 80 });
        let start = assemble(&place(), request.clone()).unwrap();
        assert_eq!(variables(&start), ["TERM=xterm-256color", "HOME=/elsewhere", "A=2"]);
        request.env.push(("TERM".into(), "vt100".into()));
        let start = assemble(&place(), request).unwrap();
        assert_eq!(variables(&start), ["HOME=/elsewhere", "A=2", "TERM=vt100"]);
    }

    #[test]
    fn time_is_never_rounded_to_none() {
        assert_eq!(millis(Duration::ZERO), 1);
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_micros(1001)), 2);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }

    #[test]
    fn what_no_kernel_takes_is_said_here() {
        assert_eq!(code(shell("")), "command-empty");
        assert_eq!(code(ExecRequest::new(Command::Argv(Vec::new()))), "command-empty");
        assert_eq!(code(ExecRequest::new(Command::Argv(vec!["".into()]))), "command-empty");
        assert_eq!(code(shell("a\0b")), "command-nul");
        assert_eq!(code(ExecRequest::new(Command::Argv(vec!["a".into(), "\0".into()]))), "command-nul");
        assert!(assemble(&place(), shell(&"x".repeat(MAX_STRING))).is_ok());
        assert_eq!(code(shell(&"x".repeat(MAX_STRING + 1))), "command-too-long");
        assert_eq!(code(shell(&"x".repeat(4 << 20))), "command-too-long");
        let many = vec![OsString::from("x".repeat(100_000)); 30];
        assert_eq!(code(ExecRequest::new(Command::Argv(many))), "command-too-long");
        for (name, value, expected) in [
            ("A=B", "", "env-name-invalid"),
            ("", "x", "env-name-invalid"),
            ("A\0", "x", "env-name-invalid"),
            ("A", "x\0", "env-value-invalid"),
            ("A", &"x".repeat(MAX_STRING), "env-value-too-long"),
        ] {
            let mut request = shell("true");
            request.env = vec![(name.into(), value.into())];
            assert_eq!(code(request), expected);
        }
    }
}
