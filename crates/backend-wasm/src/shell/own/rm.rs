//! `rm`: says what it could not remove, with `-f` as well.

use bashkit::{Command, CommandContext, CommandStatus, async_trait};

use super::{refuse, said};

/// What was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked<'a> {
    force: bool,
    recursive: bool,
    empty: bool,
    verbose: bool,
    files: Vec<&'a str>,
}

impl<'a> Asked<'a> {
    fn read(words: &'a [String]) -> Result<Self, String> {
        let (mut asked, mut options) = (Self::default(), true);
        for word in words {
            match word.as_str() {
                "--" if options => options = false,
                "--force" if options => asked.force = true,
                "--recursive" if options => asked.recursive = true,
                "--dir" if options => asked.empty = true,
                "--verbose" if options => asked.verbose = true,
                // Nobody is there to be asked.
                _ if options && (word.starts_with("--interactive") || word.contains("preserve-root")) => {}
                _ if options && word.starts_with("--") => {
                    return Err(format!("unrecognized option '{word}'"));
                }
                _ if options && word.starts_with('-') && word.len() > 1 => {
                    for letter in word.chars().skip(1) {
                        match letter {
                            'f' => asked.force = true,
                            'r' | 'R' => asked.recursive = true,
                            'd' => asked.empty = true,
                            'v' => asked.verbose = true,
                            'i' | 'I' => {}
                            _ => return Err(format!("invalid option -- '{letter}'")),
                        }
                    }
                }
                file => asked.files.push(file),
            }
        }
        if asked.files.is_empty() && !asked.force {
            return Err("missing operand".to_owned());
        }
        Ok(asked)
    }
}

/// The command.
pub struct Rm;

#[async_trait]
impl Command for Rm {
    async fn execute(&self, ctx: CommandContext<'_>) -> bashkit::Result<CommandStatus> {
        let asked = match Asked::read(ctx.args) {
            Ok(asked) => asked,
            Err(why) => return refuse(&ctx, &why, 1).await,
        };
        let mut code = 0;
        for file in &asked.files {
            let removed = remove(&ctx, &asked, file).await;
            if let Err(why) = removed {
                code = 1;
                let line = format!("rm: cannot remove '{file}': {why}\n");
                ctx.stderr.write_all(line.as_bytes()).await?;
            } else if asked.verbose {
                ctx.stdout.write_all(format!("removed '{file}'\n").as_bytes()).await?;
            }
        }
        Ok(CommandStatus::with_code(code))
    }
}

async fn remove(ctx: &CommandContext<'_>, asked: &Asked<'_>, file: &str) -> Result<(), String> {
    let name = file.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if matches!(name, "." | "..") || file.trim_end_matches('/').is_empty() && !file.is_empty() {
        return Err("it is not removed from within".to_owned());
    }
    let path = bashkit::normalize_path(&ctx.cwd.join(file));
    let Ok(found) = ctx.fs.lstat(&path).await else {
        return if asked.force { Ok(()) } else { Err("No such file or directory".to_owned()) };
    };
    let directory = found.file_type.is_dir();
    if directory && !asked.recursive {
        if !asked.empty {
            return Err("Is a directory".to_owned());
        }
        if ctx.fs.read_dir(&path).await.is_ok_and(|entries| !entries.is_empty()) {
            return Err("Directory not empty".to_owned());
        }
    }
    ctx.fs.remove(&path, directory).await.map_err(said)
}

#[cfg(test)]
mod tests {
    use super::Asked;

    #[test]
    fn options_and_files() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let line = words("-rf a --verbose -- -d");
        let expected =
            Asked { force: true, recursive: true, empty: false, verbose: true, files: vec!["a", "-d"] };
        assert_eq!(Asked::read(&line), Ok(expected));
        for line in ["-r", "-x a", "--nosuch a"] {
            assert!(Asked::read(&words(line)).is_err(), "{line}");
        }
        assert!(Asked::read(&words("-f")).is_ok());
    }
}
