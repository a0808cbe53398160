//! A storage as plain Rust: the very code of its component, on blocking threads.

use super::convert::{claimed_in, column_out, failure_in, millis, request_out, settlements_out};
use super::database::HostDatabase;
use crate::config::model::Adapter;
use crate::domain::{Column, Failure, FailureCode, Settlement};
use crate::ports::{ClaimRequest, Claimed, Description, Stats, Storage, Turn, WakeSource};
use crate::sql::Databases;
use async_trait::async_trait;
use outhaul_sdk as sdk;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Calls at once, so that claiming, settling and renewing overlap here as with the instances of a component.
const AT_ONCE: usize = 4;

/// The code of a storage adapter.
#[allow(clippy::missing_errors_doc, reason = "all return the failures that wit/outbox.wit describes")]
pub trait Outbox: Sized + Send + 'static {
    /// Opens it over the host's databases.
    fn open(config: &str, databases: &Databases) -> Result<(Self, sdk::Description), sdk::Failure>;
    /// Leases rows that are due.
    fn claim(&mut self, request: &sdk::ClaimRequest) -> Result<sdk::Claimed, sdk::Failure>;
    /// Writes verdicts.
    fn settle(&mut self, worker: &str, settlements: &[sdk::Settlement]) -> Result<Vec<String>, sdk::Failure>;
    /// Both in one transaction.
    fn settle_and_claim(&mut self, settlements: &[sdk::Settlement], request: &sdk::ClaimRequest) -> Result<sdk::Turn, sdk::Failure>;
    /// Renews leases.
    fn extend(&mut self, worker: &str, ids: &sdk::Column, lease_ms: u64) -> Result<Vec<String>, sdk::Failure>;
    /// Counts.
    fn stats(&mut self) -> Result<sdk::Counts, sdk::Failure>;
}

macro_rules! outbox {
    ($storage:ty) => {
        impl Outbox for $storage {
            fn open(config: &str, databases: &Databases) -> Result<(Self, sdk::Description), sdk::Failure> {
                Self::open(config, |database, access| HostDatabase::open(databases, database, access))
            }
            fn claim(&mut self, request: &sdk::ClaimRequest) -> Result<sdk::Claimed, sdk::Failure> {
                Self::claim(self, request)
            }
            fn settle(&mut self, worker: &str, settlements: &[sdk::Settlement]) -> Result<Vec<String>, sdk::Failure> {
                Self::settle(self, worker, settlements)
            }
            fn settle_and_claim(
                &mut self,
                settlements: &[sdk::Settlement],
                request: &sdk::ClaimRequest,
            ) -> Result<sdk::Turn, sdk::Failure> {
                Self::settle_and_claim(self, settlements, request)
            }
            fn extend(&mut self, worker: &str, ids: &sdk::Column, lease_ms: u64) -> Result<Vec<String>, sdk::Failure> {
                Self::extend(self, worker, ids, lease_ms)
            }
            fn stats(&mut self) -> Result<sdk::Counts, sdk::Failure> {
                Self::stats(self)
            }
        }
    };
}

outbox!(sqlite_storage::Outbox<HostDatabase>);
outbox!(postgres_storage::Outbox<HostDatabase>);

/// A storage without the sandbox.
pub struct NativeStorage<O> {
    idle: Arc<Mutex<Vec<O>>>,
    turns: Semaphore,
    description: Description,
}

impl<O: Outbox> NativeStorage<O> {
    /// Opens it by the settings of its component.
    ///
    /// # Errors
    /// As its component would fail to open.
    pub async fn open(adapter: &Adapter, databases: &Databases) -> Result<Self, Failure> {
        let (config, databases) = (adapter.config.to_string(), databases.clone());
        let opened = blocking(move || (0..AT_ONCE).map(|_| O::open(&config, &databases)).collect::<Result<Vec<_>, _>>()).await?;
        let description = opened.first().map(|(_, description)| description_in(description)).unwrap_or_default();
        let idle: Vec<O> = opened.into_iter().map(|(outbox, _)| outbox).collect();
        Ok(Self { idle: Arc::new(Mutex::new(idle)), turns: Semaphore::new(AT_ONCE), description })
    }

    async fn call<T: Send + 'static>(&self, call: impl FnOnce(&mut O) -> Result<T, sdk::Failure> + Send + 'static) -> Result<T, Failure> {
        let idle = Arc::clone(&self.idle);
        // Never closed.
        let _turn = self.turns.acquire().await;
        blocking(move || {
            let taken = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(mut outbox) = taken else {
                return Err(sdk::Failure::of(sdk::FailureCode::Other("panic".to_owned()), "an earlier call has panicked"));
            };
            let result = call(&mut outbox);
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(outbox);
            result
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> Result<T, sdk::Failure> + Send + 'static) -> Result<T, Failure> {
    let joined = tokio::task::spawn_blocking(call).await;
    joined.map_err(|error| Failure::new(FailureCode::Other("panic".into()), error.to_string()))?.map_err(failure_in)
}

fn description_in(description: &sdk::Description) -> Description {
    let wake = match &description.wake {
        sdk::WakeSource::None => WakeSource::None,
        sdk::WakeSource::DataVersion(database) => WakeSource::DataVersion(database.clone()),
        sdk::WakeSource::Notification(source) => {
            WakeSource::Notification { database: source.database.clone(), channel: source.channel.clone() }
        }
    };
    Description { strict_order: description.strict_order, fused: description.prefers_fused, wake }
}

#[async_trait]
impl<O: Outbox> Storage for NativeStorage<O> {
    fn description(&self) -> Description {
        self.description.clone()
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        let request = request_out(request);
        self.call(move |outbox| outbox.claim(&request)).await.map(claimed_in)
    }

    async fn settle(&self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        let (worker, settlements) = (worker.to_owned(), settlements_out(settlements));
        self.call(move |outbox| outbox.settle(&worker, &settlements)).await
    }

    async fn settle_and_claim(&self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure> {
        let (settlements, request) = (settlements_out(settlements), request_out(request));
        let turn = self.call(move |outbox| outbox.settle_and_claim(&settlements, &request)).await?;
        Ok(Turn { lost: turn.lost, claimed: claimed_in(turn.claimed) })
    }

    async fn extend(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure> {
        let (worker, ids, lease) = (worker.to_owned(), column_out(ids.clone()), millis(lease));
        self.call(move |outbox| outbox.extend(&worker, &ids, lease)).await
    }

    async fn stats(&self) -> Result<Stats, Failure> {
        let counts = self.call(|outbox| outbox.stats()).await?;
        Ok(Stats {
            pending: counts.pending,
            due: counts.due,
            leased: counts.leased,
            dead: counts.dead,
            oldest_pending_ms: counts.oldest_pending_ms,
        })
    }
}
