//! Which headers of a message become headers of its request, and under which names.

use crate::header;
use http::HeaderName;
use outhaul_sdk::pattern::Pattern;
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};

/// `forward_headers`, as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ForwardConfig {
    include: Vec<String>,
    exclude: Vec<String>,
    prefix: String,
    rename: BTreeMap<String, String>,
}

impl Default for ForwardConfig {
    fn default() -> Self {
        Self { include: vec!["*".into()], exclude: Vec::new(), prefix: String::new(), rename: BTreeMap::new() }
    }
}

/// What happens to one header of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forwarding {
    /// Passed on under this name.
    As(HeaderName),
    /// Left out by the rules.
    No,
    /// Left out because HTTP cannot carry it: worth a word in the log.
    Impossible(&'static str),
}

/// The rules, checked.
#[derive(Debug, Clone)]
pub struct Forward {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
    prefix: String,
    /// By lower-case name.
    rename: BTreeMap<String, HeaderName>,
    /// Set by the publisher itself: a message can never replace them.
    reserved: HashSet<HeaderName>,
    /// `ce-*` is the publisher's as well.
    reserve_cloudevents: bool,
}

impl Forward {
    /// Checks the rules. `reserved` are the headers that the publisher sets itself.
    ///
    /// # Errors
    /// The key below `forward_headers`, and what is wrong with it.
    pub fn new(config: &ForwardConfig, reserved: HashSet<HeaderName>, reserve_cloudevents: bool) -> Result<Self, String> {
        let patterns = |key: &str, texts: &[String]| Pattern::parse_all(texts).map_err(|error| format!("`forward_headers.{key}`: {error}"));
        if !config.prefix.is_empty() {
            header::name(&config.prefix).map_err(|error| format!("`forward_headers.prefix`: {error}"))?;
        }
        let mut forward = Self {
            include: patterns("include", &config.include)?,
            exclude: patterns("exclude", &config.exclude)?,
            prefix: config.prefix.to_ascii_lowercase(),
            rename: BTreeMap::new(),
            reserved,
            reserve_cloudevents,
        };
        for (from, to) in &config.rename {
            let problem = |what: &str| format!("`forward_headers.rename.{from}`: {what}");
            let name = header::name(to).map_err(problem)?;
            if forward.is_reserved(&name) {
                return Err(problem(&format!("`{name}` is set by the publisher or belongs to the connection")));
            }
            forward.rename.insert(from.to_ascii_lowercase(), name);
        }
        Ok(forward)
    }

    /// What happens to the header of this name.
    #[must_use]
    pub fn forwarding(&self, name: &str) -> Forwarding {
        let lower = name.to_ascii_lowercase();
        if let Some(renamed) = self.rename.get(&lower) {
            return Forwarding::As(renamed.clone());
        }
        let matches = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(&lower));
        // The payload's type is sent as the request's own, not passed on.
        if lower == "content-type" || !matches(&self.include) || matches(&self.exclude) {
            return Forwarding::No;
        }
        match (header::name(&lower), header::name(&format!("{}{lower}", self.prefix))) {
            (Ok(plain), _) if header::is_connection_level(&plain) => Forwarding::No,
            (Ok(_), Ok(prefixed)) if self.is_reserved(&prefixed) => Forwarding::No,
            (Ok(_), Ok(prefixed)) => Forwarding::As(prefixed),
            (Err(error), _) | (_, Err(error)) => Forwarding::Impossible(error),
        }
    }

    /// Whether a header is set by the publisher itself or belongs to the connection.
    #[must_use]
    pub fn is_reserved(&self, name: &HeaderName) -> bool {
        header::is_connection_level(name) || self.reserved.contains(name) || (self.reserve_cloudevents && name.as_str().starts_with("ce-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(json: &str) -> Result<Forward, String> {
        let reserved = HashSet::from([HeaderName::from_static("authorization")]);
        Forward::new(&serde_json::from_str(json).unwrap(), reserved, true)
    }

    fn name(forward: &Forward, name: &str) -> String {
        match forward.forwarding(name) {
            Forwarding::As(name) => name.to_string(),
            Forwarding::No => "-".into(),
            Forwarding::Impossible(_) => "!".into(),
        }
    }

    #[test]
    fn by_default_all_that_is_legal_and_not_ours() {
        let rules = forward("{}").unwrap();
        assert_eq!(name(&rules, "TraceParent"), "traceparent");
        for ours in ["Authorization", "Host", "Content-Length", "transfer-encoding", "Content-Type", "ce-id"] {
            assert_eq!(name(&rules, ours), "-", "{ours}");
        }
        for illegal in ["a b", "", "é", "x\r\ny"] {
            assert_eq!(name(&rules, illegal), "!", "{illegal:?}");
        }
    }

    #[test]
    fn include_exclude_prefix_rename() {
        let rules = forward(r#"{"include":["x-*","b"],"exclude":["X-Secret"],"prefix":"Out-","rename":{"Tenant":"X-Tenant"}}"#).unwrap();
        let names = ["x-a", "X-SECRET", "b", "bb", "tenant"].map(|text| name(&rules, text));
        assert_eq!(names, ["out-x-a", "-", "out-b", "-", "x-tenant"]);
        assert_eq!(name(&forward(r#"{"include":[]}"#).unwrap(), "a"), "-");
        // A prefix makes no way around what belongs to the publisher or the connection.
        assert_eq!(name(&forward(r#"{"prefix":"ce-"}"#).unwrap(), "id"), "-");
        assert_eq!(name(&forward(r#"{"prefix":"x-"}"#).unwrap(), "host"), "-");
    }

    #[test]
    fn bad_rules_are_named() {
        for (json, key) in [
            (r#"{"include":["a*b"]}"#, "`forward_headers.include`"),
            (r#"{"exclude":[""]}"#, "`forward_headers.exclude`"),
            (r#"{"prefix":"a b"}"#, "`forward_headers.prefix`"),
            (r#"{"rename":{"a":"b c"}}"#, "`forward_headers.rename.a`"),
            (r#"{"rename":{"a":"Host"}}"#, "`forward_headers.rename.a`"),
            (r#"{"rename":{"a":"ce-id"}}"#, "`forward_headers.rename.a`"),
        ] {
            let error = forward(json).unwrap_err();
            assert!(error.contains(key), "{json}: {error}");
        }
    }
}
