//! `outhaul schema`.

use super::error::CommandError;
use super::storage::{Opened, StorageArg};
use super::{CommandResult, output};
use crate::app::App;
use crate::config::Config;
use crate::config::model::{Adapter, Database};
use crate::ports::StorageAdmin;

/// Print the DDL that a storage's configuration needs, for a migration; or run it.
///
/// Without --apply nothing is created, and the database need not exist. With it the adapter may create tables, indexes and triggers, for
/// this once; read what it prints before.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul schema > migrations/0001_outbox.sql
  outhaul schema --apply           create the table and its indexes, and a SQLite file that does not exist yet")]
pub(super) struct Args {
    #[command(flatten)]
    storage: StorageArg,
    /// Run the DDL. Running it again changes nothing.
    #[arg(long)]
    apply: bool,
}

pub(super) async fn run(args: Args, mut config: Config) -> CommandResult {
    let adapter = args.storage.choose(&config)?.clone();
    if args.apply {
        for name in &adapter.grants.databases {
            if let Some(Database::Sqlite(sqlite)) = config.databases.get_mut(name) {
                sqlite.applies_schema = true;
            }
        }
        return apply(&adapter, &App::new(config)?).await;
    }
    // The text does not depend on what is in the database: where there is none yet, an empty one stands in.
    let scratch = tempfile::tempdir().map_err(CommandError::failure)?;
    for name in &adapter.grants.databases {
        match config.databases.get_mut(name) {
            Some(Database::Sqlite(sqlite)) if matches!(sqlite.path.try_exists(), Ok(false)) => {
                sqlite.path = scratch.path().join("empty.db")
            }
            _ => {}
        }
    }
    let app = App::new(config)?;
    if app.absent_database(&adapter).is_some() {
        app.create_databases(&adapter).await?;
    }
    let opened = Opened::open(&app, &adapter).await?;
    let text = opened.storage.schema().await.map_err(opened.failed("schema"))?;
    output::line(text.trim_end())
}

async fn apply(adapter: &Adapter, app: &App) -> CommandResult {
    if let Some((_, file)) = app.absent_database(adapter) {
        app.create_databases(adapter).await?;
        output::line(&format!("created {}", file.display()))?;
    }
    let opened = Opened::open(app, adapter).await?;
    opened.storage.create_schema().await.map_err(opened.failed("create-schema"))?;
    output::line(&format!("the table of the storage {} is there, with all that it needs", opened.name))
}
