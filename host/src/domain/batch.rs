//! A batch of messages as columns, and one message as a view into it.

use super::{Column, ColumnFault};

/// Where fan-out deliveries go: one value a message in each column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Destinations {
    /// Endpoint URLs.
    pub urls: Column,
    /// Tenants; none: no tenants.
    pub tenants: Column,
    /// Subscribers.
    pub subscribers: Column,
    /// Signing scopes; none: unsigned.
    pub signing_scopes: Column,
    /// Authentication as JSON; none: not at all.
    pub authentications: Column,
}

impl Destinations {
    fn columns(&self) -> [(&'static str, &Column); 5] {
        [
            ("destination URLs", &self.urls),
            ("tenants", &self.tenants),
            ("subscribers", &self.subscribers),
            ("signing scopes", &self.signing_scopes),
            ("authentications", &self.authentications),
        ]
    }

    fn push_from(&mut self, from: &Self, index: usize) {
        self.urls.push(from.urls.get(index));
        self.tenants.push(from.tenants.get(index));
        self.subscribers.push(from.subscribers.get(index));
        self.signing_scopes.push(from.signing_scopes.get(index));
        self.authentications.push(from.authentications.get(index));
    }
}

/// Messages in the order in which they are to be published. Mirrors `batch` of the WIT package.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Unique in the storage, opaque text.
    pub ids: Column,
    /// Never none.
    pub topics: Column,
    /// None: independent.
    pub keys: Column,
    /// Names of all headers, message after message.
    pub header_names: Column,
    /// Their values.
    pub header_values: Column,
    /// Where each message's headers end.
    pub header_ends: Vec<u32>,
    /// None: a tombstone.
    pub payloads: Column,
    /// Claims so far, this one included.
    pub attempts: Vec<u32>,
    /// Unix milliseconds; 0: unknown.
    pub created_at: Vec<u64>,
    /// Set for fan-out deliveries.
    pub destinations: Option<Destinations>,
}

/// What is wrong with a batch from outside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchFault {
    /// One of its columns is broken.
    #[error("the column of {name} {fault}")]
    Column {
        /// Which.
        name: &'static str,
        /// How.
        fault: ColumnFault,
    },
    /// A list has the wrong length.
    #[error("the list of {name} has {found} entries for {expected} messages")]
    Length {
        /// Which.
        name: &'static str,
        /// Entries that it has.
        found: usize,
        /// Messages.
        expected: usize,
    },
    /// Header ends are out of order, or not at the end of the headers.
    #[error("the header ends are out of order, or do not end at the last header")]
    HeaderEnds,
    /// More messages than asked for.
    #[error("has {found} messages where at most {limit} were asked for")]
    TooMany {
        /// Messages that it has.
        found: usize,
        /// Messages allowed.
        limit: usize,
    },
}

/// One message to append to a batch.
#[derive(Debug, Clone, Default)]
pub struct NewMessage<'a> {
    /// None: the storage makes one.
    pub id: Option<&'a str>,
    /// Topic.
    pub topic: &'a str,
    /// None: independent.
    pub key: Option<&'a str>,
    /// In order, duplicates kept.
    pub headers: Vec<(&'a str, &'a [u8])>,
    /// None: a tombstone.
    pub payload: Option<&'a [u8]>,
    /// Claims so far.
    pub attempts: u32,
    /// Unix milliseconds; 0: unknown.
    pub created_at: u64,
}

/// One message: a view into a batch.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    batch: &'a Batch,
    index: usize,
}

impl<'a> Message<'a> {
    /// Its id.
    #[must_use]
    pub fn id(self) -> &'a str {
        self.batch.ids.text(self.index).unwrap_or_default()
    }
    /// Its topic.
    #[must_use]
    pub fn topic(self) -> &'a str {
        self.batch.topics.text(self.index).unwrap_or_default()
    }
    /// Its key; none: independent.
    #[must_use]
    pub fn key(self) -> Option<&'a str> {
        self.batch.keys.text(self.index)
    }
    /// Its payload; none: a tombstone.
    #[must_use]
    pub fn payload(self) -> Option<&'a [u8]> {
        self.batch.payloads.get(self.index)
    }
    /// Claims so far, this one included.
    #[must_use]
    pub fn attempts(self) -> u32 {
        self.batch.attempts.get(self.index).copied().unwrap_or(1)
    }
    /// Unix milliseconds; 0: unknown.
    #[must_use]
    pub fn created_at(self) -> u64 {
        self.batch.created_at.get(self.index).copied().unwrap_or(0)
    }
    /// Its headers in order.
    pub fn headers(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.batch.header_range(self.index).map(|header| {
            (self.batch.header_names.text(header).unwrap_or_default(), self.batch.header_values.get(header).unwrap_or_default())
        })
    }
    /// Bytes that it holds in memory, without the offsets.
    #[must_use]
    pub fn bytes(self) -> usize {
        let size = |column: &Column| column.get(self.index).map_or(0, <[u8]>::len);
        let headers: usize = self.headers().map(|(name, value)| name.len() + value.len()).sum();
        size(&self.batch.ids) + size(&self.batch.topics) + size(&self.batch.keys) + size(&self.batch.payloads) + headers
    }
}

