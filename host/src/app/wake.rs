//! Wakes a relay when its table may have new rows, sooner than polling would.

use crate::config::model::Adapter;
use crate::domain::Backoff;
use crate::ports::WakeSource;
use crate::sql::{ChangeWatch, Databases, Heard, Listener, SqlError};
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

/// How long to wait after a look that failed: the relay meets the same trouble and reports it.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// How long to wait before listening again, after so many failures in a row. Spread out: all hosts lose a server at once.
const RECONNECT: Backoff = Backoff { base: Duration::from_millis(250), factor: 2.0, max: Duration::from_secs(30), jitter: 0.3 };

/// How long after a proof that has failed the next one follows. It may have been in vain for a while only: a server that is taken over, or
/// has much to do, takes longer to notify than a proof waits.
const PROVE_AGAIN: Duration = Duration::from_secs(60);

/// Something that tells of new rows.
#[derive(Debug)]
pub(super) enum Watch {
    /// A look now and then.
    Changes(ChangeWatch),
    /// Word from the database.
    Notifications(Box<Listener>),
}

/// What a storage asked for, as far as it is granted and can be had; none: polling only.
pub(super) fn watch(source: &WakeSource, storage: &Adapter, databases: &Databases) -> Option<Watch> {
    let (database, kind) = match source {
        WakeSource::None => return None,
        WakeSource::DataVersion(database) => (database, "changes"),
        WakeSource::Notification { database, .. } => (database, "notifications"),
    };
    if !storage.grants.databases.contains(database) {
        tracing::warn!(storage = storage.name, database, "the storage asks to watch a database that it was not granted: polling only");
        return None;
    }
    let watch: Result<Watch, SqlError> = match source {
        WakeSource::Notification { channel, .. } => {
            databases.listen(database, channel).map(|listener| Watch::Notifications(Box::new(listener)))
        }
        WakeSource::DataVersion(_) | WakeSource::None => databases.watch(database).map(Watch::Changes),
    };
    watch.inspect_err(|error| tracing::warn!(storage = storage.name, database, %error, "cannot watch for {kind}: polling only")).ok()
}

impl Watch {
    /// Watches for ever, or until that is in vain; the caller drops it. `interval`: between two looks, where looking is polling.
    pub(super) async fn run(self, relay: String, interval: Duration, listening: Gauge, wake: Arc<Notify>) {
        match self {
            Self::Changes(watch) => look(watch, interval, &wake).await,
            Self::Notifications(listener) => listen(*listener, &relay, &listening, &wake, PROVE_AGAIN).await,
        }
    }
}

