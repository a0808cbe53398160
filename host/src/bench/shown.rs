//! The `config` of an adapter as a report may show it: without what can be a credential. Secrets stand in it by name only, but a URL may
//! hold a password or a token, and so may a text where a secret could have been named.

use serde_json::{Map, Value};

/// Texts below keys with one of these in their names are not shown.
const HIDDEN: [&str; 8] = ["headers", "authorization", "password", "passphrase", "token", "secret", "credential", "api_key"];

/// In place of what is not shown.
const STARS: &str = "***";

/// What a report may show of it.
pub(super) fn shown(config: &Value) -> Value {
    below(config, false)
}

fn below(value: &Value, is_hidden: bool) -> Value {
    match value {
        Value::Object(entries) => {
            Value::Object(entries.iter().map(|(key, value)| (key.clone(), entry(key, value, is_hidden))).collect::<Map<_, _>>())
        }
        Value::Array(values) => values.iter().map(|value| below(value, is_hidden)).collect(),
        Value::String(_) if is_hidden => STARS.into(),
        Value::String(text) => without_credentials(text).into(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn entry(key: &str, value: &Value, is_hidden: bool) -> Value {
    let key = key.to_ascii_lowercase();
    // The name of one.
    let is_hidden = key != "secret" && (is_hidden || HIDDEN.iter().any(|hidden| key.contains(hidden)));
    below(value, is_hidden)
}

/// A URL without user, password and query; any other text as it is. Not parsed as one: it may be a template.
fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or_else(|| authority.to_owned(), |(_, host)| format!("{STARS}@{host}"));
    let target = target.split_once('?').map_or_else(|| target.to_owned(), |(path, _)| format!("{path}?{STARS}"));
    format!("{scheme}://{host}{target}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn credentials_are_not_shown() {
        let config = json!({
            "url": "https://me:pass@a.example:8/{topic}?key=1",
            "fallbacks": ["https://b.example/in", "postgres://me@c.example", "a text"],
            "concurrency": 8,
            "headers": { "x-api-key": "1", "authorization": { "secret": "hook", "prefix": "Bearer " } },
            "sasl": { "username": "me", "Password": "2" },
            "client_secret": "3",
        });
        let expected = json!({
            "url": "https://***@a.example:8/{topic}?***",
            "fallbacks": ["https://b.example/in", "postgres://***@c.example", "a text"],
            "concurrency": 8,
            "headers": { "x-api-key": "***", "authorization": { "secret": "hook", "prefix": "***" } },
            "sasl": { "username": "me", "Password": "***" },
            "client_secret": "***",
        });
        assert_eq!(shown(&config), expected);
    }
}
