//! What the measuring ports have seen so far: written by all engines of a bench, read once a second and at the end.

use super::model::{Calls, Latency};
use crate::domain::{Column, Settlement, Verdict};
use hdrhistogram::{CreationError, Histogram};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Longest time that is told apart, in microseconds: an hour.
const LONGEST_US: u64 = 3_600_000_000;

/// Significant digits of all times.
const DIGITS: u8 = 3;

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    Claim,
    /// One that brought no row: other work.
    ClaimEmpty,
    Settle,
    SettleAndClaim,
    /// One whose claim brought no row.
    SettleAndClaimEmpty,
    Extend,
    Publish,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::ClaimEmpty => "claim_empty",
            Self::Settle => "settle",
            Self::SettleAndClaim => "settle_and_claim",
            Self::SettleAndClaimEmpty => "settle_and_claim_empty",
            Self::Extend => "extend",
            Self::Publish => "publish",
        }
    }

    /// The kind of a call whose claim has brought so many rows.
    pub(super) fn having_claimed(self, rows: usize) -> Self {
        match self {
            Self::Claim if rows == 0 => Self::ClaimEmpty,
            Self::SettleAndClaim if rows == 0 => Self::SettleAndClaimEmpty,
            _ => self,
        }
    }

    fn claims(self) -> bool {
        matches!(self, Self::Claim | Self::SettleAndClaim)
    }
}

/// Verdicts that were written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) delivered: u64,
    pub(super) dead: u64,
}

impl Done {
    /// Rows that are not pending any more.
    pub(super) fn rows(self) -> u64 {
        self.delivered.saturating_add(self.dead)
    }
}

/// What a second of a run was like.
pub(super) struct Lately {
    pub(super) done: Done,
    pub(super) claim_p50_us: Option<u64>,
    pub(super) latency_p99_ms: Option<f64>,
}

/// When a row was committed, as its producer was told, and when it was to be.
#[derive(Clone, Copy)]
struct Stamps {
    committed: Instant,
    due: Instant,
}

/// Where the load is steady.
struct Latencies {
    all: Histogram<u64>,
    lately: Histogram<u64>,
    from_due: Histogram<u64>,
    open: HashMap<String, Stamps>,
}

struct State {
    /// To be cloned.
    empty: Histogram<u64>,
    calls: BTreeMap<Call, (Histogram<u64>, u64)>,
    claims_lately: Histogram<u64>,
    latencies: Option<Latencies>,
    done: Done,
    retried: u64,
    has_foreign: bool,
    first_claim: Option<Instant>,
    last_settle: Option<Instant>,
    /// Rows that end the run when they are done.
    target: Option<u64>,
    /// How long it took to write them.
    wrote: Duration,
}

/// See the module.
pub(super) struct Tally {
    state: Mutex<State>,
    /// Notified when all rows are done, or when a row of somebody else has come.
    pub(super) news: Notify,
    /// Whether the times from commit to delivery are wanted.
    pub(super) has_latency: bool,
}

/// What a run came to.
pub(super) struct Sum {
    pub(super) done: Done,
    pub(super) retried: u64,
    /// From the first claim to the last settle.
    pub(super) took: Duration,
    pub(super) calls: BTreeMap<String, Calls>,
    pub(super) latency: Option<Latency>,
    pub(super) from_due: Option<Latency>,
    /// How long it took to write the rows.
    pub(super) wrote: Duration,
}

impl Tally {
    /// `latency`: whether the time from commit to delivery is measured.
    pub(super) fn new(latency: bool) -> Result<Self, CreationError> {
        let empty = Histogram::new_with_bounds(1, LONGEST_US, DIGITS)?;
        let latencies =
            latency.then(|| Latencies { all: empty.clone(), lately: empty.clone(), from_due: empty.clone(), open: HashMap::new() });
        let state = State {
            calls: BTreeMap::new(),
            claims_lately: empty.clone(),
            latencies,
            done: Done::default(),
            retried: 0,
            has_foreign: false,
            first_claim: None,
            last_settle: None,
            target: None,
            wrote: Duration::ZERO,
            empty,
        };
        Ok(Self { state: Mutex::new(state), news: Notify::new(), has_latency: latency })
    }

    // Counts stay whole when a holder panics: each is written in one step.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call begins.
    pub(super) fn begin(&self, call: Call) -> Instant {
        let now = Instant::now();
        if call.claims() {
            self.state().first_claim.get_or_insert(now);
        }
        now
    }

    /// It has ended, however; `items`: rows or messages in it.
    pub(super) fn end(&self, call: Call, begun: Instant, items: usize) {
        let us = micros(begun.elapsed());
        let mut state = self.state();
        let State { empty, calls, claims_lately, .. } = &mut *state;
        let (times, sum) = calls.entry(call).or_insert_with(|| (empty.clone(), 0));
        times.saturating_record(us);
        *sum = sum.saturating_add(u64::try_from(items).unwrap_or(u64::MAX));
        if call.claims() {
            claims_lately.saturating_record(us);
        }
    }

