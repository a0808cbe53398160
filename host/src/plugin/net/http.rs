//! HTTP requests of an adapter: one pooled client, grants checked by name and, at connect, by address; bounded in time and size.

use crate::plugin::call::{Ended, Gate, Notes};
use crate::plugin::grants::{Denial, Policy, Request as Capability, authority};
use crate::plugin::net::alerts::{Alerts, Watching};
use crate::plugin::net::tls::Tls;
use crate::tls::faults;
use bytes::Bytes;
use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tower_service::Service;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

/// How long a connection may take to be made, within the call's own time: past it another attempt is better than more patience.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an unused connection is kept: under the idle limits of common servers and load balancers (60 s and more).
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// Unused connections kept for one host: as many as a publisher keeps busy at once.
const IDLE_PER_HOST: usize = 256;

/// Largest head of a response, in bytes (servers send below 8 KiB).
const MAX_HEAD_BYTES: usize = 64 << 10;

type BoxError = Box<dyn StdError + Send + Sync>;
type Sent = Result<(Response<WasiBody>, Box<dyn Future<Output = Result<(), Error>> + Send>), Error>;

/// The client of one adapter.
#[derive(Debug)]
pub(in crate::plugin) struct HttpClient {
    client: Client<Watching<HttpsConnector<Connector>>, GatedBody>,
    alerts: Alerts,
    tls: Tls,
    policy: Arc<Policy>,
    max_body_bytes: usize,
}

impl HttpClient {
    /// A client of the adapter that these settings of TLS are for.
    pub(in crate::plugin) fn new(tls: &Tls, max_body_bytes: usize) -> Self {
        let policy = Arc::clone(tls.policy());
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(ClientConfig::clone(tls.config()))
            .https_or_http()
            .enable_http1()
            .enable_http2()
            .wrap_connector(Connector { policy: Arc::clone(&policy), look_up: Arc::new(system_look_up) });
        let alerts = Alerts::default();
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_PER_HOST)
            .http1_max_buf_size(MAX_HEAD_BYTES)
            .http2_max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX))
            .build(Watching { inner: connector, alerts: alerts.clone(), name: target });
        Self { client, alerts, tls: tls.clone(), policy, max_body_bytes }
    }

    async fn send(&self, request: Request<WasiBody>, options: RequestOptions, gate: Gate, notes: Notes) -> Sent {
        let request = request.map(|body| GatedBody { body, gate: gate.clone() });
        let uri = request.uri();
        let (host, port) = (uri.host().ok_or(Error::HttpRequestUriInvalid)?.to_owned(), port(uri));
        // Credentials in the authority would end up in logs; a tunnel would get around the grants.
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(Error::HttpRequestUriInvalid);
        }
        if request.method() == Method::CONNECT {
            return Err(Error::HttpRequestMethodInvalid);
        }
        self.policy.check_host(Capability::Http, &host, port).map_err(|denial| self.denied(&notes, &denial))?;

        // The connections are shared, so waiting for one is not told apart from waiting for an answer: both times are given to both.
        let limit = options
            .first_byte_timeout
            .map_or(Duration::MAX, |first_byte| first_byte.saturating_add(options.connect_timeout.unwrap_or(CONNECT_TIMEOUT)));
        let start = Instant::now();
        let answer = gate.run(tokio::time::timeout(limit.min(gate.left()), self.client.request(request))).await;
        let response = match answer {
            Ok(Ok(Ok(response))) => response,
            Ok(Ok(Err(error))) => return Err(self.classify(&error, &notes, &authority(&host, port), start)),
            Ok(Err(_)) | Err(Ended::Deadline | Ended::Cancelled | Ended::Lease) => return Err(Error::HttpResponseTimeout),
        };
        let between = options.between_bytes_timeout.unwrap_or(Duration::MAX);
        let body = move |incoming| ResponseBody {
            sleep: Box::pin(tokio::time::sleep_until(next_deadline(&gate, between).into())),
            incoming,
            left: self.max_body_bytes,
            limit: self.max_body_bytes,
            between,
            gate,
        };
        Ok((response.map(|incoming| body(incoming).boxed_unsync()), Box::new(async { Ok(()) })))
    }

    fn denied(&self, notes: &Notes, denial: &Denial) -> Error {
        self.tls.denials().tell(notes, &denial.to_string());
        match denial {
            Denial::Host(_) | Denial::NotRequested(_) | Denial::NotAName { .. } => Error::HttpRequestDenied,
            Denial::Address(_) => Error::DestinationIpProhibited,
        }
    }

    /// What went wrong, as the guest gets it; what an operator can do something about is noted.
    fn classify(&self, error: &(dyn StdError + 'static), notes: &Notes, target: &str, start: Instant) -> Error {
        let mut text = String::new();
        let mut broken = false;
        let mut next = Some(error);
        while let Some(cause) = next {
            if let Some(denial) = cause.downcast_ref::<Denial>() {
                return self.denied(notes, denial);
            }
            if cause.is::<Unresolved>() {
                return Error::DnsError { rcode: Some(cause.to_string()), info_code: None };
            }
            if cause.is::<Ended>() {
                return Error::HttpResponseTimeout;
            }
            if let Some(error) = cause.downcast_ref::<std::io::Error>() {
                if let Some(tls) = faults::inside(error) {
                    return self.tls_failed(tls, notes, target);
                }
                match by_kind(faults::innermost(error).kind()) {
                    Some(Error::ConnectionTerminated) => broken = true,
                    Some(known) => return known,
                    None => {}
                }
            }
            if let Some(error) = cause.downcast_ref::<hyper::Error>() {
                if error.is_parse_too_large() {
                    return Error::HttpResponseHeaderSectionSize(u32::try_from(MAX_HEAD_BYTES).ok());
                }
                if error.is_parse() || error.is_parse_status() {
                    return Error::HttpProtocolError;
                }
                // What broke the connection may stand behind it.
                broken |= error.is_incomplete_message() || error.is_closed() || error.is_canceled();
            }
            text = cause.to_string();
            next = cause.source();
        }
        if !broken {
            return Error::InternalError(Some(text));
        }
        self.alerts.take(target, start).map_or(Error::ConnectionTerminated, |error| self.tls_failed(&error, notes, target))
    }

    fn tls_failed(&self, error: &rustls::Error, notes: &Notes, target: &str) -> Error {
        self.tls.tell(notes, target, error);
        if matches!(error, rustls::Error::InvalidCertificate(_)) { Error::TlsCertificateError } else { Error::TlsProtocolError }
    }
}

