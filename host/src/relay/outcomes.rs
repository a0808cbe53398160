//! What becomes of published messages: outcomes into verdicts.

use super::breaker::Change;
use super::dispatcher::{Entry, EntryId};
use super::half;
use super::lane::CallId;
use super::pipeline::{Call, Pipeline};
use crate::domain::{Failure, FailureCode, Outcome, Verdict};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, warn};

/// Jitter takes one of so many values, so that messages which fail together can still be settled together.
const JITTER_STEPS: u32 = 8;

impl Pipeline {
    /// An outcome reported before the end of its call. `held` decides nothing yet: why it was held shows at the end.
    pub(super) fn on_reported(&mut self, call: CallId, index: usize, outcome: Outcome, now: Instant) {
        if outcome == Outcome::Held {
            return;
        }
        let Some(running) = self.calls.get_mut(&call) else { return };
        let publisher = running.publisher;
        let Some(entry) = running.entries.get_mut(index).and_then(Option::take) else { return };
        running.progressed = true;
        self.settle_outcome(publisher, entry, outcome, now);
    }

    pub(super) fn on_published(&mut self, id: CallId, result: Result<Vec<Outcome>, Failure>, elapsed: Duration, now: Instant) {
        // A lease that ended during the call decides over what came of it.
        self.expire(now);
        let Some(call) = self.calls.remove(&id) else { return };
        if let Some(destination) = self.destinations.get_mut(call.publisher) {
            destination.calls -= 1;
            destination.slow_calls -= usize::from(call.is_slow);
            destination.under_way -= call.entries.len();
            destination.duration.observe(elapsed.as_secs_f64());
        }
        if call.cancel.is_cancelled() {
            self.forget(&call, now);
            return;
        }
        match result {
            Ok(outcomes) => self.on_outcomes(call, outcomes, now),
            Err(failure) => self.on_call_failed(&call, &failure, now),
        }
    }

    /// The lease of a message in the call ended: whatever became of it, it is no longer ours to write down, and another worker
    /// may have it. So its key's later messages are handed back; all others may have been sent as well, and are tried again.
    fn forget(&mut self, call: &Call, now: Instant) {
        let ours = |pipeline: &Self, id: EntryId| pipeline.dispatcher.entry(id).is_some_and(|entry| entry.lease_until > now);
        let (held, ended): (Vec<EntryId>, Vec<EntryId>) = call.entries.iter().flatten().partition(|id| ours(self, **id));
        for id in ended {
            for follower in self.dispatcher.fail(id).map(|(_, followers)| followers).unwrap_or_default() {
                self.release(&follower, Duration::ZERO, now);
            }
        }
        self.try_again(held, false, now);
    }

    /// Messages of an ended call that are still ours: back into their queues, unless an earlier one of their key failed.
    fn try_again(&mut self, entries: Vec<EntryId>, alone: bool, now: Instant) {
        let (halted, again): (Vec<EntryId>, Vec<EntryId>) = entries.into_iter().partition(|id| self.dispatcher.is_halted(*id));
        for id in halted {
            self.counters.held.inc();
            if let Some(entry) = self.dispatcher.finish(id) {
                self.release(&entry, Duration::ZERO, now);
            }
        }
        self.dispatcher.requeue(&again, alone);
    }

    fn on_outcomes(&mut self, mut call: Call, outcomes: Vec<Outcome>, now: Instant) {
        let mut held: Vec<EntryId> = Vec::new();
        for (entry, outcome) in call.entries.iter_mut().zip(outcomes) {
            let Some(id) = entry.take() else { continue };
            if outcome == Outcome::Held {
                held.push(id);
            } else {
                call.progressed = true;
                self.settle_outcome(call.publisher, id, outcome, now);
            }
        }
        if !call.progressed && !held.is_empty() {
            // A publisher that holds everything would go round for ever without using up an attempt.
            let failure = Failure::new(FailureCode::Other("all-held".into()), "the publisher held every message of a call and tried none");
            for id in held {
                self.settle_outcome(call.publisher, id, Outcome::Retry(failure.clone()), now);
            }
            return;
        }
        self.try_again(held, false, now);
    }

    /// The call itself went wrong (trap, time-out, nonsense), so nobody knows which message did it. A message that was alone is
    /// the one; several are tried again one by one, so that one bad message does not take the others' attempts.
    fn on_call_failed(&mut self, call: &Call, failure: &Failure, now: Instant) {
        let unknown: Vec<EntryId> = call.entries.iter().flatten().copied().collect();
        let publisher = self.destinations.get(call.publisher).map(|destination| destination.name.as_str()).unwrap_or_default();
        warn!(relay = self.parts.config.name, publisher, messages = unknown.len(), %failure, "publish call failed");
        if failure.code == FailureCode::not_started() {
            // It waited its whole time for an instance that others kept busy: nothing was tried.
            self.try_again(unknown, false, now);
            return;
        }
        if let ([id], 1) = (unknown.as_slice(), call.entries.len()) {
            self.settle_outcome(call.publisher, *id, Outcome::Retry(failure.clone()), now);
            return;
        }
        self.try_again(unknown, true, now);
    }