    /// Verdicts were written, but for the ids that were lost.
    pub(super) fn settled(&self, settlements: &[Settlement], lost: &[String]) {
        let now = Instant::now();
        let mut state = self.state();
        for Settlement { verdict, ids } in settlements {
            let written = written(ids, lost);
            match verdict {
                Verdict::Delivered => state.done.delivered = state.done.delivered.saturating_add(written),
                Verdict::Dead(_) => state.done.dead = state.done.dead.saturating_add(written),
                Verdict::Retry { .. } | Verdict::Release { .. } => {}
            }
        }
        state.last_settle = Some(now);
        self.tell(&state);
    }

    /// A claim has ended rows dead by itself.
    pub(super) fn refused(&self, rows: usize) {
        if rows > 0 {
            let mut state = self.state();
            state.done.dead = state.done.dead.saturating_add(u64::try_from(rows).unwrap_or(u64::MAX));
            self.tell(&state);
        }
    }

    /// A claim has met rows of somebody else.
    pub(super) fn meet_foreign(&self) {
        self.state().has_foreign = true;
        self.news.notify_one();
    }

    /// Whether one has.
    pub(super) fn has_foreign(&self) -> bool {
        self.state().has_foreign
    }

    /// Outcomes came.
    pub(super) fn retried(&self, messages: u64) {
        if messages > 0 {
            let mut state = self.state();
            state.retried = state.retried.saturating_add(messages);
        }
    }

    /// Tries that failed.
    pub(super) fn retries(&self) -> u64 {
        self.state().retried
    }

    /// Messages were delivered. Where one is delivered again, the first time counts.
    pub(super) fn delivered<'a>(&self, ids: impl IntoIterator<Item = &'a str>) {
        let now = Instant::now();
        let mut state = self.state();
        let Some(latencies) = &mut state.latencies else { return };
        for id in ids {
            if let Some(stamps) = latencies.open.remove(id) {
                latencies.record(stamps, now);
            }
        }
    }

    /// Messages were committed, as their producer was told; and when each, by its place, was to be.
    pub(super) fn committed(&self, ids: &[String], due: impl Fn(usize) -> Instant) {
        let committed = Instant::now();
        let mut state = self.state();
        let Some(latencies) = &mut state.latencies else { return };
        latencies.open.extend(ids.iter().enumerate().map(|(index, id)| (id.clone(), Stamps { committed, due: due(index) })));
    }

    /// All rows are written: so many, in so long a time.
    pub(super) fn all_written(&self, rows: u64, wrote: Duration) {
        let mut state = self.state();
        (state.target, state.wrote) = (Some(rows), wrote);
        self.tell(&state);
    }

    /// Whether all rows are written, and done.
    pub(super) fn is_complete(&self) -> bool {
        self.state().is_complete()
    }

    fn tell(&self, state: &State) {
        if state.is_complete() {
            self.news.notify_one();
        }
    }

    pub(super) fn done(&self) -> Done {
        self.state().done
    }

    /// What there was since the last call.
    pub(super) fn lately(&self) -> Lately {
        let mut state = self.state();
        let claim_p50_us = quantile(&state.claims_lately, 0.5);
        state.claims_lately.reset();
        let latency_p99_ms = state.latencies.as_mut().and_then(|latencies| {
            let p99 = quantile(&latencies.lately, 0.99);
            latencies.lately.reset();
            p99.map(millis)
        });
        Lately { done: state.done, claim_p50_us, latency_p99_ms }
    }

    /// What it all came to.
    pub(super) fn sum(&self) -> Sum {
        let state = self.state();
        let took = match (state.first_claim, state.last_settle) {
            (Some(first), Some(last)) => last.saturating_duration_since(first),
            _ => Duration::ZERO,
        };
        let calls = state.calls.iter().map(|(call, (times, items))| {
            let calls = Calls {
                count: times.len(),
                items: *items,
                p50_us: times.value_at_quantile(0.5),
                p99_us: times.value_at_quantile(0.99),
                max_us: times.max(),
            };
            (call.name().to_owned(), calls)
        });
        let calls = calls.collect();
        let of = |pick: fn(&Latencies) -> &Histogram<u64>| state.latencies.as_ref().map(|latencies| latency(pick(latencies)));
        let (latency, from_due) = (of(|latencies| &latencies.all), of(|latencies| &latencies.from_due));
        Sum { done: state.done, retried: state.retried, took, calls, latency, from_due, wrote: state.wrote }
    }
}

impl State {
    fn is_complete(&self) -> bool {
        self.target.is_some_and(|target| self.done.rows() >= target)
    }
}

impl Latencies {
    fn record(&mut self, stamps: Stamps, delivered: Instant) {
        let us = micros(delivered.saturating_duration_since(stamps.committed));
        self.all.saturating_record(us);
        self.lately.saturating_record(us);
        self.from_due.saturating_record(micros(delivered.saturating_duration_since(stamps.due)));
    }
}

