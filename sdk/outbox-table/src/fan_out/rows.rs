//! Between rows of the fan-out tables and what the calls take and return. The statements are the storage's; the order of their columns is
//! here.

use super::table::{Kind, ROUTING};
use crate::database::{ColumnType, Reader, Results, Value};
use crate::page::text_of;
use outhaul_sdk::{Column, Delivery, DeliveryCounts, DeliveryState, Failure, Message, StatusChange, Subject};

/// A delivery that is to be inserted: its tenant, and the values of [`ROUTING`] in that order, then the envelope.
///
/// # Errors
/// `invalid-message`, with the delivery's number in the batch, if it is not a delivery of this event and generation.
pub fn delivery_values(message: Message<'_>, event: &str, generation: u32) -> Result<(String, Vec<Value>), Failure> {
    let refuse = |what: String| Failure::invalid_message(format!("delivery {} of the batch: {what}", message.index() + 1));
    let mut found: [Option<&str>; ROUTING.len()] = [None; ROUTING.len()];
    for (name, value) in message.headers() {
        let place = ROUTING.iter().position(|column| column.name == name).ok_or_else(|| refuse(format!("there is no column `{name}`")))?;
        let value = std::str::from_utf8(value).map_err(|_| refuse(format!("`{name}` is not text")))?;
        match found.get_mut(place) {
            Some(slot @ None) => *slot = Some(value),
            _ => return Err(refuse(format!("`{name}` is there twice"))),
        }
    }
    let mut values = Vec::with_capacity(ROUTING.len() + 1);
    for (column, value) in ROUTING.iter().zip(found) {
        values.push(match (column.kind, value) {
            (Kind::OptionalText, None) => Value::Null,
            (_, None) => return Err(refuse(format!("`{}` is missing", column.name))),
            (Kind::Number, Some(value)) => match value.parse::<u32>() {
                Ok(number) => Value::Integer(i64::from(number)),
                Err(_) => return Err(refuse(format!("`{}` is no number", column.name))),
            },
            (Kind::Text | Kind::OptionalText, Some(value)) => Value::Text(value.to_owned()),
        });
    }
    let found = |name: &str| ROUTING.iter().zip(found).find(|(column, _)| column.name == name).and_then(|(_, value)| value);
    let generation = generation.to_string();
    for (name, expected) in [
        ("notification_id", Some(event)),
        ("emission_generation", Some(generation.as_str())),
        ("delivery_id", Some(message.id())),
        ("notification_type", Some(message.topic())),
        ("order_key", message.key()),
    ] {
        if found(name) != expected {
            return Err(refuse(format!("`{name}` is not what the message says")));
        }
    }
    let envelope = message.payload().ok_or_else(|| refuse("it has no envelope".to_owned()))?;
    values.push(Value::Bytes(envelope.to_vec()));
    Ok((found("account_id").unwrap_or_default().to_owned(), values))
}

/// What a list of deliveries asks for.
#[derive(Debug)]
pub struct Listed;

impl Listed {
    /// Place, id, event, topic, subscriber, idempotency key, key version, generation, state (0 pending, 1 leased, 2 complete, 3 suppressed,
    /// 4 quarantined), claims so far, milliseconds until it is due, code, detail, creation.
    pub const COLUMNS: [ColumnType; 14] = {
        let (integer, bytes) = (ColumnType::Integer, ColumnType::Bytes);
        [integer, bytes, bytes, bytes, bytes, bytes, bytes, integer, integer, integer, integer, bytes, bytes, integer]
    };

    /// The deliveries, and the place of the last one.
    ///
    /// # Errors
    /// If the database driver broke its promise.
    pub fn read(reader: &mut Reader) -> Result<(Vec<Delivery>, Option<i64>), Failure> {
        let places = reader.integers()?;
        let (ids, events, topics, subscribers) = (reader.bytes()?, reader.bytes()?, reader.bytes()?, reader.bytes()?);
        let (keys, versions) = (reader.bytes()?, reader.bytes()?);
        let (generations, states, attempts, due_in) = (reader.integers()?, reader.integers()?, reader.integers()?, reader.integers()?);
        let (codes, details, created_at) = (reader.bytes()?, reader.bytes()?, reader.integers()?);
        let delivery = |at| Delivery {
            id: text_of(&ids, at),
            event: text_of(&events, at),
            generation: small(generations.count(at)),
            topic: text_of(&topics, at),
            subscriber: text_of(&subscribers, at),
            idempotency_key: text_of(&keys, at),
            key_version: text_of(&versions, at),
            state: match states.get(at) {
                Some(0) => DeliveryState::Pending,
                Some(1) => DeliveryState::Leased,
                Some(2) => DeliveryState::Complete,
                Some(3) => DeliveryState::Suppressed,
                _ => DeliveryState::Quarantined,
            },
            attempts: small(attempts.count(at)),
            due_in_ms: due_in.count(at),
            code: some_text(&codes, at),
            detail: some_text(&details, at),
            created_at: created_at.count(at),
        };
        Ok(((0..ids.len()).map(delivery).collect(), places.len().checked_sub(1).and_then(|last| places.get(last))))
    }
}

