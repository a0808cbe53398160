//! `outhaul drain`.

use super::error::CommandError;
use super::{CommandResult, output};
use crate::app::{self, App};
use crate::relay::{Mode, Summary};
use std::collections::BTreeMap;

/// Deliver what is due, then end.
///
/// Rows that wait for a retry, for visibility, or under another worker's lease are left for later. Prints a summary: sent
/// (delivered), failed (ended dead), retried (waiting for a retry), released (handed back untried), late (settled by another
/// worker after the lease).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul drain
  outhaul drain --json             {\"sent\":10,\"failed\":1,\"retried\":0,\"released\":0,\"late\":0,\"relays\":{...}}

Exit codes: 0 if nothing that is due is left (also where messages failed), 1 if it was interrupted, the
storage failed or a circuit breaker is open, 2 if the configuration is wrong.")]
pub(super) struct Args {
    /// Only this relay (may be repeated); left out: all.
    #[arg(long = "relay", value_name = "NAME")]
    relays: Vec<String>,
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(serde::Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    total: Summary,
    relays: &'a BTreeMap<String, Summary>,
}

pub(super) async fn run(args: Args, app: App) -> CommandResult {
    let outcome = app::run(&app, &args.relays, Mode::Drain).await?;
    if args.json {
        output::json(&Document { total: outcome.total(), relays: &outcome.relays })?;
    } else {
        let rows = outcome.relays.iter().map(|(name, summary)| {
            let Summary { sent, failed, retried, released, late, breaker_open: _ } = summary;
            [name.clone(), sent.to_string(), failed.to_string(), retried.to_string(), released.to_string(), late.to_string()]
        });
        output::table(["relay", "sent", "failed", "retried", "released", "late"], rows)?;
    }
    if outcome.interrupted {
        return Err(CommandError::failure(anyhow::anyhow!("interrupted: rows that are due may be left")).after_document());
    }
    if outcome.total().breaker_open {
        let text = "the destination fails and its circuit breaker is open: rows that are due may be left, with their attempts";
        return Err(CommandError::failure(anyhow::anyhow!(text)).after_document());
    }
    Ok(())
}
