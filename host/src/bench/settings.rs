//! The settings of a run in words: for the table, and for the legends of plots.

use super::model::{Report, Run, Settings};

/// Each setting by its name, in the order in which a person reads them.
#[must_use]
pub fn lines(settings: &Settings) -> [(&'static str, String); 12] {
    let number = |value: u64, of: &str| if value == 0 { "none".to_owned() } else { format!("{value}{of}") };
    [
        ("relay", settings.relay.clone()),
        ("storage", settings.storage.clone()),
        ("publisher", settings.publisher.clone()),
        ("adapters", if settings.native { "native" } else { "components" }.to_owned()),
        ("rows", settings.rows.to_string()),
        ("payload", format!("{} bytes", settings.payload_bytes)),
        ("keys", number(settings.keys, "")),
        ("load", settings.rate.map_or_else(|| "backlog".to_owned(), |rate| format!("{rate} rows/s"))),
        ("batch", settings.batch.to_string()),
        ("lanes", settings.lanes.to_string()),
        ("hosts", settings.hosts.to_string()),
        ("destination", destination(settings)),
    ]
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

/// What a side has that the other one has not, in a few words: `batch 50, adapters native`. Empty: nothing.
#[must_use]
pub fn distinct(settings: &Settings, other: &Settings) -> String {
    let differing = lines(settings).into_iter().zip(lines(other)).filter(|(here, there)| here != there);
    differing.map(|((name, value), _)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn settings_are_words() {
        let settings = sample::settings();
        let [.., load, batch, _, _, destination] = lines(&settings);
        assert_eq!((load.1.as_str(), batch, destination.1.as_str()), ("backlog", ("batch", "500".to_owned()), "as configured"));
        let other = Settings {
            keys: 0,
            rate: Some(200),
            native: true,
            destination_delay_ms: Some(50),
            destination_failing_percent: Some(10),
            ..settings.clone()
        };
        assert_eq!(distinct(&other, &settings), "adapters native, keys none, load 200 rows/s, destination answers after 50 ms, fails 10 %");
        assert_eq!(distinct(&settings, &settings), "");
    }
}
