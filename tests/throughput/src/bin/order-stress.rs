//! Order per key under stress, at the storage alone: several hosts claim from one PostgreSQL table, fail, hand back, crash and lose their
//! leases at random, and every delivery is checked against what had ended before it. Then the same with the chain check left out of the
//! claim, which must find violations: else the check proves nothing. Run by `cargo xtask order-stress`.

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Parser;
use outbox_table::database::{Access, Database, Rows, SqlError, Statement, Transaction};
use outbox_table::random::Random;
use outhaul::bench::native::HostDatabase;
use outhaul::config;
use outhaul::sql::Databases;
use outhaul_sdk::{Batch, ClaimRequest, Column, Failure, FailureCode, Retry, Settlement, Verdict};
use outhaul_services::{Major, Postgres};
use postgres_storage::Outbox;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Order per key of postgres-storage under failures, crashes and lost leases, with and without its chain check")]
struct Options {
    /// Rows of each run.
    #[arg(long, default_value_t = 20_000)]
    rows: usize,
    /// Rows a claim, at most.
    #[arg(long, default_value_t = 200)]
    batch: u32,
    /// Hosts, each with connections of its own.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 8])]
    workers: Vec<u64>,
    /// Keys.
    #[arg(long, value_delimiter = ',', default_values_t = [3, 20, 1000])]
    keys: Vec<usize>,
    /// Of 100 deliveries, so many fail.
    #[arg(long, default_value_t = 15)]
    fail: usize,
    /// Of 100 batches, so many are left behind by a host that crashes or hangs.
    #[arg(long, default_value_t = 4)]
    crash: usize,
    /// Repeat a run: same choices, as far as the machine allows.
    #[arg(long)]
    seed: Option<u64>,
}

/// Present in each claim of strict order: what is taken out to see whether it is missed.
const CHAIN: &str = " AND (g.key IS NULL OR g.chain)";

/// How often a chain check was taken out.
static TAKEN_OUT: AtomicUsize = AtomicUsize::new(0);

/// The host's database, with or without the chain check in what it is asked to run.
struct Tampered {
    inner: HostDatabase,
    chain: bool,
}

struct TamperedTransaction {
    inner: <HostDatabase as Database>::Transaction,
    chain: bool,
}

fn tamper(chain: bool, mut statements: Vec<Statement>) -> Vec<Statement> {
    for statement in statements.iter_mut().filter(|statement| !chain && statement.sql.contains(CHAIN)) {
        statement.sql = statement.sql.replace(CHAIN, "");
        TAKEN_OUT.fetch_add(1, Ordering::Relaxed);
    }
    statements
}

impl Database for Tampered {
    type Transaction = TamperedTransaction;
    fn execute(&self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        self.inner.execute(tamper(self.chain, statements))
    }
    fn begin(&self, statements: Vec<Statement>) -> Result<(TamperedTransaction, Vec<Rows>), SqlError> {
        let (inner, rows) = self.inner.begin(tamper(self.chain, statements))?;
        Ok((TamperedTransaction { inner, chain: self.chain }, rows))
    }
}

impl Transaction for TamperedTransaction {
    fn execute(&self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        self.inner.execute(tamper(self.chain, statements))
    }
    fn commit(self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        self.inner.commit(tamper(self.chain, statements))
    }
}

/// What reached the receiver.
#[derive(Default)]
struct Receiver {
    /// What has not been delivered yet, by key.
    open: BTreeMap<String, BTreeSet<i64>>,
    ended: HashSet<i64>,
    violations: usize,
    again: usize,
}

impl Receiver {
    /// A message is delivered: every earlier one of its key must have been.
    fn deliver(&mut self, key: &str, id: i64) {
        if !self.ended.insert(id) {
            self.again += 1;
            return;
        }
        if let Some(open) = self.open.get_mut(key) {
            self.violations += usize::from(open.first().is_some_and(|first| *first < id));
            open.remove(&id);
        }
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let server = Postgres::start(Major::V15).context("PostgreSQL cannot be had")?;
    let seed = options.seed.unwrap_or_else(|| Random::from_system().next_u64());
    println!(
        "{} rows, at most {} a claim; {} % fail, {} % of the batches are left behind; seed {seed}",
        options.rows, options.batch, options.fail, options.crash
    );
    println!("{:>8} {:>6} {:>11} {:>8} {:>10} {:>9}", "workers", "keys", "chain", "rows/s", "violations", "twice");
    let mut missed = 0;
    for chain in [true, false] {
        for workers in &options.workers {
            for keys in &options.keys {
                let (receiver, elapsed) = run(&server, &options, *workers, *keys, chain, seed)?;
                let rate = f64::from(u32::try_from(options.rows)?) / elapsed.as_secs_f64();
                let name = if chain { "checked" } else { "left out" };
                println!("{workers:>8} {keys:>6} {name:>11} {rate:>8.0} {:>10} {:>9}", receiver.violations, receiver.again);
                ensure!(receiver.ended.len() == options.rows, "{} of {} rows delivered", receiver.ended.len(), options.rows);
                ensure!(!chain || receiver.violations == 0, "the order of keys was violated");
                missed += if chain { 0 } else { receiver.violations };
            }
        }
    }
    ensure!(TAKEN_OUT.load(Ordering::Relaxed) > 0, "the claim has no chain check where this program looks for it");
    ensure!(missed > 0, "without the chain check there were no violations either: this run proves nothing");
    Ok(())
}

fn run(server: &Postgres, options: &Options, workers: u64, keys: usize, chain: bool, seed: u64) -> Result<(Receiver, Duration)> {
    let database = server.create_database()?;
    let mut client = database.connect()?;
    open(&database.url(), true)?.create_schema().map_err(told)?;
    let rows = client.query(
        "INSERT INTO outbox (topic, key, payload) SELECT 't', 'k' || floor(random() * $2::float8), convert_to(repeat('a', 256), 'UTF8') \
         FROM generate_series(1, $1) RETURNING id, key",
        &[&i32::try_from(options.rows)?, &f64::from(u32::try_from(keys)?)],
    )?;
    client.batch_execute("VACUUM ANALYZE outbox")?;
    let mut receiver = Receiver::default();
    for row in &rows {
        receiver.open.entry(row.get(1)).or_default().insert(row.get(0));
    }
    let receiver = Mutex::new(receiver);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let hosts: Vec<_> = (0..workers)
            .map(|worker| {
                let (url, receiver) = (database.url(), &receiver);
                let random = Random::seeded(seed.wrapping_add(worker));
                scope.spawn(move || work(&url, options, worker, random, chain, receiver))
            })
            .collect();
        hosts.into_iter().try_for_each(|host| host.join().map_err(|_| anyhow!("a host panicked"))?)
    })?;
    let elapsed = started.elapsed();
    Ok((receiver.into_inner().unwrap_or_else(PoisonError::into_inner), elapsed))
}

