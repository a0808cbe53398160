//! The configuration, checked.

use outhaul_sdk::{Failure, parse_config};
use serde::Deserialize;
use std::collections::HashSet;

/// The adapter's table, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    subscriptions: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(default)]
    tenant: String,
    subscriber: String,
    url: String,
    #[serde(default = "everything")]
    topics: Vec<String>,
    signing_scope: Option<String>,
    authentication_secret: Option<String>,
}

fn everything() -> Vec<String> {
    vec!["*".to_owned()]
}

/// A topic, or the beginning of topics.
#[derive(Debug, PartialEq, Eq)]
pub struct Topic {
    text: String,
    open_ended: bool,
}

impl Topic {
    /// Reads `topic`, `begin*` or `*`.
    fn parse(text: &str) -> Option<Self> {
        let (start, open_ended) = text.strip_suffix('*').map_or((text, false), |start| (start, true));
        (!start.contains('*')).then(|| Self { text: start.to_owned(), open_ended })
    }

    /// Whether it takes this one.
    #[must_use]
    pub fn matches(&self, topic: &str) -> bool {
        if self.open_ended { topic.starts_with(&self.text) } else { topic == self.text }
    }
}

/// Somebody who gets events.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) tenant: String,
    pub(crate) subscriber: String,
    pub(crate) url: String,
    topics: Vec<Topic>,
    pub(crate) signing_scope: Option<String>,
    pub(crate) authentication_secret: Option<String>,
}

/// Everybody who gets events.
#[derive(Debug)]
pub struct Settings(Vec<Subscriber>);

impl Settings {
    /// Reads the configuration.
    ///
    /// # Errors
    /// `invalid-configuration`, naming the key.
    pub fn parse(config: &str) -> Result<Self, Failure> {
        let config: Config = parse_config(config)?;
        let mut seen = HashSet::new();
        let mut subscribers = Vec::new();
        for (index, entry) in config.subscriptions.into_iter().enumerate() {
            let wrong = |key: &str, text: String| Failure::invalid_configuration(format!("`subscriptions[{index}].{key}`: {text}"));
            let Entry { tenant, subscriber, url, topics, signing_scope, authentication_secret } = entry;
            if subscriber.is_empty() {
                return Err(wrong("subscriber", "is empty".to_owned()));
            }
            if !seen.insert((tenant.clone(), subscriber.clone())) {
                return Err(wrong("subscriber", format!("its tenant has another {subscriber:?}: each needs a name of its own")));
            }
            // The URL may be a credential: nothing of it is told.
            if !url.starts_with("https://") && !url.starts_with("http://") {
                return Err(wrong("url", "must be an absolute http:// or https:// URL".to_owned()));
            }
            let topic =
                |text: String| Topic::parse(&text).ok_or_else(|| wrong("topics", format!("{text:?} may have a `*` at its end only")));
            let topics = topics.into_iter().map(topic).collect::<Result<_, _>>()?;
            subscribers.push(Subscriber { tenant, subscriber, url, topics, signing_scope, authentication_secret });
        }
        Ok(Self(subscribers))
    }

    /// The subscribers of a tenant that want a topic.
    pub(crate) fn wanting<'a>(&'a self, tenant: &'a str, topic: &'a str) -> impl Iterator<Item = &'a Subscriber> {
        let of_tenant = self.0.iter().filter(move |subscriber| subscriber.tenant == tenant);
        of_tenant.filter(move |subscriber| subscriber.topics.iter().any(|wanted| wanted.matches(topic)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_whole_or_open_ended() {
        let matches = |pattern: &str, topic: &str| Topic::parse(pattern).unwrap().matches(topic);
        assert!(matches("orders.*", "orders.paid") && !matches("orders.*", "orders") && matches("*", ""));
        assert!(matches("orders", "orders") && !matches("orders", "orders.paid"));
        assert_eq!(Topic::parse("a*b"), None);
    }

    #[test]
    fn errors_name_the_key_and_never_the_url() {
        for (config, key) in [
            (r#"{}"#, "`subscriptions`"),
            (r#"{"subscriptions":[{"subscriber":"a"}]}"#, "`url`"),
            (r#"{"subscriptions":[{"subscriber":"a","url":"https://h/","topic":"x"}]}"#, "`topic`"),
            (r#"{"subscriptions":[{"subscriber":"","url":"https://h/"}]}"#, "`subscriptions[0].subscriber`"),
            (r#"{"subscriptions":[{"subscriber":"a","url":"ftp://hunter2/"}]}"#, "`subscriptions[0].url`"),
            (r#"{"subscriptions":[{"subscriber":"a","url":"https://h/","topics":["a*b"]}]}"#, "`subscriptions[0].topics`"),
            (
                r#"{"subscriptions":[{"subscriber":"a","url":"https://h/"},{"subscriber":"a","url":"https://h/"}]}"#,
                "`subscriptions[1].subscriber`",
            ),
        ] {
            let failure = Settings::parse(config).unwrap_err();
            assert!(failure.detail.contains(key) && !failure.detail.contains("hunter2"), "{config}: {}", failure.detail);
        }
    }
}
