//! Secrets: read afresh each time, so that a rotated one is used at once, and never written anywhere.

use crate::config::model::SecretSource;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::io::AsyncReadExt;

/// Longest secret, in bytes: keys and certificate chains are far below.
const MAX_BYTES: u64 = 1 << 20;

/// Why a granted secret has no value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretFault {
    #[error("secret \"{0}\" is granted but not configured: add [secrets.{0}] with env or file")]
    Unknown(String),
    #[error("secret \"{name}\": the environment variable {variable} is not set, or not UTF-8")]
    Environment { name: String, variable: String },
    #[error("secret \"{name}\": {file} cannot be read: {reason}")]
    File { name: String, file: String, reason: String },
}

/// The configured secrets.
#[derive(Debug, Clone)]
pub(crate) struct Secrets(Arc<BTreeMap<String, SecretSource>>);

impl Secrets {
    pub(crate) fn new(sources: BTreeMap<String, SecretSource>) -> Self {
        Self(Arc::new(sources))
    }

    /// The value of a secret that is granted to whoever asks.
    pub(crate) async fn read(&self, name: &str) -> Result<String, SecretFault> {
        match self.0.get(name) {
            None => Err(SecretFault::Unknown(name.to_owned())),
            Some(SecretSource::Env(variable)) => {
                std::env::var(variable).map_err(|_| SecretFault::Environment { name: name.to_owned(), variable: variable.clone() })
            }
            Some(SecretSource::File(file)) => {
                let fault = |reason: String| SecretFault::File { name: name.to_owned(), file: file.display().to_string(), reason };
                let mut value = String::new();
                let opened = tokio::fs::File::open(file).await.map_err(|error| fault(error.to_string()))?;
                opened.take(MAX_BYTES + 1).read_to_string(&mut value).await.map_err(|error| fault(error.to_string()))?;
                if u64::try_from(value.len()).unwrap_or(u64::MAX) > MAX_BYTES {
                    return Err(fault(format!("it is longer than {MAX_BYTES} bytes")));
                }
                if let Some(line) = value.strip_suffix('\n') {
                    value.truncate(line.strip_suffix('\r').unwrap_or(line).len());
                }
                Ok(value)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_read_each_time_without_its_last_line_break() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        let secrets = Secrets::new([("key".to_owned(), SecretSource::File(file.clone()))].into());
        for (content, value) in [("a\n", "a"), ("b\r\n", "b"), ("c\n\n", "c\n"), ("d", "d")] {
            std::fs::write(&file, content).unwrap();
            assert_eq!(secrets.read("key").await.unwrap(), value);
        }
        std::fs::write(&file, vec![b'x'; (1 << 20) + 1]).unwrap();
        assert!(secrets.read("key").await.unwrap_err().to_string().contains("longer"));
        std::fs::remove_file(&file).unwrap();
        assert!(secrets.read("key").await.unwrap_err().to_string().contains("cannot be read"));
    }

    #[tokio::test]
    async fn what_is_missing_is_named() {
        let source = SecretSource::Env("OUTHAUL_TEST_NO_SUCH_VARIABLE".to_owned());
        let secrets = Secrets::new([("a".to_owned(), source)].into());
        assert!(secrets.read("a").await.unwrap_err().to_string().contains("OUTHAUL_TEST_NO_SUCH_VARIABLE"));
        assert!(secrets.read("b").await.unwrap_err().to_string().contains("[secrets.b]"));
    }
}
