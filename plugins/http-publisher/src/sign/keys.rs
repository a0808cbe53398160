//! Signing keys, read from the text of a secret. No error and no debug text ever shows any of it.

use super::rfc9421::Algorithm;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ed25519_dalek::pkcs8::DecodePrivateKey;
use ed25519_dalek::{Signer as _, SigningKey};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use thiserror::Error;

/// A signing key.
pub enum Key {
    /// HMAC with SHA-256. The keyed state, ready for a message.
    Hmac(Hmac<Sha256>),
    /// Ed25519.
    Ed25519(Box<SigningKey>),
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Hmac(_) => "Key::Hmac(..)",
            Self::Ed25519(_) => "Key::Ed25519(..)",
        })
    }
}

/// A secret that is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Not granted, or not set.
    #[error("not granted or not set; the host's log says which, and the line to add")]
    Missing,
    /// Not base64.
    #[error("not valid base64")]
    Base64,
    /// Empty.
    #[error("empty")]
    Empty,
    /// No Ed25519 private key.
    #[error("not an Ed25519 private key: a PKCS #8 PEM text, or the base64 of 32 bytes of seed or of 64 bytes of seed and public key")]
    Ed25519,
}

impl Key {
    /// `whsec_` and base64: HMAC; `whsk_` and base64: Ed25519; base64 without a prefix: HMAC, as the reference libraries take it.
    ///
    /// # Errors
    /// What the text is not.
    pub fn for_standard_webhooks(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        match text.strip_prefix("whsk_") {
            Some(private) => Self::ed25519(&decode(private)?),
            None => Self::hmac(&decode(text.strip_prefix("whsec_").unwrap_or(text))?),
        }
    }

    /// HMAC: `base64:` and base64, else the bytes of the text itself. Ed25519: PEM, or base64 with or without that prefix.
    ///
    /// # Errors
    /// What the text is not.
    pub fn for_rfc9421(algorithm: Algorithm, text: &str) -> Result<Self, KeyError> {
        let encoded = text.trim().strip_prefix("base64:");
        match algorithm {
            Algorithm::HmacSha256 => match encoded {
                Some(encoded) => Self::hmac(&decode(encoded)?),
                None => Self::hmac(text.as_bytes()),
            },
            Algorithm::Ed25519 if text.contains("-----BEGIN") => {
                SigningKey::from_pkcs8_pem(text.trim()).map(|key| Self::Ed25519(Box::new(key))).map_err(|_| KeyError::Ed25519)
            }
            Algorithm::Ed25519 => Self::ed25519(&decode(encoded.unwrap_or(text.trim()))?),
        }
    }

    fn hmac(bytes: &[u8]) -> Result<Self, KeyError> {
        if bytes.is_empty() {
            return Err(KeyError::Empty);
        }
        Hmac::new_from_slice(bytes).map(Self::Hmac).map_err(|_| KeyError::Empty)
    }

    fn ed25519(bytes: &[u8]) -> Result<Self, KeyError> {
        let key = if let Ok(seed) = <&[u8; 32]>::try_from(bytes) {
            SigningKey::from_bytes(seed)
        } else {
            let pair = <&[u8; 64]>::try_from(bytes).map_err(|_| KeyError::Ed25519)?;
            SigningKey::from_keypair_bytes(pair).map_err(|_| KeyError::Ed25519)?
        };
        Ok(Self::Ed25519(Box::new(key)))
    }

    /// The signature of the parts, one after the other, in base64.
    #[must_use]
    pub fn sign(&self, parts: &[&[u8]]) -> String {
        match self {
            Self::Hmac(keyed) => {
                let mut mac = keyed.clone();
                parts.iter().for_each(|part| mac.update(part));
                STANDARD.encode(mac.finalize().into_bytes())
            }
            Self::Ed25519(key) => STANDARD.encode(key.sign(&parts.concat()).to_bytes()),
        }
    }
}

fn decode(text: &str) -> Result<Vec<u8>, KeyError> {
    STANDARD.decode(text.trim()).map_err(|_| KeyError::Base64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_that_are_no_keys() {
        assert_eq!(Key::for_standard_webhooks("whsec_").unwrap_err(), KeyError::Empty);
        assert_eq!(Key::for_standard_webhooks("whsec_***").unwrap_err(), KeyError::Base64);
        assert_eq!(Key::for_standard_webhooks("whsk_AAAA").unwrap_err(), KeyError::Ed25519);
        assert_eq!(Key::for_rfc9421(Algorithm::HmacSha256, "").unwrap_err(), KeyError::Empty);
        assert_eq!(Key::for_rfc9421(Algorithm::Ed25519, "-----BEGIN PRIVATE KEY-----\nAAAA").unwrap_err(), KeyError::Ed25519);
        // A pair whose public half does not belong to the seed.
        assert_eq!(Key::for_rfc9421(Algorithm::Ed25519, &STANDARD.encode([7; 64])).unwrap_err(), KeyError::Ed25519);
    }

    #[test]
    fn nothing_of_a_key_is_shown() {
        let key = Key::for_rfc9421(Algorithm::HmacSha256, "hunter2").unwrap();
        assert_eq!(format!("{key:?}"), "Key::Hmac(..)");
    }

    #[test]
    fn forms_of_one_key_sign_alike() {
        let sign = |algorithm, text: &str| Key::for_rfc9421(algorithm, text).unwrap().sign(&[b"a", b"b"]);
        assert_eq!(sign(Algorithm::HmacSha256, "abc"), sign(Algorithm::HmacSha256, "base64:YWJj"));
        let seed = STANDARD.encode([1; 32]);
        let pair = STANDARD.encode(SigningKey::from_bytes(&[1; 32]).to_keypair_bytes());
        assert_eq!(sign(Algorithm::Ed25519, &seed), sign(Algorithm::Ed25519, &format!("base64:{pair}")));
        assert_eq!(sign(Algorithm::Ed25519, &seed), Key::for_standard_webhooks(&format!("whsk_{pair}")).unwrap().sign(&[b"ab"]));
    }
}
