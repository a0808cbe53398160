//! One connection to a broker: which versions it speaks, logging in, and requests whose answers come in their order.

use crate::errors;
use crate::sasl::{Credentials, Hash, Mechanism, SaslError, Scram};
use crate::transport::Transport;
use crate::wire::{self, WireError};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, InitProducerIdRequest, MetadataRequest, ProduceRequest, SaslAuthenticateRequest,
    SaslHandshakeRequest,
};
use kafka_protocol::protocol::{Request, StrBytes, VersionRange};
use outhaul_sdk::{Failure, FailureCode};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};
use thiserror::Error;

/// A connection that was idle for longer is opened anew: brokers close it after ten minutes (`connections.max.idle.ms`), and a
/// request that meets that moment would have an unknown fate. The Java client uses the same nine.
const MAX_IDLE: Duration = Duration::from_secs(9 * 60);

/// Bytes taken from the transport at once.
const READ_BYTES: usize = 16 << 10;

/// `UNSUPPORTED_VERSION`.
const UNSUPPORTED_VERSION: i16 = 35;

/// A request that this publisher sends, and the versions of it that it speaks.
pub trait Spoken: Request {
    /// From, to.
    const SPOKEN: VersionRange;
}

macro_rules! spoken {
    ($($request:ty: $min:literal..=$max:literal;)*) => {
        $(impl Spoken for $request { const SPOKEN: VersionRange = VersionRange { min: $min, max: $max }; })*
    };
}

spoken! {
    // 3: headers and idempotence (Kafka 0.11). 13 names topics by id instead of by name.
    ProduceRequest: 3..=12;
    // 4: says whether a topic may be created.
    MetadataRequest: 4..=12;
    InitProducerIdRequest: 0..=4;
    // 1: the login itself is framed as requests (KIP-152).
    SaslHandshakeRequest: 1..=1;
    SaslAuthenticateRequest: 0..=2;
}

