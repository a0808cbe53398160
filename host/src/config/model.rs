//! The configuration, resolved: every value checked, defaults filled in, durations and sizes as such.
//!
//! The file itself (names, units, what contradicts what) is described in `examples/outhaul.toml`, which a test parses.

pub use super::patterns::TopicPattern;
use super::places::Places;
pub use super::sql_name::SqlName;
use crate::domain::Backoff;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The whole file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where it was read from; relative paths in it are relative to this file's folder and are already resolved.
    pub file: PathBuf,
    /// `[plugins]`.
    pub plugins: Plugins,
    /// `[registries.NAME]`.
    pub registries: BTreeMap<String, Registry>,
    /// `[databases.NAME]`.
    pub databases: BTreeMap<String, Database>,
    /// `[secrets.NAME]`.
    pub secrets: BTreeMap<String, SecretSource>,
    /// `[storages.NAME]`.
    pub storages: BTreeMap<String, Adapter>,
    /// `[publishers.NAME]`.
    pub publishers: BTreeMap<String, Publisher>,
    /// `[routers.NAME]`.
    pub routers: Vec<Router>,
    /// `[[relays]]`.
    pub relays: Vec<Relay>,
    /// `[admin]`; none: no admin address.
    pub admin: Option<Admin>,
    /// `[log]`.
    pub log: Log,
    /// Where its keys stand.
    pub places: Places,
    /// `shutdown_grace`: how long a graceful shutdown may take before it becomes a forced one.
    pub shutdown_grace: Duration,
    /// `watch_config`: whether a change of the file is taken over at once; otherwise at SIGHUP.
    pub watch_config: bool,
}

/// Where components come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugins {
    /// Directory of `NAME.wasm` files.
    pub dir: PathBuf,
    /// Directory of compiled code; none: compiled afresh at each start.
    pub cache: Option<PathBuf>,
    /// `watch`: whether a new component in the directory is taken over at once; otherwise at SIGHUP.
    pub watch: bool,
    /// Where the pins are, if there are any: beside the file, with the extension `lock`.
    pub pins: PathBuf,
    /// `pinned`: whether there must be pins.
    pub pinned: bool,
    /// `store`: directory of the components that come from registries.
    pub store: PathBuf,
}

/// How a registry is reached that components come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registry {
    /// `username` and `password`; none: as anybody.
    pub credentials: Option<Credentials>,
    /// `plain_http`: without TLS.
    pub plain_http: bool,
    /// `tls_ca_file`: a PEM file of certificate authorities to trust besides the system's.
    pub tls_ca_file: Option<PathBuf>,
    /// `tls_cert_file` and `tls_key_file`: what the host shows to the server.
    pub tls_client: Option<ClientCertificate>,
}

/// Who the host is to a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub username: String,
    /// The secret that holds the password, by name.
    pub password: String,
}

/// A database that can be granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// `sqlite:PATH`.
    Sqlite(Sqlite),
    /// `postgres://...`.
    Postgres(Box<Postgres>),
}

/// A SQLite file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sqlite {
    /// The file.
    pub path: PathBuf,
    /// `synchronous`: whether a commit waits for the disk (`full`, the default), or may be lost on power failure (`normal`).
    pub synchronous_full: bool,
    /// Whether adapters may create triggers: while an operator has a schema applied. No key of the file.
    pub applies_schema: bool,
}

/// A PostgreSQL server and a database on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Postgres {
    /// `url`.
    pub url: PostgresUrl,
    /// `password`: the secret that holds it, by name; none: the URL has it, or none is needed.
    pub password: Option<String>,
    /// `tls`; none: what the URL says, or else [`Endpoint::default_tls`].
    pub tls: Option<TlsMode>,
    /// `tls_ca_file`: a PEM file of certificate authorities to trust besides the system's.
    pub tls_ca_file: Option<PathBuf>,
    /// `tls_cert_file` and `tls_key_file`: what the host shows to the server.
    pub tls_client: Option<ClientCertificate>,
    /// `max_connections`: sessions that are open at once, those that listen for notifications not counted.
    pub max_connections: usize,
    /// `connect_timeout`: how long opening a session may take, TLS and authentication included.
    pub connect_timeout: Duration,
}

impl Postgres {
    /// Whether a password stands in the file, for everybody who may read it.
    #[must_use]
    pub fn password_in_file(&self) -> bool {
        matches!(&self.url, PostgresUrl::Written(url) if url.password.is_some())
    }

    /// The secrets that it is reached with, by name.
    pub fn secrets(&self) -> impl Iterator<Item = &String> {
        let url = match &self.url {
            PostgresUrl::Written(_) => None,
            PostgresUrl::Secret(name) => Some(name),
        };
        url.into_iter().chain(&self.password)
    }
}

