//! The rows that a bench writes, and how they are told from everybody else's.

use crate::domain::{Batch, Message, NewMessage};
use std::sync::Arc;

/// The topic of the rows, where a route takes it.
pub(super) const TOPIC: &str = "outhaul.bench";

/// What payloads begin with. With the quotes around it a payload is JSON, so that columns of such a type take it.
const MARK: &[u8] = b"\"outhaul bench ";

/// What keys begin with, where a payload has no room for its mark.
const KEY_MARK: &str = "outhaul.bench.";

/// What they go on with.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Payloads have the same characters again after so many bytes: no compressor on the way looks back so far (LZ4 and Snappy: 64 KiB).
const PERIOD: usize = 1 << 20;

/// Rows of one insert at most.
const ROWS: u64 = 500;

/// Payload bytes of one insert, if it has more than one row.
const BYTES: u64 = 4 << 20;

/// What all rows of a bench have in common.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    topic: String,
    payloads: Payloads,
    keys: u64,
}

impl Rows {
    /// Rows with `bytes` of payload and so many keys; 0: none has a key.
    pub(super) fn new(topic: &str, bytes: usize, keys: u64) -> Self {
        Self { topic: topic.to_owned(), payloads: Payloads::new(bytes), keys }
    }

    #[cfg(test)]
    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    /// How many of them one insert takes.
    pub(super) fn at_once(&self) -> u64 {
        let bytes = u64::try_from(self.payloads.bytes).unwrap_or(u64::MAX).max(1);
        (BYTES / bytes).clamp(1, ROWS)
    }

    /// Rows `from`, `from + 1` and so on.
    pub(super) fn batch(&self, from: u64, count: u64) -> Batch {
        let (mut batch, mut payload) = (Batch::default(), Vec::with_capacity(self.payloads.bytes));
        for row in from..from.saturating_add(count) {
            let key = row.checked_rem(self.keys).map(|key| self::key(key, self.payloads.bytes));
            self.payloads.write(row, &mut payload);
            batch.push(&NewMessage { topic: &self.topic, key: key.as_deref(), payload: Some(&payload), ..NewMessage::default() });
        }
        batch
    }

    /// Whether a row may be one of these. A table may give all rows one topic, or have no keys.
    pub(super) fn is_like(&self, message: Message<'_>) -> bool {
        message.payload().is_some_and(|payload| payload.len() == self.payloads.bytes) && is_marked(message)
    }
}

/// Whether a row was written by a bench, this one or another.
pub(super) fn is_marked(message: Message<'_>) -> bool {
    message.payload().is_some_and(|payload| payload.starts_with(MARK)) || message.key().is_some_and(|key| key.starts_with(KEY_MARK))
}

/// Whether rows can be told from those of others by what is in them.
pub(super) fn can_be_marked(payload: usize, keys: u64) -> bool {
    has_room(payload) || keys > 0
}

/// The size of the largest row, without an id.
pub(super) fn largest(topic: &str, payload: usize, keys: u64) -> usize {
    let key = keys.checked_sub(1).map_or(0, |last| key(last, payload).len());
    payload.saturating_add(topic.len()).saturating_add(key)
}

fn has_room(payload: usize) -> bool {
    payload > MARK.len()
}

fn key(number: u64, payload: usize) -> String {
    format!("{}k{number}", if has_room(payload) { "" } else { KEY_MARK })
}

/// JSON strings of one length, another one for each row; shorter than two bytes: a digit, or nothing.
#[derive(Debug, Clone)]
struct Payloads {
    bytes: usize,
    /// Characters at random. Each row takes those behind the row before, and begins anew after [`PERIOD`].
    noise: Arc<[u8]>,
}

impl Payloads {
    fn new(bytes: usize) -> Self {
        let room = room(bytes);
        Self { bytes, noise: if room > 0 { noise(PERIOD + room) } else { Arc::default() } }
    }

    /// Puts the payload of a row into a buffer, in place of what is in it.
    fn write(&self, row: u64, into: &mut Vec<u8>) {
        into.clear();
        if self.bytes < 2 {
            into.resize(self.bytes, b'0');
            return;
        }
        into.extend(MARK.iter().take(self.bytes - 1));
        into.extend(self.filling(row));
        into.push(b'"');
    }

    fn filling(&self, row: u64) -> &[u8] {
        let room = room(self.bytes);
        // The period is a power of two: what is lost in an overflow does not count.
        let at = usize::try_from(row % PERIOD as u64).unwrap_or_default().wrapping_mul(room) % PERIOD;
        self.noise.get(at..at + room).unwrap_or_default()
    }
}

/// Bytes of a payload beside its mark and the quote at its end.
fn room(bytes: usize) -> usize {
    bytes.saturating_sub(MARK.len() + 1)
}

/// So many characters at random, the same ones each time.
fn noise(bytes: usize) -> Arc<[u8]> {
    let mut state: u64 = 1;
    let characters = std::iter::repeat_with(|| {
        // Knuth's MMIX generator (TAOCP volume 2, 3.3.4, table 1): its upper bits.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 58).ok().and_then(|at| ALPHABET.get(at)).copied().unwrap_or(b'.')
    });
    characters.take(bytes).collect()
}

