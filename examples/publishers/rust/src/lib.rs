//! Sends each message as one HTTP POST to the URL of its configuration.

mod publisher;
#[cfg(target_arch = "wasm32")]
mod wasi_http;

pub use publisher::{HttpRust, Post};

use outhaul_sdk::{Failure, FailureCode, Message, Outcome, parse_config};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use std::time::Duration;

outhaul_sdk::export_publisher!(HttpRust<wasi_http::WasiHttp>);
outhaul_sdk::manifest!("../manifest.toml");

/// All but letters, digits and `-._~`.
const RESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What belongs to the connection, or is set here: not the message's to say.
const OWN: [&str; 14] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "idempotency-key",
    "outhaul-topic",
    "outhaul-key",
    "outhaul-attempt",
    "outhaul-tombstone",
];

/// Most bytes of a request's headers, each counted as its name, its value and 32 (RFC 9113 section 6.5.2). No server takes more by
/// itself than 1 MiB, most take less, and the host stops a component that hands over too much.
const MAX_HEADER_BYTES: usize = 256 << 10;

/// The adapter's table, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    url: String,
    #[serde(default = "default_timeout_ms")]
    timeout_ms: u64,
}

fn default_timeout_ms() -> u64 {
    10_000
}

/// The configuration, checked.
#[derive(Debug, PartialEq, Eq)]
pub struct Settings {
    /// `https`, not `http`.
    pub secure: bool,
    /// Host and port: names the destination without its path, which may hold a token.
    pub authority: String,
    /// Path and query.
    pub path: String,
    /// Longest request.
    pub timeout: Duration,
}

impl Settings {
    /// Reads the configuration.
    ///
    /// # Errors
    /// `invalid-configuration`, naming the key.
    pub fn parse(config: &str) -> Result<Self, Failure> {
        let config: Config = parse_config(config)?;
        let bad = || Failure::invalid_configuration("`url`: must be an absolute http:// or https:// URL without user name or fragment");
        let (scheme, rest) = config.url.split_once("://").ok_or_else(bad)?;
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let is_odd = |character: char| character == '#' || character.is_whitespace();
        if !["http", "https"].contains(&scheme) || authority.is_empty() || authority.contains('@') || rest.contains(is_odd) {
            return Err(bad());
        }
        if !(1..=600_000).contains(&config.timeout_ms) {
            return Err(Failure::invalid_configuration("`timeout_ms`: must be a whole number of milliseconds from 1 to 600000"));
        }
        Ok(Self {
            secure: scheme == "https",
            authority: authority.to_owned(),
            path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
            timeout: Duration::from_millis(config.timeout_ms),
        })
    }
}

/// The headers of a message's request.
///
/// # Errors
/// They are too large for any server.
pub fn headers(message: Message<'_>) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let encoded = |text: &str| utf8_percent_encode(text, &RESERVED).to_string().into_bytes();
    let mut headers = vec![
        ("idempotency-key".to_owned(), message.id().as_bytes().to_vec()),
        ("outhaul-topic".to_owned(), encoded(message.topic())),
        ("outhaul-attempt".to_owned(), message.attempts().to_string().into_bytes()),
    ];
    headers.extend(message.key().map(|key| ("outhaul-key".to_owned(), encoded(key))));
    if message.payload().is_none() {
        headers.push(("outhaul-tombstone".to_owned(), b"true".to_vec()));
    }
    let is_own = |name: &str| OWN.iter().any(|own| own.eq_ignore_ascii_case(name));
    let given = message.headers().filter(|(name, _)| !is_own(name));
    headers.extend(given.map(|(name, value)| (name.to_owned(), value.to_vec())));
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
        headers.push(("content-type".to_owned(), b"application/octet-stream".to_vec()));
    }
    if headers.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>() > MAX_HEADER_BYTES {
        return Err(Failure::of(FailureCode::TooLarge, format!("the headers are over {} KiB", MAX_HEADER_BYTES >> 10)));
    }
    Ok(headers)
}

/// What is asked of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// The header of that name.
    pub retry_after: Option<Vec<u8>>,
}

