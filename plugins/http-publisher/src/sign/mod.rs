//! Signatures over the exact bytes that are sent.

pub mod keys;
pub mod rfc9421;
pub mod standard_webhooks;

use crate::request::Request;
use keys::KeyError;
use outhaul_sdk::{Failure, FailureCode};
use serde::Deserialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// `signature`, as written: the keys of all schemes, so that an error can name the key.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureConfig {
    scheme: Scheme,
    secret: OneOrMore,
    algorithm: Option<rfc9421::Algorithm>,
    key_id: Option<String>,
    components: Option<Vec<String>>,
    label: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Scheme {
    #[serde(rename = "standard-webhooks")]
    StandardWebhooks,
    #[serde(rename = "rfc9421")]
    Rfc9421,
}

/// A text or a list of texts.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "must be the name of a secret, or a list of such names")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// How to sign, checked.
#[derive(Debug, Clone)]
pub enum Signature {
    /// Standard Webhooks, with the names of the secrets.
    StandardWebhooks(Vec<String>),
    /// RFC 9421.
    Rfc9421(rfc9421::Rfc9421),
}

impl Signature {
    /// The names of the secrets that it needs.
    pub fn secrets(&self) -> &[String] {
        match self {
            Self::StandardWebhooks(secrets) => secrets,
            Self::Rfc9421(signature) => std::slice::from_ref(&signature.secret),
        }
    }

    /// Checks the configuration, which stands at the key `path`. `idempotency_header` is covered by an RFC 9421 signature that does not
    /// list its components.
    ///
    /// # Errors
    /// The key below `path`, and what is wrong with it.
    pub fn new(path: &str, config: SignatureConfig, idempotency_header: Option<&str>) -> Result<Self, String> {
        let SignatureConfig { scheme, secret, algorithm, key_id, components, label } = config;
        match scheme {
            Scheme::StandardWebhooks => {
                let foreign = [
                    ("algorithm", algorithm.is_some()),
                    ("key_id", key_id.is_some()),
                    ("components", components.is_some()),
                    ("label", label.is_some()),
                ];
                if let Some((key, _)) = foreign.iter().find(|(_, set)| *set) {
                    return Err(format!("`{path}.{key}`: belongs to the scheme rfc9421; standard-webhooks takes `secret` only"));
                }
                let secrets = match secret {
                    OneOrMore::One(name) => vec![name],
                    OneOrMore::More(names) => names,
                };
                if secrets.is_empty() || secrets.iter().any(String::is_empty) {
                    return Err(format!("`{path}.secret`: must name at least one secret"));
                }
                Ok(Self::StandardWebhooks(secrets))
            }
            Scheme::Rfc9421 => {
                let algorithm = algorithm.ok_or_else(|| format!("`{path}.algorithm`: missing; hmac-sha256 or ed25519"))?;
                let key_id = key_id.ok_or_else(|| format!("`{path}.key_id`: missing; it tells the receiver which key to check with"))?;
                let OneOrMore::One(secret) = secret else {
                    return Err(format!("`{path}.secret`: the scheme rfc9421 takes one name; receivers tell keys apart by `key_id`"));
                };
                rfc9421::Rfc9421::new(algorithm, key_id, secret, components, label, idempotency_header)
                    .map(Self::Rfc9421)
                    .map_err(|problem| format!("`{path}.{}`: {}", problem.key, problem.what))
            }
        }
    }

    /// The headers that signing sets.
    #[must_use]
    pub fn headers(&self) -> &'static [&'static str] {
        match self {
            Self::StandardWebhooks(_) => &["webhook-id", "webhook-timestamp", "webhook-signature"],
            Self::Rfc9421(_) => &["content-digest", "signature-input", "signature"],
        }
    }

    /// Fetches the keys; `fetch` gives a secret by name.
    ///
    /// # Errors
    /// `signing-unavailable`, with the name of the secret that is missing or is no key.
    pub fn signer(&self, fetch: &dyn Fn(&str) -> Option<String>) -> Result<Signer<'_>, Failure> {
        let unavailable = |name: &str, why: &KeyError| Failure::of(FailureCode::SigningUnavailable, format!("secret `{name}`: {why}"));
        let text = |name: &str| fetch(name).ok_or_else(|| unavailable(name, &KeyError::Missing));
        match self {
            Self::StandardWebhooks(names) => names
                .iter()
                .map(|name| keys::Key::for_standard_webhooks(&text(name)?).map_err(|error| unavailable(name, &error)))
                .collect::<Result<_, _>>()
                .map(Signer::StandardWebhooks),
            Self::Rfc9421(settings) => keys::Key::for_rfc9421(settings.algorithm, &text(&settings.secret)?)
                .map(|key| Signer::Rfc9421(settings, key))
                .map_err(|error| unavailable(&settings.secret, &error)),
        }
    }
}

/// A way to sign, with its keys.
#[derive(Debug)]
pub enum Signer<'a> {
    /// Standard Webhooks.
    StandardWebhooks(Vec<keys::Key>),
    /// RFC 9421.
    Rfc9421(&'a rfc9421::Rfc9421, keys::Key),
}

impl Signer<'_> {
    /// Adds the signature's headers to a request that is complete otherwise.
    ///
    /// # Errors
    /// `invalid-message`: the request lacks a component that is to be covered.
    pub fn sign(&self, request: &mut Request<'_>, id: &str, now: SystemTime) -> Result<(), Failure> {
        let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let signed = match self {
            Self::StandardWebhooks(keys) => standard_webhooks::headers(keys, id, seconds, &request.body),
            Self::Rfc9421(settings, key) => settings.headers(key, request, seconds),
        };
        request.headers.extend(signed.map_err(|error| Failure::invalid_message(format!("cannot be signed: {error}")))?);
        Ok(())
    }
}
