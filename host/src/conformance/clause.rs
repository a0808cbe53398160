//! A clause of the contract, and how clauses are run: each on a stage of its own, some at once, none for ever.
//!
//! A clause that counts on time, and failed while the machine stood still, is run once more: so is any clause whose call ran out of time
//! then. What else fails has failed: a race that is lost once in two runs is a race.

use super::report::{Entry, Verdict};
use super::stall::Stall;
use crate::domain::{Failure, FailureCode};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use std::future::Future;
use std::time::{Duration, Instant};

/// Longest clause: every wait in it has a shorter end of its own, which says more.
const LONGEST: Duration = Duration::from_secs(120);

/// Why a clause did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It does not hold.
    Failed {
        /// What should have been.
        expected: String,
        /// What was seen instead.
        seen: String,
        /// Where a call failed that should have succeeded: how.
        code: Option<FailureCode>,
    },
    /// It does not apply, or cannot be looked at: why.
    Skipped(String),
}

/// What came of looking at a clause.
pub(crate) type Checked = Result<(), Stop>;

impl Stop {
    /// What was seen instead of what was expected.
    pub(crate) fn failed(expected: impl Into<String>, seen: impl Into<String>) -> Self {
        Self::Failed { expected: expected.into(), seen: seen.into(), code: None }
    }

    /// That a call failed which should have succeeded.
    pub(crate) fn call(expected: impl Into<String>, failure: &Failure) -> Self {
        Self::Failed { expected: expected.into(), seen: failure.to_string(), code: Some(failure.code.clone()) }
    }

    /// Whether it says no more than that a call had too little time.
    fn is_timeout(&self) -> bool {
        matches!(self, Self::Failed { code: Some(FailureCode::Timeout), .. })
    }
}

impl std::fmt::Display for Stop {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failed { expected, seen, .. } => write!(out, "expected {expected}; seen: {seen}"),
            Self::Skipped(why) => out.write_str(why),
        }
    }
}

/// That something is so; `seen` tells what is so instead.
pub(crate) fn expect(is_so: bool, expected: impl Into<String>, seen: impl FnOnce() -> String) -> Checked {
    if is_so { Ok(()) } else { Err(Stop::failed(expected, seen())) }
}

/// That two things are the same.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, seen: &T, expected: &T) -> Checked {
    expect(seen == expected, format!("{what}: {expected:?}"), || format!("{seen:?}"))
}

/// A clause of the contract, looked at on a stage `S`.
pub(crate) struct Clause<S> {
    /// Stable, as in `storage.order-in-batch`.
    pub(crate) id: &'static str,
    /// A short sentence.
    pub(crate) title: &'static str,
    /// What it demands of an adapter.
    pub(crate) demands: &'static str,
    /// Whether what it sees depends on how soon it looks: a lease that may end before the next call, an answer that has to come in time.
    pub(crate) timed: bool,
    /// Looks at it.
    pub(crate) check: for<'a> fn(&'a S) -> BoxFuture<'a, Checked>,
}

/// Sets a stage for each clause.
pub(crate) trait Stages: Sync {
    /// Everything that a clause works on.
    type Stage: Send + Sync;

    /// A stage on which nothing has happened.
    fn set(&self) -> impl Future<Output = Result<Self::Stage, Stop>> + Send;

    /// How many stages there may be at once.
    fn at_once(&self) -> usize;
}

/// Runs clauses; `tell` is called with what came of each, in their order.
pub(crate) async fn run<S: Stages>(stages: &S, clauses: Vec<&Clause<S::Stage>>, mut tell: impl FnMut(&Entry)) -> Vec<Entry> {
    let mut entries = Vec::with_capacity(clauses.len());
    let runs: Vec<_> = clauses.into_iter().map(|clause| one(stages, clause)).collect();
    let mut ended = stream::iter(runs).buffered(stages.at_once());
    while let Some(entry) = ended.next().await {
        tell(&entry);
        entries.push(entry);
    }
    entries
}

