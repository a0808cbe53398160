//! The reference file against the code, and a table of files that are wrong.

use super::{Config, ConfigError, Places, Problems, load, parse, warnings, written_passwords};
use crate::config::model::{Database, HostGrant, PostgresUrl, Registry, RouterKind, SecretSource, TlsMode};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

const REFERENCE: &str = include_str!("../../../examples/outhaul.toml");

/// The same as the reference file with everything left out that has a default.
const MINIMAL: &str = r#"
[admin]
[secrets.signing-key]
file = "secrets/signing-key"
[secrets.api-token]
env = "API_TOKEN"
[databases.main]
url = "sqlite:outbox.db"
[storages.outbox]
plugin = "sqlite-storage"
database = "main"
config = { table = "outbox" }
[publishers.webhooks]
plugin = "http-publisher"
allow_hosts = ["hooks.example.com:443"]
allow_secrets = ["signing-key"]
config = { url = "https://hooks.example.com/{topic}" }
[[relays]]
name = "orders"
storage = "outbox"
routes = [{ topic = "orders.*", publisher = "webhooks" }]
[databases.server]
url = "postgres://outhaul@db.example.com/shop"
[registries."ghcr.io"]
[routers.subscriptions]
database = "main"
table = "subscriptions"
[routers.list]
subscribers = [{ tenant = "acme", subscriber = "crm", url = "https://crm.example.com/hooks", topics = ["orders.*"] }]
[routers.directory]
plugin = "my-router"
"#;

fn read(text: &str) -> Result<Config, Problems> {
    parse(text, Path::new("/etc/outhaul/outhaul.toml"))
}

/// MINIMAL with one line replaced by another text.
fn changed(from: &str, to: &str) -> Result<Config, Problems> {
    assert!(MINIMAL.contains(from), "{from} is not in the minimal file");
    read(&MINIMAL.replacen(from, to, 1))
}

/// The reference file with its routers, which are comments there: most relays ask none, and these cannot be opened as they stand.
fn with_routers() -> String {
    let (before, rest) = REFERENCE.split_once("# Routers: ").unwrap();
    let (routers, after) = rest.split_once("# A relay moves").unwrap();
    let is_toml = |line: &&str| line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains([' ', ':']));
    let routers = routers.lines().map(|line| line.strip_prefix("# ").filter(is_toml).unwrap_or(line));
    let routers = routers.skip(1).collect::<Vec<_>>().join("\n");
    format!("{before}{routers}\n# A relay moves{after}")
}

#[test]
fn the_reference_file_shows_the_defaults() {
    // All but where it stands.
    let read = |text| Config { places: Places::default(), ..read(text).unwrap() };
    let (reference, minimal) = (read(&with_routers()), read(MINIMAL));
    assert_eq!(format!("{reference:#?}"), format!("{minimal:#?}"));
}

#[test]
fn the_reference_file_shows_every_key() {
    // A wrong key in every section makes each name its keys.
    let mut wrong = String::from("xx = 1\n");
    for line in MINIMAL.lines() {
        let line = line.replace("publisher = \"webhooks\" }", "publisher = \"webhooks\", xx = 1 }");
        let line = line.replace("[\"orders.*\"] }", "[\"orders.*\"], xx = 1 }");
        wrong.push_str(&line);
        wrong.push('\n');
        if line.starts_with('[') {
            wrong.push_str("xx = 1\n");
        }
        match line.as_str() {
            "[routers.subscriptions]" => wrong.push_str("columns = { xx = 1 }\n"),
            "[[relays]]" => wrong.push_str("backoff = { xx = 1 }\npoll = { xx = 1 }\nbreaker = { xx = 1 }\n"),
            "[storages.outbox]" | "[publishers.webhooks]" | "[routers.directory]" => wrong.push_str("limits = { xx = 1 }\n"),
            _ => {}
        }
    }
    wrong.push_str("[log]\nxx = 1\n[plugins]\nxx = 1\n");
    wrong.push_str("[[relays]]\nfan_out = { keys = [{ xx = 1 }], delivery = { xx = 1 }, xx = 1 }\n");
    let problems = read(&wrong).unwrap_err();
    let sections = problems.list.iter().filter(|problem| problem.key.ends_with("xx")).count();
    assert_eq!(sections, 27, "{problems}");
    let known: BTreeSet<&str> = problems.list.iter().flat_map(|problem| problem.known.iter().copied()).collect();
    assert!(known.len() > 40, "{known:?}");
    for key in known {
        let shown = [format!("{key} = "), format!("[{key}"), format!(".{key}]"), format!("{key}.")];
        assert!(shown.iter().any(|shown| REFERENCE.contains(shown)), "{key} is not in examples/outhaul.toml");
    }
}

