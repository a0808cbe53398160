//! The guest's words and the host's: the same columns under two names. Everything is moved, nothing is copied by message.

use crate::domain::{Batch, Column, Destinations, Failure, FailureCode, Settlement, Verdict};
use crate::ports;
use outhaul_sdk as sdk;
use std::time::Duration;

/// A column of the host, for a guest.
pub(super) fn column_out(column: Column) -> sdk::Column {
    sdk::Column { data: column.data, ends: column.ends, nulls: column.nulls }
}

/// A column of a guest, for the host.
pub(super) fn column_in(column: sdk::Column) -> Column {
    Column { data: column.data, ends: column.ends, nulls: column.nulls }
}

fn batch_in(batch: sdk::Batch) -> Batch {
    Batch {
        ids: column_in(batch.ids),
        topics: column_in(batch.topics),
        keys: column_in(batch.keys),
        header_names: column_in(batch.header_names),
        header_values: column_in(batch.header_values),
        header_ends: batch.header_ends,
        payloads: column_in(batch.payloads),
        attempts: batch.attempts,
        created_at: batch.created_at,
        destinations: batch.destinations.map(|to| Destinations {
            urls: column_in(to.urls),
            tenants: column_in(to.tenants),
            subscribers: column_in(to.subscribers),
            signing_scopes: column_in(to.signing_scopes),
            authentications: column_in(to.authentications),
        }),
    }
}

/// A failure of a guest, for the host.
pub(super) fn failure_in(failure: sdk::Failure) -> Failure {
    use sdk::FailureCode as From;
    let code = match failure.code {
        From::Network => FailureCode::Network,
        From::Timeout => FailureCode::Timeout,
        From::Throttled => FailureCode::Throttled,
        From::Unavailable => FailureCode::Unavailable,
        From::Unauthorized => FailureCode::Unauthorized,
        From::InvalidMessage => FailureCode::InvalidMessage,
        From::TooLarge => FailureCode::TooLarge,
        From::DestinationGone => FailureCode::DestinationGone,
        From::InvalidConfiguration => FailureCode::InvalidConfiguration,
        From::SigningUnavailable => FailureCode::SigningUnavailable,
        From::Integrity => FailureCode::Integrity,
        From::Other(word) => FailureCode::Other(word),
    };
    Failure { retry_after: failure.retry_after_ms.map(Duration::from_millis), ..Failure::new(code, failure.detail) }
}

fn failure_out(failure: &Failure) -> sdk::Failure {
    let code = sdk::FailureCode::Other(failure.code.as_str().to_owned());
    sdk::Failure { code, detail: failure.detail.clone(), retry_after_ms: None }
}

/// A duration in milliseconds, as the contract has it.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Settlements of the host, for a guest.
pub(super) fn settlements_out(settlements: &[Settlement]) -> Vec<sdk::Settlement> {
    let verdict = |verdict: &Verdict| match verdict {
        Verdict::Delivered => sdk::Verdict::Delivered,
        Verdict::Retry { failure, delay } => sdk::Verdict::Retry(sdk::Retry { failure: failure_out(failure), delay_ms: millis(*delay) }),
        Verdict::Release { delay } => sdk::Verdict::Release(millis(*delay)),
        Verdict::Dead(failure) => sdk::Verdict::Dead(failure_out(failure)),
    };
    let settlement = |from: &Settlement| sdk::Settlement { verdict: verdict(&from.verdict), ids: column_out(from.ids.clone()) };
    settlements.iter().map(settlement).collect()
}

/// A request to claim of the host, for a guest.
pub(super) fn request_out(request: &ports::ClaimRequest) -> sdk::ClaimRequest {
    sdk::ClaimRequest {
        worker: request.worker.clone(),
        limit: request.limit,
        max_bytes: request.max_bytes,
        lease_ms: millis(request.lease),
        max_attempts: request.max_attempts,
        max_message_bytes: request.max_message_bytes,
    }
}

/// What a guest has claimed, for the host.
pub(super) fn claimed_in(claimed: sdk::Claimed) -> ports::Claimed {
    let refused = claimed.refused.into_iter().map(|refusal| (refusal.id, failure_in(refusal.failure))).collect();
    ports::Claimed { batch: batch_in(claimed.batch), refused, unfinished: claimed.unfinished }
}