impl Batch {
    /// Number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether it has no message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Message `index`, which must be in range: out of range, all fields are empty.
    #[must_use]
    pub fn message(&self, index: usize) -> Message<'_> {
        Message { batch: self, index }
    }

    /// Every message in turn.
    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        (0..self.len()).map(|index| self.message(index))
    }

    fn header_range(&self, index: usize) -> std::ops::Range<usize> {
        let at = |index: usize| self.header_ends.get(index).and_then(|end| usize::try_from(*end).ok()).unwrap_or(0);
        index.checked_sub(1).map_or(0, at)..at(index)
    }

    /// Appends a message.
    pub fn push(&mut self, message: &NewMessage<'_>) {
        self.ids.push(Some(message.id.unwrap_or_default().as_bytes()));
        self.topics.push(Some(message.topic.as_bytes()));
        self.keys.push(message.key.map(str::as_bytes));
        for (name, value) in &message.headers {
            self.header_names.push(Some(name.as_bytes()));
            self.header_values.push(Some(value));
        }
        self.header_ends.push(u32::try_from(self.header_names.len()).unwrap_or(u32::MAX));
        self.payloads.push(message.payload);
        self.attempts.push(message.attempts);
        self.created_at.push(message.created_at);
    }

    /// Appends message `index` of another batch.
    pub fn push_from(&mut self, from: &Self, index: usize) {
        self.ids.push(from.ids.get(index));
        self.topics.push(from.topics.get(index));
        self.keys.push(from.keys.get(index));
        for header in from.header_range(index) {
            self.header_names.push(from.header_names.get(header));
            self.header_values.push(from.header_values.get(header));
        }
        self.header_ends.push(u32::try_from(self.header_names.len()).unwrap_or(u32::MAX));
        self.payloads.push(from.payloads.get(index));
        self.attempts.push(from.attempts.get(index).copied().unwrap_or(1));
        self.created_at.push(from.created_at.get(index).copied().unwrap_or(0));
        if let Some(destinations) = &from.destinations {
            self.destinations.get_or_insert_default().push_from(destinations, index);
        }
    }

    /// Checks a batch from outside, with at most `limit` messages.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self, limit: usize) -> Result<(), BatchFault> {
        let messages = self.ids.len();
        if messages > limit {
            return Err(BatchFault::TooMany { found: messages, limit });
        }
        let column = |name, result: Result<(), ColumnFault>| result.map_err(|fault| BatchFault::Column { name, fault });
        column("ids", self.ids.check_text(messages).and_then(|()| self.ids.check_present()))?;
        column("topics", self.topics.check_text(messages).and_then(|()| self.topics.check_present()))?;
        column("keys", self.keys.check_text(messages))?;
        column("payloads", self.payloads.check(messages))?;
        let headers = self.header_names.len();
        column("header names", self.header_names.check_text(headers).and_then(|()| self.header_names.check_present()))?;
        column("header values", self.header_values.check(headers))?;
        for (name, found) in
            [("header ends", self.header_ends.len()), ("attempts", self.attempts.len()), ("creation times", self.created_at.len())]
        {
            if found != messages {
                return Err(BatchFault::Length { name, found, expected: messages });
            }
        }
        let ends: Vec<usize> = self.header_ends.iter().map(|end| usize::try_from(*end).unwrap_or(usize::MAX)).collect();
        if !ends.is_sorted() || ends.last().copied().unwrap_or(0) != headers {
            return Err(BatchFault::HeaderEnds);
        }
        if let Some(destinations) = &self.destinations {
            for (name, values) in destinations.columns() {
                column(name, values.check_text(messages))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Batch {
        let mut batch = Batch::default();
        let headers: Vec<(&str, &[u8])> = vec![("a", b"1"), ("a", b"2")];
        batch.push(&NewMessage { id: Some("1"), topic: "t", key: Some("k"), headers, payload: Some(b"x"), attempts: 1, created_at: 5 });
        batch.push(&NewMessage { id: Some("2"), topic: "u", attempts: 3, ..NewMessage::default() });
        batch
    }

    #[test]
    fn messages_read_back() {
        let batch = two();
        assert_eq!(batch.check(2), Ok(()));
        let first = batch.message(0);
        assert_eq!((first.id(), first.topic(), first.key(), first.payload()), ("1", "t", Some("k"), Some(&b"x"[..])));
        assert_eq!(first.headers().collect::<Vec<_>>(), [("a", &b"1"[..]), ("a", &b"2"[..])]);
        let second = batch.message(1);
        assert_eq!((second.key(), second.payload(), second.attempts(), second.headers().count()), (None, None, 3, 0));
    }

    #[test]
    fn selection_keeps_everything() {
        let batch = two();
        let mut other = Batch::default();
        other.push_from(&batch, 1);
        other.push_from(&batch, 0);
        assert_eq!(other.check(2), Ok(()));
        assert_eq!(other.message(1).headers().count(), 2);
        assert_eq!(other.message(0).payload(), None);
    }

    #[test]
    fn faults_are_named() {
        assert_eq!(two().check(1), Err(BatchFault::TooMany { found: 2, limit: 1 }));
        let mut batch = two();
        batch.attempts.pop();
        assert_eq!(batch.check(2).map_err(|fault| fault.to_string()), Err("the list of attempts has 1 entries for 2 messages".into()));
        let mut batch = two();
        batch.topics.ends.pop();
        assert!(matches!(batch.check(2), Err(BatchFault::Column { name: "topics", .. })));
        let mut batch = two();
        batch.header_ends = vec![2, 1];
        assert_eq!(batch.check(2), Err(BatchFault::HeaderEnds));
    }
}
