//! The publisher of the first half: makes an event a sealed delivery for each of its subscribers. Deliveries go in and events are done in
//! one transaction of the storage, so that an event needs no verdict.
//!
//! # Order
//! Deliveries of a key are inserted in the order of its events: a transaction has at most one event of a key, and none of a key that an
//! earlier event has stopped. If two could be in one, the storage might find the first one lost and insert the second.

use super::asking::{answer_failed, router_failed};
use super::binding::{Binding, Cause, sha256};
use super::envelope::{Contents, seal};
use super::event_storage::{Event, unmarked};
use super::keys::{Keyring, SealingKey};
use super::tally::Tally;
use super::{Code, answers, lengths};
use crate::domain::{Batch, Failure, FailureCode, NewMessage, Outcome};
use crate::ports::fan_out::{Expansion, FanOutStorage, Router, Subscription};
use crate::ports::{PublishCall, Publisher};
use async_trait::async_trait;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A transaction is not made larger than this: it holds locks, and its rows are in memory several times over.
const DELIVERIES_AT_ONCE: usize = 1000;
const BYTES_AT_ONCE: usize = 8 << 20;

/// The deliveries of one event are one transaction, however many they are: more than this no storage is asked to take.
const MOST_BYTES_OF_EVENT: usize = 64 << 20;

/// A delivery is not larger than this, routing columns included; what its pipeline claims is bounded by the same.
const MOST_BYTES_OF_DELIVERY: usize = 2 << 20;

/// See the module.
pub struct Expander {
    /// Where events and deliveries are.
    pub storage: Arc<dyn FanOutStorage>,
    /// Who subscribes.
    pub router: Arc<dyn Router>,
    /// What seals.
    pub keys: Keyring,
    /// `fan_out.namespace`.
    pub namespace: String,
    /// An event with more subscribers ends.
    pub max_subscribers: usize,
    /// Told when there are new deliveries.
    pub wake: Arc<Notify>,
}

/// One call.
struct Run<'a> {
    expander: &'a Expander,
    batch: &'a Batch,
    call: &'a PublishCall,
    tally: Tally,
    group: Group,
    /// When the call's time is over.
    until: Instant,
    /// The storage is out of reach, or the call's time is over: nothing more is tried in this call.
    is_over: bool,
}

/// Events that go into one transaction.
#[derive(Default)]
struct Group {
    worker: String,
    members: Vec<Member>,
    keys: HashSet<String>,
    deliveries: usize,
    bytes: usize,
}

/// An event with its deliveries.
struct Member {
    index: usize,
    expansion: Expansion,
    deliveries: Batch,
}

#[async_trait]
impl Publisher for Expander {
    async fn publish(&self, batch: Batch, call: PublishCall) -> Result<Vec<Outcome>, Failure> {
        let until = Instant::now() + call.deadline;
        let tally = Tally::new(batch.len(), call.reports.clone());
        let mut run = Run { expander: self, batch: &batch, call: &call, tally, group: Group::default(), until, is_over: false };
        let version = self.keys.newest();
        let key = match self.keys.key(version).await {
            Ok(key) => key,
            Err(fault) => {
                run.all(&Failure::new(FailureCode::Unavailable, fault.to_string()));
                return Ok(run.tally.outcomes());
            }
        };
        let (asked, tenants, indexes) = run.questions();
        if !indexes.is_empty() {
            // Half of the time is left for the storage.
            let asking = self.router.expand(&asked, &tenants, call.deadline / 2);
            let answers = tokio::select! {
                answers = asking => answers,
                () = call.cancel.cancelled() => return Err(lease_over()),
            };
            match answers {
                Ok(answers) if answers.len() == indexes.len() => {
                    for (index, answer) in indexes.into_iter().zip(answers) {
                        run.take(index, answer, version, &key).await?;
                    }
                    run.write().await;
                }
                Ok(answers) => {
                    let text = format!("the router gave {} answers to {} questions", answers.len(), indexes.len());
                    run.router_failed(Failure::new(FailureCode::adapter_fault(), text), &indexes)?;
                }
                Err(failure) => run.router_failed(failure, &indexes)?,
            }
        }
        if run.is_over {
            // What was not tried is tried again, at no cost.
            return Err(Failure::new(FailureCode::not_started(), "not tried: the call's time was over, or the storage out of reach"));
        }
        Ok(run.tally.outcomes())
    }
}

