//! What the plugin tests share: a host with a database and secrets, adapters made from the fixtures, a small HTTP receiver.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod certificates;

use outhaul::config::model::{Adapter, Database, Grants, HostGrant, Limits, Publisher as PublisherConfig, SecretSource, Sqlite};
use outhaul::domain::{Batch, Failure, NewMessage, Outcome};
use outhaul::metrics::Metrics;
use outhaul::plugin::{Origin, PluginError, PluginHost, PluginHostOptions, PublisherPlugin, RouterPlugin, StoragePlugin};
use outhaul::ports::{ClaimRequest, LeaseEnd, PublishCall, Publisher, Workers};
use outhaul::sql::Databases;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

/// Where xtask puts the fixtures.
pub fn fixtures() -> PathBuf {
    let folder = std::env::var_os("OUTHAUL_FIXTURES")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/fixtures"), PathBuf::from);
    assert!(
        folder.join("evil-publisher.wasm").is_file(),
        "there are no fixtures in {}: run `cargo xtask test`, which builds them, or set OUTHAUL_FIXTURES",
        folder.display()
    );
    folder
}

/// Compiled code, shared by the tests of one process.
pub fn cache() -> PathBuf {
    static CACHE: OnceLock<tempfile::TempDir> = OnceLock::new();
    CACHE.get_or_init(|| tempfile::tempdir().unwrap()).path().join("cache")
}

pub struct Bench {
    pub host: PluginHost,
    pub metrics: Metrics,
    folder: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        Self::with_cache(Some(cache()))
    }

    pub fn with_cache(cache: Option<PathBuf>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Metrics::new();
        let database = |name: &str| {
            let path = folder.path().join(format!("{name}.db"));
            (name.to_owned(), Database::Sqlite(Sqlite { path, synchronous_full: false, applies_schema: false }))
        };
        // The operator's producer has made the files; outhaul does not.
        for name in ["main", "other"] {
            std::fs::write(folder.path().join(format!("{name}.db")), b"").unwrap();
        }
        let secrets = ["key", "gone", "signing-key"];
        let host = PluginHost::new(PluginHostOptions {
            cache,
            metrics: metrics.clone(),
            databases: Databases::new(&[database("main"), database("other")].into(), &Default::default()),
            secrets: secrets.map(|name| (name.to_owned(), SecretSource::File(folder.path().join(name)))).into(),
        });
        Self { host: host.unwrap(), metrics, folder }
    }

    pub fn database_file(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.db"))
    }

    pub fn secret_file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub async fn publisher(&self, plugin: &str, configure: impl FnOnce(&mut PublisherConfig)) -> Result<Arc<PublisherPlugin>, PluginError> {
        self.publisher_in(&fixtures(), plugin, configure).await
    }

    pub async fn publisher_in(
        &self,
        directory: &Path,
        plugin: &str,
        configure: impl FnOnce(&mut PublisherConfig),
    ) -> Result<Arc<PublisherPlugin>, PluginError> {
        let mut config = PublisherConfig { adapter: adapter(plugin), lanes: 2, batch: 500, batch_bytes: 1 << 20 };
        configure(&mut config);
        self.host.publisher(directory, &config).await
    }

    pub async fn storage(&self, plugin: &str, configure: impl FnOnce(&mut Adapter)) -> Result<Arc<StoragePlugin>, PluginError> {
        let mut config = adapter(plugin);
        config.config = serde_json::json!({ "database": "main" });
        config.grants.databases = texts(&["main"]);
        configure(&mut config);
        self.host.storage(&fixtures(), &config).await
    }

    pub async fn router(&self, plugin: &str, configure: impl FnOnce(&mut Adapter)) -> Result<Arc<RouterPlugin>, PluginError> {
        let mut config = adapter(plugin);
        configure(&mut config);
        self.host.load_router(Origin::first(&fixtures()), &config).await
    }
}

