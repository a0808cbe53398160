//! CloudEvents 1.0 over HTTP: the binary mode (attributes as headers) and the structured mode (one JSON document).
//!
//! Written here instead of with `cloudevents-sdk`: what is needed are two encodings of six attributes, and that crate's event
//! model brings chrono, uuid, url (with its Unicode tables) and snafu into the component, and re-encodes the data, which has to
//! stay byte for byte what was stored.

use crate::header;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue};
use outhaul_sdk::template::{RenderError, Template};
use outhaul_sdk::{Failure, Message};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

/// Media type of the structured mode.
pub const STRUCTURED_TYPE: &str = "application/cloudevents+json";

/// The last millisecond that RFC 3339 can write: the end of the year 9999.
const LAST_MILLISECOND: u64 = 253_402_300_799_999;

/// Attribute values in headers: blanks, quotes, percent signs and all that is not printable ASCII are percent-encoded
/// (CloudEvents HTTP binding, section 3.1.3.2).
const HEADER_VALUE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// In a URI: what may not stand there is encoded, what has a meaning there as well.
const URI_VALUE: &AsciiSet = &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Attributes that are set otherwise, or that the specification keeps for itself.
const CORE_ATTRIBUTES: &[&str] =
    &["specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data", "data_base64"];

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Attributes as `ce-` headers, the payload as it is.
    Binary,
    /// One JSON document with attributes and data.
    Structured,
}

/// `cloudevents`, as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloudEventsConfig {
    mode: Mode,
    source: String,
    #[serde(rename = "type", default = "default_type")]
    kind: String,
    #[serde(default = "default_subject")]
    subject: String,
    #[serde(default)]
    extensions: BTreeMap<String, String>,
}

fn default_type() -> String {
    "{topic}".into()
}

fn default_subject() -> String {
    "{key}".into()
}

/// How to make events, checked.
#[derive(Debug, Clone)]
pub struct CloudEvents {
    /// Binary or structured.
    pub mode: Mode,
    source: Template,
    kind: Template,
    subject: Template,
    extensions: BTreeMap<String, Template>,
}

/// The attributes of one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attributes {
    specversion: &'static str,
    id: String,
    source: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(flatten)]
    extensions: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Structured<'a> {
    #[serde(flatten)]
    attributes: &'a Attributes,
    #[serde(skip_serializing_if = "Option::is_none")]
    datacontenttype: Option<&'a str>,
}

impl CloudEvents {
    /// Checks the configuration.
    ///
    /// # Errors
    /// The key below `cloudevents`, and what is wrong with it.
    pub fn new(config: &CloudEventsConfig) -> Result<Self, String> {
        let template = |key: &str, text: &str| Template::parse(text).map_err(|error| format!("`cloudevents.{key}`: {error}"));
        if config.source.is_empty() || config.source.contains(char::is_whitespace) {
            return Err("`cloudevents.source`: must be a URI reference such as /orders or https://example.com/orders".into());
        }
        if config.kind.is_empty() {
            return Err("`cloudevents.type`: must not be empty".into());
        }
        let mut extensions = BTreeMap::new();
        for (name, text) in &config.extensions {
            let legal = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
            if !legal || CORE_ATTRIBUTES.contains(&name.as_str()) {
                let problem = "must be lower-case letters and digits, and not one of the specification's own attributes";
                return Err(format!("`cloudevents.extensions.{name}`: {problem}"));
            }
            extensions.insert(name.clone(), template(&format!("extensions.{name}"), text)?);
        }
        Ok(Self {
            mode: config.mode,
            source: template("source", &config.source)?,
            kind: template("type", &config.kind)?,
            subject: template("subject", &config.subject)?,
            extensions,
        })
    }

