//! How fast this processor's time-stamp counter counts, which processors emulated on it have as their own.

/// Ticks in a millisecond; absent where there is no such counter. Takes half a second.
#[cfg(target_arch = "x86_64")]
pub fn rate() -> Option<u64> {
    use std::arch::x86_64::_rdtsc;
    use std::time::{Duration, Instant};

    // SAFETY: it reads a register, which every processor of this kind has.
    let ticks = || unsafe { _rdtsc() };
    let (begun, first) = (Instant::now(), ticks());
    std::thread::sleep(Duration::from_millis(500));
    let (last, took) = (ticks(), begun.elapsed());
    let ticks = u128::from(last.checked_sub(first)?);
    u64::try_from(ticks * 1_000_000 / took.as_nanos()).ok()
}

/// There is none.
#[cfg(not(target_arch = "x86_64"))]
pub fn rate() -> Option<u64> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_counter_counts_alike_whenever_it_is_looked_at() {
        let (one, other) = (rate().unwrap(), rate().unwrap());
        // No processor counts slower than at 100 MHz.
        assert!(one > 100_000 && one.abs_diff(other) * 10 < one, "{one} {other}");
    }
}
