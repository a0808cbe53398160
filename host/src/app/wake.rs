//! Wakes a relay when its table may have new rows, sooner than polling would.

use crate::config::model::Adapter;
use crate::ports::WakeSource;
use crate::sql::{ChangeWatch, Databases};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

/// How long to wait after a look that failed: the relay meets the same trouble and reports it.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// What a storage asked for, as far as it is granted and can be had; none: polling only.
pub(super) fn watch(source: &WakeSource, storage: &Adapter, databases: &Databases) -> Option<ChangeWatch> {
    let (database, kind) = match source {
        WakeSource::None => return None,
        WakeSource::DataVersion(database) => (database, "changes"),
        WakeSource::Notification { database, .. } => (database, "notifications"),
    };
    if !storage.grants.databases.contains(database) {
        tracing::warn!(storage = storage.name, database, "the storage asks to watch a database that it was not granted: polling only");
        return None;
    }
    if matches!(source, WakeSource::Notification { .. }) {
        tracing::warn!(storage = storage.name, database, "this kind of database has no {kind}: polling only");
        return None;
    }
    match databases.watch(database) {
        Ok(watch) => Some(watch),
        Err(error) => {
            tracing::warn!(storage = storage.name, database, %error, "cannot watch for {kind}: polling only");
            None
        }
    }
}

/// Looks for commits every `interval`, for ever; the caller drops it.
pub(super) async fn run(mut watch: ChangeWatch, interval: Duration, wake: Arc<Notify>) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        ticks.tick().await;
        match watch.changed().await {
            Ok(changed) => {
                failing = false;
                if changed {
                    wake.notify_one();
                }
            }
            Err(error) => {
                if !failing {
                    tracing::debug!(%error, "cannot look for changes now; polling goes on");
                }
                failing = true;
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }
}
