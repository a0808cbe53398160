//! Which messages go together: record batches for each partition, formed round by round.
//!
//! A key has messages in at most one record batch that is not acknowledged. That alone keeps its order: a batch is written as a
//! whole or not at all, and what comes after it is sent only once it is. Kafka's sequences do not suffice for that: a
//! broker that knows nothing of a producer yet takes any sequence as its first, so of two batches in flight it may refuse the first
//! and write the second.

use crate::cluster::Identity;
use crate::config::Settings;
use crate::errors::{Fate, reason};
use crate::ledger::Ledger;
use crate::limits::Limits;
use crate::metadata::Metadata;
use crate::partition::{self, PartitionError};
use crate::record::{Builder, HEADER_BYTES, Header, Record};
use crate::topic;
use bytes::Bytes;
use outhaul_sdk::{Batch, Failure, FailureCode, Message, Outcome};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// `LEADER_NOT_AVAILABLE`.
const NO_LEADER: i16 = 5;

/// A topic that messages of the call go to.
#[derive(Debug)]
pub struct Target<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
    /// Most bytes of a record batch, before compression: what the broker refused, halved. A single record may be larger.
    pub max_batch_bytes: usize,
    /// Why its messages cannot be sent at present.
    pub failure: Option<Failure>,
    /// It does not exist.
    pub missing: bool,
    /// Counts the partitions that messages without a key have gone to, one after the other.
    turn: usize,
}

/// Records that are written together.
#[derive(Debug)]
pub struct RecordBatch {
    /// Index of its topic.
    pub target: usize,
    /// Partition.
    pub partition: u32,
    /// Index of each message, in the order of the records.
    pub messages: Vec<usize>,
    /// Encoded.
    pub bytes: Bytes,
    /// Before compression.
    pub plain_bytes: usize,
    /// Under which producer id it has a sequence: from then on these bytes are sent, and no others with that sequence.
    pub stamp: Option<Identity>,
    /// Whether it may have been written.
    pub fate: Fate,
    /// Why it is not known to be written.
    pub failure: Option<Failure>,
    /// It was among those that were to be sent.
    pub addressed: bool,
    /// Trying it again within this call would not help.
    pub hopeless: bool,
    /// Nothing more is to be done with it.
    pub done: bool,
}

impl RecordBatch {
    /// It was sent, or was to be, and is not known to be written.
    pub fn note(&mut self, fate: Fate, failure: Failure) {
        if fate == Fate::Unknown {
            self.fate = Fate::Unknown;
        }
        self.failure = Some(failure);
    }
}

/// The topics of a call's messages.
#[derive(Debug)]
pub struct Targets<'a> {
    targets: Vec<Target<'a>>,
    /// Of each message; none: it has no valid topic.
    of_message: Vec<Option<usize>>,
}

impl<'a> Targets<'a> {
    /// Finds the topic of each message; those without a valid one are passed to `reject`.
    pub fn new(settings: &Settings, batch: &'a Batch, turn: usize, limits: &Limits, mut reject: impl FnMut(usize, Outcome)) -> Self {
        let now = Instant::now();
        let plain = settings.topic.is_topic();
        let mut indexes: HashMap<Cow<'a, str>, usize> = HashMap::new();
        let mut targets: Vec<Target<'a>> = Vec::new();
        let mut of_message = Vec::with_capacity(batch.len());
        for message in batch.messages() {
            let name = if plain { Ok(Cow::Borrowed(message.topic())) } else { settings.topic.render(message).map(Cow::Owned) };
            let found = name.map_err(|error| format!("`topic`: {error}")).and_then(|name| match indexes.get(&name) {
                Some(index) => Ok(*index),
                None => {
                    topic::check(&name).map_err(|error| error.to_string())?;
                    let index = targets.len();
                    indexes.insert(name.clone(), index);
                    let max_batch_bytes = limits.of(&name, now).unwrap_or(usize::MAX).min(settings.max_request_bytes);
                    targets.push(Target { name, max_batch_bytes, failure: None, missing: false, turn });
                    Ok(index)
                }
            });
            of_message.push(found.as_ref().ok().copied());
            if let Err(problem) = found {
                reject(message.index(), Outcome::Reject(Failure::invalid_message(problem)));
            }
        }
        Self { targets, of_message }
    }

