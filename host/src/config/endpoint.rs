//! URLs of endpoints that deliveries go to. They may hold credentials: nothing here repeats any of one.

use http::uri::{Authority, PathAndQuery};

/// Longest URL, in bytes: servers and proxies refuse longer ones.
pub const MAX_BYTES: usize = 8 << 10;

/// Longest path and query, in bytes: what common servers take (nginx and Apache: 8 KiB for the request line).
const MAX_TARGET_BYTES: usize = 8000;

const NO_URL: &str = "is not an absolute URL: write \"https://host/path\"";
const BAD_CHARACTER: &str =
    "has a space or another character that no URL may have as it is: percent-encode it, and write a host name in ASCII (punycode)";

/// What is wrong with the URL of an endpoint; none: nothing. Fits behind "its URL " and "a URL that ".
///
/// What is taken here can be sent to as it stands, so it is no less strict than `http-publisher`: an event whose subscriber has a URL that
/// no request can be made of must not count as expanded.
#[must_use]
pub fn fault(url: &str) -> Option<&'static str> {
    if url.len() > MAX_BYTES {
        return Some("is longer than 8 KiB");
    }
    let Ok(parsed) = url::Url::parse(url) else { return Some(NO_URL) };
    if !matches!(parsed.scheme(), "http" | "https") {
        return Some("is neither http nor https: write \"https://host/path\"");
    }
    // A browser forgives much that the parser forgives too.
    let Some((_, rest)) = url.split_once("://") else { return Some(NO_URL) };
    let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Some("holds a user or a password: leave them out, and say in the authentication what to show");
    }
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) || target.contains(['{', '}']) {
        return Some(BAD_CHARACTER);
    }
    if authority.parse::<Authority>().is_err() {
        return Some(NO_URL);
    }
    if parsed.port() == Some(0) {
        return Some("has the port 0, which nobody listens at");
    }
    fault_of_target(target)
}

/// What is wrong with a path and a query.
fn fault_of_target(target: &str) -> Option<&'static str> {
    if target.contains('#') {
        return Some("has a fragment (#), which is never sent: leave it out");
    }
    let rooted = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    if rooted.len() > MAX_TARGET_BYTES {
        return Some("has a path and query of more than 8000 bytes");
    }
    if rooted.parse::<PathAndQuery>().is_err() {
        return Some(BAD_CHARACTER);
    }
    let mut segments = rooted.split('?').next().unwrap_or_default().split('/');
    segments.any(|segment| matches!(segment, "." | "..")).then_some("has a path segment . or ..: write the path that is meant")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_endpoint_is_told_without_a_word_of_it() {
        for (url, expected) in [
            ("https://hooks.example.com/in?a=b", None),
            ("http://127.0.0.1:8080", None),
            ("", Some("not an absolute URL")),
            ("/in", Some("not an absolute URL")),
            ("hooks.example.com/in", Some("not an absolute URL")),
            ("https://", Some("not an absolute URL")),
            ("ftp://hooks.example.com/", Some("neither http nor https")),
            ("mailto:a@b", Some("neither http nor https")),
            ("https://me@hooks.example.com/", Some("a user or a password")),
            ("https://:hunter2@hooks.example.com/", Some("a user or a password")),
            ("https://@hooks.example.com/", Some("a user or a password")),
            ("https:hooks.example.com/in", Some("not an absolute URL")),
            ("https:///hooks.example.com/in", Some("not an absolute URL")),
            ("https://hooks.example.com/a b", Some("percent-encode")),
            ("https://hooks.example.com/in ", Some("percent-encode")),
            ("https://hooks.example.com/in\n", Some("percent-encode")),
            ("https://hooks.example.com/{hunter2}", Some("percent-encode")),
            ("https://hooks.example.com/\u{e9}", Some("percent-encode")),
            ("https://h\u{e9}.example.com/", Some("punycode")),
            ("https://hooks.example.com/in#hunter2", Some("a fragment")),
            ("https://hooks.example.com#hunter2", Some("a fragment")),
            ("https://hooks.example.com/../in", Some("a path segment")),
            ("https://hooks.example.com/in/.", Some("a path segment")),
            ("https://hooks.example.com/in?to=/../out", None),
            ("https://hooks.example.com:0/", Some("the port 0")),
        ] {
            let fault = fault(url);
            assert_eq!(fault.is_some(), expected.is_some(), "{url}");
            assert!(fault.unwrap_or_default().contains(expected.unwrap_or_default()), "{url}: {fault:?}");
            assert!(!fault.unwrap_or_default().contains("hunter2"));
        }
        let long = format!("https://h/{}", "a".repeat(MAX_BYTES));
        assert_eq!(fault(&long), Some("is longer than 8 KiB"));
        let long = format!("https://h/{}", "a".repeat(MAX_TARGET_BYTES));
        assert_eq!(fault(&long), Some("has a path and query of more than 8000 bytes"));
    }

    /// The list is read by the tests of `http-publisher` too.
    #[test]
    fn what_no_request_can_be_made_of_is_refused() {
        for line in include_str!("../../../tests/fixtures/endpoints.txt").lines() {
            let (verdict, url) = line.split_once(' ').unwrap();
            assert_eq!(fault(url).is_none(), verdict == "yes", "{line}: {:?}", fault(url));
        }
    }
}
