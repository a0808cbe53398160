//! The events of a storage as rows that a pipeline works off. What it does not know of (tenant and emission of an event) travels with each
//! message as its last two headers, from here to the expander.

use super::Code;
use crate::domain::{Batch, Column, Failure, Message, Settlement, Verdict};
use crate::ports::fan_out::{Events, FanOutStorage};
use crate::ports::{ClaimRequest, Claimed, Description, Stats, Storage, Turn};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

/// Names of the last two headers. Their place tells them from headers of an event, whatever those are called.
const MARKS: [&str; 2] = ["tenant", "generation"];

/// See the module.
pub struct EventStorage {
    storage: Arc<dyn Storage>,
    fan_out: Arc<dyn FanOutStorage>,
    tenant: Option<String>,
}

impl EventStorage {
    /// Both are the same storage. With a tenant, only its events are claimed.
    #[must_use]
    pub fn new(storage: Arc<dyn Storage>, fan_out: Arc<dyn FanOutStorage>, tenant: Option<String>) -> Self {
        Self { storage, fan_out, tenant }
    }
}

#[async_trait]
impl Storage for EventStorage {
    fn description(&self) -> Description {
        // Claims of events are no part of the fused call.
        Description { fused: false, ..self.storage.description() }
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        Ok(marked(self.fan_out.claim_events(request, self.tenant.as_deref()).await?))
    }

    async fn settle(&self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        let told = |failure: &Failure| Failure { code: Code::of_event(&failure.code).failure_code(), ..failure.clone() };
        let settlements: Vec<Settlement> = settlements
            .iter()
            .map(|Settlement { verdict, ids }| {
                let verdict = match verdict {
                    Verdict::Retry { failure, delay } => Verdict::Retry { failure: told(failure), delay: *delay },
                    Verdict::Dead(failure) => Verdict::Dead(told(failure)),
                    other => other.clone(),
                };
                Settlement { verdict, ids: ids.clone() }
            })
            .collect();
        self.storage.settle(worker, &settlements).await
    }

    async fn settle_and_claim(&self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure> {
        let lost = self.settle(&request.worker, settlements).await?;
        Ok(Turn { lost, claimed: self.claim(request).await? })
    }

    async fn extend(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure> {
        self.storage.extend(worker, ids, lease).await
    }

    async fn stats(&self) -> Result<Stats, Failure> {
        self.storage.stats().await
    }
}

/// Marks each message with its tenant and generation. Keys of different tenants are different keys.
fn marked(events: Events) -> Claimed {
    let Events { mut claimed, tenants, generations } = events;
    let (mut names, mut values, mut ends, mut keys) = (Column::default(), Column::default(), Vec::new(), Column::default());
    for (index, message) in claimed.batch.messages().enumerate() {
        let tenant = tenants.get(index).map_or("", String::as_str);
        let generation = generations.get(index).copied().unwrap_or(1).to_string();
        let headers = message.headers().chain(MARKS.into_iter().zip([tenant.as_bytes(), generation.as_bytes()]));
        for (name, value) in headers {
            names.push(Some(name.as_bytes()));
            values.push(Some(value));
        }
        ends.push(u32::try_from(names.len()).unwrap_or(u32::MAX));
        keys.push(message.key().map(|key| format!("{tenant}\0{key}")).as_deref().map(str::as_bytes));
    }
    let Batch { header_names, header_values, header_ends, keys: old_keys, .. } = &mut claimed.batch;
    (*header_names, *header_values, *header_ends, *old_keys) = (names, values, ends, keys);
    claimed
}

/// An event as it was before it was marked, and its marks.
pub(super) struct Event<'a> {
    pub(super) tenant: &'a str,
    pub(super) generation: u32,
    pub(super) key: Option<&'a str>,
    pub(super) headers: Vec<(&'a str, &'a [u8])>,
}

/// Takes the marks off again. None: it has none.
pub(super) fn unmarked(message: Message<'_>) -> Option<Event<'_>> {
    let mut headers: Vec<(&str, &[u8])> = message.headers().collect();
    let (generation, tenant) = (headers.pop()?, headers.pop()?);
    let [tenant_mark, generation_mark] = MARKS;
    if tenant.0 != tenant_mark || generation.0 != generation_mark {
        return None;
    }
    let tenant = std::str::from_utf8(tenant.1).ok()?;
    let generation = std::str::from_utf8(generation.1).ok()?.parse().ok()?;
    let key = match message.key() {
        Some(key) => Some(key.strip_prefix(tenant)?.strip_prefix('\0')?),
        None => None,
    };
    Some(Event { tenant, generation, key, headers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::NewMessage;

    #[test]
    fn marks_go_on_and_come_off_whatever_an_event_has() {
        let mut batch = Batch::default();
        let headers: Vec<(&str, &[u8])> = vec![("generation", b"9"), ("tenant", b"\xff"), ("tenant", b"")];
        batch.push(&NewMessage { id: Some("1"), topic: "t", key: Some("k\0"), headers: headers.clone(), ..NewMessage::default() });
        batch.push(&NewMessage { id: Some("2"), topic: "t", ..NewMessage::default() });
        let claimed = Claimed { batch, ..Claimed::default() };
        let claimed = marked(Events { claimed, tenants: vec!["a\0é".into(), String::new()], generations: vec![7, 1] });
        assert_eq!(claimed.batch.check(2), Ok(()));
        let first = unmarked(claimed.batch.message(0)).unwrap();
        assert_eq!((first.tenant, first.generation, first.key, first.headers), ("a\0é", 7, Some("k\0"), headers));
        let second = unmarked(claimed.batch.message(1)).unwrap();
        assert_eq!((second.tenant, second.generation, second.key, second.headers.len()), ("", 1, None, 0));
    }

    #[test]
    fn the_same_key_of_two_tenants_is_two_keys() {
        let mut batch = Batch::default();
        for id in ["1", "2"] {
            batch.push(&NewMessage { id: Some(id), topic: "t", key: Some("k"), ..NewMessage::default() });
        }
        let claimed = Claimed { batch, ..Claimed::default() };
        let claimed = marked(Events { claimed, tenants: vec!["a".into(), "b".into()], generations: vec![1, 1] });
        assert_ne!(claimed.batch.message(0).key(), claimed.batch.message(1).key());
    }

    #[test]
    fn what_is_not_marked_is_no_event() {
        let mut batch = Batch::default();
        batch.push(&NewMessage { id: Some("1"), topic: "t", headers: vec![("a", b"1"), ("b", b"2")], ..NewMessage::default() });
        batch.push(&NewMessage { id: Some("2"), topic: "t", ..NewMessage::default() });
        assert!(unmarked(batch.message(0)).is_none() && unmarked(batch.message(1)).is_none());
    }
}
