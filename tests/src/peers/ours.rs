//! outhaul itself: `outhaul bench` of the optimised binary, through components.

use super::plan::{Setting, Way};
use super::program::{self, Measured};
use super::stage::{Stage, text};
use crate::places;
use crate::rig::{Config, Rig};
use anyhow::{Context, Result, ensure};
use outhaul_services::Listener;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// What of its report is needed here.
#[derive(Deserialize)]
struct Report {
    versions: BTreeMap<String, String>,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    delivered: u64,
    seconds: f64,
}

const CONFIG: &str = r#"
[databases.main]
url = "sqlite:outbox.db"
[storages.outbox]
plugin = "sqlite-storage"
database = "main"
config = { table = "outbox" }
[publishers.destination]
plugin = "null-publisher"
[[relays]]
name = "bench"
storage = "outbox"
routes = [ { topic = "*", publisher = "destination" } ]
"#;

pub(super) fn measure(stage: &mut Stage, setting: Setting) -> Result<Measured> {
    let load = stage.load;
    let mut config = Config::parse(CONFIG)?.set("plugins.dir", text(&stage.plugins())?);
    let database = (setting.way != Way::Sqlite).then(|| stage.database()).transpose()?;
    if let Some(database) = &database {
        config = config.on_postgres(&database.url());
    }
    let mut topic = None;
    if setting.way == Way::PostgresToKafka {
        let (kafka, name) = stage.topic()?;
        let brokers = kafka.addresses(Listener::Plaintext);
        topic = Some((kafka.bootstrap(), name.clone()));
        config = config.set_all(
            "publishers.destination",
            &format!("plugin = \"kafka-publisher\"\nallow_hosts = {brokers:?}\nconfig = {{ brokers = {brokers:?}, topic = {name:?} }}"),
        );
    }
    let rig = Rig::new(&config)?;
    let mut command = Command::new(places::outhaul()?);
    command.arg("--config").arg(rig.config()).args(["bench", "--json", "--publisher", "config"]);
    command.args([format!("--rows={}", load.rows), format!("--keys={}", load.keys), format!("--payload={}", load.payload)]);
    command.args([format!("--batch={}", setting.batch), format!("--hosts={}", setting.workers)]);
    let output = program::run(&mut command, stage.limit)?;

    let raw: Value = serde_json::from_str(&output).context("`outhaul bench` printed no JSON")?;
    let Report { versions, runs } = serde_json::from_value(raw.clone()).context("a report of another form")?;
    let run = runs.first().context("a report without a run")?;
    let settled = match &database {
        Some(database) => {
            let count = database.connect()?.query_one("SELECT count(*) FROM outbox WHERE status = 'done'", &[])?;
            u64::try_from(count.get::<_, i64>(0))?
        }
        None => u64::try_from(rig.outbox()?.count("done")?)?,
    };
    if let Some((brokers, topic)) = &topic {
        let records = super::records(brokers, topic)?;
        ensure!(records == settled, "{records} messages are in the topic, and {settled} are done in the table");
    }
    Ok(Measured { sent: run.delivered, settled, seconds: run.seconds, versions, report: Some(raw) })
}
