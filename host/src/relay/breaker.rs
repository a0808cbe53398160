//! The circuit breaker in front of one publisher: when a whole destination is down, messages wait without using up attempts.
//!
//! ```text
//!            `failures` such failures in a row              `open` has passed
//!   closed ---------------------------------------> open --------------------> half-open
//!     ^                                               ^                            |
//!     |               any success                     |   a probe fails: open for  |
//!     +-----------------------------------------------+-- twice as long -----------+
//! ```
//! A success closes it from any state: it proves that the destination lives.

use crate::config::model::Breaker as Settings;
use std::time::Duration;
use tokio::time::Instant;

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
}

/// What a state change is worth telling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Opened { open_for: Duration },
    Closed,
}

impl Breaker {
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings, state: State::Closed { failures: 0 }, open_for: settings.open }
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

    pub(super) fn success(&mut self) -> Change {
        let was_closed = self.is_closed();
        self.state = State::Closed { failures: 0 };
        self.open_for = self.settings.open;
        if was_closed { Change::None } else { Change::Closed }
    }

    /// A failure of the destination or of the adapter as a whole. Others say nothing about them.
    pub(super) fn failure(&mut self, now: Instant) -> Change {
        match &mut self.state {
            State::Closed { failures } => {
                *failures = failures.saturating_add(1);
                if self.settings.failures == 0 || *failures < self.settings.failures {
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

    fn breaker(failures: u32) -> Breaker {
        Breaker::new(Settings { failures, open: Duration::from_secs(5), max: Duration::from_secs(12), probes: 3 })
    }

    #[test]
    fn opens_after_failures_in_a_row_and_doubles_up_to_the_maximum() {
        let mut breaker = breaker(2);
        let mut now = Instant::now();
        assert_eq!(breaker.failure(now), Change::None);
        assert_eq!(breaker.success(), Change::None);
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
        assert_eq!(breaker.success(), Change::Closed);
        assert_eq!(breaker.allowance(), None);
    }

    #[test]
    fn zero_failures_means_never() {
        let mut breaker = breaker(0);
        for _ in 0..1000 {
            assert_eq!(breaker.failure(Instant::now()), Change::None);
        }
    }
}
