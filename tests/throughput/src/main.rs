//! Messages per second from SQLite to nowhere: through the components, and beside them the same adapters as plain Rust in the
//! same engine, in turn, on equal tables. Run by `cargo xtask throughput`, which builds with optimisation.

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use outhaul::bench::compare::median;
use outhaul::bench::native::{HostDatabase, NativeStorage, NullPublisher};
use outhaul::config::{self, Config};
use outhaul::metrics::Metrics;
use outhaul::plugin::{PluginHost, PluginHostOptions};
use outhaul::ports::{Publisher, Storage};
use outhaul::relay::{self, Lanes, Mode, Parts, Shutdown};
use outhaul::sql::Databases;
use rusqlite::Connection;
use sqlite_storage::Outbox;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Messages per second, SQLite to a null publisher: components beside the same adapters as plain Rust")]
struct Options {
    /// Directory with sqlite-storage.wasm.
    #[arg(long)]
    plugins: PathBuf,
    /// Directory with null-publisher.wasm.
    #[arg(long)]
    fixtures: PathBuf,
    /// Rows of each run.
    #[arg(long, default_value_t = 100_000)]
    rows: usize,
    /// Keys; 0: rows without a key.
    #[arg(long, default_value_t = 1000)]
    keys: usize,
    /// Payload bytes.
    #[arg(long, default_value_t = 256)]
    payload: usize,
    /// Rows a claim.
    #[arg(long, value_delimiter = ',', default_values_t = [50, 500])]
    batch: Vec<u32>,
    /// Pairs of runs.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Components,
    Native,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Runtime::new()?;
    println!("{} rows of {} bytes, {} keys, strict order; messages a second", options.rows, options.payload, options.keys);
    println!("{:>6} {:>4} {:>12} {:>12} {:>7}", "batch", "run", "components", "native", "ratio");
    for batch in &options.batch {
        let mut ratios = Vec::new();
        for run in 0..options.runs {
            // In turn, and each first every other time: a drift of the machine falls on both.
            let order = if run % 2 == 0 { [Kind::Components, Kind::Native] } else { [Kind::Native, Kind::Components] };
            let mut rates = BTreeMap::new();
            for kind in order {
                let rate = runtime.block_on(measure(&options, *batch, kind))?;
                rates.insert(kind == Kind::Native, rate);
            }
            let (components, native) = (rates.get(&false).copied().unwrap_or(0.0), rates.get(&true).copied().unwrap_or(0.0));
            ratios.push(components / native);
            println!("{batch:>6} {:>4} {components:>12.0} {native:>12.0} {:>7.3}", run + 1, components / native);
        }
        ratios.sort_by(f64::total_cmp);
        let median = median(&ratios).unwrap_or(0.0);
        println!("{batch:>6} median ratio {median:.3}");
    }
    for (name, text) in resident() {
        println!("{text} {name}");
    }
    Ok(())
}

/// One drain of a fresh table; messages a second.
async fn measure(options: &Options, batch: u32, kind: Kind) -> Result<f64> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("outbox.db");
    Connection::open(&file)?.pragma_update(None, "journal_mode", "wal")?;
    let config = configuration(&options.plugins, dir.path(), batch)?;
    let databases = Databases::new(&config.databases, &config.secrets);
    let storage_config = config.storages.get("outbox").context("the storage is configured")?;
    let json = storage_config.config.to_string();

    let native = databases.clone();
    let opened = tokio::task::spawn_blocking(move || {
        let (mut storage, _) = Outbox::open(&json, |database, access| HostDatabase::open(&native, database, access))?;
        storage.create_schema()
    });
    opened.await?.map_err(|failure| anyhow::anyhow!("{:?}: {}", failure.code, failure.detail))?;
    fill(&file, options)?;

    let metrics = Metrics::new();
    let (storage, publisher): (Arc<dyn Storage>, Arc<dyn Publisher>) = match kind {
        Kind::Native => {
            let storage = NativeStorage::<Outbox<HostDatabase>>::open(storage_config, &databases).await?;
            (Arc::new(storage), Arc::new(NullPublisher))
        }
        Kind::Components => {
            let secrets = BTreeMap::new();
            let host =
                PluginHost::new(PluginHostOptions { cache: config.plugins.cache.clone(), metrics: metrics.clone(), databases, secrets })?;
            let publisher = config.publishers.get("null").context("the publisher is configured")?;
            (host.storage(&options.plugins, storage_config).await?, host.publisher(&options.fixtures, publisher).await?)
        }
    };
    let relay = config.relays.first().context("a relay is configured")?.clone();
    let lanes = Lanes { publisher, lanes: 4, batch: 500, batch_bytes: 4 << 20 };
    let parts = Parts {
        config: relay,
        storage,
        publishers: BTreeMap::from([("null".to_owned(), lanes)]),
        metrics,
        worker: "throughput".to_owned(),
        wake: Arc::default(),
        mode: Mode::Drain,
        health: Arc::default(),
        feeder: None,
        half: None,
    };
    let started = Instant::now();
    let summary = relay::run(parts, Shutdown::default()).await?;
    let elapsed = started.elapsed();
    let rows = u64::try_from(options.rows)?;
    if summary.sent != rows {
        bail!("delivered {} of {rows} rows: {summary:?}", summary.sent);
    }
    Ok(f64::from(u32::try_from(rows)?) / elapsed.as_secs_f64())
}

fn configuration(plugins: &Path, dir: &Path, batch: u32) -> Result<Config> {
    let text = format!(
        "[plugins]\ndir = {plugins:?}\n[databases.main]\nurl = \"sqlite:outbox.db\"\n[storages.outbox]\nplugin = \"sqlite-storage\"\n\
         database = \"main\"\nconfig = {{ table = \"outbox\" }}\n[publishers.null]\nplugin = \"null-publisher\"\n[[relays]]\nname = \"bench\"\n\
         storage = \"outbox\"\nroutes = [ {{ topic = \"*\", publisher = \"null\" }} ]\nbatch = {batch}\n"
    );
    Ok(config::parse(&text, &dir.join("outhaul.toml"))?)
}

fn fill(file: &Path, options: &Options) -> Result<()> {
    let mut connection = Connection::open(file)?;
    let transaction = connection.transaction()?;
    {
        let mut insert = transaction.prepare("INSERT INTO outbox (topic, key, payload) VALUES ('bench', ?1, ?2)")?;
        let payload = vec![b'a'; options.payload];
        for row in 0..options.rows {
            let key = row.checked_rem(options.keys).map(|key| format!("k{key}"));
            insert.execute((key, &payload))?;
        }
    }
    transaction.commit()?;
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); ANALYZE;")?;
    Ok(())
}

/// Memory of this process, as Linux counts it.
fn resident() -> Vec<(&'static str, String)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(|rest| rest.trim().to_owned());
    [("resident now", "VmRSS:"), ("resident at most", "VmHWM:")].into_iter().filter_map(|(name, key)| Some((name, line(key)?))).collect()
}
