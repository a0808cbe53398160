//! Requests of a session: one JSON object a line.

use super::arguments::{
    BrowseArguments, ClaimArguments, EnqueueArguments, ExtendArguments, FilterArguments, NoArguments, OpenArguments, PublishArguments,
    PurgeArguments, SettleArguments, TurnArguments, arguments_of, at_least_one, settled,
};
use super::messages;
use super::router::{CurrentArguments, Events, ExpandArguments};
use crate::domain::{Batch, Column, Settlement};
use crate::ports::fan_out::Inquiry;
use crate::ports::{ClaimRequest, Filter};
use serde_json::{Map, Value};
use std::time::Duration;

/// The instance that a request means if it names none.
const DEFAULT_INSTANCE: &str = "main";

/// Longest publish call, in milliseconds: an hour, far more than any destination takes.
const MAX_DEADLINE_MS: u64 = 3_600_000;

/// One request.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    /// Handed back with the answer.
    pub(super) id: Value,
    /// Which instance it is for.
    pub(super) instance: String,
    /// What to do.
    pub(super) call: Call,
}

/// A line that is no request.
#[derive(Debug, PartialEq)]
pub(super) struct BadRequest {
    /// Its id as far as it could be read, or null.
    pub(super) id: Value,
    /// What is wrong with it.
    pub(super) reason: String,
}

/// What to do. Named as the functions in `wit/`, with `_` for `-`.
#[derive(Debug, PartialEq)]
pub(super) enum Call {
    /// With these keys of the adapter's configuration besides, or in the place of, those of the command line.
    Open(Map<String, Value>),
    Close,
    Claim(ClaimRequest),
    Settle(String, Vec<Settlement>),
    SettleAndClaim(Vec<Settlement>, ClaimRequest),
    Extend(String, Column, Duration),
    Stats,
    Schema,
    CreateSchema,
    Enqueue(Batch),
    Browse(Browse),
    Requeue(Filter),
    Discard(Filter),
    Purge(Duration, u32),
    Publish(Batch, Duration),
    Expand(Events),
    Current(Vec<Inquiry>),
}

/// What `browse` is asked.
#[derive(Debug, PartialEq)]
pub(super) struct Browse {
    pub(super) filter: Filter,
    pub(super) after: Option<String>,
    pub(super) limit: u32,
    pub(super) with_messages: bool,
}

impl Request {
    /// Reads a line.
    pub(super) fn parse(line: &str) -> Result<Self, BadRequest> {
        let bad = |id: &Value, reason: String| BadRequest { id: id.clone(), reason };
        let value: Value = serde_json::from_str(line).map_err(|error| {
            let reason = error.to_string().replace(" at line 1 column ", " at column ");
            bad(&Value::Null, format!("is not JSON: {reason}"))
        })?;
        let Value::Object(mut rest) = value else {
            return Err(bad(&Value::Null, "is not a JSON object".to_owned()));
        };
        let id = rest.remove("id").unwrap_or_default();
        let mut text = |key: &str| match rest.remove(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(bad(&id, format!("`{key}`: {other} is not a text"))),
        };
        let instance = text("instance")?.unwrap_or_else(|| DEFAULT_INSTANCE.to_owned());
        let name = text("call")?.ok_or_else(|| bad(&id, format!("has no `call`; calls: {}", CALLS.join(", "))))?;
        let call = Call::read(&name, rest).map_err(|reason| bad(&id, reason))?;
        Ok(Self { id, instance, call })
    }
}

/// All calls, as they are written.
const CALLS: [&str; 17] = [
    "open",
    "close",
    "claim",
    "settle",
    "settle_and_claim",
    "extend",
    "stats",
    "schema",
    "create_schema",
    "enqueue",
    "browse",
    "requeue",
    "discard",
    "purge",
    "publish",
    "expand",
    "current",
];