#[test]
fn paths_start_at_the_file() {
    let config = read(MINIMAL).unwrap();
    let Some(Database::Sqlite(sqlite)) = config.databases.get("main") else { panic!("no database") };
    assert_eq!(sqlite.path, Path::new("/etc/outhaul/outbox.db"));
    assert_eq!(config.plugins.dir, Path::new("/etc/outhaul/plugins"));
    assert_eq!(config.plugins.store, Path::new("/etc/outhaul/plugins/.oci"));
    assert_eq!(changed("[admin]", "[plugins]\nstore = \"kept\"").unwrap().plugins.store, Path::new("/etc/outhaul/kept"));
    assert_eq!(config.secrets["signing-key"], SecretSource::File("/etc/outhaul/secrets/signing-key".into()));
}

#[test]
fn values_arrive() {
    let config = read(REFERENCE).unwrap();
    let storage = &config.storages["outbox"];
    assert_eq!(storage.config, serde_json::json!({ "table": "outbox", "database": "main" }));
    assert_eq!(storage.grants.databases, ["main"]);
    let publisher = &config.publishers["webhooks"];
    assert_eq!((publisher.lanes, publisher.batch, publisher.batch_bytes), (4, 100, 4 << 20));
    assert_eq!(publisher.adapter.grants.hosts, [HostGrant { host: "hooks.example.com".into(), port: Some(443) }]);
    let relay = &config.relays[0];
    assert_eq!((relay.batch, relay.in_flight, relay.in_flight_bytes, relay.max_message_bytes), (500, 5000, 64 << 20, 8 << 20));
    assert_eq!((relay.lease, relay.publish_timeout, relay.max_attempts), (Duration::from_secs(60), Duration::from_secs(10), 10));
    assert!(relay.routes[0].matcher.is_match("orders.eu.created") && !relay.routes[0].matcher.is_match("invoices"));
    assert_eq!(config.admin.unwrap().listen.to_string(), "127.0.0.1:9464");
}

#[test]
fn a_server_is_read_with_its_defaults() {
    let postgres = |to: &str| match changed("url = \"sqlite:outbox.db\"", to).unwrap().databases.remove("main") {
        Some(Database::Postgres(postgres)) => *postgres,
        other => panic!("{other:?}"),
    };
    let plain = postgres("url = \"postgres://u:p@db.example.com/d\"");
    let PostgresUrl::Written(url) = &plain.url else { panic!("{:?}", plain.url) };
    assert_eq!((plain.tls, url.endpoint.default_tls()), (None, TlsMode::VerifyFull));
    assert_eq!((plain.max_connections, plain.connect_timeout), (8, Duration::from_secs(5)));
    assert!(plain.password_in_file() && !format!("{plain:?}").contains("\"p\""));
    for local in ["localhost", "127.0.0.1", "[::1]"] {
        let local = postgres(&format!("url = \"postgres://u@{local}/d\""));
        assert!(matches!(&local.url, PostgresUrl::Written(url) if url.endpoint.default_tls() == TlsMode::Prefer));
    }
    let secret = "url = { secret = \"api-token\" }\npassword = { secret = \"signing-key\" }\ntls = \"verify-ca\"\ntls_ca_file = \"ca.pem\"";
    let secret = postgres(secret);
    assert!(matches!(&secret.url, PostgresUrl::Secret(name) if name == "api-token"));
    assert_eq!((secret.password.as_deref(), secret.tls), (Some("signing-key"), Some(TlsMode::VerifyCa)));
    assert_eq!(secret.tls_ca_file.as_deref(), Some(Path::new("/etc/outhaul/ca.pem")));
    assert!(!secret.password_in_file());

    let config = changed("url = \"sqlite:outbox.db\"", "url = \"postgres://u:hunter2@h/d\"").unwrap();
    let warned: Vec<_> = written_passwords(&config).map(|(name, place)| (name, place.unwrap().line)).collect();
    assert_eq!(warned, [("main", 8)], "the other one has no password");
}

