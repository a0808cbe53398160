//! `outhaul purge`.

use super::storage::{Opened, StorageArg};
use super::{CommandResult, output};
use crate::app::App;
use crate::ports::StorageAdmin;
use std::io::IsTerminal;
use std::time::Duration;

/// Rows a step: one short transaction each, so that producers and relays get their turns between.
const STEP: u32 = 1000;

/// Delete delivered rows that were settled long enough ago, in small steps.
///
/// Pending and dead rows are left alone. It may be interrupted at any time, and runs beside relays and producers.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul purge --older-than 7d
  outhaul purge --older-than 12h --json      {\"purged\":12000}")]
pub(super) struct Args {
    #[command(flatten)]
    storage: StorageArg,
    /// Delete rows settled longer ago than this ("12h", "7d").
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    older_than: Duration,
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(args: Args, app: App) -> CommandResult {
    let opened = Opened::open(&app, args.storage.choose(&app.config)?).await?;
    let progress = std::io::stderr().is_terminal();
    let mut purged: u64 = 0;
    loop {
        let step = opened.storage.purge(args.older_than, STEP).await.map_err(opened.failed("purge"))?;
        purged = purged.saturating_add(step);
        if step == 0 {
            break;
        }
        if progress {
            output::note(&format!("{} deleted so far", output::count(purged, "row")));
        }
    }
    if args.json {
        return output::json(&serde_json::json!({ "purged": purged }));
    }
    output::line(&format!("{} deleted", output::count(purged, "delivered row")))
}