/// A topic that a pattern stands for; none: it has a part for which that is not plain.
pub(super) fn concrete(pattern: &str) -> Option<String> {
    let (mut topic, mut rest) = (String::new(), pattern.chars());
    while let Some(character) = rest.next() {
        match character {
            '*' => topic.push_str("bench"),
            '?' => topic.push('x'),
            '\\' => topic.push(rest.next()?),
            '[' => {
                let first = rest.next().filter(|first| !matches!(first, '!' | '^' | ']'))?;
                topic.push(first);
                rest.find(|character| *character == ']')?;
            }
            '{' => {
                let inside: String = rest.by_ref().take_while(|character| *character != '}').collect();
                topic.push_str(&concrete(inside.split(',').next().unwrap_or_default())?);
            }
            other => topic.push(other),
        }
    }
    Some(topic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn payload(bytes: usize, row: u64) -> Vec<u8> {
        let mut payload = b"before".to_vec();
        Payloads::new(bytes).write(row, &mut payload);
        payload
    }

    #[test]
    fn payloads_are_json_of_the_wanted_length() {
        for bytes in [2, 3, 15, 16, 17, 256, 1 << 20] {
            for row in [0, 1, 4369, 100_000, u64::MAX] {
                let payload = payload(bytes, row);
                assert_eq!(payload.len(), bytes);
                serde_json::from_slice::<String>(&payload).unwrap();
            }
        }
        assert_eq!((payload(0, 7), payload(1, 7)), (Vec::new(), b"0".to_vec()));
        assert!(payload(40, 7).starts_with(b"\"outhaul bench "));
    }

    #[test]
    fn rows_have_nothing_in_common_but_their_mark() {
        // A compressor finds no eight characters that were there before, within a row and from row to row.
        for (bytes, rows) in [(256, 1000), (4096, 60)] {
            let batch = Rows::new("t", bytes, 0).batch(99_000, rows);
            let fillings: Vec<&[u8]> = batch.messages().filter_map(|message| message.payload()?.get(MARK.len()..bytes - 1)).collect();
            let all: Vec<&[u8]> = fillings.iter().flat_map(|filling| filling.windows(8)).collect();
            let distinct: BTreeSet<&[u8]> = all.iter().copied().collect();
            assert_eq!((all.len(), distinct.len()), (fillings.len() * (bytes - 16 - 7), all.len()), "{bytes}");
            assert_eq!(fillings.len() as u64, rows, "{bytes}");
        }
        // Larger than all characters that there are.
        assert_ne!(payload(2 << 20, 0), payload(2 << 20, 1));
    }

    #[test]
    fn rows_take_turns_at_the_keys() {
        let keys = |rows: &Rows, from, count| -> Vec<Option<String>> {
            rows.batch(from, count).messages().map(|message| message.key().map(str::to_owned)).collect()
        };
        let text = |key: &str| Some(key.to_owned());
        assert_eq!(keys(&Rows::new("t", 16, 3), 2, 3), [text("k2"), text("k0"), text("k1")]);
        assert_eq!(keys(&Rows::new("t", 15, 3), 2, 1), [text("outhaul.bench.k2")]);
        assert_eq!(keys(&Rows::new("t", 16, 0), 0, 2), [None, None]);
    }

    #[test]
    fn large_rows_are_written_one_by_one() {
        assert_eq!(Rows::new("t", 0, 0).at_once(), 500);
        assert_eq!(Rows::new("t", 256, 0).at_once(), 500);
        assert_eq!(Rows::new("t", 1 << 20, 0).at_once(), 4);
        assert_eq!(Rows::new("t", 8 << 20, 0).at_once(), 1);
    }

    #[test]
    fn rows_of_a_bench_are_known_by_what_is_in_them() {
        for (payload, keys, marked) in [(16, 0, true), (15, 1, true), (0, 1000, true), (15, 0, false)] {
            let rows = Rows::new("t", payload, keys);
            assert_eq!(can_be_marked(payload, keys), marked, "{payload} {keys}");
            assert!(rows.batch(0, 3).messages().all(|message| is_marked(message) == marked), "{payload} {keys}");
            let bytes = rows.batch(0, keys.max(1)).messages().map(Message::bytes).max();
            assert_eq!(bytes, Some(largest("t", payload, keys)), "{payload} {keys}");
        }
        let mut others = Batch::default();
        for payload in [None, Some(&b"{}"[..]), Some(b"0")] {
            others.push(&NewMessage { topic: "t", key: Some("k1"), payload, ..NewMessage::default() });
        }
        assert!(!others.messages().any(is_marked));
        let (rows, other, short) = (Rows::new("t", 64, 0), Rows::new("t", 65, 0), Rows::new("t", 1, 1));
        assert!(rows.batch(7, 3).messages().all(|message| rows.is_like(message) && !other.is_like(message)));
        assert!(rows.batch(0, 1).messages().all(|message| rows.is_like(message) && !short.is_like(message)));
        assert!(short.batch(0, 1).messages().all(|message| short.is_like(message) && !rows.is_like(message)));
        assert!(!others.messages().any(|message| rows.is_like(message) || short.is_like(message)));
    }

    #[test]
    fn patterns_become_topics_that_they_stand_for() {
        let concrete = |pattern: &str| super::concrete(pattern);
        for (pattern, topic) in [
            ("*", "bench"),
            ("orders.*", "orders.bench"),
            ("a?", "ax"),
            ("orders.{new,old}.[xy]", "orders.new.x"),
            ("\\*a", "*a"),
            ("a", "a"),
        ] {
            assert_eq!(concrete(pattern).as_deref(), Some(topic));
            assert!(crate::config::model::TopicPattern::parse(pattern).unwrap().is_match(topic));
        }
        assert_eq!((concrete("[!a]"), concrete("[")), (None, None));
    }
}
