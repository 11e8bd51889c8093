//! How often somebody may ask.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{StatusCode, header};
use moltis_sandbox::Diagnosis;

use crate::problem::Problem;

/// Callers that are counted apart; of more, those that were longest quiet are forgotten.
const MOST: usize = 4096;

/// How many may come at once, and how many a second after that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// At once.
    pub burst: f64,
    /// A second.
    pub each_second: f64,
}

/// Requests of one caller.
pub const REQUESTS: Rate = Rate { burst: 10_000.0, each_second: 5_000.0 };

/// Credentials that were wrong, from one address.
pub const FAILURES: Rate = Rate { burst: 20.0, each_second: 0.5 };

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

/// Counts by the name of whoever is counted.
#[derive(Debug)]
pub struct Limits {
    rate: Rate,
    buckets: Mutex<HashMap<String, Bucket>>,
}

impl Limits {
    /// Nothing was counted yet.
    pub fn new(rate: Rate) -> Self {
        Self { rate, buckets: Mutex::default() }
    }

    /// Counts one, if there is room for it.
    ///
    /// # Errors
    /// `rate-limited`, with when to try again.
    pub fn take(&self, name: &str) -> Result<(), Problem> {
        self.take_at(name, 1.0, Instant::now()).map_err(limited)
    }

    /// Whether there is room for one, without counting it.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn see(&self, name: &str) -> Result<(), Problem> {
        self.take_at(name, 0.0, Instant::now()).map_err(limited)
    }

    /// Forgets what was counted.
    pub fn forget(&self) {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn take_at(&self, name: &str, cost: f64, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let Rate { burst, each_second } = self.rate;
        let full = |bucket: &Bucket| {
            bucket.left + now.duration_since(bucket.at).as_secs_f64() * each_second >= burst
        };
        if buckets.len() >= MOST && !buckets.contains_key(name) {
            buckets.retain(|_, bucket| !full(bucket));
            if buckets.len() >= MOST {
                buckets.clear();
            }
        }
        let bucket = buckets.entry(name.to_owned()).or_insert(Bucket { left: burst, at: now });
        let since = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.left = (bucket.left + since * each_second).min(burst);
        bucket.at = now;
        if bucket.left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.left) / each_second));
        }
        bucket.left -= cost;
        Ok(())
    }
}

fn limited(wait: Duration) -> Problem {
    let seconds = wait.as_secs() + 1;
    let told = Diagnosis::new("rate-limited", "there are too many requests").fix(format!("wait {seconds} s"));
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "refused", told)
        .header(header::RETRY_AFTER, &seconds.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_the_rate_waits_and_others_do_not() {
        let limits = Limits::new(Rate { burst: 2.0, each_second: 1.0 });
        let start = Instant::now();
        let at = |name: &str, seconds: f64| {
            limits.take_at(name, 1.0, start + Duration::from_secs_f64(seconds)).is_ok()
        };
        assert!(at("a", 0.0) && at("a", 0.0) && !at("a", 0.0) && !at("a", 0.5));
        assert!(at("b", 0.5));
        assert!(at("a", 1.5) && !at("a", 1.6));
        for number in 0..3 * MOST {
            assert!(at(&number.to_string(), 2.0));
        }
        assert!(limits.buckets.lock().unwrap().len() <= MOST);
    }
}
