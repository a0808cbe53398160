//! Fan-out over the admin address: deliveries, the log of changes with the checkpoints of its readers, and sending an event again.
//!
//! Everything is in the query, and nothing is read of a body. A tenant must be named (`tenant=` is the one of those that have none), and
//! nothing of another one is shown. What is sealed of a delivery does not come here.

use crate::domain::{Failure, FailureCode};
use crate::fan_out::given::{NAME_BYTES, READER_BYTES, check_name};
use crate::ports::fan_out::{DeliveryFilter, DeliveryState, FanOutAdmin, Reemitted};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Most rows of one answer.
const MOST: u32 = 1000;
/// Rows of one answer, where nobody has said.
const USUAL: u32 = 100;

/// Finds what a relay fans out of, as it is now.
pub trait FanOuts: Send + Sync {
    /// By the relay's name.
    ///
    /// # Errors
    /// There is nothing to be had.
    fn of(&self, relay: &str) -> Result<FanOutOf, Absent>;
}

/// What a relay fans out of.
pub struct FanOutOf {
    /// It works for this tenant only.
    pub tenant: Option<String>,
    /// Its storage.
    pub admin: Arc<dyn FanOutAdmin>,
}

/// Why there is nothing to be had of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// The process runs no such relay.
    #[error("this process runs no relay of that name")]
    NoRelay,
    /// It publishes by routes.
    #[error("the relay has no fan_out")]
    NoFanOut,
    /// Its storage is not open.
    #[error("the storage of the relay is not open yet")]
    NotOpen,
}

type Shared = Arc<dyn FanOuts>;
type Asked<T> = Result<Query<T>, QueryRejection>;
type Answer = Result<Json<Value>, Refused>;

/// The paths below `/api/fan-out`.
pub(super) fn router(fan_outs: Shared) -> Router {
    Router::new()
        .route("/{relay}/deliveries", get(deliveries))
        .route("/{relay}/status", get(status))
        .route("/{relay}/checkpoints/{reader}", get(checkpoint).put(advance))
        .route("/{relay}/reemit", post(reemit))
        .with_state(fan_outs)
}

/// What is answered instead.
struct Refused(StatusCode, Value);

impl Refused {
    fn new(status: StatusCode, error: impl ToString) -> Self {
        Self(status, json!({ "error": error.to_string() }))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

impl From<QueryRejection> for Refused {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(StatusCode::BAD_REQUEST, rejection.body_text())
    }
}

impl From<Absent> for Refused {
    fn from(absent: Absent) -> Self {
        let status = match absent {
            Absent::NoRelay | Absent::NoFanOut => StatusCode::NOT_FOUND,
            Absent::NotOpen => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, absent)
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        let status = match failure.code {
            FailureCode::Unavailable | FailureCode::Network | FailureCode::Timeout | FailureCode::Throttled => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, failure)
    }
}

/// What a relay fans out of, for a tenant that it works for.
fn chosen(fan_outs: &Shared, relay: &str, tenant: &str) -> Result<Arc<dyn FanOutAdmin>, Refused> {
    let found = fan_outs.of(relay)?;
    match found.tenant {
        Some(only) if only != tenant => Err(Refused::new(StatusCode::NOT_FOUND, "the relay works for another tenant only")),
        _ => Ok(found.admin),
    }
}

/// Refuses names that nothing has, by the parameters that they stand in.
fn named<'a>(names: impl IntoIterator<Item = (&'static str, Option<&'a String>)>) -> Result<(), Refused> {
    for (parameter, name) in names {
        let most = if parameter == "reader" { READER_BYTES } else { NAME_BYTES };
        if let Some(Err(fault)) = name.map(|name| check_name(name, most)) {
            return Err(Refused::new(StatusCode::BAD_REQUEST, format!("{parameter}: {fault}")));
        }
    }
    Ok(())
}

fn limit(asked: Option<u32>) -> Result<u32, Refused> {
    let limit = asked.unwrap_or(USUAL);
    let fits = (1..=MOST).contains(&limit);
    fits.then_some(limit).ok_or_else(|| Refused::new(StatusCode::BAD_REQUEST, format!("limit: must be from 1 to {MOST}")))
}

