//! A storage, a router and an endpoint in memory: both halves run in the engine that they run in for real, in paused time.

use crate::domain::{Batch, Column, Failure, FailureCode, NewMessage, Outcome, Settlement, Verdict};
use crate::fan_out::Code;
use crate::ports::fan_out::{
    DeliverySettlement, DeliveryStats, DeliveryVerdict, Events, Expansion, FanOutStorage, Inquiry, Router, Subscription,
};
use crate::ports::{ClaimRequest, Claimed, Description, PublishCall, Publisher, Stats, Storage, Turn};
use async_trait::async_trait;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Pending,
    /// Expanded, or complete.
    Done,
    /// Ended with this code.
    Ended(Code),
    Suppressed,
}

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) id: String,
    pub(super) tenant: String,
    pub(super) key: Option<String>,
    pub(super) topic: String,
    pub(super) payload: Option<Vec<u8>>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) state: State,
    pub(super) attempts: u32,
    pub(super) error: Option<Failure>,
    due: Instant,
    leased_by: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) events: Vec<Row>,
    pub(super) deliveries: Vec<Row>,
    /// Events, in the order in which they were expanded, a list for each transaction.
    pub(super) expanded: Vec<Vec<String>>,
}

/// What becomes of the next calls of `expand`, in turn; none: they do what they should.
#[derive(Debug, Clone)]
pub(super) enum Trouble {
    /// Written, but the answer is lost.
    LostAnswer,
    /// Not written.
    Fails(FailureCode),
    /// Waits for somebody's lock, and gives up.
    Locked,
    /// It works.
    None,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) tables: Mutex<Tables>,
    pub(super) trouble: Mutex<VecDeque<Trouble>>,
    /// Events that can never be expanded.
    pub(super) refused: Mutex<HashSet<String>>,
}

impl Memory {
    pub(super) fn insert(&self, tenant: &str, key: Option<&str>, topic: &str, payload: Option<&[u8]>) -> String {
        let mut tables = self.tables.lock().unwrap();
        let id = format!("e{}", tables.events.len());
        tables.events.push(Row {
            id: id.clone(),
            tenant: tenant.into(),
            key: key.map(Into::into),
            topic: topic.into(),
            payload: payload.map(<[u8]>::to_vec),
            headers: vec![("h".into(), id.clone())],
            state: State::Pending,
            attempts: 0,
            error: None,
            due: Instant::now(),
            leased_by: None,
        });
        id
    }

    pub(super) fn event(&self, id: &str) -> Row {
        self.tables.lock().unwrap().events.iter().find(|row| row.id == id).unwrap().clone()
    }

    pub(super) fn deliveries(&self) -> Vec<Row> {
        self.tables.lock().unwrap().deliveries.clone()
    }

    pub(super) fn steal_event(&self, id: &str) {
        self.tables.lock().unwrap().events.iter_mut().find(|row| row.id == id).unwrap().leased_by = Some("thief".into());
    }

    pub(super) fn count(&self, state: &State) -> usize {
        self.tables.lock().unwrap().deliveries.iter().filter(|row| row.state == *state).count()
    }

    pub(super) fn pending_events(&self) -> usize {
        self.tables.lock().unwrap().events.iter().filter(|row| row.state == State::Pending).count()
    }
}

impl Row {
    pub(super) fn column(&self, name: &str) -> String {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).unwrap_or_default()
    }

    /// Changes a routing column, as somebody may in the database.
    pub(super) fn edit(&mut self, name: &str, value: &str) {
        let column = self.headers.iter_mut().find(|(known, _)| known == name).unwrap();
        column.1 = value.to_owned();
    }

    fn is_held_by(&self, worker: &str) -> bool {
        self.state == State::Pending && self.leased_by.as_deref() == Some(worker)
    }
}

fn claim(rows: &mut [Row], request: &ClaimRequest, tenant: Option<&str>) -> (Claimed, Vec<String>) {
    let (now, mut blocked, mut claimed, mut tenants) = (Instant::now(), HashSet::new(), Claimed::default(), Vec::new());
    for row in rows.iter_mut() {
        let key = row.key.as_ref().map(|key| (row.tenant.clone(), key.clone()));
        let is_blocked = key.as_ref().is_some_and(|key| blocked.contains(key));
        if row.state != State::Pending || is_blocked || tenant.is_some_and(|tenant| tenant != row.tenant) {
            continue;
        }
        if row.due > now || claimed.batch.len() >= request.limit as usize {
            blocked.extend(key);
            continue;
        }
        row.attempts += 1;
        (row.due, row.leased_by) = (now + request.lease, Some(request.worker.clone()));
        claimed.batch.push(&NewMessage {
            id: Some(&row.id),
            topic: &row.topic,
            key: row.key.as_deref(),
            headers: row.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect(),
            payload: row.payload.as_deref(),
            attempts: row.attempts,
            created_at: 5,
        });
        tenants.push(row.tenant.clone());
    }
    (claimed, tenants)
}