/// The port that this is sent to.
fn port(uri: &Uri) -> u16 {
    let secure = uri.scheme() == Some(&http::uri::Scheme::HTTPS);
    uri.port_u16().unwrap_or(if secure { 443 } else { 80 })
}

/// Where this is sent to, as the texts have it.
fn target(uri: &Uri) -> String {
    authority(uri.host().unwrap_or_default(), port(uri))
}

fn by_kind(kind: std::io::ErrorKind) -> Option<Error> {
    use std::io::ErrorKind;
    match kind {
        ErrorKind::ConnectionRefused => Some(Error::ConnectionRefused),
        ErrorKind::TimedOut => Some(Error::ConnectionTimeout),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => Some(Error::DestinationUnavailable),
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
            Some(Error::ConnectionTerminated)
        }
        _ => None,
    }
}

/// Finds the addresses of a name. The system's resolver, but in tests of what happens when its answers change.
type LookUp = dyn Fn(Name, u16) -> Found + Send + Sync;
type Found = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

fn system_look_up(name: Name, port: u16) -> Found {
    Box::pin(async move { Ok(tokio::net::lookup_host((name.as_str(), port)).await?.collect()) })
}

/// Makes connections: names are resolved here, and every address is checked, so a name that points somewhere else today than
/// yesterday gains nothing by it.
#[derive(Clone)]
struct Connector {
    policy: Arc<Policy>,
    look_up: Arc<LookUp>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let port = port(&uri);
        // A resolver of its own for each connection, because the check wants the port; it holds two pointers and a number.
        let mut connector =
            HttpConnector::new_with_resolver(Resolver { policy: Arc::clone(&self.policy), look_up: Arc::clone(&self.look_up), port });
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Box::pin(async move { connector.call(uri).await.map_err(Into::into) })
    }
}