/// What a reader of the log asks for.
#[derive(Debug)]
pub struct Logged;

impl Logged {
    /// Position, time, event, generation, delivery (none: it is about the event), subscriber, state, code.
    pub const COLUMNS: [ColumnType; 8] = {
        let (integer, bytes) = (ColumnType::Integer, ColumnType::Bytes);
        [integer, integer, bytes, integer, bytes, bytes, bytes, bytes]
    };

    /// The changes.
    ///
    /// # Errors
    /// If the database driver broke its promise.
    pub fn read(reader: &mut Reader) -> Result<Vec<StatusChange>, Failure> {
        let (positions, times, events, generations) = (reader.integers()?, reader.integers()?, reader.bytes()?, reader.integers()?);
        let (deliveries, subscribers, states, codes) = (reader.bytes()?, reader.bytes()?, reader.bytes()?, reader.bytes()?);
        let change = |at| {
            let delivery = some_text(&deliveries, at);
            StatusChange {
                position: positions.count(at),
                at: times.count(at),
                subject: if delivery.is_some() { Subject::Delivery } else { Subject::Event },
                event: text_of(&events, at),
                generation: small(generations.count(at)),
                delivery,
                subscriber: some_text(&subscribers, at),
                state: text_of(&states, at),
                code: some_text(&codes, at),
            }
        };
        Ok((0..events.len()).map(change).collect())
    }
}

/// What the counts of deliveries ask for.
#[derive(Debug)]
pub struct Counted;

impl Counted {
    /// From two results: unsettled, due, leased, age of the oldest in milliseconds; then suppressed, quarantined.
    ///
    /// # Errors
    /// If the database driver broke its promise.
    pub fn read(results: &mut Results) -> Result<DeliveryCounts, Failure> {
        let mut unsettled = results.next_rows()?;
        let (pending, due, leased, oldest) = (unsettled.integers()?, unsettled.integers()?, unsettled.integers()?, unsettled.integers()?);
        let mut ended = results.next_rows()?;
        Ok(DeliveryCounts {
            pending: pending.count(0),
            due: due.count(0),
            leased: leased.count(0),
            suppressed: ended.integers()?.count(0),
            quarantined: ended.integers()?.count(0),
            oldest_pending_ms: oldest.get(0).map(|age| u64::try_from(age).unwrap_or(0)),
        })
    }
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn some_text(column: &Column, at: usize) -> Option<String> {
    column.get(at).map(|text| String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use outhaul_sdk::{Batch, NewMessage};

    /// A delivery with these headers changed, or (`None`) left out.
    fn told(changes: &[(&str, Option<&str>)]) -> Result<(String, Vec<Value>), String> {
        let mut headers: Vec<(&str, &[u8])> = ROUTING
            .iter()
            .map(|column| {
                let value: &[u8] = match column.name {
                    "delivery_id" => b"dl",
                    "notification_id" => b"7",
                    "notification_type" => b"t",
                    "order_key" => b"k",
                    _ if column.kind == Kind::Number => b"1",
                    name => name.as_bytes(),
                };
                (column.name, value)
            })
            .collect();
        for (name, value) in changes {
            headers.retain(|(known, _)| known != name);
            headers.extend(value.map(|value| (*name, value.as_bytes())));
        }
        let mut batch = Batch::new();
        batch.push(&NewMessage {
            id: "dl",
            topic: "t",
            key: Some("k"),
            headers: &headers,
            payload: Some(b"sealed"),
            ..NewMessage::default()
        });
        delivery_values(batch.message(0), "7", 1).map_err(|failure| failure.detail)
    }

    #[test]
    fn values_come_in_the_order_of_the_columns() {
        let (tenant, values) = told(&[("signing_scope_id", None)]).unwrap();
        assert_eq!((tenant.as_str(), values.len()), ("account_id", ROUTING.len() + 1));
        let at = |name| &values[ROUTING.iter().position(|column| column.name == name).unwrap()];
        assert!(matches!(at("delivery_id"), Value::Text(id) if id == "dl"));
        assert!(matches!(at("emission_generation"), Value::Integer(1)));
        assert!(matches!(at("signing_scope_id"), Value::Null));
        assert!(matches!(values.last(), Some(Value::Bytes(envelope)) if envelope == b"sealed"));
    }

    #[test]
    fn what_is_no_delivery_of_the_event_is_refused() {
        for (changes, expected) in [
            (vec![("body_sha256", None)], "delivery 1 of the batch: `body_sha256` is missing"),
            (vec![("x", Some("1"))], "delivery 1 of the batch: there is no column `x`"),
            (vec![("cause_generation", Some("one"))], "delivery 1 of the batch: `cause_generation` is no number"),
            (vec![("notification_id", Some("8"))], "delivery 1 of the batch: `notification_id` is not what the message says"),
            (vec![("emission_generation", Some("2"))], "delivery 1 of the batch: `emission_generation` is not what the message says"),
            (vec![("delivery_id", Some("other"))], "delivery 1 of the batch: `delivery_id` is not what the message says"),
            (vec![("order_key", None)], "delivery 1 of the batch: `order_key` is not what the message says"),
        ] {
            assert_eq!(told(&changes).unwrap_err(), expected);
        }
    }
}
