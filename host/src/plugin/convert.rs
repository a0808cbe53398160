//! Between the types of the WIT package and those of the domain. Columns are moved, never copied message by message.
//!
//! What comes from a guest is only translated here; [`super::storage`] and [`super::publisher`] check it. Texts of failures are
//! cleaned and cut on the way in.

use super::bindings::{outbox, router_export as router, storage_admin, storage_export as storage};
use super::call::Notes;
use crate::domain::{Batch, Column, Destinations, Failure, FailureCode, Outcome, Settlement, Verdict};
use crate::ports::fan_out::{Inquiry, Subscription};
use crate::ports::{ClaimRequest, Claimed, Description, Filter, Page, Row, RowState, Stats, WakeSource};
use std::time::Duration;

/// Longest word of `failure-code.other`, in bytes: it becomes a label in logs.
const MAX_CODE_BYTES: usize = 64;

/// Milliseconds of a duration, at most what a u64 holds.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn column_in(column: outbox::Column) -> Column {
    Column { data: column.data, ends: column.ends, nulls: column.nulls }
}

pub(super) fn column_out(column: Column) -> outbox::Column {
    outbox::Column { data: column.data, ends: column.ends, nulls: column.nulls }
}

pub(super) fn batch_in(batch: outbox::Batch) -> Batch {
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
        destinations: batch.destinations.map(|destinations| Destinations {
            urls: column_in(destinations.urls),
            tenants: column_in(destinations.tenants),
            subscribers: column_in(destinations.subscribers),
            signing_scopes: column_in(destinations.signing_scopes),
            authentications: column_in(destinations.authentications),
        }),
    }
}

pub(super) fn batch_out(batch: Batch) -> outbox::Batch {
    outbox::Batch {
        ids: column_out(batch.ids),
        topics: column_out(batch.topics),
        keys: column_out(batch.keys),
        header_names: column_out(batch.header_names),
        header_values: column_out(batch.header_values),
        header_ends: batch.header_ends,
        payloads: column_out(batch.payloads),
        attempts: batch.attempts,
        created_at: batch.created_at,
        destinations: batch.destinations.map(|destinations| outbox::Destinations {
            urls: column_out(destinations.urls),
            tenants: column_out(destinations.tenants),
            subscribers: column_out(destinations.subscribers),
            signing_scopes: column_out(destinations.signing_scopes),
            authentications: column_out(destinations.authentications),
        }),
    }
}

fn code_in(code: outbox::FailureCode) -> FailureCode {
    match code {
        outbox::FailureCode::Network => FailureCode::Network,
        outbox::FailureCode::Timeout => FailureCode::Timeout,
        outbox::FailureCode::Throttled => FailureCode::Throttled,
        outbox::FailureCode::Unavailable => FailureCode::Unavailable,
        outbox::FailureCode::Unauthorized => FailureCode::Unauthorized,
        outbox::FailureCode::InvalidMessage => FailureCode::InvalidMessage,
        outbox::FailureCode::TooLarge => FailureCode::TooLarge,
        outbox::FailureCode::DestinationGone => FailureCode::DestinationGone,
        outbox::FailureCode::InvalidConfiguration => FailureCode::InvalidConfiguration,
        outbox::FailureCode::SigningUnavailable => FailureCode::SigningUnavailable,
        outbox::FailureCode::Integrity => FailureCode::Integrity,
        outbox::FailureCode::Other(word) => FailureCode::Other(code_word(&word)),
    }
}

/// A guest's own code made fit for labels: visible ASCII, no spaces, bounded, not empty.
fn code_word(word: &str) -> String {
    let word: String =
        word.chars().map(|character| if character.is_ascii_graphic() { character } else { '-' }).take(MAX_CODE_BYTES).collect();
    if word.is_empty() { "other".to_owned() } else { word }
}