/// A name that could not be resolved.
#[derive(Debug, thiserror::Error)]
#[error("cannot resolve {name}: {reason}")]
struct Unresolved {
    name: String,
    reason: String,
}

#[derive(Clone)]
struct Resolver {
    policy: Arc<Policy>,
    look_up: Arc<LookUp>,
    port: u16,
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let policy = Arc::clone(&self.policy);
        let found = (self.look_up)(name.clone(), self.port);
        Box::pin(async move {
            let unresolved = |reason: String| Unresolved { name: name.as_str().to_owned(), reason };
            let found = found.await.map_err(|error| unresolved(error.to_string()))?;
            Ok(allowed(&policy, name.as_str(), found.into_iter())?.ok_or_else(|| unresolved("it has no address".to_owned()))?.into_iter())
        })
    }
}

/// The addresses that may be connected to; the denial of the first, if there are only others; none, if there are no addresses.
fn allowed(policy: &Policy, name: &str, found: impl Iterator<Item = SocketAddr>) -> Result<Option<Vec<SocketAddr>>, Denial> {
    let mut denial = None;
    let mut kept = Vec::new();
    for address in found {
        match policy.check_address(name, address.ip(), address.port()) {
            Ok(()) => kept.push(address),
            Err(denied) => denial = denial.or(Some(denied)),
        }
    }
    match (kept.is_empty(), denial) {
        (true, Some(denial)) => Err(denial),
        (true, None) => Ok(None),
        (false, _) => Ok(Some(kept)),
    }
}

/// A request body that stops when its call is over: looked at right before the bytes leave.
///
/// What the guest still writes of a body that nobody takes any more (nothing could be connected to, the answer came early) is taken and
/// thrown away: the answer says what is wrong, and the JavaScript engine of guests ends where a write fails before that.
struct GatedBody {
    body: WasiBody,
    gate: Gate,
}

impl Drop for GatedBody {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            return;
        }
        let mut body = std::mem::take(&mut self.body);
        let left = self.gate.left();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let rest = async move { while let Some(Ok(_)) = body.frame().await {} };
            runtime.spawn(tokio::time::timeout(left, rest));
        }
    }
}

impl Body for GatedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Err(ended) = self.gate.check() {
            return Poll::Ready(Some(Err(ended.into())));
        }
        Pin::new(&mut self.body).poll_frame(context).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// When the next bytes of a response must have come.
fn next_deadline(gate: &Gate, between: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(between).map_or(gate.deadline(), |next| next.min(gate.deadline()))
}

/// A response body, bounded in bytes and in time.
struct ResponseBody {
    incoming: Incoming,
    left: usize,
    limit: usize,
    between: Duration,
    sleep: Pin<Box<tokio::time::Sleep>>,
    gate: Gate,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if self.sleep.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(Error::ConnectionReadTimeout)));
        }
        let frame = match ready!(Pin::new(&mut self.incoming).poll_frame(context)) {
            None => return Poll::Ready(None),
            Some(Err(error)) => {
                tracing::debug!("a response broke off: {error}");
                return Poll::Ready(Some(Err(Error::ConnectionTerminated)));
            }
            Some(Ok(frame)) => frame,
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => return Poll::Ready(Some(Err(Error::HttpResponseBodySize(u64::try_from(self.limit).ok())))),
        }
        let next = next_deadline(&self.gate, self.between);
        self.sleep.as_mut().reset(next.into());
        Poll::Ready(Some(Ok(frame)))
    }
}

/// What a guest's requests go through: the client if the adapter may use HTTP, and the call that it is in.
#[derive(Debug)]
pub(in crate::plugin) struct HttpHooks {
    pub(in crate::plugin) client: Arc<HttpClient>,
    pub(in crate::plugin) gate: Gate,
    pub(in crate::plugin) notes: Notes,
}