#[test]
fn without_the_section_there_is_no_admin_address() {
    assert!(changed("[admin]", "").unwrap().admin.is_none());
    assert_eq!(changed("[admin]", "[admin]\nlisten = \"[::]:1\"\nallow_remote = true").unwrap().admin.unwrap().listen.port(), 1);
}

#[test]
fn routers_are_of_three_kinds() {
    let routers = |from: &str, to: &str| changed(from, to).unwrap().routers;
    let plain = read(MINIMAL).unwrap().routers;
    let names: Vec<&str> = plain.iter().map(|router| router.name.as_str()).collect();
    assert_eq!(names, ["directory", "list", "subscriptions"]);
    let RouterKind::List(list) = &plain[1].kind else { panic!("{plain:?}") };
    assert!(list[0].active && list[0].topics[0].is_match("orders.paid") && !list[0].topics[0].is_match("users"));
    let shown = format!("{plain:?}");
    assert!(!shown.contains("crm.example.com"), "a URL may be a credential: {shown}");

    let columns = "table = \"hooks.subscriptions\"\nallow_secrets = [\"api-token\"]\ncolumns = { tenant = false, url = \"target\", revision = false }";
    let routers_with = routers("table = \"subscriptions\"", columns);
    let RouterKind::Table(table) = &routers_with[2].kind else { panic!("{routers_with:?}") };
    assert_eq!(
        (table.table.to_string().as_str(), table.secrets.as_slice()),
        ("\"hooks\".\"subscriptions\"", &["api-token".to_owned()][..])
    );
    assert_eq!((table.columns.tenant.is_none(), table.columns.url.as_str()), (true, "target"));
    assert_eq!(table.columns.active.as_ref().map(ToString::to_string).as_deref(), Some("\"active\""));
    assert_eq!(routers_with[2].databases(), ["main"]);

    let secrets = routers("url = \"https://crm.example.com/hooks\"", "url_secret = \"api-token\", authentication_secret = \"signing-key\"");
    assert_eq!(secrets[1].secrets().collect::<Vec<_>>(), ["api-token", "signing-key"]);

    let plugin = routers("plugin = \"my-router\"", "plugin = \"my-router\"\ndatabase = \"main\"\nconfig = { a = 1 }");
    let adapter = plugin[0].plugin().unwrap();
    assert_eq!(adapter.config, serde_json::json!({ "a": 1, "database": "main" }));
    assert_eq!(adapter.grants.databases, ["main"]);
    assert_eq!(plain[0].databases(), [""; 0]);
}

#[test]
fn a_registry_has_a_user_and_its_own_ways() {
    let text = "\"localhost:5000\"]\nplain_http = true\nusername = \"me\"\npassword = { secret = \"api-token\" }";
    let config = changed("\"ghcr.io\"]", text).unwrap();
    let registry = &config.registries["localhost:5000"];
    let credentials = registry.credentials.as_ref().unwrap();
    assert!(registry.plain_http, "on this machine it may know the password");
    assert_eq!((credentials.username.as_str(), credentials.password.as_str()), ("me", "api-token"));
    assert_eq!(read(MINIMAL).unwrap().registries["ghcr.io"], Registry::default());
}

#[test]
fn the_compile_cache_can_be_turned_off() {
    assert_eq!(changed("[admin]", "[plugins]\ncache = false").unwrap().plugins.cache, None);
}

