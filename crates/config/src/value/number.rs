//! Numbers: counts, sizes, durations, cores, ports.

use std::time::Duration;

use toml_edit::{Item, Value};

use super::{Context, Flaw, Format, Raw, quote, wrong_type};
use crate::error::InvalidValue;

/// `true` or `false`.
pub struct Bool;

impl Format for Bool {
    type Value = bool;

    fn name() -> String {
        "`true`, `false`".to_owned()
    }

    fn example() -> String {
        "true".to_owned()
    }

    fn read(raw: Raw<'_>, _: &Context) -> Result<bool, Vec<Flaw>> {
        match raw {
            Raw::Item(Item::Value(Value::Boolean(value))) => Ok(*value.value()),
            Raw::Word("true") => Ok(true),
            Raw::Word("false") => Ok(false),
            other => Err(wrong_type(other, "true or false")),
        }
    }

    fn write(value: &bool) -> String {
        value.to_string()
    }
}

/// A whole number within bounds, both included.
pub struct Integer<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Format for Integer<MIN, MAX> {
    type Value = u64;

    fn name() -> String {
        format!("whole number, {}", bounds(MIN, MAX))
    }

    fn example() -> String {
        1024.clamp(MIN, MAX).to_string()
    }

    fn read(raw: Raw<'_>, _: &Context) -> Result<u64, Vec<Flaw>> {
        let number = whole(raw)?;
        Ok(within(number, MIN, MAX).ok_or_else(|| InvalidValue::OutOfRange {
            value: number.to_string(),
            allowed: format!("a whole number, {}", bounds(MIN, MAX)),
        })?)
    }

    fn write(value: &u64) -> String {
        value.to_string()
    }
}

/// A TCP port; 0 is any.
pub struct Port;

impl Format for Port {
    type Value = u16;

    fn name() -> String {
        "port, 0 to 65535".to_owned()
    }

    fn example() -> String {
        "8080".to_owned()
    }

    fn read(raw: Raw<'_>, _: &Context) -> Result<u16, Vec<Flaw>> {
        let number = whole(raw)?;
        Ok(u16::try_from(number).map_err(|_| InvalidValue::OutOfRange {
            value: number.to_string(),
            allowed: "a port, 0 to 65535".to_owned(),
        })?)
    }

    fn write(value: &u16) -> String {
        value.to_string()
    }
}

/// 1 or an even number, at most 64.
pub struct Vcpus;

impl Format for Vcpus {
    type Value = u64;

    fn name() -> String {
        "1 or an even number up to 64".to_owned()
    }

    fn example() -> String {
        "2".to_owned()
    }

    fn read(raw: Raw<'_>, _: &Context) -> Result<u64, Vec<Flaw>> {
        let number = whole(raw)?;
        let fits = |n: &u64| *n == 1 || (*n > 0 && *n <= 64 && n.is_multiple_of(2));
        Ok(u64::try_from(number).ok().filter(fits).ok_or_else(|| InvalidValue::OutOfRange {
            value: number.to_string(),
            allowed: "1 or an even number up to 64".to_owned(),
        })?)
    }

    fn write(value: &u64) -> String {
        value.to_string()
    }
}

/// A size in bytes within bounds, both included: a whole number of bytes, or one with `K`, `M`, `G` or `T`
/// (powers of 1024).
pub struct Size<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Format for Size<MIN, MAX> {
    type Value = u64;

    fn name() -> String {
        "size (`512M`, `1G`, or bytes)".to_owned()
    }

    fn example() -> String {
        quote("1G")
    }

    fn read(raw: Raw<'_>, _: &Context) -> Result<u64, Vec<Flaw>> {
        let (bytes, written) = match raw {
            Raw::Item(Item::Value(Value::Integer(number))) => {
                let number = *number.value();
                let bytes = u64::try_from(number).map_err(|_| InvalidValue::OutOfRange {
                    value: number.to_string(),
                    allowed: size_bounds(MIN, MAX),
                })?;
                (bytes, number.to_string())
            }
            Raw::Item(Item::Value(Value::String(text))) => (size(text.value())?, text.value().clone()),
            Raw::Word(word) => (size(word)?, word.to_owned()),
            other => return Err(wrong_type(other, "a size, such as \"512M\" or \"1G\"")),
        };
        if (MIN..=MAX).contains(&bytes) {
            return Ok(bytes);
        }
        Err(InvalidValue::OutOfRange { value: written, allowed: size_bounds(MIN, MAX) }.into())
    }

    fn write(value: &u64) -> String {
        match write_size(*value) {
            text if text.ends_with(|c: char| c.is_ascii_digit()) => text,
            text => quote(&text),
        }
    }
}

/// A duration within bounds in seconds, both included.
pub struct Span<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Format for Span<MIN, MAX> {
    type Value = Duration;

    fn name() -> String {
        "duration (`60s`, `30m`, `1h30m`)".to_owned()
    }

    fn example() -> String {
        quote("60s")
    }

    fn read(raw: Raw<'_>, _: &Context) -> Result<Duration, Vec<Flaw>> {
        let word = match raw {
            Raw::Item(Item::Value(Value::String(text))) => text.value().as_str(),
            Raw::Word(word) => word,
            other => return Err(wrong_type(other, "a duration with its unit, such as \"60s\" or \"30m\"")),
        };
        let span = duration(word)?;
        if span >= Duration::from_secs(MIN) && span <= Duration::from_secs(MAX) {
            return Ok(span);
        }
        let bound = |secs| write_duration(Duration::from_secs(secs));
        Err(InvalidValue::OutOfRange {
            value: word.to_owned(),
            allowed: format!("{} to {}", bound(MIN), bound(MAX)),
        }
        .into())
    }

