//! Which names Kafka takes for topics: checked before anything is sent, so that a bad one is told at once and by name.

use thiserror::Error;

/// Longest name, in bytes (Kafka's `Topic.MAX_NAME_LENGTH`).
const MAX_BYTES: usize = 249;

/// A name that Kafka refuses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TopicError {
    /// Empty.
    #[error("the topic is empty")]
    Empty,
    /// A name that would be a path.
    #[error("`{0}` cannot be a topic of Kafka")]
    Dots(String),
    /// Too long.
    #[error("a topic of Kafka has at most {MAX_BYTES} bytes; this has {0}")]
    TooLong(usize),
    /// A character that is not allowed.
    #[error("`{topic}` cannot be a topic of Kafka: {character:?} is not allowed, only letters of ASCII, digits, `.`, `_` and `-`")]
    Character {
        /// The name.
        topic: String,
        /// The first that is not allowed.
        character: char,
    },
}

/// Checks a name.
///
/// # Errors
/// What is wrong with it.
pub fn check(topic: &str) -> Result<(), TopicError> {
    match topic {
        "" => return Err(TopicError::Empty),
        "." | ".." => return Err(TopicError::Dots(topic.to_owned())),
        _ if topic.len() > MAX_BYTES => return Err(TopicError::TooLong(topic.len())),
        _ => {}
    }
    match topic.chars().find(|character| !(character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-'))) {
        Some(character) => Err(TopicError::Character { topic: topic.to_owned(), character }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kafka_takes() {
        for good in ["a", "orders.created", "_", "...", "A-Z_0.9", &"x".repeat(249)] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    /// Reported at kafkajs 665 and librdkafka 977: such names stopped the producer, or were tried for ever.
    #[test]
    fn what_kafka_refuses() {
        assert_eq!(check(""), Err(TopicError::Empty));
        assert_eq!(check("."), Err(TopicError::Dots(".".into())));
        assert_eq!(check(".."), Err(TopicError::Dots("..".into())));
        assert_eq!(check(&"x".repeat(250)), Err(TopicError::TooLong(250)));
        for (topic, character) in [("Dont care", ' '), ("abc!@#$", '!'), ("заказы", 'з'), ("a/b", '/'), ("a\0", '\0')] {
            assert_eq!(check(topic), Err(TopicError::Character { topic: topic.into(), character }));
        }
    }
}
