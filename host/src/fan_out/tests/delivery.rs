//! The second half: deliveries go to their endpoints.

use super::*;
use crate::fan_out::binding::COLUMNS;

/// A bench with one delivery, not yet sent.
async fn expanded(endpoints: Endpoints) -> Bench {
    let bench = Bench::new(endpoints);
    let mut subscription = subscriber("acme", "crm");
    subscription.signing_scope = Some("s".into());
    subscription.principal = "owner".into();
    bench.router.subscriptions.lock().unwrap().push(subscription);
    bench.storage.insert("acme", Some("k"), "orders.placed", Some(b"{}"));
    assert_eq!(bench.expand().await.sent, 1);
    bench
}

fn first(bench: &Bench) -> memory::Row {
    bench.storage.deliveries()[0].clone()
}

/// Ended as not authentic: no router was asked, and nothing was sent.
async fn is_refused(bench: &Bench, what: &str) {
    bench.deliver().await;
    assert_eq!(first(bench).state, State::Ended(Code::IntegrityFailure), "{what}");
    assert_eq!((*bench.router.inquiries.lock().unwrap(), bench.endpoints.sent.lock().unwrap().len()), (0, 0), "{what}");
}

#[tokio::test(start_paused = true)]
async fn every_column_that_is_changed_is_an_integrity_failure_and_nothing_is_asked_or_sent() {
    for column in COLUMNS {
        for change in ["x", "2"] {
            let bench = expanded(fine()).await;
            bench.tamper(|row| row.edit(column, change));
            is_refused(&bench, column).await;
        }
        let bench = expanded(fine()).await;
        bench.tamper(|row| row.headers.retain(|(name, _)| name != column));
        is_refused(&bench, column).await;
        let bench = expanded(fine()).await;
        bench.tamper(|row| row.headers.push((column.to_owned(), row.column(column))));
        is_refused(&bench, column).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_row_or_envelope_is_an_integrity_failure() {
    type Change = fn(&mut memory::Row);
    let changes: [(&str, Change); 6] = [
        ("topic", |row| row.topic = "orders.cancelled".into()),
        ("key", |row| row.key = None),
        ("another key", |row| row.key = Some("[\"acme\",\"crm\",\"j\"]".into())),
        ("no envelope", |row| row.payload = None),
        ("a bit of the envelope", |row| row.payload.as_mut().unwrap()[40] ^= 1),
        ("id", |row| row.id = "dl_00000000000000000000000000000000".into()),
    ];
    for (what, change) in changes {
        let bench = expanded(fine()).await;
        bench.tamper(change);
        is_refused(&bench, what).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_envelope_of_another_delivery_does_not_open() {
    let bench = expanded(fine()).await;
    bench.storage.insert("acme", Some("k2"), "orders.placed", Some(b"{}"));
    bench.expand().await;
    let other = bench.storage.deliveries()[1].payload.clone();
    bench.tamper(|row| row.payload = other);
    bench.deliver().await;
    assert_eq!(first(&bench).state, State::Ended(Code::IntegrityFailure));
    assert_eq!(bench.endpoints.of("crm"), ["e1"]);
}

#[tokio::test(start_paused = true)]
async fn keys_rotate_and_old_rows_open_with_theirs() {
    let mut bench = expanded(fine()).await;
    bench.versions = vec!["v2", "v1"];
    bench.storage.insert("acme", Some("k"), "orders.placed", Some(b"{}"));
    bench.expand().await;
    let versions: Vec<String> = bench.storage.deliveries().iter().map(|row| row.column("key_version")).collect();
    assert_eq!(versions, ["v1", "v2"]);
    assert_eq!(bench.deliver().await.sent, 2);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_key_version_is_an_integrity_failure_and_one_that_cannot_be_read_is_waited_for() {
    let mut bench = expanded(fine()).await;
    bench.versions = vec!["v2"];
    is_refused(&bench, "v1 is unknown").await;
    let bench = expanded(fine()).await;
    std::fs::remove_file(bench.keys.path().join("v1")).unwrap();
    let running = bench.spawn();
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!((first(&bench).state, bench.endpoints.sent.lock().unwrap().len()), (State::Pending, 0));
    std::fs::write(bench.keys.path().join("v1"), "1".repeat(64)).unwrap();
    bench.until(|bench| bench.storage.count(&State::Done) == 1).await;
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_gone_or_changed_is_suppressed_and_no_request_is_made() {
    type Change = fn(&mut Vec<crate::ports::fan_out::Subscription>);
    let changes: [Change; 4] = [
        Vec::clear,
        |all| all[0].url.push('x'),
        |all| all[0].revision = "2".into(),
        |all| all[0].authentication = Some("{\"type\":\"bearer\",\"token\":\"t\"}".into()),
    ];
    for change in changes {
        let bench = expanded(fine()).await;
        change(&mut bench.router.subscriptions.lock().unwrap());
        bench.deliver().await;
        let row = first(&bench);
        assert_eq!((row.state, row.error.as_ref().and_then(Code::of)), (State::Suppressed, Some(Code::SubscriptionChanged)));
        assert!(bench.endpoints.sent.lock().unwrap().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscription_revoked_between_two_attempts_gets_no_further_request() {
    let bench = expanded(Endpoints::new(|_, _| (MILLI, retry(FailureCode::Unavailable)))).await;
    let running = bench.spawn();
    bench.until(|bench| bench.endpoints.sent.lock().unwrap().len() == 2).await;
    bench.router.subscriptions.lock().unwrap().clear();
    bench.until(|bench| bench.storage.count(&State::Suppressed) == 1).await;
    assert_eq!(bench.endpoints.sent.lock().unwrap().len(), 2);
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_router_out_of_reach_lets_deliveries_wait_with_their_attempts() {
    let bench = expanded(fine()).await;
    *bench.router.failure.lock().unwrap() = Some(FailureCode::Timeout);
    let running = bench.spawn();
    tokio::time::sleep(3600 * SECOND).await;
    assert_eq!(bench.health[1].open_breakers(), ["to"]);
    assert_eq!(first(&bench).error.as_ref().and_then(Code::of), Some(Code::SubscriptionUnavailable));
    assert!(first(&bench).attempts <= 5, "{}", first(&bench).attempts);
    *bench.router.failure.lock().unwrap() = None;
    bench.until(|bench| bench.storage.count(&State::Done) == 1).await;
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_an_endpoint_answers_has_its_code() {
    let reject = |code| Outcome::Reject(Failure::new(code, "no"));
    for (outcome, state, code) in [
        (retry(FailureCode::Network), State::Pending, Code::Network),
        (retry(FailureCode::Timeout), State::Pending, Code::Network),
        (retry(FailureCode::Throttled), State::Pending, Code::RetryableHttp),
        (retry(FailureCode::Unavailable), State::Pending, Code::RetryableHttp),
        (retry(FailureCode::SigningUnavailable), State::Pending, Code::SigningUnavailable),
        (reject(FailureCode::DestinationGone), State::Ended(Code::PermanentHttp), Code::PermanentHttp),
        (reject(FailureCode::InvalidConfiguration), State::Ended(Code::InvalidConfiguration), Code::InvalidConfiguration),
        (reject(FailureCode::Other("permanent-scope".into())), State::Ended(Code::PermanentScope), Code::PermanentScope),
    ] {
        let bench = expanded(Endpoints::new(move |_, _| (MILLI, outcome.clone()))).await;
        let running = bench.spawn();
        bench.until(|bench| first(bench).error.is_some()).await;
        let row = first(&bench);
        assert_eq!((row.state, row.error.as_ref().and_then(Code::of)), (state, Some(code)));
        bench.shutdown.graceful.cancel();
        running.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_endpoint_holds_up_only_itself_and_keeps_its_order() {
    let started = tokio::time::Instant::now();
    let over = move || started.elapsed() > 60 * SECOND;
    let bench = Bench::new(Endpoints::new(move |sent, _| match sent.subscriber.as_str() {
        "dead" if !over() => (MILLI, retry(FailureCode::Network)),
        _ => (MILLI, Outcome::Delivered),
    }));
    bench.subscribe(&[("", "dead"), ("", "well")]);
    for number in 0..100 {
        bench.storage.insert("", Some(&format!("k{}", number % 5)), "t", None);
    }
    let running = bench.spawn();
    bench.until(|bench| bench.endpoints.of("well").len() == 100).await;
    assert!(started.elapsed() < 5 * SECOND, "{:?}", started.elapsed());
    bench.until(|bench| bench.storage.count(&State::Done) == 200).await;
    assert!(bench.health[1].open_breakers().is_empty());
    for subscriber in ["dead", "well"] {
        for key in 0..5 {
            let mut seen = numbers(&bench.endpoints.of(subscriber));
            seen.retain(|number| number % 5 == key);
            seen.dedup();
            assert_eq!(seen, (0..20).map(|round| round * 5 + key).collect::<Vec<_>>(), "{subscriber} {key}");
        }
    }
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_does_not_answer_opens_no_breaker_and_says_nothing_secret() {
    let bench = Bench::new(Endpoints::new(|sent, _| match sent.subscriber.as_str() {
        "crm" => (3600 * SECOND, Outcome::Delivered),
        _ => (MILLI, Outcome::Delivered),
    }));
    bench.subscribe(&[("", "crm"), ("", "well")]);
    for _ in 0..10 {
        bench.storage.insert("", Some("k"), "t", None);
    }
    let running = bench.spawn();
    bench.until(|bench| bench.endpoints.of("well").len() == 10).await;
    tokio::time::sleep(300 * SECOND).await;
    assert!(bench.health[1].open_breakers().is_empty());
    let row = bench.storage.deliveries().into_iter().find(|row| row.column("subscriber_id") == "crm").unwrap();
    assert!(row.attempts > 3, "{}", row.attempts);
    let failure = row.error.unwrap();
    assert_eq!((Code::of(&failure), failure.detail.as_str()), (Some(Code::Network), "deadline of [sealed]"));
    bench.shutdown.forced.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_attempt_sends_the_same_bytes_under_the_same_key() {
    let bench = expanded(Endpoints::new(|_, attempt| match attempt {
        1..=4 => (MILLI, retry(FailureCode::Unavailable)),
        _ => (MILLI, Outcome::Delivered),
    }))
    .await;
    let running = bench.spawn();
    bench.until(|bench| bench.storage.count(&State::Done) == 1).await;
    let sent = bench.endpoints.sent.lock().unwrap().clone();
    assert_eq!(sent.len(), 5);
    assert!(sent.iter().all(|one| *one == sent[0]));
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_sends_nothing() {
    use crate::ports::{LeaseEnd, PublishCall, Workers};
    let bench = expanded(fine()).await;
    let storage = DeliveryStorage::new(Arc::<Memory>::clone(&bench.storage), None, None);
    let request = crate::ports::ClaimRequest {
        worker: "w.0".into(),
        limit: 1,
        max_bytes: 1 << 20,
        lease: SECOND,
        max_attempts: 0,
        max_message_bytes: 1 << 20,
    };
    let batch = storage.claim(&request).await.unwrap().batch;
    let (reports, _reported) = tokio::sync::mpsc::unbounded_channel();
    let lease = Arc::new(LeaseEnd::new(tokio::time::Instant::now() + SECOND));
    tokio::time::sleep(SECOND).await;
    let call = PublishCall { deadline: SECOND, reports, lease, cancel: CancellationToken::new(), workers: Workers::default() };
    let publisher = bench.deliveries(Mode::Run, None).publishers.remove("to").unwrap().publisher;
    let outcomes = publisher.publish(batch, call).await.unwrap();
    assert!(matches!(&outcomes[..], [Outcome::Retry(failure)] if Code::of(failure) == Some(Code::LeaseExpired)), "{outcomes:?}");
    assert!(bench.endpoints.sent.lock().unwrap().is_empty());
}
