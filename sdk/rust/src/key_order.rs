//! The loop of publishers that send one message at a time.

use crate::{Batch, Message, Outcome};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Kept of the deadline for the way back to the host: a tenth, but no more than this.
const MAX_MARGIN: Duration = Duration::from_millis(250);

/// Sends every message with `send`, one after the other, and none of a key after one that was not delivered: one outcome a message.
///
/// `send` is told how long it may take. Each outcome goes to `report` as soon as it is known (in a component: on to
/// `progress::report`). What cannot be started within `deadline` is [`Outcome::Held`], which costs no attempt.
pub fn run_in_key_order<'a>(
    batch: &'a Batch,
    deadline: Duration,
    mut report: impl FnMut(usize, &Outcome),
    mut send: impl FnMut(Message<'a>, Duration) -> Outcome,
) -> Vec<Outcome> {
    let began = Instant::now();
    let end = deadline - MAX_MARGIN.min(deadline / 10);
    let mut stopped = HashSet::new();
    let mut outcomes = Vec::with_capacity(batch.len());
    for message in batch.messages() {
        let left = end.saturating_sub(began.elapsed());
        let is_stopped = message.key().is_some_and(|key| stopped.contains(key));
        let outcome = if is_stopped || left.is_zero() { Outcome::Held } else { send(message, left) };
        if outcome != Outcome::Delivered {
            stopped.extend(message.key());
        }
        report(message.index(), &outcome);
        outcomes.push(outcome);
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, NewMessage};

    fn batch(keys: &[Option<&str>]) -> Batch {
        let mut batch = Batch::new();
        for key in keys {
            batch.push(&NewMessage { id: "1", topic: "t", key: *key, ..NewMessage::default() });
        }
        batch
    }

    #[test]
    fn a_failure_holds_its_own_key_and_everything_is_reported() {
        let batch = batch(&[Some("a"), Some("b"), Some("a"), None, Some("b")]);
        let failed = Outcome::Retry(Failure::invalid_message("no"));
        let mut reported = Vec::new();
        let outcomes = run_in_key_order(
            &batch,
            Duration::from_secs(10),
            |index, outcome| reported.push((index, outcome.clone())),
            |message, _| if message.index() == 0 { failed.clone() } else { Outcome::Delivered },
        );
        let expected = [failed.clone(), Outcome::Delivered, Outcome::Held, Outcome::Delivered, Outcome::Delivered];
        assert_eq!(outcomes, expected);
        assert_eq!(reported, expected.into_iter().enumerate().collect::<Vec<_>>());
    }

    #[test]
    fn what_cannot_start_in_time_is_held() {
        let outcomes = run_in_key_order(&batch(&[None, Some("a")]), Duration::ZERO, |_, _| {}, |_, _| panic!("there is no time"));
        assert_eq!(outcomes, [Outcome::Held, Outcome::Held]);
    }

    #[test]
    fn a_send_is_told_what_is_left_of_the_time() {
        let mut told = Duration::ZERO;
        run_in_key_order(
            &batch(&[None]),
            Duration::from_secs(10),
            |_, _| {},
            |_, left| {
                told = left;
                Outcome::Delivered
            },
        );
        assert!(told > Duration::from_secs(9) && told <= Duration::from_millis(9750), "{told:?}");
    }
}
