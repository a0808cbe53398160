//! An HTTP server that answers as its script says and remembers everything.

use crate::https::{Https, Secured};
use crate::ledger::Event;
use crate::process::PATIENCE;
use anyhow::{Context, Result, bail};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request as HttpRequest, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;

/// The largest body that it reads.
const MOST_BYTES: usize = 64 << 20;

/// A request as it came in.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its place in the order of arrival, from 0.
    pub number: usize,
    /// When it had been read.
    pub at: Instant,
    /// `POST` and the like.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The exact bytes.
    pub body: Bytes,
    /// The message's id: the header `idempotency-key`, or empty.
    pub id: String,
    /// How many requests with this id came before.
    pub earlier: usize,
    /// One of them was answered with 2xx.
    pub already_accepted: bool,
    /// The status that it was given; none: not answered yet.
    pub answered: Option<u16>,
    /// When it was answered.
    pub answered_at: Option<Instant>,
}

impl Request {
    /// A header, if it is there and is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// If it is none.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// Whether it was answered with 2xx.
    #[must_use]
    pub fn accepted(&self) -> bool {
        self.answered.is_some_and(|status| (200..300).contains(&status))
    }
}

/// What the script wants a request to be answered with.
#[derive(Debug, Clone)]
pub struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    delay: Duration,
    gate: Option<Gate>,
}

impl Answer {
    /// A status and nothing else.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), delay: Duration::ZERO, gate: None }
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.body = bytes.into();
        self
    }

    /// Given only after a while: a slow receiver.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Given only when the gate is open.
    #[must_use]
    pub fn behind(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }
}

/// Holds answers back until it is opened.
#[derive(Debug, Clone)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    /// A closed one.
    #[must_use]
    pub fn closed() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Lets everything through from now on.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    async fn pass(&self) {
        // The sender lives as long as this gate does.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

type Script = dyn Fn(&Request) -> Answer + Send + Sync;

struct Shared {
    script: Mutex<Arc<Script>>,
    log: Mutex<Vec<Request>>,
    /// By id: requests so far, and whether one of them was accepted.
    seen: Mutex<HashMap<String, (usize, bool)>>,
    changed: Condvar,
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Vec<Request>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server, on a free port of 127.0.0.1. Ends when dropped.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    /// Starts it. The script sees each request before it is answered, in the order of arrival.
    ///
    /// # Errors
    /// If no port can be had.
    pub fn start(script: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Result<Self> {
        Self::listen(None, script)
    }

    /// The same over TLS.
    ///
    /// # Errors
    /// As [`Self::start`], and if a certificate cannot be used.
    pub fn start_https(tls: &Https<'_>, script: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Result<Self> {
        Self::listen(Some(tls.acceptor()?), script)
    }

    fn listen(tls: Option<TlsAcceptor>, script: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime for the receiver")?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).context("no port for the receiver")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script: Mutex::new(Arc::new(script)),
            log: Mutex::default(),
            seen: Mutex::default(),
            changed: Condvar::new(),
        });
        let app = Router::new().fallback(handle).with_state(Arc::clone(&shared));
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async move {
                let served = async move {
                    match tls {
                        None => axum::serve(listener, app).await,
                        Some(acceptor) => axum::serve(Secured { listener, acceptor }, app).await,
                    }
                };
                tokio::select! {
                    result = served => result.unwrap_or_else(|error| eprintln!("the receiver ended: {error}")),
                    _ = stopped => {}
                }
            });
            // Requests behind a closed gate are dropped with their connections.
            runtime.shutdown_background();
        });
        Ok(Self { address, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// One that takes everything.
    ///
    /// # Errors
    /// If no port can be had.
    pub fn accepting() -> Result<Self> {
        Self::start(|_| Answer::status(204))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Another mind, from the next request on.
    pub fn set_script(&self, script: impl Fn(&Request) -> Answer + Send + Sync + 'static) {
        *self.shared.script.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(script);
    }

    /// Everything that came so far, in the order of arrival.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.log().clone()
    }

    /// The events that were answered with 2xx, in the order of arrival.
    ///
    /// # Errors
    /// If one of them is none.
    pub fn accepted_events(&self) -> Result<Vec<Event>> {
        self.look(|log| log.iter().filter(|request| request.accepted()).map(|request| Event::from_payload(&request.body)).collect())
    }

    /// Looks at the requests without copying them.
    pub fn look<T>(&self, look: impl FnOnce(&[Request]) -> T) -> T {
        look(&self.shared.log())
    }

    /// Waits until the requests are as `enough` wants them, and returns them.
    ///
    /// # Errors
    /// If that does not happen in [`PATIENCE`]: with what came.
    pub fn wait_for(&self, what: &str, enough: impl Fn(&[Request]) -> bool) -> Result<Vec<Request>> {
        self.wait_for_as_long_as(PATIENCE, what, enough)
    }

    /// The same with another limit.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub fn wait_for_as_long_as(&self, limit: Duration, what: &str, enough: impl Fn(&[Request]) -> bool) -> Result<Vec<Request>> {
        let end = Instant::now() + limit;
        let mut log = self.shared.log();
        while !enough(&log) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let last: Vec<_> = log.iter().rev().take(5).map(|request| (&request.id, &request.path, request.answered)).collect();
                bail!("waited for {what}: {} requests came, the last ones {last:?}", log.len());
            }
            log = self.shared.changed.wait_timeout(log, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(log.clone())
    }

    /// Waits until so many requests have come, answered or not.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub fn wait_for_requests(&self, count: usize) -> Result<Vec<Request>> {
        self.wait_for(&format!("{count} requests"), |log| log.len() >= count)
    }

    /// Waits until so many requests were answered with 2xx.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub fn wait_for_accepted(&self, count: usize) -> Result<Vec<Request>> {
        self.wait_for(&format!("{count} accepted requests"), |log| log.iter().filter(|request| request.accepted()).count() >= count)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn handle(State(shared): State<Arc<Shared>>, request: HttpRequest) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, MOST_BYTES).await else {
        // The sender went away in the middle, or sent more than anything in these tests does.
        return reply(&Answer::status(400));
    };
    let (number, answer) = arrive(&shared, parts, body);
    // A task of its own: a receiver goes on with what it has read, even if the sender is gone meanwhile.
    let answering = tokio::spawn(async move {
        tokio::time::sleep(answer.delay).await;
        if let Some(gate) = &answer.gate {
            gate.pass().await;
        }
        settle(&shared, number, answer.status);
        reply(&answer)
    });
    answering.await.unwrap_or_else(|_| reply(&Answer::status(500)))
}

