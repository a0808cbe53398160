//! Storages that fail in part: rows locked by others, answers that get lost after the commit, verdicts that are refused for a while.

use super::memory::{Call, LOST_AFTER, ScriptedPublisher, State};
use super::*;
use std::collections::HashMap;

/// How often each message was sent.
fn sends(bench: &Bench) -> HashMap<String, usize> {
    let mut sends = HashMap::new();
    for id in bench.publisher.sent() {
        *sends.entry(id).or_default() += 1;
    }
    sends
}

async fn shut_down(bench: &Bench, running: tokio::task::JoinHandle<Result<Summary, Failure>>) -> Summary {
    bench.shutdown.graceful.cancel();
    running.await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_row_that_another_transaction_locks_holds_up_only_itself() {
    for fused in [true, false] {
        let mut bench = Bench::new(fused, ScriptedPublisher::new(|_, _| (100 * MILLI, Outcome::Delivered)));
        bench.config.lease = 10 * SECOND;
        for _ in 0..50 {
            bench.storage.insert("t", None);
        }
        let running = bench.spawn();
        bench.until(|bench| !bench.publisher.sent().is_empty()).await;
        bench.storage.lock("7");
        for _ in 0..65 {
            for number in 0..20 {
                bench.storage.insert("t", (number % 2 == 0).then(|| format!("k{}", number % 7)).as_deref());
            }
            tokio::time::sleep(SECOND).await;
        }
        assert_eq!(bench.storage.count(State::Delivered), 50 + 65 * 20 - 1, "{}", bench.storage.count(State::Delivered));
        bench.storage.unlock("7");
        bench.until(|bench| bench.storage.count(State::Pending) == 0).await;
        let again: Vec<_> = sends(&bench).into_iter().filter(|(id, sends)| *sends > 1 && id != "7").collect();
        assert!(again.is_empty(), "{again:?}");
        let summary = shut_down(&bench, running).await;
        assert_eq!((summary.failed, bench.storage.count(State::Dead)), (0, 0));
        // The row that was locked may have been claimed again before its verdict could be written.
        assert!((50 + 65 * 20..=51 + 65 * 20).contains(&summary.sent), "{summary:?}");
        assert_eq!(bench.health.storage_error(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_locked_while_it_is_published_takes_no_other_lease_along() {
    let mut bench = Bench::new(false, ScriptedPublisher::new(|_, _| (25 * SECOND, Outcome::Delivered)));
    bench.config.lease = 10 * SECOND;
    bench.config.publish_timeout = 60 * SECOND;
    for _ in 0..20 {
        bench.storage.insert("t", None);
    }
    let mut parts = bench.parts(Mode::Run);
    if let Some(lanes) = parts.publishers.get_mut("hooks") {
        (lanes.lanes, lanes.batch) = (20, 1);
    }
    let running = tokio::spawn(run(parts, bench.shutdown.clone()));
    bench.until(|bench| bench.publisher.sent().len() == 20).await;
    bench.storage.lock("7");
    bench.until(|bench| bench.storage.count(State::Delivered) == 19).await;
    bench.storage.unlock("7");
    bench.until(|bench| bench.storage.count(State::Delivered) == 20).await;
    assert!(sends(&bench).iter().all(|(id, sends)| *sends == 1 || id == "7"), "{:?}", sends(&bench));
    shut_down(&bench, running).await;
}

#[tokio::test(start_paused = true)]
async fn a_verdict_whose_answer_was_lost_is_not_written_over_a_new_lease() {
    // The second try of 0, and 1 behind it, are being published while the settle call with their first verdicts gives up.
    let long = LOST_AFTER * 3;
    let mut bench = Bench::new(
        false,
        ScriptedPublisher::new(move |id, attempt| match (id, attempt) {
            ("0" | "2", 1) => (MILLI, retry(FailureCode::Throttled)),
            ("2", _) => (MILLI, Outcome::Delivered),
            _ => (long, Outcome::Delivered),
        }),
    );
    bench.config.publish_timeout = 4 * long;
    for key in ["a", "a", "b", "b"] {
        bench.storage.insert("t", Some(key));
    }
    bench.storage.lose_answer(Call::Settle);
    let running = bench.spawn();
    bench.until(|bench| bench.storage.count(State::Delivered) == 4).await;
    let mut sent = bench.publisher.sent();
    sent.sort();
    assert_eq!(sent, ["0", "0", "1", "2", "2", "3"]);
    assert_eq!(["0", "1", "2", "3"].map(|id| bench.storage.row(id).attempts), [2, 1, 2, 1]);
    let summary = shut_down(&bench, running).await;
    assert_eq!((summary.sent, summary.retried, summary.late), (4, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_gets_lost_costs_no_second_send() {
    for (fused, call) in [true, false].into_iter().flat_map(|fused| [Call::Claim, Call::Settle, Call::Extend].map(|call| (fused, call))) {
        let mut bench = Bench::new(fused, ScriptedPublisher::new(|_, _| (9 * SECOND, Outcome::Delivered)));
        bench.config.lease = 20 * SECOND;
        bench.config.publish_timeout = 100 * SECOND;
        for _ in 0..4 {
            bench.storage.insert("t", Some("a"));
        }
        bench.storage.lose_answer(call);
        let running = bench.spawn();
        bench.until(|bench| bench.storage.count(State::Delivered) == 4).await;
        assert!(!bench.storage.is_to_lose(call), "{call:?}");
        assert_eq!(bench.publisher.sent(), ["0", "1", "2", "3"], "{call:?}, fused: {fused}");
        let summary = shut_down(&bench, running).await;
        assert_eq!((summary.sent, summary.late), (4, 0), "{call:?}, fused: {fused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_verdict_that_is_refused_is_kept_and_its_lease_renewed() {
    for fused in [true, false] {
        let bench = Bench::new(fused, fine());
        for key in [None, None, Some("a"), Some("a")] {
            bench.storage.insert("t", key);
        }
        bench.storage.refuse_settle.store(true, Ordering::SeqCst);
        let running = bench.spawn();
        tokio::time::sleep(bench.config.lease * 5).await;
        assert!(bench.health.storage_error().is_some_and(|error| error.contains("no such table")), "{:?}", bench.health.storage_error());
        assert!(bench.storage.extends.load(Ordering::SeqCst) > 0);
        bench.storage.refuse_settle.store(false, Ordering::SeqCst);
        bench.until(|bench| bench.storage.count(State::Delivered) == 4).await;
        assert_eq!(bench.publisher.sent().len(), 4);
        tokio::time::sleep(SECOND).await;
        assert_eq!(bench.health.storage_error(), None);
        assert_eq!(shut_down(&bench, running).await.sent, 4);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_verdict_whose_row_is_no_longer_held_is_forgotten() {
    let bench = Bench::new(false, fine());
    let id = bench.storage.insert("t", None);
    bench.storage.refuse_settle.store(true, Ordering::SeqCst);
    let running = bench.spawn();
    bench.until(|bench| bench.health.storage_error().is_some()).await;
    bench.storage.steal(&id);
    tokio::time::sleep(bench.config.lease).await;
    let gauge = bench.metrics.in_flight.get_or_create_owned(&crate::metrics::RelayLabels { relay: "orders".into() });
    assert_eq!(gauge.get(), 0, "nothing is kept of it");
    assert_eq!(bench.health.storage_error(), None);
    shut_down(&bench, running).await;
}

#[tokio::test(start_paused = true)]
async fn claims_that_succeed_do_not_hide_verdicts_that_cannot_be_written() {
    for fused in [true, false] {
        let bench = Bench::new(fused, fine());
        for _ in 0..10 {
            bench.storage.insert("t", None);
        }
        bench.storage.failing_settles.store(true, Ordering::SeqCst);
        let running = bench.spawn();
        bench.until(|bench| bench.health.storage_error().is_some()).await;
        for _ in 0..200 {
            tokio::time::sleep(100 * MILLI).await;
            assert!(bench.health.storage_error().is_some(), "fused: {fused}");
        }
        bench.storage.failing_settles.store(false, Ordering::SeqCst);
        bench.until(|bench| bench.storage.count(State::Delivered) == 10).await;
        assert_eq!(bench.publisher.sent().len(), 10);
        shut_down(&bench, running).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_gives_up_on_verdicts_that_cannot_be_written() {
    for fused in [true, false] {
        let bench = Bench::new(fused, fine());
        for _ in 0..10 {
            bench.storage.insert("t", None);
        }
        bench.storage.failing_settles.store(true, Ordering::SeqCst);
        let drained = tokio::time::timeout(60 * SECOND, run(bench.parts(Mode::Drain), bench.shutdown.clone())).await;
        assert_eq!(drained.expect("it gives up").unwrap_err().code, FailureCode::Unavailable);
    }
}
