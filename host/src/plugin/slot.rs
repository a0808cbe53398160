//! The place of an adapter in a running process: whoever holds it calls the generation that is in it now. A call stays with the
//! generation that it began with, which lives until its last call has ended; instances that are idle go at once.

use crate::domain::{Batch, Column, Failure, Outcome, Settlement};
use crate::ports::fan_out::{DeliverySettlement, DeliveryStats, Events, Expansion, FanOutStorage};
use crate::ports::fan_out::{Inquiry, Router, Subscription};
use crate::ports::{ClaimRequest, Claimed, Description, PublishCall, Publisher, Stats, Storage, Turn};
use async_trait::async_trait;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// An adapter that can be replaced while it is used.
#[derive(Debug)]
pub struct Slot<P> {
    current: RwLock<Arc<P>>,
}

impl<P> Slot<P> {
    /// With its first generation.
    #[must_use]
    pub fn new(first: Arc<P>) -> Self {
        Self { current: RwLock::new(first) }
    }

    /// The generation that a call would be given to now.
    #[must_use]
    pub fn current(&self) -> Arc<P> {
        // The value is written in one step: a panic elsewhere cannot have left it half-written.
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives calls to another generation from now on. Returns the one before: calls may be running in it.
    pub fn swap(&self, next: Arc<P>) -> Arc<P> {
        std::mem::replace(&mut *self.current.write().unwrap_or_else(PoisonError::into_inner), next)
    }
}

#[async_trait]
impl<P: Publisher> Publisher for Slot<P> {
    async fn publish(&self, batch: Batch, call: PublishCall) -> Result<Vec<Outcome>, Failure> {
        self.current().publish(batch, call).await
    }
}

#[async_trait]
impl<R: Router> Router for Slot<R> {
    async fn expand(
        &self,
        events: &Batch,
        tenants: &[String],
        deadline: Duration,
    ) -> Result<Vec<Result<Vec<Subscription>, Failure>>, Failure> {
        Self::current(self).expand(events, tenants, deadline).await
    }

    async fn current(&self, inquiries: &[Inquiry], deadline: Duration) -> Result<Vec<Result<Option<Subscription>, Failure>>, Failure> {
        Router::current(&*Self::current(self), inquiries, deadline).await
    }
}

/// A generation may take another's place between any two calls, as a fresh instance may after a trap; but only if it describes
/// itself in the same way ([`Storage::description`]), since the relay has asked once.
#[async_trait]
impl<S: Storage> Storage for Slot<S> {
    fn description(&self) -> Description {
        self.current().description()
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        self.current().claim(request).await
    }

    async fn settle(&self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        self.current().settle(worker, settlements).await
    }

    async fn settle_and_claim(&self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure> {
        self.current().settle_and_claim(settlements, request).await
    }

    async fn extend(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure> {
        self.current().extend(worker, ids, lease).await
    }

    async fn stats(&self) -> Result<Stats, Failure> {
        self.current().stats().await
    }
}

#[async_trait]
impl<S: FanOutStorage> FanOutStorage for Slot<S> {
    async fn claim_events(&self, request: &ClaimRequest, tenant: Option<&str>) -> Result<Events, Failure> {
        self.current().claim_events(request, tenant).await
    }

    async fn expand(&self, worker: &str, expansions: &[Expansion], deliveries: &Batch) -> Result<Vec<String>, Failure> {
        self.current().expand(worker, expansions, deliveries).await
    }

    async fn claim_deliveries(&self, request: &ClaimRequest, tenant: Option<&str>, horizon: Option<Duration>) -> Result<Claimed, Failure> {
        self.current().claim_deliveries(request, tenant, horizon).await
    }

    async fn settle_deliveries(&self, worker: &str, settlements: &[DeliverySettlement]) -> Result<Vec<String>, Failure> {
        self.current().settle_deliveries(worker, settlements).await
    }

    async fn extend_deliveries(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure> {
        self.current().extend_deliveries(worker, ids, lease).await
    }

    async fn delivery_stats(&self) -> Result<DeliveryStats, Failure> {
        self.current().delivery_stats().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{LeaseEnd, Workers};
    use tokio::sync::{Semaphore, mpsc};
    use tokio_util::sync::CancellationToken;

    /// Answers so many outcomes, once it may.
    struct Fake {
        outcomes: usize,
        may_end: Semaphore,
    }

    #[async_trait]
    impl Publisher for Fake {
        async fn publish(&self, _: Batch, _: PublishCall) -> Result<Vec<Outcome>, Failure> {
            drop(self.may_end.acquire().await);
            Ok(vec![Outcome::Delivered; self.outcomes])
        }
    }

    fn call() -> PublishCall {
        PublishCall {
            deadline: Duration::from_secs(1),
            reports: mpsc::unbounded_channel().0,
            lease: Arc::new(LeaseEnd::new(tokio::time::Instant::now() + Duration::from_secs(1))),
            cancel: CancellationToken::new(),
            workers: Workers::default(),
        }
    }

    #[tokio::test]
    async fn a_call_ends_on_the_generation_that_it_began_with() {
        let fake = |outcomes, permits| Arc::new(Fake { outcomes, may_end: Semaphore::new(permits) });
        let slot = Arc::new(Slot::new(fake(1, 0)));
        let publishing = {
            let slot = Arc::clone(&slot);
            tokio::spawn(async move { slot.publish(Batch::default(), call()).await })
        };
        // On this thread's runtime it runs up to where it waits.
        tokio::task::yield_now().await;
        let old = slot.swap(fake(2, 1));
        assert_eq!(slot.publish(Batch::default(), call()).await.unwrap().len(), 2);
        assert_eq!(Arc::strong_count(&old), 2, "the running call holds it");
        old.may_end.add_permits(1);
        assert_eq!(publishing.await.unwrap().unwrap().len(), 1);
        assert_eq!(Arc::strong_count(&old), 1, "nobody else does any more");
    }
}
