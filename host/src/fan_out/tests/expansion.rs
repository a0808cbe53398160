//! The first half: events become deliveries.

use super::*;

#[tokio::test(start_paused = true)]
async fn deliveries_of_a_key_are_inserted_in_the_order_of_its_events() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("", "a"), ("", "b")]);
    for number in 0..200 {
        bench.storage.insert("", Some(&format!("k{}", number % 7)), "t", None);
    }
    assert_eq!(bench.expand().await.sent, 200);
    let rows = bench.storage.deliveries();
    assert_eq!(rows.len(), 400);
    for number in 0..7 {
        let key = format!("[\"\",\"a\",\"k{number}\"]");
        let of_key: Vec<String> =
            rows.iter().filter(|row| row.key.as_ref() == Some(&key)).map(|row| row.column("notification_id")).collect();
        assert!(numbers(&of_key).is_sorted() && of_key.len() > 20);
    }
    // A transaction has no two events of a key.
    for written in &bench.storage.tables.lock().unwrap().expanded {
        let keys: std::collections::BTreeSet<u32> = numbers(written).iter().map(|number| number % 7).collect();
        assert_eq!(keys.len(), written.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_neither_loses_nor_doubles_nor_reorders() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("", "a")]);
    for _ in 0..5 {
        bench.storage.insert("", Some("k"), "t", None);
    }
    bench.storage.trouble.lock().unwrap().extend([Trouble::None, Trouble::LostAnswer, Trouble::None, Trouble::LostAnswer]);
    let running = bench.spawn();
    bench.until(|bench| bench.storage.count(&State::Done) == 5).await;
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
    assert_eq!(numbers(&bench.endpoints.of("a")), [0, 1, 2, 3, 4]);
    assert_eq!(bench.storage.deliveries().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_late_completion_inserts_nothing_and_its_followers_do_not_overtake() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("", "a")]);
    let ids: Vec<String> = (0..3).map(|_| bench.storage.insert("", Some("k"), "t", None)).collect();
    let running = bench.spawn();
    bench.until(|bench| bench.storage.event("e0").attempts == 1).await;
    // Another worker has it by now.
    bench.storage.steal_event(&ids[0]);
    tokio::time::sleep(SECOND).await;
    assert_eq!(bench.storage.deliveries().len(), 0);
    assert_eq!([1, 2].map(|index| bench.storage.event(&ids[index]).attempts), [0, 0], "handed back with their attempts");
    bench.until(|bench| bench.storage.count(&State::Done) == 3).await;
    assert_eq!(numbers(&bench.endpoints.of("a")), [0, 1, 2]);
    assert!(bench.metrics.encode().contains("outhaul_leases_lost_total{relay=\"orders\"} 1"), "{}", bench.metrics.encode());
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_event_whose_router_fails_is_retried_and_holds_its_key_back_only() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("", "a")]);
    for key in ["k", "k", "other"] {
        bench.storage.insert("", Some(key), "t", None);
    }
    bench.router.failing_events.lock().unwrap().insert("e0".into(), 2);
    let running = bench.spawn();
    bench.until(|bench| bench.storage.count(&State::Done) == 1).await;
    assert_eq!(bench.endpoints.of("a"), ["e2"]);
    let failed = bench.storage.event("e0").error.unwrap();
    assert_eq!(Code::of(&failed), Some(Code::SubscriptionUnavailable));
    bench.until(|bench| bench.storage.count(&State::Done) == 3).await;
    assert_eq!(bench.endpoints.of("a"), ["e2", "e0", "e1"]);
    assert_eq!(["e0", "e1"].map(|id| bench.storage.event(id).attempts), [2, 1], "an outage is counted once");
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_router_out_of_reach_uses_up_no_attempts() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("", "a")]);
    for number in 0..40 {
        bench.storage.insert("", Some(&format!("k{}", number % 8)), "t", None);
    }
    *bench.router.failure.lock().unwrap() = Some(FailureCode::Unavailable);
    let running = bench.spawn();
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!(bench.health[0].open_breakers(), ["to"]);
    *bench.router.failure.lock().unwrap() = None;
    bench.until(|bench| bench.storage.count(&State::Done) == 40).await;
    assert!((0..40).all(|number| bench.storage.event(&format!("e{number}")).attempts <= 3), "max_attempts is 3");
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_event_that_brings_the_router_down_does_not_take_others_with_it() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("", "a")]);
    for number in 0..10 {
        bench.storage.insert("", Some(&format!("k{number}")), "t", None);
    }
    bench.router.poison.lock().unwrap().insert("e3".into());
    let running = bench.spawn();
    bench.until(|bench| bench.storage.count(&State::Done) == 9).await;
    assert!((0..10).filter(|number| *number != 3).all(|number| bench.storage.event(&format!("e{number}")).attempts == 1));
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_makes_no_sense_ends_the_event_and_its_key_goes_on() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("*", "spy")]);
    let id = bench.storage.insert("acme", Some("k"), "t", None);
    bench.expand().await;
    let ended = bench.storage.event(&id);
    assert_eq!(ended.state, State::Ended(Code::InvalidConfiguration));
    assert_eq!(ended.error.unwrap().detail, "the router's subscriber \"spy\" is of another tenant than the event");
    bench.subscribe(&["a", "b", "c", "d", "e", "f", "g", "h", "i"].map(|name| ("acme", name)));
    let id = bench.storage.insert("acme", Some("k"), "t", None);
    bench.expand().await;
    assert_eq!(bench.storage.event(&id).error.unwrap().detail, "the router names 9 subscribers, and max_subscribers is 8");
    bench.subscribe(&[("acme", "a")]);
    bench.storage.insert("acme", Some("k"), "t", None);
    assert_eq!((bench.expand().await.sent, bench.storage.deliveries().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_event_over_a_mebibyte_ends_as_invalid_payload() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("", "a")]);
    let large = vec![b'x'; envelope::MAX_BYTES];
    let id = bench.storage.insert("", None, "t", Some(&large));
    bench.storage.insert("", None, "t", Some(&large[..envelope::MAX_BYTES - 1000]));
    let summary = bench.expand().await;
    assert_eq!((summary.sent, summary.failed), (1, 1));
    assert_eq!(bench.storage.event(&id).state, State::Ended(Code::InvalidPayload));
}