/// Why a broker cannot be talked to. What is worth saying about it stands in the text; where, is said by whoever reports it.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The sandbox does not allow it.
    #[error("the host does not allow this connection; its log has the line to add to `allow_hosts` or `allow_networks`")]
    Denied,
    /// Never connected.
    #[error("no connection: {0}")]
    Connect(io::Error),
    /// Not tried: the attempt before was in vain, and not long ago.
    #[error("{text} (and it was too early to try again)")]
    Resting {
        /// What that attempt came to.
        code: FailureCode,
        /// The same, in words.
        text: String,
    },
    /// Broke off.
    #[error("the connection was lost: {0}")]
    Lost(io::Error),
    /// Closed by the broker.
    #[error("the broker closed the connection")]
    Closed,
    /// Closed by the broker before it had said more than which versions it speaks.
    #[error("the broker closed the connection at once: it may expect TLS (`tls`) or a login (`sasl`)")]
    ClosedAtOnce,
    /// No answer in time.
    #[error("no answer to the {0} request in time")]
    Timeout(&'static str),
    /// Not Kafka, or broken.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Too old or too new.
    #[error("the broker speaks no version of the {0} request that this publisher speaks")]
    Unsupported(&'static str),
    /// A request was refused.
    #[error("the broker refused the {0} request: {1}")]
    Refused(&'static str, errors::Reason),
    /// Not a mechanism of this listener.
    #[error("the broker does not offer {wanted} at this listener; it offers {offered} (`sasl.mechanism`)")]
    Mechanism {
        /// Configured.
        wanted: &'static str,
        /// By the broker.
        offered: String,
    },
    /// Wrong name or password.
    #[error("the broker refused the login of `{username}`: {text}")]
    Login {
        /// As configured.
        username: String,
        /// The broker's words.
        text: String,
    },
    /// The login cannot be trusted.
    #[error(transparent)]
    Sasl(#[from] SaslError),
    /// No randomness for the login.
    #[error("the system has no randomness for a login: {0}")]
    Randomness(getrandom::Error),
    /// The password cannot be had.
    #[error("`sasl.password`: there is no secret `{0}`: add [secrets.{0}] and `allow_secrets = [\"{0}\"]`, and set its value")]
    Secret(String),
}

impl ConnectionError {
    /// What it means for the messages that wait for this broker.
    #[must_use]
    pub fn failure(&self, broker: &str) -> Failure {
        Failure::of(self.code(), format!("{broker}: {self}"))
    }

    /// Whose fault it is.
    #[must_use]
    pub fn code(&self) -> FailureCode {
        match self {
            Self::Denied => FailureCode::InvalidConfiguration,
            Self::Resting { code, .. } => code.clone(),
            Self::Connect(error) if error.kind() == ErrorKind::TimedOut => FailureCode::Timeout,
            Self::Connect(_) | Self::Lost(_) | Self::Closed | Self::ClosedAtOnce => FailureCode::Network,
            Self::Timeout(_) => FailureCode::Timeout,
            Self::Wire(_) | Self::Unsupported(_) => FailureCode::Other("bad-response".into()),
            Self::Refused(_, reason) => reason.code.clone(),
            Self::Mechanism { .. } => FailureCode::InvalidConfiguration,
            Self::Login { .. } | Self::Sasl(_) | Self::Randomness(_) | Self::Secret(_) => FailureCode::Unauthorized,
        }
    }
}

/// Who we are, on every connection.
#[derive(Debug, Clone)]
pub struct Client {
    /// Named in the broker's logs, metrics and quotas.
    pub client_id: StrBytes,
    /// How to log in; none: not at all.
    pub credentials: Option<Credentials>,
}

/// An open connection, logged in.
#[derive(Debug)]
pub struct Connection<T> {
    transport: T,
    client_id: StrBytes,
    /// From, to, by API key.
    versions: BTreeMap<i16, VersionRange>,
    next_correlation_id: i32,
    /// Correlation id and version of each request without an answer.
    waiting: VecDeque<(i32, i16)>,
    received: BytesMut,
    scratch: Vec<u8>,
    /// Answers so far.
    heard: u64,
    used: Instant,
    /// The login is valid until then.
    valid_until: Option<Instant>,
}

impl<T: Transport> Connection<T> {
    /// Asks for the versions and logs in.
    ///
    /// # Errors
    /// The broker cannot be talked to, or refuses the login.
    pub fn open(transport: T, client: &Client, deadline: Instant) -> Result<Self, ConnectionError> {
        let mut connection = Self {
            transport,
            client_id: client.client_id.clone(),
            versions: BTreeMap::new(),
            next_correlation_id: 0,
            waiting: VecDeque::new(),
            received: BytesMut::new(),
            scratch: vec![0; READ_BYTES],
            heard: 0,
            used: Instant::now(),
            valid_until: None,
        };
        connection.learn_versions(deadline)?;
        if let Some(credentials) = &client.credentials {
            connection.log_in(credentials, deadline)?;
        }
        Ok(connection)
    }

    /// Whether it can be used for a new call.
    #[must_use]
    pub fn is_fresh(&self, now: Instant) -> bool {
        self.waiting.is_empty() && now.duration_since(self.used) < MAX_IDLE && self.valid_until.is_none_or(|until| now < until)
    }

    /// Requests without an answer.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.waiting.len()
    }

    /// Sends a request; its answer is read with [`Connection::poll`].
    ///
    /// # Errors
    /// The connection is of no more use.
    pub fn start<R: Spoken>(&mut self, request: &R, deadline: Instant) -> Result<(), ConnectionError> {
        let version = self.version_of::<R>()?;
        self.start_version(request, version, deadline)
    }

    /// The answer to the oldest request, if it comes until `until`.
    ///
    /// # Errors
    /// The connection is of no more use.
    pub fn poll<R: Request>(&mut self, until: Instant) -> Result<Option<R::Response>, ConnectionError> {
        let Some(frame) = self.poll_frame(until)? else { return Ok(None) };
        let Some((correlation_id, version)) = self.waiting.pop_front() else { return Ok(None) };
        Ok(Some(wire::decode::<R>(frame, version, correlation_id)?))
    }

    /// Sends a request and waits for its answer. Nothing else may be outstanding.
    ///
    /// # Errors
    /// The connection is of no more use.
    pub fn call<R: Spoken>(&mut self, request: &R, deadline: Instant) -> Result<R::Response, ConnectionError> {
        self.start(request, deadline)?;
        self.poll::<R>(deadline)?.ok_or(ConnectionError::Timeout(name_of::<R>()))
    }

    /// The version in which a request goes to this broker.
    ///
    /// # Errors
    /// There is none that both sides speak.
    pub fn version_of<R: Spoken>(&self) -> Result<i16, ConnectionError> {
        let theirs = self.versions.get(&R::KEY).ok_or(ConnectionError::Unsupported(name_of::<R>()))?;
        let both = theirs.intersect(&R::SPOKEN);
        if both.is_empty() { Err(ConnectionError::Unsupported(name_of::<R>())) } else { Ok(both.max) }
    }

    fn start_version<R: Request>(&mut self, request: &R, version: i16, deadline: Instant) -> Result<(), ConnectionError> {
        let correlation_id = self.next_correlation_id;
        self.next_correlation_id = correlation_id.wrapping_add(1);
        let frame = wire::encode(request, version, correlation_id, &self.client_id)?;
        self.waiting.push_back((correlation_id, version));
        self.transport.send(&frame, deadline).map_err(|error| match error.kind() {
            ErrorKind::TimedOut => ConnectionError::Timeout(name_of::<R>()),
            _ => ConnectionError::Lost(error),
        })
    }

    fn poll_frame(&mut self, until: Instant) -> Result<Option<Bytes>, ConnectionError> {
        loop {
            if let Some(frame) = wire::take_frame(&mut self.received)? {
                self.heard = self.heard.saturating_add(1);
                self.used = Instant::now();
                return Ok(Some(frame));
            }
            match self.transport.receive(&mut self.scratch, until) {
                Ok(0) if self.heard > 1 => return Err(ConnectionError::Closed),
                Ok(0) => return Err(ConnectionError::ClosedAtOnce),
                Ok(count) => self.received.extend_from_slice(self.scratch.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(None),
                Err(error) => return Err(ConnectionError::Lost(error)),
            }
        }
    }

    /// KIP-35 and KIP-511: a broker that does not know our version answers in version 0 with error 35.
    fn learn_versions(&mut self, deadline: Instant) -> Result<(), ConnectionError> {
        const NAME: &str = "ApiVersions";
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str("outhaul"))
            .with_client_software_version(StrBytes::from_static_str(env!("CARGO_PKG_VERSION")));
        let mut response = None;
        for version in [3, 0] {
            self.start_version(&request, version, deadline)?;
            let frame = self.poll_frame(deadline)?.ok_or(ConnectionError::Timeout(NAME))?;
            let Some((correlation_id, _)) = self.waiting.pop_front() else { break };
            // Correlation id, then the error code, whatever the version.
            let unsupported = frame.get(4..6) == Some(&UNSUPPORTED_VERSION.to_be_bytes());
            if unsupported && version > 0 {
                continue;
            }
            response = Some(wire::decode::<ApiVersionsRequest>(frame, version, correlation_id)?);
            break;
        }
        let response: ApiVersionsResponse = response.ok_or(ConnectionError::Unsupported(NAME))?;
        if response.error_code != 0 {
            return Err(ConnectionError::Refused(NAME, errors::reason(response.error_code)));
        }
        self.versions =
            response.api_keys.iter().map(|api| (api.api_key, VersionRange { min: api.min_version, max: api.max_version })).collect();
        Ok(())
    }

    fn log_in(&mut self, credentials: &Credentials, deadline: Instant) -> Result<(), ConnectionError> {
        let name = credentials.mechanism.name();
        let handshake = SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str(name));
        let answer = self.call(&handshake, deadline)?;
        if answer.error_code != 0 {
            let offered = answer.mechanisms.iter().map(|mechanism| mechanism.as_str()).collect::<Vec<_>>().join(", ");
            let offered = if offered.is_empty() { "none".into() } else { offered };
            return Err(ConnectionError::Mechanism { wanted: name, offered });
        }
        let hash = match credentials.mechanism {
            Mechanism::Plain => {
                self.authenticate(credentials, credentials.plain(), deadline)?;
                return Ok(());
            }
            Mechanism::ScramSha256 => Hash::Sha256,
            Mechanism::ScramSha512 => Hash::Sha512,
        };
        let mut nonce = [0; 24];
        getrandom::fill(&mut nonce).map_err(ConnectionError::Randomness)?;
        let mut scram = Scram::new(hash, &credentials.username, &credentials.password, &nonce);
        let server_first = self.authenticate(credentials, scram.first(), deadline)?;
        let proof = scram.proof(&server_first)?;
        let server_final = self.authenticate(credentials, proof, deadline)?;
        Ok(scram.verify(&server_final)?)
    }

    fn authenticate(&mut self, credentials: &Credentials, message: Vec<u8>, deadline: Instant) -> Result<Bytes, ConnectionError> {
        let request = SaslAuthenticateRequest::default().with_auth_bytes(message.into());
        let answer = self.call(&request, deadline)?;
        if answer.error_code != 0 {
            let text = answer.error_message.map_or_else(|| errors::reason(answer.error_code).to_string(), |text| text.to_string());
            return Err(ConnectionError::Login { username: credentials.username.clone(), text });
        }
        // KIP-368: the broker closes connections whose login is older. We open a new one somewhat earlier.
        if let Ok(lifetime) = u64::try_from(answer.session_lifetime_ms)
            && lifetime > 0
        {
            self.valid_until = Instant::now().checked_add(Duration::from_millis(lifetime / 5 * 4));
        }
        Ok(answer.auth_bytes)
    }
}

/// The name of a request, as in the protocol guide.
fn name_of<R: Request>() -> &'static str {
    match ApiKey::try_from(R::KEY) {
        Ok(ApiKey::Produce) => "Produce",
        Ok(ApiKey::Metadata) => "Metadata",
        Ok(ApiKey::InitProducerId) => "InitProducerId",
        Ok(ApiKey::SaslHandshake) => "SaslHandshake",
        Ok(ApiKey::SaslAuthenticate) => "SaslAuthenticate",
        _ => "unknown",
    }
}