fn code_out(code: &FailureCode) -> outbox::FailureCode {
    match code {
        FailureCode::Network => outbox::FailureCode::Network,
        FailureCode::Timeout => outbox::FailureCode::Timeout,
        FailureCode::Throttled => outbox::FailureCode::Throttled,
        FailureCode::Unavailable => outbox::FailureCode::Unavailable,
        FailureCode::Unauthorized => outbox::FailureCode::Unauthorized,
        FailureCode::InvalidMessage => outbox::FailureCode::InvalidMessage,
        FailureCode::TooLarge => outbox::FailureCode::TooLarge,
        FailureCode::DestinationGone => outbox::FailureCode::DestinationGone,
        FailureCode::InvalidConfiguration => outbox::FailureCode::InvalidConfiguration,
        FailureCode::SigningUnavailable => outbox::FailureCode::SigningUnavailable,
        FailureCode::Integrity => outbox::FailureCode::Integrity,
        FailureCode::Other(word) => outbox::FailureCode::Other(word.clone()),
    }
}

pub(super) fn failure_in(failure: outbox::Failure) -> Failure {
    let mut clean = Failure::new(code_in(failure.code), failure.detail);
    clean.retry_after = failure.retry_after_ms.map(Duration::from_millis);
    clean
}

pub(super) fn failure_out(failure: &Failure) -> outbox::Failure {
    outbox::Failure { code: code_out(&failure.code), detail: failure.detail.clone(), retry_after_ms: failure.retry_after.map(millis) }
}

/// [`failure_in`], with what the host refused in the same call: a guest only sees that it was refused, the operator should see
/// what to do. Added where the failure may well come from it.
pub(super) fn failure_noted(failure: outbox::Failure, notes: &Notes) -> Failure {
    let failure = failure_in(failure);
    let related = matches!(
        failure.code,
        FailureCode::InvalidConfiguration | FailureCode::Network | FailureCode::Unauthorized | FailureCode::SigningUnavailable
    );
    match notes.text() {
        Some(text) if related && !failure.detail.contains(&text) => {
            let noted = Failure::new(failure.code, format!("{} (host: {text})", failure.detail));
            Failure { retry_after: failure.retry_after, ..noted }
        }
        _ => failure,
    }
}

/// An outcome; its failure with what the host refused in the same call, if `notes` are given.
pub(super) fn outcome_in(outcome: outbox::Outcome, notes: Option<&Notes>) -> Outcome {
    let failure = |failure| match notes {
        Some(notes) => failure_noted(failure, notes),
        None => failure_in(failure),
    };
    match outcome {
        outbox::Outcome::Delivered => Outcome::Delivered,
        outbox::Outcome::Retry(told) => Outcome::Retry(failure(told)),
        outbox::Outcome::Reject(told) => Outcome::Reject(failure(told)),
        outbox::Outcome::Held => Outcome::Held,
    }
}

pub(super) fn description_in(description: storage::Description, has_fused: bool) -> Description {
    Description {
        strict_order: description.strict_order,
        fused: description.prefers_fused && has_fused,
        wake: match description.wake {
            storage::WakeSource::None => WakeSource::None,
            storage::WakeSource::DataVersion(database) => WakeSource::DataVersion(database),
            storage::WakeSource::Notification(notification) => {
                WakeSource::Notification { database: notification.database, channel: notification.channel }
            }
        },
    }
}

pub(super) fn request_out(request: &ClaimRequest) -> storage::ClaimRequest {
    storage::ClaimRequest {
        worker: request.worker.clone(),
        limit: request.limit,
        max_bytes: request.max_bytes,
        lease_ms: millis(request.lease),
        max_attempts: request.max_attempts,
        max_message_bytes: request.max_message_bytes,
    }
}

pub(super) fn claimed_in(claimed: storage::Claimed) -> Claimed {
    Claimed {
        batch: batch_in(claimed.batch),
        unfinished: claimed.unfinished,
        refused: claimed.refused.into_iter().map(|refusal| (refusal.id, failure_in(refusal.failure))).collect(),
    }
}

