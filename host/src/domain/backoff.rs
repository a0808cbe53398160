//! How long a message waits before its next attempt.

use std::time::Duration;

/// Exponential back-off with jitter inside the cap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// Delay after the first failed attempt.
    pub base: Duration,
    /// Growth per attempt; at least 1.
    pub factor: f64,
    /// No delay is longer, jitter and Retry-After included.
    pub max: Duration,
    /// Share of the delay that is random, 0 to 1.
    pub jitter: f64,
}

impl Backoff {
    /// The delay after failed attempt number `attempt` (from 1): `min(base * factor^(attempt-1), max)`, spread by jitter within
    /// `max`, and never shorter than `retry_after`, which is capped at `max` as well. `random` is uniform in 0..=1.
    #[must_use]
    pub fn delay(&self, attempt: u32, retry_after: Option<Duration>, random: f64) -> Duration {
        let max = self.max.as_secs_f64();
        // The exponent is bounded: past 2^1024 a float is infinite anyway, and min() brings it back.
        let exponent = i32::try_from(attempt.saturating_sub(1).min(2048)).unwrap_or(2048);
        let raw = (self.base.as_secs_f64() * self.factor.powi(exponent)).min(max);
        let spread = self.jitter.clamp(0.0, 1.0) * (2.0 * random.clamp(0.0, 1.0) - 1.0);
        let seconds = (raw * (1.0 + spread)).clamp(0.0, max);
        let delay = Duration::try_from_secs_f64(seconds).unwrap_or(self.max).min(self.max);
        delay.max(retry_after.unwrap_or(Duration::ZERO).min(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: Backoff = Backoff { base: Duration::from_secs(1), factor: 2.0, max: Duration::from_secs(300), jitter: 0.0 };

    #[test]
    fn grows_by_the_factor_up_to_the_cap() {
        let delays: Vec<u64> = [1, 2, 3, 9, 10, u32::MAX].map(|attempt| PLAIN.delay(attempt, None, 0.5).as_secs()).to_vec();
        assert_eq!(delays, [1, 2, 4, 256, 300, 300]);
    }

    #[test]
    fn retry_after_is_a_floor_and_is_capped() {
        assert_eq!(PLAIN.delay(1, Some(Duration::from_secs(7)), 0.5), Duration::from_secs(7));
        assert_eq!(PLAIN.delay(1, Some(Duration::from_secs(100_000)), 0.5), Duration::from_secs(300));
        assert_eq!(PLAIN.delay(5, Some(Duration::from_secs(7)), 0.5), Duration::from_secs(16));
    }

    proptest! {
        #[test]
        fn never_over_the_cap_and_never_panics(base in 0u64..u64::MAX, factor in 1.0f64..1e9, max in 0u64..u64::MAX, jitter in 0.0f64..=1.0,
                                               attempt in any::<u32>(), retry in prop::option::of(any::<u64>()), random in 0.0f64..=1.0) {
            let backoff = Backoff { base: Duration::from_millis(base), factor, max: Duration::from_millis(max), jitter };
            let delay = backoff.delay(attempt, retry.map(Duration::from_millis), random);
            prop_assert!(delay <= backoff.max);
            prop_assert!(delay >= retry.map_or(Duration::ZERO, Duration::from_millis).min(backoff.max));
        }
    }
}
