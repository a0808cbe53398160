//! How long one claim of postgres-storage takes, against the size of the table and in its adverse cases; with fresh statistics, and with
//! those of a table that was analysed while it was empty. Run by `cargo xtask claim-times`.
//!
//! HOTWAIT: one waiting row with all others of its key behind it. HEADS: each row the waiting head of a key of its own. INFLIGHT: a
//! thousand keys, whose first rows are leased. In each, a thousand rows that are due stand behind all of that.

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser;
use outhaul::bench::native::HostDatabase;
use outhaul::config;
use outhaul::sql::Databases;
use outhaul_sdk::{ClaimRequest, Failure, Settlement, Verdict};
use outhaul_services::{Major, Postgres};
use postgres::Client;
use postgres_storage::Outbox;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Milliseconds of a claim of postgres-storage against the backlog, with fresh and with stale statistics")]
struct Options {
    /// Rows a claim.
    #[arg(long, value_delimiter = ',', default_values_t = [50, 1000])]
    batch: Vec<u32>,
    /// Claims of each case.
    #[arg(long, default_value_t = 15)]
    claims: usize,
    /// Rows of the largest tables.
    #[arg(long, default_value_t = 1_000_000)]
    most: u32,
}

/// Rows with the SQL of their key, state and due time, which see `i`.
struct Rows {
    count: u32,
    key: &'static str,
    status: &'static str,
    due: &'static str,
}

const DUE: &str = "now()";
const LATER: &str = "now() + interval '1 h'";

fn pending(count: u32) -> Rows {
    Rows { count, key: "'k' || i % 1000", status: "pending", due: DUE }
}

fn cases(most: u32) -> Vec<(String, Vec<Rows>)> {
    let behind = || Rows { count: 1000, key: "'z' || i", status: "pending", due: DUE };
    let waiting = |key, count| Rows { count, key, status: "pending", due: LATER };
    let hot = Rows { count: 100_000, key: "'hot'", status: "pending", due: DUE };
    vec![
        ("10 k pending".to_owned(), vec![pending(10_000)]),
        ("100 k pending".to_owned(), vec![pending(100_000)]),
        (format!("{} k pending", most / 1000), vec![pending(most)]),
        (format!("{} k done, 10 k pending", most / 1000), vec![Rows { status: "done", ..pending(most) }, pending(10_000)]),
        ("HOTWAIT 100 k".to_owned(), vec![waiting("'hot'", 1), hot, behind()]),
        ("HEADS 100 k".to_owned(), vec![waiting("'k' || i", 100_000), behind()]),
        ("INFLIGHT 100 k".to_owned(), vec![waiting("'k' || i", 1000), Rows { key: "'k' || 1 + i % 1000", ..pending(100_000) }, behind()]),
    ]
}

/// What a case came to.
struct Measured {
    median: Duration,
    worst: Duration,
    /// Claims that it took at most to find something.
    to_find: usize,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let server = Postgres::start(Major::V15).context("PostgreSQL cannot be had")?;
    println!("milliseconds a claim, median / worst of {}; in brackets, claims until something was found, if more than one", options.claims);
    let mut heading = format!("{:<28}", "");
    for statistics in ["fresh", "stale"] {
        for batch in &options.batch {
            heading.push_str(&format!("{:>22}", format!("{statistics}, {batch} rows")));
        }
    }
    println!("{heading}");
    for (name, rows) in cases(options.most) {
        let mut line = format!("{name:<28}");
        for stale in [false, true] {
            let database = server.create_database()?;
            let mut client = database.connect()?;
            open(&database.url())?.create_schema().map_err(told)?;
            fill(&mut client, &rows, stale)?;
            for batch in &options.batch {
                let measured = measure(&database.url(), *batch, options.claims)?;
                let millis = |duration: Duration| duration.as_secs_f64() * 1000.0;
                let to_find = if measured.to_find > 1 { format!(" ({})", measured.to_find) } else { String::new() };
                line.push_str(&format!("{:>22}", format!("{:.1} / {:.1}{to_find}", millis(measured.median), millis(measured.worst))));
            }
        }
        println!("{line}");
    }
    Ok(())
}

fn fill(client: &mut Client, rows: &[Rows], stale: bool) -> Result<()> {
    if stale {
        client.batch_execute("ANALYZE outbox; ALTER TABLE outbox SET (autovacuum_enabled = off)")?;
    }
    for Rows { count, key, status, due } in rows {
        client.batch_execute(&format!(
            "INSERT INTO outbox (topic, key, status, available_at, payload) \
             SELECT 't', {key}, '{status}', {due}, convert_to(repeat('a', 256), 'UTF8') FROM generate_series(1, {count}) AS i"
        ))?;
    }
    if !stale {
        client.batch_execute("VACUUM ANALYZE outbox")?;
    }
    client.batch_execute("CHECKPOINT").context("cannot write a checkpoint")
}

fn measure(url: &str, batch: u32, claims: usize) -> Result<Measured> {
    let mut outbox = open(url)?;
    let request = ClaimRequest {
        worker: "w".to_owned(),
        limit: batch,
        max_bytes: 64 << 20,
        lease_ms: 600_000,
        max_attempts: 0,
        max_message_bytes: 1 << 20,
    };
    let mut times = Vec::with_capacity(claims);
    let (mut since, mut to_find) = (0, 0);
    // The first claims prepare the statements and find out how far to look.
    let warm = 3;
    for at in 0.. {
        let started = Instant::now();
        let claimed = outbox.claim(&request).map_err(told)?;
        if at >= warm {
            times.push(started.elapsed());
        }
        since += 1;
        if !claimed.batch.is_empty() {
            to_find = to_find.max(since);
            since = 0;
            let settlement = Settlement { verdict: Verdict::Release(0), ids: claimed.batch.ids };
            let lost = outbox.settle("w", &[settlement]).map_err(told)?;
            ensure!(lost.is_empty(), "leases were lost");
        }
        if times.len() >= claims && to_find > 0 {
            break;
        }
        ensure!(at < 10_000, "nothing was found");
    }
    times.sort_unstable();
    let at = |index: usize| times.get(index).copied().context("there are claims");
    Ok(Measured { median: at(times.len() / 2)?, worst: at(times.len() - 1)?, to_find })
}

fn open(url: &str) -> Result<Outbox<HostDatabase>> {
    let text = format!("[databases.main]\nurl = {url:?}\n");
    let databases = Databases::new(&config::parse(&text, Path::new("outhaul.toml"))?.databases, &BTreeMap::new());
    let connect = |name: &str, access| HostDatabase::open(&databases, name, access);
    Outbox::open(r#"{"database":"main"}"#, connect).map(|(outbox, _)| outbox).map_err(told)
}

fn told(failure: Failure) -> anyhow::Error {
    anyhow!("{:?}: {}", failure.code, failure.detail)
}
