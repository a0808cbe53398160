//! Where requests go. By the configuration: scheme and host are fixed, path and query may depend on the message. Or by a fan-out
//! delivery, which brings its own address.

use http::uri::{Authority, PathAndQuery};
use outhaul_sdk::template::{RenderError, Template};
use outhaul_sdk::{Failure, FailureCode, Message};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use std::borrow::Cow;

/// Longest path and query, in bytes: what common servers take (nginx and Apache: 8 KiB for the request line).
const MAX_TARGET_BYTES: usize = 8000;

/// Everything but the unreserved characters (RFC 3986 section 2.3), so that a value never adds a segment or a parameter.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Where one request goes. No `Debug`: the address of a subscriber is not for logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Address<'a> {
    /// `https`, not `http`.
    pub secure: bool,
    /// Lower-case host, and the port unless it is the scheme's own.
    pub authority: Cow<'a, str>,
    /// Path and query.
    pub target: String,
}

impl Address<'static> {
    /// Parses an absolute `http` or `https` URL as it is: braces stand for nothing.
    ///
    /// # Errors
    /// What is wrong with it, without a word of it.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let (secure, authority, target) = split(url)?;
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        if target.len() > MAX_TARGET_BYTES {
            return Err("has a path and query of more than 8000 bytes");
        }
        check_target(&target)?;
        // The parser's own text names the host.
        Ok(Self { secure, authority: Cow::Owned(parse_authority(authority, secure).map_err(|_| "does not name a host")?), target })
    }
}

/// A parsed `url`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `https`, not `http`.
    pub secure: bool,
    /// Lower-case host, and the port unless it is the scheme's own: what is sent as `Host` is what is signed.
    pub authority: String,
    target: Template,
}

impl Endpoint {
    /// Parses an absolute `http` or `https` URL with placeholders in its path and query.
    ///
    /// # Errors
    /// What is wrong with it, for a person.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (secure, authority, target) = split(url)?;
        if authority.contains(['{', '}']) {
            return Err("placeholders may stand in the path and the query, not in the host: a message must not choose where it goes".into());
        }
        Ok(Self { secure, authority: parse_authority(authority, secure)?, target: parse_target(target)? })
    }

    /// The address for a message.
    ///
    /// # Errors
    /// As [`Endpoint::target`].
    pub fn address(&self, message: Message<'_>) -> Result<Address<'_>, Failure> {
        Ok(Address { secure: self.secure, authority: Cow::Borrowed(&self.authority), target: self.target(message)? })
    }

    /// Path and query for a message, values percent-encoded.
    ///
    /// # Errors
    /// The message lacks a value, or its values make an impossible or too long target.
    pub fn target(&self, message: Message<'_>) -> Result<String, Failure> {
        let target = self
            .target
            .render_with(message, |text, value| text.extend(percent_encode(value, RESERVED)))
            .map_err(|error: RenderError| Failure::invalid_message(format!("`url`: {error}")))?;
        if target.len() > MAX_TARGET_BYTES {
            let detail = format!("`url`: path and query would have {} bytes; the limit is {MAX_TARGET_BYTES}", target.len());
            return Err(Failure::of(FailureCode::TooLarge, detail));
        }
        if has_dot_segment(&target) {
            return Err(Failure::invalid_message("`url`: a value would make a path segment `.` or `..`, which leads elsewhere"));
        }
        Ok(target)
    }
}

/// Whether it is `https`, the authority, and the rest.
fn split(url: &str) -> Result<(bool, &str, &str), &'static str> {
    let (scheme, rest) = url.split_once("://").ok_or("must be an absolute URL such as https://example.com/orders")?;
    let secure = match scheme.to_ascii_lowercase().as_str() {
        "https" => true,
        "http" => false,
        _ => return Err("must begin with http:// or https://"),
    };
    let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    Ok((secure, authority, target))
}

fn parse_authority(text: &str, secure: bool) -> Result<String, String> {
    if text.contains('@') {
        return Err("must not hold a user name or password; use `headers` with a secret".into());
    }
    let authority: Authority = text.parse().map_err(|_| format!("`{text}` is not a host"))?;
    let host = authority.host().to_ascii_lowercase();
    if host.is_empty() {
        return Err("has no host".into());
    }
    let port = authority.as_str().get(host.len()..).unwrap_or_default().trim_start_matches(':');
    if port.is_empty() {
        return Ok(host);
    }
    match port.parse::<u16>() {
        Err(_) | Ok(0) => Err(format!("`{port}` is not a port")),
        Ok(443) if secure => Ok(host),
        Ok(80) if !secure => Ok(host),
        Ok(port) => Ok(format!("{host}:{port}")),
    }
}

fn parse_target(text: &str) -> Result<Template, String> {
    let rooted = if text.starts_with('/') { text.to_owned() } else { format!("/{text}") };
    let template = Template::parse(&rooted).map_err(|error| error.to_string())?;
    check_target(&template.sample("x"))?;
    Ok(template)
}

