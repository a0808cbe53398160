//! Secrets in the place of what a subscription needs: each read once a call, so that a rotated one counts at once, and all answers of a
//! call agree.

use crate::config::endpoint;
use crate::domain::{Failure, FailureCode};
use crate::secrets::Secrets;
use std::collections::HashMap;

/// The secrets of one call.
pub(super) struct Readings<'a> {
    secrets: &'a Secrets,
    read: HashMap<String, Result<String, Failure>>,
}

impl<'a> Readings<'a> {
    pub(super) fn new(secrets: &'a Secrets) -> Self {
        Self { secrets, read: HashMap::new() }
    }

    async fn value(&mut self, name: &str) -> Result<String, Failure> {
        if let Some(read) = self.read.get(name) {
            return read.clone();
        }
        // Whoever mounts or rotates it may be at it just now. Not `unavailable`: what needs other secrets, or none, need not wait.
        let value = self.secrets.read(name).await.map_err(|fault| Failure::new(FailureCode::SigningUnavailable, fault.to_string()));
        self.read.insert(name.to_owned(), value.clone());
        value
    }

    /// The URL that a secret holds.
    pub(super) async fn url(&mut self, name: &str) -> Result<String, Failure> {
        let url = self.value(name).await?;
        match endpoint::fault(&url) {
            Some(fault) => Err(invalid(format!("the secret {name:?} holds no URL of an endpoint: it {fault}"))),
            None => Ok(url),
        }
    }

    /// The authentication that a secret holds.
    pub(super) async fn authentication(&mut self, name: &str) -> Result<String, Failure> {
        let text = self.value(name).await?;
        if has_type(&text) {
            return Ok(text);
        }
        Err(invalid(format!(
            "the secret {name:?} does not say how to authenticate: it must be a JSON object with a type, such as {{\"type\":\"bearer\",\"token\":\"...\"}}"
        )))
    }
}

/// Whether a text is a JSON object that says of which type it is.
pub(crate) fn has_type(text: &str) -> bool {
    let object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text);
    object.is_ok_and(|object| object.get("type").is_some_and(serde_json::Value::is_string))
}

/// A failure that only a change of the configuration, or of the table, ends.
pub(super) fn invalid(text: impl AsRef<str>) -> Failure {
    Failure::new(FailureCode::InvalidConfiguration, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::SecretSource;

    #[tokio::test]
    async fn a_secret_is_read_once_a_call_and_never_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("auth");
        let secrets = Secrets::new([("auth".to_owned(), SecretSource::File(file.clone()))].into());
        let one = "{\"type\":\"bearer\",\"token\":\"hunter2\"}";
        std::fs::write(&file, one).unwrap();
        let mut call = Readings::new(&secrets);
        assert_eq!(call.authentication("auth").await.unwrap(), one);
        for useless in ["hunter2", "[]", "{\"token\":\"hunter2\"}", "{\"type\":1}"] {
            std::fs::write(&file, useless).unwrap();
            assert!(Readings::new(&secrets).authentication("auth").await.is_err(), "{useless}");
        }
        std::fs::write(&file, "hunter2").unwrap();
        assert_eq!(call.authentication("auth").await.unwrap(), one);

        let mut call = Readings::new(&secrets);
        let failure = call.authentication("auth").await.unwrap_err();
        assert_eq!(failure.code, FailureCode::InvalidConfiguration);
        assert!(failure.detail.contains("\"auth\"") && !failure.detail.contains("hunter2"), "{failure}");
        let failure = call.url("auth").await.unwrap_err();
        assert!(failure.detail.contains("not an absolute URL") && !failure.detail.contains("hunter2"), "{failure}");
        let failure = call.url("other").await.unwrap_err();
        assert_eq!(failure.code, FailureCode::SigningUnavailable);
        assert!(failure.detail.contains("[secrets.other]"), "{failure}");
    }
}
