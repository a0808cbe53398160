//! Which headers of a message become headers of its record, and under which names.

use crate::record::Header;
use outhaul_sdk::Message;
use outhaul_sdk::pattern::Pattern;
use serde::Deserialize;
use std::collections::BTreeMap;

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

/// The rules, checked. Names are compared whatever their case, and passed on as they are written.
#[derive(Debug, Clone)]
pub struct Forward {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
    prefix: String,
    rename: Vec<(String, String)>,
    /// Never passed on: what the publisher sets itself, and what is addressed to it.
    reserved: Vec<String>,
}

impl Forward {
    /// Checks the rules.
    ///
    /// # Errors
    /// The key below `forward_headers`, and what is wrong with it.
    pub fn new(config: ForwardConfig, reserved: Vec<String>) -> Result<Self, String> {
        let patterns = |key: &str, texts: &[String]| Pattern::parse_all(texts).map_err(|error| format!("`forward_headers.{key}`: {error}"));
        for (from, to) in &config.rename {
            let problem = |what: &str| Err(format!("`forward_headers.rename.{from}`: {what}"));
            if from.is_empty() || to.is_empty() {
                return problem("names must not be empty");
            }
            if reserved.iter().any(|name| name.eq_ignore_ascii_case(to)) {
                return problem(&format!("`{to}` is set by the publisher"));
            }
        }
        Ok(Self {
            include: patterns("include", &config.include)?,
            exclude: patterns("exclude", &config.exclude)?,
            prefix: config.prefix,
            rename: config.rename.into_iter().collect(),
            reserved,
        })
    }

    /// Appends the headers that are passed on.
    pub fn append<'a>(&'a self, message: Message<'a>, headers: &mut Vec<Header<'a>>) {
        for (name, value) in message.headers() {
            if let Some((prefix, name)) = self.forwarded(name) {
                headers.push(Header { prefix, name, value });
            }
        }
    }

    fn forwarded<'a>(&'a self, name: &'a str) -> Option<(&'a str, &'a str)> {
        if let Some((_, to)) = self.rename.iter().find(|(from, _)| from.eq_ignore_ascii_case(name)) {
            return Some(("", to));
        }
        let any = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        let reserved = self.reserved.iter().any(|reserved| is_joined(reserved, &self.prefix, name));
        (any(&self.include) && !any(&self.exclude) && !reserved).then_some((self.prefix.as_str(), name))
    }
}

/// Whether `whole` is `prefix` and `name`, whatever the case.
fn is_joined(whole: &str, prefix: &str, name: &str) -> bool {
    whole.split_at_checked(prefix.len()).is_some_and(|(start, end)| start.eq_ignore_ascii_case(prefix) && end.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(json: &str) -> Result<Forward, String> {
        Forward::new(serde_json::from_str(json).unwrap(), vec!["outhaul-id".into()])
    }

    fn name(forward: &Forward, name: &str) -> String {
        forward.forwarded(name).map_or_else(|| "-".into(), |(prefix, name)| format!("{prefix}{name}"))
    }

    #[test]
    fn by_default_all_but_ours() {
        let rules = forward("{}").unwrap();
        for passed in ["TraceParent", "content-type", "", "é", "a b"] {
            assert_eq!(name(&rules, passed), passed);
        }
        assert_eq!(name(&rules, "Outhaul-Id"), "-");
    }

    #[test]
    fn include_exclude_prefix_rename() {
        let rules = forward(r#"{"include":["x-*","b"],"exclude":["X-Secret"],"prefix":"Out-","rename":{"Tenant":"X-Tenant"}}"#).unwrap();
        let names = ["x-A", "X-SECRET", "b", "bb", "tenant"].map(|text| name(&rules, text));
        assert_eq!(names, ["Out-x-A", "-", "Out-b", "-", "X-Tenant"]);
        assert_eq!(name(&forward(r#"{"include":[]}"#).unwrap(), "a"), "-");
        // A prefix makes no way around what is ours.
        assert_eq!(name(&forward(r#"{"prefix":"outhaul-"}"#).unwrap(), "ID"), "-");
    }

    #[test]
    fn bad_rules_are_named() {
        for (json, key) in [
            (r#"{"include":["a*b"]}"#, "`forward_headers.include`"),
            (r#"{"exclude":[""]}"#, "`forward_headers.exclude`"),
            (r#"{"rename":{"a":""}}"#, "`forward_headers.rename.a`"),
            (r#"{"rename":{"a":"Outhaul-ID"}}"#, "`forward_headers.rename.a`"),
        ] {
            let error = forward(json).unwrap_err();
            assert!(error.contains(key), "{json}: {error}");
        }
    }
}