/// Line to replace in MINIMAL, replacement, line number and key of the problem, and what its text must contain.
const WRONG: &[(&str, &str, usize, &str, &str)] = &[
    // Shape.
    ("[admin]", "[admin", 2, "", "not TOML"),
    ("name = \"orders\"", "name = \"orders\"\nname = \"b\"", 20, "relays[0].name", "is written twice, first in line 19: leave one out"),
    ("plugin = \"http", "plugin = \"a\"\nplugin = \"http", 15, "publishers.webhooks.plugin", "first in line 14"),
    ("[admin]", "shutdown_grace = \"1s\"\nshutdown_grace = \"1s\"", 3, "shutdown_grace", "first in line 2"),
    (
        "[[relays]]",
        "[storages.outbox] # again\nplugin = \"a\"\ndatabase = \"main\"\n[[relays]]",
        18,
        "storages.outbox",
        "already, in line 9",
    ),
    ("{ table = \"outbox\" }", "{ a = 1, a = 2 }", 12, "storages.outbox.a", "is written twice: leave one out"),
    ("[admin]", "[admni]", 2, "admni", "unknown key (did you mean `admin`?); known here: "),
    ("url = \"sq", "synchronus = \"full\"\nurl = \"sq", 8, "databases.main.synchronus", "did you mean `synchronous`?"),
    ("name = \"orders\"", "name = \"orders\"\nzzz = 1", 20, "relays[0].zzz", "unknown key; known here: name, storage, fan_out, routes"),
    ("name = \"orders\"", "name = 3", 19, "relays[0].name", "is an integer where a text is expected"),
    ("name = \"orders\"", "", 18, "relays[0].name", "is missing: add name = \"orders\""),
    ("name = \"orders\"", "name = \"a b\"", 19, "relays[0].name", "is not a name"),
    ("[storages.outbox]", "[storages.\"a/b\"]", 9, "storages.a/b", "is not a name"),
    ("[admin]", "log = 1", 2, "log", "is an integer where a table is expected"),
    // Units.
    ("[admin]", "shutdown_grace = 30", 2, "shutdown_grace", "with a unit"),
    ("name = \"orders\"", "name = \"o\"\nlease = \"60\"", 20, "relays[0].lease", "\"60\" is not a duration"),
    ("name = \"orders\"", "name = \"o\"\nlease = \"0s\"", 20, "relays[0].lease", "is zero"),
    ("name = \"orders\"", "name = \"o\"\nbatch = 0", 20, "relays[0].batch", "is 0: write a number from 1 to 100000"),
    ("name = \"orders\"", "name = \"o\"\nbatch = -5", 20, "relays[0].batch", "is -5"),
    ("name = \"orders\"", "name = \"o\"\nmax_message_bytes = \"8 lines\"", 20, "relays[0].max_message_bytes", "is not a size"),
    ("name = \"orders\"", "name = \"o\"\nbackoff = { factor = 0.5 }", 20, "relays[0].backoff.factor", "must be from 1 to 1000"),
    ("name = \"orders\"", "name = \"o\"\nbackoff = { jitter = 1.5 }", 20, "relays[0].backoff.jitter", "must be from 0 to 1"),
    ("name = \"orders\"", "name = \"o\"\nbackoff = { factor = nan }", 20, "relays[0].backoff.factor", "must be from"),
    // Contradictions, both values named.
    (
        "name = \"orders\"",
        "name = \"o\"\nlease = \"30s\"\npublish_timeout = \"120s\"",
        20,
        "relays[0].lease",
        "lease (30s) must be longer than publish_timeout (2m)",
    ),
    (
        "name = \"orders\"",
        "name = \"o\"\npublish_timeout = \"60s\"",
        20,
        "relays[0].publish_timeout",
        "lease (1m, the default) must be longer than publish_timeout (1m)",
    ),
    (
        "name = \"orders\"",
        "name = \"o\"\nlease = \"20s\"",
        20,
        "relays[0].lease",
        "limits.call_timeout of storages.outbox (20s, the default)",
    ),
    (
        "name = \"orders\"",
        "name = \"o\"\npoll = { min = \"2s\" }",
        20,
        "relays[0].poll.min",
        "min (2s) must not be longer than max (1s, the default)",
    ),
    (
        "name = \"orders\"",
        "name = \"o\"\nbackoff = { base = \"1h\", max = \"5m\" }",
        20,
        "relays[0].backoff.base",
        "base (1h) must not be longer than max (5m)",
    ),
    ("name = \"orders\"", "name = \"o\"\nbreaker = { max = \"1s\" }", 20, "relays[0].breaker.max", "open (5s, the default)"),
    ("name = \"orders\"", "name = \"o\"\nin_flight = 10", 20, "relays[0].in_flight", "in_flight (10) must be at least batch (500)"),
    (
        "name = \"orders\"",
        "name = \"o\"\nin_flight_bytes = \"1MiB\"",
        20,
        "relays[0].in_flight_bytes",
        "max_message_bytes (8MiB, the default)",
    ),
    (
        "plugin = \"http-publisher\"",
        "plugin = \"http-publisher\"\nlimits = { memory = \"8MiB\" }",
        15,
        "publishers.webhooks.limits.memory",
        "max_message_bytes (8MiB, the default) must be smaller than limits.memory of publishers.webhooks (8MiB)",
    ),
    (
        "plugin = \"sqlite-storage\"",
        "plugin = \"sqlite-storage\"\nlimits = { returned_bytes = \"1MiB\" }",
        11,
        "storages.outbox.limits.returned_bytes",
        "limits.returned_bytes of storages.outbox (1MiB)",
    ),
    ("plugin = \"http-publisher\"", "plugin = \"http-publisher\"\nlanes = 0", 15, "publishers.webhooks.lanes", "from 1 to 256"),
    (
        "plugin = \"http-publisher\"",
        "plugin = \"http-publisher\"\nlimits = { memory = \"64KB\" }",
        15,
        "publishers.webhooks.limits.memory",
        "is 64000B: write a size from 1MiB to 4GiB",
    ),
    // References.
    ("plugin = \"http-publisher\"", "plugin = \"http-publisher.wasm\"", 14, "publishers.webhooks.plugin", "plugin = \"http-publisher\""),
    ("plugin = \"http-publisher\"", "plugin = \"../x\"", 14, "publishers.webhooks.plugin", "is not a name"),
    ("plugin = \"http-publisher\"", "plugin = \"oci://ghcr.io/a:1\"", 14, "publishers.webhooks.plugin", "has no digest"),
    ("plugin = \"http-publisher\"", "plugin = \"oci://a/b@sha256:00\"", 14, "publishers.webhooks.plugin", "is not a reference"),
    // Routers.
    ("[routers.list]", "[routers.outbox]", 28, "routers.outbox", "a storage is called \"outbox\" too"),
    ("[routers.list]", "[routers.none]\n[routers.list]", 28, "routers.none", "says not where the subscribers come from: add plugin = "),
    ("plugin = \"my-router\"", "plugin = \"a\"\ntable = \"b\"", 30, "routers.directory", "has both plugin and table"),
    ("plugin = \"my-router\"", "plugin = \"a\"\nlanes = 4", 32, "routers.directory.lanes", "unknown key"),
    ("plugin = \"my-router\"", "plugin = \"a\"\ndatabase = \"b\"", 32, "routers.directory.database", "there is no database \"b\""),
    ("plugin = \"my-router\"", "plugin = \"a\"\nconfig.database = \"b\"", 32, "routers.directory.config.database", "set by the host"),
    ("plugin = \"my-router\"", "plugin = \"a\"\nallow_secrets = [\"b\"]", 32, "routers.directory.allow_secrets", "no secret \"b\""),
    ("table = \"subscriptions\"", "table = \"a.b.c\"", 27, "routers.subscriptions.table", "more than two parts"),
    (
        "table = \"subscriptions\"",
        "table = \"a\"\ncolumns.tenat = \"b\"",
        28,
        "routers.subscriptions.columns.tenat",
        "did you mean `tenant`?",
    ),
    ("table = \"subscriptions\"", "table = \"a\"\ncolumns.url = false", 28, "routers.subscriptions.columns.url", "a text is expected"),
    ("table = \"subscriptions\"", "table = \"a\"\ncolumns.active = true", 28, "routers.subscriptions.columns.active", "or false"),
    ("table = \"subscriptions\"", "table = \"a\"\nallow_secrets = [\"b\"]", 28, "routers.subscriptions.allow_secrets", "no secret \"b\""),
    ("table = \"subscriptions\"", "table = \"a\"\nplugins = \"b\"", 28, "routers.subscriptions.plugins", "unknown key"),
    ("topics = [\"orders.*\"]", "topics = [\"orders.{\"]", 29, "routers.list.subscribers[0].topics", "is not a pattern"),
    ("topics = [\"orders.*\"]", "url_secret = \"api-token\"", 29, "routers.list.subscribers[0].url_secret", "contradicts url"),
    (
        "topics = [\"orders.*\"]",
        "authentication_secret = \"a\"",
        29,
        "routers.list.subscribers[0].authentication_secret",
        "no secret \"a\"",
    ),
    ("topics = [\"orders.*\"]", "signing_scope = \"\"", 29, "routers.list.subscribers[0].signing_scope", "is empty"),
    ("url = \"https://crm.example.com/hooks\", ", "", 29, "routers.list.subscribers[0]", "says not where to: add url = "),
    ("https://crm.example.com/hooks", "crm.example.com/hunter2", 29, "routers.list.subscribers[0].url", "not an absolute URL"),
    ("https://crm", "https://u:hunter2@crm", 29, "routers.list.subscribers[0].url", "holds a user or a password"),
    (
        "topics = [\"orders.*\"] }",
        "}, { tenant = \"acme\", subscriber = \"crm\", url = \"http://h\" }",
        29,
        "routers.list.subscribers[1].subscriber",
        "subscribers[0] of the same tenant is called \"crm\" too",
    ),
    // Registries.
    ("\"ghcr.io\"]", "\"Ghcr.io\"]", 24, "registries.Ghcr.io", "in lower case: \"ghcr.io\""),
    ("\"ghcr.io\"]", "ghcr]", 24, "registries.ghcr", "is not a registry's name"),
    ("\"ghcr.io\"]", "\"ghcr.io\"]\nusername = \"a\"", 25, "registries.ghcr.io.username", "add password = { secret = \"NAME\" }"),
    ("\"ghcr.io\"]", "\"ghcr.io\"]\npassword = \"a\"", 25, "registries.ghcr.io.password", "must not stand in the file"),
    ("\"ghcr.io\"]", "\"ghcr.io\"]\npassword = { secret = \"api-token\" }", 25, "registries.ghcr.io.password", "add username = "),
    (
        "\"ghcr.io\"]",
        "\"ghcr.io\"]\nusername = \"a\"\npassword = { secret = \"none\" }",
        26,
        "registries.ghcr.io.password",
        "there is no secret \"none\"",
    ),
    (
        "\"ghcr.io\"]",
        "\"ghcr.io\"]\nusername = \"a:b\"\npassword = { secret = \"api-token\" }",
        25,
        "registries.ghcr.io.username",
        "which no user name has",
    ),
    (
        "\"ghcr.io\"]",
        "\"ghcr.io\"]\nplain_http = true\nusername = \"a\"\npassword = { secret = \"api-token\" }",
        25,
        "registries.ghcr.io.plain_http",
        "sends the password in the clear to another machine",
    ),
    (
        "\"ghcr.io\"]",
        "\"ghcr.io\"]\nplain_http = true\ntls_ca_file = \"ca.pem\"",
        26,
        "registries.ghcr.io.tls_ca_file",
        "has no effect with plain_http = true",
    ),
    (
        "\"ghcr.io\"]",
        "\"ghcr.io\"]\nplain_http = true\ntls_cert_file = \"a.pem\"\ntls_key_file = \"a.key\"",
        25,
        "registries.ghcr.io.plain_http",
        "leaves no TLS to show tls_cert_file in",
    ),
    (
        "database = \"main\"",
        "database = \"mian\"",
        11,
        "storages.outbox.database",
        "no database \"mian\" in this file (did you mean `main`?); databases: main",
    ),
    ("database = \"main\"", "", 9, "storages.outbox.database", "is missing"),
    ("{ table = \"outbox\" }", "{ table = \"outbox\", database = \"other\" }", 12, "storages.outbox.config.database", "is set by the host"),
    ("{ table = \"outbox\" }", "{ table = inf }", 12, "storages.outbox.config.table", "write a finite number"),
    ("storage = \"outbox\"", "storage = \"inbox\"", 20, "relays[0].storage", "storages: outbox"),
    ("publisher = \"webhooks\"", "publisher = \"webhook\"", 21, "relays[0].routes[0].publisher", "did you mean `webhooks`?"),
    ("[\"signing-key\"]", "[\"other\"]", 16, "publishers.webhooks.allow_secrets", "secrets: api-token, signing-key"),
    (
        "[\"hooks.example.com:443\"]",
        "[\"https://hooks.example.com\"]",
        15,
        "publishers.webhooks.allow_hosts",
        "write the host and its port only",
    ),
    ("[\"hooks.example.com:443\"]", "[\n\"a:1\",\n\"b\"]", 17, "publishers.webhooks.allow_hosts", "has no port"),
    ("[\"hooks.example.com:443\"]", "[]\nallow_networks = [\"10.0.0.1/8\"]", 16, "publishers.webhooks.allow_networks", "10.0.0.0/8"),
    ("[\"hooks.example.com:443\"]", "[]\ntls_ca_file = \"\"", 16, "publishers.webhooks.tls_ca_file", "name a PEM file"),
    ("[\"hooks.example.com:443\"]", "[]\ntls_cert_file = \"\"\ntls_key_file = \"k\"", 16, "publishers.webhooks.tls_cert_file", "is empty"),
    ("[\"hooks.example.com:443\"]", "[]\ntls_cert_file = \"c\"", 16, "publishers.webhooks.tls_cert_file", "add tls_key_file ="),
    ("[\"hooks.example.com:443\"]", "[]\ntls_key_file = \"k\"", 16, "publishers.webhooks.tls_key_file", "add tls_cert_file ="),
    ("[publishers.webhooks]", "[publishers.outbox]", 13, "publishers.outbox", "a storage is called \"outbox\" too"),
    // Relays.
    ("routes = [{ topic = \"orders.*\", publisher = \"webhooks\" }]", "", 18, "relays[0]", "routes: has none"),
    ("topic = \"orders.*\"", "topic = \"orders.[a\"", 21, "relays[0].routes[0].topic", "is not a pattern"),
    ("routes = [", "routes = [{ topic = \"*\", publisher = \"webhooks\" }, ", 21, "relays[0].routes[1].topic", "is never reached"),
    (
        "[[relays]]",
        "[[relays]]\nname = \"first\"\nstorage = \"outbox\"\nroutes = [{ topic = \"*\", publisher = \"webhooks\" }]\n[[relays]]",
        24,
        "relays[1].storage",
        "the relay \"first\" claims from \"outbox\" already",
    ),
    // The rest.
    ("url = \"sqlite:outbox.db\"", "url = \"sqlite://outbox.db\"", 8, "databases.main.url", "without \"//\""),
    ("url = \"sqlite:outbox.db\"", "url = \"sqlite:outbox.db?mode=ro\"", 8, "databases.main.url", "takes no parameters"),
    ("url = \"sqlite:outbox.db\"", "url = \"mysql://u:hunter2@h/d\"", 8, "databases.main.url", "supported are sqlite"),
    ("url = \"sqlite:outbox.db\"", "url = \"postgres://u:hunter2@h\"", 8, "databases.main.url", "names no database"),
    ("url = \"sqlite:outbox.db\"", "url = { secret = \"nobody\" }", 8, "databases.main.url", "there is no secret \"nobody\""),
    ("url = \"sqlite:outbox.db\"", "url = { secret = \"api-token\", zzz = 1 }", 8, "databases.main.url.zzz", "unknown key"),
    ("url = \"sqlite:outbox.db\"", "url = 5", 8, "databases.main.url", "a text"),
    ("url = \"sqlite:outbox.db\"", "url = \"postgres://u@h/d\"\nsynchronous = \"full\"", 9, "databases.main.synchronous", "unknown key"),
    (
        "url = \"sqlite:outbox.db\"",
        "url = \"postgres://u@h/d\"\npassword = \"hunter2\"",
        9,
        "databases.main.password",
        "{ secret = \"NAME\" }",
    ),
    (
        "url = \"sqlite:outbox.db\"",
        "url = \"postgres://u:hunter2@h/d\"\npassword = { secret = \"api-token\" }",
        9,
        "databases.main.password",
        "contradicts the password",
    ),
    (
        "url = \"sqlite:outbox.db\"",
        "url = \"postgres://u@h/d?sslmode=require\"\ntls = \"require\"",
        9,
        "databases.main.tls",
        "contradicts sslmode",
    ),
    ("url = \"sqlite:outbox.db\"", "url = \"postgres://u@h/d\"\ntls = \"allow\"", 9, "databases.main.tls", "\"verify-full\""),
    (
        "url = \"sqlite:outbox.db\"",
        "url = \"postgres://u@localhost/d\"\ntls_ca_file = \"c\"",
        9,
        "databases.main.tls_ca_file",
        "tls = \"prefer\"",
    ),
    (
        "url = \"sqlite:outbox.db\"",
        "url = \"postgres://u@h/d\"\ntls_cert_file = \"c\"",
        9,
        "databases.main.tls_cert_file",
        "add tls_key_file",
    ),
    (
        "url = \"sqlite:outbox.db\"",
        "url = \"postgres://u@h/d\"\nmax_connections = 0",
        9,
        "databases.main.max_connections",
        "from 1 to 1000",
    ),
    ("url = \"sqlite:outbox.db\"", "url = \"u/hunter2@h:5432/d\"", 8, "databases.main.url", "has no scheme"),
    ("[\"hooks.example.com:443\"]", "[\"https://u:hunter2@h.example:443/\"]", 15, "publishers.webhooks.allow_hosts", "\"h.example:443\""),
    ("url = \"sqlite:outbox.db\"", "url = \"outbox.db\"", 8, "databases.main.url", "has no scheme"),
    ("env = \"API_TOKEN\"", "env = \"A\"\nfile = \"b\"", 7, "secrets.api-token.file", "contradicts env"),
    ("env = \"API_TOKEN\"", "", 5, "secrets.api-token", "says not where"),
    ("[admin]", "[admin]\nlisten = \"0.0.0.0:9464\"", 3, "admin.listen", "allow_remote = true"),
    ("[admin]", "[admin]\nlisten = \"localhost\"", 3, "admin.listen", "is not an address and port"),
    ("[admin]", "[log]\nformat = \"xml\"", 3, "log.format", "one of \"text\", \"json\""),
    ("[admin]", "[log]\nfilter = \"outhaul=loud\"", 3, "log.filter", "is not a filter"),
];

