//! The publisher of the second half, around the configured one. Before each attempt, in this order: the envelope is opened, the router is
//! asked whether the subscription is still the same, and the lease is looked at; only then the message goes out, with its destination.
//!
//! What an endpoint does never looks like an outage of all ([`FailureCode::is_outage`]): the breaker is for the router alone.

use super::asking::{answer_failed, router_failed};
use super::binding::{Binding, fingerprint, sha256};
use super::envelope::{Contents, open};
use super::keys::{KeyFault, Keyring, SealingKey};
use super::tally::Tally;
use super::{Code, Paces};
use crate::domain::{Batch, Destinations, Failure, FailureCode, Message, NewMessage, Outcome};
use crate::ports::fan_out::{Inquiry, Router, Subscription};
use crate::ports::{PublishCall, Publisher, Workers};
use async_trait::async_trait;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Shorter parts of an authentication are not looked for in texts: they would be found everywhere.
const SHORTEST_SECRET: usize = 4;

/// See the module.
pub struct Deliverer {
    /// Who subscribes.
    pub router: Arc<dyn Router>,
    /// What opens.
    pub keys: Keyring,
    /// Who sends.
    pub publisher: Arc<dyn Publisher>,
    /// How fast each subscriber is.
    pub paces: Arc<Paces>,
}

/// A delivery that was opened.
struct Opened {
    index: usize,
    binding: Binding,
    contents: Contents,
}

/// The keys of one call, each read once.
struct Keys<'a> {
    keyring: &'a Keyring,
    read: HashMap<String, Result<SealingKey, KeyFault>>,
}

#[async_trait]
impl Publisher for Deliverer {
    async fn publish(&self, batch: Batch, call: PublishCall) -> Result<Vec<Outcome>, Failure> {
        let until = Instant::now() + call.deadline;
        let mut tally = Tally::new(batch.len(), call.reports.clone());
        let opened = self.open(&batch, &mut tally).await;
        let opened = tokio::select! {
            opened = self.still_subscribed(opened, &call, &mut tally) => opened?,
            () = call.cancel.cancelled() => return Err(lease_over()),
        };
        if opened.is_empty() {
            return Ok(tally.outcomes());
        }
        if call.lease.is_over() {
            let outcome = Outcome::Retry(Code::LeaseExpired.failure("the lease was over before anything was sent"));
            for one in &opened {
                note(&mut tally, one, outcome.clone());
            }
            return Ok(tally.outcomes());
        }
        let alone = batch.len() == 1;
        self.send(&batch, &opened, call, until, alone, &mut tally).await?;
        Ok(tally.outcomes())
    }
}

impl Deliverer {
    /// Opens every envelope. What does not open is not to be asked for, and nothing is sent for it.
    async fn open(&self, batch: &Batch, tally: &mut Tally) -> Vec<Opened> {
        let mut keys = Keys { keyring: &self.keys, read: HashMap::new() };
        let mut opened = Vec::with_capacity(batch.len());
        for (index, message) in batch.messages().enumerate() {
            if tally.has_stopped(message.key()) {
                tally.note(index, message.key(), Outcome::Held);
                continue;
            }
            match keys.open(message).await {
                Ok((binding, contents)) => opened.push(Opened { index, binding, contents }),
                Err(outcome) => tally.note(index, message.key(), outcome),
            }
        }
        opened
    }

    /// Asks for every subscription as it is now: one call. Returns the deliveries to those that are as they were.
    async fn still_subscribed(&self, opened: Vec<Opened>, call: &PublishCall, tally: &mut Tally) -> Result<Vec<Opened>, Failure> {
        let mut inquiries: Vec<Inquiry> = Vec::new();
        let mut places: HashMap<(&str, &str, &str), usize> = HashMap::new();
        let mut asked = Vec::with_capacity(opened.len());
        for Opened { binding, .. } in &opened {
            let Binding { account_id, subscriber_id, notification_type, .. } = binding;
            let place = *places.entry((account_id, subscriber_id, notification_type)).or_insert_with(|| {
                let (tenant, subscriber, topic) = (account_id.clone(), subscriber_id.clone(), notification_type.clone());
                inquiries.push(Inquiry { tenant, subscriber, topic });
                inquiries.len() - 1
            });
            asked.push(place);
        }
        if inquiries.is_empty() {
            return Ok(Vec::new());
        }
        // Half of the time is left for the endpoints.
        let answers = match self.router.current(&inquiries, call.deadline / 2).await {
            Ok(answers) if answers.len() == inquiries.len() => answers,
            Ok(answers) => {
                let text = format!("the router gave {} answers to {} questions", answers.len(), inquiries.len());
                all_failed(Failure::new(FailureCode::adapter_fault(), text), &opened, tally)?;
                return Ok(Vec::new());
            }
            Err(failure) => {
                all_failed(failure, &opened, tally)?;
                return Ok(Vec::new());
            }
        };
        let mut same = Vec::with_capacity(opened.len());
        for (one, place) in opened.into_iter().zip(asked) {
            if tally.has_stopped(one.binding.order_key.as_deref()) {
                note(tally, &one, Outcome::Held);
                continue;
            }
            match answers.get(place).map(|answer| judged(&one.binding, answer)) {
                Some(None) => same.push(one),
                Some(Some(outcome)) => note(tally, &one, outcome),
                None => note(tally, &one, Outcome::Held),
            }
        }
        Ok(same)
    }