fn each(rows: &mut [Row], worker: &str, ids: &Column, mut change: impl FnMut(&mut Row)) -> Vec<String> {
    let mut lost = Vec::new();
    for id in (0..ids.len()).filter_map(|index| ids.text(index)) {
        match rows.iter_mut().find(|row| row.id == id).filter(|row| row.is_held_by(worker)) {
            Some(row) => change(row),
            None => lost.push(id.to_owned()),
        }
    }
    lost
}

/// Frees a row: due again, the attempt counted or given back.
fn free(row: &mut Row, delay: Duration, gives_back: bool) {
    (row.leased_by, row.due) = (None, Instant::now() + delay);
    row.attempts -= u32::from(gives_back);
}

#[async_trait]
impl Storage for Memory {
    fn description(&self) -> Description {
        Description { strict_order: true, fused: true, ..Description::default() }
    }

    async fn claim(&self, _: &ClaimRequest) -> Result<Claimed, Failure> {
        panic!("events are claimed with their tenants")
    }

    async fn settle(&self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        let events = &mut self.tables.lock().unwrap().events;
        let settle = |Settlement { verdict, ids }: &Settlement| {
            each(events, worker, ids, |row| match verdict {
                Verdict::Delivered => panic!("an event is done only by being expanded"),
                Verdict::Retry { failure, delay } => {
                    free(row, *delay, false);
                    row.error = Some(failure.clone());
                }
                Verdict::Release { delay } => free(row, *delay, true),
                Verdict::Dead(failure) => {
                    row.state = State::Ended(Code::of(failure).expect("the code of an event is one of the words"));
                    row.error = Some(failure.clone());
                }
            })
        };
        Ok(settlements.iter().flat_map(settle).collect())
    }

    async fn settle_and_claim(&self, _: &[Settlement], _: &ClaimRequest) -> Result<Turn, Failure> {
        panic!("claims of events and deliveries are not fused")
    }

    async fn extend(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure> {
        Ok(each(&mut self.tables.lock().unwrap().events, worker, ids, |row| row.due = Instant::now() + lease))
    }

    async fn stats(&self) -> Result<Stats, Failure> {
        Ok(Stats::default())
    }
}

#[async_trait]
impl FanOutStorage for Memory {
    async fn claim_events(&self, request: &ClaimRequest, tenant: Option<&str>) -> Result<Events, Failure> {
        let (claimed, tenants) = claim(&mut self.tables.lock().unwrap().events, request, tenant);
        let generations = vec![1; tenants.len()];
        Ok(Events { claimed, tenants, generations })
    }

    async fn expand(&self, worker: &str, expansions: &[Expansion], deliveries: &Batch) -> Result<Vec<String>, Failure> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let trouble = self.trouble.lock().unwrap().pop_front().unwrap_or(Trouble::None);
        if matches!(trouble, Trouble::Locked) {
            tokio::time::sleep(Duration::from_secs(20)).await;
            return Err(Failure::new(FailureCode::Timeout, "locked"));
        }
        if let Trouble::Fails(code) = trouble {
            return Err(Failure::new(code, "not written"));
        }
        if expansions.iter().any(|expansion| self.refused.lock().unwrap().contains(&expansion.event)) {
            return Err(Failure::new(FailureCode::Other("check".into()), "CHECK constraint failed"));
        }
        let mut lost = Vec::new();
        {
            let tables = &mut *self.tables.lock().unwrap();
            let (mut next, mut written) = (0, Vec::new());
            for Expansion { event, generation, deliveries: count } in expansions {
                let range = next..next + *count as usize;
                next = range.end;
                assert_eq!(*generation, 1);
                let Some(row) = tables.events.iter_mut().find(|row| row.id == *event).filter(|row| row.is_held_by(worker)) else {
                    lost.push(event.clone());
                    continue;
                };
                (row.state, row.leased_by) = (State::Done, None);
                written.push(event.clone());
                for message in range.map(|index| deliveries.message(index)) {
                    assert!(tables.deliveries.iter().all(|row| row.id != message.id()), "one delivery for each event and subscriber");
                    let headers: Vec<(String, String)> =
                        message.headers().map(|(name, value)| (name.to_owned(), String::from_utf8(value.to_vec()).unwrap())).collect();
                    let mut row = Row {
                        id: message.id().into(),
                        tenant: String::new(),
                        key: message.key().map(Into::into),
                        topic: message.topic().into(),
                        payload: message.payload().map(<[u8]>::to_vec),
                        headers,
                        state: State::Pending,
                        attempts: 0,
                        error: None,
                        due: Instant::now(),
                        leased_by: None,
                    };
                    row.tenant = row.column("account_id");
                    tables.deliveries.push(row);
                }
            }
            tables.expanded.push(written);
        }
        if matches!(trouble, Trouble::LostAnswer) {
            return Err(Failure::new(FailureCode::Unavailable, "no answer"));
        }
        Ok(lost)
    }

