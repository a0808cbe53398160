//! The configuration: what the operator writes (`Config`), and what it means, checked (`Settings`).

use crate::cloudevents::{CloudEvents, CloudEventsConfig};
use crate::endpoint::Endpoint;
use crate::forward::{Forward, ForwardConfig};
use crate::header;
use crate::sign::{Signature, SignatureConfig};
use http::{HeaderName, HeaderValue, Method};
use outhaul_sdk::{Failure, Size, parse_config, parse_duration};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::time::Duration;

/// Most requests at once. More would wait for the host's connections anyway.
const MAX_CONCURRENCY: usize = 1024;

/// Most bytes of a response that may be asked for.
const MAX_RESPONSE_BYTES: u64 = 16 << 20;

/// Methods that carry no payload, or mean something else altogether.
const UNFIT_METHODS: &[&str] = &["CONNECT", "GET", "HEAD", "OPTIONS", "TRACE"];

/// Why a header with a secret is none for fan-out deliveries.
pub const SECRET_FOR_ALL: &str = "its secret would go to every subscriber of a fan-out; let the subscriptions say how to authenticate";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    url: Option<String>,
    #[serde(default = "defaults::method")]
    method: String,
    #[serde(default)]
    headers: BTreeMap<String, HeaderConfig>,
    #[serde(default)]
    forward_headers: ForwardConfig,
    #[serde(default = "defaults::content_type")]
    content_type: String,
    #[serde(default = "defaults::idempotency_header")]
    idempotency_header: String,
    timeout: Option<String>,
    #[serde(default = "defaults::concurrency")]
    concurrency: usize,
    #[serde(default = "defaults::max_response_bytes")]
    max_response_bytes: Size,
    #[serde(default)]
    tombstone: Tombstone,
    #[serde(default)]
    retry_statuses: Vec<u16>,
    #[serde(default)]
    duplicate: DuplicateConfig,
    cloudevents: Option<CloudEventsConfig>,
    signature: Option<SignatureConfig>,
    #[serde(default)]
    signing_scopes: BTreeMap<String, SignatureConfig>,
}

mod defaults {
    pub(super) fn method() -> String {
        "POST".into()
    }
    pub(super) fn content_type() -> String {
        "application/json".into()
    }
    pub(super) fn idempotency_header() -> String {
        "Idempotency-Key".into()
    }
    pub(super) fn concurrency() -> usize {
        64
    }
    pub(super) fn max_response_bytes() -> super::Size {
        super::Size(64 << 10)
    }
}

