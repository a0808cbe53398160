//! Which request may start: independent messages at once, those of one key one after the other.

use outhaul_sdk::Outcome;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The messages of one batch and what became of them. Knows no time and no network.
#[derive(Debug)]
pub struct Schedule {
    /// Messages whose predecessors are all delivered; the earliest of the batch comes first.
    ready: BinaryHeap<Reverse<usize>>,
    /// For each message, the next one of its key.
    follower: Vec<Option<usize>>,
    outcomes: Vec<Option<Outcome>>,
}

impl Schedule {
    /// A schedule for messages with these keys, in the order of the batch.
    #[must_use]
    pub fn new<'a>(keys: impl IntoIterator<Item = Option<&'a str>>) -> Self {
        let mut last_of_key: HashMap<&str, usize> = HashMap::new();
        let mut ready = BinaryHeap::new();
        let mut follower: Vec<Option<usize>> = Vec::new();
        for (index, key) in keys.into_iter().enumerate() {
            follower.push(None);
            match key.and_then(|key| last_of_key.insert(key, index)) {
                Some(before) => {
                    if let Some(slot) = follower.get_mut(before) {
                        *slot = Some(index);
                    }
                }
                None => ready.push(Reverse(index)),
            }
        }
        let outcomes = vec![None; follower.len()];
        Self { ready, follower, outcomes }
    }

    /// The next message that may start; it must be settled later.
    pub fn start(&mut self) -> Option<usize> {
        self.ready.pop().map(|Reverse(index)| index)
    }

    /// What became of a message. Lets the next one of its key start, or holds all later ones; returns those held.
    pub fn settle(&mut self, index: usize, outcome: Outcome) -> Vec<usize> {
        let delivered = outcome == Outcome::Delivered;
        if let Some(slot) = self.outcomes.get_mut(index) {
            *slot = Some(outcome);
        }
        let mut held = Vec::new();
        let mut next = self.next_of(index);
        if delivered {
            self.ready.extend(next.map(Reverse));
            return held;
        }
        while let Some(follower) = next {
            if let Some(slot) = self.outcomes.get_mut(follower) {
                *slot = Some(Outcome::Held);
            }
            held.push(follower);
            next = self.next_of(follower);
        }
        held
    }

    /// The outcome of each message; one that was never settled is held.
    #[must_use]
    pub fn into_outcomes(self) -> Vec<Outcome> {
        self.outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Held)).collect()
    }

    fn next_of(&self, index: usize) -> Option<usize> {
        self.follower.get(index).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outhaul_sdk::Failure;
    use proptest::prelude::*;

    fn rejected() -> Outcome {
        Outcome::Reject(Failure::invalid_message("x"))
    }

    #[test]
    fn a_key_is_a_sequence_and_no_key_is_none() {
        let mut schedule = Schedule::new([Some("a"), Some("a"), None, None, Some("b")]);
        assert_eq!([(); 5].map(|()| schedule.start()), [Some(0), Some(2), Some(3), Some(4), None]);
        assert!(schedule.settle(0, Outcome::Delivered).is_empty());
        assert_eq!(schedule.start(), Some(1));
    }

    #[test]
    fn a_failure_holds_its_followers() {
        let mut schedule = Schedule::new([Some("a"), Some("b"), Some("a"), Some("a")]);
        assert_eq!((schedule.start(), schedule.start(), schedule.start()), (Some(0), Some(1), None));
        assert_eq!(schedule.settle(0, rejected()), [2, 3]);
        assert!(schedule.settle(1, Outcome::Delivered).is_empty());
        assert_eq!(schedule.start(), None);
        assert_eq!(schedule.into_outcomes(), [rejected(), Outcome::Delivered, Outcome::Held, Outcome::Held]);
    }

    proptest! {
        /// Whatever is delivered in whatever order: one in flight a key, in order, none after a failure, none forgotten.
        #[test]
        fn order_holds(keys in prop::collection::vec(prop::option::of(0..4u8), 0..40), choices in prop::collection::vec((any::<usize>(), prop::bool::weighted(0.8)), 40)) {
            let names: Vec<Option<String>> = keys.iter().map(|key| key.map(|key| key.to_string())).collect();
            let mut schedule = Schedule::new(names.iter().map(Option::as_deref));
            let (mut running, mut done): (Vec<usize>, Vec<(usize, bool)>) = (Vec::new(), Vec::new());
            for (choice, delivered) in choices {
                while let Some(index) = schedule.start() {
                    if let Some(key) = keys[index] {
                        prop_assert!(!running.iter().any(|other| keys[*other] == Some(key)));
                        prop_assert!(done.iter().filter(|(other, _)| keys[*other] == Some(key)).all(|(other, delivered)| *other < index && *delivered));
                    }
                    running.push(index);
                }
                if running.is_empty() { break; }
                let index = running.swap_remove(choice % running.len());
                schedule.settle(index, if delivered { Outcome::Delivered } else { rejected() });
                done.push((index, delivered));
            }
            prop_assert!(running.is_empty());
            let outcomes = schedule.into_outcomes();
            for (index, outcome) in outcomes.iter().enumerate() {
                let expected = match done.iter().find(|(other, _)| *other == index) {
                    Some((_, true)) => Outcome::Delivered,
                    Some((_, false)) => rejected(),
                    None => Outcome::Held,
                };
                prop_assert_eq!(outcome, &expected);
            }
        }
    }
}
