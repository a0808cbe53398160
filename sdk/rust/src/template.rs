//! Texts with placeholders: `{topic}`, `{key}`, `{id}`, `{header:NAME}`; `{{` and `}}` stand for the braces themselves.

use crate::Message;
use std::fmt;
use thiserror::Error;

/// What a placeholder stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// `{topic}`.
    Topic,
    /// `{key}`.
    Key,
    /// `{id}`.
    Id,
    /// `{header:NAME}`: the first header of that name, whatever its case.
    Header(String),
}

impl Field {
    /// The value in a message. An empty value counts as none: `/orders/` is another resource than `/orders/7`.
    fn value<'a>(&self, message: Message<'a>) -> Option<&'a [u8]> {
        match self {
            Self::Topic => Some(message.topic().as_bytes()),
            Self::Key => message.key().map(str::as_bytes),
            Self::Id => Some(message.id().as_bytes()),
            Self::Header(name) => message.headers().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value),
        }
        .filter(|value| !value.is_empty())
    }
}

impl fmt::Display for Field {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic => formatter.write_str("{topic}"),
            Self::Key => formatter.write_str("{key}"),
            Self::Id => formatter.write_str("{id}"),
            Self::Header(name) => write!(formatter, "{{header:{name}}}"),
        }
    }
}

/// A text that is not a template.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TemplateError {
    /// A brace without its partner.
    #[error("a `{0}` without its partner; write `{0}{0}` for the character itself")]
    Unbalanced(char),
    /// A placeholder that does not exist.
    #[error("unknown placeholder `{{{0}}}`; there are {{topic}}, {{key}}, {{id}} and {{header:NAME}}")]
    Unknown(String),
}

/// A message that does not have what a template needs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RenderError {
    /// No such value, or an empty one.
    #[error("the message has no value for {0}")]
    Missing(Field),
    /// A header whose bytes are not UTF-8, where text is needed.
    #[error("the value of {0} is not UTF-8")]
    NotText(Field),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

impl Template {
    /// Parses.
    ///
    /// # Errors
    /// Unbalanced braces and unknown placeholders.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            match character {
                '{' | '}' if characters.peek() == Some(&character) => {
                    characters.next();
                    literal.push(character);
                }
                '}' => return Err(TemplateError::Unbalanced('}')),
                '{' => {
                    let mut name = String::new();
                    loop {
                        match characters.next() {
                            Some('}') => break,
                            None | Some('{') => return Err(TemplateError::Unbalanced('{')),
                            Some(other) => name.push(other),
                        }
                    }
                    if !literal.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut literal)));
                    }
                    parts.push(Part::Field(match name.as_str() {
                        "topic" => Field::Topic,
                        "key" => Field::Key,
                        "id" => Field::Id,
                        other => match other.strip_prefix("header:").filter(|header| !header.is_empty()) {
                            Some(header) => Field::Header(header.to_owned()),
                            None => return Err(TemplateError::Unknown(name)),
                        },
                    }));
                }
                other => literal.push(other),
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self { parts })
    }

    /// The text with each placeholder replaced by `stand_in`: what can be checked before there is a message.
    #[must_use]
    pub fn sample(&self, stand_in: &str) -> String {
        self.parts.iter().map(|part| if let Part::Text(text) = part { text } else { stand_in }).collect()
    }

    /// Whether it is nothing but `{topic}`: then the topic can be borrowed.
    #[must_use]
    pub fn is_topic(&self) -> bool {
        matches!(self.parts.as_slice(), [Part::Field(Field::Topic)])
    }

    /// The text for a message; `append` appends a value, encoded for where it is to stand.
    ///
    /// # Errors
    /// The value of a placeholder is missing or empty.
    pub fn render_with(&self, message: Message<'_>, append: impl Fn(&mut String, &[u8])) -> Result<String, RenderError> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(literal) => text.push_str(literal),
                Part::Field(field) => {
                    let value = field.value(message).ok_or_else(|| RenderError::Missing(field.clone()))?;
                    append(&mut text, value);
                }
            }
        }
        Ok(text)
    }

    /// The text for a message, values as they are.
    ///
    /// # Errors
    /// The value of a placeholder is missing, empty, or not UTF-8.
    pub fn render(&self, message: Message<'_>) -> Result<String, RenderError> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(literal) => text.push_str(literal),
                Part::Field(field) => {
                    let value = field.value(message).ok_or_else(|| RenderError::Missing(field.clone()))?;
                    text.push_str(std::str::from_utf8(value).map_err(|_| RenderError::NotText(field.clone()))?);
                }
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, NewMessage};

    fn of(message: &NewMessage<'_>) -> Batch {
        let mut batch = Batch::new();
        batch.push(message);
        batch
    }

    #[test]
    fn placeholders_are_replaced() {
        let batch = of(&NewMessage { id: "7", topic: "t", key: Some("k"), headers: &[("Tenant", b"x")], ..NewMessage::default() });
        let template = Template::parse("{{a}}-{topic}/{key}/{id}/{header:tenant}").unwrap();
        assert_eq!(template.render(batch.message(0)).unwrap(), "{a}-t/k/7/x");
        assert_eq!(template.sample("_"), "{a}-_/_/_/_");
    }

    #[test]
    fn missing_and_empty_values_are_named() {
        let batch = of(&NewMessage { id: "7", topic: "", headers: &[("b", b"\xff")], ..NewMessage::default() });
        let error = |text: &str| Template::parse(text).unwrap().render(batch.message(0)).unwrap_err().to_string();
        assert_eq!(error("{key}"), "the message has no value for {key}");
        assert_eq!(error("{topic}"), "the message has no value for {topic}");
        assert_eq!(error("{header:a}"), "the message has no value for {header:a}");
        assert_eq!(error("{header:b}"), "the value of {header:b} is not UTF-8");
    }

    #[test]
    fn bad_templates_are_refused() {
        let error = |text: &str| Template::parse(text).unwrap_err();
        assert_eq!(error("a{b"), TemplateError::Unbalanced('{'));
        assert_eq!(error("a}b"), TemplateError::Unbalanced('}'));
        assert_eq!(error("{payload}"), TemplateError::Unknown("payload".into()));
        assert_eq!(error("{header:}"), TemplateError::Unknown("header:".into()));
    }
}
