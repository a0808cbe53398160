//! One message as one HTTP request, signed over exactly the bytes that are sent.

use crate::cloudevents::{Mode, STRUCTURED_TYPE};
use crate::config::{HeaderSource, Settings, Tombstone};
use crate::forward::Forwarding;
use crate::header;
use crate::sign::Signer;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT};
use http::{HeaderName, HeaderValue, Method};
use outhaul_sdk::{Failure, FailureCode, Message};
use std::borrow::Cow;
use std::time::SystemTime;

const AGENT: &str = concat!("outhaul-http-publisher/", env!("CARGO_PKG_VERSION"));

/// A request, ready to be sent.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Method.
    pub method: Method,
    /// `https`, not `http`.
    pub secure: bool,
    /// Host and port.
    pub authority: &'a str,
    /// Path and query.
    pub target: String,
    /// In order; names may repeat.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The exact bytes.
    pub body: Cow<'a, [u8]>,
}

impl Request<'_> {
    /// `https` or `http`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.secure { "https" } else { "http" }
    }
}

/// What a call needs of the secrets, fetched once a call, so that a changed secret is used from the next batch on.
#[derive(Debug)]
pub struct Credentials<'a> {
    headers: Vec<(HeaderName, HeaderValue)>,
    signer: Option<Signer<'a>>,
}

impl<'a> Credentials<'a> {
    /// Fetches the secrets that the settings name; `fetch` gives a secret by name.
    ///
    /// # Errors
    /// `unauthorized` or `signing-unavailable`, with the name of the secret that is missing or unfit, never its value.
    pub fn load(settings: &'a Settings, fetch: &dyn Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let mut headers = Vec::new();
        for (name, source) in &settings.headers {
            let value = match source {
                HeaderSource::Fixed(value) => value.clone(),
                HeaderSource::Secret { name: secret, prefix } => {
                    let problem =
                        |what: &str| Failure::of(FailureCode::Unauthorized, format!("`headers.{name}`: secret `{secret}`: {what}"));
                    let text =
                        fetch(secret).ok_or_else(|| problem("not granted or not set; the host's log says which, and the line to add"))?;
                    let mut value = header::value(format!("{prefix}{text}").as_bytes()).map_err(problem)?;
                    value.set_sensitive(true);
                    value
                }
            };
            headers.push((name.clone(), value));
        }
        let signer = settings.signature.as_ref().map(|signature| signature.signer(fetch)).transpose()?;
        Ok(Self { headers, signer })
    }
}

/// Makes the request of a message. `skipped` hears of each header of the message that HTTP cannot carry, with the reason.
///
/// # Errors
/// Why this message can never be sent.
pub fn build<'a>(
    settings: &'a Settings,
    credentials: &Credentials<'_>,
    message: Message<'a>,
    now: SystemTime,
    skipped: &mut dyn FnMut(&str, &str),
) -> Result<Request<'a>, Failure> {
    let target = settings.endpoint.target(message)?;
    let mut headers = credentials.headers.clone();
    let fixed = headers.len();
    let mut content_type = None;
    for (name, value) in message.headers() {
        if content_type.is_none() && name.eq_ignore_ascii_case(CONTENT_TYPE.as_str()) {
            match header::value(value) {
                Ok(value) if value.to_str().is_ok_and(|text| !text.is_empty()) => content_type = Some(value),
                Ok(_) => skipped(name, "its value is empty or not ASCII"),
                Err(error) => skipped(name, error),
            }
            continue;
        }
        match (settings.forward.forwarding(name), header::value(value)) {
            (Forwarding::As(name), Ok(value)) => headers.push((name, value)),
            (Forwarding::No, _) => {}
            (Forwarding::Impossible(error), _) | (Forwarding::As(_), Err(error)) => skipped(name, error),
        }
    }
    if !headers.iter().any(|(name, _)| *name == USER_AGENT) {
        headers.insert(fixed, (USER_AGENT, HeaderValue::from_static(AGENT)));
    }
    if let Some(name) = &settings.idempotency_header {
        let value = header::value(message.id().as_bytes());
        headers.push((name.clone(), value.map_err(|error| Failure::invalid_message(format!("`{name}`: the id: {error}")))?));
    }

    let mut request = Request {
        method: settings.method.clone(),
        secure: settings.endpoint.secure,
        authority: &settings.endpoint.authority,
        target,
        headers,
        body: Cow::default(),
    };
    let content_type = content_type.unwrap_or_else(|| settings.content_type.clone());
    set_body(&mut request, settings, message, content_type)?;
    if !request.body.is_empty() || request.method != Method::DELETE {
        request.headers.push((CONTENT_LENGTH, HeaderValue::from(request.body.len())));
    }
    if let Some(signer) = &credentials.signer {
        signer.sign(&mut request, message.id(), now)?;
    }
    Ok(request)
}

