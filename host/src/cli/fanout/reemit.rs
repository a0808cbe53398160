//! `outhaul fanout reemit`.

use super::open::{Desk, RelayArg, TenantArg, whose};
use super::report::Report;
use crate::app::App;
use crate::cli::CommandResult;
use crate::cli::error::CommandError;
use crate::ports::fan_out::Reemitted;
use anyhow::anyhow;
use serde_json::json;

/// Make a settled event pending again: it is expanded for the subscribers of that moment, as a new generation.
///
/// Its new deliveries have new ids and new idempotency keys; those of earlier generations stay as they are.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul fanout reemit orders 17 --tenant acme
  outhaul fanout reemit orders 17 --json      {\"event\":\"17\",\"generation\":2}

Exit code 1 if there is no such event, or if it waits to be expanded already: nothing is changed then.")]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    relay: RelayArg,
    /// The event: the id of its row.
    event: String,
    #[command(flatten)]
    tenant: TenantArg,
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(args: Args, app: &App) -> CommandResult {
    let chosen = args.relay.choose(&app.config)?;
    let opened = chosen.open(app).await?;
    reemit(opened.desk(), &args.tenant.of(chosen)?, &args.event).await?.end(args.json)
}

pub(super) async fn reemit(desk: Desk<'_>, tenant: &str, event: &str) -> Result<Report, CommandError> {
    match desk.admin.reemit(tenant, event).await.map_err(desk.failed("reemit"))? {
        Reemitted::Generation(generation) => {
            let document = json!({ "event": event, "generation": generation });
            Ok(Report::new(format!("event {event:?} will be expanded again, as generation {generation}"), document))
        }
        Reemitted::Unknown => {
            let text = format!("there is no event {event:?} {} in the storage {}", whose(tenant), desk.storage);
            Err(CommandError::failure(anyhow!("{text}{}", hint(tenant))))
        }
        Reemitted::Pending(generation) => Err(CommandError::failure(anyhow!(
            "event {event:?} waits to be expanded as generation {generation} already: nothing was changed; `outhaul run` expands it"
        ))),
    }
}

fn hint(tenant: &str) -> &'static str {
    if tenant.is_empty() { "; --tenant says whose it is, where there are tenants" } else { "" }
}
