//! Header names and values: what is legal, and what only the HTTP layer itself may set.

use http::{HeaderName, HeaderValue};

/// Headers of the connection rather than of the message (RFC 9110 section 7.6.1), and those that the HTTP layer computes.
const CONNECTION_LEVEL: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Whether a header belongs to the connection: never taken from a message or from the configuration.
#[must_use]
pub fn is_connection_level(name: &HeaderName) -> bool {
    CONNECTION_LEVEL.contains(&name.as_str())
}

/// A header name.
///
/// # Errors
/// It is no token (RFC 9110 section 5.6.2).
pub fn name(text: &str) -> Result<HeaderName, &'static str> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| "not a legal header name")
}

/// A header value, without the blanks around it, which every receiver strips (RFC 9110 section 5.5).
///
/// # Errors
/// It has control characters.
pub fn value(bytes: &[u8]) -> Result<HeaderValue, &'static str> {
    HeaderValue::from_bytes(bytes.trim_ascii()).map_err(|_| "its value has control characters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legal_and_illegal() {
        assert_eq!(name("X-A").unwrap().as_str(), "x-a");
        for bad in ["", "a b", "a:", "é", "a\n", ":path"] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
        assert_eq!(value(" ü \t".as_bytes()).unwrap().as_bytes(), "ü".as_bytes());
        for bad in [&b"a\r\nb: c"[..], b"a\0", b"\x7f"] {
            assert!(value(bad).is_err(), "{bad:?}");
        }
        assert!(is_connection_level(&HeaderName::from_static("host")));
        assert!(!is_connection_level(&HeaderName::from_static("authorization")));
    }
}
