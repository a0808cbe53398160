//! What became of each message of a call, and which ones must not be sent because of it.

use outhaul_sdk::{Batch, Outcome};
use std::collections::HashMap;

/// The messages of one batch. Knows no time and no network.
#[derive(Debug)]
pub struct Ledger {
    outcomes: Vec<Option<Outcome>>,
    /// Of each message, the number of its key.
    keys: Vec<Option<usize>>,
    /// Of each message, the one of its key before it.
    before: Vec<Option<usize>>,
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
        // Of each key, its number and its last message so far.
        let mut seen: HashMap<&str, (usize, usize)> = HashMap::new();
        let (mut keys, mut before) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for message in batch.messages() {
            let index = message.index();
            let known = message.key().map(|key| {
                let next = seen.len();
                let (number, last) = seen.entry(key).or_insert((next, index));
                (*number, Some(std::mem::replace(last, index)).filter(|last| *last != index))
            });
            keys.push(known.map(|(number, _)| number));
            before.push(known.and_then(|(_, last)| last));
        }
        Self { outcomes: vec![None; keys.len()], failed: vec![None; seen.len()], open: keys.len(), keys, before, news: Vec::new() }
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

    /// Whether the message of its key before it is still open: then its own turn has not come.
    #[must_use]
    pub fn is_behind_an_open_one(&self, index: usize) -> bool {
        self.before.get(index).copied().flatten().is_some_and(|before| self.is_open(before))
    }

    /// Says what became of a message. The first word on each stands. One that is to be tried again, as is an earlier one of its
    /// key, is only held: the attempt is counted for the first.
    pub fn settle(&mut self, index: usize, outcome: Outcome) {
        let key = self.key(index);
        let outcome = if matches!(outcome, Outcome::Retry(_)) && self.is_behind_a_failure(index) { Outcome::Held } else { outcome };
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
        assert_eq!([0, 1, 2, 3, 4].map(|index| ledger.is_behind_an_open_one(index)), [false, false, true, true, false]);
        ledger.settle(2, failure());
        assert_eq!([0, 1, 2, 3, 4].map(|index| ledger.is_behind_a_failure(index)), [false, false, false, true, false]);
        ledger.settle(0, failure());
        assert!(ledger.is_behind_a_failure(2));
    }

    #[test]
    fn of_those_to_be_tried_again_only_the_first_of_a_key_is_charged() {
        let mut ledger = ledger(&[Some("a"), Some("a"), Some("b")]);
        (0..3).for_each(|index| ledger.settle(index, failure()));
        assert_eq!(ledger.into_outcomes(), [failure(), Outcome::Held, failure()]);
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
