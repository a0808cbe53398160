//! Loading components: the cache, the manifest's key, and components that are not what they should be.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and shows what it saw"
)]

mod plugin_bench;

use outhaul::domain::Outcome;
use outhaul::plugin::{Request, inspect};
use plugin_bench::{Bench, deliver, fixtures, publish};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

/// The fixture `plugin`, changed by `change`, alone in a directory.
fn changed(plugin: &str, change: impl FnOnce(&mut Vec<u8>)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(fixtures().join(format!("{plugin}.wasm"))).unwrap();
    change(&mut bytes);
    std::fs::write(folder.path().join(format!("{plugin}.wasm")), bytes).unwrap();
    folder
}

/// Appends a manifest, as a custom section of the component.
fn with_manifest(bytes: &mut Vec<u8>, manifest: &str) {
    let name = "outhaul-manifest";
    let length = u8::try_from(1 + name.len() + manifest.len()).unwrap();
    assert!(length < 128, "one byte of LEB128");
    bytes.extend_from_slice(&[0, length, u8::try_from(name.len()).unwrap()]);
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(manifest.as_bytes());
}

fn replace(bytes: &mut [u8], from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let mut found = 0;
    for start in 0..bytes.len() - from.len() {
        if bytes[start..].starts_with(from.as_bytes()) {
            bytes[start..start + from.len()].copy_from_slice(to.as_bytes());
            found += 1;
        }
    }
    assert!(found > 0, "{from} is not in it");
}

fn inode(directory: &Path) -> u64 {
    let mut files = std::fs::read_dir(directory).unwrap();
    let file = files.next().unwrap().unwrap();
    assert!(files.next().is_none(), "one file of compiled code");
    file.metadata().unwrap().ino()
}

#[tokio::test(flavor = "multi_thread")]
async fn compiled_code_is_used_again_and_healed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let load = async || {
        let bench = Bench::with_cache(Some(cache.clone()));
        let start = Instant::now();
        let publisher = bench.publisher("null-publisher", |_| {}).await.unwrap();
        let took = start.elapsed();
        assert_eq!(deliver(&*publisher).await, Ok(vec![Outcome::Delivered]));
        took
    };
    let compiled = load().await;
    let first = inode(&cache);
    let cached = load().await;
    println!("compiled in {compiled:?}, loaded in {cached:?}");
    assert_eq!(inode(&cache), first, "not compiled again");
    // One flipped byte: refused, compiled afresh and replaced.
    let file = std::fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
    let mut content = std::fs::read(&file).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    std::fs::write(&file, content).unwrap();
    load().await;
    let healed = inode(&cache);
    assert_ne!(healed, first);
    load().await;
    assert_eq!(inode(&cache), healed);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_keys_are_needed() {
    let bench = Bench::new();
    let folder = changed("evil-publisher", |bytes| with_manifest(bytes, "name = \"evil\"\nrequests = [\"tcp\"]\n"));
    let evil =
        bench.publisher_in(folder.path(), "evil-publisher", |publisher| plugin_bench::granted(publisher, "127.0.0.1", 9)).await.unwrap();
    let outcomes = publish(&*evil, &["http http://127.0.0.1:9/"]).await;
    let Ok([Outcome::Reject(failure)]) = outcomes.as_deref() else { panic!("{outcomes:?}") };
    assert!(failure.detail.contains("does not request \"http\""), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_adapter_of_that_kind_is_refused() {
    let bench = Bench::new();
    let as_storage = bench.storage("null-publisher", |_| {}).await.unwrap_err().to_string();
    assert!(as_storage.contains("null-publisher.wasm is not a storage: it exports outhaul:adapter/publisher@0.1.1"), "{as_storage}");
    let missing = bench.publisher("no-such", |_| {}).await.unwrap_err().to_string();
    assert!(missing.contains("no-such.wasm; it has: evil-publisher, evil-router, evil-storage"), "{missing}");
    let folder = changed("null-publisher", |bytes| bytes.truncate(bytes.len() / 2));
    let cut = bench.publisher_in(folder.path(), "null-publisher", |_| {}).await.unwrap_err().to_string();
    assert!(cut.contains("is truncated or damaged"), "{cut}");
    let folder = changed("evil-publisher", |bytes| replace(bytes, "outhaul:adapter/progress@0.1.1", "outhaul:adapter/telepath@0.1.1"));
    let import = bench.publisher_in(folder.path(), "evil-publisher", |_| {}).await.unwrap_err().to_string();
    assert!(import.contains("needs what this host does not offer") && import.contains("outhaul:adapter/telepath@0.1.1"), "{import}");
    let folder = changed("null-publisher", |bytes| replace(bytes, "outhaul:adapter/publisher@0.1.1", "outhaul:adapter/publisher@0.2.0"));
    let newer = bench.publisher_in(folder.path(), "null-publisher", |_| {}).await.unwrap_err().to_string();
    assert!(newer.contains("exports outhaul:adapter/publisher@0.2.0; this host speaks outhaul:adapter@0.1"), "{newer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_is_inspected_without_being_run() {
    let inspection = inspect(&fixtures().join("evil-storage.wasm")).await.unwrap();
    assert_eq!(inspection.world.as_deref(), Some("storage-adapter-full"));
    assert_eq!(inspection.requests, [Request::Databases]);
    assert_eq!(inspection.sha256.len(), 64);
    let folder = changed("null-publisher", |bytes| with_manifest(bytes, "name = \"null\"\nversion = \"1.2.3\"\nrequests = []\n"));
    let inspection = inspect(&folder.path().join("null-publisher.wasm")).await.unwrap();
    assert_eq!((inspection.name.as_deref(), inspection.version.as_deref()), (Some("null"), Some("1.2.3")));
    assert_eq!(inspection.requests, []);
}
