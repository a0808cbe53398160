//! A storage and a publisher in memory: the same engine, without WebAssembly, a database or real time.

use crate::domain::{Batch, Column, Failure, FailureCode, NewMessage, Outcome, Settlement, Verdict};
use crate::ports::{ClaimRequest, Claimed, Description, PublishCall, Publisher, Stats, Storage, Turn};
use async_trait::async_trait;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Pending,
    Delivered,
    Dead,
}

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) topic: String,
    pub(super) key: Option<String>,
    pub(super) state: State,
    pub(super) attempts: u32,
    pub(super) error: Option<String>,
    due: Instant,
    leased_by: Option<String>,
}

/// When a call gives up whose answer got lost.
pub(super) const LOST_AFTER: Duration = Duration::from_secs(5);

/// How long a settle call waits for a row that is locked; renewals do not.
const LOCK_WAIT: Duration = Duration::from_millis(4500);

/// A call to the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Call {
    Claim,
    Settle,
    Extend,
}

/// Rows in insertion order; ids are their places.
#[derive(Debug)]
pub(super) struct MemoryStorage {
    rows: Mutex<Vec<Row>>,
    pub(super) fused: bool,
    pub(super) failing: AtomicBool,
    pub(super) claims: AtomicUsize,
    pub(super) extends: AtomicUsize,
    pub(super) refuse_renewal: AtomicBool,
    pub(super) failing_claims: AtomicBool,
    /// As a table whose CHECK constraint does not know the state of dead rows.
    pub(super) refuse_dead: AtomicBool,
    /// As a table that was renamed: verdicts are refused.
    pub(super) refuse_settle: AtomicBool,
    /// Settle calls take two seconds and fail: claims go on meanwhile.
    pub(super) failing_settles: AtomicBool,
    /// Calls whose next answer gets lost: what they do is done, and they fail [`LOST_AFTER`] later.
    lose: Mutex<HashSet<Call>>,
    /// Rows that another transaction has locked.
    locked: Mutex<HashSet<String>>,
    pub(super) limits: Mutex<Vec<u32>>,
    /// How long claims and settle calls take.
    pub(super) slowness: Duration,
}

impl MemoryStorage {
    pub(super) fn new(fused: bool) -> Self {
        Self {
            rows: Mutex::default(),
            fused,
            failing: AtomicBool::new(false),
            claims: AtomicUsize::new(0),
            extends: AtomicUsize::new(0),
            refuse_renewal: AtomicBool::new(false),
            failing_claims: AtomicBool::new(false),
            refuse_dead: AtomicBool::new(false),
            refuse_settle: AtomicBool::new(false),
            failing_settles: AtomicBool::new(false),
            lose: Mutex::default(),
            locked: Mutex::default(),
            limits: Mutex::default(),
            slowness: Duration::ZERO,
        }
    }

    pub(super) fn insert(&self, topic: &str, key: Option<&str>) -> String {
        let mut rows = self.rows.lock().unwrap();
        rows.push(Row {
            topic: topic.into(),
            key: key.map(Into::into),
            state: State::Pending,
            attempts: 0,
            error: None,
            due: Instant::now(),
            leased_by: None,
        });
        (rows.len() - 1).to_string()
    }

    pub(super) fn row(&self, id: &str) -> Row {
        self.rows.lock().unwrap()[id.parse::<usize>().unwrap()].clone()
    }

    pub(super) fn count(&self, state: State) -> usize {
        self.rows.lock().unwrap().iter().filter(|row| row.state == state).count()
    }

    /// As if another worker had taken the row after its lease.
    pub(super) fn steal(&self, id: &str) {
        self.rows.lock().unwrap()[id.parse::<usize>().unwrap()].leased_by = Some("thief".into());
    }

    /// The next answer to such a call gets lost.
    pub(super) fn lose_answer(&self, call: Call) {
        self.lose.lock().unwrap().insert(call);
    }

    /// Whether an answer has yet to get lost.
    pub(super) fn is_to_lose(&self, call: Call) -> bool {
        self.lose.lock().unwrap().contains(&call)
    }

    /// As another transaction does: `SELECT ... FOR UPDATE`.
    pub(super) fn lock(&self, id: &str) {
        self.locked.lock().unwrap().insert(id.to_owned());
    }

    pub(super) fn unlock(&self, id: &str) {
        self.locked.lock().unwrap().remove(id);
    }

