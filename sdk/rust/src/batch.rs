//! A batch of columns, read as messages: views, nothing is copied until asked for.

use crate::outbox::{Batch, Column};
use std::fmt;

impl Column {
    /// A column without values.
    #[must_use]
    pub const fn new() -> Self {
        Self { data: Vec::new(), ends: Vec::new(), nulls: Vec::new() }
    }

    /// A column of texts, none of them none.
    pub fn of_texts<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> Self {
        let mut column = Self::new();
        for text in texts {
            column.push(Some(text.as_ref().as_bytes()));
        }
        column
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it has no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Value `index`; none if it is none, or out of range.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        if self.nulls.get(index).is_some_and(|mark| *mark == 1) {
            return None;
        }
        let start = match index.checked_sub(1) {
            None => 0,
            Some(before) => usize::try_from(*self.ends.get(before)?).ok()?,
        };
        self.data.get(start..usize::try_from(*self.ends.get(index)?).ok()?)
    }

    /// Value `index` as text; none if it is none, out of range or not UTF-8 (the host has checked columns of text).
    #[must_use]
    pub fn text(&self, index: usize) -> Option<&str> {
        self.get(index).and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// Appends a value.
    pub fn push(&mut self, value: Option<&[u8]>) {
        match value {
            Some(bytes) => {
                self.data.extend_from_slice(bytes);
                if !self.nulls.is_empty() {
                    self.nulls.push(0);
                }
            }
            None => {
                if self.nulls.is_empty() {
                    self.nulls.resize(self.ends.len(), 0);
                }
                self.nulls.push(1);
            }
        }
        self.ends.push(u32::try_from(self.data.len()).unwrap_or(u32::MAX));
    }

    /// Appends the values of another column.
    pub fn append(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
            return;
        }
        if !(self.nulls.is_empty() && other.nulls.is_empty()) {
            self.nulls.resize(self.ends.len(), 0);
            self.nulls.extend_from_slice(&other.nulls);
            self.nulls.resize(self.ends.len() + other.ends.len(), 0);
        }
        let before = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        self.data.extend_from_slice(&other.data);
        self.ends.extend(other.ends.iter().map(|end| end.saturating_add(before)));
    }

    /// Every value in turn.
    pub fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        (0..self.len()).map(|index| self.get(index))
    }
}

impl Default for Column {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

/// A message to append to a batch.
#[derive(Debug, Clone, Default)]
pub struct NewMessage<'a> {
    /// Unique in the storage.
    pub id: &'a str,
    /// Topic.
    pub topic: &'a str,
    /// None: independent.
    pub key: Option<&'a str>,
    /// In order, duplicates kept.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// None: a tombstone.
    pub payload: Option<&'a [u8]>,
    /// Claims so far, this one included.
    pub attempts: u32,
    /// Unix milliseconds; 0: unknown.
    pub created_at: u64,
}

/// One message: a view into a batch.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    batch: &'a Batch,
    index: usize,
    key: Option<&'a str>,
}

/// Where a fan-out delivery goes: a view into a batch. Its debug text shows neither the URL nor the authentication.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Destination<'a> {
    /// Absolute URL of the endpoint.
    pub url: &'a str,
    /// The tenant; none: no tenants.
    pub tenant: Option<&'a str>,
    /// The subscriber, unique within its tenant.
    pub subscriber: &'a str,
    /// Names the signing material to use; none: unsigned.
    pub signing_scope: Option<&'a str>,
    /// How to authenticate, as a JSON object; none: not at all.
    pub authentication: Option<&'a str>,
}

impl fmt::Debug for Destination<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Destination")
            .field("tenant", &self.tenant)
            .field("subscriber", &self.subscriber)
            .field("signing_scope", &self.signing_scope)
            .finish_non_exhaustive()
    }
}

