//! The pipelines of a relay: one; or two where it has `fan_out`, one that expands events and one that works their deliveries off.

use super::member::{Member, Opened, Summaries};
use crate::config::model::Route;
use crate::domain::Failure;
use crate::fan_out::{self, Deliverer, DeliveryStorage, EventStorage, Expander, Paces};
use crate::plugin::{Slot, StoragePlugin};
use crate::ports::Storage;
use crate::ports::fan_out::FanOutStorage;
use crate::relay::{self, Lanes, Parts, Shutdown};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Events are expanded by so many calls at once: while one asks the router, another writes.
const EXPANDING: usize = 2;
/// Events of a call: one question to the router.
const EVENTS: usize = 100;
/// Their bytes: each is sealed for every subscriber.
const EVENT_BYTES: usize = 4 << 20;

/// The parts of each pipeline; that of deliveries is the second.
pub(super) fn of(member: &Member, opened: Opened, worker: &str) -> Vec<Parts> {
    let Opened { mut relay, storage, publishers, router } = opened;
    let parts = |config, storage: Arc<dyn Storage>, publishers, status: &super::status::RelayStatus, feeder| Parts {
        config,
        storage,
        publishers,
        metrics: member.app.metrics.clone(),
        worker: worker.to_owned(),
        wake: Arc::clone(&status.wake),
        mode: member.mode,
        health: Arc::clone(&status.health),
        feeder,
        half: None,
    };
    let (Some(fan_out), Some((router, keys)), Some(deliveries)) = (relay.fan_out.take(), router, &member.deliveries) else {
        return vec![parts(relay, storage, publishers, &member.status, None)];
    };
    let kept: Arc<dyn FanOutStorage> = Arc::<Slot<StoragePlugin>>::clone(&storage);
    let expander = Expander {
        storage: Arc::clone(&kept),
        router: Arc::clone(&router),
        keys: keys.clone(),
        namespace: fan_out.namespace,
        max_subscribers: fan_out.max_subscribers,
        wake: Arc::clone(&deliveries.wake),
    };
    let lanes = Lanes { publisher: Arc::new(expander), lanes: EXPANDING, batch: EVENTS, batch_bytes: EVENT_BYTES };
    // All events go to the expander, as all deliveries go to the publisher.
    relay.routes = fan_out.deliveries.routes.iter().map(|route| Route { publisher: fan_out.router.clone(), ..route.clone() }).collect();
    let first = EventStorage::new(storage, Arc::clone(&kept), fan_out.tenant.clone());
    let second = DeliveryStorage::new(kept, fan_out.tenant, fan_out.horizon);
    let paces = Arc::<Paces>::default();
    let mut delivering = BTreeMap::new();
    for (name, lanes) in publishers {
        let (router, paces) = (Arc::clone(&router), Arc::clone(&paces));
        let publisher = Arc::new(Deliverer { router, keys: keys.clone(), publisher: lanes.publisher, paces });
        delivering.insert(name, Lanes { publisher, ..lanes });
    }
    let (events, sends) = (Some(fan_out::of_events()), Some(fan_out::of_deliveries(&relay.name, paces)));
    let expanding = BTreeMap::from([(fan_out.router, lanes)]);
    vec![
        Parts { half: events, ..parts(relay, Arc::new(first), expanding, &member.status, None) },
        Parts { half: sends, ..parts(*fan_out.deliveries, Arc::new(second), delivering, deliveries, Some(CancellationToken::new())) },
    ]
}

/// Runs them side by side. What ends the first one lets the second one end when it has nothing left; a failure of one ends both.
pub(super) async fn run(halves: Vec<Parts>, shutdown: &Shutdown) -> Result<Summaries, Failure> {
    let fed: Vec<_> = halves.iter().filter_map(|half| Some((half.feeder.clone()?, Arc::clone(&half.wake)))).collect();
    let fed = &fed;
    let running = halves.into_iter().map(|half| async move {
        let (name, feeds) = (half.config.name.clone(), half.feeder.is_none());
        let ended = relay::run(half, shutdown.clone()).await;
        if ended.is_err() {
            shutdown.graceful.cancel();
        }
        if feeds {
            for (feeder, wake) in fed {
                feeder.cancel();
                wake.notify_one();
            }
        }
        ended.map(|summary| (name, summary))
    });
    futures_util::future::join_all(running).await.into_iter().collect()
}
