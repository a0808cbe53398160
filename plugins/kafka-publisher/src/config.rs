//! The configuration: what the operator writes (`Config`), and what it means, checked (`Settings`).

use crate::address::Address;
use crate::compression::Compression;
use crate::forward::{Forward, ForwardConfig};
use crate::sasl::{Credentials, Mechanism};
use outhaul_sdk::template::Template;
use outhaul_sdk::{Failure, Size, parse_config, parse_duration};
use serde::Deserialize;
use std::time::Duration;

/// Most produce requests without an answer. A broker remembers the last five batches of a producer in a partition: of more it
/// could not tell a repetition.
const MAX_IN_FLIGHT: usize = 5;

/// Smallest and largest `max_request_bytes`: a record has some overhead, and a broker refuses requests of more than 100 MiB
/// (`socket.request.max.bytes`) by closing the connection.
const REQUEST_BYTES: std::ops::RangeInclusive<u64> = 1024..=100 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    brokers: Vec<String>,
    #[serde(default = "defaults::topic")]
    topic: String,
    #[serde(default = "defaults::client_id")]
    client_id: String,
    #[serde(default)]
    compression: CompressionName,
    compression_level: Option<u32>,
    #[serde(default = "defaults::max_request_bytes")]
    max_request_bytes: Size,
    #[serde(default = "defaults::in_flight")]
    in_flight: usize,
    request_timeout: Option<String>,
    partition_header: Option<String>,
    #[serde(default = "defaults::id_header")]
    id_header: String,
    #[serde(default)]
    forward_headers: ForwardConfig,
    sasl: Option<SaslConfig>,
    #[serde(default)]
    tls: bool,
}