    /// The attributes of a message. A subject or an extension whose value the message does not have is left out.
    ///
    /// # Errors
    /// `source` or `type` need a value that the message does not have.
    pub fn attributes(&self, message: Message<'_>) -> Result<Attributes, Failure> {
        let problem = |key: &str, error: &RenderError| Failure::invalid_message(format!("`cloudevents.{key}`: {error}"));
        let optional = |key: &str, template: &Template| match template.render(message) {
            Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
            Err(RenderError::Missing(_)) => Ok(None),
            Err(error) => Err(problem(key, &error)),
        };
        let source = self.source.render_with(message, |text, value| text.extend(percent_encode(value, URI_VALUE)));
        let mut extensions = BTreeMap::new();
        for (name, template) in &self.extensions {
            if let Some(text) = optional(&format!("extensions.{name}"), template)? {
                extensions.insert(name.clone(), text);
            }
        }
        Ok(Attributes {
            specversion: "1.0",
            id: message.id().to_owned(),
            source: source.map_err(|error| problem("source", &error))?,
            kind: self.kind.render(message).map_err(|error| problem("type", &error))?,
            subject: optional("subject", &self.subject)?,
            time: message
                .created_at()
                .filter(|millis| *millis <= LAST_MILLISECOND)
                .map(|millis| humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(millis)).to_string()),
            extensions,
        })
    }
}

impl Attributes {
    /// The headers of the binary mode.
    ///
    /// # Errors
    /// Never in practice: all values are percent-encoded.
    pub fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, &'static str> {
        let own = [
            ("specversion", Some(self.specversion)),
            ("id", Some(&self.id)),
            ("source", Some(&self.source)),
            ("type", Some(&self.kind)),
            ("subject", self.subject.as_deref()),
            ("time", self.time.as_deref()),
        ];
        let own = own.into_iter().filter_map(|(name, value)| value.map(|value| (name, value)));
        own.chain(self.extensions.iter().map(|(name, value)| (name.as_str(), value.as_str())))
            .map(|(name, value)| {
                let encoded = utf8_percent_encode(value, HEADER_VALUE).to_string();
                Ok((header::name(&format!("ce-{name}"))?, header::value(encoded.as_bytes())?))
            })
            .collect()
    }

    /// The document of the structured mode; `data` is none for a tombstone.
    ///
    /// # Errors
    /// Never in practice: texts always have a JSON form.
    pub fn document(&self, data: Option<&[u8]>, content_type: &str) -> Result<Vec<u8>, serde_json::Error> {
        let datacontenttype = data.map(|_| content_type);
        let mut document = serde_json::to_vec(&Structured { attributes: self, datacontenttype })?;
        if let Some(data) = data {
            // The last byte is the brace that ends the object: the data goes before it, byte for byte as stored.
            document.pop();
            match Data::of(data, content_type) {
                Data::Json(json) => {
                    document.extend_from_slice(b",\"data\":");
                    document.extend_from_slice(json.get().as_bytes());
                }
                Data::Text(text) => {
                    document.extend_from_slice(b",\"data\":");
                    serde_json::to_writer(&mut document, text)?;
                }
                Data::Bytes => {
                    document.extend_from_slice(b",\"data_base64\":\"");
                    document.extend_from_slice(STANDARD.encode(data).as_bytes());
                    document.push(b'"');
                }
            }
            document.push(b'}');
        }
        Ok(document)
    }
}

