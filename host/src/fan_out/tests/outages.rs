//! What is asked before anything is tried is out of reach: everything waits with its attempts, and only what must.

use super::*;

/// A bench with events of a tenant; of each key one.
fn with_events(endpoints: Endpoints, count: usize) -> Bench {
    let bench = Bench::new(endpoints);
    bench.subscribe(&[("acme", "a")]);
    for number in 0..count {
        bench.storage.insert("acme", Some(&format!("k{number}")), "t", None);
    }
    bench
}

#[tokio::test(start_paused = true)]
async fn answers_that_say_unavailable_for_hours_end_no_event() {
    for code in [FailureCode::Unavailable, FailureCode::Network, FailureCode::Timeout] {
        let bench = with_events(fine(), 30);
        *bench.router.answers.lock().unwrap() = Some(("acme", code));
        let running = bench.spawn();
        tokio::time::sleep(4 * 3600 * SECOND).await;
        assert_eq!((bench.storage.pending_events(), bench.health[0].open_breakers()), (30, vec!["to".to_owned()]));
        *bench.router.answers.lock().unwrap() = None;
        bench.until(|bench| bench.storage.count(&State::Done) == 30).await;
        assert!((0..30).all(|number| bench.storage.event(&format!("e{number}")).attempts <= 2));
        bench.shutdown.graceful.cancel();
        running.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_missing_lets_only_what_needs_it_wait() {
    let bench = with_events(fine(), 30);
    *bench.router.answers.lock().unwrap() = Some(("acme", FailureCode::SigningUnavailable));
    let running = bench.spawn();
    tokio::time::sleep(4 * 3600 * SECOND).await;
    assert_eq!((bench.storage.pending_events(), bench.health[0].open_breakers()), (30, Vec::new()));
    let waiting = bench.storage.event("e0");
    assert_eq!((waiting.attempts, waiting.error.as_ref().and_then(Code::of)), (1, Some(Code::SubscriptionUnavailable)));
    // Others behind them go on at once.
    bench.router.subscriptions.lock().unwrap().push(subscriber("other", "b"));
    let started = tokio::time::Instant::now();
    bench.storage.insert("other", None, "t", None);
    bench.wakes[0].notify_one();
    bench.until(|bench| bench.endpoints.of("b").len() == 1).await;
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
    *bench.router.answers.lock().unwrap() = None;
    bench.until(|bench| bench.storage.count(&State::Done) == 31).await;
    assert!(bench.storage.event("e0").attempts <= 2);
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn deliveries_wait_for_the_router_with_their_attempts_too() {
    for code in [FailureCode::Unavailable, FailureCode::SigningUnavailable] {
        let bench = with_events(fine(), 30);
        assert_eq!(bench.expand().await.sent, 30);
        *bench.router.answers.lock().unwrap() = Some(("acme", code));
        let mut parts = bench.deliveries(Mode::Run, None);
        parts.config.max_attempts = 3;
        let running = tokio::spawn(relay::run(parts, bench.shutdown.clone()));
        tokio::time::sleep(4 * 3600 * SECOND).await;
        assert!(bench.storage.deliveries().iter().all(|row| row.state == State::Pending && row.attempts <= 2));
        *bench.router.answers.lock().unwrap() = None;
        bench.until(|bench| bench.storage.count(&State::Done) == 30).await;
        bench.shutdown.graceful.cancel();
        running.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_one_event_still_uses_up_its_attempts() {
    let bench = with_events(fine(), 1);
    *bench.router.answers.lock().unwrap() = Some(("acme", FailureCode::InvalidConfiguration));
    let running = bench.spawn();
    bench.until(|bench| bench.storage.event("e0").state == State::Ended(Code::SubscriptionUnavailable)).await;
    assert_eq!(bench.storage.event("e0").attempts, 3);
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_answers_shows_that_the_router_does() {
    let bench = with_events(Endpoints::new(|_, _| (MILLI, retry(FailureCode::Unavailable))), 30);
    assert_eq!(bench.expand().await.sent, 30);
    *bench.router.failure.lock().unwrap() = Some(FailureCode::Unavailable);
    let running = tokio::spawn(relay::run(bench.deliveries(Mode::Run, None), bench.shutdown.clone()));
    bench.until(|bench| !bench.health[1].open_breakers().is_empty()).await;
    *bench.router.failure.lock().unwrap() = None;
    bench.until(|bench| !bench.endpoints.sent.lock().unwrap().is_empty()).await;
    tokio::time::sleep(100 * MILLI).await;
    assert!(bench.health[1].open_breakers().is_empty());
    bench.shutdown.graceful.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_somebody_locks_is_not_asked_again_for_each_event() {
    let bench = with_events(fine(), 12);
    bench.storage.trouble.lock().unwrap().extend(vec![Trouble::Locked; 1000]);
    let running = bench.spawn();
    tokio::time::sleep(5 * SECOND).await;
    let started = tokio::time::Instant::now();
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
    assert!(started.elapsed() < 30 * SECOND, "{:?}: a call of the storage takes 20 s", started.elapsed());
    assert!((0..12).all(|number| bench.storage.event(&format!("e{number}")).attempts <= 1));
}

#[tokio::test(start_paused = true)]
async fn two_calls_that_wait_in_vain_are_enough() {
    let bench = with_events(fine(), 12);
    bench.storage.trouble.lock().unwrap().extend(vec![Trouble::Fails(FailureCode::Timeout); 2]);
    let running = bench.spawn();
    tokio::time::sleep(100 * MILLI).await;
    assert_eq!((bench.storage.pending_events(), bench.storage.trouble.lock().unwrap().len()), (12, 0));
    bench.until(|bench| bench.storage.count(&State::Done) == 12).await;
    assert!((0..12).all(|number| bench.storage.event(&format!("e{number}")).attempts <= 2));
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn words_are_counted_as_they_are() {
    let bench = with_events(fine(), 1);
    assert_eq!(bench.expand().await.sent, 1);
    bench.router.subscriptions.lock().unwrap().clear();
    bench.deliver().await;
    let metrics = bench.metrics.encode();
    let line = "outhaul_dead_total{relay=\"orders.deliveries\",code=\"subscription_changed\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}