    /// The topic of this number.
    #[must_use]
    pub fn get(&self, target: usize) -> Option<&Target<'a>> {
        self.targets.get(target)
    }

    /// The topic of this number.
    pub fn get_mut(&mut self, target: usize) -> Option<&mut Target<'a>> {
        self.targets.get_mut(target)
    }

    /// Every topic, with its number.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Target<'a>)> {
        self.targets.iter_mut().enumerate()
    }

    /// The number of a message's topic.
    #[must_use]
    pub fn of_message(&self, index: usize) -> Option<usize> {
        self.of_message.get(index).copied().flatten()
    }
}

/// What a key may still do in this round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyState {
    Free,
    /// Further messages may join this batch, and no other.
    In(usize),
    Waiting,
}

/// A batch that can still grow.
struct Open {
    number: usize,
    builder: Builder,
    messages: Vec<usize>,
}

/// Forms the record batches of one round.
pub struct Packer<'p, 'a> {
    /// The configuration.
    pub settings: &'a Settings,
    /// The messages.
    pub batch: &'a Batch,
    /// Their topics.
    pub targets: &'p mut Targets<'a>,
    /// What is known of the cluster.
    pub metadata: &'p Metadata,
    /// Wall clock, in Unix milliseconds: for messages whose creation time is not known.
    pub wall_ms: i64,
    /// For the age of what is known.
    pub now: Instant,
    /// When the call began: what was learned earlier does not suffice to end a message.
    pub start: Instant,
}