    async fn claim_deliveries(&self, request: &ClaimRequest, tenant: Option<&str>, _: Option<Duration>) -> Result<Claimed, Failure> {
        Ok(claim(&mut self.tables.lock().unwrap().deliveries, request, tenant).0)
    }

    async fn settle_deliveries(&self, worker: &str, settlements: &[DeliverySettlement]) -> Result<Vec<String>, Failure> {
        let deliveries = &mut self.tables.lock().unwrap().deliveries;
        let settle = |DeliverySettlement { verdict, ids }: &DeliverySettlement| {
            each(deliveries, worker, ids, |row| {
                if let DeliveryVerdict::Retry { failure, .. }
                | DeliveryVerdict::Suppressed(failure)
                | DeliveryVerdict::Quarantined(failure) = verdict
                {
                    row.error = Some(failure.clone());
                }
                match verdict {
                    DeliveryVerdict::Complete => row.state = State::Done,
                    DeliveryVerdict::Retry { delay, .. } => free(row, *delay, false),
                    DeliveryVerdict::Release { delay } => free(row, *delay, true),
                    DeliveryVerdict::Suppressed(_) => row.state = State::Suppressed,
                    DeliveryVerdict::Quarantined(failure) => row.state = State::Ended(Code::of(failure).unwrap()),
                }
            })
        };
        Ok(settlements.iter().flat_map(settle).collect())
    }

    async fn extend_deliveries(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure> {
        Ok(each(&mut self.tables.lock().unwrap().deliveries, worker, ids, |row| row.due = Instant::now() + lease))
    }

    async fn delivery_stats(&self) -> Result<DeliveryStats, Failure> {
        Ok(DeliveryStats::default())
    }
}

/// Subscribers by tenant, which a test may change at any time.
#[derive(Default)]
pub(super) struct Directory {
    pub(super) subscriptions: Mutex<Vec<Subscription>>,
    /// The whole router fails so.
    pub(super) failure: Mutex<Option<FailureCode>>,
    /// Its answers about this tenant are failures.
    pub(super) answers: Mutex<Option<(&'static str, FailureCode)>>,
    /// It fails for these events, so often.
    pub(super) failing_events: Mutex<BTreeMap<String, u32>>,
    /// A call with such an event in it fails as a whole.
    pub(super) poison: Mutex<HashSet<String>>,
    pub(super) expansions: Mutex<usize>,
    pub(super) inquiries: Mutex<usize>,
}

pub(super) fn subscriber(tenant: &str, name: &str) -> Subscription {
    Subscription {
        tenant: tenant.into(),
        subscriber: name.into(),
        principal: String::new(),
        url: format!("https://{name}.example/in?token=hunter2"),
        signing_scope: None,
        authentication: None,
        revision: "1".into(),
    }
}

impl Directory {
    fn check(&self) -> Result<(), Failure> {
        self.failure.lock().unwrap().clone().map_or(Ok(()), |code| Err(Failure::new(code, "away")))
    }
}

impl Directory {
    fn answer_about(&self, tenant: &str) -> Result<(), Failure> {
        match self.answers.lock().unwrap().clone() {
            Some((of, code)) if of == tenant => Err(Failure::new(code, "away")),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Router for Directory {
    async fn expand(&self, events: &Batch, tenants: &[String], _: Duration) -> Result<Vec<Result<Vec<Subscription>, Failure>>, Failure> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        *self.expansions.lock().unwrap() += 1;
        self.check()?;
        if events.messages().any(|event| self.poison.lock().unwrap().contains(event.id())) {
            return Err(Failure::new(FailureCode::trapped(), "unreachable"));
        }
        let all = self.subscriptions.lock().unwrap().clone();
        let answer = |(event, tenant): (crate::domain::Message<'_>, &String)| {
            assert_eq!(event.headers().collect::<Vec<_>>(), [("h", event.id().as_bytes())], "without the marks");
            if let Some(left) = self.failing_events.lock().unwrap().get_mut(event.id()).filter(|left| **left > 0) {
                *left -= 1;
                return Err(Failure::new(FailureCode::Unavailable, "not now"));
            }
            self.answer_about(tenant)?;
            Ok(all.iter().filter(|one| one.tenant == *tenant || one.tenant == "*").cloned().collect())
        };
        Ok(events.messages().zip(tenants).map(answer).collect())
    }

    async fn current(&self, inquiries: &[Inquiry], _: Duration) -> Result<Vec<Result<Option<Subscription>, Failure>>, Failure> {
        *self.inquiries.lock().unwrap() += 1;
        self.check()?;
        let all = self.subscriptions.lock().unwrap().clone();
        let of = |asked: &Inquiry| all.iter().find(|one| (&one.tenant, &one.subscriber) == (&asked.tenant, &asked.subscriber)).cloned();
        Ok(inquiries.iter().map(|asked| self.answer_about(&asked.tenant).map(|()| of(asked))).collect())
    }
}

/// What an endpoint got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) subscriber: String,
    pub(super) url: String,
    pub(super) id: String,
    pub(super) key: Option<String>,
    /// The event, as its header says.
    pub(super) event: String,
    pub(super) payload: Option<Vec<u8>>,
}

type Script = Box<dyn Fn(&Sent, u32) -> (Duration, Outcome) + Send + Sync>;

/// Endpoints that answer by a script.
pub(super) struct Endpoints {
    script: Script,
    pub(super) sent: Mutex<Vec<Sent>>,
}

impl Endpoints {
    pub(super) fn new(script: impl Fn(&Sent, u32) -> (Duration, Outcome) + Send + Sync + 'static) -> Self {
        Self { script: Box::new(script), sent: Mutex::default() }
    }

