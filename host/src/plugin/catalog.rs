//! The directory of components: `NAME.wasm`, found, read and looked at before anything is compiled.

use super::manifest::Anatomy;
use super::{Origin, PluginError};
use crate::oci::{Component, MAX_COMPONENT_BYTES};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::io;
use std::path::{Path, PathBuf};

/// Names that an error lists at most.
const MAX_LISTED: usize = 20;

/// A component's file, read.
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) bytes: Bytes,
    /// SHA-256, in hexadecimal.
    pub(super) digest: String,
    pub(super) anatomy: Anatomy,
}

/// The file of a plugin.
pub(super) fn path(directory: &Path, plugin: &str) -> PathBuf {
    directory.join(format!("{plugin}.wasm"))
}

/// Reads `<directory>/<plugin>.wasm`, or takes what was pulled. With pins, what they do not have is refused before anything in it is
/// looked at.
pub(super) async fn find(origin: Origin<'_>, plugin: &str) -> Result<File, PluginError> {
    let (path, bytes, digest) = match origin.pulled {
        Some(Component { path, digest, bytes }) => (path.clone(), bytes.clone(), digest.hex()),
        None => in_directory(origin.directory, plugin).await?,
    };
    if let Some(read) = origin.read {
        read.get_or_init(|| digest.clone());
    }
    if let Some(pins) = origin.pins
        && pins.of(plugin) != Some(&digest)
    {
        let (pinned, pins) = (pins.of(plugin).map(str::to_owned), pins.file.clone());
        return Err(PluginError::Pinned { path, found: digest, pinned, pins });
    }
    take_apart(path, bytes, digest)
}

async fn in_directory(directory: &Path, plugin: &str) -> Result<(PathBuf, Bytes, String), PluginError> {
    // The name comes from the configuration and stays in the directory.
    if plugin.is_empty() || plugin.starts_with('.') || plugin.contains(['/', '\\', '\0']) {
        return Err(PluginError::Name { plugin: plugin.to_owned() });
    }
    let path = path(directory, plugin);
    match bytes(&path).await {
        Ok((bytes, digest)) => Ok((path, bytes.into(), digest)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(PluginError::Missing { path, present: present(directory).await }),
        Err(error) => Err(PluginError::Read { path, error }),
    }
}

/// Reads a component's file.
pub(super) async fn read(path: &Path) -> Result<File, PluginError> {
    let (bytes, digest) = bytes(path).await.map_err(|error| PluginError::Read { path: path.to_owned(), error })?;
    take_apart(path.to_owned(), bytes.into(), digest)
}

pub(super) fn take_apart(path: PathBuf, bytes: Bytes, digest: String) -> Result<File, PluginError> {
    match Anatomy::read(&bytes) {
        Ok(anatomy) => Ok(File { path, bytes, digest, anatomy }),
        Err(fault) => Err(PluginError::Component { path, fault }),
    }
}

/// The content of a file that may be a component, and its SHA-256 in hexadecimal. Not on the threads that run calls: hashing a large
/// one takes tens of milliseconds.
pub(super) async fn bytes(path: &Path) -> io::Result<(Vec<u8>, String)> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let metadata = std::fs::metadata(&path)?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        if metadata.len() > MAX_COMPONENT_BYTES {
            return Err(io::Error::other(format!("it is larger than {MAX_COMPONENT_BYTES} bytes")));
        }
        let bytes = std::fs::read(&path)?;
        let digest = digest(&bytes);
        Ok((bytes, digest))
    });
    read.await.map_err(io::Error::other)?
}

/// SHA-256 in hexadecimal.
pub(super) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is in the directory, in words.
async fn present(directory: &Path) -> String {
    let mut names = Vec::new();
    let mut entries = match tokio::fs::read_dir(directory).await {
        Ok(entries) => entries,
        Err(error) => return format!("the directory cannot be read: {error}"),
    };
    while let Ok(Some(entry)) = entries.next_entry().await {
        let name = entry.file_name();
        if let Some(name) = name.to_string_lossy().strip_suffix(".wasm") {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    match names.len() {
        0 => "the directory has no component".to_owned(),
        found if found > MAX_LISTED => format!("it has {found} components, none of that name"),
        _ => format!("it has: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::pins::Pins;
    use super::*;

    async fn fault(directory: &Path, plugin: &str) -> String {
        find(Origin::first(directory), plugin).await.err().unwrap().to_string()
    }

    #[tokio::test]
    async fn what_cannot_be_an_adapter_is_told_clearly() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        assert!(fault(directory, "a").await.contains("the directory has no component"));
        std::fs::write(directory.join("text.wasm"), "hello").unwrap();
        std::fs::write(directory.join("core.wasm"), b"\0asm\x01\0\0\0").unwrap();
        std::fs::write(directory.join("cut.wasm"), b"\0asm\x0d\0").unwrap();
        std::fs::create_dir(directory.join("folder.wasm")).unwrap();
        assert!(fault(directory, "a").await.contains("it has: core, cut, folder, text"));
        assert!(fault(directory, "text").await.contains("is not WebAssembly"));
        assert!(fault(directory, "core").await.contains("is a core module, not a component"));
        assert!(fault(directory, "cut").await.contains("is truncated or damaged"));
        assert!(fault(directory, "folder").await.contains("not a regular file"));
        assert!(fault(&directory.join("none"), "a").await.contains("cannot be read"));
        for name in ["../text", "", ".hidden", "a/b"] {
            assert!(fault(directory, name).await.contains("is not a component's name"), "{name}");
        }
    }

    #[tokio::test]
    async fn what_is_not_pinned_is_refused_before_it_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.wasm"), "hello").unwrap();
        let told = async |pins: &Pins| {
            let origin = Origin { pins: Some(pins), ..Origin::first(folder.path()) };
            find(origin, "a").await.err().unwrap().to_string()
        };
        let mut pins = Pins { file: "outhaul.lock".into(), plugins: [].into() };
        let text = told(&pins).await;
        assert!(text.contains("is not pinned in outhaul.lock") && text.contains("outhaul plugin pin"), "{text}");
        let pin = |sha256: String| ("a".to_owned(), super::super::pins::Pin { sha256, version: None });
        pins.plugins = [pin("0".repeat(64))].into();
        let text = told(&pins).await;
        assert!(text.contains("is not the component that outhaul.lock pins") && text.contains("2cf24dba5fb0a30e"), "{text}");
        pins.plugins = [pin(digest(b"hello"))].into();
        assert!(told(&pins).await.contains("is not WebAssembly"));
    }

    #[tokio::test]
    async fn what_was_read_is_known_whatever_becomes_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let pins = Pins { file: "outhaul.lock".into(), plugins: std::collections::BTreeMap::new() };
        std::fs::write(folder.path().join("a.wasm"), "no component").unwrap();
        for pins in [None, Some(&pins)] {
            let read = std::sync::OnceLock::new();
            let origin = Origin { pins, read: Some(&read), ..Origin::first(folder.path()) };
            assert!(find(origin, "a").await.is_err());
            assert_eq!(read.get(), Some(&digest(b"no component")));
        }
        let read = std::sync::OnceLock::new();
        assert!(find(Origin { read: Some(&read), ..Origin::first(folder.path()) }, "b").await.is_err());
        assert_eq!(read.get(), None);
    }
}
