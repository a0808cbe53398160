//! `outhaul fanout`: what became of events that go to subscribers, and what an operator can do about it.

mod deliveries;
mod open;
mod purge;
mod reemit;
mod rekey;
mod report;
mod requeue;
mod schema;
mod status;
#[cfg(test)]
mod tests;

use super::{CommandResult, Quiet, load};
use crate::app::App;
use std::path::Path;

/// Events that go to subscribers: look at deliveries and at what changed, send an event again, change the keys.
///
/// RELAY is a relay with `fan_out`. Deliveries belong to a tenant: --tenant says which; without it, fan_out.tenant is meant, or, where
/// there is none, the events without a tenant.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  outhaul fanout schema subscriptions --apply          create the table that the router of that name reads
  outhaul fanout list orders --tenant acme --state quarantined
  outhaul fanout show orders dl_5f0c... --tenant acme
  outhaul fanout reemit orders 17 --tenant acme        event 17 again, to today's subscribers
  outhaul fanout requeue orders --tenant acme --subscriber crm      what was quarantined, once more
  outhaul fanout status orders --tenant acme --reader billing --advance
  outhaul fanout rekey orders                          seal old deliveries with the newest key
  outhaul fanout purge orders --older-than 30d

What is sealed (addresses, credentials, payloads) is never shown.")]
pub(super) enum Command {
    /// Make a settled event pending again: it is expanded for the subscribers of that moment, as a new generation.
    Reemit(reemit::Args),
    /// List deliveries, in the order of their insertion.
    List(deliveries::List),
    /// Show one delivery, with what was recorded of its last failure.
    Show(deliveries::Show),
    /// Make quarantined deliveries pending again, with no attempts counted.
    Requeue(requeue::Args),
    /// Read the log of changes; keep and move the checkpoint of a reader.
    Status(status::Args),
    /// Seal deliveries that are under an older key with the newest one.
    Rekey(rekey::Args),
    /// Delete complete and suppressed deliveries that ended long enough ago, in small steps.
    Purge(purge::Args),
    /// Print the DDL of the table that a router reads, for a migration; or run it.
    Schema(schema::Args),
}

impl Command {
    /// Whether one JSON document was asked for.
    pub(super) fn is_json(&self) -> bool {
        match self {
            Self::Reemit(args) => args.json,
            Self::List(args) => args.json,
            Self::Show(args) => args.json,
            Self::Requeue(args) => args.json,
            Self::Status(args) => args.json,
            Self::Rekey(args) => args.json,
            Self::Purge(args) => args.json,
            Self::Schema(_) => false,
        }
    }
}

pub(super) async fn run(command: Command, file: &Path) -> CommandResult {
    let app = App::new(load(file, Quiet::Yes)?)?;
    match command {
        Command::Reemit(args) => reemit::run(args, &app).await,
        Command::List(args) => deliveries::list(args, &app).await,
        Command::Show(args) => deliveries::show(args, &app).await,
        Command::Requeue(args) => requeue::run(args, &app).await,
        Command::Status(args) => status::run(args, &app).await,
        Command::Rekey(args) => rekey::run(args, &app).await,
        Command::Purge(args) => purge::run(args, &app).await,
        Command::Schema(args) => schema::run(args, &app).await,
    }
}
