//! The producer: keeps what lasts from call to call, and works a call off in rounds (see `round`).
//!
//! What must never happen: that one sequence of a producer id stands for two different batches. The broker would take the second
//! for a repetition of the first, say so with a success, and drop it. So sequences only ever go up, batches are repeated byte by
//! byte, and whenever a batch that bears a sequence is given up, or its fate is unknown when the call ends, the producer id is
//! given up with it.

use crate::cluster::{Cluster, Identity};
use crate::config::Settings;
use crate::connection::Client;
use crate::record::{self, Stamp};
use crate::round::Call;
use crate::transport::Connector;
use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use outhaul_sdk::{Batch, Failure, Outcome};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Kept of the deadline for the way back to the host: a tenth, but no more than this.
const MAX_MARGIN: Duration = Duration::from_millis(250);

/// What surely was not written is handed back to the host after this time, or half of the call if that is less: the host waits
/// better than a call that keeps a lane busy. (What may have been written is repeated until the end: only this producer can
/// repeat it without writing it twice.)
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a broker may take to create a topic, before its messages are handed back: meanwhile it says that there is none.
const CREATION: Duration = Duration::from_millis(500);

/// Topics whose sequences are remembered; with more, a fresh producer id is taken.
const MAX_SEQUENCES: usize = 10_000;

/// What a call needs from its surroundings.
pub trait Surroundings {
    /// Wall clock, in Unix milliseconds.
    fn wall_ms(&self) -> i64;
    /// A secret by name.
    fn secret(&self, name: &str) -> Option<String>;
    /// The outcome of a message, as soon as it is known.
    fn report(&self, index: usize, outcome: &Outcome);
    /// Does nothing for a while.
    fn pause(&self, pause: Duration);
}

/// The times of a call.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Now, as it was.
    pub start: Instant,
    /// All is over.
    pub end: Instant,
    /// From here on, messages of a topic that does not exist are handed back.
    pub creation: Instant,
    /// From here on, what surely was not written is handed back.
    pub patience: Instant,
    /// No batch is sent for the first time later.
    pub last_start: Instant,
    /// Longest request.
    pub request: Duration,
}

impl Times {
    fn new(start: Instant, deadline: Duration, request: Option<Duration>) -> Self {
        let length = deadline.saturating_sub(MAX_MARGIN.min(deadline / 10));
        let request = request.unwrap_or(length / 2).min(length);
        let at = |offset: Duration| start.checked_add(offset).unwrap_or(start);
        Self {
            start,
            end: at(length),
            creation: at(CREATION.min(length / 4)),
            patience: at(PATIENCE.min(length / 2)),
            last_start: at(length - request.min(length / 2)),
            request,
        }
    }
}

/// The producer id and how far its sequences have come.
#[derive(Debug, Default)]
pub struct Sequences {
    identity: Option<Identity>,
    next: HashMap<String, HashMap<u32, i32>>,
}

impl Sequences {
    /// Whether a producer id must be asked for.
    #[must_use]
    pub fn needs_identity(&self) -> bool {
        self.identity.is_none() || self.next.len() > MAX_SEQUENCES
    }

    /// Begins anew under a fresh producer id.
    pub fn begin(&mut self, identity: Identity) {
        self.next.clear();
        self.identity = Some(identity);
    }

    /// Gives a producer id up, if it is still in use.
    pub fn abandon(&mut self, identity: Identity) {
        if self.identity == Some(identity) {
            self.next.clear();
            self.identity = None;
        }
    }

    /// Gives a batch the next sequence of its partition, and says under which producer id; none if there is none. The bytes are
    /// taken and put back, because those that nobody else holds can be written to where they are.
    #[must_use]
    pub fn stamp(&mut self, topic: &str, partition: u32, records: usize, bytes: &mut Bytes) -> Option<Identity> {
        let identity = self.identity?;
        if !self.next.contains_key(topic) {
            self.next.insert(topic.to_owned(), HashMap::new());
        }
        let next = self.next.get_mut(topic)?.entry(partition).or_insert(0);
        let stamp = Stamp { producer_id: identity.id, producer_epoch: identity.epoch, sequence: *next };
        // After the largest number comes 0, as in Kafka's `DefaultRecordBatch.incrementSequence`.
        *next = next.wrapping_add(i32::try_from(records).ok()?) & i32::MAX;
        *bytes = record::stamp(std::mem::take(bytes), stamp);
        Some(identity)
    }
}

/// See the module.
pub struct Producer<C: Connector> {
    settings: Settings,
    cluster: Cluster<C>,
    sequences: Sequences,
    /// Where the partitions of messages without a key have got to.
    turn: usize,
}

impl<C: Connector> Producer<C> {
    /// Connects to nothing yet. `turn` is any number; instances should have different ones.
    pub fn new(settings: Settings, connector: C, turn: usize) -> Self {
        let cluster = Cluster::new(connector, settings.brokers.clone(), turn);
        Self { settings, cluster, sequences: Sequences::default(), turn }
    }

