//! `fan_out` of a relay: who is asked for subscribers, how deliveries are sealed, and how they are worked off.

use super::adapters::refers;
use super::model::{Breaker, FanOut, Route, SealingKey};
use super::relays::{self, Adapters};
use super::section::{Located, Range, Section, check_name};
use std::time::Duration;

/// Deliveries of one event go into one transaction.
const SUBSCRIBERS: Range = Range { min: 1, max: 100_000 };

/// Longest text of a tenant or a namespace, in bytes.
const COLUMN_BYTES: usize = 512;

/// Largest delivery, routing columns included: an envelope has half of it at most ([`crate::fan_out::envelope::MAX_BYTES`]).
const DELIVERY_BYTES: usize = 2 << 20;

/// How long a delivery is tried.
const HORIZON: Duration = Duration::from_secs(72 * 60 * 60);

/// The name under which the deliveries of a relay show.
pub(super) fn deliveries_of(relay: &str) -> String {
    format!("{relay}.deliveries")
}

/// Reads it; none where something without a default is missing or wrong.
pub(super) fn fan_out(
    section: Section<'_>,
    relay: Option<&str>,
    storage: Option<Located<&str>>,
    breaker: Breaker,
    adapters: &Adapters<'_>,
) -> Option<FanOut> {
    let router = section
        .required("router", "\"subscriptions\" (a [routers.NAME] of this file)")
        .filter(|router| refers(&section, router, "router", "router", &adapters.router_names));
    let publisher = section
        .required("publisher", "\"webhooks\" (a [publishers.NAME] of this file)")
        .filter(|publisher| refers(&section, publisher, "publisher", "publisher", &adapters.publisher_names));
    let keys = keys(&section, adapters);
    let namespace = column_text(&section, "namespace").unwrap_or("");
    let tenant = column_text(&section, "tenant").map(str::to_owned);
    let max_subscribers = section.number("max_subscribers", 1000usize, SUBSCRIBERS).value;
    let horizon = section.duration("horizon", HORIZON, true).value;

    let delivery = section.section("delivery");
    let storage_entry = storage.and_then(|storage| adapters.storages.get(storage.value));
    // Not a key of its own: it follows from the largest envelope.
    let largest = delivery.fixed(DELIVERY_BYTES);
    let pace = relays::pace(&delivery, 0, largest, storage_entry);
    if let Some(entry) = publisher.and_then(|publisher| adapters.publishers.get(publisher.value)) {
        relays::fits(&delivery, largest, entry);
    }
    delivery.finish();
    section.finish();

    let (publisher, router) = (publisher?.value.to_owned(), router?.value.to_owned());
    let all = globset::Glob::new("*").ok()?.compile_matcher();
    let routes = vec![Route { topic: "*".to_owned(), matcher: all, publisher: publisher.clone() }];
    let deliveries = pace.relay(deliveries_of(relay?), storage?.value.to_owned(), routes, None, DELIVERY_BYTES, breaker);
    Some(FanOut {
        router,
        publisher,
        keys,
        namespace: namespace.to_owned(),
        tenant,
        max_subscribers,
        horizon: Some(horizon).filter(|horizon| !horizon.is_zero()),
        deliveries: Box::new(deliveries),
    })
}

/// A text that is compared with or written to a column of each delivery: no database takes a NUL, and indexes take no long ones.
fn column_text<'a>(section: &Section<'a>, key: &'static str) -> Option<&'a str> {
    let text = section.text(key)?;
    if text.value.contains('\0') || text.value.len() > COLUMN_BYTES {
        section.problem(text.at, key, format!("must have at most {COLUMN_BYTES} bytes, and no NUL among them"));
    }
    Some(text.value)
}

