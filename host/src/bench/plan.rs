//! What is to be run: the configuration with the options of the command line over it, everything checked. Nothing is opened here.

use super::error::BenchError;
use super::model::Settings;
use super::native;
use super::rows::{self, Rows};
use super::shown::shown;
use crate::app::AppError;
use crate::config::Config;
use crate::config::model::{Adapter, Database, HostGrant, Publisher, Relay, Route};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The component that delivers to nowhere, whose native form it is.
const NULL_PLUGIN: &str = "null-publisher";

/// How the publisher to nowhere is called, unless `--lanes` says otherwise.
const NULL_LANES: usize = 4;
/// Messages of a call to it.
const NULL_BATCH: usize = 500;
/// Their bytes.
const NULL_BYTES: usize = 4 << 20;

/// What was asked for.
#[derive(Debug, Clone)]
pub struct Options {
    /// The relay; none: the only one.
    pub relay: Option<String>,
    /// Rows of a backlog.
    pub rows: u64,
    /// Bytes of each payload.
    pub payload: usize,
    /// Keys; 0: none.
    pub keys: u64,
    /// A steady load instead: rows a second, and for how long.
    pub steady: Option<(u32, Duration)>,
    /// Deliver to nowhere, instead of by what the routes name.
    pub null: bool,
    /// The topic of the rows.
    pub topic: Option<String>,
    /// Adapters as plain Rust.
    pub native: bool,
    /// A destination of the bench's own.
    pub destination: Option<Answers>,
    /// In place of the relay's `batch`.
    pub batch: Option<u32>,
    /// In place of the publisher's `lanes`.
    pub lanes: Option<usize>,
    /// Engines.
    pub hosts: u32,
    /// Whether delivered rows are purged after each run.
    pub purge: bool,
}

/// How a destination answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answers {
    /// After so long.
    pub delay: Duration,
    /// So many percent fail.
    pub failing: u8,
}

/// What is to be run, checked.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(super) config: Config,
    /// With the options in it, and every topic routed to the one publisher.
    pub(super) relay: Relay,
    pub(super) storage: Adapter,
    pub(super) to: To,
    pub(super) rows: Arc<Rows>,
    /// How many rows.
    pub(super) count: u64,
    /// Rows a second; none: a backlog.
    pub(super) rate: Option<u32>,
    pub(super) native: bool,
    pub(super) hosts: u32,
    pub(super) destination: Option<Answers>,
    pub(super) purge: bool,
    settings: Settings,
}

/// Where messages go.
#[derive(Debug, Clone)]
pub(super) enum To {
    /// Nowhere: the name for it; calls at once, messages of a call, their bytes.
    Nowhere(String, (usize, usize, usize)),
    /// By a publisher of the configuration.
    Publisher(Box<Publisher>),
}

impl To {
    /// As the routes name it.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Nowhere(name, _) => name,
            Self::Publisher(publisher) => &publisher.adapter.name,
        }
    }

    /// Calls at once, messages of a call, their bytes.
    pub(super) fn calls(&self) -> (usize, usize, usize) {
        match self {
            Self::Nowhere(_, calls) => *calls,
            Self::Publisher(publisher) => (publisher.lanes, publisher.batch, publisher.batch_bytes),
        }
    }
}

