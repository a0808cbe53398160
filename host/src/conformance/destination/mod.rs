//! Where a publisher under test sends to: a destination that answers by a script and remembers what arrived.
//!
//! HTTP is built in ([`http`]). Any other protocol is a program that is started and spoken to in JSON lines ([`command`]).

pub(crate) mod command;
mod cut;
pub(crate) mod http;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::TcpSocket;

/// In the configuration of a publisher: where the destination is.
pub(crate) const PLACEHOLDER: &str = "{destination}";

/// Begins every id that the kit makes up, and every payload: so that an attempt is recognised wherever the message's id or payload is.
const ID_MARK: &str = "kit-";
const PAYLOAD_MARK: &str = "tok-";
/// Hexadecimal digits after the mark: as many messages as any run needs, never one the beginning of another.
const DIGITS: usize = 12;

/// What a destination does with an attempt at a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Takes it.
    Accept,
    /// Cannot take anything now.
    Unavailable,
    /// Wants fewer requests.
    Throttled {
        /// Not before so many milliseconds.
        retry_after_ms: u64,
    },
    /// Will never take this message.
    Invalid,
    /// Will never take so large a message.
    TooLarge,
    /// Is gone for good.
    Gone,
    /// Does not know who this is.
    Unauthorized,
    /// Takes it, after so many milliseconds.
    Slow {
        /// How many.
        ms: u64,
    },
    /// Says nothing, and keeps the connection open.
    Silent,
    /// Begins to answer, and breaks the connection.
    Broken,
    /// Answers with this status of HTTP.
    Status {
        /// The status.
        status: u16,
        /// Headers besides; `{destination}` in a value is where the destination is.
        #[serde(default)]
        headers: Vec<(String, String)>,
    },
}

impl Answer {
    /// A status without headers.
    pub(crate) fn status(status: u16) -> Self {
        Self::Status { status, headers: Vec::new() }
    }

    /// The word for it, by which a destination says that it can do so.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Unavailable => "unavailable",
            Self::Throttled { .. } => "throttled",
            Self::Invalid => "invalid",
            Self::TooLarge => "too_large",
            Self::Gone => "gone",
            Self::Unauthorized => "unauthorized",
            Self::Slow { .. } => "slow",
            Self::Silent => "silent",
            Self::Broken => "broken",
            Self::Status { .. } => "status",
        }
    }
}

/// What becomes of attempts: by message id, the answers to its first attempt, its second, and so on; the last one stays. Any other
/// message is accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Script(HashMap<String, Vec<Answer>>);

impl Script {
    /// Everything is accepted.
    pub(crate) fn accepting() -> Self {
        Self::default()
    }

    /// Besides, every attempt at this message gets this answer.
    pub(crate) fn always(self, id: &str, answer: Answer) -> Self {
        self.in_turn(id, vec![answer])
    }

    /// Besides, attempts at this message get these answers in turn.
    pub(crate) fn in_turn(mut self, id: &str, answers: Vec<Answer>) -> Self {
        self.0.insert(id.to_owned(), answers);
        self
    }

    /// The answer to attempt `earlier`, from 0, at a message.
    pub(crate) fn answer(&self, id: Option<&str>, earlier: usize) -> Answer {
        let answers = id.and_then(|id| self.0.get(id));
        let answer = answers.and_then(|answers| answers.get(earlier).or_else(|| answers.last()));
        answer.cloned().unwrap_or(Answer::Accept)
    }

    /// The words of all its answers.
    pub(crate) fn words(&self) -> BTreeSet<&'static str> {
        self.0.values().flatten().map(Answer::word).collect()
    }
}

