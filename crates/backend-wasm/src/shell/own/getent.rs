//! `getent`: who there is inside.

use bashkit::{Command, CommandContext, CommandStatus, async_trait};

use super::refuse;

/// The command.
pub struct Getent;

#[async_trait]
impl Command for Getent {
    async fn execute(&self, ctx: CommandContext<'_>) -> bashkit::Result<CommandStatus> {
        let Some((database, keys)) = ctx.args.split_first() else {
            return refuse(&ctx, "missing operand", 1).await;
        };
        if !matches!(database.as_str(), "passwd" | "group" | "hosts") {
            return refuse(&ctx, &format!("Unknown database: {database}"), 1).await;
        }
        let path = format!("/etc/{database}");
        let content = ctx.fs.read_file(path.as_ref()).await.unwrap_or_default();
        let (found, all) = look(&String::from_utf8_lossy(&content), keys);
        ctx.stdout.write_all(found.as_bytes()).await?;
        Ok(CommandStatus::with_code(if all { 0 } else { 2 }))
    }
}

/// The lines that have these names or numbers, or all; whether each was found.
fn look(content: &str, keys: &[String]) -> (String, bool) {
    let line = |line: &str| format!("{line}\n");
    if keys.is_empty() {
        return (content.lines().map(line).collect(), true);
    }
    let has = |line: &str, key: &str| {
        let mut fields = line.split([':', ' ', '\t']);
        fields.next() == Some(key) || fields.nth(1) == Some(key)
    };
    let found: Vec<&str> =
        keys.iter().filter_map(|key| content.lines().find(|line| has(line, key))).collect();
    (found.iter().map(|found| line(found)).collect(), found.len() == keys.len())
}

#[cfg(test)]
mod tests {
    use super::look;

    #[test]
    fn by_name_and_by_number() {
        let content = "a:x:1:1::/a:/bin/sh\nb:x:2:2::/b:/bin/sh\n";
        let keys = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(look(content, &keys("2")), ("b:x:2:2::/b:/bin/sh\n".to_owned(), true));
        assert_eq!(look(content, &keys("a c")), ("a:x:1:1::/a:/bin/sh\n".to_owned(), false));
        assert_eq!(look(content, &[]), (content.to_owned(), true));
    }
}
