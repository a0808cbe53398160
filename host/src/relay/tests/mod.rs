//! The pipeline against a storage and a publisher in memory, in paused time: hours pass in milliseconds.

mod memory;
mod storage_faults;

use super::*;
use crate::config::model;
use crate::domain::{Backoff, FailureCode, Outcome};
use memory::{MemoryStorage, ScriptedPublisher, State};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn relay() -> model::Relay {
    let matcher = globset::Glob::new("t*").unwrap().compile_matcher();
    model::Relay {
        name: "orders".into(),
        storage: "outbox".into(),
        routes: vec![model::Route { topic: "t*".into(), matcher, publisher: "hooks".into() }],
        fan_out: None,
        batch: 50,
        in_flight: 500,
        in_flight_bytes: 1 << 20,
        max_message_bytes: 1 << 16,
        lease: 30 * SECOND,
        max_attempts: 3,
        backoff: Backoff { base: SECOND, factor: 2.0, max: 60 * SECOND, jitter: 0.0 },
        publish_timeout: 10 * SECOND,
        settle_delay: 2 * MILLI,
        poll: model::Poll { min: 50 * MILLI, max: SECOND, wake_check: 10 * MILLI },
        breaker: model::Breaker { failures: 5, open: 5 * SECOND, max: 60 * SECOND, probes: 10 },
    }
}

struct Bench {
    storage: Arc<MemoryStorage>,
    publisher: Arc<ScriptedPublisher>,
    config: model::Relay,
    shutdown: Shutdown,
    wake: Arc<Notify>,
    health: Arc<Health>,
    metrics: Metrics,
}

impl Bench {
    fn new(fused: bool, publisher: ScriptedPublisher) -> Self {
        Self {
            storage: Arc::new(MemoryStorage::new(fused)),
            publisher: Arc::new(publisher),
            config: relay(),
            shutdown: Shutdown::default(),
            wake: Arc::default(),
            health: Arc::default(),
            metrics: Metrics::new(),
        }
    }

    fn parts(&self, mode: Mode) -> Parts {
        let publisher: Arc<dyn Publisher> = Arc::clone(&self.publisher) as _;
        let lanes = Lanes { publisher, lanes: 4, batch: 20, batch_bytes: 1 << 20 };
        Parts {
            config: self.config.clone(),
            storage: Arc::clone(&self.storage) as _,
            publishers: BTreeMap::from([("hooks".to_owned(), lanes)]),
            metrics: self.metrics.clone(),
            worker: "w".into(),
            wake: Arc::clone(&self.wake),
            mode,
            health: Arc::clone(&self.health),
            feeder: None,
            half: None,
        }
    }

    async fn drain(&self) -> Summary {
        run(self.parts(Mode::Drain), self.shutdown.clone()).await.unwrap()
    }

    fn spawn(&self) -> tokio::task::JoinHandle<Result<Summary, Failure>> {
        tokio::spawn(run(self.parts(Mode::Run), self.shutdown.clone()))
    }

    async fn until(&self, what: impl Fn(&Self) -> bool) {
        while !what(self) {
            tokio::time::sleep(MILLI).await;
        }
    }
}

fn fine() -> ScriptedPublisher {
    ScriptedPublisher::new(|_, _| (MILLI, Outcome::Delivered))
}

fn retry(code: FailureCode) -> Outcome {
    Outcome::Retry(Failure::new(code, "not now"))
}