#[tokio::test(start_paused = true)]
async fn what_the_storage_refuses_together_is_tried_one_by_one() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("", "a")]);
    for number in 0..6 {
        bench.storage.insert("", Some(&format!("k{}", number % 5)), "t", None);
    }
    bench.storage.refused.lock().unwrap().insert("e0".into());
    let running = bench.spawn();
    bench.until(|bench| bench.storage.count(&State::Done) == 4).await;
    // It has had its three attempts, and its follower goes on.
    bench.until(|bench| bench.storage.count(&State::Done) == 5).await;
    assert_eq!(bench.storage.event("e0").state, State::Ended(Code::SubscriptionUnavailable));
    assert_eq!(bench.endpoints.of("a").last().map(String::as_str), Some("e5"));
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn many_deliveries_go_in_several_transactions_and_an_event_in_one() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("", "a"), ("", "b"), ("", "c")]);
    // 7 events of 3 x 512 KiB: a transaction takes five.
    let payload = vec![b'x'; 512 << 10];
    for _ in 0..7 {
        bench.storage.insert("", None, "t", Some(&payload));
    }
    assert_eq!(bench.expand().await.sent, 7);
    let written: Vec<usize> = bench.storage.tables.lock().unwrap().expanded.iter().map(Vec::len).collect();
    assert!(written.iter().all(|events| *events <= 5) && written.contains(&5), "{written:?}");
    assert_eq!(bench.storage.deliveries().len(), 21);
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_fails_for_a_while_costs_no_event() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("", "a")]);
    for _ in 0..10 {
        bench.storage.insert("", Some("k"), "t", None);
    }
    bench.storage.trouble.lock().unwrap().extend(vec![Trouble::Fails(FailureCode::Unavailable); 2]);
    let running = bench.spawn();
    bench.until(|bench| bench.storage.count(&State::Done) == 10).await;
    assert!(numbers(&bench.endpoints.of("a")).is_sorted());
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_a_key_to_seal_with_nothing_is_inserted_until_it_is_there() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("", "a")]);
    for _ in 0..6 {
        bench.storage.insert("", None, "t", None);
    }
    let (file, key) = (bench.keys.path().join("v1"), "1".repeat(64));
    std::fs::remove_file(&file).unwrap();
    let running = bench.spawn();
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!((bench.storage.deliveries().len(), bench.storage.pending_events()), (0, 6));
    std::fs::write(&file, key).unwrap();
    bench.until(|bench| bench.storage.count(&State::Done) == 6).await;
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}