impl Call {
    fn read(name: &str, arguments: Map<String, Value>) -> Result<Self, String> {
        let call = match name {
            "open" => arguments_of::<OpenArguments>(arguments).map(|open| Self::Open(open.config)),
            "close" => arguments_of::<NoArguments>(arguments).map(|_| Self::Close),
            "claim" => arguments_of::<ClaimArguments>(arguments).and_then(|claim| Ok(Self::Claim(claim.request()?))),
            "settle" => arguments_of::<SettleArguments>(arguments).map(|settle| Self::Settle(settle.worker, settled(settle.settlements))),
            "settle_and_claim" => arguments_of::<TurnArguments>(arguments)
                .and_then(|turn| Ok(Self::SettleAndClaim(settled(turn.settlements), turn.claim.request()?))),
            "extend" => arguments_of::<ExtendArguments>(arguments)
                .map(|extend| Self::Extend(extend.worker, Column::of_texts(extend.ids), Duration::from_millis(extend.lease_ms))),
            "stats" => arguments_of::<NoArguments>(arguments).map(|_| Self::Stats),
            "schema" => arguments_of::<NoArguments>(arguments).map(|_| Self::Schema),
            "create_schema" => arguments_of::<NoArguments>(arguments).map(|_| Self::CreateSchema),
            "enqueue" => arguments_of::<EnqueueArguments>(arguments)
                .and_then(|enqueue| Ok(Self::Enqueue(messages::batch_of(&enqueue.messages, messages::Ids::Optional)?))),
            "browse" => arguments_of::<BrowseArguments>(arguments).and_then(|browse| {
                let BrowseArguments { filter, after, limit, with_messages } = browse;
                Ok(Self::Browse(Browse { filter: filter.into(), after, limit: at_least_one("limit", limit)?, with_messages }))
            }),
            "requeue" => arguments_of::<FilterArguments>(arguments).map(|requeue| Self::Requeue(requeue.filter.into())),
            "discard" => arguments_of::<FilterArguments>(arguments).map(|discard| Self::Discard(discard.filter.into())),
            "purge" => arguments_of::<PurgeArguments>(arguments)
                .and_then(|purge| Ok(Self::Purge(Duration::from_millis(purge.older_than_ms), at_least_one("limit", purge.limit)?))),
            "publish" => arguments_of::<PublishArguments>(arguments).and_then(|publish| {
                if publish.deadline_ms > MAX_DEADLINE_MS {
                    return Err(format!("`deadline_ms`: is more than {MAX_DEADLINE_MS}, which is an hour"));
                }
                let batch = messages::batch_of(&publish.messages, messages::Ids::Required)?;
                Ok(Self::Publish(batch, Duration::from_millis(publish.deadline_ms)))
            }),
            "expand" => arguments_of::<ExpandArguments>(arguments).map(|expand| Self::Expand(expand.into())),
            "current" => arguments_of::<CurrentArguments>(arguments).map(|current| Self::Current(current.into())),
            _ => return Err(format!("`call`: there is no {name:?}; calls: {}", CALLS.join(", "))),
        };
        call.map_err(|reason| format!("{name}: {reason}"))
    }

