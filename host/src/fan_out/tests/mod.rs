//! Both halves against a storage, a router and endpoints in memory, in paused time.

mod delivery;
mod expansion;
mod memory;
mod outages;
mod slow;

use super::keys::Keyring;
use super::*;
use crate::config::model::{self, SecretSource};
use crate::domain::{Backoff, Failure, FailureCode, Outcome};
use crate::metrics::Metrics;
use crate::ports::fan_out::FanOutStorage;
use crate::ports::{Publisher, Storage};
use crate::relay::{self, Health, Lanes, Mode, Parts, Shutdown, Summary};
use crate::secrets::Secrets;
use memory::{Directory, Endpoints, Memory, Sent, State, Trouble, subscriber};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn relay_of(name: &str, max_attempts: u32) -> model::Relay {
    let matcher = globset::Glob::new("*").unwrap().compile_matcher();
    model::Relay {
        name: name.into(),
        storage: "outbox".into(),
        routes: vec![model::Route { topic: "*".into(), matcher, publisher: "to".into() }],
        fan_out: None,
        batch: 50,
        in_flight: 500,
        in_flight_bytes: 64 << 20,
        max_message_bytes: 8 << 20,
        lease: 30 * SECOND,
        max_attempts,
        backoff: Backoff { base: SECOND, factor: 2.0, max: 60 * SECOND, jitter: 0.0 },
        publish_timeout: 10 * SECOND,
        settle_delay: 2 * MILLI,
        poll: model::Poll { min: 50 * MILLI, max: 20 * SECOND, wake_check: 10 * MILLI },
        breaker: model::Breaker { failures: 5, open: 5 * SECOND, max: 60 * SECOND, probes: 10 },
    }
}

struct Bench {
    storage: Arc<Memory>,
    router: Arc<Directory>,
    endpoints: Arc<Endpoints>,
    keys: tempfile::TempDir,
    /// Which versions there are; the first seals.
    versions: Vec<&'static str>,
    tenant: Option<String>,
    paces: Arc<Paces>,
    metrics: Metrics,
    health: [Arc<Health>; 2],
    wakes: [Arc<Notify>; 2],
    shutdown: Shutdown,
}

impl Bench {
    fn new(endpoints: Endpoints) -> Self {
        let keys = tempfile::tempdir().unwrap();
        for (version, digit) in [("v1", "1"), ("v2", "2")] {
            std::fs::write(keys.path().join(version), digit.repeat(64)).unwrap();
        }
        let (storage, router) = (Arc::<Memory>::default(), Arc::<Directory>::default());
        Self {
            storage,
            router,
            endpoints: Arc::new(endpoints),
            keys,
            versions: vec!["v1"],
            tenant: None,
            paces: Arc::default(),
            metrics: Metrics::new(),
            health: Default::default(),
            wakes: Default::default(),
            shutdown: Shutdown::default(),
        }
    }

    fn subscribe(&self, subscribers: &[(&str, &str)]) {
        let all = subscribers.iter().map(|(tenant, name)| subscriber(tenant, name)).collect();
        *self.router.subscriptions.lock().unwrap() = all;
    }

    fn keyring(&self) -> Keyring {
        let source = |version: &&str| ((*version).to_owned(), SecretSource::File(self.keys.path().join(version)));
        let key = |version: &&str| model::SealingKey { version: (*version).to_owned(), secret: (*version).to_owned() };
        Keyring::new(Secrets::new(self.versions.iter().map(source).collect()), self.versions.iter().map(key).collect())
    }

    fn parts(&self, half: usize, mode: Mode, storage: Arc<dyn Storage>, publisher: Arc<dyn Publisher>) -> Parts {
        let config = if half == 0 { relay_of("orders", 3) } else { relay_of("orders.deliveries", 0) };
        let lanes = Lanes { publisher, lanes: 4, batch: 20, batch_bytes: 4 << 20 };
        Parts {
            config,
            storage,
            publishers: BTreeMap::from([("to".to_owned(), lanes)]),
            metrics: self.metrics.clone(),
            worker: "w".into(),
            wake: Arc::clone(&self.wakes[half]),
            mode,
            health: Arc::clone(&self.health[half]),
            feeder: None,
            half: Some(if half == 0 { of_events() } else { of_deliveries("orders", Arc::clone(&self.paces)) }),
        }
    }

    fn events(&self, mode: Mode) -> Parts {
        let storage: Arc<dyn FanOutStorage> = Arc::<Memory>::clone(&self.storage);
        let expander = Expander {
            storage: Arc::clone(&storage),
            router: Arc::<Directory>::clone(&self.router),
            keys: self.keyring(),
            namespace: "n".into(),
            max_subscribers: 8,
            wake: Arc::clone(&self.wakes[1]),
        };
        let events = EventStorage::new(Arc::<Memory>::clone(&self.storage), storage, self.tenant.clone());
        self.parts(0, mode, Arc::new(events), Arc::new(expander))
    }

    fn deliveries(&self, mode: Mode, feeder: Option<CancellationToken>) -> Parts {
        let deliverer = Deliverer {
            router: Arc::<Directory>::clone(&self.router),
            keys: self.keyring(),
            publisher: Arc::<Endpoints>::clone(&self.endpoints),
            paces: Arc::clone(&self.paces),
        };
        let deliveries = DeliveryStorage::new(Arc::<Memory>::clone(&self.storage), self.tenant.clone(), None);
        Parts { feeder, ..self.parts(1, mode, Arc::new(deliveries), Arc::new(deliverer)) }
    }

