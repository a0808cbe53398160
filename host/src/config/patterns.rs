//! Patterns of topics: those of routes, and those of subscriptions.

use globset::{GlobBuilder, GlobMatcher};

/// A pattern: `*` stands for any characters, `?` for one, `[ab]` and `{a,b}` for alternatives.
#[derive(Clone)]
pub struct TopicPattern {
    text: String,
    matcher: Matcher,
}

#[derive(Clone)]
enum Matcher {
    All,
    /// No character of it means anything else than itself.
    Exact,
    Glob(Box<GlobMatcher>),
}

/// Compiles the text of a pattern.
pub(super) fn glob(text: &str) -> Result<GlobMatcher, String> {
    let glob = GlobBuilder::new(text).literal_separator(false).backslash_escape(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| format!("{text:?} is not a pattern: {}", error.kind()))
}

impl TopicPattern {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let matcher = if text == "*" {
            Matcher::All
        } else if text.contains(['*', '?', '[', ']', '{', '}', '\\']) {
            Matcher::Glob(Box::new(glob(text)?))
        } else {
            Matcher::Exact
        };
        Ok(Self { text: text.to_owned(), matcher })
    }

    /// Whether a topic is one of those that it stands for.
    #[must_use]
    pub fn is_match(&self, topic: &str) -> bool {
        match &self.matcher {
            Matcher::All => true,
            Matcher::Exact => self.text == topic,
            Matcher::Glob(glob) => glob.is_match(topic),
        }
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PartialEq for TopicPattern {
    fn eq(&self, other: &Self) -> bool {
        // The matcher is made of the text.
        self.text == other.text
    }
}

impl Eq for TopicPattern {}

impl std::fmt::Debug for TopicPattern {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:?}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_stand_for_topics() {
        for (pattern, topic, expected) in [
            ("*", "", true),
            ("*", "orders/eu", true),
            ("orders.*", "orders.eu.created", true),
            ("orders.*", "orders", false),
            ("orders.created", "orders.created", true),
            ("orders.created", "orders-created", false),
            ("orders.{created,paid}", "orders.paid", true),
            ("orders.[ab]", "orders.c", false),
            ("order?", "orders", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(TopicPattern::parse(pattern).unwrap().is_match(topic), expected, "{pattern} {topic}");
        }
        assert!(TopicPattern::parse("orders.{a").unwrap_err().starts_with("\"orders.{a\" is not a pattern: "));
    }
}
