//! Serves the admin address to whoever comes: so many connections at once, each for one request and a limited time. A client that
//! sends half a request, or reads no answer, holds one of a few places for a while, and never the process's file descriptors.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long to wait after a connection could not be accepted: the reason is a lack of file descriptors or memory.
const PAUSE: Duration = Duration::from_secs(1);

/// What clients may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    /// Connections at once; further ones wait in the system's queue.
    pub(super) connections: usize,
    /// Time for the head of a request.
    pub(super) head: Duration,
    /// Time for all of a connection.
    pub(super) whole: Duration,
}

/// Far more than a scraper, a probe and a person with `curl` need.
pub(super) const ALLOWANCE: Allowance = Allowance { connections: 64, head: Duration::from_secs(5), whole: Duration::from_secs(30) };

/// Serves until `end` is cancelled, and what is being answered then to its end.
pub(super) async fn serve(listener: TcpListener, router: Router, allowance: Allowance, end: CancellationToken) {
    let places = Arc::new(Semaphore::new(allowance.connections));
    let connections = TaskTracker::new();
    let accepting = async {
        // The semaphore is never closed.
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => drop(connections.spawn(connection(stream, router.clone(), allowance, end.clone(), place))),
                Err(error) => {
                    tracing::warn!("the admin address cannot accept a connection, and tries again: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    };
    end.run_until_cancelled(accepting).await;
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn connection(stream: TcpStream, router: Router, allowance: Allowance, end: CancellationToken, _place: OwnedSemaphorePermit) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(allowance.head).keep_alive(false);
    let mut serving = pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    let served = async {
        tokio::select! {
            served = serving.as_mut() => served,
            () = end.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        }
    };
    match tokio::time::timeout(allowance.whole, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a connection to the admin address failed: {error}"),
        Err(_) => tracing::debug!("a connection to the admin address took too long, and was closed"),
    }
}
