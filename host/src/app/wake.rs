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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::sql::{Access, Bounds, Statement};
    use std::path::Path;

    const CONFIG: &str =
        "databases.main.url = 'sqlite:a.db'\ndatabases.other.url = 'sqlite:b.db'\nstorages.s = { plugin = 'p', database = 'main' }";

    #[test]
    fn only_a_granted_database_that_can_be_watched_is_watched() {
        let config = config::parse(CONFIG, Path::new("x.toml")).unwrap();
        let databases = Databases::new(&config.databases, &config.secrets);
        let watched = |source| watch(&source, &config.storages["s"], &databases).is_some();
        assert!(watched(WakeSource::DataVersion("main".into())));
        assert!(!watched(WakeSource::DataVersion("other".into())), "not granted");
        assert!(!watched(WakeSource::DataVersion("none".into())), "not there");
        assert!(!watched(WakeSource::Notification { database: "main".into(), channel: "c".into() }), "SQLite cannot notify");
        assert!(!watched(WakeSource::None));
    }

    #[tokio::test]
    async fn a_commit_wakes() {
        let folder = tempfile::tempdir().unwrap();
        let config = config::parse(CONFIG, &folder.path().join("x.toml")).unwrap();
        let databases = Databases::new(&config.databases, &config.secrets);
        assert!(databases.create("main").await.unwrap());
        let (mut watch, wake) = (databases.watch("main").unwrap(), Arc::new(Notify::new()));
        // What came before is not known: the first look says yes.
        assert!(watch.changed().await.unwrap());
        let watching = tokio::spawn(run(watch, Duration::from_millis(1), Arc::clone(&wake)));
        let producer = databases.open("main", Access::ReadWrite).await.unwrap();
        let change = vec![Statement::new("CREATE TABLE t (id INTEGER)")];
        producer.execute(change, Bounds::within(Duration::from_secs(10), 1000)).await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), wake.notified()).await.expect("the commit woke nobody");
        watching.abort();
    }
}