pub(super) fn settlements_out(settlements: &[Settlement]) -> Vec<storage::Settlement> {
    settlements
        .iter()
        .map(|settlement| storage::Settlement {
            verdict: match &settlement.verdict {
                Verdict::Delivered => storage::Verdict::Delivered,
                Verdict::Retry { failure, delay } => {
                    storage::Verdict::Retry(storage::Retry { failure: failure_out(failure), delay_ms: millis(*delay) })
                }
                Verdict::Release { delay } => storage::Verdict::Release(millis(*delay)),
                Verdict::Dead(failure) => storage::Verdict::Dead(failure_out(failure)),
            },
            ids: column_out(settlement.ids.clone()),
        })
        .collect()
}

pub(super) fn stats_in(counts: storage::Counts) -> Stats {
    Stats {
        pending: counts.pending,
        due: counts.due,
        leased: counts.leased,
        dead: counts.dead,
        oldest_pending_ms: counts.oldest_pending_ms,
    }
}

fn state_in(state: storage_admin::RowState) -> RowState {
    match state {
        storage_admin::RowState::Pending => RowState::Pending,
        storage_admin::RowState::Leased => RowState::Leased,
        storage_admin::RowState::Delivered => RowState::Delivered,
        storage_admin::RowState::Dead => RowState::Dead,
    }
}

pub(super) fn filter_out(filter: &Filter) -> storage_admin::Filter {
    storage_admin::Filter {
        state: filter.state.map(|state| match state {
            RowState::Pending => storage_admin::RowState::Pending,
            RowState::Leased => storage_admin::RowState::Leased,
            RowState::Delivered => storage_admin::RowState::Delivered,
            RowState::Dead => storage_admin::RowState::Dead,
        }),
        topic: filter.topic.clone(),
        ids: filter.ids.clone(),
    }
}

pub(super) fn page_in(page: storage_admin::Page) -> Page {
    Page {
        rows: page
            .rows
            .into_iter()
            .map(|row| Row {
                id: row.id,
                topic: row.topic,
                key: row.key,
                state: state_in(row.state),
                attempts: row.attempts,
                last_error: row.last_error.map(|error| crate::domain::text::clean(&error)),
                created_at: row.created_at,
                due_in_ms: row.due_in_ms,
            })
            .collect(),
        messages: page.messages.map(batch_in),
        next: page.next,
    }
}

pub(super) fn inquiry_out(inquiry: &Inquiry) -> router::Inquiry {
    router::Inquiry { tenant: inquiry.tenant.clone(), subscriber: inquiry.subscriber.clone(), topic: inquiry.topic.clone() }
}

pub(super) fn subscription_in(subscription: router::Subscription) -> Subscription {
    Subscription {
        tenant: subscription.tenant,
        subscriber: subscription.subscriber,
        principal: subscription.principal,
        url: subscription.url,
        signing_scope: subscription.signing_scope,
        authentication: subscription.authentication,
        revision: subscription.revision,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::NewMessage;

    #[test]
    fn a_batch_goes_through_unchanged() {
        let mut batch = Batch::default();
        let headers: Vec<(&str, &[u8])> = vec![("a", b"1"), ("a", b"\xff")];
        batch.push(&NewMessage { id: Some("1"), topic: "t", key: Some("k"), headers, payload: None, attempts: 2, created_at: 7 });
        batch.destinations = Some(Destinations { urls: Column::of_texts(["https://a"]), ..Destinations::default() });
        assert_eq!(batch_in(batch_out(batch.clone())), batch);
    }

    #[test]
    fn a_guests_own_code_becomes_a_label() {
        assert_eq!(code_word("no leader\n"), "no-leader-");
        assert_eq!(code_word(""), "other");
        assert_eq!(code_word(&"é".repeat(100)).len(), MAX_CODE_BYTES);
    }

    #[test]
    fn a_failure_text_is_cleaned_on_the_way_in() {
        let failure = outbox::Failure { code: outbox::FailureCode::Network, detail: "a\0b".into(), retry_after_ms: Some(5) };
        let failure = failure_in(failure);
        assert_eq!((failure.detail.as_str(), failure.retry_after), ("a\u{FFFD}b", Some(Duration::from_millis(5))));
    }
}
