//! The rows that a bench writes, and how they are told from everybody else's.

use crate::domain::{Batch, Message, NewMessage};

/// The topic of the rows, where a route takes it.
pub(super) const TOPIC: &str = "outhaul.bench";

/// What payloads begin with. With the quotes around it a payload is JSON, so that columns of such a type take it.
const MARK: &[u8] = b"\"outhaul bench ";

/// What keys begin with, where a payload has no room for its mark.
const KEY_MARK: &str = "outhaul.bench.";

/// What they go on with, mixed so that nothing on the way compresses them to nothing.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Rows of one insert at most.
const ROWS: u64 = 500;

/// Payload bytes of one insert, if it has more than one row.
const BYTES: u64 = 4 << 20;

/// What all rows of a bench have in common.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    topic: String,
    payload: Vec<u8>,
    keys: u64,
}

impl Rows {
    /// Rows with `bytes` of payload and so many keys; 0: none has a key.
    pub(super) fn new(topic: &str, bytes: usize, keys: u64) -> Self {
        Self { topic: topic.to_owned(), payload: payload(bytes), keys }
    }

    #[cfg(test)]
    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    /// How many of them one insert takes.
    pub(super) fn at_once(&self) -> u64 {
        let bytes = u64::try_from(self.payload.len()).unwrap_or(u64::MAX).max(1);
        (BYTES / bytes).clamp(1, ROWS)
    }

    /// Rows `from`, `from + 1` and so on.
    pub(super) fn batch(&self, from: u64, count: u64) -> Batch {
        let mut batch = Batch::default();
        for row in from..from.saturating_add(count) {
            let key = row.checked_rem(self.keys).map(|key| self::key(key, self.payload.len()));
            batch.push(&NewMessage { topic: &self.topic, key: key.as_deref(), payload: Some(&self.payload), ..NewMessage::default() });
        }
        batch
    }

    /// Whether a row may be one of these. A table may give all rows one topic, or have no keys.
    pub(super) fn is_like(&self, message: Message<'_>) -> bool {
        message.payload() == Some(self.payload.as_slice()) && (has_room(self.payload.len()) || is_marked(message))
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

/// A JSON string of that length; shorter than two bytes: a digit, or nothing.
fn payload(bytes: usize) -> Vec<u8> {
    if bytes < 2 {
        return b"0".repeat(bytes);
    }
    let mut state: u64 = 1;
    let filling = std::iter::repeat_with(|| {
        // Knuth's MMIX generator (TAOCP volume 2, 3.3.4, table 1): its upper bits.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 58).ok().and_then(|at| ALPHABET.get(at)).copied().unwrap_or(b'.')
    });
    MARK.iter().copied().chain(filling).take(bytes - 1).chain([b'"']).collect()
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

    #[test]
    fn payloads_are_json_of_the_wanted_length() {
        for bytes in [2, 3, 15, 16, 17, 256, 1 << 20] {
            let payload = payload(bytes);
            assert_eq!(payload.len(), bytes);
            serde_json::from_slice::<String>(&payload).unwrap();
        }
        assert_eq!((payload(0), payload(1)), (Vec::new(), b"0".to_vec()));
        assert!(payload(40).starts_with(b"\"outhaul bench "));
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
        let (rows, short) = (Rows::new("t", 64, 0), Rows::new("t", 1, 1));
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
