//! `outhaul run`.

use super::CommandResult;
use super::error::CommandError;
use crate::app::{self, App};
use crate::relay::Mode;

/// Deliver until a signal comes.
///
/// The first SIGTERM or SIGINT stops claiming, finishes what is in flight and hands the rest back; the second one, or the end of
/// shutdown_grace, ends at once and leaves leases to run out.
///
/// A component that is dropped into the plugin directory takes the place of the running one, once it has compiled and opened; one that
/// fails leaves it running and says why (log, metrics, `outhaul plugin list`). SIGHUP reads the configuration again, looks for such
/// components and for work; see watch_config and plugins.watch.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul run                      every relay of outhaul.toml
  outhaul run --relay orders       only this one
  RUST_LOG=info,outhaul=debug outhaul run

Exit codes: 0 after a graceful end, 1 after a forced one or a failure, 2 if the configuration is wrong.")]
pub(super) struct Args {
    /// Only this relay (may be repeated); left out: all.
    #[arg(long = "relay", value_name = "NAME")]
    relays: Vec<String>,
}

pub(super) async fn run(args: Args, app: App) -> CommandResult {
    let outcome = app::run(&app, &args.relays, Mode::Run).await?;
    if outcome.forced {
        return Err(CommandError::failure(anyhow::anyhow!(
            "ended before everything in flight was settled: it will be delivered again after its lease"
        )));
    }
    Ok(())
}