impl WasiHttpHooks for HttpHooks {
    /// The client writes it, from the URI.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _processed: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        let (client, gate, notes) = (Arc::clone(&self.client), self.gate.clone(), self.notes.clone());
        Box::new(async move { client.send(request, options.unwrap_or_default(), gate, notes).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::{Grants, HostGrant};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// `hooks.example.com` is granted on any port, and these networks.
    fn policy(networks: &[&str]) -> Arc<Policy> {
        let grants = Grants {
            hosts: vec![HostGrant { host: "hooks.example.com".into(), port: None }],
            networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
            ..Grants::default()
        };
        Arc::new(Policy::new("publishers.webhooks".into(), grants, vec![Capability::Http]))
    }

    fn addresses(texts: &[&str], port: u16) -> Vec<SocketAddr> {
        texts.iter().map(|text| SocketAddr::new(text.parse().unwrap(), port)).collect()
    }

    /// Gives these answers, one after the other: the name server of an attacker.
    fn answering(answers: &'static [&'static [&'static str]]) -> Arc<LookUp> {
        let asked = AtomicUsize::new(0);
        Arc::new(move |_, port| {
            let answer = answers[asked.fetch_add(1, Ordering::Relaxed)];
            Box::pin(std::future::ready(Ok(addresses(answer, port))))
        })
    }

    async fn resolve(resolver: &mut Resolver) -> Result<Vec<SocketAddr>, BoxError> {
        Ok(resolver.call("hooks.example.com".parse().unwrap()).await?.collect())
    }

    #[tokio::test]
    async fn a_name_that_was_public_and_turns_private_is_denied() {
        let look_up = answering(&[&["93.184.215.14"], &["169.254.169.254"], &["::ffff:10.0.0.1", "127.0.0.1"]]);
        let mut resolver = Resolver { policy: policy(&[]), look_up, port: 443 };
        assert_eq!(resolve(&mut resolver).await.unwrap(), addresses(&["93.184.215.14"], 443));
        for (address, class) in [("169.254.169.254", "link-local"), ("10.0.0.1", "private")] {
            let error = resolve(&mut resolver).await.unwrap_err();
            let denial = error.downcast_ref::<Denial>().unwrap_or_else(|| panic!("not a denial: {error}")).to_string();
            assert_eq!(
                denial,
                format!(
                    "hooks.example.com:443 is denied: its address {address} is {class}; \
                     add allow_networks = [\"{address}/32\"] under [publishers.webhooks]"
                )
            );
        }
    }

    #[tokio::test]
    async fn of_a_mixed_answer_only_what_is_allowed_is_connected_to() {
        let look_up = answering(&[&["127.0.0.1", "93.184.215.14", "::1", "10.0.0.1"], &["10.9.9.9", "10.0.0.1"], &[]]);
        let mut resolver = Resolver { policy: policy(&["10.0.0.0/24"]), look_up, port: 443 };
        assert_eq!(resolve(&mut resolver).await.unwrap(), addresses(&["93.184.215.14", "10.0.0.1"], 443));
        assert_eq!(resolve(&mut resolver).await.unwrap(), addresses(&["10.0.0.1"], 443));
        let none = resolve(&mut resolver).await.unwrap_err().to_string();
        assert_eq!(none, "cannot resolve hooks.example.com: it has no address");
    }

    /// Through the client itself: each new connection asks again, and the second answer counts for the second connection.
    #[tokio::test]
    async fn nothing_is_sent_to_where_a_name_was_turned() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri: Uri = format!("http://hooks.example.com:{}/", listener.local_addr().unwrap().port()).parse().unwrap();
        // The listener is on 127.0.0.1, so its network is granted, and 127.0.0.2 plays the one that is not.
        let mut connector = Connector { policy: policy(&["127.0.0.1/32"]), look_up: answering(&[&["127.0.0.1"], &["127.0.0.2"]]) };
        drop(connector.call(uri.clone()).await.unwrap());
        listener.accept().await.unwrap();
        let error = connector.call(uri).await.unwrap_err();
        let mut cause: &(dyn StdError + 'static) = &*error;
        while !cause.is::<Denial>() {
            cause = cause.source().unwrap_or_else(|| panic!("not a denial: {error:?}"));
        }
        let denial = cause.to_string();
        assert!(denial.contains("its address 127.0.0.2 is loopback; set allow_networks = ["), "{denial}");
    }
}