/// One host, until everything has ended.
fn work(url: &str, options: &Options, worker: u64, mut random: Random, chain: bool, receiver: &Mutex<Receiver>) -> Result<()> {
    let mut outbox = open(url, chain)?;
    for life in 0_u32.. {
        let name = format!("w{worker}-{life}");
        loop {
            let limit = 1 + u32::try_from(random.below(usize::try_from(options.batch)?))?;
            let request = ClaimRequest {
                worker: name.clone(),
                limit,
                max_bytes: 16 << 20,
                lease_ms: 60_000,
                max_attempts: 0,
                max_message_bytes: 1 << 20,
            };
            let batch = outbox.claim(&request).map_err(told)?.batch;
            if batch.is_empty() {
                if outbox.stats().map_err(told)?.pending == 0 {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            if random.below(100) < options.crash {
                // A host that crashed says nothing more, whatever it has delivered; one that hung hands its rows back, too late.
                let crashed = random.below(2) == 0;
                if crashed && random.below(2) == 0 {
                    publish(&batch, options, &mut random, receiver)?;
                }
                // Its leases end, as they do while nobody renews them.
                end_leases(&mut outbox, &name, &ids(&batch))?;
                if crashed {
                    break;
                }
                std::thread::yield_now();
                outbox.settle(&name, &[Settlement { verdict: Verdict::Release(0), ids: ids(&batch) }]).map_err(told)?;
                continue;
            }
            let settlements = publish(&batch, options, &mut random, receiver)?;
            outbox.settle(&name, &settlements).map_err(told)?;
        }
    }
    Ok(())
}

/// Delivers a batch as a publisher does: what follows a failed message of its key is handed back.
fn publish(batch: &Batch, options: &Options, random: &mut Random, receiver: &Mutex<Receiver>) -> Result<Vec<Settlement>> {
    let (mut delivered, mut retried, mut released) = (Column::new(), Column::new(), Column::new());
    let mut stopped = HashSet::new();
    for message in batch.messages() {
        let (id, key) = (message.id(), message.key().unwrap_or_default());
        if stopped.contains(key) {
            released.push(Some(id.as_bytes()));
        } else if random.below(100) < options.fail {
            stopped.insert(key);
            retried.push(Some(id.as_bytes()));
        } else {
            let Ok(number) = id.parse() else { bail!("`{id}` is no id of the table") };
            receiver.lock().unwrap_or_else(PoisonError::into_inner).deliver(key, number);
            delivered.push(Some(id.as_bytes()));
        }
    }
    let delay_ms = 5 + u64::try_from(random.below(30))?;
    let retry = Verdict::Retry(Retry { failure: Failure::of(FailureCode::Unavailable, "chosen to fail"), delay_ms });
    let all = [(Verdict::Delivered, delivered), (retry, retried), (Verdict::Release(0), released)];
    Ok(all.into_iter().filter(|(_, ids)| !ids.is_empty()).map(|(verdict, ids)| Settlement { verdict, ids }).collect())
}

/// Lets leases end now. A renewal does not wait for locks, and another host that has just looked at the rows may hold them for a moment.
fn end_leases(outbox: &mut Outbox<Tampered>, worker: &str, ids: &Column) -> Result<()> {
    loop {
        match outbox.extend(worker, ids, 0) {
            Err(Failure { code: FailureCode::Timeout, .. }) => std::thread::sleep(Duration::from_millis(1)),
            ended => return ended.map(drop).map_err(told),
        }
    }
}

fn ids(batch: &Batch) -> Column {
    batch.ids.clone()
}

fn open(url: &str, chain: bool) -> Result<Outbox<Tampered>> {
    let text = format!("[databases.main]\nurl = {url:?}\n");
    let databases = Databases::new(&config::parse(&text, Path::new("outhaul.toml"))?.databases, &BTreeMap::new());
    let connect = |name: &str, access: Access| Ok(Tampered { inner: HostDatabase::open(&databases, name, access)?, chain });
    Outbox::open(r#"{"database":"main"}"#, connect).map(|(outbox, _)| outbox).map_err(told)
}

fn told(failure: Failure) -> anyhow::Error {
    anyhow!("{:?}: {}", failure.code, failure.detail)
}
