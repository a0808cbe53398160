//! The adapter's configuration: JSON into a serde struct, with errors that name the key.

use crate::Failure;
use serde::Deserialize;
use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use std::fmt;
use std::time::Duration;

/// Parses the adapter's configuration. Use `#[serde(deny_unknown_fields)]` so that a misspelt key is an error.
///
/// # Errors
/// `invalid-configuration` with the path of the key and what is wrong with it.
pub fn parse_config<T: DeserializeOwned>(config: &str) -> Result<T, Failure> {
    let deserializer = &mut serde_json::Deserializer::from_str(config);
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let path = error.path().to_string();
        // The JSON was made by the host from TOML: its line and column mean nothing to the operator.
        let inner = error.into_inner().to_string();
        let reason = inner.split(" at line ").next().unwrap_or(&inner).to_owned();
        Failure::invalid_configuration(if path == "." { reason } else { format!("`{path}`: {reason}") })
    })
}

/// Reads a duration such as `500ms` or `5s`.
///
/// # Errors
/// It is none, or shorter than a millisecond.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration >= Duration::from_millis(1) => Ok(duration),
        Ok(_) => Err("must be at least 1ms".into()),
        Err(error) => Err(format!("{error}; write it as \"5s\" or \"500ms\"")),
    }
}

/// A number of bytes, written as a number or as a text such as `64KiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Size;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a number of bytes, or a text such as \"64KiB\" or \"1MiB\"")
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
                let (number, unit) = text.split_at(end);
                let factor = match unit.trim() {
                    "" | "B" => 1,
                    "KiB" => 1 << 10,
                    "MiB" => 1 << 20,
                    _ => return Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                };
                let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
                bytes.map(Size).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Either)
    }
}