impl Batch {
    /// A batch without messages.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ids: Column::new(),
            topics: Column::new(),
            keys: Column::new(),
            header_names: Column::new(),
            header_values: Column::new(),
            header_ends: Vec::new(),
            payloads: Column::new(),
            attempts: Vec::new(),
            created_at: Vec::new(),
            destinations: None,
        }
    }

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

    /// Message `index`; out of range, all its fields are empty.
    #[must_use]
    pub fn message(&self, index: usize) -> Message<'_> {
        Message { batch: self, index, key: self.keys.text(index) }
    }

    /// Every message in turn.
    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        (0..self.len()).map(|index| self.message(index))
    }

    /// Appends a message.
    pub fn push(&mut self, message: &NewMessage<'_>) {
        self.ids.push(Some(message.id.as_bytes()));
        self.topics.push(Some(message.topic.as_bytes()));
        self.keys.push(message.key.map(str::as_bytes));
        for (name, value) in message.headers {
            self.header_names.push(Some(name.as_bytes()));
            self.header_values.push(Some(value));
        }
        self.header_ends.push(u32::try_from(self.header_names.len()).unwrap_or(u32::MAX));
        self.payloads.push(message.payload);
        self.attempts.push(message.attempts);
        self.created_at.push(message.created_at);
    }

    /// Appends the messages of another batch; neither has destinations.
    pub fn append(&mut self, other: Self) {
        let before = u32::try_from(self.header_names.len()).unwrap_or(u32::MAX);
        self.ids.append(other.ids);
        self.topics.append(other.topics);
        self.keys.append(other.keys);
        self.header_names.append(other.header_names);
        self.header_values.append(other.header_values);
        self.header_ends.extend(other.header_ends.iter().map(|end| end.saturating_add(before)));
        self.payloads.append(other.payloads);
        self.attempts.extend(other.attempts);
        self.created_at.extend(other.created_at);
    }

    fn header_range(&self, index: usize) -> std::ops::Range<usize> {
        let at = |index: usize| self.header_ends.get(index).and_then(|end| usize::try_from(*end).ok()).unwrap_or(0);
        index.checked_sub(1).map_or(0, at)..at(index)
    }
}

impl<'a> Message<'a> {
    /// Its place in the batch.
    #[must_use]
    pub fn index(self) -> usize {
        self.index
    }
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
        self.key
    }
    /// The same message under another key, for what is made of keys (the order in a batch is not).
    #[must_use]
    pub fn with_key(self, key: Option<&'a str>) -> Self {
        Self { key, ..self }
    }
    /// Where it goes, if it is a fan-out delivery; none: to where the publisher's own configuration says.
    #[must_use]
    pub fn destination(self) -> Option<Destination<'a>> {
        let all = self.batch.destinations.as_ref()?;
        Some(Destination {
            url: all.urls.text(self.index).unwrap_or_default(),
            tenant: all.tenants.text(self.index),
            subscriber: all.subscribers.text(self.index).unwrap_or_default(),
            signing_scope: all.signing_scopes.text(self.index),
            authentication: all.authentications.text(self.index),
        })
    }
    /// The exact stored bytes; none: a tombstone.
    #[must_use]
    pub fn payload(self) -> Option<&'a [u8]> {
        self.batch.payloads.get(self.index)
    }
    /// Claims so far, this one included.
    #[must_use]
    pub fn attempts(self) -> u32 {
        self.batch.attempts.get(self.index).copied().unwrap_or(1)
    }
    /// Unix milliseconds; none: unknown.
    #[must_use]
    pub fn created_at(self) -> Option<u64> {
        self.batch.created_at.get(self.index).copied().filter(|millis| *millis != 0)
    }
    /// Its headers in order, duplicates kept.
    pub fn headers(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.batch.header_range(self.index).map(move |header| {
            (self.batch.header_names.text(header).unwrap_or_default(), self.batch.header_values.get(header).unwrap_or_default())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(ids: &[&str], payload: Option<&[u8]>) -> Batch {
        let mut batch = Batch::new();
        for id in ids {
            let headers: [(&str, &[u8]); 1] = [("name", id.as_bytes())];
            batch.push(&NewMessage { id, topic: "t", key: Some(id), headers: &headers, payload, attempts: 1, created_at: 5 });
        }
        batch
    }

    #[test]
    fn appended_batches_read_as_one() {
        let mut all = Batch::new();
        for (ids, payload) in [(&["a"][..], Some(&b"x"[..])), (&["b", "c"], None), (&[], None), (&["d"], Some(b""))] {
            all.append(batch(ids, payload));
        }
        let shown: Vec<_> = all
            .messages()
            .map(|message| (message.id(), message.key(), message.payload(), message.headers().next().map(|(_, value)| value)))
            .collect();
        assert_eq!(
            shown,
            [
                ("a", Some("a"), Some(&b"x"[..]), Some(&b"a"[..])),
                ("b", Some("b"), None, Some(b"b")),
                ("c", Some("c"), None, Some(b"c")),
                ("d", Some("d"), Some(b""), Some(b"d")),
            ]
        );
        assert_eq!((all.attempts.len(), all.created_at.len(), all.header_ends.clone()), (4, 4, vec![1, 2, 3, 4]));
    }
}