/// A page that a browser shows can send requests here, but not without saying where it came from.
fn not_a_page(headers: &HeaderMap) -> Result<(), Refused> {
    match headers.contains_key(header::ORIGIN) {
        true => Err(Refused::new(StatusCode::FORBIDDEN, "requests of pages (with the header Origin) change nothing here")),
        false => Ok(()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeliveriesQuery {
    tenant: String,
    state: Option<DeliveryState>,
    event: Option<String>,
    subscriber: Option<String>,
    id: Option<String>,
    after: Option<String>,
    limit: Option<u32>,
}

async fn deliveries(State(fan_outs): State<Shared>, Path(relay): Path<String>, query: Asked<DeliveriesQuery>) -> Answer {
    let Query(DeliveriesQuery { tenant, state, event, subscriber, id, after, limit: asked }) = query?;
    let others = [("event", &event), ("subscriber", &subscriber), ("id", &id), ("after", &after)];
    named([("tenant", Some(&tenant))].into_iter().chain(others.map(|(parameter, name)| (parameter, name.as_ref()))))?;
    let (admin, limit) = (chosen(&fan_outs, &relay, &tenant)?, limit(asked)?);
    let filter = DeliveryFilter { tenant, state, event, subscriber, ids: id.into_iter().collect() };
    let page = admin.list_deliveries(&filter, after.as_deref(), limit).await.map_err(|failure| match failure.code {
        FailureCode::InvalidMessage if after.is_some() => {
            Refused::new(StatusCode::BAD_REQUEST, "after: is not where an earlier page ended: pass what that gave as next")
        }
        _ => failure.into(),
    })?;
    Ok(Json(json!({ "deliveries": page.deliveries, "next": page.next })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StatusQuery {
    tenant: String,
    #[serde(default)]
    after: u64,
    limit: Option<u32>,
}

async fn status(State(fan_outs): State<Shared>, Path(relay): Path<String>, query: Asked<StatusQuery>) -> Answer {
    let Query(StatusQuery { tenant, after, limit: asked }) = query?;
    named([("tenant", Some(&tenant))])?;
    let (admin, limit) = (chosen(&fan_outs, &relay, &tenant)?, limit(asked)?);
    let changes = admin.read_status(&tenant, after, limit).await?;
    let through = changes.last().map_or(after, |change| change.position);
    Ok(Json(json!({ "after": after, "through": through, "changes": changes })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckpointQuery {
    tenant: String,
}

async fn checkpoint(
    State(fan_outs): State<Shared>,
    Path((relay, reader)): Path<(String, String)>,
    query: Asked<CheckpointQuery>,
) -> Answer {
    let Query(CheckpointQuery { tenant }) = query?;
    named([("tenant", Some(&tenant)), ("reader", Some(&reader))])?;
    let checkpoint = chosen(&fan_outs, &relay, &tenant)?.checkpoint(&tenant, &reader).await?;
    Ok(Json(json!({ "reader": reader, "checkpoint": checkpoint })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdvanceQuery {
    tenant: String,
    expected: u64,
    through: u64,
}

async fn advance(
    State(fan_outs): State<Shared>,
    Path((relay, reader)): Path<(String, String)>,
    headers: HeaderMap,
    query: Asked<AdvanceQuery>,
) -> Answer {
    not_a_page(&headers)?;
    let Query(AdvanceQuery { tenant, expected, through }) = query?;
    named([("tenant", Some(&tenant)), ("reader", Some(&reader))])?;
    let admin = chosen(&fan_outs, &relay, &tenant)?;
    if through < expected {
        return Err(Refused::new(StatusCode::BAD_REQUEST, "through is before expected: a checkpoint never goes back"));
    }
    if admin.advance(&tenant, &reader, expected, through).await? {
        return Ok(Json(json!({ "reader": reader, "checkpoint": through, "advanced": true })));
    }
    let at = admin.checkpoint(&tenant, &reader).await?;
    let error = if at == expected { "the log does not reach so far yet" } else { "the checkpoint is not where it was expected" };
    let document = json!({ "error": error, "reader": reader, "checkpoint": at, "advanced": false });
    Err(Refused(StatusCode::CONFLICT, document))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReemitQuery {
    tenant: String,
    event: String,
}

async fn reemit(State(fan_outs): State<Shared>, Path(relay): Path<String>, headers: HeaderMap, query: Asked<ReemitQuery>) -> Answer {
    not_a_page(&headers)?;
    let Query(ReemitQuery { tenant, event }) = query?;
    named([("tenant", Some(&tenant)), ("event", Some(&event))])?;
    match chosen(&fan_outs, &relay, &tenant)?.reemit(&tenant, &event).await? {
        Reemitted::Generation(generation) => Ok(Json(json!({ "event": event, "generation": generation }))),
        Reemitted::Unknown => Err(Refused::new(StatusCode::NOT_FOUND, "the tenant has no such event")),
        Reemitted::Pending(generation) => {
            let error = "the event waits to be expanded already: nothing was changed";
            Err(Refused(StatusCode::CONFLICT, json!({ "error": error, "event": event, "generation": generation })))
        }
    }
}