impl Run<'_> {
    fn key(&self, index: usize) -> Option<&str> {
        // Of the pipeline: it tells tenants apart.
        self.batch.message(index).key()
    }

    fn note(&mut self, index: usize, outcome: Outcome) {
        let batch = self.batch;
        self.tally.note(index, batch.message(index).key(), outcome);
    }

    fn all(&mut self, failure: &Failure) {
        for index in 0..self.batch.len() {
            let outcome = if self.tally.has_stopped(self.key(index)) { Outcome::Held } else { Outcome::Retry(failure.clone()) };
            self.note(index, outcome);
        }
    }

    fn router_failed(&mut self, failure: Failure, indexes: &[usize]) -> Result<(), Failure> {
        let batch = self.batch;
        let messages = indexes.iter().map(|index| (*index, batch.message(*index).key()));
        // An event that hangs the router may be what brings it down: it must come to an end.
        router_failed(failure, messages, FailureCode::Network, &mut self.tally)
    }

    /// The events as the router knows them: without marks. Those that are none are settled.
    fn questions(&mut self) -> (Batch, Vec<String>, Vec<usize>) {
        let (mut asked, mut tenants, mut indexes) = (Batch::default(), Vec::new(), Vec::new());
        for (index, message) in self.batch.messages().enumerate() {
            let Some(Event { tenant, key, headers, .. }) = unmarked(message) else {
                self.note(index, Outcome::Reject(Code::InvalidPayload.failure("the event has no tenant and no generation")));
                continue;
            };
            tenants.push(tenant.to_owned());
            indexes.push(index);
            asked.push(&NewMessage {
                id: Some(message.id()),
                topic: message.topic(),
                key,
                headers,
                payload: message.payload(),
                attempts: message.attempts(),
                created_at: message.created_at(),
            });
        }
        (asked, tenants, indexes)
    }

    /// Takes an event into the transaction that is being gathered, writing the one before where it has no place in it.
    async fn take(
        &mut self,
        index: usize,
        answer: Result<Vec<Subscription>, Failure>,
        version: &str,
        key: &SealingKey,
    ) -> Result<(), Failure> {
        if self.is_over {
            // Left without an outcome: it is tried again, at no cost.
            return Ok(());
        }
        if self.tally.has_stopped(self.key(index)) {
            self.note(index, Outcome::Held);
            return Ok(());
        }
        let member = match self.seal(index, answer, version, key) {
            Ok(member) => member,
            Err(outcome) => {
                self.note(index, outcome);
                return Ok(());
            }
        };
        let worker = self.call.workers.of(index);
        if !self.group.has_room_for(&member, &worker, self.key(index)) {
            self.write().await;
            if self.call.cancel.is_cancelled() || self.call.lease.is_over() {
                return Err(lease_over());
            }
            // At least one transaction a call, so that it cannot go round for ever.
            self.is_over |= Instant::now() >= self.until;
            if self.is_over {
                return Ok(());
            }
            if self.tally.has_stopped(self.key(index)) {
                self.note(index, Outcome::Held);
                return Ok(());
            }
        }
        let key = self.key(index).map(str::to_owned);
        self.group.add(member, worker, key);
        Ok(())
    }

    /// The deliveries of an event, or what becomes of it without any.
    fn seal(&self, index: usize, answer: Result<Vec<Subscription>, Failure>, version: &str, key: &SealingKey) -> Result<Member, Outcome> {
        let message = self.batch.message(index);
        let invalid = |text: String| Outcome::Reject(Code::InvalidPayload.failure(text));
        let event = unmarked(message).ok_or_else(|| invalid("the event has no tenant and no generation".to_owned()))?;
        let subscriptions = answer.map_err(|failure| Outcome::Retry(answer_failed(&failure)))?;
        let modes = answers::check(event.tenant, &subscriptions, self.expander.max_subscribers)
            .map_err(|nonsense| Outcome::Reject(Code::InvalidConfiguration.failure(nonsense.to_string())))?;
        lengths::check_event(event.tenant, message.id()).map_err(invalid)?;
        let body_sha256 = sha256(message.payload().unwrap_or_default());
        let cause = Cause {
            namespace: &self.expander.namespace,
            event: message.id(),
            topic: message.topic(),
            key: event.key,
            generation: event.generation,
            body_sha256: &body_sha256,
        };
        let (mut deliveries, mut bytes) = (Batch::default(), 0usize);
        for (subscription, mode) in subscriptions.iter().zip(&modes) {
            let binding = Binding::new(&cause, subscription, mode, version);
            lengths::check_order_key(event.tenant, &subscription.subscriber, binding.order_key.as_deref()).map_err(invalid)?;
            let contents = Contents {
                url: subscription.url.clone(),
                authentication: subscription.authentication.clone(),
                headers: event.headers.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect(),
                payload: message.payload().map(<[u8]>::to_vec),
                created_at: message.created_at(),
            };
            let envelope = seal(key, &binding, &contents).map_err(|error| invalid(error.to_string()))?;
            let headers = binding.headers();
            deliveries.push(&NewMessage {
                id: Some(&binding.delivery_id),
                topic: message.topic(),
                key: binding.order_key.as_deref(),
                headers: headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect(),
                payload: Some(&envelope),
                attempts: 0,
                created_at: 0,
            });
            let size = deliveries.message(deliveries.len() - 1).bytes();
            if size > MOST_BYTES_OF_DELIVERY {
                return Err(invalid(format!(
                    "a delivery of it has {size} bytes, routing columns included, and may have {MOST_BYTES_OF_DELIVERY}"
                )));
            }
            bytes += size;
            if bytes > MOST_BYTES_OF_EVENT {
                let count = subscriptions.len();
                return Err(invalid(format!("its {count} deliveries have more than {MOST_BYTES_OF_EVENT} bytes together")));
            }
        }
        let count = u32::try_from(deliveries.len()).unwrap_or(u32::MAX);
        let expansion = Expansion { event: message.id().to_owned(), generation: event.generation, deliveries: count };
        Ok(Member { index, expansion, deliveries })
    }

    /// Writes the transaction that was gathered. If it is refused, its events are tried one by one: one that cannot be written holds up
    /// only itself. If it waits in vain, perhaps for one of them, so are they, until one more does: then somebody holds up all.
    async fn write(&mut self) {
        let Group { worker, members, .. } = std::mem::take(&mut self.group);
        if members.is_empty() {
            return;
        }
        let Err(failure) = self.try_write(&worker, &members).await else { return };
        let mut blocked = failure.code == FailureCode::Timeout;
        if is_out_of_reach(&failure.code) || members.len() == 1 || (blocked && Instant::now() >= self.until) {
            self.is_over |= blocked || is_out_of_reach(&failure.code);
            return self.not_written(&members, &failure);
        }
        tracing::debug!(%failure, events = members.len(), "events are expanded one by one");
        let mut left = members.into_iter();
        let mut is_first = true;
        while let Some(member) = left.next() {
            // At least one is tried, so that the call cannot go round for ever. The others are left without an outcome.
            let is_late = !is_first && Instant::now() >= self.until;
            if is_late || self.call.cancel.is_cancelled() || self.call.lease.is_over() {
                self.is_over = true;
                return;
            }
            is_first = false;
            let member = [member];
            let Err(failure) = self.try_write(&worker, &member).await else {
                blocked = false;
                continue;
            };
            self.not_written(&member, &failure);
            let times_out = failure.code == FailureCode::Timeout;
            if is_out_of_reach(&failure.code) || (blocked && times_out) {
                self.not_written(&left.collect::<Vec<Member>>(), &failure);
                self.is_over = true;
                return;
            }
            blocked = times_out;
        }
    }

    async fn try_write(&mut self, worker: &str, members: &[Member]) -> Result<(), Failure> {
        let expansions: Vec<Expansion> = members.iter().map(|member| member.expansion.clone()).collect();
        let mut deliveries = Batch::default();
        for member in members {
            (0..member.deliveries.len()).for_each(|index| deliveries.push_from(&member.deliveries, index));
        }
        let lost = self.expander.storage.expand(worker, &expansions, &deliveries).await?;
        let lost: HashSet<&str> = lost.iter().map(String::as_str).collect();
        for Member { index, expansion, .. } in members {
            let outcome = if lost.contains(expansion.event.as_str()) { Outcome::Lost } else { Outcome::Settled };
            self.note(*index, outcome);
        }
        if !deliveries.is_empty() {
            self.expander.wake.notify_one();
        }
        Ok(())
    }

    /// They may have been written all the same, if only the answer was lost: then the verdict finds them done, and changes nothing.
    /// A storage that is out of reach, or that somebody holds up, is no fault of the events: they wait, as for a router.
    fn not_written(&mut self, members: &[Member], failure: &Failure) {
        let failure = if is_out_of_reach(&failure.code) || failure.code == FailureCode::Timeout {
            let told = Failure::new(FailureCode::Unavailable, format!("the storage does not answer: {failure}"));
            Failure { retry_after: failure.retry_after, ..told }
        } else {
            failure.clone()
        };
        for member in members {
            self.note(member.index, Outcome::Retry(failure.clone()));
        }
    }
}

impl Group {
    fn has_room_for(&self, member: &Member, worker: &str, key: Option<&str>) -> bool {
        let bytes: usize = member.deliveries.messages().map(|delivery| delivery.bytes()).sum();
        self.members.is_empty()
            || (self.worker == worker
                && !key.is_some_and(|key| self.keys.contains(key))
                && self.deliveries + member.deliveries.len() <= DELIVERIES_AT_ONCE
                && self.bytes + bytes <= BYTES_AT_ONCE)
    }

    fn add(&mut self, member: Member, worker: String, key: Option<String>) {
        self.worker = worker;
        self.keys.extend(key);
        self.deliveries += member.deliveries.len();
        self.bytes += member.deliveries.messages().map(|delivery| delivery.bytes()).sum::<usize>();
        self.members.push(member);
    }
}

/// Whether the storage cannot be reached at present.
fn is_out_of_reach(code: &FailureCode) -> bool {
    matches!(code, FailureCode::Network | FailureCode::Throttled | FailureCode::Unavailable) || *code == FailureCode::not_started()
}

fn lease_over() -> Failure {
    Failure::new(FailureCode::Timeout, "the lease ended before the events were expanded")
}
