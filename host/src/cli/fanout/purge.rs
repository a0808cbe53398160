//! `outhaul fanout purge`.

use super::open::{Desk, RelayArg};
use super::report::Report;
use crate::app::App;
use crate::cli::error::CommandError;
use crate::cli::{CommandResult, output};
use anyhow::anyhow;
use serde_json::json;
use std::io::IsTerminal;
use std::time::Duration;

/// Deliveries a step: one short transaction each.
const STEP: u32 = 1000;

/// Delete complete and suppressed deliveries that ended long enough ago, in small steps.
///
/// Of all tenants of the storage: a relay that works for one only (fan_out.tenant) wants that to be said, with --all-tenants. Pending and
/// quarantined deliveries are left alone, and so is the log of changes. It may be interrupted at any time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul fanout purge orders --older-than 30d
  outhaul fanout purge orders --older-than 12h --json      {\"purged\":12000}

Exit code 2, and nothing is deleted, if the relay works for one tenant only and --all-tenants is not there.")]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    relay: RelayArg,
    /// Delete deliveries that ended longer ago than this ("12h", "30d").
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    older_than: Duration,
    /// Also where the relay works for one tenant only.
    #[arg(long)]
    all_tenants: bool,
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(args: Args, app: &App) -> CommandResult {
    let chosen = args.relay.choose(&app.config)?;
    check_tenants(chosen.fan_out.tenant.as_deref(), args.all_tenants)?;
    let opened = chosen.open(app).await?;
    let shown = std::io::stderr().is_terminal();
    let progress = |purged| {
        if shown {
            output::note(&format!("{} deleted so far", deliveries(purged)));
        }
    };
    purge(opened.desk(), args.older_than, progress).await?.end(args.json)
}

/// A storage deletes the deliveries of all tenants: who is limited to one must mean that.
pub(super) fn check_tenants(only: Option<&str>, all: bool) -> CommandResult {
    match only {
        Some(only) if !all => Err(CommandError::usage(anyhow!(
            "the relay works for the tenant {only:?} only (its fan_out.tenant), and the deliveries of all tenants of its storage would be \
             deleted: nothing was; add --all-tenants if that is meant"
        ))),
        _ => Ok(()),
    }
}

pub(super) async fn purge(desk: Desk<'_>, older_than: Duration, progress: impl Fn(u64)) -> Result<Report, CommandError> {
    let mut purged: u64 = 0;
    loop {
        let step = desk.admin.purge_deliveries(older_than, STEP).await.map_err(desk.failed("purge-deliveries"))?;
        purged = purged.saturating_add(step);
        if step == 0 {
            return Ok(Report::new(format!("{} deleted", deliveries(purged)), json!({ "purged": purged })));
        }
        progress(purged);
    }
}

fn deliveries(number: u64) -> String {
    if number == 1 { "1 delivery".to_owned() } else { format!("{number} deliveries") }
}
