//! What an answer, or the lack of one, means for the message.

use crate::config::Settings;
use http::StatusCode;
use http::header::{DATE, LOCATION, RETRY_AFTER};
use outhaul_sdk::{Failure, FailureCode, Outcome};
use std::fmt;
use std::time::SystemTime;

/// Longest excerpt of a response in a failure text, in characters: enough for an error message.
const MAX_EXCERPT: usize = 200;

/// An answer. Nothing in it can be trusted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Names in lower case; empty for 2xx, where nobody asks.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The first bytes of the body, as far as they came.
    pub body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(value).ok().map(str::trim)
    }
}

/// Whom a request was for, as failures name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receiver<'a> {
    /// The configured endpoint, by host and port.
    Endpoint(&'a str),
    /// A subscriber. Where that one is, and what it answers (which may be what it was sent), is nobody's to read.
    Subscriber(&'a str),
}

impl fmt::Display for Receiver<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(authority) => formatter.write_str(authority),
            Self::Subscriber(subscriber) => write!(formatter, "subscriber {subscriber:?}"),
        }
    }
}

/// Why there was no answer. Texts without an `Option` are ours and name no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The host did not allow it.
    Denied,
    /// The host could not do it as it is configured.
    Misconfigured(String),
    /// Not reached, or broken off.
    Network(String),
    /// Its name was not resolved; in the host's words, which may name it.
    Unresolved(Option<String>),
    /// It failed; in the host's words, which may name the address.
    Failed(Option<String>),
    /// Too slow.
    Timeout(String),
    /// This request is too large to be sent.
    TooLarge(String),
    /// This request cannot be sent.
    Unsendable(String),
    /// What came back was not HTTP, or over a limit of the host.
    BadResponse(String),
}

/// What an answer means.
#[must_use]
pub fn outcome(settings: &Settings, receiver: Receiver<'_>, answer: &Answer, now: SystemTime) -> Outcome {
    if (200..300).contains(&answer.status) || is_duplicate(settings, answer) {
        return Outcome::Delivered;
    }
    let retry = |code| {
        let retry_after_ms = retry_after(answer, now);
        Outcome::Retry(Failure { code, detail: describe(receiver, answer), retry_after_ms })
    };
    let status = answer.status;
    let code = match status {
        // Of deliveries, `timeout` says that no answer came.
        408 if matches!(receiver, Receiver::Subscriber(_)) => return retry(FailureCode::Unavailable),
        408 => return retry(FailureCode::Timeout),
        429 => return retry(FailureCode::Throttled),
        425 | 500..=599 => return retry(FailureCode::Unavailable),
        400 | 422 => FailureCode::InvalidMessage,
        401 | 403 | 407 => FailureCode::Unauthorized,
        410 => FailureCode::DestinationGone,
        413 | 414 | 431 => FailureCode::TooLarge,
        _ => FailureCode::Other(format!("http-{status}")),
    };
    if settings.retry_statuses.contains(&status) {
        return retry(code);
    }
    Outcome::Reject(Failure::of(code, describe(receiver, answer)))
}

/// What the lack of an answer means. What only the operator can put right is tried again: a missing grant must not
/// end messages at once. An address that a subscriber chose and may not have is no such thing.
#[must_use]
pub fn fault_outcome(receiver: Receiver<'_>, fault: Fault) -> Outcome {
    let failure = |code, what: &str| Failure::of(code, format!("{receiver}: {what}"));
    let told = |text: Option<String>, plain: &str| match receiver {
        Receiver::Endpoint(_) => text.unwrap_or_else(|| plain.to_owned()),
        Receiver::Subscriber(_) => plain.to_owned(),
    };
    match fault {
        Fault::Denied if matches!(receiver, Receiver::Subscriber(_)) => Outcome::Reject(failure(
            FailureCode::InvalidConfiguration,
            "its address may not be reached; `allow_hosts` and `allow_networks` say which ones may, and the host's log which one it was",
        )),
        Fault::Denied => Outcome::Retry(failure(
            FailureCode::InvalidConfiguration,
            "the host does not allow this request; its log has the line to add to `allow_hosts` or `allow_networks`",
        )),
        Fault::Misconfigured(what) => Outcome::Retry(failure(FailureCode::InvalidConfiguration, &what)),
        Fault::Network(what) => Outcome::Retry(failure(FailureCode::Network, &what)),
        Fault::Unresolved(text) => Outcome::Retry(failure(FailureCode::Network, &told(text, "its name cannot be resolved"))),
        Fault::Failed(text) => Outcome::Retry(failure(FailureCode::Network, &told(text, "the request failed in the host"))),
        Fault::Timeout(what) => Outcome::Retry(failure(FailureCode::Timeout, &what)),
        Fault::BadResponse(what) => Outcome::Retry(failure(FailureCode::Other("bad-response".into()), &what)),
        Fault::TooLarge(what) => Outcome::Reject(failure(FailureCode::TooLarge, &what)),
        Fault::Unsendable(what) => Outcome::Reject(failure(FailureCode::InvalidMessage, &what)),
    }
}