fn keys(section: &Section<'_>, adapters: &Adapters<'_>) -> Vec<SealingKey> {
    let list = section.list("keys");
    if list.is_empty() {
        section.problem_here("keys: has none: add keys = [ { version = \"1\", secret = \"NAME\" } ], and where it is in [secrets.NAME]");
    }
    let mut keys: Vec<SealingKey> = Vec::new();
    for key in list {
        let version = key.required("version", "\"2026-11\"").filter(|version| {
            let known = keys.iter().any(|key| key.version == version.value);
            let known =
                known.then(|| format!("{:?} is the version of an earlier key: rows would not tell which has sealed them", version.value));
            let wrong = check_name(version.value).err().or(known);
            wrong.map(|wrong| key.problem(version.at, "version", wrong)).is_none()
        });
        let secret = key
            .required("secret", "\"NAME\" (a [secrets.NAME] of this file)")
            .filter(|secret| refers(&key, secret, "secret", "secret", &adapters.secret_names));
        if let (Some(version), Some(secret)) = (version, secret) {
            keys.push(SealingKey { version: version.value.to_owned(), secret: secret.value.to_owned() });
        }
        key.finish();
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::Config;
    use crate::config::{Problems, parse};
    use std::path::Path;

    const FILE: &str = r#"
secrets.new.file = "new.key"
secrets.old.env = "OLD_KEY"
databases.main.url = "sqlite:a.db"
[routers.list]
subscribers = []
[storages.outbox]
plugin = "sqlite-storage"
database = "main"
[publishers.webhooks]
plugin = "http-publisher"
[[relays]]
name = "orders"
storage = "outbox"
max_attempts = 7
[relays.fan_out]
router = "list"
publisher = "webhooks"
keys = [{ version = "2", secret = "new" }, { version = "1", secret = "old" }]
"#;

    fn read(text: &str) -> Result<Config, Problems> {
        parse(text, Path::new("o.toml"))
    }

    #[test]
    fn a_relay_fans_out_with_the_defaults_and_deliveries_are_a_relay_beside_it() {
        let config = read(FILE).unwrap();
        let relay = &config.relays[0];
        let fan_out = relay.fan_out.as_ref().unwrap();
        assert_eq!((fan_out.router.as_str(), fan_out.publisher.as_str(), fan_out.namespace.as_str()), ("list", "webhooks", ""));
        let key = |version: &str, secret: &str| SealingKey { version: version.into(), secret: secret.into() };
        assert_eq!(fan_out.keys, [key("2", "new"), key("1", "old")], "the first one seals");
        assert_eq!((fan_out.tenant.as_deref(), fan_out.max_subscribers, fan_out.horizon), (None, 1000, Some(HORIZON)));
        let deliveries = &fan_out.deliveries;
        assert_eq!((relay.max_attempts, deliveries.max_attempts), (7, 0));
        assert_eq!((deliveries.name.as_str(), deliveries.storage.as_str(), deliveries.batch), ("orders.deliveries", "outbox", 500));
        assert!(deliveries.routes[0].matcher.is_match("any/thing.at all") && deliveries.routes[0].publisher == "webhooks");
        assert!(relay.routes.is_empty() && relay.publishers().eq(["webhooks"]) && relay.names().eq(["orders", "orders.deliveries"]));
        let horizon = read(&format!("{FILE}horizon = \"0s\"\n")).unwrap();
        assert_eq!(horizon.relays[0].fan_out.as_ref().unwrap().horizon, None);
        let delivery = format!("{FILE}tenant = \"acme\"\ndelivery = {{ batch = 9, max_attempts = 4, backoff = {{ max = \"1h\" }} }}\n");
        let fan_out = read(&delivery).unwrap().relays[0].fan_out.clone().unwrap();
        assert_eq!((fan_out.deliveries.batch, fan_out.deliveries.max_attempts, fan_out.tenant.as_deref()), (9, 4, Some("acme")));
        assert_eq!(fan_out.deliveries.backoff.max, Duration::from_secs(3600));
    }

    #[test]
    fn what_is_wrong_is_told_with_line_and_key() {
        for (from, to, line, key, text) in [
            ("router = \"list\"", "router = \"lists\"", 17, "relays[0].fan_out.router", "did you mean `list`?"),
            ("router = \"list\"\n", "", 16, "relays[0].fan_out.router", "is missing"),
            ("publisher = \"webhooks\"", "publisher = \"hooks\"", 18, "relays[0].fan_out.publisher", "there is no publisher \"hooks\""),
            ("secret = \"old\"", "secret = \"older\"", 19, "relays[0].fan_out.keys[1].secret", "there is no secret \"older\""),
            ("version = \"1\"", "version = \"2\"", 19, "relays[0].fan_out.keys[1].version", "is the version of an earlier key"),
            ("version = \"1\"", "version = \"a b\"", 19, "relays[0].fan_out.keys[1].version", "is not a name"),
            ("keys = [", "key = [", 16, "relays[0].fan_out", "keys: has none"),
            ("keys = [", "max_subscribers = 0\nkeys = [", 19, "relays[0].fan_out.max_subscribers", "from 1 to 100000"),
            ("keys = [", "namespace = \"a\\u0000b\"\nkeys = [", 19, "relays[0].fan_out.namespace", "and no NUL"),
            ("keys = [", "tenant = \"a\\u0000b\"\nkeys = [", 19, "relays[0].fan_out.tenant", "at most 512 bytes"),
            ("keys = [", "delivery.lanes = 3\nkeys = [", 19, "relays[0].fan_out.delivery.lanes", "unknown key"),
            (
                "keys = [",
                "delivery.lease = \"5s\"\nkeys = [",
                19,
                "relays[0].fan_out.delivery.lease",
                "must be longer than publish_timeout",
            ),
            ("max_attempts = 7", "routes = [{ topic = \"*\", publisher = \"webhooks\" }]", 12, "relays[0]", "contradict each other"),
        ] {
            assert!(FILE.contains(from), "{from}");
            let problems = read(&FILE.replacen(from, to, 1)).unwrap_err();
            let told: Vec<_> = problems.list.iter().map(|problem| (problem.line, problem.key.as_str(), problem.text.as_str())).collect();
            assert!(told.iter().any(|(at, of, what)| (*at, *of) == (line, key) && what.contains(text)), "{from} -> {to}: {told:?}");
        }
    }

    #[test]
    fn two_relays_of_one_table_have_a_tenant_and_a_storage_each() {
        let two = |tenants: [&str; 2], storage: &str| {
            let relay = |name: &str, storage: &str, tenant: &str| {
                format!(
                    "[[relays]]\nname = \"{name}\"\nstorage = \"{storage}\"\nfan_out = {{ router = \"list\", publisher = \"webhooks\", \
                     keys = [{{ version = \"1\", secret = \"old\" }}]{tenant} }}\n"
                )
            };
            let [one, other] = tenants;
            let before = FILE.split("[[relays]]").next().unwrap_or_default();
            let second = "[storages.second]\nplugin = \"sqlite-storage\"\ndatabase = \"main\"\n";
            read(&format!("{before}{second}{}{}", relay("orders", "outbox", one), relay("others", storage, other)))
        };
        let [acme, zeta] = [", tenant = \"acme\"", ", tenant = \"zeta\""];
        let config = two([acme, zeta], "second").unwrap();
        let tenants = config.relays.iter().map(|relay| relay.fan_out.as_ref().and_then(|fan_out| fan_out.tenant.as_deref()));
        assert_eq!(tenants.collect::<Vec<_>>(), [Some("acme"), Some("zeta")]);
        for (tenants, text) in [
            ([acme, zeta], "a storage serves one relay"),
            ([acme, acme], "each would take events that are the other's to expand"),
            (["", zeta], "each would take events that are the other's to expand"),
            (["", ""], "each would take events that are the other's to expand"),
        ] {
            let problems = two(tenants, "outbox").unwrap_err();
            let told: Vec<_> = problems.list.iter().map(|problem| (problem.key.as_str(), problem.text.as_str())).collect();
            let [("relays[1].storage", found)] = told[..] else { panic!("{told:?}") };
            assert!(found.contains(text) && found.contains("give this one a [storages.NAME] of its own"), "{found}");
            assert!(!found.contains("routes"), "{found}");
        }
    }

    #[test]
    fn no_relay_is_called_as_the_deliveries_of_another() {
        let other =
            "[[relays]]\nname = \"orders.deliveries\"\nstorage = \"outbox\"\nroutes = [{ topic = \"*\", publisher = \"webhooks\" }]\n";
        let problems = read(&format!("{FILE}{other}")).unwrap_err();
        assert!(problems.list.iter().any(|problem| problem.key == "relays[1].name"), "{problems:?}");
    }
}
