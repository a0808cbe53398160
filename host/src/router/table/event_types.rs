//! What a row of subscriptions says it wants: nothing said is everything; else one pattern, or a list of them.

use crate::config::model::TopicPattern;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Different contents of the column that are kept compiled: many subscribers want the same, and what is over this is compiled again.
const KEPT: usize = 4096;

/// Most patterns of one row.
const MAX_PATTERNS: usize = 1000;

/// Patterns, or why there are none.
pub(super) type Wanted = Result<Arc<Vec<TopicPattern>>, String>;

/// Patterns by the content of the column that they were read from.
#[derive(Default)]
pub(super) struct Compiled {
    kept: Mutex<HashMap<String, Wanted>>,
    everything: Mutex<Option<Wanted>>,
}

impl Compiled {
    /// What a row wants by its column. `json`: a single pattern is a JSON text too.
    pub(super) fn wanted(&self, content: Option<&str>, json: bool) -> Wanted {
        let Some(content) = content else {
            let mut everything = self.everything.lock().unwrap_or_else(PoisonError::into_inner);
            return everything.get_or_insert_with(|| patterns(["*"])).clone();
        };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wanted) = kept.get(content) {
            return wanted.clone();
        }
        if kept.len() >= KEPT {
            kept.clear();
        }
        let wanted = if json { read_json(content) } else { read(content) };
        kept.insert(content.to_owned(), wanted.clone());
        wanted
    }
}

/// One pattern, or a JSON array of them.
fn read(text: &str) -> Wanted {
    if text.trim_start().starts_with('[') { list(text) } else { patterns([text]) }
}

/// The same as a JSON value: a text, or an array of texts.
fn read_json(value: &str) -> Wanted {
    match serde_json::from_str::<serde_json::Value>(value) {
        Ok(serde_json::Value::String(text)) => read(&text),
        Ok(serde_json::Value::Null) => patterns(["*"]),
        _ => list(value),
    }
}

fn list(text: &str) -> Wanted {
    let list: Vec<String> =
        serde_json::from_str(text).map_err(|_| "is neither a pattern nor a JSON array of patterns, as in [\"orders.*\"]".to_owned())?;
    if list.len() > MAX_PATTERNS {
        return Err(format!("has {} patterns, where at most {MAX_PATTERNS} can be", list.len()));
    }
    patterns(list)
}

fn patterns<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> Wanted {
    let patterns: Result<Vec<TopicPattern>, String> = texts.into_iter().map(|text| TopicPattern::parse(text.as_ref())).collect();
    patterns.map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_says_what_is_wanted() {
        let compiled = Compiled::default();
        for (content, json, topic, expected) in [
            (None, false, "a", true),
            (Some("orders.*"), false, "orders.paid", true),
            (Some("orders.*"), false, "users.new", false),
            (Some("[\"orders.*\",\"users.new\"]"), false, "users.new", true),
            (Some("[]"), false, "users.new", false),
            (Some(""), false, "users.new", false),
            (Some("\"orders.*\""), true, "orders.paid", true),
            (Some("[\"orders.*\"]"), true, "orders.paid", true),
            (Some("\"[\\\"orders.*\\\"]\""), true, "orders.paid", true),
            (Some("null"), true, "a", true),
        ] {
            let wanted = compiled.wanted(content, json).unwrap();
            assert_eq!(wanted.iter().any(|pattern| pattern.is_match(topic)), expected, "{content:?} {topic}");
        }
        for (content, json) in [("[1]", false), ("[orders", false), ("{\"a\":1}", true), ("3", true), ("[[\"a\"]]", true)] {
            assert!(compiled.wanted(Some(content), json).unwrap_err().starts_with("is neither"), "{content}");
        }
        assert!(compiled.wanted(Some("[\"a{\"]"), false).unwrap_err().contains("is not a pattern"));
        let many = serde_json::to_string(&vec!["a"; MAX_PATTERNS + 1]).unwrap();
        assert!(compiled.wanted(Some(&many), false).unwrap_err().contains("1001 patterns"));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let compiled = Compiled::default();
        for index in 0..KEPT + 1 {
            compiled.wanted(Some(&index.to_string()), false).unwrap();
        }
        assert_eq!(compiled.kept.lock().unwrap().len(), 1);
    }
}
