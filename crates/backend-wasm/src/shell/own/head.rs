//! `head`: takes devices for as long as they go on, and other files as they are.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use bashkit::{Command, CommandContext, CommandStatus, async_trait};

use super::{PIECE, refuse};

/// How much of each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Much {
    /// The first so many lines.
    Lines(u64),
    /// The first so many bytes.
    Bytes(u64),
    /// All but the last so many lines.
    ButLines(u64),
    /// All but the last so many bytes.
    ButBytes(u64),
}

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Asked<'a> {
    much: Much,
    end: u8,
    headers: Option<bool>,
    files: Vec<&'a str>,
}

/// A count with the units that these programs know.
fn count(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let (base, power) = match unit {
        "" => return Some(number),
        "b" => return number.checked_mul(512),
        _ => {
            let power = "KMGTPE".find(unit.chars().next()?.to_ascii_uppercase())?;
            match &unit[1..] {
                "" | "iB" => (1024_u64, power),
                "B" => (1000, power),
                _ => return None,
            }
        }
    };
    number.checked_mul(base.checked_pow(u32::try_from(power).ok()? + 1)?)
}

impl<'a> Asked<'a> {
    fn read(words: &'a [String]) -> Result<Self, String> {
        let mut asked = Self { much: Much::Lines(10), end: b'\n', headers: None, files: Vec::new() };
        let (mut at, mut options) = (0, true);
        while let Some(word) = words.get(at).map(String::as_str) {
            at += 1;
            if !options || !word.starts_with('-') || word == "-" {
                asked.files.push(word);
                continue;
            }
            if word == "--" {
                options = false;
                continue;
            }
            let long =
                |name: &str| word.strip_prefix(name).map(|rest| rest.strip_prefix('=').unwrap_or(rest));
            let mut value = |attached: &'a str| -> Result<&'a str, String> {
                if !attached.is_empty() {
                    return Ok(attached);
                }
                at += 1;
                let next = words.get(at - 1).map(String::as_str);
                next.ok_or_else(|| format!("option '{word}' requires an argument"))
            };
            if let Some(attached) = long("--lines") {
                asked.much = Self::much(value(attached)?, false)?;
            } else if let Some(attached) = long("--bytes") {
                asked.much = Self::much(value(attached)?, true)?;
            } else if matches!(word, "--quiet" | "--silent") {
                asked.headers = Some(false);
            } else if word == "--verbose" {
                asked.headers = Some(true);
            } else if word == "--zero-terminated" {
                asked.end = 0;
            } else if word.starts_with("--") {
                return Err(format!("unrecognized option '{word}'"));
            } else if word[1..].starts_with(|c: char| c.is_ascii_digit()) {
                asked.much = Self::much(&word[1..], false)?;
            } else {
                for (place, letter) in word.char_indices().skip(1) {
                    match letter {
                        'q' => asked.headers = Some(false),
                        'v' => asked.headers = Some(true),
                        'z' => asked.end = 0,
                        'n' | 'c' => {
                            asked.much = Self::much(value(&word[place + 1..])?, letter == 'c')?;
                            break;
                        }
                        _ => return Err(format!("invalid option -- '{letter}'")),
                    }
                }
            }
        }
        Ok(asked)
    }

    fn much(text: &str, bytes: bool) -> Result<Much, String> {
        let (but, number) = match text.strip_prefix('-') {
            Some(number) => (true, number),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let what = if bytes { "bytes" } else { "lines" };
        let number = count(number).ok_or_else(|| format!("invalid number of {what}: '{text}'"))?;
        Ok(match (but, bytes) {
            (false, false) => Much::Lines(number),
            (false, true) => Much::Bytes(number),
            (true, false) => Much::ButLines(number),
            (true, true) => Much::ButBytes(number),
        })
    }
}

/// Passes the head of a stream on, piece by piece.
struct Taker {
    much: Much,
    end: u8,
    held: Vec<u8>,
}

impl Taker {
    fn new(much: Much, end: u8) -> Self {
        Self { much, end, held: Vec::new() }
    }

    /// How many bytes of a piece are wanted, counted off; whether there may be more.
    fn take(&mut self, piece: &[u8]) -> (usize, bool) {
        match &mut self.much {
            Much::Bytes(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(piece.len());
                *left -= taken as u64;
                (taken, *left > 0)
            }
            Much::Lines(left) => {
                for (at, byte) in piece.iter().enumerate() {
                    if *left == 0 {
                        return (at, false);
                    }
                    *left -= u64::from(*byte == self.end);
                }
                (piece.len(), *left > 0)
            }
            Much::ButLines(_) | Much::ButBytes(_) => {
                self.held.extend_from_slice(piece);
                (0, true)
            }
        }
    }

