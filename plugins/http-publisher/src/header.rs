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

/// Most bytes of the headers of one request, each counted as its name, its value and 32 (RFC 9113 section 6.5.2). Servers take from
/// 8 KiB (Apache, a line) to 1 MiB (Go) unless they are told otherwise, and hosts stop a component that hands over too much.
pub const MAX_BYTES: usize = 256 << 10;

/// Whether headers are more than a request may have.
#[must_use]
pub fn are_too_large<'a>(headers: impl IntoIterator<Item = (&'a HeaderName, &'a HeaderValue)>) -> bool {
    headers.into_iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum::<usize>() > MAX_BYTES
}

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

    #[test]
    fn names_values_and_the_number_of_headers_count() {
        let too_large = |count: usize, bytes: usize| {
            let (name, value) = (name("abcd").unwrap(), value(&vec![b'x'; bytes]).unwrap());
            are_too_large(std::iter::repeat_n((&name, &value), count))
        };
        assert!(!too_large(0, 0) && !too_large(1, MAX_BYTES - 36) && too_large(1, MAX_BYTES - 35));
        assert!(!too_large(MAX_BYTES / 36, 0) && too_large(MAX_BYTES / 36 + 1, 0));
    }
}
