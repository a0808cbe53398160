//! What fails of the calls to the storage, each kind by itself: how often in a row, why, and when to try again. A kind that succeeds
//! says nothing of another: a table may let itself be read and not be written to.

use crate::domain::Failure;
use std::time::Duration;
use tokio::time::Instant;

/// Waits after a failed call: doubling from the first to the second.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// How long to wait after so many failures in a row.
pub(super) fn wait(failures: u32) -> Duration {
    FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LAST_RETRY)
}

/// The calls that work off a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Also of a fused call.
    Claim,
    Settle,
    Extend,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Settle, Self::Claim, Self::Extend];
}

#[derive(Debug, Default)]
struct Fault {
    failures: u32,
    failure: Option<Failure>,
    not_before: Option<Instant>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Faults {
    claim: Fault,
    settle: Fault,
    extend: Fault,
}

impl Faults {
    fn of(&self, kind: Kind) -> &Fault {
        match kind {
            Kind::Claim => &self.claim,
            Kind::Settle => &self.settle,
            Kind::Extend => &self.extend,
        }
    }

    fn of_mut(&mut self, kind: Kind) -> &mut Fault {
        match kind {
            Kind::Claim => &mut self.claim,
            Kind::Settle => &mut self.settle,
            Kind::Extend => &mut self.extend,
        }
    }

    /// A call failed; returns whether its text is news.
    pub(super) fn failed(&mut self, kind: Kind, failure: Failure) -> bool {
        let fault = self.of_mut(kind);
        fault.failures = fault.failures.saturating_add(1);
        let news = fault.failure.as_ref() != Some(&failure);
        fault.failure = Some(failure);
        news
    }

    /// All calls of this kind wait, the longer the more of them have failed in a row.
    pub(super) fn back_off(&mut self, kind: Kind, now: Instant) {
        let fault = self.of_mut(kind);
        fault.not_before = Some(now + wait(fault.failures));
    }

    /// A call succeeded: calls of its kind need not wait. Its failure stays until it is cleared.
    pub(super) fn answered(&mut self, kind: Kind) {
        let fault = self.of_mut(kind);
        (fault.failures, fault.not_before) = (0, None);
    }

    /// Nothing of this kind is in trouble any more; returns whether something was.
    pub(super) fn clear(&mut self, kind: Kind) -> bool {
        std::mem::take(self.of_mut(kind)).failure.is_some()
    }

    /// When a call of this kind may be made that could otherwise be made at `at`.
    pub(super) fn not_before(&self, kind: Kind, at: Instant) -> Instant {
        self.of(kind).not_before.map_or(at, |not_before| not_before.max(at))
    }

    /// Failures in a row.
    pub(super) fn in_a_row(&self, kind: Kind) -> u32 {
        self.of(kind).failures
    }

    /// Why a kind fails at present.
    pub(super) fn failure(&self, kind: Kind) -> Option<&Failure> {
        self.of(kind).failure.as_ref()
    }

    /// Why the storage fails at present.
    pub(super) fn first(&self) -> Option<&Failure> {
        Kind::ALL.into_iter().find_map(|kind| self.failure(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::FailureCode;

    #[test]
    fn kinds_fail_wait_and_recover_each_by_itself() {
        let mut faults = Faults::default();
        let now = Instant::now();
        let away = Failure::new(FailureCode::Unavailable, "away");
        assert!(faults.failed(Kind::Settle, away.clone()));
        assert!(!faults.failed(Kind::Settle, away.clone()), "the same text is no news");
        assert!(faults.failed(Kind::Claim, away.clone()));
        faults.back_off(Kind::Settle, now);
        faults.answered(Kind::Claim);
        assert!(faults.clear(Kind::Claim) && !faults.clear(Kind::Claim));
        assert_eq!((faults.not_before(Kind::Claim, now), faults.not_before(Kind::Settle, now)), (now, now + FIRST_RETRY * 2));
        assert_eq!((faults.in_a_row(Kind::Settle), faults.first()), (2, Some(&away)));
        faults.answered(Kind::Settle);
        assert_eq!((faults.in_a_row(Kind::Settle), faults.first()), (0, Some(&away)), "until it is cleared");
        assert!(faults.clear(Kind::Settle));
        assert_eq!(faults.first(), None);
    }

    #[test]
    fn waits_double_up_to_a_limit() {
        assert_eq!([1, 2, 3, u32::MAX].map(wait), [FIRST_RETRY, FIRST_RETRY * 2, FIRST_RETRY * 4, LAST_RETRY]);
    }
}