async fn one<S: Stages>(stages: &S, clause: &Clause<S::Stage>) -> Entry {
    let began = Instant::now();
    let stall = Stall::watch();
    let mut checked = look(stages, clause).await;
    let may_be_late = checked.as_ref().is_err_and(|stop| matches!(stop, Stop::Failed { .. }) && (clause.timed || stop.is_timeout()));
    if may_be_late && stall.was_long() {
        checked = look(stages, clause).await;
    }
    let verdict = match checked {
        Ok(()) => Verdict::Passed,
        Err(Stop::Failed { expected, seen, .. }) => Verdict::Failed { expected, seen },
        Err(Stop::Skipped(why)) => Verdict::Skipped { why },
    };
    Entry { id: clause.id, title: clause.title, verdict, ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX) }
}

async fn look<S: Stages>(stages: &S, clause: &Clause<S::Stage>) -> Checked {
    let checked = tokio::time::timeout(LONGEST, async {
        let stage = stages.set().await?;
        (clause.check)(&stage).await
    });
    checked.await.unwrap_or_else(|_| Err(Stop::failed(format!("an end within {} seconds", LONGEST.as_secs()), "there was none")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Numbers;

    impl Stages for Numbers {
        type Stage = u32;
        async fn set(&self) -> Result<u32, Stop> {
            Ok(7)
        }
        fn at_once(&self) -> usize {
            2
        }
    }

    #[tokio::test]
    async fn every_clause_has_an_entry_in_order() {
        let clauses: [Clause<u32>; 4] = [
            Clause { id: "a", title: "", demands: "", timed: false, check: |stage| Box::pin(async move { same("the number", stage, &7) }) },
            Clause { id: "b", title: "", demands: "", timed: false, check: |stage| Box::pin(async move { same("the number", stage, &8) }) },
            Clause { id: "c", title: "", demands: "", timed: false, check: |_| Box::pin(async { Err(Stop::Skipped("why".to_owned())) }) },
            Clause { id: "d", title: "", demands: "", timed: false, check: |_| Box::pin(std::future::ready(Ok(()))) },
        ];
        let mut told = Vec::new();
        let entries = run(&Numbers, clauses.iter().collect(), |entry| told.push(entry.id)).await;
        assert_eq!(told, ["a", "b", "c", "d"]);
        let failed = Verdict::Failed { expected: "the number: 8".to_owned(), seen: "7".to_owned() };
        let skipped = Verdict::Skipped { why: "why".to_owned() };
        assert_eq!(entries.into_iter().map(|entry| entry.verdict).collect::<Vec<_>>(), [Verdict::Passed, failed, skipped, Verdict::Passed]);
    }

    /// Stands still, fails the first time, and holds the second time.
    fn fails_once(stage: &AtomicU32) -> Checked {
        std::thread::sleep(Duration::from_millis(500));
        expect(stage.fetch_add(1, Ordering::Relaxed) > 0, "a second run", || "the first one".to_owned())
    }

    struct Shared(AtomicU32);

    impl Stages for &'static Shared {
        type Stage = &'static AtomicU32;
        async fn set(&self) -> Result<&'static AtomicU32, Stop> {
            Ok(&self.0)
        }
        fn at_once(&self) -> usize {
            1
        }
    }

    #[tokio::test]
    async fn only_what_counts_on_time_is_run_again_after_a_stall() {
        for (timed, verdict_is_failed, runs) in [(true, false, 2), (false, true, 1)] {
            let stages: &'static Shared = Box::leak(Box::new(Shared(AtomicU32::new(0))));
            let clause: Clause<&'static AtomicU32> = Clause {
                id: "a",
                title: "",
                demands: "",
                timed,
                check: |stage| {
                    Box::pin(async move {
                        // The watch has to be running when the machine stands still, and to look again when it goes on.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        let checked = fails_once(stage);
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        checked
                    })
                },
            };
            let entries = run(&stages, vec![&clause], |_| ()).await;
            assert_eq!(matches!(entries[0].verdict, Verdict::Failed { .. }), verdict_is_failed, "{timed}");
            assert_eq!(stages.0.load(Ordering::Relaxed), runs, "{timed}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn none_runs_for_ever() {
        let clause: Clause<u32> = Clause { id: "a", title: "", demands: "", timed: false, check: |_| Box::pin(std::future::pending()) };
        let entries = run(&Numbers, vec![&clause], |_| ()).await;
        assert!(matches!(&entries[0].verdict, Verdict::Failed { seen, .. } if seen == "there was none"));
    }
}
