//! `outhaul fanout requeue`: quarantined deliveries are tried again.

use super::open::{Desk, RelayArg, TenantArg, whose};
use super::report::Report;
use crate::app::App;
use crate::cli::CommandResult;
use crate::cli::error::CommandError;
use crate::ports::fan_out::{DeliveryFilter, DeliveryState};
use serde_json::json;

/// Make quarantined deliveries of a tenant pending again, with no attempts counted: all of them, or those that are named.
///
/// They keep their ids and idempotency keys: a subscriber that has one already can tell. What quarantined them must be mended first, such as
/// a key that was missing from `fan_out.keys`; else it happens again. Complete and suppressed deliveries are never sent again by this: see
/// `outhaul fanout reemit`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul fanout requeue orders --tenant acme
  outhaul fanout requeue orders --tenant acme --subscriber crm --event 17
  outhaul fanout requeue orders --tenant acme --id dl_5f0c2a --json      {\"requeued\":1}")]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    relay: RelayArg,
    #[command(flatten)]
    tenant: TenantArg,
    /// Only deliveries to this subscriber.
    #[arg(long, value_name = "NAME")]
    subscriber: Option<String>,
    /// Only deliveries of this event, of all its generations.
    #[arg(long, value_name = "ID")]
    event: Option<String>,
    /// Only this delivery (may be repeated).
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,
    /// Print one JSON document: {"requeued": 2}.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(args: Args, app: &App) -> CommandResult {
    let chosen = args.relay.choose(&app.config)?;
    let opened = chosen.open(app).await?;
    let tenant = args.tenant.of(chosen)?;
    let filter = DeliveryFilter { tenant, state: None, event: args.event, subscriber: args.subscriber, ids: args.ids };
    requeue(opened.desk(), filter).await?.end(args.json)
}

pub(super) async fn requeue(desk: Desk<'_>, filter: DeliveryFilter) -> Result<Report, CommandError> {
    let filter = DeliveryFilter { state: Some(DeliveryState::Quarantined), ..filter };
    let count = desk.admin.requeue_deliveries(&filter).await.map_err(desk.failed("requeue-deliveries"))?;
    let number = if count == 1 { "1 delivery".to_owned() } else { format!("{count} deliveries") };
    let mut text = format!("{number} {} requeued", whose(&filter.tenant));
    let named = u64::try_from(filter.ids.len()).unwrap_or(u64::MAX);
    if named > count {
        text.push_str(&format!("; not quarantined, and left alone: {} of those named", named - count));
    }
    Ok(Report::new(text, json!({ "requeued": count })))
}
