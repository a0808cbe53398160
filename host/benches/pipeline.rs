//! The engine alone: messages a second from a storage to a publisher that both cost nothing, in memory.

#![allow(clippy::expect_used, reason = "a bench stops at the first surprise")]

mod support;

use criterion::{BenchmarkId, SamplingMode, Throughput};
use outhaul::bench::native::NullPublisher;
use outhaul::metrics::Metrics;
use outhaul::ports::Storage;
use outhaul::relay::{self, Lanes, Mode, Parts, Shutdown};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::memory::Source;
use support::messages::WORKER;
use support::{configuration, criterion, run, scaled};

/// Bytes of each payload.
const PAYLOAD: usize = 256;

fn main() {
    let mut criterion = criterion();
    let rows = scaled(1000, 100_000);
    let mut group = criterion.benchmark_group("pipeline");
    group.throughput(Throughput::Elements(u64::try_from(rows).expect("a number of rows")));
    group.sample_size(10);
    group.sampling_mode(SamplingMode::Flat);
    for batch in [50, 500] {
        for (name, keys) in [("no keys", None), ("1000 keys", Some(1000)), ("1 key", Some(1))] {
            for (calls, fused) in [("fused", true), ("two calls", false)] {
                let id = BenchmarkId::new(format!("{name}, {calls}"), batch);
                group.bench_function(id, |bencher| {
                    bencher.iter_custom(|times| (0..times).map(|_| drained(Source::new(rows, batch, PAYLOAD, keys, fused), batch)).sum());
                });
            }
        }
    }
    group.finish();
    criterion.final_summary();
}

/// How long a drain takes.
fn drained(source: Source, batch: usize) -> Duration {
    let rows = source.left();
    let source = Arc::new(source);
    let parts = parts(Arc::clone(&source) as Arc<dyn Storage>, batch);
    let started = Instant::now();
    let summary = run(relay::run(parts, Shutdown::default())).expect("a drain");
    let elapsed = started.elapsed();
    assert_eq!((summary.sent, source.settled.load(Ordering::Relaxed)), (u64::try_from(rows).expect("a number of rows"), rows));
    elapsed
}

fn parts(storage: Arc<dyn Storage>, batch: usize) -> Parts {
    let text = format!(
        "[databases.main]\nurl = \"sqlite:outbox.db\"\n[storages.outbox]\nplugin = \"sqlite-storage\"\ndatabase = \"main\"\n\
         [publishers.null]\nplugin = \"null-publisher\"\n[[relays]]\nname = \"bench\"\nstorage = \"outbox\"\n\
         routes = [ {{ topic = \"*\", publisher = \"null\" }} ]\nbatch = {batch}\n"
    );
    let mut config = configuration(&text, Path::new("."));
    let publisher = config.publishers.remove("null").expect("a publisher");
    let lanes =
        Lanes { publisher: Arc::new(NullPublisher), lanes: publisher.lanes, batch: publisher.batch, batch_bytes: publisher.batch_bytes };
    Parts {
        config: config.relays.remove(0),
        storage,
        publishers: BTreeMap::from([("null".to_owned(), lanes)]),
        metrics: Metrics::new(),
        worker: WORKER.to_owned(),
        wake: Arc::default(),
        mode: Mode::Drain,
        health: Arc::default(),
        feeder: None,
        half: None,
    }
}
