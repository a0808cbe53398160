//! What a fan-out delivery brings along: the subscriber's address, how to authenticate there, and whose key signs for it.
//!
//! It comes from a subscription and is as secret as a password: no failure text has a word of it but the subscriber's name.

use crate::endpoint::Address;
use crate::header;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use outhaul_sdk::{Destination, Failure};
use serde::Deserialize;

/// How to authenticate, as the router gave it.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
enum Authentication {
    /// RFC 6750.
    Bearer { token: String },
    /// RFC 7617.
    Basic { user: String, password: String },
    /// Any header.
    Header { name: String, value: String },
}

/// A setting of the subscription that cannot be.
///
/// `what` must not hold any of its values.
pub fn refused(destination: Destination<'_>, what: &str) -> Failure {
    Failure::invalid_configuration(format!("subscriber {:?}: {what}", destination.subscriber))
}

/// Where the delivery goes.
///
/// # Errors
/// `invalid-configuration`: its URL is none that can be sent to.
pub fn address(destination: Destination<'_>) -> Result<Address<'static>, Failure> {
    Address::parse(destination.url).map_err(|what| refused(destination, &format!("its URL {what}")))
}

/// The header that authenticates the delivery; none: nothing does. `is_ours` says which headers the publisher sets itself.
///
/// # Errors
/// `invalid-configuration`: it is of no known form, or makes no header.
pub fn authentication(
    destination: Destination<'_>,
    is_ours: impl Fn(&HeaderName) -> bool,
) -> Result<Option<(HeaderName, HeaderValue)>, Failure> {
    let Some(json) = destination.authentication else { return Ok(None) };
    let refused = |what: &str| refused(destination, &format!("its authentication {what}"));
    // The parser's own text shows values.
    let parsed: Authentication = serde_json::from_str(json).map_err(|_| {
        refused("is none of {\"type\":\"bearer\",\"token\"}, {\"type\":\"basic\",\"user\",\"password\"}, {\"type\":\"header\",\"name\",\"value\"}")
    })?;
    let (name, text) = match parsed {
        Authentication::Bearer { token } if token.trim().is_empty() => return Err(refused("has an empty token")),
        Authentication::Bearer { token } => (AUTHORIZATION, format!("Bearer {token}")),
        Authentication::Basic { user, .. } if user.contains(':') => return Err(refused("has a user with a colon")),
        Authentication::Basic { user, password } => (AUTHORIZATION, format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))),
        Authentication::Header { name, value } => (header::name(&name).map_err(|_| refused("names a header that is not legal"))?, value),
    };
    if is_ours(&name) {
        return Err(refused("names a header that the publisher sets itself, or that belongs to the connection"));
    }
    let mut value = header::value(text.as_bytes()).map_err(|_| refused("has a value with control characters"))?;
    value.set_sensitive(true);
    Ok(Some((name, value)))
}

/// The key of the event in the key of its delivery, which is the JSON array of tenant, subscriber and that key: what is made of keys
/// is the same as without a fan-out.
#[must_use]
pub fn event_key(key: &str) -> Option<String> {
    serde_json::from_str(key).ok().map(|[_tenant, _subscriber, key]: [String; 3]| key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outhaul_sdk::FailureCode;

    fn to<'a>(url: &'a str, authentication: Option<&'a str>) -> Destination<'a> {
        Destination { url, tenant: Some("acme"), subscriber: "crm", signing_scope: None, authentication }
    }

    fn header_of(json: &str) -> Result<String, Failure> {
        let header = authentication(to("", Some(json)), |name| name == "x-ours")?.unwrap();
        assert!(header.1.is_sensitive());
        Ok(format!("{}: {}", header.0, header.1.to_str().unwrap()))
    }

    #[test]
    fn the_forms_of_authentication() {
        assert_eq!(authentication(to("", None), |_| true).unwrap(), None);
        assert_eq!(header_of(r#"{"type":"bearer","token":"abc"}"#).unwrap(), "authorization: Bearer abc");
        // RFC 7617 section 2.
        let basic = header_of(r#"{"type":"basic","user":"Aladdin","password":"open sesame"}"#).unwrap();
        assert_eq!(basic, "authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(header_of(r#"{"type":"header","name":"X-Api-Key","value":"abc"}"#).unwrap(), "x-api-key: abc");
    }

    #[test]
    fn what_cannot_be_is_refused_without_a_word_of_it() {
        for json in [
            "hunter2",
            "{}",
            r#"["hunter2"]"#,
            r#"{"type":"hunter2"}"#,
            r#"{"type":"bearer"}"#,
            r#"{"type":"bearer","token":" "}"#,
            r#"{"type":"bearer","token":["hunter2"]}"#,
            r#"{"type":"bearer","token":"a","hunter2":1}"#,
            r#"{"type":"bearer","token":"hunter2\r\nx: y"}"#,
            r#"{"type":"basic","user":"hunter2:","password":"a"}"#,
            r#"{"type":"header","name":"hunter2 ","value":"a"}"#,
            r#"{"type":"header","name":"a","value":"hunter2\n"b}"#,
            r#"{"type":"header","name":"X-Ours","value":"hunter2"}"#,
        ] {
            let failure = header_of(json).unwrap_err();
            assert_eq!(failure.code, FailureCode::InvalidConfiguration, "{json}");
            assert!(
                failure.detail.starts_with("subscriber \"crm\": its authentication ") && !failure.detail.contains("hunter2"),
                "{}",
                failure.detail
            );
        }
        let Err(failure) = address(to("https://user:hunter2@h/", None)) else { panic!("taken") };
        assert_eq!(failure.detail, "subscriber \"crm\": its URL does not name a host");
    }

    #[test]
    fn the_key_of_the_event() {
        assert_eq!(event_key(r#"["acme","crm","a\"1"]"#).as_deref(), Some("a\"1"));
        for other in ["42", "[]", r#"["a","b"]"#, r#"["a","b",1]"#, r#"["a","b","c","d"]"#] {
            assert_eq!(event_key(other), None, "{other}");
        }
    }
}