#[test]
fn what_is_wrong_is_told_with_its_line_and_key() {
    for (from, to, line, key, text) in WRONG {
        let problems = changed(from, to).map(|_| ()).expect_err(to);
        let found = problems.list.iter().any(|problem| problem.line == *line && problem.key == *key && problem.text.contains(text));
        assert!(found, "{to}: expected {line}, {key}, {text}\n{problems}");
        assert!(!problems.to_string().contains("hunter2"), "{problems}");
    }
}

#[test]
fn one_slip_is_one_problem() {
    for (from, to, ..) in WRONG.iter().filter(|(_, to, ..)| !to.contains("publishers.outbox") && !to.contains("a/b")) {
        let problems = changed(from, to).map(|_| ()).expect_err(to);
        assert!(problems.list.len() == 1, "{to}\n{problems}");
    }
}

#[test]
fn all_problems_come_at_once_in_the_order_of_the_file() {
    let text = MINIMAL
        .replace("plugin = \"sqlite-storage\"", "plugin = 1")
        .replace("name = \"orders\"", "lese = \"1s\"")
        .replace("[admin]", "[admn]");
    let problems = read(&text).unwrap_err();
    let lines: Vec<usize> = problems.list.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [2, 10, 18, 19], "{problems}");
    assert!(
        problems.to_string().starts_with("/etc/outhaul/outhaul.toml has 4 problems:\n  /etc/outhaul/outhaul.toml:2: admn: "),
        "{problems}"
    );
}