impl<'a> Packer<'_, 'a> {
    /// Forms batches of the messages in `pending`, in their order. `unacknowledged` are the messages of batches that exist
    /// already. Messages that can never be sent are settled.
    ///
    /// # Errors
    /// A batch cannot be encoded; nothing is formed then.
    pub fn pack(
        mut self,
        pending: &[usize],
        unacknowledged: impl Iterator<Item = usize>,
        ledger: &mut Ledger,
    ) -> std::io::Result<Vec<RecordBatch>> {
        let mut keys = vec![KeyState::Free; ledger.keys()];
        for index in unacknowledged {
            if let Some(state) = ledger.key(index).and_then(|key| keys.get_mut(key)) {
                *state = KeyState::Waiting;
            }
        }
        let mut open: BTreeMap<(usize, u32), Open> = BTreeMap::new();
        let mut closed: Vec<(usize, RecordBatch)> = Vec::new();
        let mut headers: Vec<Header<'a>> = Vec::new();
        let mut count = 0;
        for index in pending.iter().copied() {
            if ledger.is_behind_a_failure(index) {
                ledger.settle(index, Outcome::Held);
                continue;
            }
            let Some(target) = self.targets.of_message(index) else { continue };
            let message = self.batch.message(index);
            let key = ledger.key(index);
            let state = key.and_then(|key| keys.get(key).copied()).unwrap_or(KeyState::Free);
            let mut set = |state| {
                if let Some(slot) = key.and_then(|key| keys.get_mut(key)) {
                    *slot = state;
                }
            };
            if state == KeyState::Waiting {
                continue;
            }
            let partition = match self.partition(message, target) {
                Ok(Some(partition)) => partition,
                Ok(None) => {
                    set(KeyState::Waiting);
                    continue;
                }
                Err(problem) => {
                    ledger.settle(index, Outcome::Reject(Failure::invalid_message(problem.to_string())));
                    continue;
                }
            };
            let record = self.record(message, &mut headers);
            let alone = Builder::default().size_with(&record);
            if alone > self.settings.max_request_bytes {
                let detail = format!(
                    "the message is {alone} bytes as a record batch of its own; `max_request_bytes` is {}",
                    self.settings.max_request_bytes
                );
                ledger.settle(index, Outcome::Reject(Failure::of(FailureCode::TooLarge, detail)));
                continue;
            }
            let max_bytes = self.targets.get(target).map_or(HEADER_BYTES, |target| target.max_batch_bytes);
            let full = open.get(&(target, partition)).is_some_and(|batch| batch.builder.size_with(&record) > max_bytes);
            let joins = match (state, open.get(&(target, partition))) {
                (KeyState::In(number), Some(batch)) => batch.number == number && !full,
                (KeyState::In(_), None) => false,
                (KeyState::Free | KeyState::Waiting, _) => true,
            };
            if !joins {
                set(KeyState::Waiting);
                continue;
            }
            if full {
                if let Some(batch) = open.remove(&(target, partition)) {
                    closed.push(self.close(target, partition, batch)?);
                }
                if key.is_none()
                    && let Some(target) = self.targets.get_mut(target)
                {
                    target.turn = target.turn.wrapping_add(1);
                }
            }
            let batch = open.entry((target, partition)).or_insert_with(|| {
                count += 1;
                Open { number: count, builder: Builder::default(), messages: Vec::new() }
            });
            batch.builder.push(&record);
            batch.messages.push(index);
            set(KeyState::In(batch.number));
        }
        for ((target, partition), batch) in open {
            closed.push(self.close(target, partition, batch)?);
        }
        // In the order in which they were begun, so that a partition's batches are numbered in the order of their messages.
        closed.sort_by_key(|(number, _)| *number);
        Ok(closed.into_iter().map(|(_, batch)| batch).collect())
    }

    fn close(&self, target: usize, partition: u32, open: Open) -> std::io::Result<(usize, RecordBatch)> {
        let plain_bytes = open.builder.len();
        let bytes = open.builder.finish(self.settings.compression)?;
        let batch = RecordBatch {
            target,
            partition,
            messages: open.messages,
            bytes,
            plain_bytes,
            stamp: None,
            fate: Fate::Unwritten,
            failure: None,
            addressed: false,
            hopeless: false,
            done: false,
        };
        Ok((open.number, batch))
    }

    /// The partition of a message; none: it cannot be sent at present, and its topic says why.
    fn partition(&mut self, message: Message<'_>, target: usize) -> Result<Option<u32>, PartitionError> {
        let Some(target) = self.targets.get_mut(target) else { return Ok(None) };
        let Some(known) = self.metadata.topic(&target.name, self.now) else { return Ok(None) };
        let leaders = &known.leaders;
        let count = u32::try_from(leaders.len()).unwrap_or(u32::MAX);
        let named = self.settings.partition_header.as_deref().and_then(|header| {
            let (_, value) = message.headers().find(|(name, _)| name.eq_ignore_ascii_case(header))?;
            Some((header, value))
        });
        let partition = match (named, message.key()) {
            (Some((header, value)), _) => {
                let partition = partition::of_header(header, value)?;
                if partition >= count && count > 0 {
                    let problem =
                        PartitionError::OutOfRange { header: header.to_owned(), partition, topic: target.name.to_string(), count };
                    if known.learned >= self.start {
                        return Err(problem);
                    }
                    // The topic may have been given more partitions: it is asked for again.
                    target.failure = Some(Failure::invalid_message(problem.to_string()));
                    return Ok(None);
                }
                partition
            }
            (None, Some(key)) => partition::of_key(key.as_bytes(), count),
            (None, None) => {
                let available = leaders.iter().filter(|leader| leader.is_some()).count();
                let chosen = target.turn.checked_rem(available).unwrap_or(0);
                let place = leaders.iter().enumerate().filter(|(_, leader)| leader.is_some()).nth(chosen);
                place.and_then(|(index, _)| u32::try_from(index).ok()).unwrap_or(0)
            }
        };
        let led = usize::try_from(partition).ok().and_then(|index| leaders.get(index)).is_some_and(Option::is_some);
        if !led {
            target.failure = Some(reason(NO_LEADER).failure(&target.name, Some(&format!("partition {partition}"))));
            return Ok(None);
        }
        Ok(Some(partition))
    }

    fn record<'h>(&self, message: Message<'a>, headers: &'h mut Vec<Header<'a>>) -> Record<'h>
    where
        'a: 'h,
    {
        headers.clear();
        self.settings.forward.append(message, headers);
        if let Some(name) = &self.settings.id_header {
            headers.push(Header { prefix: "", name, value: message.id().as_bytes() });
        }
        let created = message.created_at().and_then(|millis| i64::try_from(millis).ok());
        Record { timestamp: created.unwrap_or(self.wall_ms), key: message.key().map(str::as_bytes), value: message.payload(), headers }
    }
}