/// Where the URL of a PostgreSQL server comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PostgresUrl {
    /// It stands in the file.
    Written(ServerUrl),
    /// It is the value of a secret, read for each session: the secret's name.
    Secret(String),
}

/// A URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl {
    /// Where the server is.
    pub endpoint: Endpoint,
    /// The role to act as.
    pub user: String,
    /// The password, if it has one.
    pub password: Option<Password>,
    /// The database.
    pub database: String,
    /// `sslmode`.
    pub tls: Option<TlsMode>,
}

/// A password. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub String);

impl std::fmt::Debug for Password {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("***")
    }
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A name or an address, resolved at each connection.
    Tcp {
        /// Name or address, an IPv6 one without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// The file of a Unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// Whether it is on this machine: nobody can listen in.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => {
                host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
            }
        }
    }

    /// How TLS is used where nothing is said: with full verification, or as the server likes on this machine.
    #[must_use]
    pub fn default_tls(&self) -> TlsMode {
        if self.is_local() { TlsMode::Prefer } else { TlsMode::VerifyFull }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(out, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(out, "{host}:{port}"),
            Self::Unix(path) => write!(out, "{}", path.display()),
        }
    }
}

/// How TLS is used, in the words of PostgreSQL's `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsMode {
    /// Not at all.
    Disable,
    /// If the server has it. Protects from nobody who can change what is sent.
    Prefer,
    /// Always, with whatever certificate the server shows.
    Require,
    /// The certificate must come from a trusted authority.
    VerifyCa,
    /// And must be for the host that was asked for.
    VerifyFull,
}

impl TlsMode {
    /// All modes, as they are written.
    pub const WORDS: [&'static str; 5] = ["disable", "prefer", "require", "verify-ca", "verify-full"];

    /// Reads one.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        let modes = [Self::Disable, Self::Prefer, Self::Require, Self::VerifyCa, Self::VerifyFull];
        Self::WORDS.iter().zip(modes).find(|(known, _)| **known == word).map(|(_, mode)| mode)
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

/// Where a secret's value is read, each time it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// An environment variable.
    Env(String),
    /// A file; a line break at its end is not part of the value.
    File(PathBuf),
}

/// What is common to storages and publishers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    /// Its name in the file.
    pub name: String,
    /// `plugin`: the component is `<plugins.dir>/<plugin>.wasm`, or in a registry where this is a reference ([`crate::oci::Pinned`]).
    pub plugin: String,
    /// What it may reach.
    pub grants: Grants,
    /// What it may use.
    pub limits: Limits,
    /// `config` (and `database` for storages), handed to the adapter as JSON.
    pub config: serde_json::Value,
}

/// What the operator allows an adapter to reach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// `allow_hosts`.
    pub hosts: Vec<HostGrant>,
    /// `allow_networks`: address ranges that may be reached although they are private, loopback or link-local.
    pub networks: Vec<ipnet::IpNet>,
    /// Databases by name. A storage is granted its `database`.
    pub databases: Vec<String>,
    /// `allow_secrets`.
    pub secrets: Vec<String>,
    /// `tls_ca_file`: a PEM file of further certificate authorities.
    pub tls_ca_file: Option<PathBuf>,
    /// `tls_cert_file` and `tls_key_file`: what it shows to servers that ask who it is.
    pub tls_client: Option<ClientCertificate>,
}

/// A certificate for TLS clients and its key. The host uses them; no adapter sees the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// `tls_cert_file`: a PEM file of the certificate, and of those between it and its authority.
    pub certificate: PathBuf,
    /// `tls_key_file`: a PEM file of its private key, not encrypted.
    pub key: PathBuf,
}

/// One entry of `allow_hosts`: `host:port`, `*.domain:port`, `host:*`; an IPv6 address in brackets.
///
/// A name grants public addresses only: where it resolves to a private, loopback or link-local one, `allow_networks` must have
/// that too. An entry that is itself an IP address grants that address, whatever it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostGrant {
    /// Lower-case name or address; `*.` at its start: any name below that domain; `*` alone: any.
    pub host: String,
    /// None: any port.
    pub port: Option<u16>,
}

/// What an adapter may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `memory`: linear memory of one instance, in bytes.
    pub memory_bytes: usize,
    /// `call_timeout`: longest call other than `publish`, whose limit is the relay's `publish_timeout`.
    pub call_timeout: Duration,
    /// `returned_bytes`: most bytes that one call may return, and that one SQL result or HTTP response body may hand in.
    pub returned_bytes: usize,
}

