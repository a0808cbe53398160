//! Which storage a command means, and opening it for what only operators do.

use super::error::CommandError;
use crate::app::{App, AppError};
use crate::config::Config;
use crate::config::model::Adapter;
use crate::domain::Failure;
use crate::plugin::StoragePlugin;
use clap::Args;
use std::sync::Arc;

/// `--storage`.
#[derive(Debug, Args)]
pub(super) struct StorageArg {
    /// The storage, by its name in the configuration; may be left out where there is only one.
    #[arg(long, value_name = "NAME")]
    storage: Option<String>,
}

impl StorageArg {
    /// Its configuration.
    pub(super) fn choose<'a>(&self, config: &'a Config) -> Result<&'a Adapter, CommandError> {
        let known = || config.storages.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let file = config.file.display();
        match &self.storage {
            Some(name) => config
                .storages
                .get(name)
                .ok_or_else(|| CommandError::usage(anyhow::anyhow!("there is no storage {name:?} in {file}; storages: {}", known()))),
            None => {
                let mut all = config.storages.values();
                match (all.next(), all.next()) {
                    (Some(only), None) => Ok(only),
                    (None, _) => Err(CommandError::usage(anyhow::anyhow!("{file} has no storage: add a [storages.NAME]"))),
                    _ => Err(CommandError::usage(anyhow::anyhow!("{file} has several storages: say which with --storage ({})", known()))),
                }
            }
        }
    }

    /// Whether a storage was named.
    pub(super) fn is_named(&self) -> bool {
        self.storage.is_some()
    }
}

/// An open storage that offers what operators need.
pub(super) struct Opened {
    /// Its name.
    pub(super) name: String,
    /// The storage.
    pub(super) storage: Arc<StoragePlugin>,
}

impl Opened {
    /// Opens a storage that must have the admin interface.
    pub(super) async fn open(app: &App, adapter: &Adapter) -> Result<Self, CommandError> {
        let storage = app.storage(adapter).await?;
        if !storage.has_admin() {
            return Err(CommandError::usage(anyhow::anyhow!(
                "storages.{}: the plugin {} does not export storage-admin, which this command needs",
                adapter.name,
                adapter.plugin
            )));
        }
        Ok(Self { name: adapter.name.clone(), storage })
    }

    /// Tells a failed call with the storage's name.
    pub(super) fn failed(&self, call: &'static str) -> impl Fn(Failure) -> CommandError {
        let storage = self.name.clone();
        move |failure| AppError::Call { storage: storage.clone(), call, failure }.into()
    }
}