mod defaults {
    pub(super) fn topic() -> String {
        "{topic}".into()
    }
    pub(super) fn client_id() -> String {
        "outhaul".into()
    }
    /// As `max.request.size` of the Java client.
    pub(super) fn max_request_bytes() -> super::Size {
        super::Size(1 << 20)
    }
    pub(super) fn in_flight() -> usize {
        super::MAX_IN_FLIGHT
    }
    pub(super) fn id_header() -> String {
        "outhaul-id".into()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CompressionName {
    #[default]
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SaslConfig {
    mechanism: Mechanism,
    username: String,
    password: SecretConfig,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretConfig {
    secret: String,
}

/// How to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sasl {
    /// Mechanism.
    pub mechanism: Mechanism,
    /// Name.
    pub username: String,
    /// Name of the secret that holds the password.
    pub password_secret: String,
}

/// The configuration, checked.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where to learn of the cluster.
    pub brokers: Vec<Address>,
    /// Topic of a message.
    pub topic: Template,
    /// Named in the broker's logs, metrics and quotas.
    pub client_id: String,
    /// Of the records.
    pub compression: Compression,
    /// Most bytes of a request, and of a batch before compression; also the largest message, headers and key included.
    pub max_request_bytes: usize,
    /// Most produce requests without an answer, a broker.
    pub in_flight: usize,
    /// Longest request; none: half of the call's time.
    pub request_timeout: Option<Duration>,
    /// Header of a message that names its partition.
    pub partition_header: Option<String>,
    /// Header that carries the message's id; none: nothing does.
    pub id_header: Option<String>,
    /// Which headers of a message are passed on.
    pub forward: Forward,
    /// How to log in; none: not at all.
    pub sasl: Option<Sasl>,
    /// Whether the brokers' listeners expect TLS.
    pub tls: bool,
}

impl Settings {
    /// Reads the adapter's table, as JSON.
    ///
    /// # Errors
    /// `invalid-configuration`, naming the key.
    pub fn parse(json: &str) -> Result<Self, Failure> {
        resolve(parse_config(json)?).map_err(Failure::invalid_configuration)
    }

    /// The credentials, with the password as it is now.
    ///
    /// # Errors
    /// There is no such secret.
    pub fn credentials(&self, secret: impl Fn(&str) -> Option<String>) -> Result<Option<Credentials>, Failure> {
        let Some(sasl) = &self.sasl else { return Ok(None) };
        let name = &sasl.password_secret;
        let password = secret(name).ok_or_else(|| {
            Failure::invalid_configuration(format!(
                "`sasl.password`: there is no secret `{name}`: add [secrets.{name}] and `allow_secrets = [\"{name}\"]`, and set its value"
            ))
        })?;
        Ok(Some(Credentials { mechanism: sasl.mechanism, username: sasl.username.clone(), password }))
    }
}

fn resolve(config: Config) -> Result<Settings, String> {
    if config.brokers.is_empty() {
        return Err("`brokers`: must name at least one broker".into());
    }
    let brokers = config.brokers.iter().map(|text| Address::parse(text)).collect::<Result<_, _>>();
    let id_header = Some(config.id_header).filter(|name| !name.is_empty());
    if config.partition_header.as_deref() == Some("") {
        return Err("`partition_header`: must name a header".into());
    }
    if let (Some(id), Some(partition)) = (&id_header, &config.partition_header)
        && id.eq_ignore_ascii_case(partition)
    {
        return Err("`partition_header`: must be another header than `id_header`".into());
    }
    let reserved = id_header.iter().chain(&config.partition_header).cloned().collect();
    if !(1..=MAX_IN_FLIGHT).contains(&config.in_flight) {
        return Err(format!("`in_flight`: must be from 1 to {MAX_IN_FLIGHT}"));
    }
    if !REQUEST_BYTES.contains(&config.max_request_bytes.0) {
        return Err("`max_request_bytes`: must be from 1KiB to 100MiB".into());
    }
    Ok(Settings {
        brokers: brokers.map_err(|error| format!("`brokers`: {error}"))?,
        topic: Template::parse(&config.topic).map_err(|error| format!("`topic`: {error}"))?,
        client_id: config.client_id,
        compression: compression(config.compression, config.compression_level)?,
        max_request_bytes: usize::try_from(config.max_request_bytes.0).map_err(|error| format!("`max_request_bytes`: {error}"))?,
        in_flight: config.in_flight,
        request_timeout: config
            .request_timeout
            .as_deref()
            .map(parse_duration)
            .transpose()
            .map_err(|error| format!("`request_timeout`: {error}"))?,
        partition_header: config.partition_header,
        id_header,
        forward: Forward::new(config.forward_headers, reserved)?,
        sasl: config.sasl.map(sasl).transpose()?,
        tls: config.tls,
    })
}

fn compression(name: CompressionName, level: Option<u32>) -> Result<Compression, String> {
    if level.is_some() && name != CompressionName::Gzip {
        return Err("`compression_level`: only gzip has levels here".into());
    }
    match (name, level.unwrap_or(6)) {
        (CompressionName::Gzip, level @ 0..=9) => Ok(Compression::Gzip(level)),
        (CompressionName::Gzip, _) => Err("`compression_level`: must be from 0 to 9".into()),
        (CompressionName::None, _) => Ok(Compression::None),
        (CompressionName::Snappy, _) => Ok(Compression::Snappy),
        (CompressionName::Lz4, _) => Ok(Compression::Lz4),
        (CompressionName::Zstd, _) => Ok(Compression::Zstd),
    }
}

fn sasl(config: SaslConfig) -> Result<Sasl, String> {
    // A NUL ends a field of PLAIN.
    if config.username.is_empty() || config.username.contains('\0') {
        return Err("`sasl.username`: must not be empty".into());
    }
    if config.password.secret.is_empty() {
        return Err("`sasl.password.secret`: must name a secret".into());
    }
    Ok(Sasl { mechanism: config.mechanism, username: config.username, password_secret: config.password.secret })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(extra: &str) -> Result<Settings, Failure> {
        Settings::parse(&format!(r#"{{"brokers":["kafka:9092"]{extra}}}"#))
    }

    #[test]
    fn defaults() {
        let settings = with("").unwrap();
        assert_eq!((settings.compression, settings.in_flight, settings.max_request_bytes), (Compression::None, 5, 1_048_576));
        assert_eq!((settings.id_header.as_deref(), settings.partition_header, settings.request_timeout), (Some("outhaul-id"), None, None));
        assert!(settings.topic.is_topic() && settings.sasl.is_none() && !settings.tls);
    }

    #[test]
    fn values_are_read() {
        let settings = with(
            r#","topic":"prefix.{topic}","client_id":"x","compression":"gzip","compression_level":9,"max_request_bytes":"2MiB","in_flight":1,
               "request_timeout":"500ms","partition_header":"p","id_header":"",
               "tls":true,"sasl":{"mechanism":"SCRAM-SHA-512","username":"alice","password":{"secret":"kafka"}}"#,
        )
        .unwrap();
        assert_eq!((settings.compression, settings.max_request_bytes), (Compression::Gzip(9), 2 << 20));
        assert_eq!((settings.request_timeout, settings.id_header, settings.tls), (Some(Duration::from_millis(500)), None, true));
        let sasl = Sasl { mechanism: Mechanism::ScramSha512, username: "alice".into(), password_secret: "kafka".into() };
        assert_eq!(settings.sasl, Some(sasl));
    }

    #[test]
    fn every_error_names_its_key() {
        for (extra, key) in [
            (r#","brokres":[]"#, "brokres"),
            (r#","topic":"{x}""#, "`topic`"),
            (r#","compression":"brotli""#, "`compression`"),
            (r#","compression_level":3"#, "`compression_level`"),
            (r#","compression":"gzip","compression_level":10"#, "`compression_level`"),
            (r#","compression":"zstd","compression_level":3"#, "`compression_level`"),
            (r#","max_request_bytes":100"#, "`max_request_bytes`"),
            (r#","max_request_bytes":"200MiB""#, "`max_request_bytes`"),
            (r#","in_flight":0"#, "`in_flight`"),
            (r#","in_flight":6"#, "`in_flight`"),
            (r#","request_timeout":"5""#, "`request_timeout`"),
            (r#","partition_header":"""#, "`partition_header`"),
            (r#","partition_header":"Outhaul-Id""#, "`partition_header`"),
            (r#","forward_headers":{"include":[""]}"#, "`forward_headers.include`"),
            (r#","sasl":{"mechanism":"GSSAPI","username":"a","password":{"secret":"s"}}"#, "`sasl.mechanism`"),
            (r#","sasl":{"mechanism":"PLAIN","username":"","password":{"secret":"s"}}"#, "`sasl.username`"),
            (r#","sasl":{"mechanism":"PLAIN","username":"a","password":{"secret":""}}"#, "`sasl.password.secret`"),
            (r#","sasl":{"mechanism":"PLAIN","username":"a","password":"open"}"#, "`sasl.password`"),
        ] {
            let error = with(extra).unwrap_err();
            assert_eq!(error.code, outhaul_sdk::FailureCode::InvalidConfiguration);
            assert!(error.detail.contains(key), "{extra}: {}", error.detail);
        }
        for (json, key) in [(r#"{"brokers":[]}"#, "`brokers`"), (r#"{"brokers":["kafka"]}"#, "`brokers`"), ("{}", "brokers")] {
            assert!(Settings::parse(json).unwrap_err().detail.contains(key), "{json}");
        }
    }

    #[test]
    fn a_missing_password_is_named() {
        let settings = with(r#","sasl":{"mechanism":"PLAIN","username":"a","password":{"secret":"kafka"}}"#).unwrap();
        assert!(settings.credentials(|_| None).unwrap_err().detail.contains("[secrets.kafka]"));
        assert_eq!(settings.credentials(|_| Some("p".into())).unwrap().unwrap().plain(), b"\0a\0p");
    }

    /// Every example of the README is a configuration that opens, and its table has every key.
    #[test]
    fn the_readme_is_right() {
        let readme = include_str!("../README.md");
        let mut examples = 0;
        for block in readme.split("```toml\n").skip(1) {
            let file: toml::Table = block.split("```").next().unwrap().parse().unwrap();
            let mut config = file["publishers"]["events"]["config"].clone();
            config.as_table_mut().unwrap().entry("brokers").or_insert(vec!["kafka:9092"].into());
            let settings = Settings::parse(&serde_json::to_string(&config).unwrap());
            assert!(settings.is_ok(), "{config}: {settings:?}");
            examples += 1;
        }
        assert_eq!(examples, 2);
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