    /// Whether it is one of `storage-admin`, which a storage need not export.
    pub(super) fn is_for_admin(&self) -> bool {
        matches!(
            self,
            Self::Schema | Self::CreateSchema | Self::Enqueue(_) | Self::Browse(_) | Self::Requeue(_) | Self::Discard(_) | Self::Purge(..)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Failure, FailureCode, Verdict};
    use proptest::prelude::*;
    use serde_json::json;

    fn call(line: &Value) -> Call {
        Request::parse(&line.to_string()).unwrap().call
    }

    #[test]
    fn every_call_is_read() {
        let request = Request::parse(r#"{"id":[1,"a"],"call":"stats","instance":"b"}"#).unwrap();
        assert_eq!(request, Request { id: json!([1, "a"]), instance: "b".into(), call: Call::Stats });
        assert_eq!(Request::parse(r#"{"call":"close"}"#).unwrap().instance, DEFAULT_INSTANCE);
        assert_eq!(call(&json!({"call": "open"})), Call::Open(Map::new()));
        let claim = ClaimRequest {
            worker: "w".into(),
            limit: 2,
            max_bytes: 8 << 20,
            lease: Duration::from_millis(u64::MAX),
            max_attempts: 3,
            max_message_bytes: 8 << 20,
        };
        let written = json!({"worker": "w", "limit": 2, "lease_ms": u64::MAX, "max_attempts": 3});
        let mut line = written.clone();
        line["call"] = "claim".into();
        assert_eq!(call(&line), Call::Claim(claim.clone()));
        let settlements = json!([
            {"verdict": "delivered", "ids": ["1"]},
            {"verdict": "retry", "ids": ["2"], "failure": {"code": "network", "detail": "a\u{0}b"}, "delay_ms": 5},
            {"verdict": "release", "ids": []},
            {"verdict": "dead", "ids": ["3"], "failure": {"code": "mine"}},
        ]);
        let Call::SettleAndClaim(read, claimed) = call(&json!({"call": "settle_and_claim", "settlements": settlements, "claim": written}))
        else {
            panic!()
        };
        assert_eq!(claimed, claim);
        let failure = Failure { code: FailureCode::Network, detail: "a\0b".into(), retry_after: None };
        assert_eq!(
            read[1],
            Settlement { verdict: Verdict::Retry { failure, delay: Duration::from_millis(5) }, ids: Column::of_texts(["2"]) }
        );
        assert_eq!(read[2].verdict, Verdict::Release { delay: Duration::ZERO });
        assert!(matches!(&read[3].verdict, Verdict::Dead(failure) if failure.code == FailureCode::Other("mine".into())));
        for name in CALLS {
            let error = Request::parse(&json!({"call": name, "kay": 1}).to_string()).unwrap_err();
            assert!(!error.reason.contains("there is no"), "{name} is listed: {}", error.reason);
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place_and_the_id() {
        for (line, expected) in [
            ("{", "is not JSON: EOF while parsing an object at column 1"),
            ("[1]", "is not a JSON object"),
            (r#"{"id":1}"#, "has no `call`; calls: open, close"),
            (r#"{"id":1,"call":"fly"}"#, "there is no \"fly\"; calls: open"),
            (r#"{"id":1,"call":7}"#, "`call`: 7 is not a text"),
            (r#"{"id":1,"call":"stats","instance":null}"#, "`instance`: null is not a text"),
            (r#"{"id":1,"call":"stats","kay":1}"#, "unknown field `kay`"),
            (r#"{"id":1,"call":"claim"}"#, "claim: missing field `worker`"),
            (r#"{"id":1,"call":"claim","worker":"w","limit":"3"}"#, "claim: `limit`: invalid type: string \"3\", expected u32"),
            (r#"{"id":1,"call":"claim","worker":"w","limit":-1}"#, "claim: `limit`: invalid value: integer `-1`"),
            (r#"{"id":1,"call":"claim","worker":"w","limit":0}"#, "claim: `limit`: must be at least 1"),
            (r#"{"id":1,"call":"claim","worker":"w","max_bytes":0}"#, "claim: `max_bytes`: must be at least 1"),
            (r#"{"id":1,"call":"browse","limit":0}"#, "browse: `limit`: must be at least 1"),
            (r#"{"id":1,"call":"purge","older_than_ms":0,"limit":0}"#, "purge: `limit`: must be at least 1"),
            (r#"{"id":1,"call":"settle","worker":"w","settlements":[{"verdict":"eaten","ids":[]}]}"#, "unknown variant `eaten`"),
            (r#"{"id":1,"call":"settle","worker":"w","settlements":[{"verdict":"dead","ids":[]}]}"#, "missing field `failure`"),
            (r#"{"id":1,"call":"browse","filter":{"state":"lost"}}"#, "browse: `filter.state`: unknown variant `lost`"),
            (r#"{"id":1,"call":"publish","messages":[{"topic":"t","payload":""}]}"#, "publish: `messages[0]`: has no id"),
            (r#"{"id":1,"call":"publish","messages":[],"deadline_ms":9999999999}"#, "`deadline_ms`: is more than"),
        ] {
            let error = Request::parse(line).unwrap_err();
            assert!(error.reason.contains(expected), "{line}: {}", error.reason);
            assert_eq!(error.id, if line.contains("\"id\":1") { json!(1) } else { Value::Null });
        }
        // What nests too deeply is an error as well, not the end of the stack.
        assert!(Request::parse(&"[".repeat(1_000_000)).is_err());
    }

    proptest! {
        #[test]
        fn no_line_is_too_odd(line in ".{0,60}", name in prop::sample::select(&CALLS[..]), key in "[a-z_]{1,12}", value in ".{0,9}") {
            let _ = Request::parse(&line);
            let _ = Request::parse(&json!({"call": name, key: value}).to_string());
        }
    }
}
