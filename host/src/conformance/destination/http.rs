//! The built-in destination: an HTTP/1.1 server on a free port of 127.0.0.1.

use super::cut::{Breakable, Cut};
use super::{Ability, Answer, Bytes, Destination, DestinationError, Nowhere, PLACEHOLDER, Received, Script, id_in, payload_in};
use async_trait::async_trait;
use http::header::RETRY_AFTER;
use http::request::Parts;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// The largest body that is read: far above what the kit sends.
const MOST_BYTES: usize = 64 << 20;

/// The server. Ends when dropped, with its connections.
pub(crate) struct HttpDestination {
    address: String,
    nowhere: String,
    seen: Arc<Seen>,
    _held: Nowhere,
    _serving: AbortOnDropHandle<()>,
}

/// What the connections share.
struct Seen {
    address: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    script: Script,
    /// Attempts so far, by message id.
    earlier: HashMap<String, usize>,
    received: Vec<Received>,
}

impl Seen {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpDestination {
    /// Starts it.
    pub(crate) async fn start() -> Result<Self, DestinationError> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(DestinationError::Address)?;
        let address = format!("http://{}", listener.local_addr().map_err(DestinationError::Address)?);
        let held = Nowhere::hold()?;
        let seen = Arc::new(Seen { address: address.clone(), state: Mutex::default() });
        let serving = tokio::spawn(serve(listener, Arc::clone(&seen)));
        Ok(Self { address, nowhere: format!("http://{}", held.address), seen, _held: held, _serving: AbortOnDropHandle::new(serving) })
    }
}

async fn serve(listener: TcpListener, seen: Arc<Seen>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // A connection that is gone before it was accepted is the other side's affair.
                if let Ok((stream, _)) = accepted {
                    connections.spawn(connection(stream, Arc::clone(&seen)));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, seen: Arc<Seen>) {
    let cut = Cut::default();
    let io = TokioIo::new(Breakable::new(stream, cut.clone()));
    let service = service_fn(move |request| answer(request, Arc::clone(&seen), cut.clone()));
    // How a connection ends is seen by the publisher, and judged by what it makes of it.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
}

async fn answer(request: Request<Incoming>, seen: Arc<Seen>, cut: Cut) -> Result<Response<Empty<&'static [u8]>>, Infallible> {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MOST_BYTES).collect().await else {
        // Broken off before the request was whole: it never arrived.
        cut.now();
        return Ok(Response::default());
    };
    let mut received = describe(&head, body.to_bytes().to_vec());
    let answer = {
        let mut state = seen.state();
        let earlier = state.earlier.entry(received.id.clone().unwrap_or_default()).or_default();
        let number = *earlier;
        *earlier = number.saturating_add(1);
        let answer = state.script.answer(received.id.as_deref(), number);
        received.accepted = matches!(&answer, Answer::Accept | Answer::Slow { .. })
            || matches!(&answer, Answer::Status { status, .. } if (200..300).contains(status));
        state.received.push(received);
        answer
    };
    let mut response = Response::new(Empty::new());
    let (status, headers) = match answer {
        Answer::Accept => (204, Vec::new()),
        Answer::Unavailable => (503, Vec::new()),
        Answer::Throttled { retry_after_ms } => (429, vec![(RETRY_AFTER.to_string(), retry_after_ms.div_ceil(1000).to_string())]),
        Answer::Invalid => (400, Vec::new()),
        Answer::TooLarge => (413, Vec::new()),
        Answer::Gone => (410, Vec::new()),
        Answer::Unauthorized => (401, Vec::new()),
        Answer::Status { status, headers } => (status, headers),
        Answer::Slow { ms } => {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            (204, Vec::new())
        }
        Answer::Silent => std::future::pending().await,
        Answer::Broken => {
            cut.now();
            (200, Vec::new())
        }
    };
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in headers {
        let value = value.replace(PLACEHOLDER, &seen.address);
        if let (Ok(name), Ok(value)) = (http::HeaderName::try_from(name), http::HeaderValue::try_from(value)) {
            response.headers_mut().append(name, value);
        }
    }
    Ok(response)
}

