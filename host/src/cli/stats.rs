//! `outhaul stats`.

use super::storage::StorageArg;
use super::{CommandResult, output};
use crate::app::{App, AppError};
use crate::config::model::Adapter;
use crate::ports::fan_out::{DeliveryStats, FanOutStorage};
use crate::ports::{Stats, Storage};
use std::time::Duration;

/// Count the rows of each storage's table.
///
/// pending: neither delivered nor dead; of these, due: could be claimed now, leased: being delivered. Counting may read the
/// whole table. Where a relay with `fan_out` uses a storage, its deliveries to subscribers are counted too.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul stats                    a table of all storages
  outhaul stats --json             {\"storages\":[{\"storage\":\"outbox\",\"pending\":3,...}]}")]
pub(super) struct Args {
    #[command(flatten)]
    storage: StorageArg,
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(serde::Serialize)]
struct Entry {
    storage: String,
    #[serde(flatten)]
    stats: Stats,
    /// Where a relay fans out of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    deliveries: Option<DeliveryStats>,
}

pub(super) async fn run(args: Args, app: App) -> CommandResult {
    let chosen: Vec<&Adapter> = match args.storage.is_named() || app.config.storages.is_empty() {
        true => vec![args.storage.choose(&app.config)?],
        false => app.config.storages.values().collect(),
    };
    let mut entries = Vec::new();
    for adapter in chosen {
        let storage = app.storage(adapter).await?;
        let stats = storage.stats().await;
        let stats = stats.map_err(|failure| AppError::Call { storage: adapter.name.clone(), call: "stats", failure })?;
        let fans = app.config.relays.iter().any(|relay| relay.storage == adapter.name && relay.fan_out.is_some());
        let deliveries = if fans && storage.has_fan_out() { Some(storage.delivery_stats().await) } else { None };
        let deliveries = deliveries.transpose();
        let deliveries = deliveries.map_err(|failure| AppError::Call { storage: adapter.name.clone(), call: "delivery-stats", failure })?;
        entries.push(Entry { storage: adapter.name.clone(), stats, deliveries });
    }
    if args.json {
        return output::json(&serde_json::json!({ "storages": entries }));
    }
    let rows = entries.iter().map(|Entry { storage, stats, .. }| {
        let Stats { pending, due, leased, dead, oldest_pending_ms } = *stats;
        let [pending, due, leased, dead] = [pending, due, leased, dead].map(|count| count.to_string());
        [storage.clone(), pending, due, leased, dead, oldest(oldest_pending_ms)]
    });
    output::table(["storage", "pending", "due", "leased", "dead", "oldest pending"], rows)?;
    let deliveries: Vec<[String; 7]> = entries.iter().filter_map(delivery_row).collect();
    if deliveries.is_empty() {
        return Ok(());
    }
    output::line("")?;
    output::table(["deliveries of", "pending", "due", "leased", "suppressed", "quarantined", "oldest pending"], deliveries)
}

fn delivery_row(entry: &Entry) -> Option<[String; 7]> {
    let DeliveryStats { pending, due, leased, suppressed, quarantined, oldest_pending_ms } = entry.deliveries?;
    let [pending, due, leased, suppressed, quarantined] = [pending, due, leased, suppressed, quarantined].map(|count| count.to_string());
    Some([entry.storage.clone(), pending, due, leased, suppressed, quarantined, oldest(oldest_pending_ms)])
}

fn oldest(millis: Option<u64>) -> String {
    millis.map_or_else(|| "-".to_owned(), |millis| output::span(Duration::from_millis(millis)))
}
