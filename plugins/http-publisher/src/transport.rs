//! Requests on the wire: `wasi:http`, many at once on one poll loop.
//!
//! A component has one thread and `wasi:http` no callbacks: each request is a small state machine that goes on as far as it can
//! without waiting, and `wasi:io/poll` says which one to go on with. Fields are declared in the order in which they must be
//! dropped: a WASI resource goes before the one that it was made from.

use crate::header;
use crate::request::Request;
use crate::response::{Answer, Fault};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use wasip2::clocks::monotonic_clock::subscribe_duration;
use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{
    ErrorCode, Fields, FutureIncomingResponse, IncomingBody, IncomingResponse, Method, OutgoingBody, OutgoingRequest, RequestOptions,
    Scheme,
};
use wasip2::io::poll::{Pollable, poll};
use wasip2::io::streams::{InputStream, OutputStream, StreamError};

/// Most bytes of a response that are taken from the host at once.
const READ_BYTES: usize = 16 << 10;

/// How long the call lingers for the ends of responses that are good already: a connection whose response was read to its end
/// can be used again, another one is closed. The ends nearly always come with the heads.
const LINGER: Duration = Duration::from_millis(20);

/// Requests on the wire.
pub(crate) struct WasiTransport<'a> {
    began: Instant,
    max_response_bytes: usize,
    /// Responses that are good already and are read to their end: at most so many.
    max_draining: usize,
    exchanges: Vec<Exchange<'a>>,
    draining: VecDeque<Reading>,
}

struct Exchange<'a> {
    index: usize,
    sending: Option<Sending<'a>>,
    receiving: Receiving,
}

/// A body that is being written.
struct Sending<'a> {
    pollable: Pollable,
    stream: OutputStream,
    body: OutgoingBody,
    bytes: Cow<'a, [u8]>,
    sent: usize,
}

enum Receiving {
    Head(Waiting),
    Body {
        answer: Answer,
        reading: Reading,
    },
    /// Nothing to be read: a response without a body, or one whose body cannot be had.
    Ended(Answer),
    /// The outcome was given away.
    Over,
}

struct Waiting {
    pollable: Pollable,
    future: FutureIncomingResponse,
}

/// A body that is being read.
struct Reading {
    pollable: Pollable,
    stream: InputStream,
    _body: IncomingBody,
    _response: IncomingResponse,
    /// Bytes that may still be read.
    left: usize,
}

impl<'a> WasiTransport<'a> {
    /// Nothing on the wire yet; the call begins now.
    pub(crate) fn new(max_response_bytes: usize, max_draining: usize) -> Self {
        Self { began: Instant::now(), max_response_bytes, max_draining, exchanges: Vec::new(), draining: VecDeque::new() }
    }

    /// Gives responses that are good already a moment to end.
    pub(crate) fn finish(mut self) {
        let until = self.began.elapsed() + LINGER;
        while !self.draining.is_empty() && self.began.elapsed() < until {
            self.poll(until);
            self.drain();
        }
    }

    /// Waits until something can go on, or until the time.
    fn poll(&self, until: Duration) {
        let left = until.saturating_sub(self.began.elapsed());
        let timer = subscribe_duration(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        let mut pollables = vec![&timer];
        for exchange in &self.exchanges {
            pollables.extend(exchange.sending.as_ref().map(|sending| &sending.pollable));
            match &exchange.receiving {
                Receiving::Head(waiting) => pollables.push(&waiting.pollable),
                Receiving::Body { reading, .. } => pollables.push(&reading.pollable),
                Receiving::Ended(_) | Receiving::Over => {}
            }
        }
        pollables.extend(self.draining.iter().map(|reading| &reading.pollable));
        poll(&pollables);
    }

    fn drain(&mut self) {
        self.draining.retain_mut(|reading| !reading.advance(&mut Vec::new()));
    }
}

impl<'a> crate::publish::Transport<'a> for WasiTransport<'a> {
    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn start(&mut self, index: usize, request: Request<'a>, timeout: Duration) -> Result<(), Fault> {
        self.exchanges.push(Exchange::start(index, request, timeout)?);
        Ok(())
    }

    fn wait(&mut self, until: Duration) -> Vec<(usize, Result<Answer, Fault>)> {
        self.poll(until);
        self.drain();
        let mut ended = Vec::new();
        let (limit, draining) = (self.max_response_bytes, &mut self.draining);
        self.exchanges.retain_mut(|exchange| match exchange.advance(limit, draining) {
            None => true,
            Some(result) => {
                ended.push((exchange.index, result));
                false
            }
        });
        while self.draining.len() > self.max_draining {
            self.draining.pop_front();
        }
        ended
    }

