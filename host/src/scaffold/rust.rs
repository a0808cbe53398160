//! What a new adapter in Rust needs besides its own files: the SDK, the WIT, and a workspace that holds both.
//!
//! The SDK and the example say `workspace = true` for what this repository decides for all its crates; the new workspace gets those
//! decisions, as far as the two need them, from the embedded manifest of the repository.

use toml::{Table, Value};

/// The SDK as it is here, at the same paths: its bindings are made from `wit/` two folders up.
const SDK: &[(&str, &str)] = &super::templates::files![
    "../../../",
    "sdk/rust/Cargo.toml",
    "sdk/rust/src/batch.rs",
    "sdk/rust/src/bindings.rs",
    "sdk/rust/src/config.rs",
    "sdk/rust/src/database/failure.rs",
    "sdk/rust/src/database/mod.rs",
    "sdk/rust/src/export.rs",
    "sdk/rust/src/failure.rs",
    "sdk/rust/src/fan_out.rs",
    "sdk/rust/src/host.rs",
    "sdk/rust/src/key_order.rs",
    "sdk/rust/src/lib.rs",
    "sdk/rust/src/manifest.rs",
    "sdk/rust/src/net.rs",
    "sdk/rust/src/pattern.rs",
    "sdk/rust/src/publisher.rs",
    "sdk/rust/src/router.rs",
    "sdk/rust/src/storage.rs",
    "sdk/rust/src/template.rs",
    "sdk/rust/src/testing/host.rs",
    "sdk/rust/src/testing/mod.rs",
    "sdk/rust/src/testing/publisher.rs",
    "sdk/rust/src/testing/router.rs",
    "sdk/rust/src/testing/sqlite.rs",
    "sdk/rust/src/testing/storage.rs",
    "sdk/rust/src/tls/mod.rs",
    "sdk/rust/src/tls/tcp.rs",
    "sdk/rust/src/wait.rs",
    "sdk/rust/wit/README.md",
    "sdk/rust/wit/tls/deps/io.wit",
    "sdk/rust/wit/tls/types.wit",
    "sdk/rust/wit/tls/world.wit",
    "sdk/rust/worlds/full/Cargo.toml",
    "sdk/rust/worlds/full/src/lib.rs",
    "sdk/rust/worlds/minimal/Cargo.toml",
    "sdk/rust/worlds/minimal/src/lib.rs",
    "wit/fan-out.wit",
    "wit/outbox.wit"
];

/// This repository's manifest.
const REPOSITORY: &str = include_str!("../../../Cargo.toml");

/// Names that no crate can have: keywords (Rust reference, "Keywords"; cargo refuses them too), and the crates of the language itself.
const LANGUAGE: &str = "abstract alloc as async await become box break const continue core crate do dyn else enum extern false final fn for gen if \
    impl in let loop macro match mod move mut override priv proc-macro pub ref return self static std struct super test trait \
    true try type typeof unsafe unsized use virtual where while yield";

/// Whether a crate of the language or of this repository's dependencies has that name: no second one in its workspace could.
pub(super) fn is_taken(name: &str) -> bool {
    let mut known = Vec::new();
    if let Ok(repository) = REPOSITORY.parse::<Table>() {
        dependencies(&repository, &mut known);
    }
    LANGUAGE.split(' ').any(|word| word == name) || known.iter().any(|known| known == name)
}

/// Adds the workspace to the adapter's manifest, and returns the files beside it.
pub(super) fn more(files: &mut [(String, Vec<u8>)]) -> Vec<(String, Vec<u8>)> {
    for (path, content) in files.iter_mut() {
        if path == "Cargo.toml" {
            content.extend(workspace(&String::from_utf8_lossy(content)).into_bytes());
        }
    }
    SDK.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec())).collect()
}

/// The tables of the new workspace, as TOML after the manifest of its package. Both manifests are embedded, and a test builds the result.
fn workspace(package: &str) -> String {
    let parse = |text: &str| text.parse::<Table>().unwrap_or_default();
    let repository = parse(REPOSITORY);
    let section = |name: &str| {
        repository.get("workspace").and_then(|workspace| workspace.get(name)).and_then(Value::as_table).cloned().unwrap_or_default()
    };
    let mut used = Vec::new();
    for (path, text) in SDK {
        if path.ends_with("Cargo.toml") {
            dependencies(&parse(text), &mut used);
        }
    }
    dependencies(&parse(package), &mut used);
    let mut versions = section("dependencies");
    versions.retain(|name, _| used.iter().any(|used| used == name));
    let sdk = Table::from_iter([("path".to_owned(), Value::from("sdk/rust"))]);
    versions.insert("outhaul-sdk".to_owned(), sdk.into());

    let mut workspace = Table::new();
    workspace.insert("members".to_owned(), Value::from(vec!["sdk/rust", "sdk/rust/worlds/full", "sdk/rust/worlds/minimal"]));
    workspace.insert("resolver".to_owned(), Value::from("3"));
    workspace.insert("package".to_owned(), section("package").into());
    workspace.insert("dependencies".to_owned(), versions.into());
    workspace.insert("lints".to_owned(), section("lints").into());
    // Small, and quick to compile by the host.
    let mut profile =
        repository.get("profile").and_then(|profiles| profiles.get("guest")).and_then(Value::as_table).cloned().unwrap_or_default();
    profile.remove("inherits");
    let profiles = Table::from_iter([("release".to_owned(), Value::from(profile))]);
    let tables = Table::from_iter([("workspace".to_owned(), Value::from(workspace)), ("profile".to_owned(), Value::from(profiles))]);
    format!("\n# The workspace of this adapter and its copy of the SDK.\n{tables}")
}

/// The names of a manifest's dependencies, wherever they are.
fn dependencies(manifest: &Table, names: &mut Vec<String>) {
    for (key, value) in manifest {
        let Some(table) = value.as_table() else { continue };
        if matches!(key.as_str(), "dependencies" | "dev-dependencies") {
            names.extend(table.keys().cloned());
        } else {
            dependencies(table, names);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_has_what_its_two_crates_ask_for() {
        let package = include_str!("../../../examples/publishers/rust/Cargo.toml");
        let made: Table = format!("{package}{}", workspace(package)).parse().unwrap();
        let versions = made["workspace"]["dependencies"].as_table().unwrap();
        for name in ["outhaul-sdk", "percent-encoding", "serde", "serde_json", "wasip2", "wit-bindgen"] {
            assert!(versions.contains_key(name), "{name}");
        }
        assert_eq!(versions["outhaul-sdk"]["path"].as_str(), Some("sdk/rust"));
        assert!(!versions.contains_key("wasmtime"));
        assert!(made["workspace"]["package"]["edition"].is_str() && made["workspace"]["lints"]["clippy"].is_table());
        assert_eq!(made["profile"]["release"]["opt-level"].as_str(), Some("s"));
    }

    #[test]
    fn every_file_of_the_sdk_is_there() {
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/rust"));
        let mut pending = vec![root.to_owned()];
        while let Some(path) = pending.pop() {
            if path.is_dir() {
                pending.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else {
                let name = format!("sdk/rust/{}", path.strip_prefix(root).unwrap().display());
                assert!(SDK.iter().any(|(path, _)| *path == name), "{name} is not embedded");
            }
        }
    }
}
