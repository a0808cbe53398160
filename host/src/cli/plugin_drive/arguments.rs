//! The arguments of each call, as they stand in a line: read strictly, so that a misspelt key is told and not passed over.

use super::messages::JsonFailure;
use crate::domain::{Column, Settlement, Verdict};
use crate::ports::{ClaimRequest, Filter, RowState};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::time::Duration;

pub(super) fn arguments_of<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, String> {
    serde_path_to_error::deserialize(Value::Object(arguments)).map_err(|error| {
        let path = error.path().to_string();
        if path == "." { error.inner().to_string() } else { format!("`{path}`: {}", error.inner()) }
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoArguments {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenArguments {
    #[serde(default)]
    pub(super) config: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaimArguments {
    worker: String,
    #[serde(default = "one_batch")]
    limit: u32,
    #[serde(default = "most_bytes")]
    max_bytes: u64,
    #[serde(default = "half_a_minute")]
    lease_ms: u64,
    #[serde(default)]
    max_attempts: u32,
    #[serde(default = "most_bytes")]
    max_message_bytes: u64,
}

/// Rows of a claim, or of a page, where nothing is said.
fn one_batch() -> u32 {
    100
}

/// Bytes of a claim and of a message where nothing is said: more than most tables hold in a batch, and within every adapter's limits.
fn most_bytes() -> u64 {
    8 << 20
}

/// The lease, or the deadline of a publish call, in milliseconds where nothing is said.
fn half_a_minute() -> u64 {
    30_000
}

/// A number of rows or bytes: an adapter that is asked for none has no right answer.
pub(super) fn at_least_one<N: PartialEq + From<u8>>(key: &str, number: N) -> Result<N, String> {
    if number == N::from(0) { Err(format!("`{key}`: must be at least 1")) } else { Ok(number) }
}

impl ClaimArguments {
    pub(super) fn request(self) -> Result<ClaimRequest, String> {
        let Self { worker, limit, max_bytes, lease_ms, max_attempts, max_message_bytes } = self;
        let (limit, max_bytes) = (at_least_one("limit", limit)?, at_least_one("max_bytes", max_bytes)?);
        Ok(ClaimRequest { worker, limit, max_bytes, lease: Duration::from_millis(lease_ms), max_attempts, max_message_bytes })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleArguments {
    pub(super) worker: String,
    pub(super) settlements: Vec<SettlementArgument>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TurnArguments {
    pub(super) settlements: Vec<SettlementArgument>,
    pub(super) claim: ClaimArguments,
}

/// One verdict for many rows.
#[derive(Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum SettlementArgument {
    Delivered {
        ids: Vec<String>,
    },
    Retry {
        ids: Vec<String>,
        failure: JsonFailure,
        delay_ms: u64,
    },
    Release {
        ids: Vec<String>,
        #[serde(default)]
        delay_ms: u64,
    },
    Dead {
        ids: Vec<String>,
        failure: JsonFailure,
    },
}

pub(super) fn settled(settlements: Vec<SettlementArgument>) -> Vec<Settlement> {
    let one = |settlement| {
        let (verdict, ids) = match settlement {
            SettlementArgument::Delivered { ids } => (Verdict::Delivered, ids),
            SettlementArgument::Retry { ids, failure, delay_ms } => {
                (Verdict::Retry { failure: failure.into(), delay: Duration::from_millis(delay_ms) }, ids)
            }
            SettlementArgument::Release { ids, delay_ms } => (Verdict::Release { delay: Duration::from_millis(delay_ms) }, ids),
            SettlementArgument::Dead { ids, failure } => (Verdict::Dead(failure.into()), ids),
        };
        Settlement { verdict, ids: Column::of_texts(ids) }
    };
    settlements.into_iter().map(one).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendArguments {
    pub(super) worker: String,
    pub(super) ids: Vec<String>,
    pub(super) lease_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EnqueueArguments {
    pub(super) messages: Vec<Value>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FilterArgument {
    state: Option<StateArgument>,
    topic: Option<String>,
    ids: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum StateArgument {
    Pending,
    Leased,
    Delivered,
    Dead,
}

impl From<FilterArgument> for Filter {
    fn from(filter: FilterArgument) -> Self {
        let state = filter.state.map(|state| match state {
            StateArgument::Pending => RowState::Pending,
            StateArgument::Leased => RowState::Leased,
            StateArgument::Delivered => RowState::Delivered,
            StateArgument::Dead => RowState::Dead,
        });
        Self { state, topic: filter.topic, ids: filter.ids }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BrowseArguments {
    #[serde(default)]
    pub(super) filter: FilterArgument,
    pub(super) after: Option<String>,
    #[serde(default = "one_batch")]
    pub(super) limit: u32,
    #[serde(default)]
    pub(super) with_messages: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FilterArguments {
    #[serde(default)]
    pub(super) filter: FilterArgument,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PurgeArguments {
    pub(super) older_than_ms: u64,
    #[serde(default = "one_batch")]
    pub(super) limit: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishArguments {
    pub(super) messages: Vec<Value>,
    #[serde(default = "half_a_minute")]
    pub(super) deadline_ms: u64,
}