/// What is sent for a message whose payload is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tombstone {
    /// The same request with an empty body and without `Content-Type`, which tells it from an empty payload.
    #[default]
    EmptyBody,
    /// A `DELETE` without a body.
    Delete,
    /// Nothing: the message is rejected.
    Reject,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DuplicateConfig {
    statuses: Vec<u16>,
    header: Option<DuplicateHeaderConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DuplicateHeaderConfig {
    name: String,
    value: Option<String>,
}

/// A text, or a secret by name with a text before it.
enum HeaderConfig {
    Text(String),
    Secret { secret: String, prefix: String },
}

impl<'de> Deserialize<'de> for HeaderConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            secret: String,
            #[serde(default)]
            prefix: String,
        }
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = HeaderConfig;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text, or { secret = \"NAME\", prefix = \"TEXT\" }")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<HeaderConfig, E> {
                Ok(HeaderConfig::Text(text.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HeaderConfig, A::Error> {
                let Table { secret, prefix } = Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(HeaderConfig::Secret { secret, prefix })
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Where the value of a configured header comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderSource {
    /// From the configuration.
    Fixed(HeaderValue),
    /// A secret by name, after a fixed text.
    Secret {
        /// The name of the secret.
        name: String,
        /// Stands before its value, e.g. `Bearer `.
        prefix: String,
    },
}

/// How a receiver says that it already has a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Duplicate {
    /// These statuses say so.
    pub statuses: BTreeSet<u16>,
    /// This header says so on any answer, if it has the value (if there is one).
    pub header: Option<(HeaderName, Option<String>)>,
}

/// The configuration, checked.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where to; none: to the destinations of fan-out deliveries only.
    pub endpoint: Option<Endpoint>,
    /// Method.
    pub method: Method,
    /// On every request.
    pub headers: Vec<(HeaderName, HeaderSource)>,
    /// Which headers of a message are passed on.
    pub forward: Forward,
    /// Of messages that do not say it themselves.
    pub content_type: HeaderValue,
    /// Carries the message's id; none: nothing does.
    pub idempotency_header: Option<HeaderName>,
    /// Longest request; none: half of the call's time.
    pub timeout: Option<Duration>,
    /// Most requests at once.
    pub concurrency: usize,
    /// Most bytes that are read of a response.
    pub max_response_bytes: usize,
    /// What becomes of a message without a payload.
    pub tombstone: Tombstone,
    /// Tried again, besides 408, 425, 429 and 5xx.
    pub retry_statuses: BTreeSet<u16>,
    /// Answers that count as delivered.
    pub duplicate: Duplicate,
    /// Events instead of bare payloads.
    pub cloudevents: Option<CloudEvents>,
    /// Signed requests to the endpoint.
    pub signature: Option<Signature>,
    /// How fan-out deliveries are signed, by the scope that their subscription names.
    pub signing_scopes: BTreeMap<String, Signature>,
}

impl Settings {
    /// Checks that every secret that the configuration names can be had. Asked once, when the adapter is opened; a secret that
    /// goes missing later makes messages wait.
    ///
    /// # Errors
    /// `invalid-configuration`, naming the key.
    pub fn check_secrets(&self, secret: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
        let headers = self.headers.iter().filter_map(|(header, source)| match source {
            HeaderSource::Secret { name, .. } => Some((format!("headers.{header}"), name)),
            HeaderSource::Fixed(_) => None,
        });
        let signature = self.signature.iter().flat_map(Signature::secrets).map(|name| ("signature.secret".to_owned(), name));
        let scopes = self.signing_scopes.iter();
        let scopes = scopes
            .flat_map(|(scope, signature)| signature.secrets().iter().map(move |name| (format!("signing_scopes.{scope}.secret"), name)));
        match headers.chain(signature).chain(scopes).find(|(_, name)| secret(name).is_none()) {
            Some((key, name)) => Err(Failure::invalid_configuration(format!(
                "`{key}`: there is no secret `{name}`: add [secrets.{name}] and `allow_secrets = [\"{name}\"]`, and set its value"
            ))),
            None => Ok(()),
        }
    }

    /// Reads the adapter's table, as JSON.
    ///
    /// # Errors
    /// `invalid-configuration`, naming the key.
    pub fn parse(json: &str) -> Result<Self, Failure> {
        resolve(parse_config(json)?).map_err(Failure::invalid_configuration)
    }
}

fn resolve(config: Config) -> Result<Settings, String> {
    let endpoint = config.url.as_deref().map(Endpoint::parse).transpose().map_err(|error| format!("`url`: {error}"))?;
    let method = parse_method(&config.method)?;
    let content_type = header::value(config.content_type.as_bytes()).map_err(|error| format!("`content_type`: {error}"))?;
    if content_type.is_empty() || content_type.to_str().is_err() {
        return Err("`content_type`: must be a media type such as application/json".into());
    }
    let idempotency_header = match config.idempotency_header.as_str() {
        "" => None,
        text => Some(own_header("idempotency_header", text)?),
    };
    let cloudevents = config.cloudevents.as_ref().map(CloudEvents::new).transpose()?;
    if endpoint.is_none() && config.signature.is_some() {
        return Err(
            "`signature`: signs what goes to `url`, which is not set; what goes to subscribers is signed by `signing_scopes`".into()
        );
    }
    let idempotency_name = idempotency_header.as_ref().map(HeaderName::as_str);
    let signature = config.signature.map(|signature| Signature::new("signature", signature, idempotency_name)).transpose()?;
    let mut signing_scopes = BTreeMap::new();
    for (scope, signature) in config.signing_scopes {
        let signature = Signature::new(&format!("signing_scopes.{scope}"), signature, idempotency_name)?;
        signing_scopes.insert(scope, signature);
    }

    // What is set for each message: neither a fixed header nor a message's may take its place.
    let mut reserved: HashSet<HeaderName> = HashSet::from([http::header::CONTENT_TYPE]);
    reserved.extend(idempotency_header.clone());
    reserved.extend(signature.iter().chain(signing_scopes.values()).flat_map(Signature::headers).map(|name| HeaderName::from_static(name)));
    let mut headers = Vec::new();
    for (text, value) in config.headers {
        let key = format!("headers.{text}");
        let name = own_header(&key, &text)?;
        if name == http::header::CONTENT_TYPE {
            return Err(format!("`{key}`: use `content_type`"));
        }
        if reserved.contains(&name) || (cloudevents.is_some() && name.as_str().starts_with("ce-")) {
            return Err(format!("`{key}`: set by the publisher itself, or named twice"));
        }
        let source = match value {
            HeaderConfig::Text(text) => HeaderSource::Fixed(header::value(text.as_bytes()).map_err(|error| format!("`{key}`: {error}"))?),
            HeaderConfig::Secret { secret, .. } if secret.is_empty() => return Err(format!("`{key}.secret`: must name a secret")),
            HeaderConfig::Secret { .. } if endpoint.is_none() => return Err(format!("`{key}`: {SECRET_FOR_ALL}")),
            HeaderConfig::Secret { secret: name, prefix } => HeaderSource::Secret { name, prefix },
        };
        reserved.insert(name.clone());
        headers.push((name, source));
    }
    let forward = Forward::new(&config.forward_headers, reserved, cloudevents.is_some())?;

    if !(1..=MAX_CONCURRENCY).contains(&config.concurrency) {
        return Err(format!("`concurrency`: must be from 1 to {MAX_CONCURRENCY}"));
    }
    if config.max_response_bytes.0 > MAX_RESPONSE_BYTES {
        return Err("`max_response_bytes`: must be at most 16MiB".into());
    }
    Ok(Settings {
        endpoint,
        method,
        headers,
        forward,
        content_type,
        idempotency_header,
        timeout: config.timeout.as_deref().map(parse_duration).transpose().map_err(|error| format!("`timeout`: {error}"))?,
        concurrency: config.concurrency,
        max_response_bytes: usize::try_from(config.max_response_bytes.0).map_err(|error| format!("`max_response_bytes`: {error}"))?,
        tombstone: config.tombstone,
        retry_statuses: statuses("retry_statuses", config.retry_statuses, 300..=499)?,
        duplicate: Duplicate {
            statuses: statuses("duplicate.statuses", config.duplicate.statuses, 400..=499)?,
            header: config
                .duplicate
                .header
                .map(|header| {
                    header::name(&header.name).map(|name| (name, header.value)).map_err(|error| format!("`duplicate.header.name`: {error}"))
                })
                .transpose()?,
        },
        cloudevents,
        signature,
        signing_scopes,
    })
}

fn parse_method(text: &str) -> Result<Method, String> {
    let method = Method::from_bytes(text.as_bytes()).map_err(|_| format!("`method`: `{text}` is not a method"))?;
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err("`method`: methods are written in capitals".into());
    }
    if UNFIT_METHODS.contains(&text) {
        return Err(format!("`method`: {text} cannot carry a message; use POST, PUT, PATCH or DELETE"));
    }
    Ok(method)
}

fn own_header(key: &str, text: &str) -> Result<HeaderName, String> {
    let name = header::name(text).map_err(|error| format!("`{key}`: `{text}` is {error}"))?;
    if header::is_connection_level(&name) {
        return Err(format!("`{key}`: `{text}` belongs to the connection and cannot be set"));
    }
    Ok(name)
}

fn statuses(key: &str, list: Vec<u16>, allowed: std::ops::RangeInclusive<u16>) -> Result<BTreeSet<u16>, String> {
    match list.iter().find(|status| !allowed.contains(*status)) {
        Some(status) => Err(format!("`{key}`: {status} is out of range; must be from {} to {}", allowed.start(), allowed.end())),
        None => Ok(list.into_iter().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_must_be_there_when_the_adapter_is_opened() {
        let config = r#"{"url":"https://h.example/","headers":{"Authorization":{"secret":"token"}},"signature":{"scheme":"standard-webhooks","secret":["new","old"]}}"#;
        let settings = Settings::parse(config).unwrap();
        let without = |missing: &'static str| settings.check_secrets(move |name| (name != missing).then(String::new));
        assert_eq!(without("none of them"), Ok(()));
        for (name, key) in [("token", "`headers.authorization`"), ("old", "`signature.secret`")] {
            let failure = without(name).unwrap_err();
            assert!(failure.detail.starts_with(key) && failure.detail.contains(&format!("`{name}`")), "{}", failure.detail);
        }
    }

    fn with(extra: &str) -> Result<Settings, Failure> {
        Settings::parse(&format!(r#"{{"url":"https://h/{{topic}}"{extra}}}"#))
    }

    #[test]
    fn defaults() {
        let settings = with("").unwrap();
        assert_eq!((settings.method, settings.timeout, settings.concurrency), (Method::POST, None, 64));
        assert_eq!((settings.max_response_bytes, settings.tombstone), (65_536, Tombstone::EmptyBody));
        assert_eq!(settings.idempotency_header.unwrap(), "idempotency-key");
        assert_eq!(settings.duplicate, Duplicate::default());
    }

    #[test]
    fn values_are_read() {
        let settings = with(
            r#","method":"PUT","timeout":"500ms","max_response_bytes":"2MiB","idempotency_header":"","tombstone":"delete",
               "headers":{"X-A":"1","Authorization":{"secret":"token","prefix":"Bearer "}},"retry_statuses":[401],
               "duplicate":{"statuses":[409],"header":{"name":"X-Duplicate","value":"true"}},
               "signature":{"scheme":"standard-webhooks","secret":["new","old"]}"#,
        )
        .unwrap();
        assert_eq!((settings.method, settings.timeout), (Method::PUT, Some(Duration::from_millis(500))));
        assert_eq!((settings.max_response_bytes, settings.tombstone, settings.idempotency_header), (2 << 20, Tombstone::Delete, None));
        let secret = HeaderSource::Secret { name: "token".into(), prefix: "Bearer ".into() };
        assert!(settings.headers.contains(&(http::header::AUTHORIZATION, secret)));
        assert!(matches!(settings.signature, Some(Signature::StandardWebhooks(names)) if names == ["new", "old"]));
        assert_eq!(with(r#","max_response_bytes":0"#).unwrap().max_response_bytes, 0);
    }

    #[test]
    fn every_error_names_its_key() {
        for (extra, key) in [
            (r#","metod":"PUT""#, "metod"),
            (r#","url":"x""#, "url"),
            (r#","method":"post""#, "`method`"),
            (r#","method":"GET""#, "`method`"),
            (r#","method":"a b""#, "`method`"),
            (r#","headers":{"a b":"1"}"#, "`headers.a b`"),
            (r#","headers":{"a":1}"#, "`headers.a`"),
            (r#","headers":{"a":"x\ny"}"#, "`headers.a`"),
            (r#","headers":{"Host":"x"}"#, "`headers.Host`"),
            (r#","headers":{"Content-Type":"x"}"#, "`headers.Content-Type`"),
            (r#","headers":{"idempotency-key":"x"}"#, "`headers.idempotency-key`"),
            (r#","headers":{"a":"1","A":"2"}"#, "`headers.a`"),
            (r#","headers":{"a":{"secrt":"x"}}"#, "`headers.a"),
            (r#","headers":{"a":{"secret":""}}"#, "`headers.a.secret`"),
            (r#","content_type":"""#, "`content_type`"),
            (r#","idempotency_header":"a:b""#, "`idempotency_header`"),
            (r#","timeout":"5""#, "`timeout`"),
            (r#","timeout":"0s""#, "`timeout`"),
            (r#","timeout":5"#, "`timeout`"),
            (r#","concurrency":0"#, "`concurrency`"),
            (r#","concurrency":-1"#, "`concurrency`"),
            (r#","max_response_bytes":"1GiB""#, "`max_response_bytes`"),
            (r#","max_response_bytes":"99999999999999999999KiB""#, "`max_response_bytes`"),
            (r#","max_response_bytes":17000000"#, "`max_response_bytes`"),
            (r#","tombstone":"drop""#, "`tombstone`"),
            (r#","retry_statuses":[200]"#, "`retry_statuses`"),
            (r#","duplicate":{"statuses":[500]}"#, "`duplicate.statuses`"),
            (r#","duplicate":{"header":{"name":"a b"}}"#, "`duplicate.header.name`"),
            (r#","forward_headers":{"includes":[]}"#, "`forward_headers"),
            (r#","cloudevents":{"mode":"binary"}"#, "`cloudevents"),
            (r#","cloudevents":{"mode":"batch","source":"/x"}"#, "`cloudevents.mode`"),
            (r#","signature":{"scheme":"jws"}"#, "`signature.scheme`"),
            (r#","signature":{"scheme":"standard-webhooks"}"#, "`secret`"),
            (r#","signature":{"scheme":"standard-webhooks","secret":"a","label":"x"}"#, "`signature.label`"),
            (r#","signature":{"scheme":"standard-webhooks","secret":[]}"#, "`signature.secret`"),
            (r#","signature":{"scheme":"standard-webhooks","secret":5}"#, "`signature.secret`"),
            (r#","signature":{"scheme":"rfc9421","algorithm":"md5","key_id":"k","secret":"s"}"#, "`signature.algorithm`"),
            (r#","signature":{"scheme":"rfc9421","key_id":"k","secret":"s"}"#, "`signature.algorithm`"),
            (r#","signature":{"scheme":"rfc9421","algorithm":"ed25519","secret":"s"}"#, "`signature.key_id`"),
            (r#","signature":{"scheme":"rfc9421","algorithm":"ed25519","key_id":"k","secret":["s"]}"#, "`signature.secret`"),
        ] {
            let error = with(extra).unwrap_err();
            assert_eq!(error.code, outhaul_sdk::FailureCode::InvalidConfiguration);
            assert!(error.detail.contains(key), "{extra}: {}", error.detail);
        }
    }

    #[test]
    fn without_a_url_there_are_only_destinations() {
        let parse = |json: &str| Settings::parse(json).map_err(|failure| failure.detail);
        assert!(parse("{}").unwrap().endpoint.is_none());
        assert!(parse(r#"{"headers":{"a":"1"}}"#).is_ok());
        let error = parse(r#"{"headers":{"a":{"secret":"s"}}}"#).unwrap_err();
        assert!(error.starts_with("`headers.a`: its secret would go to every subscriber"), "{error}");
        let error = parse(r#"{"signature":{"scheme":"standard-webhooks","secret":"s"}}"#).unwrap_err();
        assert!(error.contains("`signature`") && error.contains("`signing_scopes`"), "{error}");
    }

    #[test]
    fn signing_scopes_are_signatures_by_name() {
        let parse = |scope: &str| Settings::parse(&format!(r#"{{"signing_scopes":{{"acme":{scope}}}}}"#)).map_err(|failure| failure.detail);
        let settings = parse(r#"{"scheme":"standard-webhooks","secret":["new","old"]}"#).unwrap();
        let missing = settings.check_secrets(|name| (name == "new").then(String::new)).unwrap_err().detail;
        assert!(missing.starts_with("`signing_scopes.acme.secret`: there is no secret `old`"), "{missing}");
        for (scope, key) in [
            (r#"{"scheme":"jws","secret":"a"}"#, "`signing_scopes.acme.scheme`"),
            (r#"{"scheme":"standard-webhooks","secret":"a","label":"x"}"#, "`signing_scopes.acme.label`"),
            (r#"{"scheme":"rfc9421","algorithm":"ed25519","secret":"s"}"#, "`signing_scopes.acme.key_id`"),
            (r#"{"scheme":"rfc9421","algorithm":"ed25519","key_id":"k","secret":"s","components":[]}"#, "`signing_scopes.acme.components`"),
        ] {
            let error = parse(scope).unwrap_err();
            assert!(error.contains(key), "{scope}: {error}");
        }
        let taken = r#"{"headers":{"webhook-id":"x"},"signing_scopes":{"acme":{"scheme":"standard-webhooks","secret":"a"}}}"#;
        assert!(Settings::parse(taken).unwrap_err().detail.contains("`headers.webhook-id`"));
    }

    #[test]
    fn what_is_signed_cannot_be_set_otherwise() {
        let signed = r#","signature":{"scheme":"standard-webhooks","secret":"s"},"headers":{"Webhook-Id":"x"}"#;
        assert!(with(signed).unwrap_err().detail.contains("`headers.Webhook-Id`"));
        let event = r#","cloudevents":{"mode":"binary","source":"/x"},"headers":{"ce-type":"x"}"#;
        assert!(with(event).unwrap_err().detail.contains("`headers.ce-type`"));
    }

    /// Every example of the README is a configuration that opens, and its table has every key.
    #[test]
    fn the_readme_is_right() {
        let readme = include_str!("../README.md");
        let mut examples = 0;
        for block in readme.split("```toml\n").skip(1) {
            let file: toml::Table = block.split("```").next().unwrap().parse().unwrap();
            let mut config = file["publishers"]["webhooks"]["config"].clone();
            let table = config.as_table_mut().unwrap();
            if !table.contains_key("signing_scopes") {
                table.entry("url").or_insert("https://example.com".into());
            }
            let settings = Settings::parse(&serde_json::to_string(&config).unwrap());
            assert!(settings.is_ok(), "{config}: {settings:?}");
            examples += 1;
        }
        assert_eq!(examples, 7);
        let unknown = with(r#","nonsense":1"#).unwrap_err().detail;
        let (_, keys) = unknown.split_once("expected one of").unwrap();
        let keys: Vec<&str> = keys.split('`').skip(1).step_by(2).collect();
        assert!(keys.len() > 10);
        for key in keys {
            assert!(readme.contains(&format!("\n| `{key}` |")), "`{key}` is not in the table");
        }
    }

    #[test]
    fn the_manifest_is_of_this_crate() {
        let manifest: toml::Table = include_str!("../manifest.toml").parse().unwrap();
        assert_eq!(manifest["name"].as_str(), Some(env!("CARGO_PKG_NAME")));
        assert_eq!(manifest["version"].as_str(), Some(env!("CARGO_PKG_VERSION")));
    }
}