/// Looks for commits.
async fn look(mut watch: ChangeWatch, interval: Duration, wake: &Notify) {
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

/// Listens for notifications, connecting again after each loss, and `again` after they did not come through; behind a pooler, where they
/// never do, that is the end.
async fn listen(mut listener: Listener, relay: &str, listening: &Gauge, wake: &Notify, again: Duration) {
    let (mut failures, mut unheard) = (0, false);
    loop {
        match listener.heard().await {
            Ok(Heard::Connected) => {
                if failures > 0 || unheard {
                    tracing::info!(relay, "notifications come through again");
                }
                (failures, unheard) = (0, false);
                listening.set(1);
                // What was said meanwhile was not heard.
                wake.notify_one();
            }
            Ok(Heard::Notification) => wake.notify_one(),
            Ok(Heard::Never) if listener.behind_pooler() => {
                listening.set(0);
                tracing::warn!(
                    relay,
                    "the database's notifications do not come through its pooler, as in transaction mode: new rows are found by polling \
                     only; to hear of them at once, let the url lead to the server itself, or to a pooler in session mode"
                );
                return;
            }
            Ok(Heard::Never) => {
                listening.set(0);
                if !unheard {
                    tracing::warn!(
                        relay,
                        again_in = %humantime::format_duration(again),
                        "the database's notifications do not come through now: new rows are found by polling until they do"
                    );
                }
                unheard = true;
                tokio::time::sleep(again).await;
            }
            Err(error) => {
                listening.set(0);
                failures += 1;
                let wait = RECONNECT.delay(failures, None, rand::random());
                if failures == 1 {
                    tracing::warn!(relay, %error, again_in = %humantime::format_duration(wait), "cannot listen for notifications now; polling goes on");
                }
                tokio::time::sleep(wait).await;
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    const CONFIG: &str = "databases.main.url = 'sqlite:a.db'\ndatabases.other.url = 'sqlite:b.db'\n\
        databases.server.url = 'postgres://u@localhost/d'\n\
        storages.s = { plugin = 'p', database = 'main' }\nstorages.t = { plugin = 'p', database = 'server' }";

    #[test]
    fn only_a_granted_database_that_can_be_watched_is_watched() {
        let config = config::parse(CONFIG, Path::new("x.toml")).unwrap();
        let databases = Databases::new(&config.databases, &config.secrets);
        let watched_by = |storage: &str, source| watch(&source, &config.storages[storage], &databases).is_some();
        let watched = |source| watched_by("s", source);
        assert!(watched(WakeSource::DataVersion("main".into())));
        assert!(!watched(WakeSource::DataVersion("other".into())), "not granted");
        assert!(!watched(WakeSource::DataVersion("none".into())), "not there");
        assert!(!watched(WakeSource::Notification { database: "main".into(), channel: "c".into() }), "SQLite cannot notify");
        assert!(watched_by("t", WakeSource::Notification { database: "server".into(), channel: "c".into() }));
        assert!(
            !watched_by("t", WakeSource::Notification { database: "server".into(), channel: "c".repeat(64) }),
            "no channel has such a name"
        );
        assert!(!watched_by("t", WakeSource::DataVersion("server".into())), "a server counts no commits");
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
        let gauge = Gauge::default();
        let watching = tokio::spawn(Watch::Changes(watch).run("r".into(), Duration::from_millis(1), gauge, Arc::clone(&wake)));
        let producer = databases.open("main", Access::ReadWrite).await.unwrap();
        let change = vec![Statement::new("CREATE TABLE t (id INTEGER)")];
        producer.execute(change, Bounds::within(Duration::from_secs(10), 1000)).await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), wake.notified()).await.expect("the commit woke nobody");
        watching.abort();
    }

    /// Runs a test with what a relay has that listens to the channel `c` of a server.
    fn listening(url: &str, test: impl AsyncFnOnce(Arc<Notify>, Gauge, tokio::task::JoinHandle<()>)) {
        let config = config::parse(&format!("databases.server.url = {url:?}"), Path::new("x.toml")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let databases = Databases::new(&config.databases, &config.secrets);
            let watch = Watch::Notifications(Box::new(databases.listen("server", "c").unwrap()));
            let (wake, gauge) = (Arc::new(Notify::new()), Gauge::default());
            let watching = tokio::spawn(watch.run("r".into(), Duration::from_secs(60), gauge.clone(), Arc::clone(&wake)));
            test(wake, gauge, watching).await;
        });
    }

    async fn woken(wake: &Notify) {
        tokio::time::timeout(Duration::from_secs(30), wake.notified()).await.expect("nobody was woken");
    }

    fn other(url: &str, sql: &str) {
        let (url, sql) = (url.to_owned(), sql.to_owned());
        let thread = std::thread::spawn(move || outhaul_services::postgres::connect(&url).unwrap().batch_execute(&sql).unwrap());
        thread.join().unwrap();
    }

    #[test]
    fn a_notification_wakes_and_so_does_each_new_connection() {
        for major in outhaul_services::Major::ALL {
            let Some(server) = outhaul_services::postgres(major) else { continue };
            let database = server.create_database().unwrap();
            listening(&database.url(), async |wake, gauge, watching| {
                woken(&wake).await;
                assert_eq!(gauge.get(), 1);
                other(&database.url(), "NOTIFY c");
                woken(&wake).await;
                // Whatever came while nobody listened was missed.
                other(
                    &database.url(),
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
                );
                woken(&wake).await;
                other(&database.url(), "NOTIFY c");
                woken(&wake).await;
                watching.abort();
            });
        }
    }

    /// A way to the server that swallows the notifications of the first connection; counts connections.
    async fn deaf(server: u16, connections: Arc<AtomicUsize>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let first = connections.fetch_add(1, Ordering::Relaxed) == 0;
                let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) = (client.into_split(), server.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
                tokio::spawn(async move {
                    // A message: its kind, its length without the kind, and the rest.
                    while let (Ok(kind), Ok(length)) = (from_server.read_u8().await, from_server.read_u32().await) {
                        let mut body = vec![0; length as usize - 4];
                        from_server.read_exact(&mut body).await.unwrap();
                        if !(first && kind == b'A') {
                            let message = [&[kind][..], &length.to_be_bytes(), &body].concat();
                            if to_client.write_all(&message).await.is_err() {
                                break;
                            }
                        }
                    }
                });
            }
        });
        port
    }

    #[test]
    fn notifications_that_did_not_come_through_are_tried_again() {
        let Some(server) = outhaul_services::postgres(outhaul_services::Major::V17) else { return };
        let database = server.create_database().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let connections = Arc::new(AtomicUsize::new(0));
            let port = deaf(server.port, Arc::clone(&connections)).await;
            let url = database.url().replace(&format!(":{}/", server.port), &format!(":{port}/"));
            let config = format!("databases.server = {{ url = {url:?}, tls = 'disable' }}");
            let config = config::parse(&config, Path::new("x.toml")).unwrap();
            let listener = Databases::new(&config.databases, &config.secrets).listen("server", "c").unwrap();
            let (wake, gauge) = (Arc::new(Notify::new()), Gauge::default());
            let (woken_up, shown) = (Arc::clone(&wake), gauge.clone());
            let listening = tokio::spawn(async move { listen(listener, "r", &shown, &woken_up, Duration::from_millis(1)).await });
            woken(&wake).await;
            assert_eq!(gauge.get(), 1);
            assert!(connections.load(Ordering::Relaxed) > 2, "the first proof has failed");
            other(&database.url(), "NOTIFY c");
            woken(&wake).await;
            listening.abort();
        });
    }

    #[test]
    fn behind_a_pooler_in_transaction_mode_listening_ends_with_a_warning() {
        let (Some(pooler), Some(server)) = (outhaul_services::pgbouncer(), outhaul_services::postgres(outhaul_services::Major::V15)) else {
            return;
        };
        let database = server.create_database().unwrap();
        listening(&pooler.url(database.name()), async |_, gauge, watching| {
            tokio::time::timeout(Duration::from_secs(60), watching).await.expect("it goes on in vain").unwrap();
            assert_eq!(gauge.get(), 0);
        });
    }
}
