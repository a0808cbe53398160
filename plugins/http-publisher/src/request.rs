//! One message as one HTTP request, to the configured endpoint or to the destination of a fan-out delivery, signed over exactly the
//! bytes that are sent.

use crate::cloudevents::{Mode, STRUCTURED_TYPE};
use crate::config::{HeaderSource, SECRET_FOR_ALL, Settings, Tombstone};
use crate::destination;
use crate::endpoint::Address;
use crate::forward::Forwarding;
use crate::header;
use crate::sign::Signer;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT};
use http::{HeaderName, HeaderValue, Method};
use outhaul_sdk::{Batch, Destination, Failure, FailureCode, Message, Outcome};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::SystemTime;

const AGENT: &str = concat!("outhaul-http-publisher/", env!("CARGO_PKG_VERSION"));

/// A request, ready to be sent. No `Debug`: its address may be a subscriber's.
#[derive(Clone)]
pub struct Request<'a> {
    /// Method.
    pub method: Method,
    /// `https`, not `http`.
    pub secure: bool,
    /// Host and port.
    pub authority: Cow<'a, str>,
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
    signing: Signing<'a>,
}

/// Whose keys sign.
#[derive(Debug)]
enum Signing<'a> {
    /// Requests to the endpoint, all alike.
    Endpoint(Option<Signer<'a>>),
    /// Deliveries, each by the scope that it names: the scopes of the batch that are configured.
    Scopes(BTreeMap<&'a str, Result<Signer<'a>, Failure>>),
}

impl<'a> Credentials<'a> {
    /// Fetches the secrets that the settings name and the batch needs; `fetch` gives a secret by name.
    ///
    /// # Errors
    /// `unauthorized` or `signing-unavailable`, with the name of the secret that is missing or unfit, never its value;
    /// `invalid-configuration`: the settings are not for such a batch.
    pub fn load(settings: &'a Settings, batch: &Batch, fetch: &dyn Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let mut headers = Vec::new();
        for (name, source) in &settings.headers {
            let value = match source {
                HeaderSource::Fixed(value) => value.clone(),
                HeaderSource::Secret { .. } if batch.destinations.is_some() => {
                    return Err(Failure::invalid_configuration(format!("`headers.{name}`: {SECRET_FOR_ALL}")));
                }
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
        let signing = match &batch.destinations {
            None => Signing::Endpoint(settings.signature.as_ref().map(|signature| signature.signer(fetch)).transpose()?),
            Some(destinations) => {
                let mut scopes = BTreeMap::new();
                for index in 0..destinations.signing_scopes.len() {
                    let named = destinations.signing_scopes.text(index).and_then(|scope| settings.signing_scopes.get_key_value(scope));
                    if let Some((scope, signature)) = named {
                        scopes.entry(scope.as_str()).or_insert_with(|| signature.signer(fetch));
                    }
                }
                Signing::Scopes(scopes)
            }
        };
        Ok(Self { headers, signing })
    }

    /// Who signs a delivery; none: nobody.
    fn signer(&self, destination: Destination<'_>) -> Result<Option<&Signer<'a>>, Outcome> {
        let Some(scope) = destination.signing_scope else { return Ok(None) };
        let named = |failure: &Failure| format!("subscriber {:?}: {}", destination.subscriber, failure.detail);
        match &self.signing {
            Signing::Scopes(scopes) => match scopes.get(scope) {
                Some(Ok(signer)) => Ok(Some(signer)),
                Some(Err(failure)) => Err(Outcome::Retry(Failure { detail: named(failure), ..failure.clone() })),
                None => Err(Outcome::Reject(unknown_scope(destination, scope))),
            },
            Signing::Endpoint(_) => Err(Outcome::Reject(unknown_scope(destination, scope))),
        }
    }
}

fn unknown_scope(destination: Destination<'_>, scope: &str) -> Failure {
    let detail = format!("subscriber {:?}: there is no signing scope {scope:?} in `signing_scopes`", destination.subscriber);
    Failure::of(FailureCode::Other("permanent-scope".into()), detail)
}

/// The way of one message.
struct Route<'a, 'c> {
    address: Address<'a>,
    signer: Option<&'c Signer<'c>>,
    authentication: Option<(HeaderName, HeaderValue)>,
    /// What is a key to the receiver, where that is not the message's.
    key: Option<String>,
}

impl<'a, 'c> Route<'a, 'c> {
    fn of(settings: &'a Settings, credentials: &'c Credentials<'c>, message: Message<'_>) -> Result<Self, Outcome> {
        let Some(destination) = message.destination() else {
            let endpoint = settings.endpoint.as_ref().ok_or_else(|| {
                let detail = "`url`: is not set, and only the deliveries of a fan-out bring their own address";
                Outcome::Retry(Failure::invalid_configuration(detail))
            })?;
            let signer = if let Signing::Endpoint(signer) = &credentials.signing { signer.as_ref() } else { None };
            let address = endpoint.address(message).map_err(Outcome::Reject)?;
            return Ok(Self { address, signer, authentication: None, key: None });
        };
        let signer = credentials.signer(destination)?;
        let authentication = destination::authentication(destination, |name| settings.forward.is_reserved(name));
        Ok(Self {
            address: destination::address(destination).map_err(Outcome::Reject)?,
            signer,
            authentication: authentication.map_err(Outcome::Reject)?,
            key: message.key().and_then(destination::event_key),
        })
    }
}

/// Makes the request of a message. `skipped` hears of each header of the message that HTTP cannot carry, with the reason.
///
/// # Errors
/// Why this message cannot be sent, now or ever.
pub fn build<'a>(
    settings: &'a Settings,
    credentials: &Credentials<'_>,
    message: Message<'a>,
    now: SystemTime,
    skipped: &mut dyn FnMut(&str, &str),
) -> Result<Request<'a>, Outcome> {
    let Route { address: Address { secure, authority, target }, signer, authentication, key } = Route::of(settings, credentials, message)?;
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
            // What the subscription says comes before what a message says.
            (Forwarding::As(name), _) if authentication.as_ref().is_some_and(|(own, _)| *own == name) => {}
            (Forwarding::As(name), Ok(value)) => headers.push((name, value)),
            (Forwarding::No, _) => {}
            (Forwarding::Impossible(error), _) | (Forwarding::As(_), Err(error)) => skipped(name, error),
        }
    }
    if !headers.iter().any(|(name, _)| *name == USER_AGENT) {
        headers.insert(fixed, (USER_AGENT, HeaderValue::from_static(AGENT)));
    }
    headers.extend(authentication);
    if let Some(name) = &settings.idempotency_header {
        let unfit = |error| Outcome::Reject(Failure::invalid_message(format!("`{name}`: the id: {error}")));
        headers.push((name.clone(), header::value(message.id().as_bytes()).map_err(unfit)?));
    }

    let mut request = Request { method: settings.method.clone(), secure, authority, target, headers, body: Cow::default() };
    let content_type = content_type.unwrap_or_else(|| settings.content_type.clone());
    set_body(&mut request, settings, message, key.as_deref(), content_type).map_err(Outcome::Reject)?;
    if !request.body.is_empty() || request.method != Method::DELETE {
        request.headers.push((CONTENT_LENGTH, HeaderValue::from(request.body.len())));
    }
    if let Some(signer) = signer {
        signer.sign(&mut request, message.id(), now).map_err(Outcome::Reject)?;
    }
    Ok(request)
}

