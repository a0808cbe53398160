//! A batch of columns, read as messages: views, nothing is copied until asked for.

use crate::outbox::{Batch, Column};

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
        Message { batch: self, index }
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
        self.batch.keys.text(self.index)
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
