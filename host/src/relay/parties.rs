//! To whom messages go: each party is in one call at a time, and a slow one may have only a part of the memory. Its rows beyond that are
//! handed back, each time for longer, so that they are neither in the way of others nor claimed again and again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub(super) type PartyId = usize;

/// A slow party may have so large a part of what may be in flight.
const PART: usize = 4;

/// All slow parties together may have so large a part of it.
const PART_OF_ALL: usize = 2;

/// Who has not answered for so long is slow, before that is known for sure.
const PATIENCE: Duration = Duration::from_secs(1);

/// For how long rows are handed back at first.
const FIRST: Duration = Duration::from_secs(1);

/// Parties whose delays are remembered; beyond that, all begin anew.
const REMEMBERED: usize = 10_000;

/// A party with messages in memory.
#[derive(Debug)]
pub(super) struct Party {
    pub(super) mark: Arc<str>,
    pub(super) messages: usize,
    pub(super) bytes: usize,
    pub(super) in_call: usize,
    /// Since when messages of it have been in a call.
    pub(super) since: Option<Instant>,
}

impl Party {
    pub(super) fn new(mark: Arc<str>) -> Self {
        Self { mark, messages: 0, bytes: 0, in_call: 0, since: None }
    }

    /// One of its messages in a call is there no more.
    pub(super) fn leaves_call(&mut self) {
        self.in_call -= 1;
        if self.in_call == 0 {
            self.since = None;
        }
    }

    /// Whether it has kept a call waiting.
    pub(super) fn keeps_waiting(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now > since + PATIENCE)
    }
}

/// What one slow party may have in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

impl Part {
    /// Of what may be in flight, while these are slow: where they have much together, each may have an equal part of what all may have.
    pub(super) fn of<'a>(in_flight: usize, in_flight_bytes: usize, slow: impl Iterator<Item = &'a Party>) -> Self {
        let (mut number, mut messages, mut bytes) = (0_usize, 0_usize, 0_usize);
        for party in slow {
            (number, messages, bytes) = (number + 1, messages + party.messages, bytes + party.bytes);
        }
        let all = Self { messages: in_flight / PART_OF_ALL, bytes: in_flight_bytes / PART_OF_ALL };
        let one = Self { messages: in_flight / PART, bytes: in_flight_bytes / PART };
        let part = if messages >= all.messages || bytes >= all.bytes {
            let number = number.max(1);
            Self { messages: one.messages.min(all.messages / number), bytes: one.bytes.min(all.bytes / number) }
        } else {
            one
        };
        Self { messages: part.messages.max(1), ..part }
    }

    pub(super) fn is_filled_by(self, messages: usize, bytes: usize) -> bool {
        messages >= self.messages || bytes >= self.bytes
    }
}

/// For how long the rows of each slow party are handed back.
#[derive(Debug, Default)]
pub(super) struct Delays {
    of: HashMap<Arc<str>, (Duration, Instant)>,
    /// The longest of those that may not be written yet.
    unwritten: Option<Duration>,
    /// When the last of the others is due again.
    until: Option<Instant>,
}

impl Delays {
    /// Rows have no room. The delay doubles once those that were handed back before have come again.
    pub(super) fn no_room(&mut self, mark: &Arc<str>, most: Duration, now: Instant) -> Duration {
        if self.of.len() >= REMEMBERED && !self.of.contains_key(mark) {
            self.of.clear();
        }
        let (delay, since) = self.of.entry(Arc::clone(mark)).or_insert((FIRST.min(most), now));
        if now > *since + *delay {
            (*delay, *since) = (delay.saturating_mul(2).min(most), now);
        }
        let delay = *delay;
        self.unwritten = self.unwritten.max(Some(delay));
        delay
    }

    /// There is much room: they came late.
    pub(super) fn much_room(&mut self, mark: &Arc<str>, now: Instant) {
        if let Some((delay, since)) = self.of.get_mut(mark)
            && now > *since + *delay
        {
            (*delay, *since) = ((*delay / 2).max(FIRST), now);
        }
    }

    /// All rows that were handed back have been written as such.
    pub(super) fn are_written(&mut self, now: Instant) {
        if let Some(delay) = self.unwritten.take() {
            self.until = self.until.max(Some(now + delay));
        }
    }

    /// Whether rows that were handed back are not due yet.
    pub(super) fn are_running(&self, now: Instant) -> bool {
        self.unwritten.is_some() || self.until.is_some_and(|until| now <= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_parties_have_a_part_each_and_a_part_together() {
        let party = |messages, bytes| Party { messages, bytes, ..Party::new(Arc::from("a")) };
        let of = |slow: &[Party]| Part::of(1000, 8000, slow.iter());
        assert_eq!(of(&[]), Part { messages: 250, bytes: 2000 });
        assert_eq!(of(&[party(250, 10), party(200, 10)]), Part { messages: 250, bytes: 2000 });
        let eight: Vec<Party> = (0..8).map(|_| party(70, 10)).collect();
        assert_eq!(of(&eight), Part { messages: 62, bytes: 500 });
        assert!(of(&eight).is_filled_by(70, 10) && !of(&eight).is_filled_by(61, 10));
        assert_eq!(of(&[party(1, 4000)]), Part { messages: 250, bytes: 2000 }, "one may have its part, and no more");
        let many: Vec<Party> = (0..600).map(|_| party(1, 1)).collect();
        assert_eq!(of(&many).messages, 1, "each may have one");
    }

    #[test]
    fn delays_double_each_time_that_rows_come_again_and_halve_where_there_is_room() {
        let (mut delays, mark, start) = (Delays::default(), Arc::from("a"), Instant::now());
        let seconds = Duration::from_secs;
        let at = |after| start + Duration::from_millis(after);
        assert!(!delays.are_running(start));
        assert_eq!([0, 500, 1000].map(|after| delays.no_room(&mark, seconds(3), at(after))), [seconds(1); 3]);
        assert_eq!(delays.no_room(&mark, seconds(3), at(1001)), seconds(2));
        assert_eq!(delays.no_room(&mark, seconds(3), at(3001)), seconds(2));
        assert_eq!(delays.no_room(&mark, seconds(3), at(3002)), seconds(3));
        assert!(delays.are_running(at(90_000)), "not written yet");
        delays.are_written(at(4000));
        assert!(delays.are_running(at(7000)) && !delays.are_running(at(7001)));
        delays.much_room(&mark, at(6003));
        assert_eq!(delays.no_room(&mark, seconds(3), at(6004)), Duration::from_millis(1500));
        assert_eq!(delays.no_room(&Arc::from("b"), seconds(3), at(6004)), seconds(1), "each by itself");
    }
}
