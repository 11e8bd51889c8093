//! Points in time for people and for programs, in UTC.

/// A point in time as `2026-11-29T22:47:23Z`.
pub fn utc(seconds: i64) -> String {
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// A point in time as `2026-11-29 22:47`.
pub fn short(seconds: i64) -> String {
    utc(seconds).replace('T', " ")[..].rsplit_once(':').map(|(start, _)| start.to_owned()).unwrap_or_default()
}

/// The point in time, in seconds since 1970, of a text as `2026-11-29`, `2026-11-29T22:47Z` or `2026-11-29T22:47:23Z`;
/// the `Z` may be missing, and a space may stand for the `T`.
pub fn parse(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (day, of_day) = match text.split_once(['T', ' ']) {
        Some((day, time)) => (day, Some(time)),
        None => (text, None),
    };
    let number = |digits: &str, length: usize| -> Option<i64> {
        let plain = digits.len() == length && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse().ok())?
    };
    let mut parts = day.split('-');
    let (year, month, day) =
        (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let mut seconds = 0;
    if let Some(time) = of_day {
        let mut parts = time.split(':');
        let (hour, minute) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?);
        let second = parts.next().map_or(Some(0), |part| number(part, 2))?;
        if hour > 23 || minute > 59 || second > 59 || parts.next().is_some() {
            return None;
        }
        seconds = hour * 3600 + minute * 60 + second;
    }
    // The days before it, as `date` counts them, found by trying: it is the one whose date it is.
    let guess = (year - 1970) * 365 + (year - 1969) / 4 + (month - 1) * 30 + day - 40;
    let days = (guess..guess + 80).find(|days| date(*days) == (year, month, day))?;
    (parts.next().is_none()).then_some(days * 86_400 + seconds)
}

/// The date of a day counted since 1970, by the Gregorian calendar. Years begin in March here, so that the leap day is
/// the last one.
fn date(days: i64) -> (i64, i64, i64) {
    const ERA: i64 = 146_097;
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_000_000_000, "2001-09-09T01:46:40Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(seconds), expected);
        }
        assert_eq!(short(1_000_000_000), "2001-09-09 01:46");
    }

    #[test]
    fn dates_are_read_as_they_are_written() {
        for seconds in (-3_000_000_000..8_000_000_000).step_by(86_400 * 29 + 3_607) {
            assert_eq!(parse(&utc(seconds)), Some(seconds), "{}", utc(seconds));
        }
        assert_eq!(parse("2001-09-09 01:46"), Some(1_000_000_000 - 40));
        assert_eq!(parse("2000-02-29"), Some(951_782_400));
        for text in
            ["", "2001-02-29", "2001-13-01", "2001-1-1", "2001-01-01T24:00Z", "2001-01-01T1:00", "10m", "-"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
