//! What of a new configuration a running process cannot take over. All else (adapters, secrets, how relays work) it can.

use super::model::{
    Adapter, Admin, Config, Database, Log, Plugins, Postgres, PostgresUrl, Publisher, Relay, Router, SealingKey, SecretSource,
};
use super::places::Place;
use std::collections::BTreeSet;

/// A key that has changed, and that is read at the start only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    /// Its path, as in `admin.listen`.
    pub key: String,
    /// Where it stands in the new file; none: it does not.
    pub place: Option<Place>,
}

impl std::fmt::Display for Fixed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Some(place) => write!(out, "{place}"),
            None => out.write_str(&self.key),
        }
    }
}

/// Compares a running configuration with a new one of the same file. Every key that needs a restart, in the order of the sections; none:
/// the new one can be taken over.
#[must_use]
pub fn fixed(old: &Config, new: &Config) -> Vec<Fixed> {
    let Config {
        file: _,
        plugins,
        registries: _,
        databases,
        secrets,
        storages,
        publishers: _,
        routers: _,
        relays,
        admin,
        log,
        places,
        shutdown_grace,
        watch_config,
    } = new;
    let mut keys = Vec::new();
    let mut differs = |differs: bool, key: String| keys.extend(differs.then_some(key));
    differs(old.shutdown_grace != *shutdown_grace, "shutdown_grace".to_owned());
    differs(old.watch_config != *watch_config, "watch_config".to_owned());
    let Log { filter, json } = log;
    differs(old.log.filter != *filter, "log.filter".to_owned());
    differs(old.log.json != *json, "log.format".to_owned());
    match (old.admin, *admin) {
        (Some(old), Some(Admin { listen, stats_interval })) => {
            differs(old.listen != listen, "admin.listen".to_owned());
            differs(old.stats_interval != stats_interval, "admin.stats_interval".to_owned());
        }
        (old, new) => differs(old.is_some() != new.is_some(), "admin".to_owned()),
    }
    // Where the pins are follows from the file, which is the same.
    let Plugins { dir, cache, watch, pins: _, pinned, store } = plugins;
    differs(old.plugins.dir != *dir, "plugins.dir".to_owned());
    differs(old.plugins.cache != *cache, "plugins.cache".to_owned());
    differs(old.plugins.watch != *watch, "plugins.watch".to_owned());
    differs(old.plugins.pinned != *pinned, "plugins.pinned".to_owned());
    differs(old.plugins.store != *store, "plugins.store".to_owned());
    let names: BTreeSet<&String> = old.databases.keys().chain(databases.keys()).collect();
    for name in names {
        differs(old.databases.get(name) != databases.get(name), format!("databases.{name}"));
    }
    // Databases know from the start where theirs are read; adapters are loaded again.
    for name in databases.values().flat_map(secrets_of).collect::<BTreeSet<_>>() {
        differs(old.secrets.get(name) != secrets.get(name), format!("secrets.{name}"));
    }
    for (name, storage) in storages {
        let database = |adapter: &Adapter| adapter.grants.databases.clone();
        differs(old.storages.get(name).is_some_and(|old| database(old) != database(storage)), format!("storages.{name}.database"));
    }
    differs(old.relays.len() != relays.len(), "relays".to_owned());
    for (index, (old, new)) in old.relays.iter().zip(relays).enumerate() {
        differs(old.name != new.name, format!("relays[{index}].name"));
        differs(old.storage != new.storage, format!("relays[{index}].storage"));
        // Its deliveries show under a name of their own, and names are those of the start.
        differs(old.fan_out.is_some() != new.fan_out.is_some(), format!("relays[{index}].fan_out"));
    }
    keys.into_iter().map(|key| Fixed { place: places.first([&key]), key }).collect()
}

/// The secrets that a database reads.
fn secrets_of(database: &Database) -> impl Iterator<Item = &String> {
    let (url, password) = match database {
        Database::Postgres(postgres) => {
            let Postgres { url, password, .. } = postgres.as_ref();
            let url = match url {
                PostgresUrl::Secret(name) => Some(name),
                PostgresUrl::Written(_) => None,
            };
            (url, password.as_ref())
        }
        Database::Sqlite(_) => (None, None),
    };
    url.into_iter().chain(password)
}

