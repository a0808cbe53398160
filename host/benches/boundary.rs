//! What crossing the boundary to a component costs: publish and claim, by the size of messages and how many there are in a call, and
//! beside each the same code as plain Rust.
//!
//! `publish` is to nowhere, so that nothing but the crossing is left of it. `claim` is that of sqlite-storage, SQL and all: what the
//! component adds to that is the difference.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a bench stops at the first surprise")]

mod support;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use outhaul::bench::native::NullPublisher;
use outhaul::domain::Batch;
use outhaul::ports::{Publisher, Storage};
use std::cell::LazyCell;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::messages::{RELEASE, WORKER, batch, call, request, settlement};
use support::table::{Rows, STRICT, Table};
use support::{components, configuration, criterion, natives, run};

const PAYLOADS: [(&str, usize); 3] = [("256 B", 256), ("1 KiB", 1 << 10), ("16 KiB", 16 << 10)];

const BATCHES: [usize; 3] = [1, 50, 500];

/// Rows of the table that is claimed from: enough for the largest claim, and few enough that the search is not what is measured.
const ROWS: usize = 1000;

fn main() {
    let mut criterion = criterion();
    publish(&mut criterion);
    claim(&mut criterion);
    criterion.final_summary();
}

fn publish(criterion: &mut Criterion) {
    let component = LazyCell::new(|| {
        let config = configuration("[publishers.null]\nplugin = \"null-publisher\"\n", Path::new("."));
        run(components::null_publisher(&config))
    });
    let mut group = criterion.benchmark_group("publish");
    for (size, payload) in PAYLOADS {
        for count in BATCHES {
            let batch = LazyCell::new(|| batch(0..count, payload, Some(100)));
            bench(&mut group, &format!("component, {size}"), count, |times| published(&**component, &batch, times));
            bench(&mut group, &format!("native, {size}"), count, |times| published(&NullPublisher, &batch, times));
        }
    }
    group.finish();
}

/// A table, and its storage as plain Rust.
struct Both {
    table: Table,
    native: Arc<dyn Storage>,
}

fn claim(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("claim");
    for (size, payload) in PAYLOADS {
        let both = LazyCell::new(|| {
            let table = Table::sqlite(STRICT, Rows { count: ROWS, payload, keys: 100 });
            let native = run(natives::storage(&table.config));
            Both { table, native }
        });
        for count in BATCHES {
            bench(&mut group, &format!("component, {size}"), count, |times| claimed(&*both.table.storage, count, times));
            bench(&mut group, &format!("native, {size}"), count, |times| claimed(&*both.native, count, times));
        }
    }
    group.finish();
}

fn bench(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, count: usize, mut measured: impl FnMut(u64) -> Duration) {
    group.throughput(Throughput::Elements(u64::try_from(count).expect("a number of messages")));
    group.bench_function(BenchmarkId::new(name, count), |bencher| bencher.iter_custom(&mut measured));
}

/// How long so many calls take.
fn published(publisher: &dyn Publisher, batch: &Batch, times: u64) -> Duration {
    run(async {
        let mut taken = Duration::ZERO;
        for _ in 0..times {
            let (batch, (call, _reports)) = (batch.clone(), call());
            let count = batch.len();
            let started = Instant::now();
            let outcomes = publisher.publish(batch, call).await.expect("outcomes");
            taken += started.elapsed();
            assert_eq!(outcomes.len(), count);
        }
        taken
    })
}

/// How long so many claims take. What they leased is handed back in between.
fn claimed(storage: &dyn Storage, count: usize, times: u64) -> Duration {
    let request = request(count);
    run(async {
        let mut taken = Duration::ZERO;
        for _ in 0..times {
            let started = Instant::now();
            let claimed = storage.claim(&request).await.expect("a claim");
            taken += started.elapsed();
            assert_eq!(claimed.batch.len(), count);
            let lost = storage.settle(WORKER, &settlement(RELEASE, claimed.batch.ids)).await.expect("a settle");
            assert!(lost.is_empty(), "no longer held: {lost:?}");
        }
        taken
    })
}
