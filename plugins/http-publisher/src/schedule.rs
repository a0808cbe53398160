//! Which request may start: independent messages at once, those of one key one after the other, and subscribers in turn.

use outhaul_sdk::Outcome;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;

/// The messages of one batch and what became of them. Knows no time and no network.
#[derive(Debug)]
pub struct Schedule {
    receivers: Vec<Receiver>,
    /// For each message, its place in `receivers`.
    receiver_of: Vec<usize>,
    /// For each message, the next one of its key.
    follower: Vec<Option<usize>>,
    outcomes: Vec<Option<Outcome>>,
}

/// One place that messages go to.
#[derive(Debug, Default)]
struct Receiver {
    /// Messages whose predecessors are all delivered; the earliest of the batch comes first.
    ready: BinaryHeap<Reverse<usize>>,
    /// Started and not settled.
    running: usize,
}

impl Schedule {
    /// A schedule for messages with these keys to these receivers, in the order of the batch.
    #[must_use]
    pub fn new<'a, R: Eq + Hash>(messages: impl IntoIterator<Item = (Option<&'a str>, R)>) -> Self {
        let mut last_of_key: HashMap<&str, usize> = HashMap::new();
        let mut places: HashMap<R, usize> = HashMap::new();
        let mut schedule = Self { receivers: Vec::new(), receiver_of: Vec::new(), follower: Vec::new(), outcomes: Vec::new() };
        for (index, (key, receiver)) in messages.into_iter().enumerate() {
            let next = places.len();
            let place = *places.entry(receiver).or_insert(next);
            if place == next {
                schedule.receivers.push(Receiver::default());
            }
            schedule.receiver_of.push(place);
            schedule.follower.push(None);
            schedule.outcomes.push(None);
            match key.and_then(|key| last_of_key.insert(key, index)) {
                Some(before) => {
                    if let Some(slot) = schedule.follower.get_mut(before) {
                        *slot = Some(index);
                    }
                }
                None => schedule.make_ready(index),
            }
        }
        schedule
    }

    /// The next message that may start; it must be settled later. Where several receivers have one, it is the turn of the one with the
    /// fewest requests under way, so that a slow one does not take all the places there are.
    pub fn start(&mut self) -> Option<usize> {
        let waiting = self.receivers.iter_mut().filter(|receiver| !receiver.ready.is_empty());
        let next = waiting.min_by_key(|receiver| (receiver.running, receiver.ready.peek().map(|Reverse(index)| *index)))?;
        next.running += 1;
        next.ready.pop().map(|Reverse(index)| index)
    }

    fn make_ready(&mut self, index: usize) {
        if let Some(receiver) = self.receiver_mut(index) {
            receiver.ready.push(Reverse(index));
        }
    }

    fn receiver_mut(&mut self, index: usize) -> Option<&mut Receiver> {
        let place = *self.receiver_of.get(index)?;
        self.receivers.get_mut(place)
    }

    /// What became of a message. Lets the next one of its key start, or holds all later ones; returns those held.
    pub fn settle(&mut self, index: usize, outcome: Outcome) -> Vec<usize> {
        let delivered = outcome == Outcome::Delivered;
        if let Some(receiver) = self.receiver_mut(index) {
            receiver.running = receiver.running.saturating_sub(1);
        }
        if let Some(slot) = self.outcomes.get_mut(index) {
            *slot = Some(outcome);
        }
        let mut held = Vec::new();
        let mut next = self.next_of(index);
        if delivered {
            if let Some(next) = next {
                self.make_ready(next);
            }
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

    fn to_one(keys: &[Option<&str>]) -> Schedule {
        Schedule::new(keys.iter().map(|key| (*key, ())))
    }

    #[test]
    fn receivers_take_turns() {
        // Six to the slow one come first in the batch; of four places it gets two, and no more as long as others want any.
        let mut schedule = Schedule::new((0..10).map(|index| (None, if index < 6 { "slow" } else { "quick" })));
        assert_eq!([(); 4].map(|()| schedule.start()), [Some(0), Some(6), Some(1), Some(7)]);
        schedule.settle(6, Outcome::Delivered);
        assert_eq!(schedule.start(), Some(8));
        schedule.settle(7, rejected());
        schedule.settle(8, Outcome::Delivered);
        assert_eq!([(); 3].map(|()| schedule.start()), [Some(9), Some(2), Some(3)]);
    }

    fn rejected() -> Outcome {
        Outcome::Reject(Failure::invalid_message("x"))
    }

    #[test]
    fn a_key_is_a_sequence_and_no_key_is_none() {
        let mut schedule = to_one(&[Some("a"), Some("a"), None, None, Some("b")]);
        assert_eq!([(); 5].map(|()| schedule.start()), [Some(0), Some(2), Some(3), Some(4), None]);
        assert!(schedule.settle(0, Outcome::Delivered).is_empty());
        assert_eq!(schedule.start(), Some(1));
    }

    #[test]
    fn a_failure_holds_its_followers() {
        let mut schedule = to_one(&[Some("a"), Some("b"), Some("a"), Some("a")]);
        assert_eq!((schedule.start(), schedule.start(), schedule.start()), (Some(0), Some(1), None));
        assert_eq!(schedule.settle(0, rejected()), [2, 3]);
        assert!(schedule.settle(1, Outcome::Delivered).is_empty());
        assert_eq!(schedule.start(), None);
        assert_eq!(schedule.into_outcomes(), [rejected(), Outcome::Delivered, Outcome::Held, Outcome::Held]);
    }

    proptest! {
        /// Whatever is delivered in whatever order: one in flight a key, in order, none after a failure, none forgotten.
        #[test]
        fn order_holds(keys in prop::collection::vec(prop::option::of(0..4u8), 0..40), choices in prop::collection::vec((any::<usize>(), prop::bool::weighted(0.8)), 40), receivers in 1..4usize) {
            let names: Vec<Option<String>> = keys.iter().map(|key| key.map(|key| key.to_string())).collect();
            let mut schedule = Schedule::new(names.iter().enumerate().map(|(index, name)| (name.as_deref(), index % receivers)));
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