impl Limits {
    /// Most bytes of messages that a storage should claim at once: they cross as a result of SQL and as its answer, each with
    /// offsets and headers beside them, and are held several times over in its memory meanwhile.
    #[must_use]
    pub fn most_claimed_bytes(&self) -> usize {
        (self.returned_bytes / 4).min(self.memory_bytes / 8)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory_bytes: 256 << 20, call_timeout: Duration::from_secs(20), returned_bytes: 64 << 20 }
    }
}

/// A publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publisher {
    /// The adapter.
    pub adapter: Adapter,
    /// `lanes`: instances that publish at once.
    pub lanes: usize,
    /// `batch`: most messages of one call.
    pub batch: usize,
    /// `batch_bytes`: most bytes of one call (a single message may be larger).
    pub batch_bytes: usize,
}

/// A router: says who subscribes to what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Router {
    /// Its name in the file.
    pub name: String,
    /// Where it has the subscribers from.
    pub kind: RouterKind,
}

/// Where a router has the subscribers from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouterKind {
    /// `table`: a table of subscriptions, read by the host.
    Table(Box<SubscriptionTable>),
    /// `subscribers`: they stand in the file.
    List(Vec<Subscriber>),
    /// `plugin`: a component.
    Plugin(Box<Adapter>),
}

impl Router {
    /// Its component, if it is one.
    #[must_use]
    pub fn plugin(&self) -> Option<&Adapter> {
        match &self.kind {
            RouterKind::Plugin(adapter) => Some(adapter),
            RouterKind::Table(_) | RouterKind::List(_) => None,
        }
    }

    /// The secrets that it may read, by name.
    pub fn secrets(&self) -> impl Iterator<Item = &String> {
        let (granted, listed): (&[String], &[Subscriber]) = match &self.kind {
            RouterKind::Table(table) => (&table.secrets, &[]),
            RouterKind::List(list) => (&[], list),
            RouterKind::Plugin(adapter) => (&adapter.grants.secrets, &[]),
        };
        granted.iter().chain(listed.iter().flat_map(Subscriber::secrets))
    }

    /// The databases that it may read, by name.
    #[must_use]
    pub fn databases(&self) -> &[String] {
        match &self.kind {
            RouterKind::Table(table) => std::slice::from_ref(&table.database),
            RouterKind::List(_) => &[],
            RouterKind::Plugin(adapter) => &adapter.grants.databases,
        }
    }
}

/// A table of subscriptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionTable {
    /// Database by name.
    pub database: String,
    /// The table.
    pub table: SqlName,
    /// Its columns.
    pub columns: SubscriptionColumns,
    /// `allow_secrets`: those that its rows may name.
    pub secrets: Vec<String>,
}

/// Names of the columns of a table of subscriptions; none: it has no such column (`false` in the file).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionColumns {
    /// None: there are no tenants.
    pub tenant: Option<SqlName>,
    /// Unique within the tenant.
    pub subscriber: SqlName,
    /// Where deliveries go.
    pub url: SqlName,
    /// None: each wants everything.
    pub event_types: Option<SqlName>,
    /// None: nothing is signed.
    pub signing_scope: Option<SqlName>,
    /// None: nobody is authenticated to.
    pub authentication: Option<SqlName>,
    /// None: on nobody's behalf.
    pub principal: Option<SqlName>,
    /// None: the other columns say all.
    pub revision: Option<SqlName>,
    /// None: all are.
    pub active: Option<SqlName>,
}

/// A subscriber that stands in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscriber {
    /// Empty: there are no tenants.
    pub tenant: String,
    /// Unique within the tenant.
    pub subscriber: String,
    /// On whose behalf; may be empty.
    pub principal: String,
    /// Where deliveries go.
    pub url: EndpointUrl,
    /// `topics`: what it wants.
    pub topics: Vec<TopicPattern>,
    /// Names signing material.
    pub signing_scope: Option<String>,
    /// The secret that says how to authenticate, by name.
    pub authentication_secret: Option<String>,
    /// Whether it gets anything.
    pub active: bool,
}

impl Subscriber {
    /// The secrets that it names.
    fn secrets(&self) -> impl Iterator<Item = &String> {
        let url = match &self.url {
            EndpointUrl::Written(_) => None,
            EndpointUrl::Secret(name) => Some(name),
        };
        url.into_iter().chain(&self.authentication_secret)
    }
}

/// Where deliveries to a subscriber go. The URL is never shown: it may be a credential.
#[derive(Clone, PartialEq, Eq)]
pub enum EndpointUrl {
    /// It stands in the file.
    Written(String),
    /// It is the value of a secret: the secret's name.
    Secret(String),
}