    /// What of that which was held is wanted once all has come.
    fn rest(&self) -> &[u8] {
        let keep = match self.much {
            Much::Bytes(_) | Much::Lines(_) => 0,
            Much::ButBytes(but) => self.held.len().saturating_sub(usize::try_from(but).unwrap_or(usize::MAX)),
            Much::ButLines(0) => self.held.len(),
            Much::ButLines(but) => {
                let whole = self.held.strip_suffix(&[self.end]).unwrap_or(&self.held);
                let mut ends = (0..whole.len()).rev().filter(|at| whole[*at] == self.end);
                let last = usize::try_from(but - 1).ok().and_then(|but| ends.nth(but));
                last.map_or(0, |at| at + 1)
            }
        };
        &self.held[..keep]
    }
}

/// What a device gives.
fn device(path: &Path) -> Option<fn(&mut [u8]) -> bool> {
    match path.to_str()? {
        "/dev/zero" => Some(|piece| {
            piece.fill(0);
            true
        }),
        "/dev/random" | "/dev/urandom" => {
            Some(|piece| File::open("/dev/urandom").and_then(|mut file| file.read_exact(piece)).is_ok())
        }
        _ => None,
    }
}

/// The command.
pub struct Head;

#[async_trait]
impl Command for Head {
    async fn execute(&self, ctx: CommandContext<'_>) -> bashkit::Result<CommandStatus> {
        let mut asked = match Asked::read(ctx.args) {
            Ok(asked) => asked,
            Err(why) => return refuse(&ctx, &why, 1).await,
        };
        if asked.files.is_empty() {
            asked.files.push("-");
        }
        let headers = asked.headers.unwrap_or(asked.files.len() > 1);
        let mut code = 0;
        for (number, file) in asked.files.iter().enumerate() {
            if headers {
                let name = if *file == "-" { "standard input" } else { file };
                let line = format!("{}==> {name} <==\n", if number > 0 { "\n" } else { "" });
                ctx.stdout.write_all(line.as_bytes()).await?;
            }
            let mut taker = Taker::new(asked.much, asked.end);
            if *file == "-" {
                if asked.much != Much::Lines(0) && asked.much != Much::Bytes(0) {
                    while let Some(piece) = ctx.stdin.read_chunk().await? {
                        let (taken, more) = taker.take(&piece);
                        ctx.stdout.write_all(&piece[..taken]).await?;
                        if !more {
                            break;
                        }
                    }
                }
            } else {
                let path = bashkit::normalize_path(&ctx.cwd.join(file));
                if let Some(fill) = device(&path) {
                    endless(&ctx, &mut taker, fill).await?;
                } else {
                    match ctx.fs.read_file(&path).await {
                        Ok(content) => {
                            let (taken, _) = taker.take(&content);
                            ctx.stdout.write_all(&content[..taken]).await?;
                        }
                        Err(error) => {
                            code = 1;
                            let why = super::said(error);
                            let line = format!("head: cannot open '{file}' for reading: {why}\n");
                            ctx.stderr.write_all(line.as_bytes()).await?;
                            continue;
                        }
                    }
                }
            }
            ctx.stdout.write_all(taker.rest()).await?;
        }
        Ok(CommandStatus::with_code(code))
    }
}

async fn endless(
    ctx: &CommandContext<'_>,
    taker: &mut Taker,
    fill: fn(&mut [u8]) -> bool,
) -> bashkit::Result<()> {
    let mut piece = vec![0; PIECE];
    while fill(&mut piece) {
        let (taken, more) = taker.take(&piece);
        ctx.stdout.write_all(&piece[..taken]).await?;
        if !more {
            break;
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_options() {
        for (text, expected) in [
            ("7", Some(7)),
            ("2K", Some(2048)),
            ("2kB", Some(2000)),
            ("1MiB", Some(1 << 20)),
            ("32M", Some(32 << 20)),
            ("3b", Some(1536)),
            ("x", None),
            ("1Q", None),
            ("", None),
        ] {
            assert_eq!(count(text), expected, "{text}");
        }
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (line, much) in [
            ("-3 f", Much::Lines(3)),
            ("-n 3 f", Much::Lines(3)),
            ("-n-3 f", Much::ButLines(3)),
            ("--lines=3 f", Much::Lines(3)),
            ("-qc 5 f", Much::Bytes(5)),
            ("--bytes -5 f", Much::ButBytes(5)),
        ] {
            let line = words(line);
            let asked = Asked::read(&line).unwrap();
            assert_eq!((asked.much, asked.files), (much, vec!["f"]), "{line:?}");
        }
        for line in ["-n", "-x", "-n x", "--nosuch"] {
            assert!(Asked::read(&words(line)).is_err(), "{line}");
        }
    }

    #[test]
    fn heads_of_streams() {
        for (much, expected) in [
            (Much::Lines(2), "a\nbb\n"),
            (Much::Lines(9), "a\nbb\nccc"),
            (Much::Bytes(3), "a\nb"),
            (Much::ButLines(1), "a\nbb\n"),
            (Much::ButLines(0), "a\nbb\nccc"),
            (Much::ButLines(9), ""),
            (Much::ButBytes(2), "a\nbb\nc"),
        ] {
            let mut taker = Taker::new(much, b'\n');
            let mut out = Vec::new();
            for piece in ["a", "\nb", "b\ncc", "c"] {
                let (taken, more) = taker.take(piece.as_bytes());
                out.extend_from_slice(&piece.as_bytes()[..taken]);
                if !more {
                    break;
                }
            }
            out.extend_from_slice(taker.rest());
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{much:?}");
        }
    }
}
