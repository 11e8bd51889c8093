//! `timeout TIME COMMAND`: ends a command of the shell after as long as is asked for.

use std::time::Duration;

use bashkit::{Builtin, BuiltinContext, ExecResult, ExecutionPlan, SubCommand, async_trait};

use super::interval;

/// Longer than any command lasts: what `0` asks for.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Asked<'a> {
    time: Duration,
    preserve_status: bool,
    command: &'a str,
    args: &'a [String],
}

impl<'a> Asked<'a> {
    fn read(words: &'a [String]) -> Result<Self, String> {
        let (mut at, mut preserve_status) = (0, false);
        while let Some(word) = words.get(at).filter(|word| word.starts_with('-') && word.len() > 1) {
            at += 1;
            match word.as_str() {
                "--" => break,
                "-p" | "--preserve-status" => preserve_status = true,
                "-f" | "--foreground" | "-v" | "--verbose" => {}
                // Which signal ends it makes no difference here.
                "-k" | "-s" | "--kill-after" | "--signal" => at += 1,
                word if word.starts_with("--kill-after=") || word.starts_with("--signal=") => {}
                word if !word.starts_with("--") && ['k', 's'].contains(&word.as_bytes()[1].into()) => {}
                word => return Err(format!("unrecognized option '{word}'")),
            }
        }
        let time = words.get(at).ok_or("missing operand")?;
        let time = interval(time).ok_or_else(|| format!("invalid time interval '{time}'"))?;
        let command = words.get(at + 1).ok_or("missing operand")?;
        let time = if time.is_zero() { NEVER } else { time };
        Ok(Self { time, preserve_status, command, args: &words[at + 2..] })
    }
}

/// The command.
pub struct Timeout;

#[async_trait]
impl Builtin for Timeout {
    /// Only what cannot be run comes here.
    async fn execute(&self, ctx: BuiltinContext<'_>) -> bashkit::Result<ExecResult> {
        let why = Asked::read(ctx.args).err().unwrap_or_default();
        Ok(ExecResult::err(format!("timeout: {why}\n"), 125))
    }

    async fn execution_plan(&self, ctx: &BuiltinContext<'_>) -> bashkit::Result<Option<ExecutionPlan>> {
        let Ok(asked) = Asked::read(ctx.args) else { return Ok(None) };
        Ok(Some(ExecutionPlan::Timeout {
            duration: asked.time,
            preserve_status: asked.preserve_status,
            command: SubCommand {
                name: asked.command.to_owned(),
                args: asked.args.to_vec(),
                stdin: ctx.stdin.cloned(),
                assignments: Vec::new(),
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_before_the_time() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let line = words("-k 5 --signal=KILL -sTERM --preserve-status 2m sh -c x");
        let asked = Asked::read(&line).unwrap();
        assert_eq!(
            (asked.time, asked.preserve_status, asked.command, asked.args),
            (Duration::from_secs(120), true, "sh", &line[7..])
        );
        assert_eq!(Asked::read(&words("0 x")).unwrap().time, NEVER);
        for line in ["-k", "1", "x y", "--nosuch 1 x", "-1 x"] {
            assert!(Asked::read(&words(line)).is_err(), "{line}");
        }
    }
}