/// What a payload can be in a JSON document (CloudEvents JSON format, section 3.1).
enum Data<'a> {
    Json(&'a RawValue),
    Text(&'a str),
    Bytes,
}

impl<'a> Data<'a> {
    /// By the declared type, as far as the bytes are what it says.
    fn of(data: &'a [u8], content_type: &str) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if essence == "application/json" || essence == "text/json" || essence.ends_with("+json") {
            return serde_json::from_slice(data).map_or(Self::Bytes, Self::Json);
        }
        let parameters = content_type.to_ascii_lowercase();
        let unicode = !parameters.contains("charset=") || parameters.contains("utf-8") || parameters.contains("us-ascii");
        match std::str::from_utf8(data) {
            Ok(text) if essence.starts_with("text/") && unicode => Self::Text(text),
            _ => Self::Bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::batch_of;
    use outhaul_sdk::NewMessage;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn events(extra: &str) -> Result<CloudEvents, String> {
        CloudEvents::new(&serde_json::from_str(&format!(r#"{{"mode":"binary","source":"/shop"{extra}}}"#)).unwrap())
    }

    fn attributes(extra: &str, message: NewMessage<'_>) -> Result<Attributes, Failure> {
        events(extra).unwrap().attributes(batch_of(&[message]).message(0))
    }

    fn headers(attributes: &Attributes) -> Vec<String> {
        attributes.headers().unwrap().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn binary_headers() {
        let message = NewMessage {
            id: "1",
            topic: "order.paid",
            key: Some("Euro € 😀 \"50%\""),
            headers: &[("tenant", b"a b")],
            created_at: 1_577_836_800_123,
            ..NewMessage::default()
        };
        let attributes = attributes(r#","extensions":{"tenant":"{header:tenant}","absent":"{header:none}"}"#, message).unwrap();
        // The subject's encoding is the example of the specification.
        assert_eq!(
            headers(&attributes),
            [
                "ce-specversion: 1.0",
                "ce-id: 1",
                "ce-source: /shop",
                "ce-type: order.paid",
                "ce-subject: Euro%20%E2%82%AC%20%F0%9F%98%80%20%2250%25%22",
                "ce-time: 2020-01-01T00:00:00.123Z",
                "ce-tenant: a%20b",
            ]
        );
    }

    #[test]
    fn what_is_unknown_is_left_out_or_named() {
        let bare = NewMessage { id: "1", topic: "t", created_at: u64::MAX, ..NewMessage::default() };
        assert_eq!(headers(&attributes("", bare.clone()).unwrap()).len(), 4);
        let error = attributes(r#","type":"{header:kind}""#, bare).unwrap_err();
        assert_eq!(error.detail, "`cloudevents.type`: the message has no value for {header:kind}");
    }

    fn document(data: Option<&[u8]>, content_type: &str) -> (Vec<u8>, Value) {
        let attributes = attributes("", NewMessage { id: "1", topic: "t", ..NewMessage::default() }).unwrap();
        let bytes = attributes.document(data, content_type).unwrap();
        let value = serde_json::from_slice(&bytes).unwrap();
        (bytes, value)
    }

    #[test]
    fn structured_documents() {
        let (bytes, value) = document(Some(b" {\"a\": 1.000000000000000000001e2, \"b\":\"\\u001B\"} "), "application/json");
        assert!(String::from_utf8(bytes).unwrap().ends_with("\"data\":{\"a\": 1.000000000000000000001e2, \"b\":\"\\u001B\"}}"), "{value}");
        let common = json!({"specversion":"1.0","id":"1","source":"/shop","type":"t"});
        let with = |more: Value| {
            let mut whole = common.clone();
            whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            whole
        };
        assert_eq!(document(None, "application/json").1, common);
        assert_eq!(document(Some(b"h\"i"), "text/plain").1, with(json!({"datacontenttype":"text/plain","data":"h\"i"})));
        for (data, kind) in [
            (&b"not json"[..], "application/json"),
            (b"", "a/b+json"),
            (b"\xff", "text/plain"),
            (b"x", "image/png"),
            (b"x", "text/plain; charset=utf-16"),
        ] {
            assert_eq!(document(Some(data), kind).1, with(json!({"datacontenttype":kind,"data_base64":STANDARD.encode(data)})), "{kind}");
        }
    }

    #[test]
    fn bad_settings_are_named() {
        let error = |extra: &str| events(extra).unwrap_err();
        assert!(error(r#","type":"{x}""#).contains("`cloudevents.type`"));
        assert!(error(r#","subject":"{""#).contains("`cloudevents.subject`"));
        assert!(error(r#","extensions":{"id":"x"}"#).contains("`cloudevents.extensions.id`"));
        assert!(error(r#","extensions":{"a-b":"x"}"#).contains("`cloudevents.extensions.a-b`"));
        let empty: CloudEventsConfig = serde_json::from_str(r#"{"mode":"structured","source":""}"#).unwrap();
        assert!(CloudEvents::new(&empty).unwrap_err().contains("`cloudevents.source`"));
    }

    proptest! {
        #[test]
        fn any_message_makes_legal_headers_and_a_legal_document(id in "\\PC{1,20}", key in ".{0,20}", data in prop::collection::vec(any::<u8>(), 0..50)) {
            let message = NewMessage { id: &id, topic: "t", key: Some(&key), ..NewMessage::default() };
            let attributes = attributes("", message).unwrap();
            prop_assert!(attributes.headers().is_ok());
            for kind in ["application/json", "text/plain", "x/y"] {
                let value: Value = serde_json::from_slice(&attributes.document(Some(&data), kind).unwrap()).unwrap();
                prop_assert_eq!(&value["id"], &json!(id));
            }
        }
    }
}