    fn write(value: &Duration) -> String {
        quote(&write_duration(*value))
    }
}

/// Processor time in cores.
pub struct Cores;

impl Format for Cores {
    type Value = f64;

    fn name() -> String {
        "number of cores, 0.01 or more (`0.5`, `2`)".to_owned()
    }

    fn example() -> String {
        "1.5".to_owned()
    }

    fn read(raw: Raw<'_>, _: &Context) -> Result<f64, Vec<Flaw>> {
        Ok(match raw {
            Raw::Item(Item::Value(Value::Integer(number))) => checked_cores(*number.value() as f64)?,
            Raw::Item(Item::Value(Value::Float(number))) => checked_cores(*number.value())?,
            Raw::Word(word) => cores(word)?,
            other => return Err(wrong_type(other, "a number of cores, such as 0.5 or 2")),
        })
    }

    fn write(value: &f64) -> String {
        value.to_string()
    }
}

/// Reads a size in bytes.
pub(super) fn size(text: &str) -> Result<u64, InvalidValue> {
    let malformed = |why: &str| InvalidValue::malformed(text, "a size", why);
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if digits.is_empty() {
        return Err(malformed("write a whole number of bytes, or one with K, M, G or T, such as 512M"));
    }
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        unit if unit.starts_with('.') => {
            return Err(malformed(
                "fractions are not understood: take the smaller unit, such as 1536M for 1.5G",
            ));
        }
        _ => return Err(malformed("the units are K, M, G and T, such as 512M")),
    };
    let number: u64 = digits.parse().map_err(|_| malformed("that is more than can be counted"))?;
    number.checked_mul(1 << shift).ok_or_else(|| malformed("that is more than can be counted"))
}

/// The shortest way to write a size.
pub fn write_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
        if bytes >= 1 << shift && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Reads a duration: numbers with `ms`, `s`, `m`, `h`, `d`, largest first.
pub(super) fn duration(text: &str) -> Result<Duration, InvalidValue> {
    const FORM: &str = "write numbers with their units (ms, s, m, h, d), such as 60s, 30m or 1h30m";
    let malformed = |why: &str| InvalidValue::malformed(text, "a duration", why);
    let mut rest = text;
    let mut total: u64 = 0;
    let mut last = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(letters);
        let millis: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(malformed(FORM)),
        };
        if number.is_empty() || millis >= last {
            return Err(malformed(FORM));
        }
        last = millis;
        let number: u64 = number.parse().map_err(|_| malformed("that is more than can be counted"))?;
        total = number
            .checked_mul(millis)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(|| malformed("that is more than can be counted"))?;
        rest = tail;
    }
    if last == u64::MAX {
        return Err(malformed(FORM));
    }
    Ok(Duration::from_millis(total))
}

/// The shortest way to write a duration; parts of a millisecond are left off.
pub fn write_duration(span: Duration) -> String {
    let mut rest = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (millis, unit) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")] {
        if rest >= millis {
            text.push_str(&format!("{}{unit}", rest / millis));
            rest %= millis;
        }
    }
    text
}

/// Reads a number of cores.
pub(super) fn cores(text: &str) -> Result<f64, InvalidValue> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b'-');
    match text.parse() {
        Ok(number) if plain => checked_cores(number),
        _ => Err(InvalidValue::malformed(text, "a number of cores", "write a number such as 0.5 or 2")),
    }
}

fn checked_cores(number: f64) -> Result<f64, InvalidValue> {
    // A hundredth of a core is the least that the kernel's 100 ms period can express (1 ms).
    if (0.01..=4096.0).contains(&number) {
        return Ok(number);
    }
    Err(InvalidValue::OutOfRange {
        value: number.to_string(),
        allowed: "a number of cores, 0.01 to 4096".to_owned(),
    })
}

/// Reads a whole number.
pub(super) fn whole(raw: Raw<'_>) -> Result<i128, Vec<Flaw>> {
    match raw {
        Raw::Item(Item::Value(Value::Integer(number))) => Ok((*number.value()).into()),
        Raw::Word(word) => {
            let digits = word.strip_prefix('-').unwrap_or(word);
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            match word.parse() {
                Ok(number) if plain => Ok(number),
                _ => Err(InvalidValue::malformed(word, "a whole number", "write digits only").into()),
            }
        }
        other => Err(wrong_type(other, "a whole number")),
    }
}

/// `number` if it lies within the bounds.
pub(super) fn within(number: i128, min: u64, max: u64) -> Option<u64> {
    u64::try_from(number).ok().filter(|n| (min..=max).contains(n))
}

/// The bounds in words.
pub(super) fn bounds(min: u64, max: u64) -> String {
    if max >= i64::MAX as u64 { format!("{min} or more") } else { format!("{min} to {max}") }
}

fn size_bounds(min: u64, max: u64) -> String {
    if max == u64::MAX {
        format!("a size of {} or more", write_size(min))
    } else {
        format!("a size from {} to {}", write_size(min), write_size(max))
    }
}
