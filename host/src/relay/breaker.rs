//! The circuit breaker in front of one publisher: when a whole destination is down, messages wait without using up attempts.
//!
//! ```text
//!            `failures` such failures in a row              `open` has passed
//!   closed ---------------------------------------> open --------------------> half-open
//!     ^                                               ^                            |
//!     |               any success                     |   a probe fails: open for  |
//!     +-----------------------------------------------+-- twice as long -----------+
//! ```
//! A success closes it from any state: it proves that the destination lives. While there are successes, failures in a row are
//! chance (a fifth of the requests failing makes five in a row every few thousand): it opens only once there was none for
//! [`NO_SUCCESS_FOR`].

use crate::config::model::Breaker as Settings;
use std::time::Duration;
use tokio::time::Instant;

/// Longer than the pause between two messages of a destination that is worth protecting from chance, and short beside any back-off.
const NO_SUCCESS_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant },
    HalfOpen,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Breaker {
    settings: Settings,
    state: State,
    open_for: Duration,
    /// Of the last success; at first, of the start.
    alive: Instant,
}

/// What a state change is worth telling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Opened { open_for: Duration },
    Closed,
}

impl Breaker {
    pub(super) fn new(settings: Settings, now: Instant) -> Self {
        Self { settings, state: State::Closed { failures: 0 }, open_for: settings.open, alive: now }
    }

    /// Lets time pass: an open breaker whose time is over becomes half-open.
    pub(super) fn advance(&mut self, now: Instant) {
        if matches!(self.state, State::Open { until } if until <= now) {
            self.state = State::HalfOpen;
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// Until when nothing may be sent; none: something may.
    pub(super) fn open_until(&self) -> Option<Instant> {
        match self.state {
            State::Open { until } => Some(until),
            State::Closed { .. } | State::HalfOpen => None,
        }
    }

    /// How many messages may be under way at once; none: no limit.
    pub(super) fn allowance(&self) -> Option<usize> {
        match self.state {
            State::Closed { .. } => None,
            State::HalfOpen => Some(self.settings.probes),
            State::Open { .. } => Some(0),
        }
    }

    pub(super) fn success(&mut self, now: Instant) -> Change {
        let was_closed = self.is_closed();
        self.alive = now;
        self.state = State::Closed { failures: 0 };
        self.open_for = self.settings.open;
        if was_closed { Change::None } else { Change::Closed }
    }

    /// A failure of the destination or of the adapter as a whole. Others say nothing about them.
    pub(super) fn failure(&mut self, now: Instant) -> Change {
        match &mut self.state {
            State::Closed { failures } => {
                *failures = failures.saturating_add(1);
                let few = self.settings.failures == 0 || *failures < self.settings.failures;
                if few || now < self.alive + NO_SUCCESS_FOR {
                    return Change::None;
                }
            }
            State::Open { .. } => return Change::None,
            State::HalfOpen => self.open_for = self.open_for.saturating_mul(2).min(self.settings.max),
        }
        self.state = State::Open { until: now + self.open_for };
        Change::Opened { open_for: self.open_for }
    }

    /// For the gauge: 0 closed, 1 open, 2 half-open.
    pub(super) fn code(&self) -> i64 {
        match self.state {
            State::Closed { .. } => 0,
            State::Open { .. } => 1,
            State::HalfOpen => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker(failures: u32, now: Instant) -> Breaker {
        Breaker::new(Settings { failures, open: Duration::from_secs(5), max: Duration::from_secs(12), probes: 3 }, now)
    }

    #[test]
    fn opens_after_failures_in_a_row_and_doubles_up_to_the_maximum() {
        let start = Instant::now();
        let mut breaker = breaker(2, start);
        let mut now = start + NO_SUCCESS_FOR;
        assert_eq!(breaker.failure(now), Change::None);
        assert_eq!(breaker.success(start), Change::None);
        assert_eq!(breaker.failure(now), Change::None);
        let mut opened = Vec::new();
        for _ in 0..3 {
            if let Change::Opened { open_for } = breaker.failure(now) {
                opened.push(open_for.as_secs());
                assert_eq!((breaker.allowance(), breaker.open_until()), (Some(0), Some(now + open_for)));
                now += open_for;
                breaker.advance(now);
                assert_eq!((breaker.allowance(), breaker.open_until()), (Some(3), None));
            }
        }
        assert_eq!(opened, [5, 10, 12]);
        assert_eq!(breaker.success(now), Change::Closed);
        assert_eq!(breaker.allowance(), None);
    }

    #[test]
    fn failures_in_a_row_are_chance_while_there_are_successes() {
        let start = Instant::now();
        let mut breaker = breaker(2, start);
        breaker.success(start);
        for millis in 0..1000 {
            assert_eq!(breaker.failure(start + Duration::from_millis(millis)), Change::None);
        }
        assert!(matches!(breaker.failure(start + NO_SUCCESS_FOR), Change::Opened { .. }));
    }

    #[test]
    fn zero_failures_means_never() {
        let start = Instant::now();
        let mut breaker = breaker(0, start);
        for seconds in 0..1000 {
            assert_eq!(breaker.failure(start + Duration::from_secs(seconds)), Change::None);
        }
    }
}
