//! `outhaul stats`.

use super::storage::StorageArg;
use super::{CommandResult, output};
use crate::app::{App, AppError};
use crate::config::model::Adapter;
use crate::ports::{Stats, Storage};
use std::time::Duration;

/// Count the rows of each storage's table.
///
/// pending: neither delivered nor dead; of these, due: could be claimed now, leased: being delivered. Counting may read the
/// whole table.
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
        entries.push(Entry { storage: adapter.name.clone(), stats });
    }
    if args.json {
        return output::json(&serde_json::json!({ "storages": entries }));
    }
    let rows = entries.iter().map(|Entry { storage, stats }| {
        let oldest = stats.oldest_pending_ms.map_or_else(|| "-".to_owned(), |millis| output::span(Duration::from_millis(millis)));
        [storage.clone(), stats.pending.to_string(), stats.due.to_string(), stats.leased.to_string(), stats.dead.to_string(), oldest]
    });
    output::table(["storage", "pending", "due", "leased", "dead", "oldest pending"], rows)
}
