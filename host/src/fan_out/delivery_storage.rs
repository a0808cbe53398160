//! The deliveries of a storage as rows that a pipeline works off: its verdicts become states and codes of deliveries here.

use super::Code;
use crate::domain::{Column, Failure, Settlement, Verdict};
use crate::ports::fan_out::{DeliverySettlement, DeliveryStats, DeliveryVerdict, FanOutStorage};
use crate::ports::{ClaimRequest, Claimed, Description, Stats, Storage, Turn, WakeSource};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

/// See the module.
pub struct DeliveryStorage {
    storage: Arc<dyn FanOutStorage>,
    tenant: Option<String>,
    horizon: Option<Duration>,
}

impl DeliveryStorage {
    /// With a tenant, only its deliveries are claimed; what is older than the horizon is not tried again.
    #[must_use]
    pub fn new(storage: Arc<dyn FanOutStorage>, tenant: Option<String>, horizon: Option<Duration>) -> Self {
        Self { storage, tenant, horizon }
    }
}

#[async_trait]
impl Storage for DeliveryStorage {
    fn description(&self) -> Description {
        Description { strict_order: true, fused: false, wake: WakeSource::None }
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        self.storage.claim_deliveries(request, self.tenant.as_deref(), self.horizon).await
    }

    async fn settle(&self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        let settlements: Vec<DeliverySettlement> = settlements
            .iter()
            .map(|Settlement { verdict, ids }| DeliverySettlement { verdict: delivery_verdict(verdict), ids: ids.clone() })
            .collect();
        self.storage.settle_deliveries(worker, &settlements).await
    }

    async fn settle_and_claim(&self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure> {
        let lost = self.settle(&request.worker, settlements).await?;
        Ok(Turn { lost, claimed: self.claim(request).await? })
    }

    async fn extend(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure> {
        self.storage.extend_deliveries(worker, ids, lease).await
    }

    async fn stats(&self) -> Result<Stats, Failure> {
        let DeliveryStats { pending, due, leased, suppressed: _, quarantined, oldest_pending_ms } = self.storage.delivery_stats().await?;
        Ok(Stats { pending, due, leased, dead: quarantined, oldest_pending_ms })
    }
}

fn delivery_verdict(verdict: &Verdict) -> DeliveryVerdict {
    let coded = |failure: &Failure, ends| Failure { code: Code::of_delivery(&failure.code, ends).failure_code(), ..failure.clone() };
    match verdict {
        Verdict::Delivered => DeliveryVerdict::Complete,
        Verdict::Retry { failure, delay } => DeliveryVerdict::Retry { failure: coded(failure, false), delay: *delay },
        Verdict::Release { delay } => DeliveryVerdict::Release { delay: *delay },
        Verdict::Dead(failure) if Code::of(failure) == Some(Code::SubscriptionChanged) => DeliveryVerdict::Suppressed(failure.clone()),
        Verdict::Dead(failure) => DeliveryVerdict::Quarantined(coded(failure, true)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::FailureCode;

    #[test]
    fn a_changed_subscription_suppresses_and_every_other_end_quarantines() {
        let changed = Code::SubscriptionChanged.failure("gone");
        assert_eq!(delivery_verdict(&Verdict::Dead(changed.clone())), DeliveryVerdict::Suppressed(changed));
        for code in Code::ALL.into_iter().filter(|code| *code != Code::SubscriptionChanged) {
            let failure = code.failure("x");
            assert_eq!(delivery_verdict(&Verdict::Dead(failure.clone())), DeliveryVerdict::Quarantined(failure));
        }
        let trapped = delivery_verdict(&Verdict::Dead(Failure::new(FailureCode::trapped(), "x")));
        assert_eq!(trapped, DeliveryVerdict::Quarantined(Code::InvalidConfiguration.failure("x")));
    }

    #[test]
    fn what_is_tried_again_keeps_its_delay_and_has_a_code() {
        let delay = Duration::from_secs(3);
        let verdict = |code| Verdict::Retry { failure: Failure::new(code, "x"), delay };
        let retry = |code: Code| DeliveryVerdict::Retry { failure: code.failure("x"), delay };
        assert_eq!(delivery_verdict(&verdict(FailureCode::Unavailable)), retry(Code::SubscriptionUnavailable));
        assert_eq!(delivery_verdict(&verdict(FailureCode::trapped())), retry(Code::Network));
        assert_eq!(delivery_verdict(&verdict(Code::RetryableHttp.failure_code())), retry(Code::RetryableHttp));
        assert_eq!(delivery_verdict(&Verdict::Release { delay }), DeliveryVerdict::Release { delay });
        assert_eq!(delivery_verdict(&Verdict::Delivered), DeliveryVerdict::Complete);
    }
}