fn describe(head: &Parts, body: Vec<u8>) -> Received {
    let in_head = head.headers.values().map(http::HeaderValue::as_bytes).chain([head.uri.path().as_bytes()]).find_map(id_in);
    let id = in_head.clone().or_else(|| id_in(&body));
    let carries_id = id.is_some();
    Received {
        id: id.or_else(|| payload_in(&body)),
        carries_id,
        payload: Some(Bytes(body)),
        headers: head.headers.iter().map(|(name, value)| (name.to_string(), Bytes(value.as_bytes().to_vec()))).collect(),
        how: format!("{} {}", head.method, head.uri.path()),
        accepted: false,
    }
}

#[async_trait]
impl Destination for HttpDestination {
    fn address(&self) -> &str {
        &self.address
    }

    fn nowhere(&self) -> &str {
        &self.nowhere
    }

    fn answers(&self, _word: &str) -> bool {
        true
    }

    fn shows(&self, ability: Ability) -> bool {
        match ability {
            // RFC 9110 section 5.5: no control characters, and nobody can rely on more than ASCII.
            Ability::BinaryHeaders => false,
            Ability::Tombstones => true,
        }
    }

    async fn script(&self, script: &Script) -> Result<(), DestinationError> {
        *self.seen.state() = State { script: script.clone(), ..State::default() };
        Ok(())
    }

    async fn received(&self) -> Result<Vec<Received>, DestinationError> {
        Ok(self.seen.state().received.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{id, payload_of};
    use super::*;
    use std::io::{Read, Write};

    /// Sends bytes and reads until the end of the connection.
    async fn exchange(destination: &HttpDestination, request: String) -> std::io::Result<String> {
        let address = destination.address().strip_prefix("http://").unwrap().to_owned();
        tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(address)?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            // A reset after some bytes leaves them in place.
            let _ = stream.read_to_string(&mut answer);
            Ok(answer)
        })
        .await
        .unwrap()
    }

    fn post(headers: &str, body: &str) -> String {
        format!("POST /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn it_answers_by_its_script_and_remembers() {
        let destination = HttpDestination::start().await.unwrap();
        let (one, two) = (id(7, 1), id(7, 2));
        let throttled = Answer::Throttled { retry_after_ms: 2001 };
        let moved = Answer::Status { status: 302, headers: vec![("location".into(), "{destination}/there".into())] };
        let script = Script::accepting().in_turn(&one, vec![throttled, Answer::Accept]).in_turn(&two, vec![moved, Answer::Broken]);
        destination.script(&script).await.unwrap();

        let by_header = post(&format!("idempotency-key: {one}\r\n"), "");
        let answer = exchange(&destination, by_header.clone()).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("retry-after: 3\r\n"), "{answer}");
        assert!(exchange(&destination, by_header).await.unwrap().starts_with("HTTP/1.1 204 "));
        let by_payload = post("", &payload_of(&two));
        let answer = exchange(&destination, by_payload.clone()).await.unwrap();
        assert!(answer.contains(&format!("location: {}/there\r\n", destination.address())), "{answer}");
        assert_eq!(exchange(&destination, by_payload).await.unwrap(), "HTTP/1.1 ", "cut");

        let received = destination.received().await.unwrap();
        let told: Vec<_> = received.iter().map(|one| (one.id.clone().unwrap(), one.carries_id, one.accepted)).collect();
        assert_eq!(told, [(one.clone(), true, false), (one, true, true), (two.clone(), false, false), (two, false, false)]);
        assert_eq!(received[0].how, "POST /x");
        destination.script(&Script::accepting()).await.unwrap();
        assert!(destination.received().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn nobody_is_nowhere() {
        let destination = HttpDestination::start().await.unwrap();
        let nowhere = destination.nowhere().strip_prefix("http://").unwrap().to_owned();
        assert_eq!(std::net::TcpStream::connect(nowhere).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    }
}