/// Bytes that travel as a text where they are one, and else as `{"base64": "..."}`.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(&self.0) {
            Ok(text) if self.0.len() <= 80 => write!(out, "{text:?}"),
            _ => write!(out, "{} bytes", self.0.len()),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenBytes {
    Text(String),
    Base64 { base64: String },
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = match std::str::from_utf8(&self.0) {
            Ok(text) => WrittenBytes::Text(text.to_owned()),
            Err(_) => WrittenBytes::Base64 { base64: STANDARD.encode(&self.0) },
        };
        written.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match WrittenBytes::deserialize(deserializer)? {
            WrittenBytes::Text(text) => Ok(Self(text.into_bytes())),
            WrittenBytes::Base64 { base64 } => STANDARD.decode(base64).map(Self).map_err(serde::de::Error::custom),
        }
    }
}

/// An attempt that arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Received {
    /// The message, if it is one of the kit's.
    pub(crate) id: Option<String>,
    /// Whether its id came with it, for receivers to deduplicate by.
    pub(crate) carries_id: bool,
    /// Its payload; none: the protocol says that there is none.
    pub(crate) payload: Option<Bytes>,
    /// Headers in their order.
    #[serde(default)]
    pub(crate) headers: Vec<(String, Bytes)>,
    /// What else tells one message from another, such as a method.
    #[serde(default)]
    pub(crate) how: String,
    /// Whether it was accepted.
    pub(crate) accepted: bool,
}

/// What messages look like in a protocol, as far as protocols differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ability {
    /// Headers have any bytes as values.
    BinaryHeaders,
    /// A payload may be none.
    Tombstones,
}

/// A destination cannot be had, or does not do what it said that it does.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DestinationError {
    /// No address can be had.
    #[error("no address for the destination: {0}")]
    Address(std::io::Error),
    /// Its program cannot be started.
    #[error("--destination-command {command:?} cannot be started: {error}")]
    Start {
        /// The command.
        command: String,
        /// Why.
        error: std::io::Error,
    },
    /// Its program has ended, or does not answer.
    #[error("--destination-command {command:?} {what}")]
    Silent {
        /// The command.
        command: String,
        /// How.
        what: String,
    },
}

/// A scripted destination.
#[async_trait]
pub(crate) trait Destination: Send + Sync {
    /// Where it is, in the place of [`PLACEHOLDER`].
    fn address(&self) -> &str;
    /// Where nobody is, in the same form.
    fn nowhere(&self) -> &str;
    /// Whether it can answer so.
    fn answers(&self, word: &str) -> bool;
    /// Whether its protocol can show this.
    fn shows(&self, ability: Ability) -> bool;
    /// Answers by this script from now on, and forgets what has arrived.
    async fn script(&self, script: &Script) -> Result<(), DestinationError>;
    /// What has arrived since the script was set, in its order.
    async fn received(&self) -> Result<Vec<Received>, DestinationError>;
}

/// An id that the kit makes up: `run` tells runs apart, `number` messages.
pub(crate) fn id(run: u32, number: u16) -> String {
    format!("{ID_MARK}{run:08x}{number:04x}")
}

/// The beginning of the payload of a message with this id. Not the id itself: whether that arrives is another question.
pub(crate) fn payload_of(id: &str) -> String {
    format!("{PAYLOAD_MARK}{}", id.strip_prefix(ID_MARK).unwrap_or(id))
}

/// The id that a text begins with where it says one, or the payload of its message.
fn told_in(bytes: &[u8], mark: &str) -> Option<String> {
    let (mark, length) = (mark.as_bytes(), mark.len().checked_add(DIGITS)?);
    let found = bytes.windows(length).find(|window| {
        let digits = window.strip_prefix(mark);
        digits.is_some_and(|digits| digits.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte)))
    })?;
    let digits = std::str::from_utf8(found.strip_prefix(mark)?).ok()?;
    Some(format!("{ID_MARK}{digits}"))
}

/// The id in some bytes.
pub(crate) fn id_in(bytes: &[u8]) -> Option<String> {
    told_in(bytes, ID_MARK)
}

/// The id of the message whose payload is in some bytes.
pub(crate) fn payload_in(bytes: &[u8]) -> Option<String> {
    told_in(bytes, PAYLOAD_MARK)
}

