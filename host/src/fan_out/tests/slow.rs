//! Endpoints that take long, or do not answer at all: they hold up only themselves.

use super::*;
use tokio::time::Instant;

/// `slow` answers after `delay`, all others at once.
fn endpoints(slow: &'static str, delay: Duration) -> Endpoints {
    Endpoints::new(move |sent, _| (if sent.subscriber.starts_with(slow) { delay } else { MILLI }, Outcome::Delivered))
}

async fn with_deliveries(endpoints: Endpoints, subscribers: &[&str], events: usize) -> Bench {
    let bench = Bench::new(endpoints);
    bench.subscribe(&subscribers.iter().map(|name| ("", *name)).collect::<Vec<_>>());
    for number in 0..events {
        // Half of them in no order: nothing but the lanes limits these.
        bench.storage.insert("", (number % 2 == 0).then(|| format!("k{}", number % 20)).as_deref(), "t", None);
    }
    assert_eq!(bench.expand().await.sent, events as u64);
    bench
}

fn sent_to(bench: &Bench, subscriber: &str) -> usize {
    bench.endpoints.sent.lock().unwrap().iter().filter(|sent| sent.subscriber == subscriber).count()
}

#[tokio::test(start_paused = true)]
async fn slow_endpoints_do_not_hold_up_quick_ones() {
    for (delay, subscribers) in [
        (200 * MILLI, &["slow", "well"][..]),
        (1200 * MILLI, &["slow", "well"]),
        (3600 * SECOND, &["slow", "well"]),
        (3600 * SECOND, &["slow1", "slow2", "well"]),
        (3600 * SECOND, &["slow1", "slow2", "slow3", "slow4", "slow5", "slow6", "well"]),
    ] {
        let bench = with_deliveries(endpoints("slow", delay), subscribers, 1000).await;
        let started = Instant::now();
        let running = tokio::spawn(relay::run(bench.deliveries(Mode::Run, None), bench.shutdown.clone()));
        bench.until(|bench| sent_to(bench, "well") == 1000).await;
        // Memory, or every lane, is full of what nobody knows yet to be slow for as long as a call may last, once.
        assert!(started.elapsed() < 15 * SECOND, "{delay:?}, {subscribers:?}: {:?}", started.elapsed());
        let mut keyed = numbers(&bench.endpoints.of("well"));
        keyed.retain(|number| number % 20 == 0);
        assert!(keyed.is_sorted());
        bench.shutdown.forced.cancel();
        running.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_hangs_has_a_call_at_a_time_and_is_not_claimed_again_and_again() {
    let bench = with_deliveries(endpoints("slow", 3600 * SECOND), &["slow", "well"], 2000).await;
    let running = tokio::spawn(relay::run(bench.deliveries(Mode::Run, None), bench.shutdown.clone()));
    bench.until(|bench| sent_to(bench, "well") == 2000).await;
    tokio::time::sleep(600 * SECOND).await;
    // Calls of 20 messages that last 10 seconds, side by side there is none.
    let tried = sent_to(&bench, "slow");
    assert!((300..=1300).contains(&tried), "{tried}");
    let started = Instant::now();
    bench.storage.insert("", None, "t", None);
    assert_eq!(bench.expand().await.sent, 1);
    bench.wakes[1].notify_one();
    bench.until(|bench| sent_to(bench, "well") == 2001).await;
    assert!(started.elapsed() < 2 * SECOND, "{:?}", started.elapsed());
    bench.shutdown.graceful.cancel();
    let summary = running.await.unwrap().unwrap();
    // Delays double from 1 s to 60 s: some 15 times for each of the 2000 in ten minutes.
    assert!(summary.released < 40_000, "{}", summary.released);
}

#[tokio::test(start_paused = true)]
async fn a_drain_does_not_end_before_what_was_handed_back_has_been_tried() {
    let bench = with_deliveries(endpoints("slow", 1200 * MILLI), &["slow", "well"], 2000).await;
    let summary = bench.deliver().await;
    assert_eq!((summary.sent, summary.retried), (4000, 0));
    assert!(summary.released > 0, "or nothing was tested");
    assert_eq!(bench.storage.count(&State::Done), 4000);
}
