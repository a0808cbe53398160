//! The directory of components: `NAME.wasm`, found, read and looked at before anything is compiled.

use super::PluginError;
use super::manifest::Anatomy;
use sha2::{Digest, Sha256};
use std::io;
use std::path::{Path, PathBuf};

/// Largest component that is read, in bytes: the largest language runtimes are below 20 MiB.
const MAX_BYTES: u64 = 256 << 20;

/// Names that an error lists at most.
const MAX_LISTED: usize = 20;

/// A component's file, read.
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) bytes: Vec<u8>,
    /// SHA-256, in hexadecimal.
    pub(super) digest: String,
    pub(super) anatomy: Anatomy,
}

/// Reads `<directory>/<plugin>.wasm`.
pub(super) async fn find(directory: &Path, plugin: &str) -> Result<File, PluginError> {
    // The name comes from the configuration and stays in the directory.
    if plugin.is_empty() || plugin.starts_with('.') || plugin.contains(['/', '\\', '\0']) {
        return Err(PluginError::Name { plugin: plugin.to_owned() });
    }
    let path = directory.join(format!("{plugin}.wasm"));
    match read(&path).await {
        Err(PluginError::Read { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
            Err(PluginError::Missing { path, present: present(directory).await })
        }
        other => other,
    }
}

/// Reads a component's file.
pub(super) async fn read(path: &Path) -> Result<File, PluginError> {
    let failed = |error| PluginError::Read { path: path.to_owned(), error };
    let metadata = tokio::fs::metadata(path).await.map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is not a regular file")));
    }
    if metadata.len() > MAX_BYTES {
        return Err(failed(io::Error::other(format!("it is larger than {MAX_BYTES} bytes"))));
    }
    let bytes = tokio::fs::read(path).await.map_err(failed)?;
    let anatomy = Anatomy::read(&bytes).map_err(|fault| PluginError::Component { path: path.to_owned(), fault })?;
    let digest = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(File { path: path.to_owned(), bytes, digest, anatomy })
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
    use super::*;

    async fn fault(directory: &Path, plugin: &str) -> String {
        find(directory, plugin).await.err().unwrap().to_string()
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
}
