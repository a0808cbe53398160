//! The keys that envelopes are sealed with: each has a version and comes from a secret, which is read afresh each time. The first of the
//! configuration seals new rows; all of them open old ones.

use crate::config::model;
use crate::secrets::Secrets;
use aes_gcm::{Aes256Gcm, KeyInit};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

/// Bytes of a key.
const LENGTH: usize = 32;

/// A key. It cannot be looked at, and is wiped when it is dropped.
pub struct SealingKey(Aes256Gcm);

impl SealingKey {
    /// Of these bytes.
    #[must_use]
    pub fn of(bytes: [u8; LENGTH]) -> Self {
        let bytes = Zeroizing::new(bytes);
        Self(Aes256Gcm::new((&*bytes).into()))
    }

    /// Of a secret's text: 32 bytes as base64 or in hexadecimal.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.len() == 2 * LENGTH {
            return hexadecimal(text).map(|bytes| Self::of(*bytes));
        }
        let decoded = [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD].iter().find_map(|engine| engine.decode(text).ok());
        let decoded = Zeroizing::new(decoded?);
        let bytes: Zeroizing<[u8; LENGTH]> = Zeroizing::new(decoded.as_slice().try_into().ok()?);
        Some(Self::of(*bytes))
    }

    pub(super) fn cipher(&self) -> &Aes256Gcm {
        &self.0
    }
}

fn hexadecimal(text: &str) -> Option<Zeroizing<[u8; LENGTH]>> {
    let mut bytes = Zeroizing::new([0; LENGTH]);
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let [high, low] = [pair.first()?, pair.get(1)?].map(|digit| char::from(*digit).to_digit(16));
        *byte = u8::try_from(high? * 16 + low?).ok()?;
    }
    Some(bytes)
}

/// Why there is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// The configuration has no key of this version.
    #[error("there is no key of the version {0:?} in fan_out.keys")]
    Unknown(String),
    /// It cannot be read for now.
    #[error("the key of the version {version:?} cannot be read: {reason}")]
    Unreadable {
        /// Which.
        version: String,
        /// Why.
        reason: String,
    },
    /// What the secret holds is none.
    #[error(
        "secret {secret:?}, the key of the version {version:?}, is not 32 bytes as base64 or in hexadecimal: make one with `openssl rand -base64 32`"
    )]
    Malformed {
        /// Which.
        version: String,
        /// Its secret.
        secret: String,
    },
}

/// The keys of a relay.
#[derive(Debug, Clone)]
pub struct Keyring {
    secrets: Secrets,
    /// The first one seals.
    keys: Vec<model::SealingKey>,
}

impl Keyring {
    pub(crate) fn new(secrets: Secrets, keys: Vec<model::SealingKey>) -> Self {
        Self { secrets, keys }
    }

    /// Of a relay of this configuration.
    #[must_use]
    pub fn of(config: &model::Config, fan_out: &model::FanOut) -> Self {
        Self::new(Secrets::new(config.secrets.clone()), fan_out.keys.clone())
    }

    /// The version that new rows are sealed with.
    #[must_use]
    pub fn newest(&self) -> &str {
        self.keys.first().map_or("", |key| &key.version)
    }

    /// The key of a version.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub async fn key(&self, version: &str) -> Result<SealingKey, KeyFault> {
        let known = self.keys.iter().find(|key| key.version == version).ok_or_else(|| KeyFault::Unknown(version.to_owned()))?;
        let text = match self.secrets.read(&known.secret).await {
            Ok(text) => Zeroizing::new(text),
            Err(fault) => return Err(KeyFault::Unreadable { version: version.to_owned(), reason: fault.to_string() }),
        };
        SealingKey::parse(&text).ok_or_else(|| KeyFault::Malformed { version: version.to_owned(), secret: known.secret.clone() })
    }

    /// Reads every key.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub async fn check(&self) -> Result<(), KeyFault> {
        for key in &self.keys {
            self.key(&key.version).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::binding::tests::binding;
    use super::super::envelope::{Contents, open, seal};
    use super::*;
    use crate::config::model::SecretSource;

    fn same(one: &SealingKey, other: &SealingKey) -> bool {
        let contents = Contents { url: "u".into(), authentication: None, headers: Vec::new(), payload: None, created_at: 0 };
        let envelope = seal(one, &binding(), &contents).unwrap();
        open(other, &binding(), &envelope).is_ok()
    }

    #[test]
    fn a_key_is_32_bytes_in_any_usual_spelling() {
        let bytes: [u8; LENGTH] = std::array::from_fn(|index| u8::try_from(index * 8).unwrap() | 3);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
        let key = SealingKey::of(bytes);
        let spelled = [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD].map(|engine| engine.encode(bytes));
        for text in spelled.iter().chain([&hex, &hex.to_lowercase(), &format!(" {hex}\n")]) {
            assert!(SealingKey::parse(text).is_some_and(|parsed| same(&key, &parsed)), "{text}");
        }
        for text in ["", "abc", &hex[1..], &hex.replacen('0', "x", 1), &STANDARD.encode([0; 31]), &STANDARD.encode([0; 33])] {
            assert!(SealingKey::parse(text).is_none(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_key_is_read_afresh_and_what_is_wrong_names_it_but_never_its_value() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        let secrets = Secrets::new([("a".to_owned(), SecretSource::File(file.clone()))].into());
        let keys = Keyring::new(secrets, vec![model::SealingKey { version: "v1".into(), secret: "a".into() }]);
        let told = async || keys.check().await.unwrap_err().to_string();
        assert!(told().await.starts_with("the key of the version \"v1\" cannot be read: secret \"a\""), "{}", told().await);
        std::fs::write(&file, "not-a-key").unwrap();
        assert!(
            told().await.starts_with("secret \"a\", the key of the version \"v1\", is not 32 bytes") && !told().await.contains("not-a-key")
        );
        std::fs::write(&file, STANDARD.encode([1; 32])).unwrap();
        keys.check().await.unwrap();
        assert!(same(&keys.key("v1").await.unwrap(), &SealingKey::of([1; 32])));
        std::fs::write(&file, STANDARD.encode([2; 32])).unwrap();
        assert!(same(&keys.key("v1").await.unwrap(), &SealingKey::of([2; 32])));
        assert_eq!(keys.key("v0").await.err(), Some(KeyFault::Unknown("v0".into())));
        assert_eq!(keys.newest(), "v1");
    }
}