    /// Hands deliveries to the publisher, and takes over what it says of them as it comes.
    async fn send(
        &self,
        batch: &Batch,
        opened: &[Opened],
        call: PublishCall,
        until: Instant,
        alone: bool,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let (reports, mut reported) = mpsc::unbounded_channel();
        let deadline = until.saturating_duration_since(Instant::now());
        let cancel = call.cancel.clone();
        let sending = PublishCall { deadline, reports, lease: call.lease, cancel: call.cancel, workers: Workers::default() };
        let publishing = self.publisher.publish(addressed(batch, opened), sending);
        tokio::pin!(publishing);
        let started = Instant::now();
        // When the one before of its key was answered.
        let mut before: HashMap<Option<&str>, Instant> = HashMap::new();
        let mut unanswered: Vec<bool> = vec![true; opened.len()];
        let mut take = |(index, outcome): (usize, Outcome)| {
            if let Some(one) = opened.get(index)
                && outcome != Outcome::Held
            {
                let Binding { order_key, account_id, subscriber_id, .. } = &one.binding;
                let (key, now) = (order_key.as_deref(), Instant::now());
                let since = key.and_then(|_| before.insert(key, now)).unwrap_or(started);
                self.paces.note(account_id, subscriber_id, now - since);
                if let Some(unanswered) = unanswered.get_mut(index) {
                    *unanswered = false;
                }
                note(tally, one, coded(outcome, one));
            }
        };
        let result = loop {
            tokio::select! {
                biased;
                Some(report) = reported.recv() => take(report),
                result = &mut publishing => break result,
            }
        };
        while let Ok(report) = reported.try_recv() {
            take(report);
        }
        match result {
            Ok(outcomes) => {
                for (one, outcome) in opened.iter().zip(outcomes) {
                    note(tally, one, coded(outcome, one));
                }
                Ok(())
            }
            Err(failure) => {
                let failure = opened.iter().fold(failure, |failure, one| scrubbed(failure, &one.contents));
                if failure.code == FailureCode::Timeout && !cancel.is_cancelled() {
                    self.note_hanging(opened, &unanswered, started.elapsed(), &failure, tally);
                }
                match opened {
                    // It is the one; and an endpoint that does not answer in time is no outage.
                    [one] if alone && !failure.code.is_adapter_fault() && failure.code != FailureCode::not_started() => {
                        note(tally, one, Outcome::Retry(Code::Network.failure(failure.detail)));
                        Ok(())
                    }
                    _ => Err(failure),
                }
            }
        }
    }
}

impl Deliverer {
    /// A call has run out of time. Who has not answered at all in it is taken to have used it up: what else was in the call is tried alone,
    /// as after any call that failed as a whole, and need not wait for as many time-outs as there were messages to them.
    fn note_hanging(&self, opened: &[Opened], unanswered: &[bool], took: Duration, failure: &Failure, tally: &mut Tally) {
        let party = |one: &Opened| (one.binding.account_id.clone(), one.binding.subscriber_id.clone());
        let with = || opened.iter().zip(unanswered);
        let answered: HashSet<(String, String)> = with().filter(|(_, is)| !**is).map(|(one, _)| party(one)).collect();
        for one in with().filter(|(one, is)| **is && !answered.contains(&party(one))).map(|(one, _)| one) {
            let Binding { account_id, subscriber_id, order_key, .. } = &one.binding;
            self.paces.note(account_id, subscriber_id, took);
            if !tally.has_stopped(order_key.as_deref()) {
                note(tally, one, Outcome::Retry(Code::Network.failure(&failure.detail)));
            }
        }
    }
}