#[tokio::test(start_paused = true)]
async fn a_drain_delivers_everything_in_order_per_key_fused_or_not() {
    for fused in [true, false] {
        let bench = Bench::new(fused, fine());
        let ids: Vec<(String, String)> = (0..1000)
            .map(|number| {
                let key = format!("k{}", number % 7);
                (bench.storage.insert("t", Some(&key)), key)
            })
            .collect();
        let summary = bench.drain().await;
        assert_eq!((summary.sent, summary.failed, summary.retried), (1000, 0, 0));
        let sent = bench.publisher.sent();
        for key in 0..7 {
            let key = format!("k{key}");
            let of_key = |id: &&String| ids[id.parse::<usize>().unwrap()].1 == key;
            assert!(sent.iter().filter(of_key).map(|id| id.parse::<usize>().unwrap()).is_sorted());
        }
        assert_eq!(bench.drain().await, Summary::default(), "a second drain does nothing");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_head_holds_its_key_back_and_only_its_key() {
    let bench = Bench::new(
        true,
        ScriptedPublisher::new(|id, attempt| match (id, attempt) {
            ("0", 1 | 2) => (MILLI, retry(FailureCode::Throttled)),
            _ => (MILLI, Outcome::Delivered),
        }),
    );
    for key in ["a", "a", "b", "a"] {
        bench.storage.insert("t", Some(key));
    }
    let running = bench.spawn();
    bench.until(|bench| bench.storage.count(State::Delivered) == 1).await;
    assert_eq!(bench.publisher.sent(), ["0", "2"]);
    bench.until(|bench| bench.storage.count(State::Delivered) == 4).await;
    assert_eq!(bench.publisher.sent(), ["0", "2", "0", "0", "1", "3"]);
    let attempts: Vec<u32> = ["0", "1", "2", "3"].map(|id| bench.storage.row(id).attempts).to_vec();
    assert_eq!(attempts, [3, 1, 1, 1], "followers keep their attempts");
    bench.shutdown.graceful.cancel();
    let summary = running.await.unwrap().unwrap();
    assert_eq!((summary.sent, summary.retried), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn attempts_end_dead_and_a_dead_head_lets_followers_go_on() {
    let bench = Bench::new(
        true,
        ScriptedPublisher::new(|id, _| match id {
            "0" => (MILLI, retry(FailureCode::Throttled)),
            "2" => (MILLI, Outcome::Reject(Failure::new(FailureCode::InvalidMessage, "no"))),
            _ => (MILLI, Outcome::Delivered),
        }),
    );
    for key in ["a", "a", "b", "b"] {
        bench.storage.insert("t", Some(key));
    }
    bench.storage.insert("unrouted", None);
    let running = bench.spawn();
    bench.until(|bench| bench.storage.count(State::Pending) == 0).await;
    assert_eq!(bench.storage.count(State::Dead), 3);
    assert_eq!((bench.storage.row("0").attempts, bench.storage.row("1").state), (3, State::Delivered));
    assert_eq!(bench.storage.row("3").state, State::Delivered);
    let unrouted = bench.storage.row("4").error.unwrap();
    assert!(unrouted.contains("no route of relay `orders` matches the topic `unrouted`"), "{unrouted}");
    bench.shutdown.graceful.cancel();
    assert_eq!(running.await.unwrap().unwrap().failed, 3);
}

#[tokio::test(start_paused = true)]
async fn a_slow_message_delays_only_its_key() {
    let bench = Bench::new(true, ScriptedPublisher::new(|id, _| (if id == "0" { 5 * SECOND } else { MILLI }, Outcome::Delivered)));
    for number in 0..300 {
        bench.storage.insert("t", Some(&format!("k{}", number % 30)));
    }
    let started = tokio::time::Instant::now();
    let running = bench.spawn();
    bench.until(|bench| bench.storage.count(State::Delivered) == 290).await;
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
    bench.until(|bench| bench.storage.count(State::Delivered) == 300).await;
    bench.shutdown.graceful.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_while_a_publish_is_in_flight() {
    let mut bench = Bench::new(false, ScriptedPublisher::new(|_, _| (9 * SECOND, Outcome::Delivered)));
    bench.config.lease = 11 * SECOND;
    for _ in 0..4 {
        bench.storage.insert("t", Some("a"));
    }
    bench.config.publish_timeout = 100 * SECOND;
    let summary = bench.drain().await;
    assert_eq!((summary.sent, summary.late), (4, 0));
    assert!(bench.storage.extends.load(Ordering::SeqCst) >= 4);
    assert_eq!(bench.publisher.sent(), ["0", "1", "2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_lease_cannot_be_renewed_is_not_published_any_more() {
    let mut bench = Bench::new(false, ScriptedPublisher::new(|_, _| (9 * SECOND, Outcome::Delivered)));
    bench.config.lease = 11 * SECOND;
    bench.config.publish_timeout = 100 * SECOND;
    bench.storage.insert("t", Some("a"));
    bench.storage.insert("t", Some("a"));
    bench.storage.refuse_renewal.store(true, Ordering::SeqCst);
    let running = bench.spawn();
    bench.until(|bench| bench.storage.extends.load(Ordering::SeqCst) > 0).await;
    for id in ["0", "1"] {
        bench.storage.steal(id);
    }
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(bench.publisher.sent(), ["0"], "the second one was never sent");
    assert!(bench.metrics.encode().contains("outhaul_leases_lost_total{relay=\"orders\"} 1"), "{}", bench.metrics.encode());
    bench.shutdown.forced.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn late_verdicts_are_refused_and_counted() {
    let bench = Bench::new(true, ScriptedPublisher::new(|_, _| (SECOND, Outcome::Delivered)));
    let id = bench.storage.insert("t", None);
    let running = bench.spawn();
    bench.until(|bench| !bench.publisher.sent().is_empty()).await;
    bench.storage.steal(&id);
    bench.until(|bench| bench.metrics.encode().contains("outhaul_late_settles_total{relay=\"orders\"} 1")).await;
    bench.shutdown.graceful.cancel();
    let summary = running.await.unwrap().unwrap();
    assert_eq!((summary.late, summary.sent), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn one_poisonous_message_does_not_take_the_others_down() {
    let mut publisher = fine();
    publisher.poison.insert("3".into());
    let bench = Bench::new(true, publisher);
    for number in 0..10 {
        bench.storage.insert("t", Some(&format!("k{}", number % 5)));
    }
    let running = bench.spawn();
    bench.until(|bench| bench.storage.count(State::Pending) == 0).await;
    assert_eq!((bench.storage.count(State::Delivered), bench.storage.count(State::Dead)), (9, 1));
    for id in (0..10).filter(|id| *id != 3) {
        assert_eq!(bench.storage.row(&id.to_string()).attempts, 1, "message {id}");
    }
    assert!(bench.storage.row("3").error.unwrap().contains("trap"));
    bench.shutdown.graceful.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_outage_opens_the_breaker_and_burns_no_attempts() {
    let started = tokio::time::Instant::now();
    let down = move || started.elapsed() < Duration::from_secs(3600);
    let bench = Bench::new(
        true,
        ScriptedPublisher::new(move |_, _| (MILLI, if down() { retry(FailureCode::Unavailable) } else { Outcome::Delivered })),
    );
    for number in 0..200 {
        bench.storage.insert("t", (number % 2 == 0).then(|| format!("k{}", number % 40)).as_deref());
    }
    let running = bench.spawn();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(bench.health.open_breakers(), ["hooks"]);
    let claims = bench.storage.claims.load(Ordering::SeqCst);
    let sent = bench.publisher.sent().len();
    tokio::time::sleep(Duration::from_secs(600)).await;
    // One round of probes a minute at most.
    assert!(bench.storage.claims.load(Ordering::SeqCst) - claims <= 30, "{}", bench.storage.claims.load(Ordering::SeqCst) - claims);
    assert!(bench.publisher.sent().len() - sent <= 120);
    tokio::time::sleep_until(started + Duration::from_secs(3590)).await;
    bench.until(|bench| bench.storage.count(State::Delivered) == 200).await;
    assert!(started.elapsed() < Duration::from_secs(3600 + 130), "{:?}", started.elapsed());
    // One before it opened, one of the delivery.
    assert!((0..200).all(|id| bench.storage.row(&id.to_string()).attempts <= 2));
    assert!(bench.health.open_breakers().is_empty());
    bench.shutdown.graceful.cancel();
    assert_eq!(running.await.unwrap().unwrap().failed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_lone_message_outlives_an_outage_and_so_does_a_missing_grant() {
    for code in [FailureCode::Network, FailureCode::InvalidConfiguration, FailureCode::SigningUnavailable] {
        let over = tokio::time::Instant::now() + Duration::from_secs(3600);
        let down = move || tokio::time::Instant::now() < over;
        let mut bench =
            Bench::new(true, ScriptedPublisher::new(move |_, _| (MILLI, if down() { retry(code.clone()) } else { Outcome::Delivered })));
        bench.config.max_attempts = 10;
        bench.storage.insert("t", Some("a"));
        bench.storage.insert("t", Some("a"));
        let running = bench.spawn();
        tokio::time::sleep_until(over).await;
        bench.until(|bench| bench.storage.count(State::Delivered) == 2).await;
        assert_eq!([bench.storage.row("0").attempts, bench.storage.row("1").attempts], [5, 1], "four before it opened");
        bench.shutdown.graceful.cancel();
        running.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_storage_is_retried_and_nothing_is_lost() {
    for fused in [true, false] {
        let bench = Bench::new(fused, fine());
        for _ in 0..20 {
            bench.storage.insert("t", Some("a"));
        }
        let running = bench.spawn();
        bench.until(|bench| !bench.publisher.sent().is_empty()).await;
        bench.storage.failing.store(true, Ordering::SeqCst);
        bench.until(|bench| bench.health.storage_error().is_some()).await;
        tokio::time::sleep(10 * SECOND).await;
        bench.storage.failing.store(false, Ordering::SeqCst);
        bench.until(|bench| bench.storage.count(State::Delivered) == 20).await;
        bench.until(|bench| bench.health.storage_error().is_none()).await;
        assert_eq!(bench.publisher.sent().len(), 20, "verdicts were kept and written later");
        bench.shutdown.graceful.cancel();
        running.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_fails_holds_up_no_verdict_and_the_next_is_smaller() {
    for fused in [true, false] {
        let bench = Bench::new(fused, fine());
        for _ in 0..20 {
            bench.storage.insert("t", Some("a"));
        }
        let running = bench.spawn();
        bench.until(|bench| !bench.publisher.sent().is_empty()).await;
        bench.storage.failing_claims.store(true, Ordering::SeqCst);
        bench.until(|bench| bench.storage.count(State::Delivered) == 20).await;
        bench.storage.limits.lock().unwrap().clear();
        tokio::time::sleep(20 * SECOND).await;
        let limits = bench.storage.limits.lock().unwrap().clone();
        assert!(limits.is_sorted_by(|before, after| before > after || *after == 1) && limits.len() > 1, "{limits:?}");
        bench.storage.failing_claims.store(false, Ordering::SeqCst);
        bench.storage.insert("t", None);
        bench.until(|bench| bench.storage.count(State::Delivered) == 21).await;
        tokio::time::sleep(SECOND).await;
        assert_eq!(bench.storage.limits.lock().unwrap().last(), Some(&50));
        bench.shutdown.graceful.cancel();
        running.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_verdict_that_the_storage_refuses_holds_up_no_other() {
    for fused in [true, false] {
        let bench = Bench::new(
            fused,
            ScriptedPublisher::new(|id, _| match id {
                "3" => (MILLI, Outcome::Reject(Failure::new(FailureCode::InvalidMessage, "no"))),
                _ => (MILLI, Outcome::Delivered),
            }),
        );
        bench.storage.refuse_dead.store(true, Ordering::SeqCst);
        for _ in 0..20 {
            bench.storage.insert("t", None);
        }
        let running = bench.spawn();
        bench.until(|bench| bench.storage.count(State::Delivered) == 19).await;
        assert_eq!(bench.publisher.sent().len(), 20, "none was sent again meanwhile");
        bench.storage.refuse_dead.store(false, Ordering::SeqCst);
        bench.until(|bench| bench.storage.count(State::Dead) == 1).await;
        bench.shutdown.graceful.cancel();
        running.await.unwrap().unwrap();
    }
}

/// Paused time moves on only while nothing runs: a pipeline that asks again and again instead of waiting would never see the end.
#[tokio::test(start_paused = true)]
async fn a_slow_storage_is_waited_for_not_polled() {
    for fused in [true, false] {
        let mut bench = Bench::new(fused, fine());
        let mut storage = MemoryStorage::new(fused);
        storage.slowness = SECOND;
        bench.storage = Arc::new(storage);
        for number in 0..200 {
            bench.storage.insert("t", Some(&format!("k{}", number % 7)));
        }
        let running = bench.spawn();
        // Turns of the executor, each of which lets time move on or the pipeline run.
        for _ in 0..100_000 {
            if bench.storage.count(State::Delivered) == 200 {
                break;
            }
            tokio::time::sleep(MILLI).await;
        }
        assert_eq!(bench.storage.count(State::Delivered), 200);
        bench.shutdown.graceful.cancel();
        running.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_began_costs_nothing() {
    struct Busy(std::sync::atomic::AtomicUsize);
    #[async_trait::async_trait]
    impl Publisher for Busy {
        async fn publish(&self, batch: crate::domain::Batch, _call: crate::ports::PublishCall) -> Result<Vec<Outcome>, Failure> {
            tokio::time::sleep(SECOND).await;
            if self.0.fetch_add(1, Ordering::SeqCst) < 30 {
                return Err(Failure::new(FailureCode::not_started(), "every instance was busy"));
            }
            Ok(vec![Outcome::Delivered; batch.len()])
        }
    }
    let bench = Bench::new(true, fine());
    bench.storage.insert("t", Some("a"));
    let mut parts = bench.parts(Mode::Drain);
    if let Some(lanes) = parts.publishers.get_mut("hooks") {
        lanes.publisher = Arc::new(Busy(std::sync::atomic::AtomicUsize::new(0)));
    }
    let summary = run(parts, bench.shutdown.clone()).await.unwrap();
    assert_eq!((summary.sent, summary.failed, summary.retried, bench.storage.row("0").attempts), (1, 0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_is_kept_while_the_breaker_is_open_and_a_drain_says_that_it_was() {
    let mut asked = Failure::new(FailureCode::Unavailable, "later");
    asked.retry_after = Some(50 * SECOND);
    let mut bench = Bench::new(true, ScriptedPublisher::new(move |_, _| (SECOND, Outcome::Retry(asked.clone()))));
    bench.config.breaker.failures = 1;
    bench.storage.insert("t", None);
    assert!(bench.drain().await.breaker_open);
    tokio::time::sleep(49 * SECOND).await;
    assert!(!bench.drain().await.breaker_open, "nothing is due yet");
    assert_eq!(bench.publisher.sent().len(), 1);
    tokio::time::sleep(SECOND).await;
    bench.drain().await;
    assert_eq!(bench.publisher.sent().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_with_the_failure_of_its_storage() {
    let bench = Bench::new(true, fine());
    bench.storage.failing.store(true, Ordering::SeqCst);
    let failure = run(bench.parts(Mode::Drain), bench.shutdown.clone()).await.unwrap_err();
    assert_eq!(failure.code, FailureCode::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn graceful_shutdown_finishes_what_is_in_flight_and_hands_back_the_rest() {
    let bench = Bench::new(true, ScriptedPublisher::new(|_, _| (SECOND, Outcome::Delivered)));
    for _ in 0..10 {
        bench.storage.insert("t", Some("a"));
    }
    for _ in 0..200 {
        bench.storage.insert("t", None);
    }
    let running = bench.spawn();
    bench.until(|bench| !bench.publisher.sent().is_empty()).await;
    bench.shutdown.graceful.cancel();
    let summary = running.await.unwrap().unwrap();
    let delivered = bench.storage.count(State::Delivered);
    assert_eq!(summary.sent, u64::try_from(delivered).unwrap());
    assert!(delivered > 0 && delivered < 210);
    for id in 0..210 {
        let row = bench.storage.row(&id.to_string());
        assert_eq!(row.attempts, u32::from(row.state == State::Delivered), "row {id}");
    }
}

#[tokio::test(start_paused = true)]
async fn forced_shutdown_ends_at_once() {
    let bench = Bench::new(true, ScriptedPublisher::new(|_, _| (8 * SECOND, Outcome::Delivered)));
    bench.storage.insert("t", None);
    let running = bench.spawn();
    bench.until(|bench| !bench.publisher.sent().is_empty()).await;
    let started = tokio::time::Instant::now();
    bench.shutdown.graceful.cancel();
    bench.shutdown.forced.cancel();
    running.await.unwrap().unwrap();
    assert!(started.elapsed() < SECOND);
}

#[tokio::test(start_paused = true)]
async fn an_idle_relay_polls_seldom_and_a_wake_up_is_heard() {
    let bench = Bench::new(true, fine());
    let running = bench.spawn();
    tokio::time::sleep(10 * SECOND).await;
    let before = bench.storage.claims.load(Ordering::SeqCst);
    tokio::time::sleep(100 * SECOND).await;
    let polls = bench.storage.claims.load(Ordering::SeqCst) - before;
    assert!((90..=110).contains(&polls), "{polls} claims in 100 seconds");
    tokio::time::sleep(100 * MILLI).await;
    bench.storage.insert("t", None);
    let started = tokio::time::Instant::now();
    bench.wake.notify_one();
    bench.until(|bench| bench.storage.count(State::Delivered) == 1).await;
    assert!(started.elapsed() < 20 * MILLI, "{:?}", started.elapsed());
    bench.shutdown.graceful.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn in_flight_is_bounded() {
    let mut bench = Bench::new(false, ScriptedPublisher::new(|_, _| (SECOND, Outcome::Delivered)));
    bench.config.in_flight = 75;
    for _ in 0..400 {
        bench.storage.insert("t", None);
    }
    let gauge = bench.metrics.in_flight.get_or_create_owned(&crate::metrics::RelayLabels { relay: "orders".into() });
    let running = bench.spawn();
    let mut most = 0;
    while bench.storage.count(State::Delivered) < 400 {
        most = most.max(gauge.get());
        tokio::time::sleep(10 * MILLI).await;
    }
    assert_eq!(most, 75);
    assert!(bench.publisher.most_active.load(Ordering::SeqCst) > 60);
    bench.shutdown.graceful.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_publisher_that_holds_everything_uses_up_attempts() {
    struct Holder;
    #[async_trait::async_trait]
    impl Publisher for Holder {
        async fn publish(&self, batch: crate::domain::Batch, _call: crate::ports::PublishCall) -> Result<Vec<Outcome>, Failure> {
            tokio::time::sleep(MILLI).await;
            Ok(vec![Outcome::Held; batch.len()])
        }
    }
    let bench = Bench::new(true, fine());
    bench.storage.insert("t", Some("a"));
    bench.storage.insert("t", Some("a"));
    let mut parts = bench.parts(Mode::Run);
    if let Some(lanes) = parts.publishers.get_mut("hooks") {
        lanes.publisher = Arc::new(Holder);
    }
    let running = tokio::spawn(run(parts, bench.shutdown.clone()));
    bench.until(|bench| bench.storage.count(State::Dead) == 2).await;
    bench.shutdown.graceful.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_party_that_is_slow_for_one_row_and_not_for_the_next_keeps_its_order() {
    let mut bench = Bench::new(false, fine());
    bench.config.in_flight = 60;
    let ids: Vec<String> = (0..400).map(|number| bench.storage.insert("t", Some(&format!("k{}", number % 5)))).collect();
    let asked = AtomicUsize::new(0);
    let is_slow = move |_: &str| asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(3);
    let parties = Parties { mark: |_| "one".to_owned(), is_slow: Arc::new(is_slow) };
    let half = Half { word: |_| None, on_purpose: None, ended: String::new(), parties: Some(parties) };
    let summary = run(Parts { half: Some(half), ..bench.parts(Mode::Drain) }, bench.shutdown.clone()).await.unwrap();
    assert_eq!(summary.sent, 400);
    assert!(summary.released > 0, "or nothing was tested");
    let sent: Vec<usize> = bench.publisher.sent().iter().map(|id| ids.iter().position(|other| other == id).unwrap()).collect();
    for key in 0..5 {
        let of_key: Vec<usize> = sent.iter().copied().filter(|number| number % 5 == key).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
}