impl std::fmt::Debug for EndpointUrl {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Written(_) => out.write_str("Written(***)"),
            Self::Secret(name) => write!(out, "Secret({name:?})"),
        }
    }
}

/// A relay: one storage, and where its topics go.
#[derive(Debug, Clone, PartialEq)]
pub struct Relay {
    /// Its name.
    pub name: String,
    /// Storage by name.
    pub storage: String,
    /// The first route that matches a topic counts. None at all where there is `fan_out`.
    pub routes: Vec<Route>,
    /// `fan_out`, instead of routes.
    pub fan_out: Option<FanOut>,
    /// `batch`: rows a claim.
    pub batch: u32,
    /// `in_flight`: rows claimed and not settled.
    pub in_flight: usize,
    /// `in_flight_bytes`.
    pub in_flight_bytes: usize,
    /// `max_message_bytes`: a larger row ends dead.
    pub max_message_bytes: usize,
    /// `lease`.
    pub lease: Duration,
    /// `max_attempts`; 0: no limit.
    pub max_attempts: u32,
    /// `backoff`.
    pub backoff: Backoff,
    /// `publish_timeout`: longest publish call.
    pub publish_timeout: Duration,
    /// `settle_delay`: how long outcomes are gathered before they are written.
    pub settle_delay: Duration,
    /// `poll`: how long an idle relay waits between claims.
    pub poll: Poll,
    /// `breaker`.
    pub breaker: Breaker,
}

impl Relay {
    /// The publishers that it sends through, by name. One may come more than once.
    pub fn publishers(&self) -> impl Iterator<Item = &String> {
        self.routes.iter().map(|route| &route.publisher).chain(self.fan_out.iter().map(|fan_out| &fan_out.publisher))
    }

    /// The names under which it shows: its own, and that of its deliveries.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.name).chain(self.fan_out.iter().map(|fan_out| &fan_out.deliveries.name))
    }
}

/// What makes a relay's events deliveries to subscribers.
#[derive(Debug, Clone, PartialEq)]
pub struct FanOut {
    /// Router by name.
    pub router: String,
    /// Publisher by name.
    pub publisher: String,
    /// `keys`: what envelopes are sealed with; new ones with the first.
    pub keys: Vec<SealingKey>,
    /// `namespace`: part of what deliveries are bound to.
    pub namespace: String,
    /// `tenant`: works for this one only.
    pub tenant: Option<String>,
    /// `max_subscribers`: an event with more ends dead.
    pub max_subscribers: usize,
    /// `horizon`: an older delivery is not tried again. None: however old it is.
    pub horizon: Option<Duration>,
    /// `delivery`: how deliveries are worked off, as a relay of its own, called `NAME.deliveries`, that sends all to the publisher.
    pub deliveries: Box<Relay>,
}

/// A key that envelopes are sealed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealingKey {
    /// What it is called in the rows that it has sealed.
    pub version: String,
    /// The secret that holds it, by name.
    pub secret: String,
}

/// Between claims of an idle relay: from `min`, doubling, to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Poll {
    /// First wait.
    pub min: Duration,
    /// Longest wait.
    pub max: Duration,
    /// How often a wake source is looked at, where looking is polling (SQLite).
    pub wake_check: Duration,
}

/// The circuit breaker in front of one publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breaker {
    /// `failures`: so many outage failures in a row, with no success for a second, open it. 0: never.
    pub failures: u32,
    /// `open`: how long it stays open at first, doubling up to `max`.
    pub open: Duration,
    /// Longest.
    pub max: Duration,
    /// `probes`: messages let through at once to try whether the outage is over.
    pub probes: usize,
}

/// A route.
#[derive(Debug, Clone)]
pub struct Route {
    /// A pattern: `*` stands for any characters, `?` for one, `[ab]` and `{a,b}` for alternatives.
    pub topic: String,
    /// The same, compiled.
    pub matcher: globset::GlobMatcher,
    /// Publisher by name.
    pub publisher: String,
}

impl PartialEq for Route {
    fn eq(&self, other: &Self) -> bool {
        // The matcher is made of the topic.
        let Self { topic, matcher: _, publisher } = self;
        *topic == other.topic && *publisher == other.publisher
    }
}

/// The admin address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admin {
    /// `listen`; port 0: any free one, which is logged.
    pub listen: SocketAddr,
    /// `stats_interval`: how often the backlog is counted.
    pub stats_interval: Duration,
}

/// Logging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// `filter`, in the syntax of `RUST_LOG`, which has precedence.
    pub filter: String,
    /// `format = "json"`.
    pub json: bool,
}