impl Keys<'_> {
    async fn open(&mut self, message: Message<'_>) -> Result<(Binding, Contents), Outcome> {
        let broken = |text: String| Outcome::Reject(Code::IntegrityFailure.failure(text));
        let binding = Binding::from_headers(message.headers()).map_err(|fault| broken(fault.to_string()))?;
        let same = binding.delivery_id == message.id()
            && binding.notification_type == message.topic()
            && binding.order_key.as_deref() == message.key();
        if !same {
            return Err(broken("the row's id, topic or key is not that of its routing columns".to_owned()));
        }
        if !self.read.contains_key(&binding.key_version) {
            let key = self.keyring.key(&binding.key_version).await;
            self.read.insert(binding.key_version.clone(), key);
        }
        let key = match self.read.get(&binding.key_version) {
            Some(Ok(key)) => key,
            Some(Err(fault @ KeyFault::Unknown(_))) => return Err(broken(fault.to_string())),
            Some(Err(fault)) => return Err(Outcome::Retry(Failure::new(FailureCode::Unavailable, fault.to_string()))),
            None => return Err(broken(String::new())),
        };
        let contents = open(key, &binding, message.payload().unwrap_or_default()).map_err(|error| broken(error.to_string()))?;
        let is_whole = sha256(contents.payload.as_deref().unwrap_or_default()) == binding.body_sha256
            && sha256(contents.url.as_bytes()) == binding.destination_sha256;
        if is_whole { Ok((binding, contents)) } else { Err(broken("what is sealed is not what the routing columns say".to_owned())) }
    }
}

/// What becomes of a delivery by what the router says of its subscription; none: it is as it was.
fn judged(binding: &Binding, answer: &Result<Option<Subscription>, Failure>) -> Option<Outcome> {
    let changed = |text: &str| Some(Outcome::Reject(Code::SubscriptionChanged.failure(text)));
    match answer {
        Ok(Some(subscription)) if fingerprint(subscription) == binding.subscription_fingerprint => None,
        Ok(Some(_)) => changed("the subscription is another one since the event was expanded"),
        Ok(None) => changed("the subscriber is gone, inactive, or does not want the topic any more"),
        Err(failure) => Some(Outcome::Retry(answer_failed(failure))),
    }
}

fn all_failed(failure: Failure, opened: &[Opened], tally: &mut Tally) -> Result<(), Failure> {
    let messages = opened.iter().map(|one| (one.index, one.binding.order_key.as_deref()));
    // It asks for a subscription, and nothing that a message says: one that hangs is out of reach.
    router_failed(failure, messages, FailureCode::Unavailable, tally)
}

fn note(tally: &mut Tally, one: &Opened, outcome: Outcome) {
    tally.note(one.index, one.binding.order_key.as_deref(), outcome);
}

/// The deliveries as the publisher gets them: the event, under the idempotency key, with its destination.
fn addressed(batch: &Batch, opened: &[Opened]) -> Batch {
    let (mut out, mut destinations) = (Batch::default(), Destinations::default());
    for Opened { index, binding, contents } in opened {
        out.push(&NewMessage {
            id: Some(&binding.idempotency_key),
            topic: &binding.notification_type,
            key: binding.order_key.as_deref(),
            headers: contents.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect(),
            payload: contents.payload.as_deref(),
            attempts: batch.message(*index).attempts(),
            created_at: contents.created_at,
        });
        let text = |text: &str| Some(text.as_bytes().to_vec());
        destinations.urls.push(text(&contents.url).as_deref());
        destinations.tenants.push(text(&binding.account_id).filter(|tenant| !tenant.is_empty()).as_deref());
        destinations.subscribers.push(text(&binding.subscriber_id).as_deref());
        destinations.signing_scopes.push(binding.signing_scope_id.as_deref().map(str::as_bytes));
        destinations.authentications.push(contents.authentication.as_deref().map(str::as_bytes));
    }
    out.destinations = Some(destinations);
    out
}

/// An outcome of the publisher in the words of deliveries.
fn coded(outcome: Outcome, one: &Opened) -> Outcome {
    let coded = |failure: Failure, code: Code| {
        let failure = scrubbed(failure, &one.contents);
        Failure { code: code.failure_code(), ..failure }
    };
    match outcome {
        Outcome::Retry(failure) => {
            let code = Code::of_retry(&failure.code);
            Outcome::Retry(coded(failure, code))
        }
        Outcome::Reject(failure) => {
            let code = Code::of_reject(&failure.code);
            Outcome::Reject(coded(failure, code))
        }
        other => other,
    }
}

/// A failure's text without what is sealed: whatever a publisher writes, it is kept in the database and in logs.
fn scrubbed(failure: Failure, contents: &Contents) -> Failure {
    let mut detail = failure.detail.clone();
    let authentication = contents.authentication.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let mut secrets = vec![contents.url.clone()];
    secrets.extend(contents.authentication.clone());
    if let Some(Value::Object(object)) = authentication {
        let parts = object.into_iter().filter(|(name, _)| name != "type" && name != "name");
        secrets.extend(parts.filter_map(|(_, value)| value.as_str().map(str::to_owned)));
    }
    for secret in secrets.iter().filter(|secret| secret.len() >= SHORTEST_SECRET) {
        if detail.contains(secret.as_str()) {
            detail = detail.replace(secret.as_str(), "[sealed]");
        }
    }
    Failure { detail, ..failure }
}

fn lease_over() -> Failure {
    Failure::new(FailureCode::Timeout, "the lease ended before anything was sent")
}