impl Plan {
    /// Checks what was asked for against a configuration.
    ///
    /// # Errors
    /// What does not go together.
    pub fn new(config: Config, options: &Options) -> Result<Self, BenchError> {
        let (mut relay, storage) = target(&config, options.relay.as_deref())?;
        let (topic, publisher) = routed(&relay, options.topic.as_deref())?;
        if options.native && !native::STORAGES.contains(&storage.plugin.as_str()) {
            return Err(BenchError::NoNative { section: format!("storages.{}", storage.name), plugin: storage.plugin });
        }
        let publisher =
            config.publishers.get(&publisher).ok_or_else(|| AppError::NoSuchAdapter { kind: "publishers", name: publisher.clone() })?;
        let to = to(publisher, options)?;
        if options.destination.is_some() && !takes_url(&to) {
            return Err(BenchError::NoUrl { publisher: to.name().to_owned() });
        }
        let count = match options.steady {
            Some((rate, duration)) => rows_of(rate, duration),
            None => options.rows,
        };
        if count == 0 {
            return Err(BenchError::NoRows);
        }
        let (bytes, most) = (rows::largest(&topic, options.payload, options.keys), relay.max_message_bytes);
        if bytes > most {
            return Err(BenchError::TooLarge { relay: relay.name, payload: options.payload, bytes, most });
        }
        if !rows::can_be_marked(options.payload, options.keys) {
            return Err(BenchError::NoMark);
        }
        relay.batch = options.batch.unwrap_or(relay.batch);
        // A claim could never be whole otherwise.
        relay.in_flight = relay.in_flight.max(usize::try_from(relay.batch).unwrap_or(usize::MAX));
        let everything = globset::Glob::new("*").map_err(|_| BenchError::NoRoute { relay: relay.name.clone(), topic: topic.clone() })?;
        relay.routes = vec![Route { topic: "*".to_owned(), matcher: everything.compile_matcher(), publisher: to.name().to_owned() }];
        let settings = settings(&config, (&relay, &storage), publisher, &to, (&topic, count), options);
        Ok(Self {
            rows: Arc::new(Rows::new(&topic, options.payload, options.keys)),
            config,
            relay,
            storage,
            to,
            count,
            rate: options.steady.map(|(rate, _)| rate),
            native: options.native,
            hosts: options.hosts,
            destination: options.destination,
            purge: options.purge,
            settings,
        })
    }

    /// What it comes to, for the report.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The same, sending to a destination of the bench's own.
    pub(super) fn sending_to(&self, address: SocketAddr) -> Self {
        let mut plan = self.clone();
        if let To::Publisher(publisher) = &mut plan.to {
            if let Some(url) = publisher.adapter.config.get_mut("url") {
                *url = format!("http://{address}/").into();
            }
            publisher.adapter.grants.hosts.push(HostGrant { host: address.ip().to_string(), port: Some(address.port()) });
        }
        plan
    }
}

/// What it comes to.
fn settings(config: &Config, target: (&Relay, &Adapter), publisher: &Publisher, to: &To, rows: (&str, u64), options: &Options) -> Settings {
    let ((relay, storage), (topic, count), (lanes, publish_batch, publish_batch_bytes)) = (target, rows, to.calls());
    let named = |adapter: &Adapter| format!("{} ({})", adapter.name, adapter.plugin);
    Settings {
        config_file: config.file.display().to_string(),
        relay: relay.name.clone(),
        storage: named(storage),
        storage_config: shown(&storage.config),
        database: databases(config, storage),
        publisher: if options.null { Settings::NOWHERE.to_owned() } else { named(&publisher.adapter) },
        publisher_config: if options.null { Value::Null } else { shown(&publisher.adapter.config) },
        native: options.native,
        topic: topic.to_owned(),
        rows: count,
        payload_bytes: options.payload,
        keys: options.keys,
        rate: options.steady.map(|(rate, _)| rate),
        batch: relay.batch,
        in_flight: relay.in_flight,
        in_flight_bytes: relay.in_flight_bytes,
        settle_delay_ms: millis(relay.settle_delay),
        poll_min_ms: millis(relay.poll.min),
        poll_max_ms: millis(relay.poll.max),
        wake_check_ms: millis(relay.poll.wake_check),
        backoff_base_ms: millis(relay.backoff.base),
        backoff_factor: relay.backoff.factor,
        backoff_max_ms: millis(relay.backoff.max),
        publish_batch,
        publish_batch_bytes,
        lanes: u32::try_from(lanes).unwrap_or(u32::MAX),
        hosts: options.hosts,
        destination_delay_ms: options.destination.map(|answers| millis(answers.delay)),
        destination_failing_percent: options.destination.map(|answers| answers.failing),
        purge: options.purge,
    }
}

