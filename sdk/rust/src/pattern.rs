//! A header name, or the beginning of header names, whatever their case: what lists of headers in a configuration hold.

/// `name`, `begin*` or `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    open_ended: bool,
}

impl Pattern {
    /// Parses.
    ///
    /// # Errors
    /// Empty, or with a `*` that is not at its end.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (start, open_ended) = text.strip_suffix('*').map_or((text, false), |start| (start, true));
        if start.contains('*') || (start.is_empty() && !open_ended) {
            return Err(format!("`{text}` must be a header name, or the beginning of one followed by `*`"));
        }
        Ok(Self { text: start.to_owned(), open_ended })
    }

    /// Parses a list.
    ///
    /// # Errors
    /// That of the first entry that is wrong.
    pub fn parse_all(texts: &[String]) -> Result<Vec<Self>, String> {
        texts.iter().map(|text| Self::parse(text)).collect()
    }

    /// Whether it takes this name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let begins = name.get(..self.text.len()).is_some_and(|start| start.eq_ignore_ascii_case(&self.text));
        begins && (self.open_ended || name.len() == self.text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_beginnings() {
        let matches = |pattern: &str, name: &str| Pattern::parse(pattern).unwrap().matches(name);
        assert!(matches("X-A", "x-a") && !matches("x-a", "x-ab") && !matches("x-ab", "x-a"));
        assert!(matches("X-*", "x-ab") && matches("*", "") && !matches("x-*", "y") && !matches("x-*", "é"));
        for bad in ["", "a*b", "**"] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
    }
}