pub fn adapter(plugin: &str) -> Adapter {
    Adapter {
        name: plugin.to_owned(),
        plugin: plugin.to_owned(),
        grants: Grants::default(),
        limits: Limits { memory_bytes: 64 << 20, call_timeout: Duration::from_secs(20), returned_bytes: 1 << 20 },
        config: serde_json::json!({}),
    }
}

pub fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

pub fn granted(publisher: &mut PublisherConfig, host: &str, port: u16) {
    publisher.adapter.grants.hosts = vec![HostGrant { host: host.to_owned(), port: Some(port) }];
}

pub fn batch(payloads: &[&str]) -> Batch {
    let mut batch = Batch::default();
    for (index, payload) in payloads.iter().enumerate() {
        let id = index.to_string();
        batch.push(&NewMessage { id: Some(&id), topic: "t", payload: Some(payload.as_bytes()), attempts: 1, ..NewMessage::default() });
    }
    batch
}

pub fn call(deadline: Duration) -> (PublishCall, mpsc::UnboundedReceiver<(usize, Outcome)>) {
    let (reports, received) = mpsc::unbounded_channel();
    // As in the relay: a lease outlives the call.
    let lease = Arc::new(LeaseEnd::new(tokio::time::Instant::now() + deadline + Duration::from_secs(60)));
    (PublishCall { deadline, reports, cancel: CancellationToken::new(), lease, workers: Workers::default() }, received)
}

/// Publishes, and returns what came of it with the reports that came before.
pub async fn publish_within(
    publisher: &dyn Publisher,
    payloads: &[&str],
    deadline: Duration,
) -> (Result<Vec<Outcome>, Failure>, Vec<(usize, Outcome)>) {
    let (call, mut received) = call(deadline);
    let result = publisher.publish(batch(payloads), call).await;
    let mut reports = Vec::new();
    while let Ok(report) = received.try_recv() {
        reports.push(report);
    }
    (result, reports)
}

pub async fn publish(publisher: &dyn Publisher, payloads: &[&str]) -> Result<Vec<Outcome>, Failure> {
    publish_within(publisher, payloads, Duration::from_secs(20)).await.0
}

/// Publishes one good message.
pub async fn deliver(publisher: &dyn Publisher) -> Result<Vec<Outcome>, Failure> {
    publish(publisher, &["fine"]).await
}

pub fn claim_request(worker: &str, limit: u32) -> ClaimRequest {
    ClaimRequest {
        worker: worker.to_owned(),
        limit,
        max_bytes: 1 << 20,
        lease: Duration::from_secs(60),
        max_attempts: 10,
        max_message_bytes: 1 << 20,
    }
}

/// An HTTP receiver that gives every request the same answer; an empty one: none.
pub struct Receiver {
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    connections: usize,
    heads: Vec<String>,
}

impl Receiver {
    pub async fn requests(&self) -> usize {
        self.seen.lock().await.heads.len()
    }
    pub async fn connections(&self) -> usize {
        self.seen.lock().await.connections
    }
    pub async fn last_head(&self) -> String {
        self.seen.lock().await.heads.last().cloned().unwrap_or_default()
    }
}

pub async fn receiver(answer: &str) -> Receiver {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::<Mutex<Seen>>::default();
    let (answer, shared) = (answer.to_owned(), Arc::clone(&seen));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (answer, shared) = (answer.clone(), Arc::clone(&shared));
            tokio::spawn(async move {
                shared.lock().await.connections += 1;
                let (mut head, mut byte) = (Vec::new(), [0]);
                while stream.read_exact(&mut byte).await.is_ok() {
                    head.push(byte[0]);
                    if head.ends_with(b"\r\n\r\n") {
                        shared.lock().await.heads.push(String::from_utf8_lossy(&head).into_owned());
                        head.clear();
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            break;
                        }
                    }
                }
            });
        }
    });
    Receiver { address, seen }
}
