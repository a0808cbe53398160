//! The adapters as plain Rust behind the host's ports: what components are measured against.

use async_trait::async_trait;
use null_publisher::NullPublisher;
use outhaul::domain::{Batch, Column, Failure, FailureCode, Outcome, Settlement};
use outhaul::ports::{ClaimRequest, Claimed, Description, PublishCall, Publisher, Stats, Storage, Turn};
use outhaul_sdk::Publisher as _;
use outhaul_throughput::convert::{batch_out, claimed_in, column_out, failure_in, millis, outcome_in, request_out, settlements_out};
use outhaul_throughput::database::HostDatabase;
use sqlite_storage::Outbox;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

type Adapter = Outbox<HostDatabase>;

/// `sqlite-storage` without the sandbox, on a blocking thread.
pub(crate) struct NativeStorage {
    adapter: Arc<Mutex<Adapter>>,
    description: Description,
}

impl NativeStorage {
    pub(crate) fn new(adapter: Adapter, description: &outhaul_sdk::Description) -> Self {
        let description =
            Description { strict_order: description.strict_order, fused: description.prefers_fused, ..Description::default() };
        Self { adapter: Arc::new(Mutex::new(adapter)), description }
    }

    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Adapter) -> Result<T, outhaul_sdk::Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let adapter = Arc::clone(&self.adapter);
        let joined = tokio::task::spawn_blocking(move || call(&mut adapter.lock().unwrap_or_else(PoisonError::into_inner))).await;
        joined.map_err(|error| Failure::new(FailureCode::Other("panic".into()), error.to_string()))?.map_err(failure_in)
    }
}

#[async_trait]
impl Storage for NativeStorage {
    fn description(&self) -> Description {
        self.description.clone()
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        let request = request_out(request);
        self.call(move |adapter| adapter.claim(&request)).await.map(claimed_in)
    }

    async fn settle(&self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        let (worker, settlements) = (worker.to_owned(), settlements_out(settlements));
        self.call(move |adapter| adapter.settle(&worker, &settlements)).await
    }

    async fn settle_and_claim(&self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure> {
        let (settlements, request) = (settlements_out(settlements), request_out(request));
        let turn = self.call(move |adapter| adapter.settle_and_claim(&settlements, &request)).await?;
        Ok(Turn { lost: turn.lost, claimed: claimed_in(turn.claimed) })
    }

    async fn extend(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure> {
        let (worker, ids, lease) = (worker.to_owned(), column_out(ids.clone()), millis(lease));
        self.call(move |adapter| adapter.extend(&worker, &ids, lease)).await
    }

    async fn stats(&self) -> Result<Stats, Failure> {
        let counts = self.call(|adapter| adapter.stats()).await?;
        Ok(Stats {
            pending: counts.pending,
            due: counts.due,
            leased: counts.leased,
            dead: counts.dead,
            oldest_pending_ms: counts.oldest_pending_ms,
        })
    }
}

/// `null-publisher` without the sandbox.
pub(crate) struct NativeNull;

#[async_trait]
impl Publisher for NativeNull {
    async fn publish(&self, batch: Batch, call: PublishCall) -> Result<Vec<Outcome>, Failure> {
        let outcomes = NullPublisher.publish(&batch_out(batch), call.deadline);
        Ok(outcomes.into_iter().map(outcome_in).collect())
    }
}
