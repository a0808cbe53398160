//! The shipped storages, and a publisher to nowhere, as plain Rust behind the ports: what components are measured against.
//!
//! - [`storage`]: a storage on blocking threads, several calls at once, as a component has several instances
//! - [`database`]: the host's `sql` capability behind the trait of storage code
//! - `convert`: the host's words and the guest's
//! - [`NullPublisher`]: delivers at once

mod convert;
pub mod database;
pub mod storage;

pub use database::HostDatabase;
pub use storage::NativeStorage;

use crate::config::model::Adapter;
use crate::domain::{Batch, Failure, Outcome};
use crate::ports::{PublishCall, Publisher, Storage};
use crate::sql::Databases;
use async_trait::async_trait;
use std::sync::Arc;

/// The plugins of storages that can run as plain Rust.
pub const STORAGES: [&str; 2] = ["sqlite-storage", "postgres-storage"];

/// Opens a storage as plain Rust, with the same `config` as its component, and the usual limits; none: it has no such form.
///
/// # Errors
/// As its component would fail to open.
pub async fn storage(adapter: &Adapter, databases: &Databases) -> Option<Result<Arc<dyn Storage>, Failure>> {
    match adapter.plugin.as_str() {
        "sqlite-storage" => Some(opened(NativeStorage::<sqlite_storage::Outbox<HostDatabase>>::open(adapter, databases).await)),
        "postgres-storage" => Some(opened(NativeStorage::<postgres_storage::Outbox<HostDatabase>>::open(adapter, databases).await)),
        _ => None,
    }
}

fn opened<S: Storage + 'static>(opened: Result<S, Failure>) -> Result<Arc<dyn Storage>, Failure> {
    opened.map(|storage| Arc::new(storage) as Arc<dyn Storage>)
}

/// Delivers every message to nowhere, at once. What `--publisher null` is without `--native` too: a bench with it has the boundary of the
/// storage only.
#[derive(Debug, Clone, Copy)]
pub struct NullPublisher;

#[async_trait]
impl Publisher for NullPublisher {
    async fn publish(&self, batch: Batch, _call: PublishCall) -> Result<Vec<Outcome>, Failure> {
        Ok(vec![Outcome::Delivered; batch.len()])
    }
}