/// A router that is built in, with where the secrets are read that it may name: its relay has it from its beginning on. None: there is
/// none, or a component, which is swapped.
fn built_in<'a>(config: &'a Config, name: &str) -> Option<(&'a Router, Vec<Option<&'a SecretSource>>)> {
    let router = config.routers.iter().find(|router| router.name == name && router.plugin().is_none())?;
    Some((router, router.secrets().map(|secret| config.secrets.get(secret)).collect()))
}

/// Whether a relay has to begin anew with its own settings, with those of the publishers that it sends through (how many lanes they have is
/// a matter of the relay's), or with another built-in router.
#[must_use]
pub(crate) fn changes_relay(old: &Config, new: &Config, relay: &Relay) -> bool {
    let lanes = |config: &Config, name: &str| {
        config.publishers.get(name).map(|Publisher { adapter: _, lanes, batch, batch_bytes }| (*lanes, *batch, *batch_bytes))
    };
    let before = old.relays.iter().find(|before| before.name == relay.name);
    let router_differs = |name: &String| built_in(old, name) != built_in(new, name);
    // Keys are read afresh each time, from where they were at its beginning.
    let key_differs = |key: &SealingKey| old.secrets.get(&key.secret) != new.secrets.get(&key.secret);
    before != Some(relay)
        || relay.publishers().any(|name| lanes(old, name) != lanes(new, name))
        || relay.fan_out.as_ref().is_some_and(|fan_out| router_differs(&fan_out.router) || fan_out.keys.iter().any(key_differs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use std::path::Path;

    const FILE: &str = r#"
shutdown_grace = "30s"
watch_config = false
log = { filter = "info", format = "text" }
plugins = { dir = "p", cache = "c", watch = true, pinned = false, store = "s" }
[admin]
listen = "127.0.0.1:1"
stats_interval = "15s"
[secrets]
of-database = { env = "B" }
key = { env = "A" }
[databases]
main = { url = "sqlite:a.db" }
elsewhere = { url = "postgres://me@localhost/db", password = { secret = "of-database" } }
[storages.outbox]
plugin = "sqlite-storage"
database = "main"
config = { table = "a" }
[publishers.webhooks]
plugin = "http-publisher"
lanes = 4
allow_secrets = ["key"]
[[relays]]
name = "orders"
storage = "outbox"
batch = 5
routes = [ { topic = "*", publisher = "webhooks" } ]
"#;

    fn told(changes: &[(&str, &str)]) -> Vec<String> {
        let read = |text: &str| parse(text, Path::new("o.toml")).unwrap();
        let mut text = FILE.to_owned();
        for (from, to) in changes {
            assert!(text.contains(from), "{from}");
            text = text.replacen(from, to, 1);
        }
        fixed(&read(FILE), &read(&text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_needs_a_restart_is_named_with_its_line() {
        for (from, to, expected) in [
            ("shutdown_grace = \"30s\"", "shutdown_grace = \"1s\"", "o.toml:2: shutdown_grace"),
            ("watch_config = false", "watch_config = true", "o.toml:3: watch_config"),
            ("filter = \"info\"", "filter = \"debug\"", "o.toml:4: log.filter"),
            ("format = \"text\"", "format = \"json\"", "o.toml:4: log.format"),
            ("dir = \"p\"", "dir = \"q\"", "o.toml:5: plugins.dir"),
            ("cache = \"c\"", "cache = false", "o.toml:5: plugins.cache"),
            ("watch = true", "watch = false", "o.toml:5: plugins.watch"),
            ("pinned = false", "pinned = true", "o.toml:5: plugins.pinned"),
            ("store = \"s\"", "store = \"t\"", "o.toml:5: plugins.store"),
            ("127.0.0.1:1", "127.0.0.1:2", "o.toml:7: admin.listen"),
            ("\"15s\"", "\"1s\"", "o.toml:8: admin.stats_interval"),
            ("sqlite:a.db", "sqlite:b.db", "o.toml:13: databases.main"),
            ("env = \"B\"", "env = \"C\"", "o.toml:10: secrets.of-database"),
            ("name = \"orders\"", "name = \"others\"", "o.toml:24: relays[0].name"),
        ] {
            assert_eq!(told(&[(from, to)]), [expected]);
        }
        assert_eq!(told(&[("[admin]\nlisten = \"127.0.0.1:1\"\nstats_interval = \"15s\"\n", "")]), ["admin"]);
        let other = "[databases.other]\nurl = \"sqlite:a.db\"\n[storages.outbox]";
        assert_eq!(
            told(&[("[storages.outbox]", other), ("database = \"main\"", "database = \"other\"")]),
            ["o.toml:15: databases.other", "o.toml:19: storages.outbox.database"]
        );
    }

    #[test]
    fn adapters_secrets_and_the_ways_of_relays_can_change() {
        for change in [
            ("env = \"A\"", "file = \"b\""),
            ("table = \"a\"", "table = \"b\""),
            ("plugin = \"http-publisher\"", "plugin = \"other\""),
            ("lanes = 4", "lanes = 5\nlimits = { memory = \"64MiB\" }\nallow_hosts = [\"a:1\"]"),
            ("batch = 5", "batch = 6\nlease = \"2m\""),
            ("topic = \"*\"", "topic = \"a\""),
        ] {
            assert_eq!(told(&[change]), [""; 0], "{change:?}");
        }
        assert_eq!(told(&[]), [""; 0]);
    }

    #[test]
    fn a_relay_begins_anew_for_its_own_settings_and_for_lanes() {
        let read = |text: &str| parse(text, Path::new("o.toml")).unwrap();
        let begins_anew = |from: &str, to: &str| {
            let new = read(&FILE.replacen(from, to, 1));
            changes_relay(&read(FILE), &new, &new.relays[0])
        };
        assert!(begins_anew("batch = 5", "batch = 6"));
        assert!(begins_anew("lanes = 4", "lanes = 5"));
        assert!(begins_anew("topic = \"*\"", "topic = \"a\""));
        assert!(!begins_anew("plugin = \"http-publisher\"", "plugin = \"other\""));
        assert!(!begins_anew("env = \"A\"", "env = \"B\""));
    }
    #[test]
    fn a_relay_begins_anew_for_a_built_in_router_and_not_for_a_component() {
        let file = FILE.replace("[[relays]]", ROUTERS).replace("routes = [ { topic = \"*\", publisher = \"webhooks\" } ]", FAN_OUT);
        let read = |text: &str| parse(text, Path::new("o.toml")).unwrap();
        let begins_anew = |router: &str, from: &str, to: &str| {
            let file = file.replace("ROUTER", router);
            assert!(file.contains(from), "{from}");
            let (old, new) = (read(&file), read(&file.replacen(from, to, 1)));
            assert_eq!(fixed(&old, &new), []);
            changes_relay(&old, &new, &new.relays[0])
        };
        assert!(!begins_anew("list", "", ""));
        assert!(begins_anew("list", "https://h/", "https://i/"));
        assert!(begins_anew("list", "env = \"A\"", "env = \"C\""));
        assert!(begins_anew("mine", "env = \"A\"", "env = \"C\""), "its key is elsewhere");
        assert!(begins_anew("table", "\"subscriptions\"", "\"others\""));
        assert!(!begins_anew("table", "https://h/", "https://i/"), "it is not its router");
        assert!(!begins_anew("mine", "x = 1", "x = 2"));
        assert!(begins_anew("mine", "plugin = \"who\"\nconfig = { x = 1 }", "database = \"main\"\ntable = \"t\""));
    }

    const ROUTERS: &str = "[routers.list]\nsubscribers = [{ subscriber = \"a\", url = \"https://h/\", authentication_secret = \"key\" }]\n\
        [routers.table]\ndatabase = \"main\"\ntable = \"subscriptions\"\n\
        [routers.mine]\nplugin = \"who\"\nconfig = { x = 1 }\n[[relays]]";

    const FAN_OUT: &str = "fan_out = { router = \"ROUTER\", publisher = \"webhooks\", keys = [{ version = \"1\", secret = \"key\" }] }";
}