/// An address in its parts: `http://127.0.0.1:9092/in`, or no more than `127.0.0.1:9092`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    /// With `://`; empty if there is none.
    scheme: &'a str,
    /// What may be granted: host and port.
    pub(crate) authority: &'a str,
    /// The path and what follows; empty if there is none.
    rest: &'a str,
}

impl<'a> Place<'a> {
    pub(crate) fn of(address: &'a str) -> Self {
        let begins = address.find("://").map_or(0, |at| at.saturating_add(3));
        let (scheme, location) = address.split_at(begins);
        let ends = location.find(['/', '?', '#']).unwrap_or(location.len());
        let (authority, rest) = location.split_at(ends);
        Self { scheme, authority, rest }
    }

    /// The same elsewhere.
    fn moved_to(&self, authority: SocketAddr) -> String {
        format!("{}{authority}{}", self.scheme, self.rest)
    }
}

/// An address of this machine where nobody listens, as long as it is held: bound, so that nobody else gets it, and no more than that.
pub(crate) struct Nowhere {
    address: SocketAddr,
    _bound: TcpSocket,
}

impl Nowhere {
    fn hold() -> Result<Self, DestinationError> {
        let held = || {
            let bound = TcpSocket::new_v4()?;
            bound.bind((Ipv4Addr::LOCALHOST, 0).into())?;
            Ok(Self { address: bound.local_addr()?, _bound: bound })
        };
        held().map_err(DestinationError::Address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_answer_stays_and_others_are_accepted() {
        let script = Script::accepting().in_turn("a", vec![Answer::Unavailable, Answer::Invalid]).always("b", Answer::status(302));
        let answers: Vec<Answer> = (0..3).map(|earlier| script.answer(Some("a"), earlier)).collect();
        assert_eq!(answers, [Answer::Unavailable, Answer::Invalid, Answer::Invalid]);
        assert_eq!((script.answer(Some("c"), 0), script.answer(None, 9)), (Answer::Accept, Answer::Accept));
        assert_eq!(script.words(), BTreeSet::from(["invalid", "status", "unavailable"]));
        let written = serde_json::to_string(&script).unwrap();
        assert_eq!(serde_json::from_str::<Script>(&written).unwrap(), script);
    }

    #[test]
    fn nowhere_has_the_form_of_the_address() {
        let elsewhere = SocketAddr::from(([127, 0, 0, 1], 9));
        for (address, authority, moved) in [
            ("127.0.0.1:7", "127.0.0.1:7", "127.0.0.1:9"),
            ("http://127.0.0.1:7", "127.0.0.1:7", "http://127.0.0.1:9"),
            ("http://localhost:7/in?a=//b", "localhost:7", "http://127.0.0.1:9/in?a=//b"),
            ("amqp://[::1]:7", "[::1]:7", "amqp://127.0.0.1:9"),
        ] {
            let place = Place::of(address);
            assert_eq!((place.authority, place.moved_to(elsewhere)), (authority, moved.to_owned()), "{address}");
        }
    }

    proptest! {
        #[test]
        fn a_message_is_recognised_wherever_it_is(run: u32, number: u16, before in prop::collection::vec(any::<u8>(), 0..30), after in "[g-z]{0,9}") {
            let id = id(run, number);
            let around = |text: &str| [&before[..], text.as_bytes(), after.as_bytes()].concat();
            prop_assert_eq!(id_in(&around(&id)), Some(id.clone()));
            prop_assert_eq!(payload_in(&around(&payload_of(&id))), Some(id.clone()));
            prop_assert_eq!(id_in(&around(&payload_of(&id))), None);
        }

        #[test]
        fn bytes_read_back(bytes in prop::collection::vec(any::<u8>(), 0..30)) {
            let written = serde_json::to_string(&Bytes(bytes.clone())).unwrap();
            prop_assert_eq!(serde_json::from_str::<Bytes>(&written).unwrap().0, bytes);
        }
    }
}