fn is_duplicate(settings: &Settings, answer: &Answer) -> bool {
    let duplicate = &settings.duplicate;
    let marked = duplicate.header.as_ref().is_some_and(|(name, expected)| {
        answer.header(name.as_str()).is_some_and(|found| expected.as_ref().is_none_or(|expected| found.eq_ignore_ascii_case(expected)))
    });
    marked || duplicate.statuses.contains(&answer.status)
}

/// `Retry-After` (RFC 9110 section 10.2.3) in milliseconds. A date is measured against the answer's own `Date`, so that a wrong
/// clock on either side does no harm, or against `now` if it has none. What is not valid counts as absent.
fn retry_after(answer: &Answer, now: SystemTime) -> Option<u64> {
    let text = answer.header(RETRY_AFTER.as_str())?;
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More seconds than a number can hold is still a valid wish: the host caps it.
        return Some(text.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(1000));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let from = answer.header(DATE.as_str()).and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
    let delay = until.duration_since(from).unwrap_or_default();
    Some(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX))
}

/// The answer in one line: who, what, and the first words of the body. Not the URL: its path may hold a token. And of a subscriber's
/// answer no word: error pages like to repeat the path and the credentials that they were asked with.
fn describe(receiver: Receiver<'_>, answer: &Answer) -> String {
    let reason = StatusCode::from_u16(answer.status).ok().and_then(|status| status.canonical_reason());
    let mut text = format!("{receiver} answered {}", answer.status);
    if let Some(reason) = reason {
        text.push(' ');
        text.push_str(reason);
    }
    if (300..400).contains(&answer.status) && answer.header(LOCATION.as_str()).is_some() {
        text.push_str(match receiver {
            Receiver::Endpoint(_) => " (redirects are not followed: put the right address into `url`)",
            Receiver::Subscriber(_) => " (redirects are not followed: put the right address into the subscription)",
        });
    }
    if matches!(receiver, Receiver::Subscriber(_)) {
        return text;
    }
    let excerpt = excerpt(&answer.body);
    if !excerpt.is_empty() {
        text.push_str(": ");
        text.push_str(&excerpt);
    }
    text
}

