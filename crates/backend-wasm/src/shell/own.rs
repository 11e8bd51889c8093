//! Commands of ours in the place of the shell's own, which end after so many lines or seconds of their own choosing, or
//! do not say what they did not do. These go on for as long as the command may, and are held back like everything else.

mod df;
mod getent;
mod head;
mod rm;
mod seq;
mod timeout;

use std::sync::Arc;
use std::time::Duration;

use bashkit::{BuiltinRegistry, Command, CommandContext, CommandStatus, Error, Result, async_trait};

use crate::tree::Tree;

/// Bytes that are written at a time.
const PIECE: usize = 8 * 1024;

/// Puts them in the place of the others.
pub fn register(registry: &BuiltinRegistry, tree: &Arc<Tree>) {
    registry.insert_command("df", df::Df(Arc::clone(tree)));
    registry.insert_command("getent", getent::Getent);
    registry.insert_command("head", head::Head);
    registry.insert_command("rm", rm::Rm);
    registry.insert_command("seq", seq::Seq);
    registry.insert_command("sleep", Sleep);
    registry.insert_command("yes", Yes);
    registry.insert("timeout", Arc::new(timeout::Timeout));
}

/// What went wrong, without the kernel's number for it.
fn said(error: Error) -> String {
    let said = match error {
        Error::Io(error) => error.to_string(),
        error => error.to_string(),
    };
    said.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Says why a command did not do what it was asked.
async fn refuse(ctx: &CommandContext<'_>, why: &str, code: i32) -> Result<CommandStatus> {
    ctx.stderr.write_all(format!("{}: {why}\n", ctx.name).as_bytes()).await?;
    Ok(CommandStatus::with_code(code))
}

/// A length of time, as `sleep` and `timeout` take it: `1.5`, `2m`, `inf`. `None` when it is none.
fn interval(text: &str) -> Option<Duration> {
    let text = text.trim();
    let (number, unit) = match text.char_indices().last()? {
        (at, 's') => (&text[..at], 1.0),
        (at, 'm') => (&text[..at], 60.0),
        (at, 'h') => (&text[..at], 3600.0),
        (at, 'd') => (&text[..at], 86_400.0),
        _ => (text, 1.0),
    };
    let seconds = match number {
        "inf" | "infinity" => f64::INFINITY,
        number if number.starts_with(|c: char| c.is_ascii_digit() || c == '.' || c == '+') => {
            number.parse::<f64>().ok()? * unit
        }
        _ => return None,
    };
    // Longer than any command lasts.
    Some(Duration::try_from_secs_f64(seconds.min(3.0e9)).unwrap_or_default())
}

/// `sleep TIME...`.
struct Sleep;

#[async_trait]
impl Command for Sleep {
    async fn execute(&self, ctx: CommandContext<'_>) -> Result<CommandStatus> {
        let times: Vec<&String> = ctx.args.iter().filter(|word| *word != "--").collect();
        if times.is_empty() {
            return refuse(&ctx, "missing operand", 1).await;
        }
        let mut whole = Duration::ZERO;
        for time in times {
            match interval(time) {
                Some(time) => whole = whole.saturating_add(time),
                None => return refuse(&ctx, &format!("invalid time interval '{time}'"), 1).await,
            }
        }
        tokio::time::sleep(whole).await;
        Ok(CommandStatus::success())
    }
}

/// `yes [WORD...]`.
struct Yes;

#[async_trait]
impl Command for Yes {
    async fn execute(&self, ctx: CommandContext<'_>) -> Result<CommandStatus> {
        let mut line = if ctx.args.is_empty() { "y".to_owned() } else { ctx.args.join(" ") };
        line.push('\n');
        let lines = line.repeat((PIECE / line.len()).max(1));
        loop {
            ctx.stdout.write_all(lines.as_bytes()).await?;
            // Where nothing holds it back, as before `/dev/null`, others have their turn.
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        for (text, millis) in [
            ("1", 1000),
            ("0.25", 250),
            (".5", 500),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0", 0),
        ] {
            assert_eq!(interval(text), Some(Duration::from_millis(millis)), "{text}");
        }
        assert!(interval("inf").is_some_and(|time| time > Duration::from_secs(1 << 30)));
        for text in ["", "x", "-1", "1x", "m", "1e", "nan"] {
            assert_eq!(interval(text), None, "{text}");
        }
    }
}
