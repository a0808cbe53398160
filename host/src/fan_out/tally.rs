//! What has become of the messages of one call, told as it comes; and which keys go no further in it, because a message of theirs did not
//! come through.

use crate::domain::Outcome;
use std::collections::HashSet;
use tokio::sync::mpsc;

/// See the module.
pub(super) struct Tally {
    outcomes: Vec<Option<Outcome>>,
    stopped: HashSet<String>,
    reports: mpsc::UnboundedSender<(usize, Outcome)>,
}

impl Tally {
    pub(super) fn new(messages: usize, reports: mpsc::UnboundedSender<(usize, Outcome)>) -> Self {
        Self { outcomes: vec![None; messages], stopped: HashSet::new(), reports }
    }

    /// Whether a message of this key has stopped it. Messages without a key stop nobody.
    pub(super) fn has_stopped(&self, key: Option<&str>) -> bool {
        key.is_some_and(|key| self.stopped.contains(key))
    }

    /// Notes an outcome; the first of a message counts.
    pub(super) fn note(&mut self, index: usize, key: Option<&str>, outcome: Outcome) {
        let Some(known) = self.outcomes.get_mut(index).filter(|known| known.is_none()) else { return };
        if !matches!(outcome, Outcome::Delivered | Outcome::Settled) {
            self.stopped.extend(key.map(str::to_owned));
        }
        if outcome != Outcome::Held {
            // Nobody listens any more after a forced shutdown.
            let _ = self.reports.send((index, outcome.clone()));
        }
        *known = Some(outcome);
    }

    /// One for each message; held where nothing is known.
    pub(super) fn outcomes(self) -> Vec<Outcome> {
        self.outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Held)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Failure, FailureCode};

    #[test]
    fn the_first_outcome_counts_and_what_fails_stops_its_key() {
        let (reports, mut reported) = mpsc::unbounded_channel();
        let mut tally = Tally::new(4, reports);
        let failed = Outcome::Reject(Failure::new(FailureCode::Network, ""));
        tally.note(0, Some("a"), Outcome::Settled);
        tally.note(0, Some("a"), failed.clone());
        assert!(!tally.has_stopped(Some("a")));
        tally.note(1, Some("a"), failed.clone());
        tally.note(2, None, failed.clone());
        tally.note(9, None, failed.clone());
        assert!(tally.has_stopped(Some("a")) && !tally.has_stopped(None) && !tally.has_stopped(Some("b")));
        assert_eq!(tally.outcomes(), [Outcome::Settled, failed.clone(), failed.clone(), Outcome::Held]);
        assert_eq!(reported.try_recv(), Ok((0, Outcome::Settled)));
        assert_eq!((reported.try_recv(), reported.try_recv()), (Ok((1, failed.clone())), Ok((2, failed))));
        assert!(reported.try_recv().is_err());
    }
}
