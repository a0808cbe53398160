//! Between the types of `storage-fan-out` and those of the ports. Checked in [`super::fan_out`].

use super::bindings::{storage_export as storage, storage_fan_out as wit};
use super::convert::{batch_in, claimed_in, column_in, column_out, failure_out, millis};
use crate::domain::Column;
use crate::domain::text::clean;
use crate::ports::Claimed;
use crate::ports::fan_out::{
    Change, Delivery, DeliveryFilter, DeliveryPage, DeliverySettlement, DeliveryState, DeliveryStats, DeliveryVerdict, Expansion,
    Reemitted, SealedPage, Subject,
};

/// Longest word of a state or code that a storage gives back, in bytes.
const MAX_WORD_BYTES: usize = 64;

pub(super) fn events_in(events: wit::Events) -> (Claimed, Column, Vec<u32>) {
    (claimed_in(events.claimed), column_in(events.tenants), events.generations)
}

pub(super) fn expansions_out(expansions: &[Expansion]) -> Vec<wit::Expansion> {
    let one = |Expansion { event, generation, deliveries }: &Expansion| wit::Expansion {
        event: event.clone(),
        generation: *generation,
        deliveries: *deliveries,
    };
    expansions.iter().map(one).collect()
}

pub(super) fn settlements_out(settlements: &[DeliverySettlement]) -> Vec<wit::DeliverySettlement> {
    settlements
        .iter()
        .map(|DeliverySettlement { verdict, ids }| wit::DeliverySettlement {
            verdict: match verdict {
                DeliveryVerdict::Complete => wit::DeliveryVerdict::Complete,
                DeliveryVerdict::Retry { failure, delay } => {
                    wit::DeliveryVerdict::Retry(storage::Retry { failure: failure_out(failure), delay_ms: millis(*delay) })
                }
                DeliveryVerdict::Release { delay } => wit::DeliveryVerdict::Release(millis(*delay)),
                DeliveryVerdict::Suppressed(failure) => wit::DeliveryVerdict::Suppressed(failure_out(failure)),
                DeliveryVerdict::Quarantined(failure) => wit::DeliveryVerdict::Quarantined(failure_out(failure)),
            },
            ids: column_out(ids.clone()),
        })
        .collect()
}

pub(super) fn stats_in(counts: wit::DeliveryCounts) -> DeliveryStats {
    let wit::DeliveryCounts { pending, due, leased, suppressed, quarantined, oldest_pending_ms } = counts;
    DeliveryStats { pending, due, leased, suppressed, quarantined, oldest_pending_ms }
}

pub(super) fn reemitted_in(reemitted: wit::Reemitted) -> Reemitted {
    match reemitted {
        wit::Reemitted::Generation(generation) => Reemitted::Generation(generation),
        wit::Reemitted::Unknown => Reemitted::Unknown,
        wit::Reemitted::Pending(generation) => Reemitted::Pending(generation),
    }
}

fn state_in(state: wit::DeliveryState) -> DeliveryState {
    match state {
        wit::DeliveryState::Pending => DeliveryState::Pending,
        wit::DeliveryState::Leased => DeliveryState::Leased,
        wit::DeliveryState::Complete => DeliveryState::Complete,
        wit::DeliveryState::Suppressed => DeliveryState::Suppressed,
        wit::DeliveryState::Quarantined => DeliveryState::Quarantined,
    }
}

pub(super) fn filter_out(filter: &DeliveryFilter) -> wit::DeliveryFilter {
    let DeliveryFilter { tenant, state, event, subscriber, ids } = filter.clone();
    let state = state.map(|state| match state {
        DeliveryState::Pending => wit::DeliveryState::Pending,
        DeliveryState::Leased => wit::DeliveryState::Leased,
        DeliveryState::Complete => wit::DeliveryState::Complete,
        DeliveryState::Suppressed => wit::DeliveryState::Suppressed,
        DeliveryState::Quarantined => wit::DeliveryState::Quarantined,
    });
    wit::DeliveryFilter { tenant, state, event, subscriber, ids }
}

pub(super) fn page_in(page: wit::DeliveryPage) -> DeliveryPage {
    let delivery = |one: wit::Delivery| Delivery {
        id: one.id,
        event: one.event,
        generation: one.generation,
        topic: one.topic,
        subscriber: one.subscriber,
        idempotency_key: one.idempotency_key,
        key_version: one.key_version,
        state: state_in(one.state),
        attempts: one.attempts,
        due_in_ms: one.due_in_ms,
        code: one.code.map(|code| word(&code)),
        detail: one.detail.map(|detail| clean(&detail)),
        created_at: one.created_at,
    };
    DeliveryPage { deliveries: page.deliveries.into_iter().map(delivery).collect(), next: page.next }
}

pub(super) fn sealed_in(page: wit::SealedPage) -> SealedPage {
    SealedPage { deliveries: batch_in(page.deliveries), next: page.next }
}

pub(super) fn change_in(change: wit::Change) -> Change {
    Change {
        position: change.position,
        at: change.at,
        subject: match change.subject {
            wit::Subject::Event => Subject::Event,
            wit::Subject::Delivery => Subject::Delivery,
        },
        event: change.event,
        generation: change.generation,
        delivery: change.delivery,
        subscriber: change.subscriber,
        state: word(&change.state),
        code: change.code.map(|code| word(&code)),
    }
}

/// A word made fit for a line of a table: visible ASCII, no spaces, bounded.
fn word(word: &str) -> String {
    word.chars().map(|character| if character.is_ascii_graphic() { character } else { '-' }).take(MAX_WORD_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_storage_are_made_fit_for_a_line() {
        assert_eq!(word("network"), "network");
        assert_eq!(word("a b\n\u{1b}[31m"), "a-b--[31m");
        assert_eq!(word(&"x".repeat(100)).len(), MAX_WORD_BYTES);
    }
}