    /// Waits so long for locks, and no longer.
    async fn wait_for_locks<'a>(&self, ids: impl Iterator<Item = &'a [u8]> + Clone, wait: Duration) -> Result<(), Failure> {
        let is_locked = || ids.clone().any(|id| self.locked.lock().unwrap().contains(std::str::from_utf8(id).unwrap()));
        let until = Instant::now() + wait;
        while is_locked() {
            if Instant::now() >= until {
                return Err(Failure::new(FailureCode::Timeout, "locked by another transaction"));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Hands the answer over, unless it gets lost.
    async fn answer<T>(&self, call: Call, answer: T) -> Result<T, Failure> {
        if !self.lose.lock().unwrap().remove(&call) {
            return Ok(answer);
        }
        tokio::time::sleep(LOST_AFTER).await;
        Err(Failure::new(FailureCode::Unavailable, "no answer"))
    }

    fn write(&self, worker: &str, settlements: &[Settlement]) -> Vec<String> {
        let mut rows = self.rows.lock().unwrap();
        let mut lost = Vec::new();
        for Settlement { verdict, ids } in settlements {
            for id in ids.iter().flatten() {
                let id = std::str::from_utf8(id).unwrap();
                let row = &mut rows[id.parse::<usize>().unwrap()];
                if row.state != State::Pending || row.leased_by.as_deref() != Some(worker) {
                    lost.push(id.to_owned());
                    continue;
                }
                row.leased_by = None;
                match verdict {
                    Verdict::Delivered => row.state = State::Delivered,
                    Verdict::Dead(failure) => (row.state, row.error) = (State::Dead, Some(failure.to_string())),
                    Verdict::Retry { failure, delay } => (row.due, row.error) = (Instant::now() + *delay, Some(failure.to_string())),
                    Verdict::Release { delay } => (row.due, row.attempts) = (Instant::now() + *delay, row.attempts - 1),
                }
            }
        }
        lost
    }

    fn renew(&self, worker: &str, ids: &Column, lease: Duration) -> Vec<String> {
        let mut rows = self.rows.lock().unwrap();
        let mut lost = Vec::new();
        for id in ids.iter().flatten() {
            let id = std::str::from_utf8(id).unwrap();
            let row = &mut rows[id.parse::<usize>().unwrap()];
            if self.refuse_renewal.load(Ordering::SeqCst) || row.leased_by.as_deref() != Some(worker) {
                lost.push(id.to_owned());
            } else {
                row.due = Instant::now() + lease;
            }
        }
        lost
    }

    fn check(&self) -> Result<(), Failure> {
        if self.failing.load(Ordering::SeqCst) { Err(Failure::new(FailureCode::Unavailable, "out of order")) } else { Ok(()) }
    }
}

#[async_trait]
impl Storage for MemoryStorage {
    fn description(&self) -> Description {
        Description { strict_order: true, fused: self.fused, ..Description::default() }
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        self.check()?;
        tokio::time::sleep(self.slowness).await;
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.limits.lock().unwrap().push(request.limit);
        if self.failing_claims.load(Ordering::SeqCst) {
            return Err(Failure::new(FailureCode::trapped(), "out of memory"));
        }
        let now = Instant::now();
        let mut blocked = HashSet::new();
        let mut claimed = Claimed::default();
        let locked = self.locked.lock().unwrap().clone();
        for (id, row) in self.rows.lock().unwrap().iter_mut().enumerate() {
            if row.state != State::Pending || claimed.batch.len() >= request.limit as usize {
                continue;
            }
            if row.key.as_ref().is_some_and(|key| blocked.contains(key)) {
                continue;
            }
            if row.due > now || locked.contains(&id.to_string()) {
                blocked.extend(row.key.clone());
                continue;
            }
            if request.max_attempts != 0 && row.attempts >= request.max_attempts {
                row.state = State::Dead;
                claimed.refused.push((id.to_string(), Failure::new(FailureCode::Timeout, "lease ended at the last attempt")));
                continue;
            }
            row.attempts += 1;
            row.due = now + request.lease;
            row.leased_by = Some(request.worker.clone());
            let id = id.to_string();
            claimed.batch.push(&NewMessage {
                id: Some(&id),
                topic: &row.topic,
                key: row.key.as_deref(),
                attempts: row.attempts,
                ..NewMessage::default()
            });
        }
        self.answer(Call::Claim, claimed).await
    }

    async fn settle(&self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        self.check()?;
        tokio::time::sleep(self.slowness).await;
        let dead = settlements.iter().any(|settlement| matches!(settlement.verdict, Verdict::Dead(_)));
        if dead && self.refuse_dead.load(Ordering::SeqCst) {
            return Err(Failure::new(FailureCode::InvalidConfiguration, "CHECK constraint failed"));
        }
        if self.refuse_settle.load(Ordering::SeqCst) {
            return Err(Failure::new(FailureCode::InvalidConfiguration, "no such table"));
        }
        if self.failing_settles.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_secs(2)).await;
            return Err(Failure::new(FailureCode::Unavailable, "read-only"));
        }
        let ids: Vec<&[u8]> = settlements.iter().flat_map(|settlement| settlement.ids.iter().flatten()).collect();
        self.wait_for_locks(ids.iter().copied(), LOCK_WAIT).await?;
        let lost = self.write(worker, settlements);
        self.answer(Call::Settle, lost).await
    }

    async fn settle_and_claim(&self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure> {
        if self.failing_claims.load(Ordering::SeqCst) {
            return Err(Failure::new(FailureCode::trapped(), "out of memory"));
        }
        let lost = self.settle(&request.worker, settlements).await?;
        Ok(Turn { lost, claimed: self.claim(request).await? })
    }

    async fn extend(&self, worker: &str, ids: &Column, lease: Duration) -> Result<Vec<String>, Failure> {
        self.check()?;
        self.extends.fetch_add(1, Ordering::SeqCst);
        let all: Vec<&[u8]> = ids.iter().flatten().collect();
        self.wait_for_locks(all.iter().copied(), Duration::ZERO).await?;
        let lost = self.renew(worker, ids, lease);
        self.answer(Call::Extend, lost).await
    }

    async fn stats(&self) -> Result<Stats, Failure> {
        Ok(Stats::default())
    }
}

type Script = Box<dyn Fn(&str, u32) -> (Duration, Outcome) + Send + Sync>;

/// Answers by script: for id and attempt, how long it takes and what comes out. Keeps the order of keys as it must.
pub(super) struct ScriptedPublisher {
    script: Script,
    /// Ids whose presence in a call makes the whole call fail.
    pub(super) poison: HashSet<String>,
    /// Everything sent, in order.
    pub(super) sent: Mutex<Vec<String>>,
    /// Messages being sent right now, and the most that ever were.
    active: AtomicUsize,
    pub(super) most_active: AtomicUsize,
}

impl ScriptedPublisher {
    pub(super) fn new(script: impl Fn(&str, u32) -> (Duration, Outcome) + Send + Sync + 'static) -> Self {
        Self {
            script: Box::new(script),
            poison: HashSet::new(),
            sent: Mutex::default(),
            active: AtomicUsize::new(0),
            most_active: AtomicUsize::new(0),
        }
    }

    pub(super) fn sent(&self) -> Vec<String> {
        self.sent.lock().unwrap().clone()
    }
}

#[async_trait]
impl Publisher for ScriptedPublisher {
    async fn publish(&self, batch: Batch, call: PublishCall) -> Result<Vec<Outcome>, Failure> {
        if batch.messages().any(|message| self.poison.contains(message.id())) {
            return Err(Failure::new(FailureCode::Other("trap".into()), "unreachable"));
        }
        // Keys side by side, each key in sequence, as a publisher does.
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut runs: Vec<Vec<usize>> = Vec::new();
        for (index, message) in batch.messages().enumerate() {
            match message.key().and_then(|key| places.get(key)) {
                Some(place) => runs[*place].push(index),
                None => {
                    places.extend(message.key().map(|key| (key, runs.len())));
                    runs.push(vec![index]);
                }
            }
        }
        let outcomes = Mutex::new(vec![Outcome::Held; batch.len()]);
        let send = |indexes: Vec<usize>| {
            let (batch, outcomes, call) = (&batch, &outcomes, &call);
            async move {
                for index in indexes {
                    let message = batch.message(index);
                    let (delay, outcome) = (self.script)(message.id(), message.attempts());
                    self.sent.lock().unwrap().push(message.id().to_owned());
                    let active = self.active.fetch_add(1, Ordering::SeqCst) + 1;
                    self.most_active.fetch_max(active, Ordering::SeqCst);
                    tokio::time::sleep(delay).await;
                    self.active.fetch_sub(1, Ordering::SeqCst);
                    outcomes.lock().unwrap()[index] = outcome.clone();
                    call.reports.send((index, outcome.clone())).unwrap();
                    if outcome != Outcome::Delivered {
                        break;
                    }
                }
            }
        };
        let mut sending = Vec::new();
        for indexes in runs {
            sending.push(Box::pin(send(indexes)));
        }
        tokio::select! {
            () = join_all(sending) => {}
            () = call.cancel.cancelled() => return Err(Failure::new(FailureCode::Timeout, "cancelled")),
            () = tokio::time::sleep(call.deadline) => return Err(Failure::new(FailureCode::Timeout, "deadline")),
        }
        let outcomes = outcomes.into_inner().unwrap();
        Ok(outcomes)
    }
}

async fn join_all<F: Future<Output = ()> + Unpin>(mut futures: Vec<F>) {
    std::future::poll_fn(|context| {
        futures.retain_mut(|future| std::pin::Pin::new(future).poll(context).is_pending());
        if futures.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