/// What the storage works on, without where it is.
fn databases(config: &Config, storage: &Adapter) -> String {
    let told = storage.grants.databases.iter().map(|name| match config.databases.get(name) {
        Some(Database::Sqlite(sqlite)) => {
            format!("{name} (SQLite, synchronous {})", if sqlite.synchronous_full { "full" } else { "normal" })
        }
        Some(Database::Postgres(postgres)) => format!("{name} (PostgreSQL, at most {} connections of each host)", postgres.max_connections),
        None => name.clone(),
    });
    told.collect::<Vec<_>>().join(", ")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Where messages go, by what the routes name and what was asked for.
fn to(publisher: &Publisher, options: &Options) -> Result<To, BenchError> {
    let Publisher { adapter, lanes, batch, batch_bytes } = publisher;
    let lanes = options.lanes.unwrap_or(if options.null { NULL_LANES } else { *lanes });
    if options.null {
        return Ok(To::Nowhere(Settings::NOWHERE.to_owned(), (lanes, NULL_BATCH, NULL_BYTES)));
    }
    if !options.native {
        return Ok(To::Publisher(Box::new(Publisher { lanes, ..publisher.clone() })));
    }
    if adapter.plugin == NULL_PLUGIN {
        return Ok(To::Nowhere(adapter.name.clone(), (lanes, *batch, *batch_bytes)));
    }
    Err(BenchError::NoNative { section: format!("publishers.{}", adapter.name), plugin: adapter.plugin.clone() })
}

fn takes_url(to: &To) -> bool {
    matches!(to, To::Publisher(publisher) if publisher.adapter.config.get("url").is_some_and(serde_json::Value::is_string))
}

/// The relay and its storage.
pub(super) fn target(config: &Config, name: Option<&str>) -> Result<(Relay, Adapter), BenchError> {
    let relay = chosen(config, name)?.clone();
    if relay.fan_out.is_some() {
        return Err(BenchError::FanOut { relay: relay.name });
    }
    let storage = config.storages.get(&relay.storage);
    let storage = storage.ok_or_else(|| AppError::NoSuchAdapter { kind: "storages", name: relay.storage.clone() })?.clone();
    Ok((relay, storage))
}

fn chosen<'a>(config: &'a Config, name: Option<&str>) -> Result<&'a Relay, BenchError> {
    let known = || config.relays.iter().map(|relay| relay.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, config.relays.as_slice()) {
        (Some(name), relays) => {
            let named = relays.iter().find(|relay| relay.name == name);
            named.ok_or_else(|| AppError::NoSuchRelay { name: name.to_owned(), known: known() }.into())
        }
        (None, [only]) => Ok(only),
        (None, []) => Err(AppError::NoRelays(config.file.clone()).into()),
        (None, _) => Err(BenchError::WhichRelay { known: known() }),
    }
}

/// A topic that has a route, and the publisher that it leads to.
fn routed(relay: &Relay, asked: Option<&str>) -> Result<(String, String), BenchError> {
    let route = |topic: &str| relay.routes.iter().find(|route| route.matcher.is_match(topic)).map(|route| route.publisher.clone());
    let of_first = || relay.routes.first().and_then(|route| rows::concrete(&route.topic));
    let candidates = match asked {
        Some(topic) => vec![topic.to_owned()],
        None => [rows::TOPIC.to_owned()].into_iter().chain(of_first()).collect(),
    };
    let found = candidates.iter().find_map(|topic| Some((topic.clone(), route(topic)?)));
    let topic = || asked.unwrap_or(rows::TOPIC).to_owned();
    found.ok_or_else(|| BenchError::NoRoute { relay: relay.name.clone(), topic: topic() })
}

