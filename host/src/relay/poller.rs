//! When to claim next: at once while there is something to have, else after a wait that doubles from a floor to a ceiling.

use crate::config::model::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// See the module.
#[derive(Debug)]
pub(super) struct Poller {
    settings: Poll,
    wait: Duration,
    next: Instant,
}

impl Poller {
    pub(super) fn new(settings: Poll, now: Instant) -> Self {
        Self { settings, wait: settings.min, next: now }
    }

    /// When the next claim is due.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Something was claimed, or may have become claimable: claim at once.
    pub(super) fn now(&mut self, now: Instant) {
        self.wait = self.settings.min;
        self.next = now;
    }

    /// A claim came back empty.
    pub(super) fn empty(&mut self, now: Instant) {
        self.next = now + self.wait;
        self.wait = self.wait.saturating_mul(2).min(self.settings.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_ceiling_and_start_over() {
        let millis = Duration::from_millis;
        let now = Instant::now();
        let mut poller = Poller::new(Poll { min: millis(50), max: millis(300), wake_check: millis(10) }, now);
        assert_eq!(poller.next(), now);
        let waits: Vec<Duration> = (0..5)
            .map(|_| {
                poller.empty(now);
                poller.next() - now
            })
            .collect();
        assert_eq!(waits, [50, 100, 200, 300, 300].map(millis));
        poller.now(now);
        assert_eq!(poller.next(), now);
        poller.empty(now);
        assert_eq!(poller.next(), now + millis(50));
    }
}
