//! Events and deliveries to test with.

use crate::suite::support::{Bench, Postgres, ids, request};
use outbox_table::fan_out::{Kind, ROUTING};
use outhaul_sdk::{
    Batch, Column, DeliveryFilter, DeliverySettlement, DeliveryVerdict, Events, Expansion, Failure, FailureCode, NewMessage, Retry,
    StatusChange,
};
use postgres_storage::Outbox;

pub(super) const FAN_OUT: &str = r#","fan_out":{}"#;

/// Outhaul's own table with everything beside it; none where there is no server.
pub(super) fn own() -> Option<(Bench, Outbox<Postgres>)> {
    Bench::own(FAN_OUT)
}

/// Inserts an event; its id.
pub(super) fn event(bench: &Bench, tenant: &str, key: Option<&str>) -> String {
    let key = key.map_or("NULL".to_owned(), |key| format!("'{key}'"));
    bench.value(&format!("INSERT INTO outbox (tenant, topic, key, payload) VALUES ('{tenant}', 't', {key}, 'x') RETURNING id"))
}

/// A delivery as the host would make it.
#[derive(Clone, Copy)]
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

pub(super) fn push(batch: &mut Batch, sealed: Sealed<'_>) {
    let Sealed { tenant, event, generation, subscriber, key } = sealed;
    let id = delivery_id(event, generation, subscriber);
    let order_key = key.map(|key| format!(r#"["{tenant}","{subscriber}","{key}"]"#));
    let value = |name: &str, kind: Kind| match name {
        "account_id" => Some(tenant.to_owned()),
        "delivery_id" => Some(id.clone()),
        "subscriber_id" => Some(subscriber.to_owned()),
        "notification_id" => Some(event.to_owned()),
        "notification_type" => Some("t".to_owned()),
        "emission_generation" => Some(generation.to_string()),
        "key_version" => Some("v1".to_owned()),
        "signing_scope_id" => None,
        "order_key" => order_key.clone(),
        _ if kind == Kind::Number => Some("1".to_owned()),
        name => Some(format!("{name} of {id}")),
    };
    let values: Vec<(&str, String)> =
        ROUTING.iter().filter_map(|column| value(column.name, column.kind).map(|value| (column.name, value))).collect();
    let headers: Vec<(&str, &[u8])> = values.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    let envelope = format!("sealed \0{id}");
    batch.push(&NewMessage {
        id: &id,
        topic: "t",
        key: order_key.as_deref(),
        headers: &headers,
        payload: Some(envelope.as_bytes()),
        ..NewMessage::default()
    });
}

/// Claims every event that is due.
pub(super) fn claim_events(outbox: &mut Outbox<Postgres>, worker: &str) -> Events {
    outbox.claim_events(&request(worker, 100), None).unwrap()
}

/// What is to be inserted for claimed events, a delivery for each of these subscribers.
pub(super) fn planned(events: &Events, subscribers: &[&str]) -> (Vec<Expansion>, Batch) {
    let (mut expansions, mut deliveries) = (Vec::new(), Batch::new());
    for (at, message) in events.claimed.batch.messages().enumerate() {
        let (event, generation) = (message.id(), events.generations[at]);
        let tenant = if events.tenants.is_empty() { "" } else { events.tenants.text(at).unwrap() };
        for subscriber in subscribers {
            push(&mut deliveries, Sealed { tenant, event, generation, subscriber, key: message.key() });
        }
        expansions.push(Expansion { event: event.to_owned(), generation, deliveries: u32::try_from(subscribers.len()).unwrap() });
    }
    (expansions, deliveries)
}

/// Expands claimed events for these subscribers; the events that were lost.
pub(super) fn expand(outbox: &mut Outbox<Postgres>, worker: &str, events: &Events, subscribers: &[&str]) -> Vec<String> {
    let (expansions, deliveries) = planned(events, subscribers);
    outbox.expand(worker, &expansions, &deliveries).unwrap()
}

/// An event, claimed and expanded at once.
pub(super) fn expanded(bench: &Bench, outbox: &mut Outbox<Postgres>, tenant: &str, key: Option<&str>, subscribers: &[&str]) -> String {
    let id = event(bench, tenant, key);
    let events = claim_events(outbox, "expander");
    assert_eq!(ids(&events.claimed.batch), [id.as_str()]);
    assert_eq!(expand(outbox, "expander", &events, subscribers), Vec::<String>::new());
    id
}

/// Claims deliveries; their ids.
pub(super) fn deliveries(outbox: &mut Outbox<Postgres>, worker: &str, limit: u32) -> Vec<String> {
    ids(&outbox.claim_deliveries(&request(worker, limit), None, 0).unwrap().batch)
}

pub(super) fn coded(code: &str, detail: &str) -> Failure {
    Failure::of(FailureCode::Other(code.to_owned()), detail)
}

pub(super) fn again(code: &str, delay_ms: u64) -> DeliveryVerdict {
    DeliveryVerdict::Retry(Retry { failure: coded(code, "why"), delay_ms })
}

pub(super) fn verdict<S: AsRef<str>>(verdict: DeliveryVerdict, ids: &[S]) -> DeliverySettlement {
    DeliverySettlement { verdict, ids: Column::of_texts(ids) }
}

/// Writes one verdict; the ids that were lost.
pub(super) fn settle<S: AsRef<str>>(outbox: &mut Outbox<Postgres>, worker: &str, of: DeliveryVerdict, ids: &[S]) -> Vec<String> {
    outbox.settle_deliveries(worker, &[verdict(of, ids)]).unwrap()
}

pub(super) fn of(tenant: &str) -> DeliveryFilter {
    DeliveryFilter { tenant: tenant.to_owned(), state: None, event: None, subscriber: None, ids: Vec::new() }
}

/// A tenant's log, short: position, what, state, code.
pub(super) fn log(outbox: &mut Outbox<Postgres>, tenant: &str) -> Vec<String> {
    let shown = |change: &StatusChange| {
        let what = change.delivery.clone().unwrap_or_else(|| format!("{}/{}", change.event, change.generation));
        format!("{} {what} {} {}", change.position, change.state, change.code.as_deref().unwrap_or("-"))
    };
    outbox.read_status(tenant, 0, 1000).unwrap().iter().map(shown).collect()
}

/// Ends the leases of deliveries, and what they wait for.
pub(super) fn lapse(bench: &Bench) {
    bench.run("UPDATE outbox_deliveries SET available_at = 'epoch' WHERE state = 'pending'");
}

/// Inserts deliveries of a tenant by SQL: so many, of so many keys.
pub(super) fn fill(bench: &Bench, tenant: &str, rows: usize, keys: usize) {
    bench.run(&format!(
        "INSERT INTO outbox_deliveries (account_id, delivery_id, subscriber_id, principal_id, notification_id, notification_type, \
         emission_generation, idempotency_key, destination_sha256, subscription_fingerprint, cause_kind, cause_id, cause_generation, \
         consumer_namespace, auth_mode, body_sha256, envelope_version, key_version, order_key, envelope) \
         SELECT '{tenant}', '{tenant}' || n, 's', '', n::text, 't', 1, 'ik', '', '', 'event', '', 0, '', 'none', '', 1, 'v1', \
         '{tenant}k' || n % {keys}, repeat('x', 200)::bytea FROM generate_series(1, {rows}) AS n"
    ));
}