/// What an answer means; `retry_after` is the header of that name.
#[must_use]
pub fn outcome(settings: &Settings, status: u16, retry_after: Option<&[u8]>) -> Outcome {
    let failure = |code| Failure::of(code, format!("{} answered {status}", settings.authority));
    let retry = |code| {
        // Seconds; the form with a date is left out here, and counts as absent.
        let seconds = retry_after.and_then(|value| std::str::from_utf8(value).ok()).and_then(|text| text.parse::<u32>().ok());
        Outcome::Retry(Failure { retry_after_ms: seconds.map(|seconds| u64::from(seconds) * 1000), ..failure(code) })
    };
    let code = match status {
        200..=299 => return Outcome::Delivered,
        408 => return retry(FailureCode::Timeout),
        429 => return retry(FailureCode::Throttled),
        425 | 500..=599 => return retry(FailureCode::Unavailable),
        400 | 422 => FailureCode::InvalidMessage,
        401 | 403 | 407 => FailureCode::Unauthorized,
        410 => FailureCode::DestinationGone,
        413 | 414 | 431 => FailureCode::TooLarge,
        _ => FailureCode::Other(format!("http-{status}")),
    };
    Outcome::Reject(failure(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outhaul_sdk::{Batch, NewMessage};

    fn settings() -> Settings {
        Settings::parse(r#"{"url":"https://h.example:444/in?a=1"}"#).unwrap()
    }

    #[test]
    fn a_configuration_is_read() {
        let timeout = Duration::from_secs(10);
        let expected = Settings { secure: true, authority: "h.example:444".into(), path: "/in?a=1".into(), timeout };
        assert_eq!(settings(), expected);
        assert_eq!(Settings::parse(r#"{"url":"http://h?a=1"}"#).unwrap().path, "/?a=1");
    }

    #[test]
    fn errors_name_the_key() {
        for (config, key) in [
            (r#"{"url":"ftp://h/"}"#, "`url`"),
            (r#"{"url":"http://a@h/"}"#, "`url`"),
            (r#"{"url":"http:///x"}"#, "`url`"),
            (r#"{"url":"http://h/#x"}"#, "`url`"),
            (r#"{"url":"http://h/","timeout_ms":0}"#, "`timeout_ms`"),
            (r#"{"url":"http://h/","timeout":1}"#, "`timeout`"),
            (r#"{}"#, "`url`"),
        ] {
            let failure = Settings::parse(config).unwrap_err();
            assert!(failure.detail.contains(key), "{config}: {}", failure.detail);
        }
    }

    #[test]
    fn headers_keep_duplicates_and_leave_out_what_is_not_the_messages_to_say() {
        let mut batch = Batch::new();
        let given: [(&str, &[u8]); 3] = [("x", b"1"), ("X", b"2"), ("Host", b"evil")];
        batch.push(&NewMessage { id: "7", topic: "a b", key: Some("k"), headers: &given, attempts: 2, ..NewMessage::default() });
        let headers = headers(batch.message(0)).unwrap();
        let of = |name: &str| headers.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| &value[..]).collect();
        let is = |name: &str, values: &[&[u8]]| assert_eq!(Vec::<&[u8]>::from_iter::<Vec<&[u8]>>(of(name)), values, "{name}");
        is("x", &[b"1", b"2"]);
        is("host", &[]);
        is("outhaul-topic", &[b"a%20b"]);
        is("outhaul-attempt", &[b"2"]);
        is("outhaul-tombstone", &[b"true"]);
        is("content-type", &[b"application/octet-stream"]);
    }

    #[test]
    fn headers_that_no_server_takes_are_too_large() {
        let made = |bytes: usize| {
            let value = vec![b'x'; bytes];
            let mut batch = Batch::new();
            batch.push(&NewMessage { id: "7", topic: "t", headers: &[("x", &value)], ..NewMessage::default() });
            headers(batch.message(0)).map(|_| ()).map_err(|failure| failure.code)
        };
        assert_eq!((made(200 << 10), made(256 << 10)), (Ok(()), Err(FailureCode::TooLarge)));
    }

    #[test]
    fn answers_have_their_meaning() {
        let outcome = |status, after: Option<&[u8]>| outcome(&settings(), status, after);
        assert_eq!(outcome(204, None), Outcome::Delivered);
        let asked = |after| match outcome(429, after) {
            Outcome::Retry(Failure { code: FailureCode::Throttled, retry_after_ms, .. }) => retry_after_ms,
            other => panic!("{other:?}"),
        };
        assert_eq!((asked(Some(b"3")), asked(Some(b"soon")), asked(None)), (Some(3000), None, None));
        assert!(matches!(outcome(503, None), Outcome::Retry(_)));
        assert!(matches!(outcome(404, None), Outcome::Reject(Failure { code: FailureCode::Other(word), .. }) if word == "http-404"));
    }
}
