//! The brokers of a cluster: what is known of them, and the connections to them.

use crate::address::Address;
use crate::connection::{Client, Connection, ConnectionError, Spoken};
use crate::errors;
use crate::limits::Limits;
use crate::metadata::Metadata;
use crate::transport::Connector;
use kafka_protocol::messages::{InitProducerIdRequest, MetadataRequest, TopicName, metadata_request::MetadataRequestTopic};
use kafka_protocol::protocol::StrBytes;
use outhaul_sdk::{Failure, FailureCode};
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// Longest attempt to connect and log in. A machine that is gone does not even refuse, and meanwhile all others wait.
const MAX_CONNECT: Duration = Duration::from_secs(3);

/// After an attempt to connect that cost time, none is made for so many times as long, within [`MAX_REST`]: a broker that is gone
/// must not take up call after call of those that are not, and one that refuses at once may be back in a moment.
const REST_FACTOR: u32 = 10;
/// Longest rest after such an attempt. Brokers need about as long to start.
const MAX_REST: Duration = Duration::from_secs(5);

/// Why no attempt is made to connect, and until when.
struct Rest {
    until: Instant,
    code: FailureCode,
    text: String,
}

/// See the module.
pub struct Cluster<C: Connector> {
    connector: C,
    bootstrap: Vec<Address>,
    /// What is known.
    pub metadata: Metadata,
    /// What topics take.
    pub limits: Limits,
    resting: HashMap<Address, Rest>,
    connections: HashMap<Address, Connection<C::Transport>>,
}

/// A producer id, and what it is worth: from one cluster, for one producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Producer id.
    pub id: i64,
    /// Its epoch.
    pub epoch: i16,
}

impl<C: Connector> Cluster<C> {
    /// Nothing is known yet but where to ask. `turn` says with which address to begin: instances begin with different ones.
    pub fn new(connector: C, mut bootstrap: Vec<Address>, turn: usize) -> Self {
        let turn = turn.checked_rem(bootstrap.len()).unwrap_or(0);
        bootstrap.rotate_left(turn);
        Self {
            connector,
            bootstrap,
            metadata: Metadata::default(),
            limits: Limits::default(),
            resting: HashMap::new(),
            connections: HashMap::new(),
        }
    }

    /// Closes connections that should not be used for another call.
    pub fn close_stale(&mut self) {
        let now = Instant::now();
        self.connections.retain(|_, connection| connection.is_fresh(now));
    }

    /// Closes a connection, if there is one.
    pub fn close(&mut self, address: &Address) {
        self.connections.remove(address);
    }

    /// Whether there is a connection already.
    #[must_use]
    pub fn is_connected(&self, address: &Address) -> bool {
        self.connections.contains_key(address)
    }

    /// The open connection to an address.
    pub fn open_connection(&mut self, address: &Address) -> Option<&mut Connection<C::Transport>> {
        self.connections.get_mut(address)
    }

    /// The connection to an address, opened if need be.
    ///
    /// # Errors
    /// It cannot be had.
    pub fn connection(
        &mut self,
        address: &Address,
        client: &Client,
        deadline: Instant,
    ) -> Result<&mut Connection<C::Transport>, ConnectionError> {
        if !self.connections.contains_key(address) {
            let now = Instant::now();
            if let Some(rest) = self.resting.get(address).filter(|rest| now < rest.until) {
                return Err(ConnectionError::Resting { code: rest.code.clone(), text: rest.text.clone() });
            }
            let connection = self.connect(address, client, deadline).inspect_err(|error| self.rest(address, now, error))?;
            self.resting.remove(address);
            self.connections.insert(address.clone(), connection);
        }
        self.connections.get_mut(address).ok_or(ConnectionError::Closed)
    }

    fn connect(&self, address: &Address, client: &Client, deadline: Instant) -> Result<Connection<C::Transport>, ConnectionError> {
        let now = Instant::now();
        let patience = MAX_CONNECT.min(deadline.saturating_duration_since(now) / 2);
        let deadline = now.checked_add(patience).unwrap_or(deadline);
        let transport = self.connector.connect(&address.host, address.port, deadline).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => ConnectionError::Denied,
            _ => ConnectionError::Connect(error),
        })?;
        Connection::open(transport, client, deadline)
    }

    /// Leaves a broker alone that has kept us waiting since `began` for nothing.
    fn rest(&mut self, address: &Address, began: Instant, error: &ConnectionError) {
        if !matches!(error, ConnectionError::Connect(_) | ConnectionError::Timeout(_)) {
            return;
        }
        let now = Instant::now();
        self.resting.retain(|_, rest| now < rest.until);
        let pause = MAX_REST.min(now.duration_since(began).saturating_mul(REST_FACTOR));
        if let Some(until) = now.checked_add(pause) {
            self.resting.insert(address.clone(), Rest { until, code: error.code(), text: error.to_string() });
        }
    }

    /// Asks any broker: those with a connection first, then those that are known, then those that are configured.
    ///
    /// # Errors
    /// None of them answered: what the last one said.
    fn ask<R: Spoken>(&mut self, request: &R, client: &Client, deadline: Instant) -> Result<R::Response, Failure> {
        let mut candidates: Vec<Address> = self.connections.keys().cloned().collect();
        candidates.extend(self.metadata.brokers().chain(&self.bootstrap).cloned());
        let mut tried = HashSet::new();
        candidates.retain(|address| tried.insert(address.clone()));
        let mut last = Failure::of(FailureCode::Timeout, "no time was left to ask a broker");
        for address in candidates {
            if Instant::now() >= deadline {
                break;
            }
            let answer = self.connection(&address, client, deadline).and_then(|connection| connection.call(request, deadline));
            match answer {
                Ok(response) => return Ok(response),
                Err(error) => {
                    self.close(&address);
                    last = error.failure(&address.to_string());
                    // The others would say the same, and each refused login counts against the account.
                    if matches!(error, ConnectionError::Login { .. }) {
                        break;
                    }
                }
            }
        }
        Err(last)
    }

    /// Asks where these topics are, and takes the answer in; returns those of which there was nothing to be had but an error. The
    /// broker creates topics that do not exist, if it does that at all.
    ///
    /// # Errors
    /// No broker answered.
    pub fn find<'t>(
        &mut self,
        topics: impl Iterator<Item = &'t str>,
        client: &Client,
        deadline: Instant,
    ) -> Result<Vec<(String, i16)>, Failure> {
        let topics = topics
            .map(|topic| MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_string(topic.to_owned())))))
            .collect();
        let request = MetadataRequest::default().with_topics(Some(topics)).with_allow_auto_topic_creation(true);
        let response = self.ask(&request, client, deadline)?;
        Ok(self.metadata.learn(response, Instant::now()))
    }

    /// A producer id that nobody has used.
    ///
    /// # Errors
    /// No broker answered, or the one that did refused.
    pub fn identify(&mut self, client: &Client, deadline: Instant) -> Result<Identity, Failure> {
        let response = self.ask(&InitProducerIdRequest::default().with_transactional_id(None), client, deadline)?;
        if response.error_code != 0 {
            let reason = errors::reason(response.error_code);
            return Err(Failure::of(reason.code.clone(), format!("no producer id: {reason}")));
        }
        Ok(Identity { id: response.producer_id.0, epoch: response.producer_epoch })
    }
}
