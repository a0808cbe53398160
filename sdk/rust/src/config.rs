//! The adapter's configuration: JSON into a serde struct, with errors that name the key.

use crate::Failure;
use serde::de::DeserializeOwned;

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
