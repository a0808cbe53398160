//! Messages, outcomes and failures as JSON, as a session reads and writes them. The form of a message is that of
//! `enqueue --jsonl`, and besides what a claim knows of it.

use crate::domain::{Batch, Destinations, Failure, FailureCode, Message, Outcome};
use crate::jsonl::JsonMessage;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Whether messages must say their ids.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ids {
    Required,
    Optional,
}

/// What a message says besides what one for a table says.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Beside {
    attempts: u32,
    created_at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<Destination>,
}

/// Where a fan-out delivery goes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Destination {
    url: String,
    #[serde(default)]
    tenant: Option<String>,
    subscriber: String,
    #[serde(default)]
    signing_scope: Option<String>,
    #[serde(default)]
    authentication: Option<String>,
}

impl Destination {
    fn of(all: &Destinations, index: usize) -> Self {
        let text = |column: &crate::domain::Column| column.text(index).map(str::to_owned);
        Self {
            url: text(&all.urls).unwrap_or_default(),
            tenant: text(&all.tenants),
            subscriber: text(&all.subscribers).unwrap_or_default(),
            signing_scope: text(&all.signing_scopes),
            authentication: text(&all.authentications),
        }
    }

    fn push_to(&self, all: &mut Destinations) {
        all.urls.push(Some(self.url.as_bytes()));
        all.tenants.push(self.tenant.as_deref().map(str::as_bytes));
        all.subscribers.push(Some(self.subscriber.as_bytes()));
        all.signing_scopes.push(self.signing_scope.as_deref().map(str::as_bytes));
        all.authentications.push(self.authentication.as_deref().map(str::as_bytes));
    }
}

/// Keys of [`Beside`].
const BESIDE: [&str; 3] = ["attempts", "created_at", "destination"];

/// A batch of messages in their order.
pub(super) fn batch_of(messages: &[Value], ids: Ids) -> Result<Batch, String> {
    let mut batch = Batch::default();
    let mut destinations = Destinations::default();
    for (index, message) in messages.iter().enumerate() {
        let pushed = push(message, ids, &mut batch, &mut destinations);
        pushed.map_err(|reason| format!("`messages[{index}]`: {reason}"))?;
    }
    match destinations.urls.len() {
        0 => {}
        some if some == batch.len() => batch.destinations = Some(destinations),
        _ => return Err("`messages`: all of them have a destination, or none".to_owned()),
    }
    Ok(batch)
}

fn push(message: &Value, ids: Ids, batch: &mut Batch, destinations: &mut Destinations) -> Result<(), String> {
    let Value::Object(message) = message else { return Err("is not an object".to_owned()) };
    let (beside, bare): (Map<_, _>, Map<_, _>) = message.clone().into_iter().partition(|(key, _)| BESIDE.contains(&key.as_str()));
    let beside: Beside = serde_json::from_value(Value::Object(beside)).map_err(|error| error.to_string())?;
    let bare: JsonMessage = serde_json::from_value(Value::Object(bare)).map_err(|error| error.to_string())?;
    if ids == Ids::Required && !bare.has_id() {
        return Err("has no id".to_owned());
    }
    bare.push_to(batch)?;
    if let (Some(attempts), Some(created_at)) = (batch.attempts.last_mut(), batch.created_at.last_mut()) {
        // Counted from 1: what is published was claimed.
        *attempts = beside.attempts.max(1);
        *created_at = beside.created_at;
    }
    if let Some(destination) = &beside.destination {
        destination.push_to(destinations);
    }
    Ok(())
}

/// The messages of a batch.
pub(super) fn list(batch: &Batch) -> Value {
    let one = |(index, message): (usize, Message<'_>)| {
        let destination = batch.destinations.as_ref().map(|all| Destination::of(all, index));
        let beside = Beside { attempts: message.attempts(), created_at: message.created_at(), destination };
        let mut out = json!(JsonMessage::of(message));
        if let (Value::Object(out), Value::Object(beside)) = (&mut out, json!(beside)) {
            out.extend(beside);
        }
        out
    };
    batch.messages().enumerate().map(one).collect()
}

/// A failure. Its text reaches the adapter as it is: what a storage makes of odd texts is a part of what is tested.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JsonFailure {
    code: String,
    #[serde(default)]
    detail: String,
    retry_after_ms: Option<u64>,
}

impl From<JsonFailure> for Failure {
    fn from(failure: JsonFailure) -> Self {
        let retry_after = failure.retry_after_ms.map(Duration::from_millis);
        Self { code: FailureCode::from_word(&failure.code), detail: failure.detail, retry_after }
    }
}

/// A failure that came back.
pub(super) fn failure(failure: &Failure) -> Value {
    let (code, detail) = (failure.code.as_str(), &failure.detail);
    match failure.retry_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)) {
        None => json!({ "code": code, "detail": detail }),
        Some(after) => json!({ "code": code, "detail": detail, "retry_after_ms": after }),
    }
}

/// What became of a message.
pub(super) fn outcome(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Delivered => json!({ "outcome": "delivered" }),
        Outcome::Retry(why) => json!({ "outcome": "retry", "failure": failure(why) }),
        Outcome::Reject(why) => json!({ "outcome": "reject", "failure": failure(why) }),
        Outcome::Held => json!({ "outcome": "held" }),
        Outcome::Settled => json!({ "outcome": "settled" }),
        Outcome::Lost => json!({ "outcome": "lost" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_back_as_they_were_written() {
        let destination = json!({"url": "https://a", "tenant": null, "subscriber": "s", "signing_scope": "x", "authentication": null});
        let written = json!([
            {"id": "1", "topic": "t", "key": "k", "headers": [["a", "1"], ["a", {"base64": "/w=="}]], "payload": "p", "attempts": 2,
             "created_at": 5, "destination": destination},
            {"id": "2", "topic": "t", "key": null, "headers": [], "payload": null, "attempts": 1, "created_at": 0, "destination": destination},
            {"id": "3", "topic": "t", "key": null, "headers": [], "payload_base64": "/w==", "attempts": 1, "created_at": 0,
             "destination": destination},
        ]);
        let batch = batch_of(written.as_array().unwrap(), Ids::Required).unwrap();
        assert_eq!(batch.check(3), Ok(()));
        assert_eq!(list(&batch), written);
    }

    #[test]
    fn what_is_wrong_is_told_with_the_message() {
        let good = json!({"id": "1", "topic": "t", "payload": "", "destination": {"url": "u", "subscriber": "s"}});
        for (message, expected) in [
            (json!(1), "`messages[1]`: is not an object"),
            (json!({"topic": "t", "payload": ""}), "`messages[1]`: has no id"),
            (json!({"id": "", "topic": "t", "payload": ""}), "`messages[1]`: has no id"),
            (json!({"id": "2", "topic": "t"}), "`messages[1]`: has no payload"),
            (json!({"id": "2", "topic": "t", "payload": "", "attempt": 1}), "unknown field `attempt`"),
            (json!({"id": "2", "topic": "t", "payload": "", "attempts": -1}), "`messages[1]`: invalid value: integer `-1`"),
            (json!({"id": "2", "topic": "t", "payload": ""}), "all of them have a destination, or none"),
        ] {
            let error = batch_of(&[good.clone(), message.clone()], Ids::Required).unwrap_err();
            assert!(error.contains(expected), "{message}: {error}");
        }
    }
}