fn set_body<'a>(
    request: &mut Request<'a>,
    settings: &Settings,
    message: Message<'a>,
    key: Option<&str>,
    content_type: HeaderValue,
) -> Result<(), Failure> {
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
        let attributes = events.attributes(message.with_key(key.or(message.key())))?;
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
    use crate::testing::{batch_of, to_subscribers};
    use outhaul_sdk::NewMessage;
    use proptest::prelude::*;
    use std::time::{Duration, UNIX_EPOCH};

    /// The request as text: first line, headers, a blank line, body; and the headers skipped.
    fn sent(extra: &str, message: &NewMessage<'_>) -> Result<(String, Vec<String>), Failure> {
        let settings = Settings::parse(&format!(r#"{{"url":"https://h/{{topic}}"{extra}}}"#)).unwrap();
        let batch = batch_of(std::slice::from_ref(message));
        text_of(&settings, &batch, &|name| Some(format!("{name}-value"))).map_err(|outcome| match outcome {
            Outcome::Reject(failure) => failure,
            other => panic!("{other:?}"),
        })
    }

    fn text_of(settings: &Settings, batch: &Batch, fetch: &dyn Fn(&str) -> Option<String>) -> Result<(String, Vec<String>), Outcome> {
        let credentials = Credentials::load(settings, batch, fetch).map_err(Outcome::Retry)?;
        let mut skipped = Vec::new();
        let now = UNIX_EPOCH + Duration::from_secs(1_614_265_330);
        let request = build(settings, &credentials, batch.message(0), now, &mut |name, _| skipped.push(name.to_owned()))?;
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
        let batch = batch_of(&[message(headers)]);
        let credentials = Credentials::load(&settings, &batch, &|_| Some("whsec_AAAA".into())).unwrap();
        let Ok(request) = build(&settings, &credentials, batch.message(0), UNIX_EPOCH, &mut |_, _| {}) else { panic!() };
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
        let error = |settings: &Settings, secret: Option<&str>| {
            Credentials::load(settings, &Batch::new(), &|_| secret.map(str::to_owned)).unwrap_err()
        };
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
        let credentials = Credentials::load(&settings, &Batch::new(), &|_| Some("key".into())).unwrap();
        for body in [br#"{"a":"\u001B"}"#.as_slice(), "{\"e\":\"😊\"}".as_bytes(), b"{ \"a\" :\t1.0e0 ,\n}", b"\xff\x00\xfe", b""] {
            let batch = batch_of(&[NewMessage { payload: Some(body), ..message(&[]) }]);
            let Ok(request) = build(&settings, &credentials, batch.message(0), UNIX_EPOCH, &mut |_, _| {}) else { panic!() };
            assert_eq!(&*request.body, body);
            let digest = crate::sign::rfc9421::content_digest(body);
            assert!(request.headers.iter().any(|(name, value)| name == "content-digest" && *value == digest));
        }
    }

    const SCOPES: &str = r#"{"headers":{"X-Fixed":"1"},"signing_scopes":{"acme":{"scheme":"standard-webhooks","secret":"s"}}}"#;

    /// What goes to a subscriber at `url` under this scope with this authentication; the secret is as given.
    fn delivered(
        config: &str,
        message: NewMessage<'_>,
        to: (&str, Option<&str>, Option<&str>),
        secret: Option<&str>,
    ) -> Result<String, Outcome> {
        let batch = to_subscribers(&[message], &[("crm", to.0, to.1, to.2)]);
        text_of(&Settings::parse(config).unwrap(), &batch, &|_| secret.map(str::to_owned)).map(|(text, _)| text)
    }

    #[test]
    fn a_delivery_goes_to_its_subscriber_signed_for_its_scope() {
        let message = NewMessage { id: "ik_1", headers: &[("Authorization", b"forged"), ("X-Own", b"kept")], ..message(&[]) };
        let bearer = Some(r#"{"type":"bearer","token":"abc"}"#);
        let text = delivered(SCOPES, message.clone(), ("https://crm.example/in?a=%20b", Some("acme"), bearer), Some("whsec_AAAA")).unwrap();
        let agent = format!("user-agent: {AGENT}");
        let expected = [
            "POST /in?a=%20b",
            "x-fixed: 1",
            &agent,
            "x-own: kept",
            "authorization: Bearer abc",
            "idempotency-key: ik_1",
            "content-type: application/json",
            "content-length: 2",
            "webhook-id: ik_1",
            "webhook-timestamp: 1614265330",
        ];
        assert!(text.starts_with(&expected.join("\n")) && text.contains("\nwebhook-signature: v1,") && text.ends_with("\n\n{}"), "{text}");
        // Not signed and not authenticated, where the subscription says neither: `url` and `signature` are for others.
        let both = r#"{"url":"https://own/","signature":{"scheme":"standard-webhooks","secret":"s"}}"#;
        let text = delivered(both, message, ("http://other:81", None, None), None).unwrap();
        assert!(text.starts_with("POST /\n") && !text.contains("webhook-signature") && text.contains("authorization: forged"), "{text}");
    }

    #[test]
    fn the_key_of_an_event_is_what_receivers_see() {
        let config = r#"{"cloudevents":{"mode":"binary","source":"/s"}}"#;
        let keyed = |key| NewMessage { key: Some(key), ..message(&[]) };
        let subject = |key| delivered(config, keyed(key), ("https://h/", None, None), None).unwrap();
        assert!(subject(r#"["acme","crm","42"]"#).contains("\nce-subject: 42\n"));
        assert!(subject("42").contains("\nce-subject: 42\n"));
    }

    #[test]
    fn signing_material_decides_before_anything_else() {
        let outcome = |url: &str, scope: &str, secret| delivered(SCOPES, message(&[]), (url, Some(scope), None), secret).unwrap_err();
        let Outcome::Reject(failure) = outcome("nonsense", "other", Some("whsec_AAAA")) else { panic!() };
        assert_eq!(failure.code, FailureCode::Other("permanent-scope".into()));
        assert_eq!(failure.detail, "subscriber \"crm\": there is no signing scope \"other\" in `signing_scopes`");
        for secret in [None, Some("whsec_hunter2***")] {
            let Outcome::Retry(failure) = outcome("https://h/", "acme", secret) else { panic!() };
            assert_eq!(failure.code, FailureCode::SigningUnavailable);
            assert!(
                failure.detail.starts_with("subscriber \"crm\": secret `s`: ") && !failure.detail.contains("hunter2"),
                "{}",
                failure.detail
            );
        }
        let Outcome::Reject(failure) = outcome("nonsense", "acme", Some("whsec_AAAA")) else { panic!() };
        assert_eq!((failure.code, failure.detail.contains("nonsense")), (FailureCode::InvalidConfiguration, false));
    }

    #[test]
    fn what_is_for_one_place_does_not_go_to_another() {
        let config = r#"{"url":"https://h/","headers":{"Authorization":{"secret":"s"}}}"#;
        let Outcome::Retry(failure) = delivered(config, message(&[]), ("https://crm/", None, None), Some("x")).unwrap_err() else {
            panic!()
        };
        assert_eq!(failure.code, FailureCode::InvalidConfiguration);
        assert!(failure.detail.starts_with("`headers.authorization`: its secret would go to every subscriber"), "{}", failure.detail);
        let reserved = Some(r#"{"type":"header","name":"X-Fixed","value":"2"}"#);
        assert!(matches!(delivered(SCOPES, message(&[]), ("https://crm/", None, reserved), None), Err(Outcome::Reject(_))));
        // And without a destination there must be a `url`.
        let Err(Outcome::Retry(failure)) = text_of(&Settings::parse("{}").unwrap(), &batch_of(&[message(&[])]), &|_| None) else {
            panic!()
        };
        assert!(failure.detail.starts_with("`url`: is not set"), "{}", failure.detail);
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
