//! What became of each message of a call, and which ones must not be sent because of it.

use outhaul_sdk::{Batch, Outcome};
use std::collections::HashMap;

/// The messages of one batch. Knows no time and no network.
#[derive(Debug)]
pub struct Ledger {
    outcomes: Vec<Option<Outcome>>,
    /// Of each message, the number of its key.
    keys: Vec<Option<usize>>,
    /// Of each key, its first message that was not delivered.
    failed: Vec<Option<usize>>,
    open: usize,
    /// Settled since the last time that somebody asked.
    news: Vec<usize>,
}

impl Ledger {
    /// Nothing has become of any message yet.
    #[must_use]
    pub fn new(batch: &Batch) -> Self {
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut keys = Vec::with_capacity(batch.len());
        for message in batch.messages() {
            keys.push(message.key().map(|key| {
                let next = numbers.len();
                *numbers.entry(key).or_insert(next)
            }));
        }
        Self { outcomes: vec![None; keys.len()], failed: vec![None; numbers.len()], open: keys.len(), keys, news: Vec::new() }
    }

    /// How many keys there are; they are numbered from 0.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.failed.len()
    }

    /// The number of a message's key.
    #[must_use]
    pub fn key(&self, index: usize) -> Option<usize> {
        self.keys.get(index).copied().flatten()
    }

    /// Messages of which nothing has become yet.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open
    }

    /// Whether nothing has become of this one yet.
    #[must_use]
    pub fn is_open(&self, index: usize) -> bool {
        self.outcomes.get(index).is_some_and(Option::is_none)
    }

    /// Whether an earlier message of its key was not delivered.
    #[must_use]
    pub fn is_behind_a_failure(&self, index: usize) -> bool {
        let failed = self.key(index).and_then(|key| self.failed.get(key).copied().flatten());
        failed.is_some_and(|failed| failed < index)
    }

    /// Says what became of a message. The first word on each stands.
    pub fn settle(&mut self, index: usize, outcome: Outcome) {
        let key = self.key(index);
        let Some(slot @ None) = self.outcomes.get_mut(index) else { return };
        if outcome != Outcome::Delivered
            && let Some(failed) = key.and_then(|key| self.failed.get_mut(key))
        {
            *failed = Some(failed.map_or(index, |earlier| earlier.min(index)));
        }
        *slot = Some(outcome);
        self.open = self.open.saturating_sub(1);
        self.news.push(index);
    }

    /// Shows each outcome that nobody has been shown yet.
    pub fn tell(&mut self, mut show: impl FnMut(usize, &Outcome)) {
        for index in self.news.drain(..) {
            if let Some(Some(outcome)) = self.outcomes.get(index) {
                show(index, outcome);
            }
        }
    }

    /// The outcome of each message; one of which nothing became was not tried.
    #[must_use]
    pub fn into_outcomes(self) -> Vec<Outcome> {
        self.outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Held)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outhaul_sdk::{Failure, NewMessage};

    fn ledger(keys: &[Option<&str>]) -> Ledger {
        let mut batch = Batch::new();
        for key in keys {
            batch.push(&NewMessage { key: *key, ..NewMessage::default() });
        }
        Ledger::new(&batch)
    }

    fn failure() -> Outcome {
        Outcome::Retry(Failure::invalid_message("x"))
    }

    #[test]
    fn a_failure_stands_before_its_followers_only() {
        let mut ledger = ledger(&[Some("a"), Some("b"), Some("a"), Some("a"), None]);
        assert_eq!((ledger.keys(), ledger.key(2), ledger.key(4)), (2, Some(0), None));
        ledger.settle(2, failure());
        assert_eq!([0, 1, 2, 3, 4].map(|index| ledger.is_behind_a_failure(index)), [false, false, false, true, false]);
        ledger.settle(0, failure());
        assert!(ledger.is_behind_a_failure(2));
    }

    #[test]
    fn the_first_word_stands() {
        let mut ledger = ledger(&[None, None]);
        ledger.settle(0, Outcome::Delivered);
        ledger.settle(0, failure());
        ledger.settle(9, failure());
        assert!(!ledger.is_open(0) && ledger.is_open(1));
        assert_eq!(ledger.open(), 1);
        let mut told = Vec::new();
        ledger.tell(|index, outcome| told.push((index, outcome.clone())));
        ledger.tell(|index, outcome| told.push((index, outcome.clone())));
        assert_eq!(told, [(0, Outcome::Delivered)]);
        assert_eq!(ledger.into_outcomes(), [Outcome::Delivered, Outcome::Held]);
    }
}
