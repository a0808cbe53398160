//! What a router says of an event, checked: who it names must be of the event's tenant, each once, with an endpoint that can be sent to.

use crate::config::endpoint;
use crate::ports::fan_out::Subscription;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashSet;

/// Longest name of a subscriber, in bytes: it is in indexes, and a row of PostgreSQL's has at most 2,704 bytes.
const MAX_SUBSCRIBER_BYTES: usize = 512;

/// Longest text of any other field, in bytes: they become columns of a row.
const MAX_TEXT_BYTES: usize = 4 << 10;

/// Longest authentication, in bytes: it travels in every envelope.
const MAX_AUTHENTICATION_BYTES: usize = 64 << 10;

/// What makes no sense in an answer. The text names subscriber and reason, never URL or credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Nonsense(String);

/// Checks the subscribers of an event of `tenant`. Returns the mode of authentication of each, in their order.
///
/// # Errors
/// The first thing that makes no sense.
pub(super) fn check(tenant: &str, subscriptions: &[Subscription], most: usize) -> Result<Vec<String>, Nonsense> {
    if subscriptions.len() > most {
        let text = format!("the router names {} subscribers, and max_subscribers is {most}", subscriptions.len());
        return Err(Nonsense(text));
    }
    let mut seen = HashSet::new();
    let mut modes = Vec::with_capacity(subscriptions.len());
    for one in subscriptions {
        if one.subscriber.is_empty() {
            return Err(Nonsense("the router names a subscriber with an empty name".to_owned()));
        }
        let mode = check_one(tenant, one)
            .and_then(|mode| if seen.insert(one.subscriber.as_str()) { Ok(mode) } else { Err("is there twice".into()) });
        modes.push(mode.map_err(|reason| Nonsense(format!("the router's subscriber {:?} {reason}", shown(&one.subscriber))))?);
    }
    Ok(modes)
}

fn check_one(tenant: &str, one: &Subscription) -> Result<String, Cow<'static, str>> {
    if one.tenant != tenant {
        return Err("is of another tenant than the event".into());
    }
    if one.subscriber.len() > MAX_SUBSCRIBER_BYTES {
        return Err("has a name of more than 512 bytes".into());
    }
    let texts = [Some(&one.subscriber), Some(&one.principal), Some(&one.revision), one.signing_scope.as_ref()];
    // A NUL cannot be written to every database.
    if texts.into_iter().flatten().any(|text| text.len() > MAX_TEXT_BYTES || text.contains('\0')) {
        return Err("has a text that is too long, or has a NUL in it".into());
    }
    if let Some(fault) = endpoint::fault(&one.url) {
        return Err(format!("has a URL that {fault}").into());
    }
    Ok(auth_mode(one.authentication.as_deref())?)
}

/// `none`, or the `type` of the authentication.
fn auth_mode(authentication: Option<&str>) -> Result<String, &'static str> {
    let Some(authentication) = authentication else { return Ok("none".to_owned()) };
    if authentication.len() > MAX_AUTHENTICATION_BYTES {
        return Err("has an authentication of more than 64 KiB");
    }
    let Ok(Value::Object(object)) = serde_json::from_str(authentication) else {
        return Err("has an authentication that is not a JSON object");
    };
    match object.get("type") {
        Some(Value::String(mode)) if !mode.is_empty() && mode.len() <= 64 && !mode.contains('\0') => Ok(mode.clone()),
        _ => Err("has an authentication without a \"type\""),
    }
}

/// A name short enough for a text.
fn shown(name: &str) -> String {
    name.chars().take(128).collect()
}

#[cfg(test)]
mod tests {
    use super::super::binding::tests::subscription;
    use super::*;

    fn told(change: impl Fn(&mut Subscription)) -> Result<Vec<String>, String> {
        let mut one = subscription();
        change(&mut one);
        check("acme", &[one], 10).map_err(|nonsense| nonsense.to_string())
    }

    fn refused(change: impl Fn(&mut Subscription), reason: &str) {
        let text = told(change).unwrap_err();
        assert!(text.contains(reason), "{text}");
        assert!(!text.contains("example") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn what_makes_sense_is_taken() {
        assert_eq!(told(|_| {}), Ok(vec!["bearer".to_owned()]));
        assert_eq!(told(|one| one.authentication = None), Ok(vec!["none".to_owned()]));
        assert_eq!(told(|one| one.url = "http://[::1]:8080/?q=%20".into()), Ok(vec!["bearer".to_owned()]));
        assert_eq!(check("acme", &[], 0), Ok(Vec::new()));
    }

    #[test]
    fn another_tenants_subscriber_is_refused() {
        refused(|one| one.tenant = "other".into(), "\"crm\" is of another tenant than the event");
    }

    #[test]
    fn a_subscriber_twice_is_refused_and_so_is_one_without_a_name() {
        let twice = check("acme", &[subscription(), subscription()], 10).unwrap_err().to_string();
        assert_eq!(twice, "the router's subscriber \"crm\" is there twice");
        refused(|one| one.subscriber.clear(), "an empty name");
    }

    #[test]
    fn more_subscribers_than_allowed_are_refused() {
        assert_eq!(
            check("acme", &[subscription(), subscription()], 1).unwrap_err().to_string(),
            "the router names 2 subscribers, and max_subscribers is 1"
        );
    }

    #[test]
    fn a_bad_url_is_refused_and_never_shown() {
        for url in ["", "/in", "crm.example/in", "ftp://crm.example/", "file:///etc/passwd", "mailto:a@example", "https://", "https:// x"] {
            refused(|one| one.url = url.into(), "has a URL that is");
        }
        for url in ["https://me@crm.example/", "https://me:hunter2@crm.example/", "https://:hunter2@crm.example/"] {
            refused(|one| one.url = url.into(), "has a URL that holds a user or a password");
        }
        for url in ["https://crm.example/a b", "https://crm.example/../in", "https://crm.example/#hunter2", "https://crm.example/{hunter2}"]
        {
            refused(|one| one.url = url.into(), "has a URL that has");
        }
        refused(|one| one.url = format!("https://crm.example/{}", "x".repeat(endpoint::MAX_BYTES)), "longer than 8 KiB");
    }

    #[test]
    fn an_authentication_that_is_none_is_refused_and_never_shown() {
        for authentication in ["", "hunter2", "[\"hunter2\"]", "null", "{\"type\":\"bearer\""] {
            refused(|one| one.authentication = Some(authentication.into()), "not a JSON object");
        }
        for authentication in ["{}", "{\"type\":1,\"token\":\"hunter2\"}", "{\"type\":\"\"}"] {
            refused(|one| one.authentication = Some(authentication.into()), "without a \"type\"");
        }
    }

    #[test]
    fn texts_that_no_column_holds_are_refused() {
        refused(|one| one.revision = "a\0b".into(), "NUL");
        refused(|one| one.principal = "x".repeat(MAX_TEXT_BYTES + 1), "too long");
        refused(|one| one.subscriber = "x".repeat(MAX_SUBSCRIBER_BYTES + 1), "x\" has a name of more than 512 bytes");
        assert_eq!(told(|one| one.subscriber = "x".repeat(MAX_SUBSCRIBER_BYTES)), Ok(vec!["bearer".to_owned()]));
    }
}
