//! The settings of a run in words: for the table, and for the legends of plots.

use super::model::{Report, Run, Settings};
use serde_json::Value;

/// A setting: its name, and its value in words.
pub type Line = (String, String);

/// Where one side has a setting that the other one has not.
const NOT_SET: &str = "not set";

/// Each setting, in the order in which a person reads them. Each key of an adapter's `config` is one of its own: `storage.table`.
#[must_use]
pub fn lines(settings: &Settings) -> Vec<Line> {
    let number = |value: u64| if value == 0 { "none".to_owned() } else { value.to_string() };
    let each = |value: &dyn std::fmt::Display| format!("{value} of each host");
    let Settings { poll_min_ms, poll_max_ms, wake_check_ms, backoff_base_ms, backoff_factor, backoff_max_ms, .. } = settings;
    let first = [("config", settings.config_file.clone()), ("relay", settings.relay.clone()), ("storage", settings.storage.clone())];
    let publisher = [("database", settings.database.clone()), ("publisher", settings.publisher.clone())];
    let others = [
        ("adapters", adapters(settings).to_owned()),
        ("topic", settings.topic.clone()),
        ("rows", settings.rows.to_string()),
        ("payload", format!("{} bytes", settings.payload_bytes)),
        ("keys", number(settings.keys)),
        ("load", settings.rate.map_or_else(|| "backlog".to_owned(), |rate| format!("{rate} rows/s"))),
        ("batch", settings.batch.to_string()),
        ("in flight", each(&format_args!("{} rows, {} bytes", settings.in_flight, settings.in_flight_bytes))),
        ("settle delay", format!("{} ms", settings.settle_delay_ms)),
        ("poll", format!("{poll_min_ms} to {poll_max_ms} ms, woken within {wake_check_ms} ms")),
        ("back-off", format!("{backoff_base_ms} ms, times {backoff_factor}, up to {backoff_max_ms} ms")),
        ("publish batch", format!("{} messages, {} bytes", settings.publish_batch, settings.publish_batch_bytes)),
        ("lanes", each(&settings.lanes)),
        ("hosts", settings.hosts.to_string()),
        ("destination", destination(settings)),
        ("purge", if settings.purge { "after each run" } else { "no" }.to_owned()),
    ];
    let named = |lines: Vec<(&str, String)>| lines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Vec<Line>>();
    let parts = [
        named(first.into()),
        config("storage", &settings.storage_config),
        named(publisher.into()),
        config("publisher", &settings.publisher_config),
        named(others.into()),
    ];
    parts.concat()
}

fn config(adapter: &str, config: &Value) -> Vec<Line> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    config.as_object().into_iter().flatten().map(|(key, value)| (format!("{adapter}.{key}"), text(value))).collect()
}

/// What the adapters are. The publisher to nowhere of `--publisher null` is never a component.
#[must_use]
pub fn adapters(settings: &Settings) -> &'static str {
    match (settings.native, settings.is_to_nowhere()) {
        (false, false) => "components",
        (true, false) => "native",
        (false, true) => "storage as component, null publisher",
        (true, true) => "storage native, null publisher",
    }
}

fn destination(settings: &Settings) -> String {
    let delay = settings.destination_delay_ms.map(|delay| format!("answers after {delay} ms"));
    let failing = settings.destination_failing_percent.map(|percent| format!("fails {percent} %"));
    let told: Vec<String> = [delay, failing].into_iter().flatten().collect();
    if told.is_empty() { "as configured".to_owned() } else { told.join(", ") }
}

/// The first run of a side.
#[must_use]
pub fn of_side(report: &Report, side: char) -> Option<&Run> {
    report.runs.iter().find(|run| run.side == side)
}

/// Each setting of either side with the values of both: those of A, and then what only B has.
#[must_use]
pub fn pairs(a: &Settings, b: &Settings) -> Vec<(String, String, String)> {
    let (a, b) = (lines(a), lines(b));
    let of = |lines: &[Line], name: &str| {
        lines.iter().find(|(found, _)| found == name).map_or_else(|| NOT_SET.to_owned(), |line| line.1.clone())
    };
    let names = a.iter().chain(b.iter().filter(|(name, _)| a.iter().all(|(found, _)| found != name)));
    names.map(|(name, _)| (name.clone(), of(&a, name), of(&b, name))).collect()
}

/// What a side has that the other one has not, in a few words: `batch 50, adapters native`. Empty: nothing.
#[must_use]
pub fn distinct(settings: &Settings, other: &Settings) -> String {
    let differing = pairs(settings, other).into_iter().filter(|(_, here, there)| here != there);
    differing.map(|(name, value, _)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_are_words() {
        let settings = sample::settings();
        let of = |settings: &Settings, name: &str| lines(settings).into_iter().find(|(found, _)| found == name).unwrap().1;
        assert_eq!(["load", "batch", "destination"].map(|name| of(&settings, name)), ["backlog", "500", "as configured"]);
        let other = Settings {
            keys: 0,
            rate: Some(200),
            native: true,
            destination_delay_ms: Some(50),
            destination_failing_percent: Some(10),
            ..settings.clone()
        };
        assert_eq!(
            distinct(&other, &settings),
            "adapters storage native, null publisher, keys none, load 200 rows/s, destination answers after 50 ms, fails 10 %"
        );
        assert_eq!(distinct(&settings, &settings), "");
    }

    #[test]
    fn what_the_adapters_are_is_said() {
        let with = |native, publisher: &str| Settings { native, publisher: publisher.to_owned(), ..sample::settings() };
        assert_eq!(adapters(&with(false, "null")), "storage as component, null publisher");
        assert_eq!(adapters(&with(true, "null")), "storage native, null publisher");
        assert_eq!(adapters(&with(false, "void (null-publisher)")), "components");
        assert_eq!(adapters(&with(true, "void (null-publisher)")), "native");
    }

    #[test]
    fn configs_are_compared_key_by_key() {
        let a = sample::settings();
        let b = Settings {
            config_file: "other.toml".to_owned(),
            storage_config: json!({ "database": "main", "on_delivered": "delete", "strict_order": false }),
            publisher_config: json!({ "concurrency": 8 }),
            ..a.clone()
        };
        assert_eq!(
            distinct(&a, &b),
            "config outhaul.toml, storage.table outbox, storage.on_delivered not set, storage.strict_order not set, publisher.concurrency not set"
        );
        assert_eq!(
            distinct(&b, &a),
            "config other.toml, storage.on_delivered delete, storage.strict_order false, publisher.concurrency 8, storage.table not set"
        );
    }
}
