//! The call that an instance is in: until when, and whether it was given up. Whatever leaves the process looks here first.

use crate::ports::LeaseEnd;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Denials that one call remembers: enough to name every cause, few enough for a failure text.
const MAX_NOTES: usize = 4;

/// What a call keeps at its end, at most: time for the guest to hear of a lock and to return.
const RESERVE: Duration = Duration::from_millis(500);

/// Why a call was ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Ended {
    #[error("its time was over")]
    Deadline,
    #[error("it was given up")]
    Cancelled,
    #[error("the lease of its messages was over")]
    Lease,
}

/// Until when a call may act.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    deadline: Instant,
    limit: Duration,
    cancel: CancellationToken,
    lease: Option<Arc<LeaseEnd>>,
}

impl Gate {
    pub(super) fn new(limit: Duration, cancel: CancellationToken) -> Self {
        let now = Instant::now();
        // A limit that no clock can hold is as good as a day.
        let deadline = now.checked_add(limit).unwrap_or(now + Duration::from_secs(24 * 3600));
        Self { deadline, limit, cancel, lease: None }
    }

    /// The same, for messages that may be sent only while their lease holds.
    pub(super) fn under(self, lease: Arc<LeaseEnd>) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// A gate that is shut: between calls nothing may leave.
    pub(super) fn shut() -> Self {
        let cancel = CancellationToken::new();
        cancel.cancel();
        Self { deadline: Instant::now(), limit: Duration::ZERO, cancel, lease: None }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Until when the guest may wait for a database: a little before the call's own deadline. A lock that others hold is then an error
    /// that the guest gets and returns; at the deadline itself the call would be cut, a sound instance thrown away, and the adapter
    /// blamed for it.
    pub(super) fn sql_deadline(&self) -> Instant {
        let reserve = (self.limit / 10).min(RESERVE);
        self.deadline.checked_sub(reserve).unwrap_or(self.deadline)
    }

    /// How long the guest may wait for a server: for the same reason, until a little before the call's own deadline.
    pub(super) fn guest_left(&self) -> Duration {
        self.sql_deadline().saturating_duration_since(Instant::now())
    }

    /// Time left; zero when it is over.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Whether the call may still act.
    pub(super) fn check(&self) -> Result<(), Ended> {
        if self.cancel.is_cancelled() {
            Err(Ended::Cancelled)
        } else if self.left().is_zero() {
            Err(Ended::Deadline)
        } else if self.lease.as_ref().is_some_and(|lease| lease.is_over()) {
            Err(Ended::Lease)
        } else {
            Ok(())
        }
    }

    /// Runs a future within the call. It is not polled once the gate is shut: a process that slept (SIGSTOP, a frozen container)
    /// does not go on with what it was doing.
    pub(super) async fn run<F: Future>(&self, future: F) -> Result<F::Output, Ended> {
        let guarded = Guarded { gate: self, future: std::pin::pin!(future) };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(Ended::Cancelled),
            () = tokio::time::sleep_until(self.deadline.into()) => Err(Ended::Deadline),
            done = guarded => done,
        }
    }
}

/// The gate of the call that an instance is in, for what outlives calls: a connection that is kept open.
#[derive(Debug, Clone)]
pub(super) struct CurrentGate(Arc<Mutex<Gate>>);

impl CurrentGate {
    /// No call yet: shut.
    pub(super) fn shut() -> Self {
        Self(Arc::new(Mutex::new(Gate::shut())))
    }

    pub(super) fn set(&self, gate: Gate) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = gate;
    }

    pub(super) fn get(&self) -> Gate {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn check(&self) -> Result<(), Ended> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).check()
    }
}

struct Guarded<'a, F> {
    gate: &'a Gate,
    future: Pin<&'a mut F>,
}

impl<F: Future> Future for Guarded<'_, F> {
    type Output = Result<F::Output, Ended>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(ended) = self.gate.check() {
            return Poll::Ready(Err(ended));
        }
        self.future.as_mut().poll(context).map(Ok)
    }
}

/// What the host refused or found wrong with the outside world during a call: told to the operator with the call's failures.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    /// Remembers a text. Returns whether it is new to this call.
    pub(super) fn add(&self, text: &str) -> bool {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = notes.len() < MAX_NOTES && !notes.iter().any(|note| note == text);
        if new {
            notes.push(text.to_owned());
        }
        new
    }

    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// All of them in one text; none: there are none.
    pub(super) fn text(&self) -> Option<String> {
        let notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[tokio::test]
    async fn nothing_runs_past_the_deadline() {
        let gate = Gate::new(Duration::ZERO, CancellationToken::new());
        let mut polled = false;
        let result = gate.run(poll_fn(|_| {
            polled = true;
            Poll::Ready(())
        }));
        assert_eq!(result.await, Err(Ended::Deadline));
        assert!(!polled, "not even once");
    }

    #[test]
    fn waiting_for_a_database_ends_before_the_call() {
        for (limit, reserve) in [(1_000, 100), (5_000, 500), (3_600_000, 500), (0, 0)] {
            let gate = Gate::new(Duration::from_millis(limit), CancellationToken::new());
            assert_eq!(gate.deadline() - gate.sql_deadline(), Duration::from_millis(reserve), "{limit}");
        }
    }

    #[tokio::test]
    async fn a_cancelled_call_ends_at_once() {
        let cancel = CancellationToken::new();
        let gate = Gate::new(Duration::from_secs(3600), cancel.clone());
        cancel.cancel();
        assert_eq!(gate.run(std::future::pending::<()>()).await, Err(Ended::Cancelled));
        assert_eq!(Gate::shut().check(), Err(Ended::Cancelled));
    }

    #[tokio::test]
    async fn nothing_runs_once_the_lease_is_over_unless_it_is_renewed() {
        let lease = Arc::new(LeaseEnd::new(tokio::time::Instant::now()));
        let gate = Gate::new(Duration::from_secs(3600), CancellationToken::new()).under(Arc::clone(&lease));
        assert_eq!(gate.run(std::future::ready(())).await, Err(Ended::Lease));
        lease.set(tokio::time::Instant::now() + Duration::from_secs(3600));
        assert_eq!(gate.run(std::future::ready(())).await, Ok(()));
    }

    #[test]
    fn notes_are_few_and_distinct() {
        let notes = Notes::default();
        assert!(notes.add("a") && !notes.add("a") && notes.add("b"));
        (0..10).for_each(|index| {
            notes.add(&index.to_string());
        });
        assert_eq!(notes.text().as_deref(), Some("a; b; 0; 1"));
        notes.clear();
        assert_eq!(notes.text(), None);
    }
}
