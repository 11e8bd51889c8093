//! `seq`: counts in decimals, exactly, and as far as it is told.

use std::fmt::Write;

use bashkit::{Command, CommandContext, CommandStatus, async_trait};

use super::{PIECE, refuse};

/// Most digits after the point, and most digits in all.
const MAX_PLACES: u32 = 18;
const MAX_DIGITS: usize = 30;

/// Widest column.
const MAX_WIDTH: usize = 10_000;

/// A decimal: digits, and how many of them stand after the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decimal {
    digits: i128,
    places: u32,
    /// Columns that it was written in.
    width: usize,
}

impl Decimal {
    fn read(text: &str) -> Option<Self> {
        let written = text.trim();
        let (minus, rest) = match written.as_bytes().first()? {
            b'-' => (true, &written[1..]),
            b'+' => (false, &written[1..]),
            _ => (false, written),
        };
        if matches!(rest, "inf" | "infinity") {
            let digits = 10_i128.pow(18) * i128::from(i64::MAX);
            return Some(Self { digits: if minus { -digits } else { digits }, places: 0, width: 0 });
        }
        let (number, exponent) = match rest.split_once(['e', 'E']) {
            Some((number, exponent)) => (number, exponent.parse::<i32>().ok()?),
            None => (rest, 0),
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let all = format!("{whole}{part}");
        if all.is_empty() || all.len() > MAX_DIGITS || !all.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let mut digits: i128 = all.parse().ok()?;
        let mut places = i32::try_from(part.len()).ok()?.checked_sub(exponent)?;
        while places < 0 {
            digits = digits.checked_mul(10)?;
            places += 1;
        }
        let places = u32::try_from(places).ok().filter(|places| *places <= MAX_PLACES)?;
        let width = written.len() - usize::from(written.starts_with('+'));
        Some(Self { digits: if minus { -digits } else { digits }, places, width })
    }

    /// Its digits with so many places.
    fn at(self, places: u32) -> Option<i128> {
        self.digits.checked_mul(10_i128.checked_pow(places.checked_sub(self.places)?)?)
    }

    /// Columns with so many places.
    fn columns(self, places: u32) -> usize {
        let point = usize::from(self.places == 0 && places > 0);
        self.width + point + (places - self.places) as usize
    }
}

/// Writes digits with so many places, filled up with zeros.
fn write(out: &mut String, digits: i128, places: u32, width: usize) {
    let sign = if digits < 0 { "-" } else { "" };
    let magnitude = digits.unsigned_abs();
    let unit = 10_u128.pow(places);
    let width = width.saturating_sub(sign.len());
    // Writing to a string does not fail.
    let _ = if places == 0 {
        write!(out, "{sign}{magnitude:0width$}")
    } else {
        let (whole, part) = (magnitude / unit, magnitude % unit);
        let (places, width) = (places as usize, width.saturating_sub(places as usize + 1));
        write!(out, "{sign}{whole:0width$}.{part:0places$}")
    };
}

/// A format of C's for one floating-point number.
#[derive(Debug, PartialEq, Eq)]
struct Format {
    before: String,
    after: String,
    minus: bool,
    zero: bool,
    plus: bool,
    width: usize,
    precision: Option<usize>,
    kind: char,
}

impl Format {
    fn read(text: &str) -> Option<Self> {
        let mut parts = [String::new(), String::new()];
        let (mut found, mut at) = (None, 0);
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if c != '%' {
                parts[at].push(c);
                continue;
            }
            if chars.next_if_eq(&'%').is_some() {
                parts[at].push('%');
                continue;
            }
            if at == 1 {
                return None;
            }
            at = 1;
            let (mut minus, mut zero, mut plus) = (false, false, false);
            while let Some(flag) = chars.next_if(|c| "-0+ #'".contains(*c)) {
                match flag {
                    '-' => minus = true,
                    '0' => zero = true,
                    '+' => plus = true,
                    _ => {}
                }
            }
            let mut number = || -> Option<usize> {
                let mut digits = String::new();
                while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                    digits.push(digit);
                }
                if digits.is_empty() { Some(0) } else { digits.parse().ok().filter(|n| *n <= MAX_WIDTH) }
            };
            let width = number()?;
            let precision = if chars.next_if_eq(&'.').is_some() {
                let mut digits = String::new();
                while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                    digits.push(digit);
                }
                let precision = if digits.is_empty() { 0 } else { digits.parse().ok()? };
                Some(precision).filter(|n| *n <= MAX_WIDTH)
            } else {
                None
            };
            while chars.next_if_eq(&'L').is_some() {}
            let kind = chars.next().filter(|kind| "fFeEgG".contains(*kind))?;
            found = Some((minus, zero, plus, width, precision, kind));
        }
        let [before, after] = parts;
        let (minus, zero, plus, width, precision, kind) = found?;
        Some(Self { before, after, minus, zero, plus, width, precision, kind })
    }

    fn write(&self, out: &mut String, value: f64) {
        let precision = self.precision.unwrap_or(6);
        let magnitude = value.abs();
        let text = match self.kind {
            'f' | 'F' => format!("{magnitude:.precision$}"),
            'e' | 'E' => scientific(magnitude, precision),
            _ => shortest(magnitude, precision.max(1)),
        };
        let text = if self.kind.is_ascii_uppercase() { text.to_uppercase() } else { text };
        let sign = if value < 0.0 {
            "-"
        } else if self.plus {
            "+"
        } else {
            ""
        };
        let fill = self.width.saturating_sub(text.len() + sign.len());
        out.push_str(&self.before);
        match (self.minus, self.zero) {
            (true, _) => out.extend([sign, &text, &" ".repeat(fill)]),
            (false, true) => out.extend([sign, &"0".repeat(fill), &text]),
            (false, false) => out.extend([&" ".repeat(fill), sign, &text]),
        }
        out.push_str(&self.after);
    }
}

