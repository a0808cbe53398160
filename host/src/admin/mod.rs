//! The admin address: is it alive, is it ready, what has it counted, which components does it run, and a way to wake it. Read-only but
//! for the wake-up and two requests about fan-out.

mod fan_out;
mod serve;

pub use fan_out::{Absent, FanOutOf, FanOuts};

use crate::app::inventory::Inventory;
use crate::app::status::Status;
use crate::metrics::Metrics;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What `Metrics::encode` writes.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What there is, for those who ask for something else.
const ENDPOINTS: [&str; 9] = [
    "GET /healthz: 200 while the process lives",
    "GET /readyz: 200 while every relay is at work, 503 with the reasons otherwise",
    "GET /metrics: OpenMetrics text, for Prometheus",
    "GET /plugins: which component each adapter runs, and which one was refused; `outhaul plugin list` shows it",
    "POST /wake: every relay looks for work now",
    "GET /api/fan-out/RELAY/deliveries?tenant=T: deliveries; also state, event, subscriber, id, after, limit",
    "GET /api/fan-out/RELAY/status?tenant=T: the log of changes; also after, limit",
    "GET /api/fan-out/RELAY/checkpoints/READER?tenant=T, PUT with expected and through: how far a reader of the log is",
    "POST /api/fan-out/RELAY/reemit?tenant=T&event=ID: an event is expanded again, as its next generation",
];

/// The admin address cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} (admin.listen in the configuration): {}", hint(.source))]
pub struct ListenError {
    /// Address.
    pub address: SocketAddr,
    /// Why.
    pub source: io::Error,
}

fn hint(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another process listens there already: choose another port, or 0 for any free one".to_owned(),
        io::ErrorKind::PermissionDenied => "not permitted: choose a port from 1024 on".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        _ => error.to_string(),
    }
}

#[derive(Clone)]
struct Shared {
    status: Status,
    inventory: Arc<Inventory>,
    metrics: Metrics,
}

/// Takes the address, logs which one it is, and returns what serves it until `end` is cancelled.
///
/// # Errors
/// The address cannot be had.
pub async fn listen(
    address: SocketAddr,
    status: Status,
    inventory: Arc<Inventory>,
    fan_outs: Arc<dyn FanOuts>,
    metrics: Metrics,
    end: CancellationToken,
) -> Result<impl Future<Output = ()> + Send, ListenError> {
    let failed = |source| ListenError { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    tracing::info!(listen = %listener.local_addr().map_err(failed)?, "admin address");
    Ok(serve::serve(listener, router(status, inventory, fan_outs, metrics), serve::ALLOWANCE, end))
}

fn router(status: Status, inventory: Arc<Inventory>, fan_outs: Arc<dyn FanOuts>, metrics: Metrics) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(counted))
        .route("/plugins", get(plugins))
        .route("/wake", post(wake))
        .fallback(unknown)
        .with_state(Shared { status, inventory, metrics })
        .nest("/api/fan-out", fan_out::router(fan_outs))
}

async fn ready(State(shared): State<Shared>) -> Response {
    let report = shared.status.report();
    let code = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(report)).into_response()
}

async fn counted(State(shared): State<Shared>) -> Response {
    ([(header::CONTENT_TYPE, OPENMETRICS)], shared.metrics.encode()).into_response()
}

async fn plugins(State(shared): State<Shared>) -> Response {
    Json(shared.inventory.document()).into_response()
}

async fn wake(State(shared): State<Shared>) -> Response {
    Json(json!({ "woken": shared.status.wake() })).into_response()
}

async fn unknown() -> Response {
    (StatusCode::NOT_FOUND, Json(json!({ "error": "there is no such path", "endpoints": ENDPOINTS }))).into_response()
}

#[cfg(test)]
mod fan_out_tests;
#[cfg(test)]
mod tests;