/// How many ids are not among those that were lost.
fn written(ids: &Column, lost: &[String]) -> u64 {
    let gone = if lost.is_empty() { 0 } else { ids.iter().flatten().filter(|id| lost.iter().any(|lost| lost.as_bytes() == *id)).count() };
    u64::try_from(ids.len().saturating_sub(gone)).unwrap_or(u64::MAX)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Exact up to 2^52 microseconds.
fn millis(us: u64) -> f64 {
    us as f64 / 1000.0
}

fn quantile(times: &Histogram<u64>, quantile: f64) -> Option<u64> {
    (!times.is_empty()).then(|| times.value_at_quantile(quantile))
}

fn latency(times: &Histogram<u64>) -> Latency {
    let at = |quantile| millis(times.value_at_quantile(quantile));
    let buckets = times.iter_recorded().map(|bucket| (millis(bucket.value_iterated_to()), bucket.count_since_last_iteration()));
    Latency {
        count: times.len(),
        p50_ms: at(0.5),
        p95_ms: at(0.95),
        p99_ms: at(0.99),
        max_ms: millis(times.max()),
        buckets: buckets.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Failure, FailureCode};

    fn settlement(verdict: Verdict, ids: &[&str]) -> Settlement {
        Settlement { verdict, ids: Column::of_texts(ids) }
    }

    #[test]
    fn what_was_lost_is_not_done() {
        let tally = Tally::new(false).unwrap();
        let failure = Failure::new(FailureCode::TooLarge, "x");
        let settlements = [
            settlement(Verdict::Delivered, &["1", "2", "3"]),
            settlement(Verdict::Dead(failure.clone()), &["4"]),
            settlement(Verdict::Retry { failure, delay: Duration::ZERO }, &["5"]),
            settlement(Verdict::Release { delay: Duration::ZERO }, &["6"]),
        ];
        tally.settled(&settlements, &["2".to_owned(), "5".to_owned()]);
        assert_eq!(tally.done(), Done { delivered: 2, dead: 1 });
        tally.refused(2);
        assert_eq!(tally.done(), Done { delivered: 2, dead: 3 });
        assert!(!tally.is_complete(), "how many there will be is not known");
        tally.all_written(6, Duration::ZERO);
        assert!(!tally.is_complete());
        tally.all_written(5, Duration::ZERO);
        assert!(tally.is_complete());
    }

    #[test]
    fn the_first_delivery_counts_from_the_commit_and_from_when_it_was_due() {
        let tally = Tally::new(true).unwrap();
        let late = Duration::from_secs(100);
        let due = Instant::now().checked_sub(late).unwrap();
        tally.committed(&["a".to_owned(), "b".to_owned()], |_| due);
        tally.delivered(["a", "a", "x"]);
        let sum = tally.sum();
        let (latency, from_due) = (sum.latency.unwrap(), sum.from_due.unwrap());
        assert_eq!((latency.count, from_due.count), (1, 1));
        assert_eq!(latency.buckets.iter().map(|(_, count)| count).sum::<u64>(), 1);
        assert!(latency.max_ms < 50_000.0 && from_due.max_ms > 99_000.0, "{} {}", latency.max_ms, from_due.max_ms);
        assert!(tally.lately().latency_p99_ms.is_some());
        assert!(tally.lately().latency_p99_ms.is_none(), "that was another second");
        let none = Tally::new(false).unwrap();
        none.committed(&["a".to_owned()], |_| due);
        none.delivered(["a"]);
        assert!(none.sum().latency.is_none());
    }

    #[test]
    fn calls_are_counted_by_kind() {
        let tally = Tally::new(false).unwrap();
        let begun = tally.begin(Call::Claim);
        tally.end(Call::Claim, begun, 7);
        tally.end(Call::Publish, tally.begin(Call::Publish), 3);
        tally.end(Call::Publish, tally.begin(Call::Publish), 4);
        let calls = tally.sum().calls;
        let told: Vec<_> = calls.iter().map(|(name, calls)| (name.as_str(), calls.count, calls.items)).collect();
        assert_eq!(told, [("claim", 1, 7), ("publish", 2, 7)]);
        assert!(tally.lately().claim_p50_us.is_some());
        assert!(tally.lately().claim_p50_us.is_none());
    }

    #[test]
    fn claims_that_brought_nothing_are_of_another_kind() {
        let tally = Tally::new(false).unwrap();
        for (call, items, claimed) in [(Call::Claim, 0, 0), (Call::SettleAndClaim, 5, 0), (Call::Settle, 2, 0)] {
            tally.end(call.having_claimed(claimed), tally.begin(call), items);
        }
        assert!(tally.lately().claim_p50_us.is_none(), "of those that brought rows");
        for (call, items, claimed) in [(Call::Claim, 3, 3), (Call::SettleAndClaim, 5, 2)] {
            tally.end(call.having_claimed(claimed), tally.begin(call), items);
        }
        assert!(tally.lately().claim_p50_us.is_some());
        let calls: Vec<_> = tally.sum().calls.into_iter().map(|(name, calls)| (name, calls.count, calls.items)).collect();
        let told: Vec<_> = calls.iter().map(|(name, count, items)| (name.as_str(), *count, *items)).collect();
        assert_eq!(
            told,
            [("claim", 1, 3), ("claim_empty", 1, 0), ("settle", 1, 2), ("settle_and_claim", 1, 5), ("settle_and_claim_empty", 1, 5)]
        );
    }
}
