//! When a call is made again: never one that may have been done already, unless doing it twice is the same as once.

use std::time::Duration;

use crate::http::Failure;

/// How often a call is made at most.
pub const TRIES: u32 = 4;

/// First pause; it doubles.
const FIRST: Duration = Duration::from_millis(300);

/// Longest time that a provider may ask to be left alone for, before that is an error.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Whether a call may be made again once it may have been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Twice is the same as once.
    Safe,
    /// Once it may have been done it is not made again.
    Never,
}

/// How long to wait before the call is made again; `None` if it is not. `tries` is how often it was made.
pub fn pause(failure: &Failure, again: Again, tries: u32, jitter: u8) -> Option<Duration> {
    if tries >= TRIES {
        return None;
    }
    let backed_off = FIRST * 2u32.pow(tries.saturating_sub(1)) * (256 + u32::from(jitter)) / 256;
    match failure {
        // Nothing has arrived there.
        Failure::Unreachable(_) => Some(backed_off),
        // It was turned away before it was looked at.
        Failure::Answer { status: 429, retry_after, .. } => match retry_after {
            Some(asked) if *asked > PATIENCE => None,
            Some(asked) => Some(*asked + backed_off),
            None => Some(backed_off),
        },
        Failure::Broken(_) => (again == Again::Safe).then_some(backed_off),
        Failure::Answer { status: 500..=599, retry_after, .. } if again == Again::Safe => {
            (retry_after.unwrap_or_default() <= PATIENCE)
                .then(|| retry_after.unwrap_or_default() + backed_off)
        }
        Failure::Answer { .. } | Failure::Unlike(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, seconds: Option<u64>) -> Failure {
        Failure::Answer {
            status,
            code: None,
            message: String::new(),
            retry_after: seconds.map(Duration::from_secs),
        }
    }

    #[test]
    fn what_may_have_been_done_is_done_again_only_where_that_is_safe() {
        let broken = Failure::Broken("cut".into());
        assert_eq!(pause(&broken, Again::Never, 1, 0), None);
        assert_eq!(pause(&broken, Again::Safe, 1, 0), Some(FIRST));
        assert_eq!(pause(&broken, Again::Safe, 2, 0), Some(FIRST * 2));
        assert_eq!(pause(&broken, Again::Safe, TRIES, 0), None);
        assert_eq!(pause(&answer(502, None), Again::Never, 1, 0), None);
        assert_eq!(pause(&answer(502, None), Again::Safe, 1, 0), Some(FIRST));
        assert_eq!(pause(&answer(400, None), Again::Safe, 1, 0), None);
    }

    #[test]
    fn a_provider_that_asks_for_time_gets_it_up_to_a_limit() {
        assert_eq!(pause(&answer(429, Some(2)), Again::Never, 1, 0), Some(FIRST + Duration::from_secs(2)));
        assert_eq!(pause(&answer(429, Some(21)), Again::Safe, 1, 0), None);
        assert_eq!(pause(&answer(429, None), Again::Never, 1, 0), Some(FIRST));
        assert_eq!(pause(&Failure::Unreachable("x".into()), Again::Never, 1, 0), Some(FIRST));
    }
}