    /// Sends a batch within `deadline`: one outcome a message, in order; each is reported as soon as it is known.
    pub fn publish(&mut self, batch: &Batch, deadline: Duration, surroundings: &dyn Surroundings) -> Vec<Outcome> {
        let times = Times::new(Instant::now(), deadline, self.settings.request_timeout);
        if batch.destinations.is_some() {
            // Sending a fan-out delivery to the configured brokers would be sending it to the wrong place.
            let failure =
                Failure::invalid_configuration("this publisher sends to its own `brokers` only, not to the destinations of a fan-out");
            return batch.messages().map(|_| Outcome::Retry(failure.clone())).collect();
        }
        let credentials = match self.settings.credentials(|name| surroundings.secret(name)) {
            Ok(credentials) => credentials,
            Err(failure) => {
                let failure = Failure { code: outhaul_sdk::FailureCode::Unauthorized, ..failure };
                return batch.messages().map(|_| Outcome::Retry(failure.clone())).collect();
            }
        };
        let client = Client { client_id: StrBytes::from_string(self.settings.client_id.clone()), credentials };
        self.turn = self.turn.wrapping_add(1);
        self.cluster.close_stale();
        Call::new(&self.settings, &mut self.cluster, &mut self.sequences, client, batch, times, surroundings, self.turn).run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_call_has_room_for_its_way_back() {
        let start = Instant::now();
        let times = Times::new(start, Duration::from_secs(10), None);
        assert_eq!(times.end - start, Duration::from_millis(9750));
        assert_eq!(times.request, Duration::from_millis(4875));
        assert_eq!(times.last_start - start, Duration::from_millis(4875));
        assert_eq!(times.patience - start, PATIENCE);
        let short = Times::new(start, Duration::from_millis(100), Some(Duration::from_secs(30)));
        assert_eq!((short.end - start, short.request), (Duration::from_millis(90), Duration::from_millis(90)));
        assert_eq!((short.patience - start, short.last_start - start), (Duration::from_millis(45), Duration::from_millis(45)));
    }

    fn stamp_of(bytes: &Bytes) -> (i64, i32) {
        (i64::from_be_bytes(bytes[43..51].try_into().unwrap()), i32::from_be_bytes(bytes[53..57].try_into().unwrap()))
    }

    proptest! {
        /// Whatever happens between: no sequence of a producer id is given out twice, and within one they have no gaps.
        #[test]
        fn no_sequence_stands_for_two_batches(steps in prop::collection::vec((0..4u8, 0..3u32, 1..50usize), 1..200)) {
            let mut sequences = Sequences::default();
            let mut next_id = 0;
            let mut given: HashMap<(i64, u32), i32> = HashMap::new();
            let mut bytes = Bytes::from(vec![0; 61]);
            for (step, partition, records) in steps {
                if step == 0 {
                    sequences.abandon(Identity { id: next_id, epoch: 0 });
                }
                // One that is given up already says nothing about its successor.
                sequences.abandon(Identity { id: next_id - 1, epoch: 0 });
                if sequences.needs_identity() {
                    prop_assert!(sequences.stamp("t", partition, records, &mut bytes).is_none());
                    prop_assert_eq!(bytes.len(), 61);
                    next_id += 1;
                    sequences.begin(Identity { id: next_id, epoch: 0 });
                }
                prop_assert_eq!(sequences.stamp("t", partition, records, &mut bytes), Some(Identity { id: next_id, epoch: 0 }));
                let (id, sequence) = stamp_of(&bytes);
                let expected = given.entry((id, partition)).or_insert(0);
                prop_assert_eq!(sequence, *expected);
                *expected += i32::try_from(records).unwrap();
            }
        }
    }

    #[test]
    fn sequences_start_again_after_the_largest() {
        let mut sequences = Sequences::default();
        sequences.begin(Identity { id: 1, epoch: 0 });
        sequences.next.insert("t".into(), HashMap::from([(0, i32::MAX - 1)]));
        let mut bytes = Bytes::from(vec![0; 61]);
        let mut next = || {
            sequences.stamp("t", 0, 1, &mut bytes).unwrap();
            stamp_of(&bytes).1
        };
        assert_eq!([next(), next(), next()], [i32::MAX - 1, i32::MAX, 0]);
    }

    #[test]
    fn a_batch_is_stamped_where_it_is() {
        let mut sequences = Sequences::default();
        sequences.begin(Identity { id: 1, epoch: 0 });
        let mut builder = record::Builder::default();
        builder.push(&record::Record { timestamp: 1, key: None, value: Some(&[b'x'; 1000]), headers: &[] });
        let mut bytes = builder.finish(crate::compression::Compression::None).unwrap();
        let place = bytes.as_ptr();
        for _ in 0..2 {
            sequences.stamp("t", 0, 1, &mut bytes).unwrap();
            assert_eq!(bytes.as_ptr(), place, "it was copied");
        }
    }
}
