//! How much longer than usual things may take: on a machine whose processor is emulated, say.

use std::sync::OnceLock;
use std::time::Duration;

/// Variable with a whole number by which the patience of all cases is multiplied. It changes no time that a case measures
/// from below, or tells the backend.
pub const SLOW: &str = "MOLTIS_TESTKIT_SLOW";

/// Most that it may be.
const MOST: u32 = 100;

/// How long to wait here for what is awaited this long on an ordinary machine.
///
/// # Panics
/// When the variable holds anything but a number from 1 to 100: a run by another patience than was asked for would say
/// nothing.
pub fn patience(usual: Duration) -> Duration {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    usual
        * *FACTOR.get_or_init(|| {
            let value = std::env::var(SLOW).ok();
            factor(value.as_deref())
                .unwrap_or_else(|| panic!("{SLOW} is {value:?}, not a number from 1 to {MOST}"))
        })
}

fn factor(value: Option<&str>) -> Option<u32> {
    match value {
        None | Some("") => Some(1),
        Some(text) => text.parse().ok().filter(|factor| (1..=MOST).contains(factor)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_multiplied_by_a_whole_number_or_not_at_all() {
        assert_eq!(
            [None, Some(""), Some("1"), Some("8"), Some("100")].map(factor),
            [1, 1, 1, 8, 100].map(Some)
        );
        assert_eq!(["0", "101", "-1", "2.5", "fast"].map(|text| factor(Some(text))), [None; 5]);
    }
}