#[test]
fn a_file_that_is_no_text_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("outbox.db");
    std::fs::write(&file, b"[log]\n# caf\xe9\n").unwrap();
    let error = load(&file).unwrap_err();
    assert!(matches!(error, ConfigError::NotText { line: 2, at: 11, .. }), "{error:?}");
    assert!(
        error.to_string().contains("outbox.db:2: is not UTF-8 (byte 11 of the file): a configuration is a TOML text in UTF-8"),
        "{error}"
    );
}

#[test]
fn an_outage_that_could_end_messages_dead_is_warned_of() {
    for (keys, expected) in [
        ("max_attempts = 3\nbreaker.failures = 5", Some("max_attempts (3) is not above breaker.failures (5)")),
        ("max_attempts = 5\nbreaker.failures = 5", Some("max_attempts (5) is not above breaker.failures (5)")),
        ("max_attempts = 6\nbreaker.failures = 5", None),
        ("max_attempts = 6\nbreaker.failures = 0", Some("breaker.failures is 0")),
        ("max_attempts = 0\nbreaker.failures = 0", None),
        ("max_attempts = 0\nbreaker.failures = 9", None),
    ] {
        let config = changed("name = \"orders\"", &format!("name = \"orders\"\n{keys}")).unwrap();
        let warned = warnings(&config);
        assert_eq!(
            warned.iter().map(|warning| warning.text.contains(expected.unwrap_or("?"))).collect::<Vec<_>>(),
            vec![true; usize::from(expected.is_some())],
            "{keys}"
        );
        if let Some(warning) = warned.first() {
            assert!(warning.text.starts_with("an outage of the destination can end messages dead: "), "{warning:?}");
            let place = warning.place.as_ref().unwrap();
            assert_eq!((place.line, place.key.as_str()), (20, "relays[0].max_attempts"));
        }
    }
}
