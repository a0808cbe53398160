//! Events and deliveries to test with.

use crate::support::{Bench, Sqlite, ids, request};
use outbox_table::fan_out::{Kind, ROUTING};
use outhaul_sdk::{
    Batch, Claimed, Column, DeliveryFilter, DeliverySettlement, DeliveryVerdict, Events, Expansion, Failure, FailureCode, NewMessage,
    Retry, StatusChange,
};
use sqlite_storage::Outbox;

pub(super) const FAN_OUT: &str = r#","fan_out":{}"#;

/// Outhaul's own table with everything beside it.
pub(super) fn own() -> (Bench, Outbox<Sqlite>) {
    Bench::own(FAN_OUT)
}

/// Inserts an event.
pub(super) fn event(bench: &Bench, tenant: &str, key: Option<&str>) -> String {
    bench.sql.execute("INSERT INTO outbox (tenant, topic, key, payload) VALUES (?1, 't', ?2, 'x')", (tenant, key)).unwrap();
    bench.sql.last_insert_rowid().to_string()
}

/// A delivery as the host would make it.
pub(super) struct Sealed<'a> {
    pub(super) tenant: &'a str,
    pub(super) event: &'a str,
    pub(super) generation: u32,
    pub(super) subscriber: &'a str,
    pub(super) key: Option<&'a str>,
}

pub(super) fn delivery_id(event: &str, generation: u32, subscriber: &str) -> String {
    format!("dl_{event}_{generation}_{subscriber}")
}

pub(super) fn push(batch: &mut Batch, sealed: &Sealed<'_>) {
    let id = delivery_id(sealed.event, sealed.generation, sealed.subscriber);
    let order_key = sealed.key.map(|key| format!("[\"{}\",\"{}\",\"{key}\"]", sealed.tenant, sealed.subscriber));
    let mut values: Vec<(&str, String)> = Vec::new();
    for column in ROUTING {
        let value = match column.name {
            "account_id" => sealed.tenant.to_owned(),
            "delivery_id" => id.clone(),
            "subscriber_id" => sealed.subscriber.to_owned(),
            "notification_id" => sealed.event.to_owned(),
            "notification_type" => "t".to_owned(),
            "emission_generation" => sealed.generation.to_string(),
            "key_version" => "v1".to_owned(),
            "signing_scope_id" => continue,
            "order_key" => match &order_key {
                Some(key) => key.clone(),
                None => continue,
            },
            _ if column.kind == Kind::Number => "1".to_owned(),
            name => format!("{name}-of-{id}"),
        };
        values.push((column.name, value));
    }
    let headers: Vec<(&str, &[u8])> = values.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    let payload = format!("sealed {id}");
    batch.push(&NewMessage {
        id: &id,
        topic: "t",
        key: order_key.as_deref(),
        headers: &headers,
        payload: Some(payload.as_bytes()),
        ..NewMessage::default()
    });
}

/// Claims every event that is due.
pub(super) fn claim_events(outbox: &mut Outbox<Sqlite>, worker: &str) -> Events {
    outbox.claim_events(&request(worker, 100), None).unwrap()
}

/// What is to be inserted for claimed events, a delivery for each of these subscribers.
pub(super) fn planned(events: &Events, subscribers: &[&str]) -> (Vec<Expansion>, Batch) {
    let mut deliveries = Batch::new();
    let mut expansions = Vec::new();
    for (at, message) in events.claimed.batch.messages().enumerate() {
        let (event, generation) = (message.id(), events.generations[at]);
        for subscriber in subscribers {
            let tenant = events.tenants.text(at).unwrap();
            push(&mut deliveries, &Sealed { tenant, event, generation, subscriber, key: message.key() });
        }
        expansions.push(Expansion { event: event.to_owned(), generation, deliveries: u32::try_from(subscribers.len()).unwrap() });
    }
    (expansions, deliveries)
}

/// Expands claimed events for these subscribers; the events that were lost.
pub(super) fn expand(outbox: &mut Outbox<Sqlite>, worker: &str, events: &Events, subscribers: &[&str]) -> Vec<String> {
    let (expansions, deliveries) = planned(events, subscribers);
    outbox.expand(worker, &expansions, &deliveries).unwrap()
}

/// An event, claimed and expanded at once.
pub(super) fn expanded(bench: &Bench, outbox: &mut Outbox<Sqlite>, tenant: &str, key: Option<&str>, subscribers: &[&str]) -> String {
    let id = event(bench, tenant, key);
    let events = claim_events(outbox, "expander");
    assert_eq!(ids(&events.claimed.batch), [id.as_str()]);
    assert_eq!(expand(outbox, "expander", &events, subscribers), Vec::<String>::new());
    id
}

/// Claims deliveries; what came of it.
pub(super) fn deliveries(outbox: &mut Outbox<Sqlite>, worker: &str, limit: u32) -> Claimed {
    outbox.claim_deliveries(&request(worker, limit), None, 0).unwrap()
}

pub(super) fn coded(code: &str, detail: &str) -> Failure {
    Failure::of(FailureCode::Other(code.to_owned()), detail)
}

pub(super) fn again(code: &str, delay_ms: u64) -> DeliveryVerdict {
    DeliveryVerdict::Retry(Retry { failure: coded(code, "why"), delay_ms })
}

/// Writes one verdict; the ids that were lost.
pub(super) fn settle<S: AsRef<str>>(outbox: &mut Outbox<Sqlite>, worker: &str, verdict: DeliveryVerdict, ids: &[S]) -> Vec<String> {
    outbox.settle_deliveries(worker, &[DeliverySettlement { verdict, ids: Column::of_texts(ids) }]).unwrap()
}

pub(super) fn of(tenant: &str) -> DeliveryFilter {
    DeliveryFilter { tenant: tenant.to_owned(), state: None, event: None, subscriber: None, ids: Vec::new() }
}

/// A tenant's log, short: position, what, state, code.
pub(super) fn log(outbox: &mut Outbox<Sqlite>, tenant: &str) -> Vec<String> {
    let shown = |change: &StatusChange| {
        let what = change.delivery.clone().unwrap_or_else(|| format!("{}/{}", change.event, change.generation));
        format!("{} {what} {} {}", change.position, change.state, change.code.as_deref().unwrap_or("-"))
    };
    outbox.read_status(tenant, 0, 1000).unwrap().iter().map(shown).collect()
}

/// Ends the leases of deliveries.
pub(super) fn lapse(bench: &Bench) {
    bench.run("UPDATE outbox_deliveries SET available_at = 1 WHERE state = 'pending'");
}
