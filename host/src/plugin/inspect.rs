//! What a component file is, for the command line: nothing is compiled or run.

use super::grants::Request;
use super::{PluginError, catalog};
use bytes::Bytes;
use std::path::{Path, PathBuf};

/// What is known of a component without running it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Inspection {
    /// The file.
    pub file: PathBuf,
    /// The world that it was made for; none: it is no adapter.
    pub world: Option<String>,
    /// `name` of its manifest.
    pub name: Option<String>,
    /// `version` of its manifest.
    pub version: Option<String>,
    /// `description` of its manifest.
    pub description: Option<String>,
    /// The interfaces that it needs.
    pub imports: Vec<String>,
    /// The interfaces that it offers.
    pub exports: Vec<String>,
    /// The capabilities that it asks for: `requests` of its manifest, or what its imports amount to.
    pub requests: Vec<Request>,
    /// Its size.
    pub bytes: usize,
    /// Its SHA-256 in hexadecimal.
    pub sha256: String,
}

#[cfg(test)]
impl Inspection {
    /// Of a component of a world, for tests of what is done with it.
    pub(crate) fn of_world(world: Option<&str>, sha256: &str) -> Self {
        Self {
            file: "x.wasm".into(),
            world: world.map(str::to_owned),
            name: None,
            version: None,
            description: None,
            imports: Vec::new(),
            exports: Vec::new(),
            requests: Vec::new(),
            bytes: 0,
            sha256: sha256.to_owned(),
        }
    }
}

/// Looks at a component file.
///
/// # Errors
/// If it cannot be read, or is no component.
pub async fn inspect(path: &Path) -> Result<Inspection, PluginError> {
    Ok(of(catalog::read(path).await?))
}

/// Looks at the content of a component file, which is or will be at `path`.
///
/// # Errors
/// If it is no component.
pub fn inspect_bytes(path: &Path, bytes: Bytes) -> Result<Inspection, PluginError> {
    let digest = catalog::digest(&bytes);
    catalog::take_apart(path.to_owned(), bytes, digest).map(of)
}

fn of(file: catalog::File) -> Inspection {
    Inspection {
        world: file.anatomy.world().map(str::to_owned),
        name: file.anatomy.name,
        version: file.anatomy.version,
        description: file.anatomy.description,
        imports: file.anatomy.imports,
        exports: file.anatomy.exports,
        requests: file.anatomy.requests,
        bytes: file.bytes.len(),
        sha256: file.digest,
        file: file.path,
    }
}