    pub(super) fn of(&self, subscriber: &str) -> Vec<String> {
        self.sent.lock().unwrap().iter().filter(|sent| sent.subscriber == subscriber).map(|sent| sent.event.clone()).collect()
    }
}

#[async_trait]
impl Publisher for Endpoints {
    async fn publish(&self, batch: Batch, call: PublishCall) -> Result<Vec<Outcome>, Failure> {
        let destinations = batch.destinations.clone().unwrap();
        let mut runs: Vec<(Option<String>, Vec<usize>)> = Vec::new();
        for (index, message) in batch.messages().enumerate() {
            match runs.iter_mut().find(|(key, _)| key.is_some() && key.as_deref() == message.key()) {
                Some((_, run)) => run.push(index),
                None => runs.push((message.key().map(Into::into), vec![index])),
            }
        }
        let outcomes = Mutex::new(vec![Outcome::Held; batch.len()]);
        let send = |run: Vec<usize>| {
            let (batch, outcomes, call, destinations) = (&batch, &outcomes, &call, &destinations);
            async move {
                for index in run {
                    let message = batch.message(index);
                    let event = message.headers().map(|(_, value)| String::from_utf8(value.to_vec()).unwrap()).next().unwrap();
                    let sent = Sent {
                        subscriber: destinations.subscribers.text(index).unwrap().to_owned(),
                        url: destinations.urls.text(index).unwrap().to_owned(),
                        id: message.id().into(),
                        key: message.key().map(Into::into),
                        event,
                        payload: message.payload().map(<[u8]>::to_vec),
                    };
                    let (delay, outcome) = (self.script)(&sent, message.attempts());
                    self.sent.lock().unwrap().push(sent);
                    tokio::time::sleep(delay).await;
                    outcomes.lock().unwrap()[index] = outcome.clone();
                    call.reports.send((index, outcome.clone())).unwrap();
                    if outcome != Outcome::Delivered {
                        break;
                    }
                }
            }
        };
        let sending = futures_util::future::join_all(runs.into_iter().map(|(_, run)| send(run)));
        tokio::select! {
            _ = sending => {}
            () = call.cancel.cancelled() => return Err(Failure::new(FailureCode::Timeout, "cancelled")),
            () = tokio::time::sleep(call.deadline) => return Err(Failure::new(FailureCode::Timeout, "deadline of https://crm.example/in?token=hunter2")),
        }
        Ok(outcomes.into_inner().unwrap())
    }
}