fn check_target(target: &str) -> Result<(), &'static str> {
    if target.contains('#') {
        return Err("must not have a fragment (`#`): it is never sent");
    }
    if !target.bytes().all(|byte| byte.is_ascii_graphic()) || target.contains(['{', '}']) {
        return Err("spaces, braces and characters outside ASCII must be percent-encoded");
    }
    if target.parse::<PathAndQuery>().is_err() {
        return Err("has a character in its path or query that must be percent-encoded");
    }
    if has_dot_segment(target) {
        return Err("must not have a path segment `.` or `..`");
    }
    Ok(())
}

fn has_dot_segment(target: &str) -> bool {
    target.split('?').next().unwrap_or_default().split('/').any(|segment| segment == "." || segment == "..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::batch_of;
    use outhaul_sdk::NewMessage;
    use proptest::prelude::*;

    fn target(url: &str, message: NewMessage<'_>) -> Result<String, Failure> {
        Endpoint::parse(url).unwrap().target(batch_of(&[message]).message(0))
    }

    #[test]
    fn values_are_percent_encoded() {
        let message = NewMessage { id: "a/b c", topic: "é&=", key: Some("x?y#z"), ..NewMessage::default() };
        assert_eq!(target("http://h/{id}?t={topic}&k={key}", message).unwrap(), "/a%2Fb%20c?t=%C3%A9%26%3D&k=x%3Fy%23z");
    }

    #[test]
    fn authorities_are_normalised() {
        let authority = |url: &str| Endpoint::parse(url).unwrap().authority;
        assert_eq!(authority("HTTPS://Example.COM:443/a"), "example.com");
        assert_eq!(authority("http://example.com:443"), "example.com:443");
        assert_eq!(authority("http://example.com:80?x"), "example.com");
        assert_eq!(authority("http://[::1]:8080/"), "[::1]:8080");
        assert_eq!(target("http://h", NewMessage::default()).unwrap(), "/");
        assert_eq!(target("http://h?a=b", NewMessage::default()).unwrap(), "/?a=b");
    }

    #[test]
    fn an_address_is_taken_as_it_is() {
        let address = Address::parse("HTTPS://Hooks.Example.com:443/a/b?token=x%20y&c").unwrap();
        assert_eq!((address.secure, &*address.authority, &*address.target), (true, "hooks.example.com", "/a/b?token=x%20y&c"));
        assert_eq!(Address::parse("http://h:8080?a").unwrap().target, "/?a");
        let long = format!("https://h/{}", "x".repeat(MAX_TARGET_BYTES));
        for url in [
            "",
            "/hunter2",
            "hunter2",
            "ftp://h/hunter2",
            "https://hunter2@h/",
            "https://hunter2:0/",
            "https:///hunter2",
            "https://h/#hunter2",
            "https://h/hunter2 ",
            "https://h/{hunter2}",
            "https://h/../hunter2",
            "https://h/hunter2\u{e9}",
            &long,
        ] {
            let Err(error) = Address::parse(url) else { panic!("{url}") };
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    /// The host refuses the same before a delivery is made: an event does not count as expanded for an address that is none.
    #[test]
    fn the_host_knows_which_addresses_are_none() {
        for line in include_str!("../../../tests/fixtures/endpoints.txt").lines() {
            let (verdict, url) = line.split_once(' ').unwrap();
            assert_eq!(Address::parse(url).is_ok(), verdict == "yes", "{line}");
        }
    }

    #[test]
    fn impossible_urls_are_refused() {
        for url in [
            "",
            "/x",
            "example.com/x",
            "ftp://h/x",
            "http://",
            "http:///x",
            "http://{topic}/x",
            "http://h{key}:80/",
            "http://u:p@h/",
            "http://h:0/",
            "http://h:99999/",
            "http://h:x/",
            "http://h/a#b",
            "http://h/a b",
            "http://h/é",
            "http://h/../x",
            "http://h/{nope}",
            "http://h/{topic",
            "http://h/{{x}}",
        ] {
            assert!(Endpoint::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_value_never_leads_elsewhere() {
        let dots = NewMessage { id: "..", topic: "t", ..NewMessage::default() };
        assert_eq!(target("http://h/a/{id}", dots.clone()).unwrap_err().code, FailureCode::InvalidMessage);
        assert_eq!(target("http://h/a/{id}x", dots.clone()).unwrap(), "/a/..x");
        assert_eq!(target("http://h/a?p=/../{id}", dots).unwrap(), "/a?p=/../..");
        let long = "x".repeat(MAX_TARGET_BYTES);
        let long = NewMessage { id: &long, ..NewMessage::default() };
        assert_eq!(target("http://h/{id}", long).unwrap_err().code, FailureCode::TooLarge);
    }

    proptest! {
        #[test]
        fn any_value_stays_one_segment(id in "\\PC{1,40}", header in prop::collection::vec(any::<u8>(), 1..40)) {
            let headers: &[(&str, &[u8])] = &[("h", &header)];
            let message = NewMessage { id: &id, topic: "t", headers, ..NewMessage::default() };
            if let Ok(target) = target("http://h/a/{id}/{header:h}?q={id}", message) {
                prop_assert_eq!(target.matches('/').count(), 3);
                prop_assert_eq!(target.matches('?').count(), 1);
                prop_assert!(target.parse::<PathAndQuery>().is_ok());
            }
        }
    }
}