    fn cancel(&mut self, index: usize) -> Option<Answer> {
        let position = self.exchanges.iter().position(|exchange| exchange.index == index)?;
        match self.exchanges.swap_remove(position).receiving {
            // A good answer that is still here has not been given the whole request: it may not count.
            Receiving::Body { answer, .. } | Receiving::Ended(answer) if !is_success(&answer) => Some(answer),
            _ => None,
        }
    }
}

impl<'a> Exchange<'a> {
    fn start(index: usize, request: Request<'a>, timeout: Duration) -> Result<Self, Fault> {
        let unsendable = |what: &str| Fault::Unsendable(format!("the host does not take {what}"));
        if header::are_too_large(request.headers.iter().map(|(name, value)| (name, value))) {
            return Err(Fault::TooLarge(format!("the headers are over {} KiB", header::MAX_BYTES >> 10)));
        }
        let headers: Vec<(String, Vec<u8>)> =
            request.headers.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect();
        let fields = Fields::from_list(&headers).map_err(|error| unsendable(&format!("a header ({error})")))?;
        let outgoing = OutgoingRequest::new(fields);
        outgoing.set_method(&method(&request.method)).map_err(|()| unsendable("the method"))?;
        outgoing.set_scheme(Some(if request.secure { &Scheme::Https } else { &Scheme::Http })).map_err(|()| unsendable("the scheme"))?;
        outgoing.set_authority(Some(&request.authority)).map_err(|()| unsendable("the host name"))?;
        outgoing.set_path_with_query(Some(&request.target)).map_err(|()| unsendable("the path"))?;

        // The host gives up no later than we do. Hosts that do not know one of these times refuse it, which does no harm.
        let options = RequestOptions::new();
        let limit = u64::try_from(timeout.as_nanos()).ok();
        let _unsupported = options.set_connect_timeout(limit).and(options.set_first_byte_timeout(limit));

        let mut sending = None;
        if !request.body.is_empty() {
            let body = outgoing.body().map_err(|()| unsendable("a body"))?;
            let stream = body.write().map_err(|()| unsendable("a body"))?;
            sending = Some(Sending { pollable: stream.subscribe(), stream, body, bytes: request.body, sent: 0 });
        }
        let future = handle(outgoing, Some(options)).map_err(fault)?;
        let receiving = Receiving::Head(Waiting { pollable: future.subscribe(), future });
        let mut exchange = Self { index, sending, receiving };
        exchange.send();
        Ok(exchange)
    }

    /// Writes what the host takes now.
    fn send(&mut self) {
        // Whatever goes wrong with the body shows in the response, or in the error that takes its place.
        if let Some(sending) = self.sending.take() {
            self.sending = sending.advance();
        }
    }

    /// Goes on as far as it can without waiting: the result, once there is one.
    fn advance(&mut self, limit: usize, draining: &mut VecDeque<Reading>) -> Option<Result<Answer, Fault>> {
        self.send();
        if let Receiving::Head(waiting) = &self.receiving {
            match waiting.future.get()? {
                Ok(Ok(response)) => self.receiving = Receiving::of(response, limit),
                Ok(Err(error)) => return Some(Err(fault(error))),
                Err(()) => return Some(Err(Fault::Misconfigured("the host gave the response away twice".into()))),
            }
        }
        match std::mem::replace(&mut self.receiving, Receiving::Over) {
            Receiving::Body { mut answer, mut reading } => {
                let ended = reading.advance(&mut answer.body);
                // A refusal counts although the rest of the request was never read; for a good answer, all of it must go out.
                // A good answer counts as soon as its head is there.
                match (is_success(&answer), self.sending.is_none()) {
                    (false, _) if ended => Some(Ok(answer)),
                    (true, true) => {
                        if !ended {
                            draining.push_back(reading);
                        }
                        Some(Ok(answer))
                    }
                    (true, false) if ended => {
                        self.receiving = Receiving::Ended(answer);
                        None
                    }
                    _ => {
                        self.receiving = Receiving::Body { answer, reading };
                        None
                    }
                }
            }
            Receiving::Ended(answer) if self.sending.is_none() || !is_success(&answer) => Some(Ok(answer)),
            other => {
                self.receiving = other;
                None
            }
        }
    }
}

impl<'a> Sending<'a> {
    /// Itself, if there is more to be written; none: written, or the other side does not read any more.
    fn advance(mut self) -> Option<Self> {
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let room = match self.stream.check_write() {
                Ok(0) => return Some(self),
                Ok(room) => usize::try_from(room).unwrap_or(usize::MAX).min(rest.len()),
                Err(_) => return None,
            };
            if self.stream.write(rest.get(..room).unwrap_or(rest)).is_err() {
                return None;
            }
            self.sent += room;
        }
        let Self { pollable, stream, body, .. } = self;
        drop(pollable);
        drop(stream);
        // An error here (fewer bytes than announced) shows in the response as well.
        OutgoingBody::finish(body, None).ok();
        None
    }
}

