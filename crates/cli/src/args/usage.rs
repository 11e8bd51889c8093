//! Command lines that cannot be parsed: what clap has to say, or where it is known what was meant, that.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use moltis_sandbox::Diagnosis;

/// What one who forgets the quotes or the `--` is told.
const WORDS: &str = "A line for the shell is one quoted word; a program with arguments follows `--`.";

/// Prints what clap has to say. Help and version are no errors; a usage error of `exec` and `shell` is 125, of all else
/// 2.
pub fn usage_error(mut error: clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Nothing can be done about a closed output here.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let command = command(words.iter().cloned()).unwrap_or_default();
    let runs_a_command = matches!(&*command, "exec" | "shell");
    let hint = hint(&command, &error);
    if runs_a_command {
        // Clap's advice to put `--` before an unknown flag would run it as a program.
        error.remove(ContextKind::Suggested);
    }
    let sentence = (command == "exec" && error.kind() == ErrorKind::UnknownArgument).then_some(WORDS);
    if words.iter().take_while(|word| *word != "--").any(|word| word == "--json") {
        let diagnosis = match hint {
            Some((what, hint)) => Diagnosis::new("usage", what).fix(hint),
            None => {
                let message = error.render().to_string();
                let message = message.strip_prefix("error: ").unwrap_or(&message).trim().to_owned();
                Diagnosis::new("usage", message).fix(sentence.unwrap_or("see --help"))
            }
        };
        // A reader that is gone cannot be told.
        let _ = crate::output::print_json(&serde_json::json!({ "kind": "invalid", "error": diagnosis }));
    } else if hint.is_none() && sentence.is_none() {
        // As above.
        let _ = error.print();
    } else {
        let whole = error.render().to_string();
        let (first, rest) = whole.split_once('\n').unwrap_or((&whole, ""));
        let first = match hint {
            Some((what, hint)) => format!("error: {what}: {hint}"),
            None => first.to_owned(),
        };
        let sentence = sentence.map(|sentence| format!("{sentence}\n")).unwrap_or_default();
        // As above.
        let _ = write!(std::io::stderr(), "{first}\n{sentence}{rest}");
    }
    ExitCode::from(if runs_a_command { 125 } else { 2 })
}

/// What is not there, and what was probably meant.
fn hint(command: &str, error: &clap::Error) -> Option<(String, &'static str)> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let flag = text(ContextKind::InvalidArg)?;
            Some((format!("there is no `{flag}`"), habit(command, flag)?))
        }
        ErrorKind::InvalidSubcommand => {
            let word = text(ContextKind::InvalidSubcommand)?;
            let meant = match command {
                "sandbox" => matches!(word, "list" | "ls").then_some("`moltis sandbox ps` lists them"),
                _ if command == word => elsewhere(word),
                _ => None,
            };
            Some((format!("there is no command `{word}`"), meant?))
        }
        _ => None,
    }
}

/// Flags that docker and ssh have, and how the same is said here.
fn habit(command: &str, flag: &str) -> Option<&'static str> {
    let hint = match (command, flag) {
        ("shell", "-i" | "--interactive" | "-t" | "--tty") => "a shell is on your terminal without it",
        ("exec", "-i" | "--interactive") => {
            "`--tty` (`-t`) runs a command on your terminal, `moltis shell` a shell; what is piped in is passed on \
             without a flag"
        }
        ("exec" | "shell", "-v" | "--volume" | "--mount") => "show a directory with `--workspace DIR[:rw]`",
        ("exec" | "shell", "-e") => "set a variable with `--env NAME[=VALUE]`",
        ("exec" | "shell", "-w" | "--workdir") => "say where to run with `--cwd PATH`",
        ("exec" | "shell", "-u" | "--user") => "commands run as the sandbox's own user",
        ("exec" | "shell", "--rm") => "a sandbox without --session goes by itself",
        ("exec" | "shell", "--name") => "name a sandbox that stays with `--session KEY`",
        ("exec" | "shell", "-m") => "bound the memory with `--memory SIZE`",
        ("exec", "-d" | "--detach") => "leave it running with `--session KEY --background`",
        _ => return None,
    };
    Some(hint)
}

/// Commands that other programs have at the top, and where they are here.
fn elsewhere(word: &str) -> Option<&'static str> {
    let place = match word {
        "run" | "start" => "`moltis exec` runs a command in a sandbox",
        "sh" | "bash" | "attach" | "enter" | "ssh" | "login" => "`moltis shell` is a shell in a sandbox",
        "stop" | "kill" => "`moltis sandbox stop` ends a sandbox, `moltis process stop` a background command",
        "rm" | "remove" => {
            "`moltis sandbox rm` removes a sandbox, `moltis session rm` a session, `moltis files remove` files"
        }
        "ps" | "list" | "ls" => {
            "`moltis sandbox ps` lists sandboxes, `moltis session list` sessions, `moltis process list` background commands"
        }
        "logs" => "`moltis process output` shows what a background command printed",
        "status" | "info" | "doctor" => "`moltis sandbox status` shows the backends",
        "explain" => "`moltis sandbox explain` says what would happen",
        "allow" | "deny" | "audit" | "pending" => "`moltis network` has them",
        "prune" => "`moltis sandbox prune` removes what is left of sandboxes",
        "port" | "ports" | "port-forward" | "expose" => {
            "`moltis forward` shows a sandbox's port on this machine"
        }
        "create" | "new" => "`moltis exec --session KEY` makes a session",
        "init" => "`moltis config init` writes a first configuration",
        _ => return None,
    };
    Some(place)
}

/// Exit status for what is Moltis's or the caller's fault, by what the command line seems to mean.
pub fn status_at_fault() -> i32 {
    match command(std::env::args_os().skip(1)).as_deref() {
        Some("exec" | "shell") => 125,
        _ => 1,
    }
}

/// The command that a command line means, whether it can be parsed or not: the first word that is no global flag nor its
/// value.
fn command(mut words: impl Iterator<Item = OsString>) -> Option<String> {
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--config" | "--data-dir") => drop(words.next()),
            Some(flag) if flag.starts_with('-') => {}
            word => return word.map(str::to_owned),
        }
    }
    None
}
