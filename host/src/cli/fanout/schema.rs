//! `outhaul fanout schema`.

use crate::app::App;
use crate::cli::error::CommandError;
use crate::cli::{CommandResult, output};
use crate::config::Config;
use crate::config::model::Router;
use anyhow::anyhow;

/// Print the DDL of the table that a router reads, for a migration; or run it.
///
/// The tables of deliveries belong to the storage: `outhaul schema` prints those.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul fanout schema subscriptions > migrations/0002_subscriptions.sql
  outhaul fanout schema subscriptions --apply      create the table, and a SQLite file that does not exist yet")]
pub(in crate::cli) struct Args {
    /// The router, by its name in the configuration.
    #[arg(value_name = "ROUTER")]
    router: String,
    /// Run the DDL. Running it again changes nothing.
    #[arg(long)]
    apply: bool,
}

pub(super) async fn run(args: Args, app: &App) -> CommandResult {
    let router = choose(&args.router, &app.config)?;
    if args.apply {
        return match app.create_router_schema(router).await? {
            true => output::line(&format!("the table of the router {} is there, with all that it needs", router.name)),
            false => Err(no_table(router)),
        };
    }
    let text = app.router_schema(router).ok_or_else(|| no_table(router))?;
    output::line(text.trim_end())
}

fn choose<'a>(name: &str, config: &'a Config) -> Result<&'a Router, CommandError> {
    config.routers.iter().find(|router| router.name == name).ok_or_else(|| {
        let known = config.routers.iter().map(|router| router.name.as_str()).collect::<Vec<_>>().join(", ");
        CommandError::usage(anyhow!("there is no router {name:?} in {}; routers: {known}", config.file.display()))
    })
}

fn no_table(router: &Router) -> CommandError {
    let name = &router.name;
    CommandError::usage(anyhow!("routers.{name} reads no table: only a router with `database` and `table` has a schema"))
}
