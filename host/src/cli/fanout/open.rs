//! Which relay a command means, and opening what it fans out of.

use crate::app::{App, AppError};
use crate::cli::error::CommandError;
use crate::config::Config;
use crate::config::model::{Adapter, FanOut, Relay};
use crate::domain::Failure;
use crate::fan_out::given::{NAME_BYTES, check_name};
use crate::plugin::StoragePlugin;
use crate::ports::fan_out::FanOutAdmin;
use anyhow::anyhow;
use std::sync::Arc;

/// The relay.
#[derive(Debug, clap::Args)]
pub(super) struct RelayArg {
    /// The relay, by its name in the configuration: one with `fan_out`.
    #[arg(value_name = "RELAY")]
    relay: String,
}

/// Whose deliveries.
#[derive(Debug, clap::Args)]
pub(super) struct TenantArg {
    /// The tenant. Without it: the one that `fan_out.tenant` names, else the events that have none.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
}

/// The fan-out of a relay.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chosen<'a> {
    /// Its settings.
    pub(super) fan_out: &'a FanOut,
    storage: &'a Adapter,
}

impl RelayArg {
    /// Its configuration.
    pub(super) fn choose<'a>(&self, config: &'a Config) -> Result<Chosen<'a>, CommandError> {
        let file = config.file.display();
        let known = |fans: bool| {
            let relays = config.relays.iter().filter(|relay| !fans || relay.fan_out.is_some());
            relays.map(|relay| relay.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let found: Option<&Relay> = config.relays.iter().find(|relay| relay.name == self.relay);
        let relay = found.ok_or_else(|| usage(format!("there is no relay {:?} in {file}; relays: {}", self.relay, known(false))))?;
        let fan_out = relay.fan_out.as_ref().ok_or_else(|| {
            let with = Some(known(true)).filter(|with| !with.is_empty()).unwrap_or_else(|| "none".to_owned());
            usage(format!("the relay {:?} has no fan_out: it publishes by routes; relays of {file} with fan_out: {with}", self.relay))
        })?;
        let storage = config.storages.get(&relay.storage);
        let storage = storage.ok_or_else(|| usage(format!("there is no storage {:?} in {file}", relay.storage)))?;
        Ok(Chosen { fan_out, storage })
    }
}

fn usage(text: String) -> CommandError {
    CommandError::usage(anyhow!(text))
}

impl TenantArg {
    /// Whose.
    pub(super) fn of(&self, chosen: Chosen<'_>) -> Result<String, CommandError> {
        tenant(self.tenant.as_deref(), chosen.fan_out.tenant.as_deref())
    }
}

/// The tenant that is meant, where the relay may work for one only.
pub(super) fn tenant(asked: Option<&str>, only: Option<&str>) -> Result<String, CommandError> {
    match (asked, only) {
        (Some(asked), Some(only)) if asked != only => {
            Err(usage(format!("--tenant {asked:?}: the relay works for the tenant {only:?} only (its fan_out.tenant)")))
        }
        (asked, only) => {
            let tenant = asked.or(only).unwrap_or_default();
            check_name(tenant, NAME_BYTES).map_err(|fault| usage(format!("--tenant: {fault}")))?;
            Ok(tenant.to_owned())
        }
    }
}

impl Chosen<'_> {
    /// Opens its storage.
    pub(super) async fn open(&self, app: &App) -> Result<Opened, CommandError> {
        let storage = app.storage(self.storage).await?;
        if !storage.has_fan_out() {
            return Err(usage(format!(
                "storages.{}: the plugin {} does not export storage-fan-out, which this command needs",
                self.storage.name, self.storage.plugin
            )));
        }
        Ok(Opened { name: self.storage.name.clone(), storage })
    }
}

/// A storage that keeps deliveries, opened.
pub(super) struct Opened {
    name: String,
    storage: Arc<StoragePlugin>,
}

impl Opened {
    /// What commands work on.
    pub(super) fn desk(&self) -> Desk<'_> {
        Desk { storage: &self.name, admin: &*self.storage }
    }
}

/// What commands work on: the deliveries of a storage.
#[derive(Clone, Copy)]
pub(super) struct Desk<'a> {
    /// The storage's name, for failures.
    pub(super) storage: &'a str,
    /// The storage.
    pub(super) admin: &'a dyn FanOutAdmin,
}

impl Desk<'_> {
    /// Tells a failed call with the storage's name.
    pub(super) fn failed(&self, call: &'static str) -> impl Fn(Failure) -> CommandError {
        let storage = self.storage.to_owned();
        move |failure| AppError::Call { storage: storage.clone(), call, failure }.into()
    }
}

/// Whose, in a sentence.
pub(super) fn whose(tenant: &str) -> String {
    if tenant.is_empty() { "without a tenant".to_owned() } else { format!("of the tenant {tenant:?}") }
}