/// Writes down how a request was answered.
fn settle(shared: &Shared, number: usize, status: u16) {
    let mut log = shared.log();
    let request = &mut log[number];
    request.answered = Some(status);
    request.answered_at = Some(Instant::now());
    if request.accepted() {
        shared.seen.lock().unwrap_or_else(PoisonError::into_inner).entry(request.id.clone()).or_default().1 = true;
    }
    drop(log);
    shared.changed.notify_all();
}

/// Writes a request down and asks the script.
fn arrive(shared: &Shared, parts: axum::http::request::Parts, body: Bytes) -> (usize, Answer) {
    let id = parts.headers.get("idempotency-key").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let mut log = shared.log();
    let (earlier, already_accepted) = {
        let mut seen = shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = seen.entry(id.clone()).or_default();
        entry.0 += 1;
        (entry.0 - 1, entry.1)
    };
    let request = Request {
        number: log.len(),
        at: Instant::now(),
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers,
        body,
        id,
        earlier,
        already_accepted,
        answered: None,
        answered_at: None,
    };
    let script = Arc::clone(&shared.script.lock().unwrap_or_else(PoisonError::into_inner));
    let answer = script(&request);
    log.push(request);
    shared.changed.notify_all();
    (log.len() - 1, answer)
}

fn reply(answer: &Answer) -> Response {
    let mut response = Response::new(Body::from(answer.body.clone()));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in &answer.headers {
        if let Ok(value) = value.parse() {
            response.headers_mut().append(*name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(receiver: &Receiver, id: &str) -> u16 {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let url = format!("http://{}/topic", receiver.address());
        agent.post(url).header("idempotency-key", id).send("{}").unwrap().status().as_u16()
    }

    #[test]
    fn the_script_answers_and_the_log_remembers() {
        let receiver = Receiver::start(|request| {
            Answer::status(if request.already_accepted {
                409
            } else if request.earlier == 0 {
                503
            } else {
                204
            })
        })
        .unwrap();
        assert_eq!([post(&receiver, "a"), post(&receiver, "b"), post(&receiver, "a"), post(&receiver, "a")], [503, 503, 204, 409]);
        let log = receiver.wait_for_accepted(1).unwrap();
        let seen: Vec<_> = log.iter().map(|request| (request.id.as_str(), request.earlier, request.accepted())).collect();
        assert_eq!(seen, [("a", 0, false), ("b", 0, false), ("a", 1, true), ("a", 2, false)]);
    }

    #[test]
    fn a_gate_holds_the_answer_but_not_the_log() {
        let gate = Gate::closed();
        let behind = gate.clone();
        let receiver = Receiver::start(move |_| Answer::status(204).behind(&behind)).unwrap();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| post(&receiver, "a"));
            assert_eq!(receiver.wait_for_requests(1).unwrap()[0].answered, None);
            gate.open();
            assert_eq!(sender.join().unwrap(), 204);
        });
    }
}
