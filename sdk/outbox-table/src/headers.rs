//! Headers as they are stored: a JSON object, or an array of `[name, value]` pairs where names repeat. Order is kept.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// Headers of one message at most: far more than any destination takes, so that a bad row is named rather than sent.
pub const MAX_HEADERS: usize = 1024;

/// Decoded headers, in order, duplicates kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(String, String)>);

impl Headers {
    /// Reads stored headers. No text, blank text and JSON `null` mean none. A value is a string, a number or a truth value (both taken
    /// as they are written), null (the header is left out), or an array of such values (the name repeats).
    ///
    /// # Errors
    /// A text that says what is wrong, without quoting values.
    pub fn decode(stored: &[u8]) -> Result<Self, String> {
        let stored = stored.trim_ascii();
        if stored.is_empty() || stored == b"{}" || stored == b"[]" || stored == b"null" {
            return Ok(Self::default());
        }
        if !matches!(stored.first(), Some(b'{' | b'[')) {
            return Err("the headers are not a JSON object or an array of [name, value] pairs".to_owned());
        }
        serde_json::from_slice(stored).map_err(|error| format!("the headers are not what is expected: {error}"))
    }

    /// As they are stored: an object, or pairs where a name repeats.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let pair = |(name, value): &(String, String), between: &str| {
            format!("{}{between}{}", serde_json::Value::from(name.as_str()), serde_json::Value::from(value.as_str()))
        };
        if names.len() == self.0.len() {
            format!("{{{}}}", self.0.iter().map(|header| pair(header, ":")).collect::<Vec<_>>().join(","))
        } else {
            format!("[{}]", self.0.iter().map(|header| format!("[{}]", pair(header, ","))).collect::<Vec<_>>().join(","))
        }
    }

    fn add<E: Error>(&mut self, name: &str, value: &RawValue) -> Result<(), E> {
        let text = value.get();
        match text.bytes().next() {
            Some(b'n') => return Ok(()),
            Some(b'{') => return Err(E::custom("a value is an object; a header's value is text, or a list of texts")),
            Some(b'[') => {
                for item in serde_json::from_str::<Vec<&RawValue>>(text).map_err(E::custom)? {
                    if item.get().starts_with('[') {
                        return Err(E::custom("a value is a list in a list; a header's value is text, or a list of texts"));
                    }
                    self.add(name, item)?;
                }
                return Ok(());
            }
            _ => {}
        }
        if self.0.len() >= MAX_HEADERS {
            return Err(E::custom(format!("there are more than {MAX_HEADERS}")));
        }
        let value = if text.starts_with('"') { serde_json::from_str(text).map_err(E::custom)? } else { text.to_owned() };
        self.0.push((name.to_owned(), value));
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HeadersVisitor)
    }
}

/// An object's entries in order (a map type would sort or merge them), or pairs.
struct HeadersVisitor;

impl<'de> Visitor<'de> for HeadersVisitor {
    type Value = Headers;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object, or an array of [name, value] pairs")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
        let mut headers = Headers::default();
        while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
            headers.add(&name, value)?;
        }
        Ok(headers)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Headers, A::Error> {
        let mut headers = Headers::default();
        while let Some(pair) = seq.next_element::<&RawValue>()? {
            // serde's own message would quote the value.
            let (name, value): (String, &RawValue) =
                serde_json::from_str(pair.get()).map_err(|_| Error::custom("an entry of the array is not a [name, value] pair"))?;
            headers.add(&name, value)?;
        }
        Ok(headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(text: &str) -> Vec<(String, String)> {
        Headers::decode(text.as_bytes()).unwrap().0
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn order_and_duplicates_are_kept() {
        assert_eq!(decoded(r#"{"z":"1","a":"2","z":"3"}"#), pairs(&[("z", "1"), ("a", "2"), ("z", "3")]));
        assert_eq!(decoded(r#"[["z","1"],["a","\u0041"],["z","3"]]"#), pairs(&[("z", "1"), ("a", "A"), ("z", "3")]));
        assert_eq!(
            decoded(r#"{"a":["1","2"],"n":1.50,"t":true,"x":null}"#),
            pairs(&[("a", "1"), ("a", "2"), ("n", "1.50"), ("t", "true")])
        );
    }

    #[test]
    fn nothing_means_none() {
        for text in ["", "  ", "{}", "[]", "null", "{ }"] {
            assert_eq!(decoded(text), [], "{text:?}");
        }
    }

    #[test]
    fn what_is_not_headers_is_refused_and_not_quoted() {
        for text in ["oops", "1", "\"secret\"", "{\"a\":{}}", "[[\"a\"]]", "{\"a\":\"1\"} x", "{\"a\":[[\"1\"]]}", "\u{fffd}"] {
            let refused = Headers::decode(text.as_bytes()).unwrap_err();
            assert!(refused.starts_with("the headers are not"), "{text:?}: {refused}");
        }
        assert!(Headers::decode(&[b'{', 0xff, b'}']).is_err());
        let many = format!("{{{}}}", (0..=MAX_HEADERS).map(|n| format!("\"{n}\":\"\"")).collect::<Vec<_>>().join(","));
        assert!(Headers::decode(many.as_bytes()).unwrap_err().contains("more than 1024"));
    }

    proptest! {
        #[test]
        fn what_is_stored_reads_back(headers in prop::collection::vec((".{0,8}", ".{0,8}"), 0..8)) {
            let headers = Headers(headers);
            prop_assert_eq!(Headers::decode(headers.encode().as_bytes()), Ok(headers));
        }
    }
}