impl Receiving {
    fn of(response: IncomingResponse, limit: usize) -> Self {
        let mut answer = Answer { status: response.status(), headers: Vec::new(), body: Vec::new() };
        if !is_success(&answer) {
            answer.headers = response.headers().entries();
        }
        let Ok(body) = response.consume() else { return Self::Ended(answer) };
        let Ok(stream) = body.stream() else { return Self::Ended(answer) };
        let reading = Reading { pollable: stream.subscribe(), stream, _body: body, _response: response, left: limit };
        Self::Body { answer, reading }
    }
}

impl Reading {
    /// Reads what is there, onto `bytes`; whether that was all: the end, an error, or the limit.
    fn advance(&mut self, bytes: &mut Vec<u8>) -> bool {
        while self.left > 0 {
            let most = u64::try_from(self.left.min(READ_BYTES)).unwrap_or(u64::MAX);
            match self.stream.read(most) {
                Ok(read) if read.is_empty() => return false,
                Ok(read) => {
                    self.left = self.left.saturating_sub(read.len());
                    bytes.extend_from_slice(&read);
                }
                Err(StreamError::Closed | StreamError::LastOperationFailed(_)) => return true,
            }
        }
        true
    }
}

fn is_success(answer: &Answer) -> bool {
    (200..300).contains(&answer.status)
}

fn method(method: &http::Method) -> Method {
    match method.as_str() {
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "PATCH" => Method::Patch,
        "DELETE" => Method::Delete,
        other => Method::Other(other.to_owned()),
    }
}

fn fault(error: ErrorCode) -> Fault {
    match error {
        ErrorCode::HttpRequestDenied | ErrorCode::DestinationIpProhibited => Fault::Denied,
        ErrorCode::ConfigurationError => Fault::Misconfigured("the host cannot do it as it is configured".into()),
        ErrorCode::DnsTimeout => Fault::Timeout("the name was not resolved in time".into()),
        ErrorCode::ConnectionTimeout => Fault::Timeout("no connection in time".into()),
        ErrorCode::ConnectionReadTimeout | ErrorCode::ConnectionWriteTimeout | ErrorCode::HttpResponseTimeout => {
            Fault::Timeout("no answer in time".into())
        }
        ErrorCode::DnsError(payload) => Fault::Unresolved(payload.rcode),
        ErrorCode::DestinationNotFound => Fault::Network("no such host".into()),
        ErrorCode::DestinationUnavailable | ErrorCode::DestinationIpUnroutable => Fault::Network("not reachable".into()),
        ErrorCode::ConnectionRefused => Fault::Network("connection refused".into()),
        ErrorCode::ConnectionTerminated | ErrorCode::HttpResponseIncomplete => Fault::Network("the connection broke off".into()),
        ErrorCode::ConnectionLimitReached => Fault::Network("too many connections".into()),
        ErrorCode::TlsCertificateError => {
            Fault::Network("its TLS certificate is not trusted; `tls_ca_file` names further authorities".into())
        }
        ErrorCode::TlsProtocolError | ErrorCode::TlsAlertReceived(_) => Fault::Network(format!("TLS failed ({error:?})")),
        ErrorCode::HttpRequestBodySize(_) => Fault::TooLarge("the body is over a limit of the host".into()),
        ErrorCode::HttpRequestUriTooLong => Fault::TooLarge("the URL is over a limit of the host".into()),
        ErrorCode::HttpRequestHeaderSectionSize(_) | ErrorCode::HttpRequestHeaderSize(_) => {
            Fault::TooLarge("the headers are over a limit of the host".into())
        }
        ErrorCode::HttpRequestLengthRequired
        | ErrorCode::HttpRequestMethodInvalid
        | ErrorCode::HttpRequestUriInvalid
        | ErrorCode::HttpRequestTrailerSectionSize(_)
        | ErrorCode::HttpRequestTrailerSize(_) => Fault::Unsendable(format!("the host does not take the request ({error:?})")),
        ErrorCode::HttpResponseHeaderSectionSize(_)
        | ErrorCode::HttpResponseHeaderSize(_)
        | ErrorCode::HttpResponseBodySize(_)
        | ErrorCode::HttpResponseTrailerSectionSize(_)
        | ErrorCode::HttpResponseTrailerSize(_)
        | ErrorCode::HttpResponseTransferCoding(_)
        | ErrorCode::HttpResponseContentCoding(_)
        | ErrorCode::HttpUpgradeFailed
        | ErrorCode::HttpProtocolError
        | ErrorCode::LoopDetected => Fault::BadResponse(format!("the answer is not usable ({error:?})")),
        ErrorCode::InternalError(text) => Fault::Failed(text),
    }
}
