//! Waiting for the locks of other connections and processes: short jittered pauses, up to the deadline of the call.
//!
//! SQLite asks a handler each time it meets a lock: at BEGIN IMMEDIATE, at the first read, at COMMIT in rollback-journal mode, while
//! another process recovers a write-ahead log. The same clock ends statements that run for too long.

use rand::RngExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Stands for "no deadline".
const NONE: u64 = u64::MAX;

/// Shortest pause. A commit takes about a millisecond, so that a lock is often free after half of it.
const SHORTEST_MICROS: u64 = 500;

/// Longest pause. The pauses decide how late we notice a free lock; 100 looks a second cost next to nothing.
const LONGEST_MICROS: u64 = 10_000;

/// The deadline of the call that is being worked on, readable from within SQLite's callbacks.
#[derive(Debug)]
pub(super) struct CallClock {
    start: Instant,
    /// Nanoseconds from `start`.
    deadline: AtomicU64,
}

impl CallClock {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), deadline: AtomicU64::new(NONE) }
    }

    /// Sets the deadline of the next call.
    pub(super) fn set(&self, deadline: Instant) {
        let nanos = u64::try_from(deadline.saturating_duration_since(self.start).as_nanos()).unwrap_or(NONE - 1);
        self.deadline.store(nanos, Ordering::Relaxed);
    }

    /// Takes the deadline away: what comes now must not be cut short (a rollback).
    pub(super) fn clear(&self) {
        self.deadline.store(NONE, Ordering::Relaxed);
    }

    /// Whether the deadline has passed.
    pub(super) fn passed(&self) -> bool {
        let deadline = self.deadline.load(Ordering::Relaxed);
        deadline != NONE && self.start.elapsed() >= Duration::from_nanos(deadline)
    }

    /// Waits a little for a lock, having waited `tries` times already. False: no time is left (or no deadline was set).
    pub(super) fn wait(&self, tries: u32) -> bool {
        let deadline = self.deadline.load(Ordering::Relaxed);
        if deadline == NONE {
            return false;
        }
        let left = Duration::from_nanos(deadline).saturating_sub(self.start.elapsed());
        if left.is_zero() {
            return false;
        }
        thread::sleep(pause(tries, &mut rand::rng()).min(left));
        true
    }
}

/// How long to wait after so many tries: anywhere up to 1 ms, 2 ms, ... 10 ms, so that waiters spread out.
fn pause(tries: u32, random: &mut impl RngExt) -> Duration {
    let most = u64::from(tries).saturating_add(1).saturating_mul(1_000).min(LONGEST_MICROS);
    Duration::from_micros(random.random_range(SHORTEST_MICROS..=most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_ten_milliseconds_and_differ() {
        let mut random = rand::rng();
        for tries in [0, 1, 9, 10, u32::MAX] {
            let pauses: Vec<Duration> = (0..200).map(|_| pause(tries, &mut random)).collect();
            let most = Duration::from_millis(u64::from(tries.min(9)) + 1);
            assert!(pauses.iter().all(|pause| (Duration::from_micros(500)..=most).contains(pause)), "{tries}");
            assert!(pauses.iter().any(|pause| Some(pause) != pauses.first()), "{tries}");
        }
    }

    #[test]
    fn nobody_waits_past_the_deadline_or_without_one() {
        let clock = CallClock::new();
        assert!(!clock.wait(0) && !clock.passed());
        let deadline = Instant::now() + Duration::from_millis(5);
        clock.set(deadline);
        let mut tries = 0;
        while clock.wait(tries) {
            tries += 1;
        }
        assert!(tries > 0 && clock.passed() && Instant::now() >= deadline);
        clock.clear();
        assert!(!clock.passed());
    }
}
