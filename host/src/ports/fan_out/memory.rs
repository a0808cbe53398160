//! A storage of deliveries in memory, for tests of what operators see.

use super::{Change, Delivery, DeliveryFilter, DeliveryPage, FanOutAdmin, Reemitted, SealedPage};
use crate::domain::{Batch, Column, Failure, FailureCode, NewMessage};
use crate::fan_out::Binding;
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// Rows of tenants, in the order of insertion.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) deliveries: Vec<(&'static str, Delivery)>,
    pub(crate) changes: Vec<(&'static str, Change)>,
    pub(crate) checkpoints: Mutex<BTreeMap<(String, String), u64>>,
    /// What a checkpoint becomes between two calls, by somebody else.
    pub(crate) other_reader: Mutex<Option<u64>>,
    pub(crate) sealed: Mutex<Vec<(Binding, Vec<u8>)>>,
    /// Ids of what was requeued, call by call.
    pub(crate) requeued: Mutex<Vec<Vec<String>>>,
    pub(crate) old: Mutex<Vec<u64>>,
    pub(crate) away: bool,
}

impl Memory {
    fn wanted(&self, filter: &DeliveryFilter) -> impl Iterator<Item = &Delivery> {
        let wanted = move |(tenant, delivery): &&(&str, Delivery)| {
            *tenant == filter.tenant
                && filter.state.is_none_or(|state| state == delivery.state)
                && filter.event.as_ref().is_none_or(|event| *event == delivery.event)
                && filter.subscriber.as_ref().is_none_or(|subscriber| *subscriber == delivery.subscriber)
                && (filter.ids.is_empty() || filter.ids.contains(&delivery.id))
        };
        self.deliveries.iter().filter(wanted).map(|(_, delivery)| delivery)
    }
}

#[async_trait]
impl FanOutAdmin for Memory {
    async fn reemit(&self, tenant: &str, event: &str) -> Result<Reemitted, Failure> {
        Ok(match (tenant, event) {
            ("acme", "17") => Reemitted::Generation(2),
            ("acme", "18") => Reemitted::Pending(1),
            _ if self.away => return Err(Failure::new(FailureCode::Unavailable, "the database is away")),
            _ => Reemitted::Unknown,
        })
    }
    async fn list_deliveries(&self, filter: &DeliveryFilter, after: Option<&str>, limit: u32) -> Result<DeliveryPage, Failure> {
        let wrong = |_| Failure::new(FailureCode::InvalidMessage, "that is not where a page ended");
        let from: usize = after.map_or(Ok(0), str::parse).map_err(wrong)?;
        let found: Vec<Delivery> = self.wanted(filter).cloned().collect();
        let until = from + usize::try_from(limit).unwrap();
        let next = (until < found.len()).then(|| until.to_string());
        Ok(DeliveryPage { deliveries: found.into_iter().skip(from).take(until - from).collect(), next })
    }
    async fn requeue_deliveries(&self, filter: &DeliveryFilter) -> Result<u64, Failure> {
        let ids: Vec<String> = self.wanted(filter).map(|delivery| delivery.id.clone()).collect();
        let count = u64::try_from(ids.len()).unwrap();
        self.requeued.lock().unwrap().push(ids);
        Ok(count)
    }
    async fn list_sealed(&self, newest: &str, after: Option<&str>, _limit: u32, _max_bytes: u64) -> Result<SealedPage, Failure> {
        // Two a page, so that there are pages.
        let from: usize = after.map_or(0, |after| after.parse().unwrap());
        let sealed = self.sealed.lock().unwrap();
        let mut deliveries = Batch::default();
        for (binding, envelope) in sealed.iter().skip(from).take(2).filter(|(binding, _)| binding.key_version != newest) {
            push(&mut deliveries, binding, envelope);
        }
        Ok(SealedPage { deliveries, next: (from + 2 < sealed.len()).then(|| (from + 2).to_string()) })
    }
    async fn reseal(&self, deliveries: &Batch, previous: &Column) -> Result<u32, Failure> {
        let mut sealed = self.sealed.lock().unwrap();
        let mut replaced = 0;
        for (index, message) in deliveries.messages().enumerate() {
            let new = Binding::from_headers(message.headers()).unwrap();
            let same = |(old, _): &&mut (Binding, Vec<u8>)| {
                old.delivery_id == message.id() && Some(old.key_version.as_str()) == previous.text(index) && old.subscriber_id != "quick"
            };
            if let Some(row) = sealed.iter_mut().find(same) {
                *row = (new, message.payload().unwrap().to_vec());
                replaced += 1;
            }
        }
        Ok(replaced)
    }
    async fn read_status(&self, tenant: &str, after: u64, limit: u32) -> Result<Vec<Change>, Failure> {
        let of = self.changes.iter().filter(|(found, change)| *found == tenant && change.position > after);
        Ok(of.map(|(_, change)| change.clone()).take(usize::try_from(limit).unwrap()).collect())
    }
    async fn checkpoint(&self, tenant: &str, reader: &str) -> Result<u64, Failure> {
        Ok(self.checkpoints.lock().unwrap().get(&(tenant.to_owned(), reader.to_owned())).copied().unwrap_or(0))
    }
    async fn advance(&self, tenant: &str, reader: &str, expected: u64, through: u64) -> Result<bool, Failure> {
        let mut checkpoints = self.checkpoints.lock().unwrap();
        let checkpoint = checkpoints.entry((tenant.to_owned(), reader.to_owned())).or_insert(0);
        if let Some(other) = self.other_reader.lock().unwrap().take() {
            *checkpoint = other;
        }
        let last = self.changes.iter().filter(|(found, _)| *found == tenant).map(|(_, change)| change.position).max().unwrap_or(0);
        if *checkpoint != expected || through < expected || through > last {
            return Ok(false);
        }
        *checkpoint = through;
        Ok(true)
    }
    async fn purge_deliveries(&self, older_than: Duration, limit: u32) -> Result<u64, Failure> {
        let mut old = self.old.lock().unwrap();
        let before = old.len();
        let mut left = usize::try_from(limit).unwrap();
        old.retain(|age| {
            let goes = *age > older_than.as_secs() && left > 0;
            left -= usize::from(goes);
            !goes
        });
        Ok(u64::try_from(before - old.len()).unwrap())
    }
}

fn push(batch: &mut Batch, binding: &Binding, envelope: &[u8]) {
    let headers = binding.headers();
    batch.push(&NewMessage {
        id: Some(&binding.delivery_id),
        topic: &binding.notification_type,
        key: binding.order_key.as_deref(),
        headers: headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect(),
        payload: Some(envelope),
        ..NewMessage::default()
    });
}
