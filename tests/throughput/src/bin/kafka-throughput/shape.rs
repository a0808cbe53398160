//! What is sent, the same for everyone.

use serde_json::{Value, json};
use std::ops::Range;

/// Batches of one call where several are in flight: so many that the ends of calls, when nothing is in flight, do not count much.
const BATCHES_A_CALL: usize = 20;

/// Bytes of a record besides its payload: lengths, deltas, and the header with its id (record format v2, Kafka protocol guide).
const RECORD_OVERHEAD: usize = 32;

/// The header that carries the id, as kafka-publisher writes it.
pub(crate) const ID_HEADER: &str = "outhaul-id";

pub(crate) struct Shape {
    pub(crate) bootstrap: String,
    pub(crate) topic: String,
    pub(crate) messages: usize,
    pub(crate) payload: usize,
    /// Messages of a record batch.
    pub(crate) batch: usize,
    pub(crate) in_flight: usize,
}

impl Shape {
    /// The configuration of kafka-publisher. Its record batches are as large as its requests may be.
    pub(crate) fn config(&self) -> Value {
        json!({
            "brokers": self.bootstrap.split(',').collect::<Vec<_>>(),
            "in_flight": self.in_flight,
            "max_request_bytes": self.batch * (self.payload + RECORD_OVERHEAD),
            "id_header": ID_HEADER,
        })
    }

    /// The messages of each call: one batch where one is in flight.
    pub(crate) fn calls(&self) -> impl Iterator<Item = Range<usize>> {
        let length = if self.in_flight == 1 { self.batch } else { self.batch * BATCHES_A_CALL };
        let messages = self.messages;
        (0..messages).step_by(length.max(1)).map(move |start| start..(start + length).min(messages))
    }

    /// Of the same length for every message.
    pub(crate) fn id(index: usize) -> String {
        format!("{index:09}")
    }

    pub(crate) fn payload(&self) -> Vec<u8> {
        vec![b'a'; self.payload]
    }
}
