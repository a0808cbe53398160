//! To whom messages go: each party is in one call at a time, and a slow one may have only a part of the memory. Its rows beyond that are
//! handed back, each time for longer, so that they are neither in the way of others nor claimed again and again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub(super) type PartyId = usize;

/// A slow party may have so large a part of what may be in flight.
pub(super) const PART: usize = 4;

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
