//! How long it takes until a component can be opened: read, hashed and linked; and compiled, or loaded from what was compiled before.

#![allow(clippy::expect_used, reason = "a bench stops at the first surprise")]

mod support;

use criterion::{BenchmarkId, SamplingMode, Throughput};
use outhaul::plugin::{Origin, PluginHost};
use std::cell::LazyCell;
use std::path::Path;
use support::{components, criterion, is_smoke, places, run};

/// What a component is.
#[derive(Clone, Copy)]
enum Kind {
    Storage,
    Publisher,
}

fn main() {
    let mut criterion = criterion();
    let folder = tempfile::tempdir().expect("a folder");
    let hosts = [
        ("compiled", components::host(None), false),
        // What is kept is a bench's own, and the first load has compiled it before anything is measured.
        ("from the cache", components::host(Some(folder.path().join("cache"))), true),
    ];
    let mut components = vec![(places::fixtures(), "null-publisher", Kind::Publisher)];
    if !is_smoke() {
        components.push((places::plugins(), "http-publisher", Kind::Publisher));
        components.push((places::plugins(), "sqlite-storage", Kind::Storage));
    }
    for (name, host, keeps) in &hosts {
        let mut group = criterion.benchmark_group(format!("load, {name}"));
        group.sample_size(10);
        group.sampling_mode(SamplingMode::Flat);
        for (directory, plugin, kind) in &components {
            group.throughput(Throughput::Bytes(size(directory, plugin)));
            let first = LazyCell::new(|| load(host, directory, plugin, *kind));
            group.bench_function(BenchmarkId::from_parameter(plugin), |bencher| {
                if *keeps {
                    LazyCell::force(&first);
                }
                bencher.iter(|| load(host, directory, plugin, *kind));
            });
        }
        group.finish();
    }
    criterion.final_summary();
}

fn load(host: &PluginHost, directory: &Path, plugin: &str, kind: Kind) {
    let origin = Origin::first(directory);
    match kind {
        Kind::Storage => drop(run(host.prepare_storage(origin, plugin)).expect("a storage")),
        Kind::Publisher => drop(run(host.prepare_publisher(origin, plugin)).expect("a publisher")),
    }
}

fn size(directory: &Path, plugin: &str) -> u64 {
    outhaul::plugin::file(directory, plugin).metadata().expect("a component").len()
}