fn set_body<'a>(request: &mut Request<'a>, settings: &Settings, message: Message<'a>, content_type: HeaderValue) -> Result<(), Failure> {
    let payload = message.payload();
    if payload.is_none() {
        match settings.tombstone {
            Tombstone::EmptyBody => {}
            Tombstone::Delete => request.method = Method::DELETE,
            Tombstone::Reject => {
                return Err(Failure::invalid_message("the message has no payload (a tombstone), which `tombstone` says to reject"));
            }
        }
    }
    if let Some(events) = &settings.cloudevents {
        let attributes = events.attributes(message)?;
        let unfit = |error: &dyn std::fmt::Display| Failure::invalid_message(format!("cannot be a CloudEvent: {error}"));
        match events.mode {
            Mode::Binary => request.headers.extend(attributes.headers().map_err(|error| unfit(&error))?),
            // A DELETE has no body that it could be a document in.
            Mode::Structured if payload.is_none() && settings.tombstone == Tombstone::Delete => {}
            Mode::Structured => {
                let declared = content_type.to_str().map_err(|error| unfit(&error))?;
                request.body = Cow::Owned(attributes.document(payload, declared).map_err(|error| unfit(&error))?);
                request.headers.push((CONTENT_TYPE, HeaderValue::from_static(STRUCTURED_TYPE)));
                return Ok(());
            }
        }
    }
    if let Some(payload) = payload {
        request.headers.push((CONTENT_TYPE, content_type));
        request.body = Cow::Borrowed(payload);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::batch_of;
    use outhaul_sdk::NewMessage;
    use proptest::prelude::*;
    use std::time::{Duration, UNIX_EPOCH};

    /// The request as text: first line, headers, a blank line, body; and the headers skipped.
    fn sent(extra: &str, message: &NewMessage<'_>) -> Result<(String, Vec<String>), Failure> {
        let settings = Settings::parse(&format!(r#"{{"url":"https://h/{{topic}}"{extra}}}"#)).unwrap();
        let credentials = Credentials::load(&settings, &|name| Some(format!("{name}-value"))).unwrap();
        let batch = batch_of(std::slice::from_ref(message));
        let mut skipped = Vec::new();
        let now = UNIX_EPOCH + Duration::from_secs(1_614_265_330);
        let request = build(&settings, &credentials, batch.message(0), now, &mut |name, _| skipped.push(name.to_owned()))?;
        let mut text = format!("{} {}\n", request.method, request.target);
        for (name, value) in &request.headers {
            text += &format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()));
        }
        Ok((format!("{text}\n{}", String::from_utf8_lossy(&request.body)), skipped))
    }

    fn message<'a>(headers: &'a [(&'a str, &'a [u8])]) -> NewMessage<'a> {
        NewMessage { id: "1", topic: "t", headers, payload: Some(b"{}"), ..NewMessage::default() }
    }

    #[test]
    fn a_plain_request() {
        let headers: &[(&str, &[u8])] = &[
            ("Trace", b"a"),
            ("trace", b"b"),
            ("Host", b"evil"),
            ("bad name", b"x"),
            ("x", b"a\r\nb: c"),
            ("Content-Type", b"text/plain"),
        ];
        let (text, skipped) =
            sent(r#","headers":{"X-Fixed":"1","Authorization":{"secret":"s","prefix":"Bearer "}}"#, &message(headers)).unwrap();
        let agent = format!("user-agent: {AGENT}");
        let expected = [
            "POST /t",
            "authorization: Bearer s-value",
            "x-fixed: 1",
            &agent,
            "trace: a",
            "trace: b",
            "idempotency-key: 1",
            "content-type: text/plain",
            "content-length: 2",
            "",
            "{}",
        ];
        assert_eq!(text, expected.join("\n"));
        assert_eq!(skipped, ["bad name", "x"]);
    }

    #[test]
    fn a_message_never_replaces_what_is_ours() {
        let headers: &[(&str, &[u8])] =
            &[("X-Fixed", b"forged"), ("Idempotency-Key", b"forged"), ("webhook-id", b"forged"), ("Content-Length", b"9")];
        let extra = r#","headers":{"X-Fixed":"1"},"signature":{"scheme":"standard-webhooks","secret":"whsec"}"#;
        let settings = Settings::parse(&format!(r#"{{"url":"https://h/"{extra}}}"#)).unwrap();
        let credentials = Credentials::load(&settings, &|_| Some("whsec_AAAA".into())).unwrap();
        let batch = batch_of(&[message(headers)]);
        let request = build(&settings, &credentials, batch.message(0), UNIX_EPOCH, &mut |_, _| {}).unwrap();
        let mut names: Vec<&str> = request.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert!(!request.headers.iter().any(|(_, value)| value == "forged"));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), request.headers.len());
    }

    #[test]
    fn tombstones() {
        let message = NewMessage { payload: None, ..message(&[]) };
        let (empty, _) = sent("", &message).unwrap();
        assert!(empty.starts_with("POST") && empty.ends_with("content-length: 0\n\n") && !empty.contains("content-type"), "{empty}");
        let (delete, _) = sent(r#","tombstone":"delete""#, &message).unwrap();
        assert!(delete.starts_with("DELETE") && !delete.contains("content-"), "{delete}");
        assert_eq!(sent(r#","tombstone":"reject""#, &message).unwrap_err().code, FailureCode::InvalidMessage);
        let (payload, _) = sent("", &NewMessage { payload: Some(b""), ..message.clone() }).unwrap();
        assert!(payload.contains("content-type: application/json") && payload.contains("content-length: 0"), "{payload}");
        let structured = r#","tombstone":"delete","cloudevents":{"mode":"structured","source":"/s"}"#;
        assert!(sent(structured, &message).unwrap().0.starts_with("DELETE"));
        let (event, _) = sent(r#","cloudevents":{"mode":"structured","source":"/s"}"#, &message).unwrap();
        assert!(event.ends_with(r#"{"specversion":"1.0","id":"1","source":"/s","type":"t"}"#), "{event}");
    }

    #[test]
    fn events() {
        let (binary, _) = sent(r#","cloudevents":{"mode":"binary","source":"/s"}"#, &message(&[("ce-type", b"forged")])).unwrap();
        assert!(binary.contains("ce-type: t\n") && !binary.contains("forged") && binary.ends_with("\n{}"), "{binary}");
        let (structured, _) = sent(r#","cloudevents":{"mode":"structured","source":"/s"}"#, &message(&[])).unwrap();
        assert!(structured.contains("content-type: application/cloudevents+json\n"), "{structured}");
        assert!(structured.ends_with(r#","datacontenttype":"application/json","data":{}}"#), "{structured}");
    }

    #[test]
    fn an_id_that_no_header_can_carry_is_rejected() {
        let message = NewMessage { id: "a\nb", ..message(&[]) };
        assert_eq!(sent("", &message).unwrap_err().code, FailureCode::InvalidMessage);
        assert!(sent(r#","idempotency_header":"""#, &message).is_ok());
    }

    #[test]
    fn missing_secrets_are_named() {
        let settings = |extra: &str| Settings::parse(&format!(r#"{{"url":"https://h/"{extra}}}"#)).unwrap();
        let error = |settings: &Settings, secret: Option<&str>| Credentials::load(settings, &|_| secret.map(str::to_owned)).unwrap_err();
        let header = settings(r#","headers":{"a":{"secret":"token"}}"#);
        assert_eq!(error(&header, None).code, FailureCode::Unauthorized);
        let broken = error(&header, Some("hunter2\n2"));
        assert!(broken.detail.contains("`token`") && !broken.detail.contains("hunter2"), "{}", broken.detail);
        let signature = settings(r#","signature":{"scheme":"standard-webhooks","secret":"sign"}"#);
        let missing = error(&signature, None);
        assert!(missing.code == FailureCode::SigningUnavailable && missing.detail.contains("`sign`"), "{}", missing.detail);
        let broken = error(&signature, Some("whsec_hunter2***"));
        assert!(broken.code == FailureCode::SigningUnavailable && !broken.detail.contains("hunter2"), "{}", broken.detail);
    }

    /// Bodies that others re-encode before they sign: the stored bytes are what is sent and what is signed.
    #[test]
    fn the_stored_bytes_are_sent_and_signed() {
        let settings =
            Settings::parse(r#"{"url":"https://h/","signature":{"scheme":"rfc9421","algorithm":"hmac-sha256","key_id":"k","secret":"s"}}"#)
                .unwrap();
        let credentials = Credentials::load(&settings, &|_| Some("key".into())).unwrap();
        for body in [br#"{"a":"\u001B"}"#.as_slice(), "{\"e\":\"😊\"}".as_bytes(), b"{ \"a\" :\t1.0e0 ,\n}", b"\xff\x00\xfe", b""] {
            let batch = batch_of(&[NewMessage { payload: Some(body), ..message(&[]) }]);
            let request = build(&settings, &credentials, batch.message(0), UNIX_EPOCH, &mut |_, _| {}).unwrap();
            assert_eq!(&*request.body, body);
            let digest = crate::sign::rfc9421::content_digest(body);
            assert!(request.headers.iter().any(|(name, value)| name == "content-digest" && *value == digest));
        }
    }

    proptest! {
        #[test]
        fn no_message_breaks_a_request(
            id in ".{0,20}", topic in ".{0,20}",
            headers in prop::collection::vec((".{0,8}", prop::collection::vec(any::<u8>(), 0..8)), 0..6),
            payload in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
        ) {
            let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
            let message = NewMessage { id: &id, topic: &topic, headers: &headers, payload: payload.as_deref(), ..NewMessage::default() };
            match sent(r#","cloudevents":{"mode":"binary","source":"/s"}"#, &message) {
                Ok(_) => {}
                Err(failure) => prop_assert_eq!(failure.code, FailureCode::InvalidMessage),
            }
        }
    }
}
