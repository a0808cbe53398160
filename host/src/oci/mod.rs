//! Components from OCI registries: `plugin = "oci://ghcr.io/acme/adapter@sha256:..."`, and `outhaul plugin pull`.
//!
//! A [`reference`](Reference) says which; [`client`] fetches its [`manifest`] and the component that this names; [`store`] keeps both. The
//! digest in a reference decides what is run: the manifest must have it, and the component the one in the manifest. So a registry,
//! whoever is between, and the store need not be trusted with more than being there, and a component that was pulled once needs no
//! registry.

mod client;
mod digest;
mod error;
mod manifest;
mod reference;
mod store;

pub use digest::Digest;
pub use error::PullError;
pub use reference::{Pinned, Reference};
pub(crate) use reference::{is_loopback, registry_name};

#[cfg(test)]
mod tests;

use crate::config::Config;
use crate::config::model::Registry;
use crate::secrets::Secrets;
use bytes::Bytes;
use client::Client;
use error::Fault;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Largest component that is read or pulled, in bytes: the largest language runtimes are below 20 MiB.
pub(crate) const MAX_COMPONENT_BYTES: u64 = 256 << 20;

/// How long a pull may take in all. At the usual 20 MiB it allows for a line of 70 KB a second.
const PATIENCE: Duration = Duration::from_secs(300);

/// A component that was pulled, now or before.
#[derive(Clone, PartialEq, Eq)]
pub struct Component {
    /// Where it is kept.
    pub path: PathBuf,
    /// Of its content.
    pub digest: Digest,
    /// Its content.
    pub bytes: Bytes,
}

/// A component fresh from its registry, kept nowhere yet.
#[derive(Clone)]
pub struct Pulled {
    /// What it is from now on.
    pub pinned: Pinned,
    /// Its content.
    pub component: Bytes,
    manifest: Vec<u8>,
}

impl fmt::Debug for Component {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Component({}, {})", self.path.display(), self.digest)
    }
}

impl fmt::Debug for Pulled {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Pulled({})", self.pinned)
    }
}

/// The registries as a configuration describes them, and the store.
#[derive(Debug, Clone, Copy)]
pub struct Registries<'a>(&'a Config);

impl<'a> Registries<'a> {
    /// Those of a configuration.
    #[must_use]
    pub fn of(config: &'a Config) -> Self {
        Self(config)
    }

    /// A component that was pulled before; none: it was not, or is damaged.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn stored(&self, pinned: &Pinned) -> Result<Option<Component>, PullError> {
        let (folder, wanted) = (self.0.plugins.store.clone(), pinned.clone());
        let found = blocking(folder, move |folder| store::find(folder, &wanted)).await;
        found.map_err(|fault| PullError::new(pinned, fault))
    }

    /// A component from the store, or else from its registry, and kept.
    ///
    /// # Errors
    /// It can be had from neither, or cannot be kept.
    pub async fn component(&self, pinned: &Pinned) -> Result<Component, PullError> {
        if let Some(component) = self.stored(pinned).await? {
            return Ok(component);
        }
        let fault = |fault| PullError::new(pinned, fault);
        let pulled = self.fetch(&pinned.registry, &pinned.repository, None, Some(pinned.digest)).await.map_err(fault)?;
        let folder = self.0.plugins.store.clone();
        let kept = blocking(folder, move |folder| store::keep(folder, &pulled.manifest, &pulled.component)).await.map_err(fault)?;
        tracing::info!(reference = %pinned, bytes = kept.bytes.len(), sha256 = kept.digest.hex(), "pulled");
        Ok(kept)
    }

    /// What a registry has under a reference now.
    ///
    /// # Errors
    /// It cannot be had, or is no component.
    pub async fn pull(&self, reference: &Reference) -> Result<Pulled, PullError> {
        let Reference { registry, repository, tag, digest } = reference;
        let pulled = self.fetch(registry, repository, tag.as_deref(), *digest).await;
        pulled.map_err(|fault| PullError::new(reference, fault))
    }

    async fn fetch(&self, registry: &str, repository: &str, tag: Option<&str>, digest: Option<Digest>) -> Result<Pulled, Fault> {
        let default = Registry::default();
        let settings = self.0.registries.get(registry).unwrap_or(&default);
        let secrets = Secrets::new(self.0.secrets.clone());
        let fetching = async {
            let mut client = Client::open(registry, repository, settings, &secrets).await?;
            let server = client.server();
            let asked = digest.map_or_else(|| tag.unwrap_or("latest").to_owned(), |digest| digest.to_string());
            let manifest = client.manifest(&asked).await?;
            let found = Digest::of(&manifest);
            same(&server, "the manifest", digest.unwrap_or(found), found)?;
            let layer = manifest::read(&manifest)?;
            let component = Bytes::from(client.blob(&layer).await?);
            let hashed = component.clone();
            let hashed = blocking(self.0.plugins.store.clone(), move |_| Ok(Digest::of(&hashed))).await?;
            same(&server, "the component", layer.digest, hashed)?;
            let pinned = Pinned { registry: registry.to_owned(), repository: repository.to_owned(), digest: found };
            Ok(Pulled { pinned, component, manifest })
        };
        let timed_out = |_| Fault::TimedOut { server: registry.to_owned(), limit: PATIENCE };
        tokio::time::timeout(PATIENCE, fetching).await.map_err(timed_out)?
    }
}

/// Whether something is what its digest says.
fn same(server: &str, what: &'static str, expected: Digest, found: Digest) -> Result<(), Fault> {
    if expected == found { Ok(()) } else { Err(Fault::OtherContent { server: server.to_owned(), what, expected, found }) }
}

/// Reading, hashing and writing what may be large, off the threads that run calls.
async fn blocking<T: Send + 'static>(folder: PathBuf, work: impl FnOnce(&Path) -> Result<T, Fault> + Send + 'static) -> Result<T, Fault> {
    let path = folder.clone();
    let stopped = |error| Fault::Store { path, error: std::io::Error::other(error) };
    tokio::task::spawn_blocking(move || work(&folder)).await.map_err(stopped)?
}
