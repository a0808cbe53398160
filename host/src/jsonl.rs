//! Messages as JSON, one a line: what `enqueue --jsonl` reads and `dead show --json` writes.

use crate::domain::{Batch, Message, NewMessage};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// One message. The payload is `payload` (text, or null for a tombstone) or `payload_base64`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JsonMessage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    topic: String,
    #[serde(default)]
    key: Option<String>,
    #[serde(default, deserialize_with = "headers")]
    headers: Vec<(String, JsonBytes)>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    payload: Option<Option<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

/// Bytes: a text, or `{"base64": "..."}` where they are none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum JsonBytes {
    Text(String),
    Binary { base64: String },
}

/// Tells `null` from a field that is not there.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// An object, or a list of pairs where the order or duplicates matter.
fn headers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, JsonBytes)>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "headers are an object of texts, or a list of [name, value] pairs")]
    enum Headers {
        Pairs(Vec<(String, JsonBytes)>),
        Object(BTreeMap<String, JsonBytes>),
    }
    Ok(match Headers::deserialize(deserializer)? {
        Headers::Pairs(pairs) => pairs,
        Headers::Object(object) => object.into_iter().collect(),
    })
}

impl JsonMessage {
    /// Reads one line.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        // The line is told by the caller; "at line 1" of it would mislead.
        serde_json::from_str(line).map_err(|error| error.to_string().replace(" at line 1 column ", " at column "))
    }

    /// Whether it says its id.
    pub(super) fn has_id(&self) -> bool {
        self.id.as_deref().is_some_and(|id| !id.is_empty())
    }

    /// Appends it to a batch.
    pub(crate) fn push_to(&self, batch: &mut Batch) -> Result<(), String> {
        if self.topic.is_empty() {
            return Err("topic is empty".to_owned());
        }
        let payload = match (&self.payload, &self.payload_base64) {
            (Some(_), Some(_)) => return Err("has both payload and payload_base64: leave one out".to_owned()),
            (None, None) => return Err("has no payload: add payload (a text, or null for a tombstone) or payload_base64".to_owned()),
            (Some(payload), None) => payload.as_ref().map(|text| text.clone().into_bytes()),
            (None, Some(encoded)) => Some(decode("payload_base64", encoded)?),
        };
        let mut headers = Vec::with_capacity(self.headers.len());
        for (name, value) in &self.headers {
            let value = match value {
                JsonBytes::Text(text) => text.clone().into_bytes(),
                JsonBytes::Binary { base64 } => decode("the header's base64", base64)?,
            };
            headers.push((name.as_str(), value));
        }
        batch.push(&NewMessage {
            id: self.id.as_deref().filter(|id| !id.is_empty()),
            topic: &self.topic,
            key: self.key.as_deref(),
            headers: headers.iter().map(|(name, value)| (*name, value.as_slice())).collect(),
            payload: payload.as_deref(),
            attempts: 0,
            created_at: 0,
        });
        Ok(())
    }

    /// A message as JSON.
    pub(crate) fn of(message: Message<'_>) -> Self {
        let bytes = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) => JsonBytes::Text(text.to_owned()),
            Err(_) => JsonBytes::Binary { base64: STANDARD.encode(bytes) },
        };
        let (payload, payload_base64) = match message.payload().map(bytes) {
            None => (Some(None), None),
            Some(JsonBytes::Text(text)) => (Some(Some(text)), None),
            Some(JsonBytes::Binary { base64 }) => (None, Some(base64)),
        };
        Self {
            id: Some(message.id().to_owned()),
            topic: message.topic().to_owned(),
            key: message.key().map(str::to_owned),
            headers: message.headers().map(|(name, value)| (name.to_owned(), bytes(value))).collect(),
            payload,
            payload_base64,
        }
    }
}

fn decode(what: &str, encoded: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(encoded).map_err(|error| format!("{what} is not base64: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batch(line: &str) -> Result<Batch, String> {
        let mut batch = Batch::default();
        JsonMessage::parse(line)?.push_to(&mut batch).map(|()| batch)
    }

    #[test]
    fn every_form_is_read() {
        let read = batch(r#"{"topic":"t","key":"k","headers":[["a","1"],["a","2"]],"payload":"p","id":"i"}"#).unwrap();
        let message = read.message(0);
        assert_eq!((message.id(), message.topic(), message.key(), message.payload()), ("i", "t", Some("k"), Some(&b"p"[..])));
        assert_eq!(message.headers().collect::<Vec<_>>(), [("a", &b"1"[..]), ("a", &b"2"[..])]);
        assert_eq!(batch(r#"{"topic":"t","payload":null}"#).unwrap().message(0).payload(), None);
        assert_eq!(batch(r#"{"topic":"t","payload":""}"#).unwrap().message(0).payload(), Some(&b""[..]));
        assert_eq!(batch(r#"{"topic":"t","payload_base64":"//4="}"#).unwrap().message(0).payload(), Some(&b"\xff\xfe"[..]));
        assert_eq!(batch(r#"{"topic":"t","payload":"","headers":{"a":"1"}}"#).unwrap().message(0).headers().count(), 1);
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (line, expected) in [
            ("{", "EOF"),
            (r#"{"payload":"p"}"#, "missing field `topic`"),
            (r#"{"topic":"","payload":"p"}"#, "topic is empty"),
            (r#"{"topic":"t"}"#, "has no payload"),
            (r#"{"topic":"t","payload":"a","payload_base64":"aa=="}"#, "has both"),
            (r#"{"topic":"t","payload":{"a":1}}"#, "invalid type: map"),
            (r#"{"topic":"t","payload_base64":"?"}"#, "is not base64"),
            (r#"{"topic":"t","payload":"","headers":{"a":1}}"#, "headers are an object"),
            (r#"{"topic":"t","payload":"","kay":"k"}"#, "unknown field `kay`"),
        ] {
            let error = batch(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(payload in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)), key in prop::option::of(".{0,5}"),
                                    headers in prop::collection::vec(("[a-z]{1,3}", prop::collection::vec(any::<u8>(), 0..5)), 0..3)) {
            let mut before = Batch::default();
            let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
            before.push(&NewMessage { id: Some("i"), topic: "t", key: key.as_deref(), headers, payload: payload.as_deref(), ..NewMessage::default() });
            let line = serde_json::to_string(&JsonMessage::of(before.message(0))).unwrap();
            prop_assert_eq!(batch(&line), Ok(before));
        }
    }
}
