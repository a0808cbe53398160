//! Claims and settles of sqlite-storage and postgres-storage, by the SQL that their configuration leads to and by backlog: 1000 rows,
//! 100,000, and as many more as the environment variable `CLAIM_SQL_BACKLOG` says. Through their components, which is how they run; what that costs is in the bench `boundary`.
//!
//! PostgreSQL is the shared server of the tests. Where there is none, that is said, and SQLite is measured alone.

#![allow(clippy::expect_used, reason = "a bench stops at the first surprise")]

mod support;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use outhaul::domain::{Column, Verdict};
use outhaul::ports::{ClaimRequest, Storage as _};
use outhaul_services::{Major, Postgres};
use std::cell::LazyCell;
use std::time::{Duration, Instant};
use support::messages::{RELEASE, WORKER, request, settlement};
use support::table::{Form, Rows, STRICT, Shape, Table};
use support::{criterion, is_smoke, run};

/// Rows a claim.
const BATCH: usize = 50;

/// After so many turns the table is tidied.
const TIDY: u64 = 100;

/// Measured too, where it is set: filling tables of a million rows takes minutes.
const MORE: &str = "CLAIM_SQL_BACKLOG";

const PLAIN: Form = Form { strict: false, ..STRICT };
const DELETE: Form = Form { delete: true, ..STRICT };
const MAPPED: Form = Form { shape: Shape::Mapped, ..STRICT };
const LEASE_TABLE: Form = Form { shape: Shape::LeaseTable, ..STRICT };

fn main() {
    let mut criterion = criterion();
    let backlogs = if is_smoke() { vec![("small".to_owned(), 200)] } else { backlogs() };
    let server = server();
    for (name, backlog) in backlogs {
        // Ten rows a key at least, so that there is an order to keep.
        let rows = Rows { count: backlog, payload: 256, keys: (backlog / 10).min(1000) };
        measure(&mut criterion, "sqlite", &name, true, &|form| Table::sqlite(form, rows));
        if let Some(server) = &server {
            measure(&mut criterion, "postgres", &name, false, &|form| Table::postgres(server, form, rows));
        }
    }
    criterion.final_summary();
}

/// Each by its name.
fn backlogs() -> Vec<(String, usize)> {
    let mut backlogs = vec![("1k".to_owned(), 1000), ("100k".to_owned(), 100_000)];
    if let Ok(more) = std::env::var(MORE) {
        let rows = more.parse().ok().filter(|rows| *rows >= 200);
        backlogs.push((more, rows.expect("CLAIM_SQL_BACKLOG is a number of rows, 200 at least")));
    }
    backlogs
}

/// Said of this program by the name of the thread, where there is none.
fn server() -> Option<Postgres> {
    let look = std::thread::Builder::new().name("claim_sql of PostgreSQL".to_owned());
    look.spawn(|| outhaul_services::postgres(Major::V17)).expect("a thread").join().expect("PostgreSQL, as CI=true")
}

/// Tables are made when the first bench that needs them runs: a filter may leave all of them out.
fn measure(criterion: &mut Criterion, database: &str, backlog: &str, has_fused: bool, table: &dyn Fn(Form) -> Table) {
    for (form, shape) in [("strict", STRICT), ("plain", PLAIN), ("mapped", MAPPED), ("lease table", LEASE_TABLE)] {
        let table = LazyCell::new(|| table(shape));
        bench(criterion, &format!("claim, {database}"), form, backlog, |times| claims(&table, times));
    }
    for (form, shape) in [("mark", STRICT), ("delete", DELETE), ("mapped", MAPPED), ("lease table", LEASE_TABLE)] {
        let table = LazyCell::new(|| table(shape));
        bench(criterion, &format!("settle, {database}"), form, backlog, |times| settles(&table, times));
        if has_fused {
            bench(criterion, &format!("settle and claim, {database}"), form, backlog, |times| turns(&table, times));
        }
    }
}

fn bench(criterion: &mut Criterion, group: &str, form: &str, backlog: &str, mut measured: impl FnMut(u64) -> Duration) {
    let mut group: BenchmarkGroup<'_, WallTime> = criterion.benchmark_group(group);
    group.throughput(Throughput::Elements(u64::try_from(BATCH).expect("a number of rows")));
    group.bench_function(BenchmarkId::new(form, backlog), |bencher| bencher.iter_custom(&mut measured));
    group.finish();
}

/// How long so many claims take. What they leased is handed back in between.
fn claims(table: &Table, times: u64) -> Duration {
    let request = request(BATCH);
    let mut taken = Duration::ZERO;
    for turn in 1..=times {
        let started = Instant::now();
        let ids = claim(table, &request);
        taken += started.elapsed();
        settle(table, RELEASE, ids);
        tidy(table, turn);
    }
    taken
}

/// How long it takes to write so many times that a claim was delivered. As many rows are written in between.
fn settles(table: &Table, times: u64) -> Duration {
    let request = request(BATCH);
    let mut taken = Duration::ZERO;
    for turn in 1..=times {
        let ids = claim(table, &request);
        let started = Instant::now();
        settle(table, Verdict::Delivered, ids);
        taken += started.elapsed();
        table.add(BATCH);
        tidy(table, turn);
    }
    taken
}

/// How long so many fused calls take. As many rows as each has settled are written in between.
fn turns(table: &Table, times: u64) -> Duration {
    let request = request(BATCH);
    let mut ids = claim(table, &request);
    let mut taken = Duration::ZERO;
    for turn in 1..=times {
        let settlements = settlement(Verdict::Delivered, ids);
        let started = Instant::now();
        let done = run(table.storage.settle_and_claim(&settlements, &request)).expect("a fused call");
        taken += started.elapsed();
        assert_eq!((done.lost.len(), done.claimed.batch.len()), (0, BATCH));
        ids = done.claimed.batch.ids;
        table.add(BATCH);
        tidy(table, turn);
    }
    settle(table, RELEASE, ids);
    taken
}

fn claim(table: &Table, request: &ClaimRequest) -> Column {
    let claimed = run(table.storage.claim(request)).expect("a claim");
    assert_eq!(claimed.batch.len(), BATCH, "{claimed:?}");
    claimed.batch.ids
}

fn settle(table: &Table, verdict: Verdict, ids: Column) {
    let lost = run(table.storage.settle(WORKER, &settlement(verdict, ids))).expect("a settle");
    assert!(lost.is_empty(), "no longer held: {lost:?}");
}

fn tidy(table: &Table, turn: u64) {
    if turn.is_multiple_of(TIDY) {
        table.tidy();
    }
}