/// Rows of a steady load.
fn rows_of(rate: u32, duration: Duration) -> u64 {
    u64::try_from(u128::from(rate).saturating_mul(duration.as_millis()) / 1000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use serde_json::json;

    const CONFIG: &str = r#"
        databases.main.url = "sqlite:a.db"
        storages.outbox = { plugin = "sqlite-storage", database = "main" }
        storages.other = { plugin = "my-storage", database = "main" }
        publishers.hooks = { plugin = "http-publisher", config = { url = "https://a.example/{topic}" } }
        publishers.events = { plugin = "kafka-publisher", lanes = 2 }
        publishers.void = { plugin = "null-publisher", lanes = 3, batch = 9 }
        [[relays]]
        name = "orders"
        storage = "outbox"
        routes = [ { topic = "orders.*", publisher = "hooks" }, { topic = "events", publisher = "events" }, { topic = "void", publisher = "void" } ]
        [[relays]]
        name = "other"
        storage = "other"
        routes = [ { topic = "*", publisher = "events" } ]
    "#;

    fn options() -> Options {
        Options {
            relay: Some("orders".to_owned()),
            rows: 10,
            payload: 256,
            keys: 3,
            steady: None,
            null: false,
            topic: None,
            native: false,
            destination: None,
            batch: None,
            lanes: None,
            hosts: 1,
            purge: false,
        }
    }

    fn plan(options: &Options) -> Result<Plan, BenchError> {
        Plan::new(parse(CONFIG, "o.toml".as_ref()).unwrap(), options)
    }

    fn refused(options: &Options) -> String {
        let error = plan(options).unwrap_err();
        assert!(error.is_usage(), "{error}");
        error.to_string()
    }

    #[test]
    fn the_topic_decides_who_publishes() {
        let to = |topic: Option<&str>, relay: &str| {
            let plan = plan(&Options { topic: topic.map(str::to_owned), relay: Some(relay.to_owned()), ..options() }).unwrap();
            (plan.rows.topic().to_owned(), plan.settings.publisher)
        };
        let expected = |topic: &str, publisher: &str| (topic.to_owned(), publisher.to_owned());
        assert_eq!(to(None, "orders"), expected("orders.bench", "hooks (http-publisher)"));
        assert_eq!(to(Some("events"), "orders"), expected("events", "events (kafka-publisher)"));
        assert_eq!(to(None, "other"), expected("outhaul.bench", "events (kafka-publisher)"));
        assert!(refused(&Options { topic: Some("none".into()), ..options() }).contains("no route for the topic \"none\""));
    }

    #[test]
    fn options_take_the_place_of_settings() {
        let plan = plan(&Options { batch: Some(9000), lanes: Some(7), hosts: 2, ..options() }).unwrap();
        assert_eq!((plan.relay.batch, plan.relay.in_flight, plan.to.calls()), (9000, 9000, (7, 100, 4 << 20)));
        assert_eq!((plan.settings.batch, plan.settings.lanes, plan.settings.hosts), (9000, 7, 2));
        let nowhere = Plan::new(plan.config, &Options { null: true, native: true, ..options() }).unwrap();
        assert_eq!((nowhere.settings.publisher.as_str(), nowhere.to.calls()), ("null", (4, 500, 4 << 20)));
        let void = self::plan(&Options { topic: Some("void".into()), native: true, ..options() }).unwrap();
        assert_eq!((void.settings.publisher.as_str(), void.to.calls()), ("void (null-publisher)", (3, 9, 4 << 20)));
        assert_eq!((nowhere.relay.routes.len(), nowhere.relay.routes[0].publisher.as_str()), (1, "null"));
    }

    #[test]
    fn settings_have_what_the_configuration_says() {
        let with = |text: &str, options: &Options| Plan::new(parse(text, "o.toml".as_ref()).unwrap(), options).unwrap().settings;
        let settings = with(CONFIG, &Options { purge: true, ..options() });
        assert_eq!((settings.config_file.as_str(), settings.topic.as_str(), settings.purge), ("o.toml", "orders.bench", true));
        assert_eq!(settings.database, "main (SQLite, synchronous full)");
        assert_eq!(settings.publisher_config, json!({ "url": "https://a.example/{topic}" }));
        assert_eq!((settings.publish_batch, settings.in_flight >= 500, settings.backoff_max_ms > 0), (100, true, true));
        let other = CONFIG.replacen("database = \"main\" }", "database = \"main\", config = { strict_order = false } }", 1);
        let other = with(&other, &Options { purge: true, ..options() });
        assert_eq!(super::super::settings::distinct(&other, &settings), "storage.strict_order false");
        assert_eq!(with(CONFIG, &Options { null: true, ..options() }).publisher_config, Value::Null);
    }

    #[test]
    fn a_steady_load_has_as_many_rows_as_its_duration_takes() {
        let of = |rate, duration| plan(&Options { steady: Some((rate, duration)), ..options() }).map(|plan| plan.count);
        assert_eq!(of(200, Duration::from_millis(1500)).unwrap(), 300);
        assert!(matches!(of(1, Duration::from_millis(999)), Err(BenchError::NoRows)));
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        assert!(refused(&Options { relay: None, ..options() }).contains("--relay (orders, other)"));
        assert!(refused(&Options { relay: Some("x".into()), ..options() }).contains("relays: orders, other"));
        assert!(refused(&Options { native: true, ..options() }).contains("publishers.hooks: the plugin http-publisher has no native form"));
        let other = Options { relay: Some("other".into()), ..options() };
        assert!(refused(&Options { native: true, null: true, ..other.clone() }).contains("storages.other: the plugin my-storage"));
        let answers = Some(Answers { delay: Duration::ZERO, failing: 0 });
        assert!(refused(&Options { destination: answers, ..other }).contains("publishers.events"));
        assert!(refused(&Options { destination: answers, null: true, ..options() }).contains("publishers.null"));
        assert!(refused(&Options { rows: 0, ..options() }).contains("nothing to measure"));
        // 8 MiB, of which topic and key (`orders.bench`, `k2`) take 14.
        let most = (8 << 20) - 14;
        assert!(plan(&Options { payload: most, ..options() }).is_ok());
        let told = refused(&Options { payload: most + 1, ..options() });
        assert!(told.contains("--payload 8388595") && told.contains("`max_message_bytes` (8388608)"), "{told}");
        assert!(refused(&Options { payload: 15, keys: 0, ..options() }).contains("--keys"));
    }

    #[test]
    fn a_relay_with_fan_out_is_refused() {
        let fan_out = "fan_out = { router = \"list\", publisher = \"hooks\", keys = [{ version = \"1\", secret = \"key\" }] }";
        let router = "secrets.key = { env = \"KEY\" }\nrouters.list.subscribers = [{ subscriber = \"a\", url = \"https://h/\" }]\n";
        let text = router.to_owned() + &CONFIG.replace("routes = [ { topic = \"*\", publisher = \"events\" } ]", fan_out);
        let config = parse(&text, "o.toml".as_ref()).unwrap();
        let error = Plan::new(config, &Options { relay: Some("other".into()), ..options() }).unwrap_err();
        assert!(error.is_usage() && error.to_string().starts_with("the relay other has fan_out"), "{error}");
    }

    #[test]
    fn a_destination_of_its_own_is_granted() {
        let plan = plan(&Options { destination: Some(Answers { delay: Duration::ZERO, failing: 0 }), ..options() }).unwrap();
        let To::Publisher(publisher) = plan.sending_to("127.0.0.1:99".parse().unwrap()).to else { panic!("it has one") };
        assert_eq!(publisher.adapter.config["url"], "http://127.0.0.1:99/");
        assert_eq!(publisher.adapter.grants.hosts, [HostGrant { host: "127.0.0.1".into(), port: Some(99) }]);
    }
}