fn scientific(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (number, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{number}e{sign}{:02}", exponent.abs())
}

/// As `%g`: so many digits that mean something, no zeros at the end.
fn shortest(value: f64, digits: usize) -> String {
    let rounded = scientific(value, digits - 1);
    let exponent: i64 = rounded.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let digits = i64::try_from(digits).unwrap_or(i64::MAX);
    let (number, rest) = if exponent < -4 || exponent >= digits {
        let (number, rest) = rounded.split_once('e').unwrap_or((&rounded, "+00"));
        (number.to_owned(), format!("e{rest}"))
    } else {
        let places = usize::try_from(digits - 1 - exponent).unwrap_or(0);
        (format!("{value:.places$}"), String::new())
    };
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
    format!("{number}{rest}")
}

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    first: i128,
    step: i128,
    last: i128,
    places: u32,
    width: usize,
    separator: String,
    format: Option<Format>,
}

impl Asked {
    fn read(words: &[String]) -> Result<Self, String> {
        let (mut separator, mut format, mut equal_width) = ("\n".to_owned(), None, false);
        let mut at = 0;
        let is_number =
            |word: &str| word[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.' || c == 'i');
        while let Some(word) = words.get(at) {
            if !word.starts_with('-') || word.len() < 2 || is_number(word) {
                break;
            }
            at += 1;
            let mut value = |attached: &str, name: &str| -> Result<String, String> {
                if !attached.is_empty() {
                    return Ok(attached.trim_start_matches('=').to_owned());
                }
                at += 1;
                words.get(at - 1).cloned().ok_or_else(|| format!("option requires an argument -- '{name}'"))
            };
            match word.as_str() {
                "--" => break,
                "-w" | "--equal-width" => equal_width = true,
                _ if word.starts_with("--separator") => separator = value(&word[11..], "s")?,
                _ if word.starts_with("--format") => format = Some(value(&word[8..], "f")?),
                _ if word.starts_with("-s") => separator = value(&word[2..], "s")?,
                _ if word.starts_with("-f") => format = Some(value(&word[2..], "f")?),
                _ => return Err(format!("invalid option '{word}'")),
            }
        }
        let operands = &words[at..];
        if operands.len() > 3 {
            return Err(format!("extra operand '{}'", operands[3]));
        }
        let read = |word: &String| {
            Decimal::read(word).ok_or_else(|| format!("invalid floating point argument: '{word}'"))
        };
        let all = operands.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let one = Decimal { digits: 1, places: 0, width: 1 };
        let (first, step, last) = match all[..] {
            [last] => (one, one, last),
            [first, last] => (first, one, last),
            [first, step, last] => (first, step, last),
            _ => return Err("missing operand".to_owned()),
        };
        if step.digits == 0 {
            return Err("zero increment".to_owned());
        }
        if format.is_some() && equal_width {
            return Err("format string may not be specified when printing equal width strings".to_owned());
        }
        let format = match format {
            None => None,
            Some(text) => Some(
                Format::read(&text).ok_or_else(|| format!("format '{text}' has no single % directive"))?,
            ),
        };
        // What is printed has the places of the first number and of the step; it is counted with those of all three.
        let shown = first.places.max(step.places);
        let places = shown.max(last.places);
        let far = || "number out of range".to_owned();
        let width = if equal_width {
            // The last one as it is printed: without the places that are not shown.
            let hidden =
                (last.places.saturating_sub(shown) + u32::from(shown == 0 && last.places > 0)) as usize;
            let last =
                if last.places > shown { last.width.saturating_sub(hidden) } else { last.columns(shown) };
            first.columns(shown).max(last)
        } else {
            0
        };
        let counted = |number: Decimal| number.at(places).ok_or_else(far);
        let hidden = 10_i128.pow(places - shown);
        let last = counted(last)?;
        let last = if step.digits > 0 { last.div_euclid(hidden) } else { -(-last).div_euclid(hidden) };
        Ok(Self {
            first: first.at(shown).ok_or_else(far)?,
            step: step.at(shown).ok_or_else(far)?,
            last,
            places: shown,
            width,
            separator,
            format,
        })
    }

    fn write(&self, out: &mut String, digits: i128) {
        match &self.format {
            None => write(out, digits, self.places, self.width),
            #[allow(clippy::cast_precision_loss, reason = "a format of C's is of such a number")]
            Some(format) => format.write(out, digits as f64 / 10_f64.powi(self.places as i32)),
        }
    }
}

/// The command.
pub struct Seq;

#[async_trait]
impl Command for Seq {
    async fn execute(&self, ctx: CommandContext<'_>) -> bashkit::Result<CommandStatus> {
        let asked = match Asked::read(ctx.args) {
            Ok(asked) => asked,
            Err(why) => return refuse(&ctx, &why, 1).await,
        };
        let (mut piece, mut next, mut any) = (String::with_capacity(PIECE + 64), asked.first, false);
        while if asked.step > 0 { next <= asked.last } else { next >= asked.last } {
            if any {
                piece.push_str(&asked.separator);
            }
            any = true;
            asked.write(&mut piece, next);
            if piece.len() >= PIECE {
                ctx.stdout.write_all(piece.as_bytes()).await?;
                piece.clear();
                tokio::task::yield_now().await;
            }
            let Some(following) = next.checked_add(asked.step) else { break };
            next = following;
        }
        if any {
            piece.push('\n');
        }
        ctx.stdout.write_all(piece.as_bytes()).await?;
        Ok(CommandStatus::success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(line: &str) -> Result<String, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let asked = Asked::read(&words)?;
        let (mut out, mut next) = (String::new(), asked.first);
        while if asked.step > 0 { next <= asked.last } else { next >= asked.last } {
            if !out.is_empty() {
                out.push(' ');
            }
            asked.write(&mut out, next);
            next += asked.step;
        }
        Ok(out)
    }

    #[test]
    fn as_the_program_of_that_name() {
        for (line, expected) in [
            ("3", "1 2 3"),
            ("2 4", "2 3 4"),
            ("5 -2 1", "5 3 1"),
            ("-1 1", "-1 0 1"),
            ("1 0.5 2", "1.0 1.5 2.0"),
            ("0 0.1 0.3", "0.0 0.1 0.2 0.3"),
            ("1 2.9", "1 2"),
            ("-1.5 -1", "-1.5"),
            ("1 -1 -0.5", "1 0"),
            ("3 1", ""),
            ("-w 8 10", "08 09 10"),
            ("-w -1 1", "-1 00 01"),
            ("-w 1 0.5 2", "1.0 1.5 2.0"),
            ("-w 9.5 10", "09.5"),
            ("-w 1 10.5", "01 02 03 04 05 06 07 08 09 10"),
            ("1e1 11", "10 11"),
            ("-f %03g 9 10", "009 010"),
            ("-f <%.1f> 1 2", "<1.0> <2.0>"),
            ("-f %e 1", "1.000000e+00"),
            ("-f %5g%% 1", "    1%"),
            ("-f %g 100000 900000 1000000", "100000 1e+06"),
            ("-f %g 0.00001 0.00001", "1e-05"),
            (
                "9999999999999999999 10000000000000000001",
                "9999999999999999999 10000000000000000000 10000000000000000001",
            ),
        ] {
            assert_eq!(seq(line).as_deref(), Ok(expected), "{line}");
        }
        for (line, why) in [
            ("1 0 2", "zero increment"),
            ("x", "invalid floating point argument: 'x'"),
            ("1 2 3 4", "extra operand '4'"),
            ("-q 1", "invalid option '-q'"),
            ("-f %d 1", "format '%d' has no single % directive"),
            ("-w -f %g 1", "format string may not be specified when printing equal width strings"),
            ("-s", "option requires an argument -- 's'"),
        ] {
            assert_eq!(seq(line), Err(why.to_owned()), "{line}");
        }
    }
}
