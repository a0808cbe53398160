//! When leases are renewed, when a message may no longer be published, and under which name a worker claims.

use std::time::Duration;
use tokio::time::Instant;

/// The arithmetic of one lease length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leases {
    length: Duration,
}

impl Leases {
    pub(super) fn new(length: Duration) -> Self {
        Self { length }
    }

    pub(super) fn length(self) -> Duration {
        self.length
    }

    /// How often to look for leases to renew: often enough for several tries before the end.
    pub(super) fn tick(self) -> Duration {
        self.length / 12
    }

    /// Leases that end before this are renewed: a third of the length is gone.
    pub(super) fn renew_before(self, now: Instant) -> Instant {
        now + self.length - self.length / 3
    }

    /// Messages whose lease ends before this are not given to a publisher until it is renewed.
    pub(super) fn dispatch_after(self, now: Instant) -> Instant {
        now + self.length / 4
    }
}

/// Under which name a message was claimed, and up to when it is surely ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) epoch: u32,
    pub(super) until: Instant,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_several_tries_between_renewal_and_the_last_dispatch() {
        let leases = Leases::new(Duration::from_secs(12));
        let now = Instant::now();
        let window = leases.renew_before(now) - leases.dispatch_after(now);
        assert!(window >= leases.tick() * 4, "{window:?}");
    }
}