/// The beginning of a body as one clean line; nothing if it is not text.
fn excerpt(body: &[u8]) -> String {
    let text = body.utf8_chunks().next().map(|chunk| chunk.valid()).unwrap_or_default();
    let mut excerpt = String::new();
    let mut length = 0;
    for word in text.split(|character: char| character.is_whitespace() || character.is_control()).filter(|word| !word.is_empty()) {
        for character in (length > 0).then_some(' ').into_iter().chain(word.chars()) {
            if length == MAX_EXCERPT {
                excerpt.push('…');
                return excerpt;
            }
            excerpt.push(character);
            length += 1;
        }
    }
    excerpt
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn settings(extra: &str) -> Settings {
        Settings::parse(&format!(r#"{{"url":"https://h/secret-token"{extra}}}"#)).unwrap()
    }

    fn answer(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
        Answer { status, headers, body: body.to_vec() }
    }

    const H: Receiver<'static> = Receiver::Endpoint("h");

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(784_111_777) // Sun, 06 Nov 1994 08:49:37 GMT
    }

    fn means(settings: &Settings, status: u16) -> String {
        match outcome(settings, H, &answer(status, &[], b""), now()) {
            Outcome::Delivered => "delivered".into(),
            Outcome::Retry(failure) => format!("retry {:?}", failure.code),
            Outcome::Reject(failure) => format!("reject {:?}", failure.code),
            Outcome::Held => "held".into(),
        }
    }

    #[test]
    fn status_classes() {
        for (status, expected) in [
            (200, "delivered"),
            (204, "delivered"),
            (299, "delivered"),
            (199, "reject FailureCode::Other(\"http-199\")"),
            (301, "reject FailureCode::Other(\"http-301\")"),
            (304, "reject FailureCode::Other(\"http-304\")"),
            (400, "reject FailureCode::InvalidMessage"),
            (401, "reject FailureCode::Unauthorized"),
            (403, "reject FailureCode::Unauthorized"),
            (404, "reject FailureCode::Other(\"http-404\")"),
            (408, "retry FailureCode::Timeout"),
            (409, "reject FailureCode::Other(\"http-409\")"),
            (410, "reject FailureCode::DestinationGone"),
            (413, "reject FailureCode::TooLarge"),
            (422, "reject FailureCode::InvalidMessage"),
            (425, "retry FailureCode::Unavailable"),
            (429, "retry FailureCode::Throttled"),
            (500, "retry FailureCode::Unavailable"),
            (503, "retry FailureCode::Unavailable"),
            (599, "retry FailureCode::Unavailable"),
            (600, "reject FailureCode::Other(\"http-600\")"),
        ] {
            assert_eq!(means(&settings(""), status), expected, "{status}");
        }
        assert_eq!(means(&settings(r#","retry_statuses":[401,404]"#), 401), "retry FailureCode::Unauthorized");
    }

    #[test]
    fn duplicates_count_as_delivered() {
        assert_eq!(means(&settings(r#","duplicate":{"statuses":[409]}"#), 409), "delivered");
        let by_header = settings(r#","duplicate":{"header":{"name":"X-Duplicate","value":"true"}}"#);
        let with = |value: &str| outcome(&by_header, H, &answer(409, &[("x-duplicate", value)], b""), now());
        assert_eq!(with("True"), Outcome::Delivered);
        assert!(matches!(with("false"), Outcome::Reject(_)));
        let any_value = settings(r#","duplicate":{"header":{"name":"X-Duplicate"}}"#);
        assert_eq!(outcome(&any_value, H, &answer(500, &[("X-Duplicate", "")], b""), now()), Outcome::Delivered);
    }

    fn asked(headers: &[(&str, &str)]) -> Option<u64> {
        match outcome(&settings(""), H, &answer(503, headers, b""), now()) {
            Outcome::Retry(failure) => failure.retry_after_ms,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn retry_after_forms() {
        assert_eq!(asked(&[]), None);
        assert_eq!(asked(&[("Retry-After", " 120 ")]), Some(120_000));
        assert_eq!(asked(&[("retry-after", "99999999999999999999999")]), Some(u64::MAX));
        for invalid in ["", "-1", "1.5", "+5", "soon", "Sun, 99 Nov 1994 08:49:37 GMT"] {
            assert_eq!(asked(&[("retry-after", invalid)]), None, "{invalid}");
        }
        let date = ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT");
        assert_eq!(asked(&[date]), Some(30_000));
        assert_eq!(asked(&[date, ("date", "Sun, 06 Nov 1994 08:50:00 GMT")]), Some(7_000));
        assert_eq!(asked(&[date, ("date", "nonsense")]), Some(30_000));
        assert_eq!(asked(&[("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT")]), Some(0));
    }

    #[test]
    fn details_are_short_and_clean() {
        let detail = |status, headers: &[(&str, &str)], body: &[u8]| match outcome(&settings(""), H, &answer(status, headers, body), now())
        {
            Outcome::Reject(failure) | Outcome::Retry(failure) => failure.detail,
            other => panic!("{other:?}"),
        };
        assert_eq!(detail(400, &[], b"{\"error\":\n\0 \"bad\"}"), "h answered 400 Bad Request: {\"error\": \"bad\"}");
        assert_eq!(detail(404, &[], b"\xff\xfebinary"), "h answered 404 Not Found");
        assert!(detail(302, &[("location", "http://169.254.169.254/")], b"").contains("redirects are not followed"));
        assert!(detail(503, &[], "😊".repeat(10_000).as_bytes()).chars().count() < 300);
        assert!(!detail(500, &[], b"").contains("secret-token"));
    }

    #[test]
    fn faults() {
        let code = |fault| match fault_outcome(H, fault) {
            Outcome::Retry(failure) => ("retry", failure.code),
            Outcome::Reject(failure) => ("reject", failure.code),
            other => panic!("{other:?}"),
        };
        assert_eq!(code(Fault::Denied), ("retry", FailureCode::InvalidConfiguration));
        assert_eq!(code(Fault::Misconfigured(String::new())), ("retry", FailureCode::InvalidConfiguration));
        for fault in [Fault::Network(String::new()), Fault::Unresolved(None), Fault::Failed(None)] {
            assert_eq!(code(fault), ("retry", FailureCode::Network));
        }
        assert_eq!(code(Fault::Timeout(String::new())), ("retry", FailureCode::Timeout));
        assert_eq!(code(Fault::BadResponse(String::new())), ("retry", FailureCode::Other("bad-response".into())));
        assert_eq!(code(Fault::TooLarge(String::new())), ("reject", FailureCode::TooLarge));
        assert_eq!(code(Fault::Unsendable(String::new())), ("reject", FailureCode::InvalidMessage));
    }

    /// A refused address is the subscriber's fault, a name that cannot be resolved now is not; and nothing that the host or the
    /// subscriber said is repeated.
    #[test]
    fn a_subscriber_is_named_and_nothing_else_of_it() {
        let crm = Receiver::Subscriber("crm");
        let secret = || Some("cannot resolve hunter2.example.com".to_owned());
        for (fault, expected) in [
            (Fault::Denied, "reject FailureCode::InvalidConfiguration"),
            (Fault::Unresolved(secret()), "retry FailureCode::Network"),
            (Fault::Failed(secret()), "retry FailureCode::Network"),
            (Fault::Timeout("the name was not resolved in time".into()), "retry FailureCode::Timeout"),
            (Fault::Misconfigured("x".into()), "retry FailureCode::InvalidConfiguration"),
        ] {
            let (verdict, failure) = match fault_outcome(crm, fault) {
                Outcome::Retry(failure) => ("retry", failure),
                Outcome::Reject(failure) => ("reject", failure),
                other => panic!("{other:?}"),
            };
            assert_eq!(format!("{verdict} {:?}", failure.code), expected);
            assert!(failure.detail.starts_with("subscriber \"crm\": ") && !failure.detail.contains("hunter2"), "{}", failure.detail);
        }
        let echo = answer(404, &[("location", "https://hunter2/")], b"no such path: /hunter2");
        let Outcome::Reject(failure) = outcome(&settings(""), crm, &echo, now()) else { panic!() };
        assert_eq!(failure.detail, "subscriber \"crm\" answered 404 Not Found");
        let Outcome::Reject(failure) = outcome(&settings(""), crm, &answer(308, &[("location", "https://hunter2/")], b""), now()) else {
            panic!()
        };
        assert!(
            failure.detail.ends_with("(redirects are not followed: put the right address into the subscription)"),
            "{}",
            failure.detail
        );
    }

    proptest! {
        #[test]
        fn any_answer_has_a_meaning(status: u16, value in ".{0,40}", body in prop::collection::vec(any::<u8>(), 0..2000)) {
            let headers = [("retry-after", value.as_str()), ("date", value.as_str()), ("location", value.as_str())];
            match outcome(&settings(""), H, &answer(status, &headers, &body), now()) {
                Outcome::Retry(failure) | Outcome::Reject(failure) => prop_assert!(failure.detail.chars().count() < 400),
                Outcome::Delivered => prop_assert!((200..300).contains(&status)),
                Outcome::Held => prop_assert!(false),
            }
        }
    }
}