    async fn expand(&self) -> Summary {
        relay::run(self.events(Mode::Drain), self.shutdown.clone()).await.unwrap()
    }

    async fn deliver(&self) -> Summary {
        relay::run(self.deliveries(Mode::Drain, None), self.shutdown.clone()).await.unwrap()
    }

    /// Both, for ever.
    fn spawn(&self) -> tokio::task::JoinHandle<(Summary, Summary)> {
        let (events, deliveries) = (self.events(Mode::Run), self.deliveries(Mode::Run, None));
        let shutdown = self.shutdown.clone();
        tokio::spawn(async move {
            let (events, deliveries) = tokio::join!(relay::run(events, shutdown.clone()), relay::run(deliveries, shutdown.clone()));
            (events.unwrap(), deliveries.unwrap())
        })
    }

    async fn until(&self, what: impl Fn(&Self) -> bool) {
        while !what(self) {
            tokio::time::sleep(MILLI).await;
        }
    }

    /// Changes what is stored of the first delivery.
    fn tamper(&self, change: impl FnOnce(&mut memory::Row)) {
        change(&mut self.storage.tables.lock().unwrap().deliveries[0]);
    }
}

fn fine() -> Endpoints {
    Endpoints::new(|_, _| (MILLI, Outcome::Delivered))
}

fn retry(code: FailureCode) -> Outcome {
    Outcome::Retry(Failure::new(code, "not now"))
}

fn numbers(events: &[String]) -> Vec<u32> {
    events.iter().map(|event| event[1..].parse().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn one_event_reaches_every_subscriber_and_nothing_of_it_is_stored_in_the_clear() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("acme", "crm"), ("acme", "erp"), ("other", "crm")]);
    bench.storage.insert("acme", Some("k"), "orders.placed", Some(b"{\"n\":1}"));
    bench.storage.insert("nobody", None, "orders.placed", None);
    let running = bench.spawn();
    bench.until(|bench| bench.storage.count(&State::Done) == 2 && bench.storage.pending_events() == 0).await;
    bench.shutdown.graceful.cancel();
    let (events, deliveries) = running.await.unwrap();
    assert_eq!((events.sent, events.failed, deliveries.sent), (2, 0, 2), "no subscriber completes too");
    let mut sent = bench.endpoints.sent.lock().unwrap().clone();
    sent.sort_by(|one, other| one.subscriber.cmp(&other.subscriber));
    let rows = bench.storage.deliveries();
    for (sent, subscriber) in sent.iter().zip(["crm", "erp"]) {
        let row = rows.iter().find(|row| row.column("subscriber_id") == subscriber).unwrap();
        let expected = Sent {
            subscriber: subscriber.into(),
            url: format!("https://{subscriber}.example/in?token=hunter2"),
            id: row.column("idempotency_key"),
            key: Some(format!("[\"acme\",\"{subscriber}\",\"k\"]")),
            event: "e0".into(),
            payload: Some(b"{\"n\":1}".to_vec()),
        };
        assert_eq!(*sent, expected);
        let stored = format!("{row:?}");
        assert!(!stored.contains("hunter2") && !stored.contains("https"), "{stored}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_expansion_wakes_the_deliveries() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("", "a")]);
    let running = bench.spawn();
    tokio::time::sleep(100 * SECOND).await;
    let started = tokio::time::Instant::now();
    bench.storage.insert("", None, "t", None);
    bench.wakes[0].notify_one();
    bench.until(|bench| bench.storage.count(&State::Done) == 1).await;
    assert!(started.elapsed() < 50 * MILLI, "{:?}: polling would take up to 20 s", started.elapsed());
    bench.shutdown.graceful.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_drain_of_deliveries_ends_after_what_feeds_it() {
    let bench = Bench::new(fine());
    bench.subscribe(&[("", "a")]);
    let feeder = CancellationToken::new();
    let delivering = tokio::spawn(relay::run(bench.deliveries(Mode::Drain, Some(feeder.clone())), bench.shutdown.clone()));
    tokio::time::sleep(60 * SECOND).await;
    for _ in 0..30 {
        bench.storage.insert("", Some("k"), "t", None);
    }
    assert!(!delivering.is_finished());
    assert_eq!(bench.expand().await.sent, 30);
    feeder.cancel();
    bench.wakes[1].notify_one();
    assert_eq!(delivering.await.unwrap().unwrap().sent, 30);
}

#[tokio::test(start_paused = true)]
async fn one_tenant_is_worked_for_where_that_is_asked() {
    let mut bench = Bench::new(fine());
    bench.tenant = Some("acme".into());
    bench.subscribe(&[("acme", "a"), ("other", "b")]);
    bench.storage.insert("acme", None, "t", None);
    let other = bench.storage.insert("other", None, "t", None);
    assert_eq!((bench.expand().await.sent, bench.deliver().await.sent), (1, 1));
    assert_eq!((bench.storage.event(&other).state, bench.storage.event(&other).attempts), (State::Pending, 0));
}