    fn settle_outcome(&mut self, publisher: usize, id: EntryId, outcome: Outcome, now: Instant) {
        if !matches!(&outcome, Outcome::Retry(failure) if half::is_waited_for(&failure.code))
            && let Some(entry) = self.dispatcher.entry(id)
        {
            self.waits.forget(entry.message().id());
        }
        match outcome {
            Outcome::Delivered => {
                self.note_success(publisher, now);
                if let Some(entry) = self.dispatcher.finish(id) {
                    self.verdict(&entry, Verdict::Delivered, now);
                }
            }
            Outcome::Reject(failure) => {
                // An answer, if not a friendly one: the destination lives.
                self.note_success(publisher, now);
                if let Some(entry) = self.dispatcher.finish(id) {
                    self.verdict(&entry, Verdict::Dead(failure), now);
                }
            }
            Outcome::Retry(failure) => self.settle_retry(publisher, id, failure, now),
            Outcome::Settled => {
                self.note_success(publisher, now);
                if self.dispatcher.finish(id).is_some() {
                    self.counters.delivered.inc();
                    self.summary.sent += 1;
                    // Later rows of its key can be had now, with no settle call that would tell.
                    self.poller.now(now);
                }
            }
            Outcome::Lost => self.on_lost(id, now),
            Outcome::Held => {}
        }
    }

    /// Somebody else has the message by now, or had it before: nothing is written back. Its followers must not overtake it.
    fn on_lost(&mut self, id: EntryId, now: Instant) {
        let Some((_, followers)) = self.dispatcher.fail(id) else { return };
        self.counters.lost.inc();
        self.store.epoch += 1;
        warn!(relay = self.parts.config.name, followers = followers.len(), "a message was no longer held when it was to be settled");
        for follower in followers {
            self.release(&follower, Duration::ZERO, now);
        }
    }

    fn settle_retry(&mut self, publisher: usize, id: EntryId, failure: Failure, now: Instant) {
        // Both open the breaker. An outage gives the attempt back, a trap does not: its message may be what brings it about.
        let half = self.parts.half.as_ref();
        let waits = half.is_some() && half::is_waited_for(&failure.code);
        let outage = failure.code.is_outage() && !(half.is_some() && half::is_of_one(&failure.code));
        if half.is_some_and(|half| (half.word)(&failure).is_some()) {
            // What is asked first has answered, or there would be no such word.
            self.note_success(publisher, now);
        }
        let mut open_for = None;
        if outage || failure.code.is_adapter_fault() {
            let change = self.destinations.get_mut(publisher).map_or(Change::None, |destination| destination.breaker.failure(now));
            self.on_breaker_change(publisher, change);
            let until = self.destinations.get(publisher).and_then(|destination| destination.breaker.open_until());
            open_for = until.filter(|_| outage).map(|until| until - now);
        }
        let attempts = self.dispatcher.entry(id).map_or(1, |entry| entry.message().attempts());
        let max_attempts = self.parts.config.max_attempts;
        let is_last = max_attempts != 0 && attempts >= max_attempts;
        let random = f64::from(rand::random_range(0..=JITTER_STEPS)) / f64::from(JITTER_STEPS);
        // The first time is counted, for why it waits is written down only so.
        let put_off = self.dispatcher.entry(id).filter(|_| waits && open_for.is_none()).map(|entry| self.waits.again(entry.message().id()));
        let verdict = match open_for {
            Some(delay) => {
                let asked = failure.retry_after.unwrap_or_default().min(self.parts.config.backoff.max);
                Verdict::Release { delay: delay.max(asked) }
            }
            None if put_off.is_some_and(|times| times > 1 || is_last) => {
                // Where more wait than are remembered, what is in the row still counts.
                let times = put_off.unwrap_or(1).max(attempts);
                Verdict::Release { delay: self.parts.config.backoff.delay(times, failure.retry_after, random) }
            }
            None if is_last => Verdict::Dead(failure),
            None => {
                let delay = self.parts.config.backoff.delay(attempts, failure.retry_after, random);
                Verdict::Retry { failure, delay }
            }
        };
        if matches!(verdict, Verdict::Dead(_)) {
            if let Some(entry) = self.dispatcher.finish(id) {
                self.verdict(&entry, verdict, now);
            }
            return;
        }
        if let Some((entry, followers)) = self.dispatcher.fail(id) {
            self.verdict(&entry, verdict, now);
            let held = u64::try_from(followers.len()).unwrap_or(u64::MAX);
            self.counters.held.inc_by(held);
            for follower in followers {
                self.release(&follower, Duration::ZERO, now);
            }
        }
    }

    pub(super) fn verdict(&mut self, entry: &Entry, verdict: Verdict, now: Instant) {
        debug!(relay = self.parts.config.name, id = entry.message().id(), ?verdict, "outcome");
        self.settler.add(entry.lease(), verdict, entry.message().id(), entry.bytes, now);
    }

    fn note_success(&mut self, publisher: usize, now: Instant) {
        let change = self.destinations.get_mut(publisher).map_or(Change::None, |destination| destination.breaker.success(now));
        if change != Change::None {
            self.on_breaker_change(publisher, change);
        }
    }
}
