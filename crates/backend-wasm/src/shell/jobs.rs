//! Jobs that a script leaves behind (`server &`). Elsewhere they live on as processes; here they are part of the shell,
//! which would wait for them. They end with it, at once, and that is said.

use bashkit::{BuiltinRegistry, Command, CommandContext, CommandStatus, Result, async_trait};
use tokio::sync::mpsc;

/// Name of our command.
const OVER: &str = "__moltis_left";

/// A script that is over while jobs of it run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// What it ended with.
    pub code: i32,
    /// How many run.
    pub jobs: usize,
}

/// The script, made to say when it is over, if it may start a job. A trap of its own for `EXIT` takes the place of ours;
/// then its jobs are waited for.
pub fn watched(script: String, registry: &BuiltinRegistry, left: mpsc::Sender<Left>) -> String {
    if !may_start(&script) {
        return script;
    }
    registry.insert_command(OVER, Over(left));
    format!("trap '{OVER} $? $(jobs -p)' EXIT; {script}")
}

/// Whether `&` stands in a script in any way that may start a job.
fn may_start(script: &str) -> bool {
    let bytes = script.as_bytes();
    bytes.iter().enumerate().any(|(at, byte)| {
        let next = |byte: Option<&u8>, of: &[u8]| byte.is_some_and(|byte| of.contains(byte));
        *byte == b'&'
            && !next(bytes.get(at + 1), b"&>")
            && !next(at.checked_sub(1).and_then(|at| bytes.get(at)), b"&<>|")
    })
}

/// Says that the script is over and how many of its jobs are not.
struct Over(mpsc::Sender<Left>);

#[async_trait]
impl Command for Over {
    async fn execute(&self, ctx: CommandContext<'_>) -> Result<CommandStatus> {
        let code = ctx.args.first().and_then(|code| code.parse().ok()).unwrap_or(0);
        let left = Left { code, jobs: ctx.args.len().saturating_sub(1) };
        if left.jobs > 0 && self.0.send(left).await.is_ok() {
            // Nothing of the shell goes on from here.
            std::future::pending::<()>().await;
        }
        Ok(CommandStatus::with_code(code))
    }
}

#[cfg(test)]
mod tests {
    use super::may_start;

    #[test]
    fn what_may_start_a_job() {
        for script in ["a &", "a & b", "(a&)", "a&b", "a &&b & c", "echo '&'"] {
            assert!(may_start(script), "{script}");
        }
        for script in ["", "a && b", "a 2>&1", "a &>f", "a |& b", "a >&2", "a <&3"] {
            assert!(!may_start(script), "{script}");
        }
    }
}
