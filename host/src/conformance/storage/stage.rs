//! What a clause works on: an empty table, and as many hosts as it wants, each with connections of its own.

use super::insert;
use super::place::{Database, Place};
use crate::conformance::clause::{Checked, Stop, expect};
use crate::conformance::shell::ShellCommand;
use crate::conformance::subject::{OpenStorage, StorageSubject};
use crate::domain::{Batch, Column, Failure, FailureCode, NewMessage, Settlement, Verdict};
use crate::plugin::{Request, Skew};
use crate::ports::{ClaimRequest, Claimed, Filter, Row, Stats, Storage, StorageAdmin, Turn};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A lease or a delay that does not end during a clause, however slow the machine is.
pub(super) const LONG: Duration = Duration::from_secs(3600);

/// A lease or a delay whose end is waited for. Nothing must happen within it: what has to come before its end is not looked at.
pub(super) const SHORT: Duration = Duration::from_millis(400);

/// A lease within which one call has to be made.
pub(super) const MIDDLE: Duration = Duration::from_millis(1200);

/// How long the end of a [`SHORT`] one may take to show.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Between two looks.
const AGAIN: Duration = Duration::from_millis(20);

/// What the clocks of this process and of the database may differ over a [`SHORT`] time, rounding included.
const SLACK: Duration = Duration::from_millis(25);

/// Claims in a row that may find nothing and say that they were cut short.
const MOST_UNFINISHED: usize = 10_000;

/// More rows than any clause inserts: a storage that hands rows out again and again would go on for ever.
const MOST_ROWS: usize = 1_000;

/// The stage of one clause.
pub(crate) struct Stage {
    subject: Arc<StorageSubject>,
    insert_command: Option<ShellCommand>,
    number: String,
    place: Place,
    /// Open already, for the first who asks.
    first: Mutex<Option<Host>>,
}

/// One host: an opened storage.
#[derive(Clone)]
pub(super) struct Host {
    open: OpenStorage,
}

/// A message of topic `t`.
pub(super) fn message<'a>(key: Option<&'a str>, payload: &'a str) -> NewMessage<'a> {
    NewMessage { topic: "t", key, payload: Some(payload.as_bytes()), ..NewMessage::default() }
}

/// A claim of up to a hundred rows for a [`LONG`] time.
pub(super) fn by(worker: &str) -> ClaimRequest {
    ClaimRequest { worker: worker.to_owned(), limit: 100, max_bytes: 4 << 20, lease: LONG, max_attempts: 0, max_message_bytes: 4 << 20 }
}

/// The same for a [`SHORT`] time.
pub(super) fn briefly(worker: &str) -> ClaimRequest {
    ClaimRequest { lease: SHORT, ..by(worker) }
}

/// A failure to record.
pub(super) fn failure() -> Failure {
    Failure::new(FailureCode::Unavailable, "said so by the conformance kit")
}

/// A retry after a delay.
pub(super) fn retry(delay: Duration) -> Verdict {
    Verdict::Retry { failure: failure(), delay }
}

/// A verdict on rows.
pub(super) fn settlement<S: AsRef<str>>(verdict: Verdict, ids: impl IntoIterator<Item = S>) -> Settlement {
    Settlement { verdict, ids: Column::of_texts(ids) }
}

/// The ids of a batch, in order.
pub(super) fn ids(batch: &Batch) -> Vec<String> {
    batch.messages().map(|message| message.id().to_owned()).collect()
}

/// The payloads of a batch as text, in order.
pub(super) fn payloads(batch: &Batch) -> Vec<String> {
    batch.messages().map(|message| String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned()).collect()
}

/// That a claim has returned exactly these payloads, whatever their order.
pub(super) fn claimed_exactly(when: &str, claimed: &Claimed, expected: &[&str]) -> Checked {
    let mut seen = payloads(&claimed.batch);
    seen.sort_unstable();
    let mut wanted: Vec<&str> = expected.to_vec();
    wanted.sort_unstable();
    expect(seen == wanted, format!("{when}: the messages {wanted:?}"), || told(claimed, &seen))
}

/// That a claim has returned nothing.
pub(super) fn claimed_nothing(when: &str, claimed: &Claimed) -> Checked {
    expect(claimed.batch.is_empty() && claimed.refused.is_empty(), format!("{when}: nothing to claim"), || {
        told(claimed, &payloads(&claimed.batch))
    })
}

fn add(all: &mut Claimed, claimed: Claimed) {
    (0..claimed.batch.len()).for_each(|index| all.batch.push_from(&claimed.batch, index));
    all.refused.extend(claimed.refused);
}

fn told(claimed: &Claimed, payloads: &[String]) -> String {
    let mut text = format!("the messages {payloads:?}");
    if !claimed.refused.is_empty() {
        let refused = claimed.refused.iter().map(|(id, failure)| format!("{id} ({failure})"));
        text.push_str(&format!("; ended dead: {}", refused.collect::<Vec<_>>().join(", ")));
    }
    text
}

/// That something took at least as long as was asked for.
pub(super) fn not_before(what: &str, asked: Duration, took: Duration) -> Checked {
    expect(took + SLACK >= asked, format!("{what}: not before {} ms", asked.as_millis()), || format!("after {} ms", took.as_millis()))
}

/// The id at one place of a list, if it is there.
pub(super) fn only(ids: &[String], place: usize) -> Vec<String> {
    ids.iter().skip(place).take(1).cloned().collect()
}

/// Waits until a lease that began then is over, and a little longer: there is nothing to see that would tell.
pub(super) async fn after(began: Instant, lease: Duration) {
    tokio::time::sleep((lease + SLACK * 4).saturating_sub(began.elapsed())).await;
}

/// Makes a call again, as a host does, where others were in the way.
pub(super) async fn patient<T, F: Future<Output = Result<T, Failure>>>(call: impl Fn() -> F) -> Result<T, Stop> {
    let began = Instant::now();
    loop {
        match call().await {
            Ok(done) => return Ok(done),
            Err(failure) if passes(&failure.code) && began.elapsed() < PATIENCE => tokio::time::sleep(AGAIN).await,
            Err(failure) => return Err(Stop::call("a call beside another worker's to succeed", &failure)),
        }
    }
}

/// Whether a failure may come from others who use the database, and passes.
fn passes(code: &FailureCode) -> bool {
    matches!(code, FailureCode::Timeout | FailureCode::Unavailable)
}

impl Stage {
    /// On an empty database: makes the table.
    pub(super) async fn set(
        subject: Arc<StorageSubject>,
        insert_command: Option<ShellCommand>,
        number: u64,
        place: Place,
    ) -> Result<Self, Stop> {
        let stage = Self { subject, insert_command, number: number.to_string(), place, first: Mutex::default() };
        if let Some(command) = &stage.insert_command {
            insert::by_command(command, &stage.place.url, &Batch::default()).await?;
        }
        let host = stage.host().await?;
        if host.open.plugin.has_admin() {
            host.admin()?.create_schema().await.map_err(call_failed("create-schema"))?;
        }
        *stage.first.lock().unwrap_or_else(PoisonError::into_inner) = Some(host);
        Ok(stage)
    }

    /// A host of its own.
    pub(super) async fn host(&self) -> Result<Host, Stop> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(first) = first {
            return Ok(first);
        }
        self.host_with_clock(Skew::None).await
    }

    /// A host on which the adapter sees a clock that is off.
    pub(super) async fn host_with_clock(&self, skew: Skew) -> Result<Host, Stop> {
        let open = self.subject.open(&self.place.url, &[("clause", &self.number)], skew).await;
        open.map(|open| Host { open }).map_err(|error| Stop::failed("the storage to open", error.to_string()))
    }

    /// The database as the kit sees it.
    pub(super) fn database(&self) -> Result<Database, Stop> {
        Database::of(&self.subject, &self.place.url).map_err(|error| Stop::failed("the database to open", error.to_string()))
    }

    /// The same clause on a database in which there is not even a table.
    pub(super) async fn bare(&self) -> Result<Self, Stop> {
        let place = self.place.again(&self.subject).await?;
        Ok(Self { subject: Arc::clone(&self.subject), insert_command: None, number: self.number.clone(), place, first: Mutex::default() })
    }

    /// Whether the component asks for a capability.
    pub(super) fn asks_for(&self, request: Request) -> bool {
        self.subject.setup.inspection.requests.contains(&request)
    }

    /// Whether the table comes from a command, and not from the storage.
    pub(super) fn has_insert_command(&self) -> bool {
        self.insert_command.is_some()
    }

    /// Inserts messages, in one call; returns their ids.
    pub(super) async fn insert(&self, host: &Host, messages: &[NewMessage<'_>]) -> Result<Vec<String>, Stop> {
        let mut batch = Batch::default();
        messages.iter().for_each(|message| batch.push(message));
        match &self.insert_command {
            Some(command) => insert::by_command(command, &self.place.url, &batch).await,
            None => host.enqueue(&batch).await,
        }
    }

    /// Inserts messages that the table may refuse: their ids, or else why it does.
    ///
    /// Only what says that the message cannot be held is a refusal. A storage that traps, or runs out of time, refuses nothing.
    pub(super) async fn insert_if_taken(&self, host: &Host, messages: &[NewMessage<'_>]) -> Result<Result<Vec<String>, String>, Stop> {
        match self.insert(host, messages).await {
            Ok(ids) => Ok(Ok(ids)),
            Err(Stop::Failed { seen, code: Some(FailureCode::InvalidMessage | FailureCode::TooLarge), .. }) => Ok(Err(seen)),
            Err(stop) => Err(stop),
        }
    }

    /// Inserts one message of a key for each payload.
    pub(super) async fn insert_of(&self, host: &Host, key: Option<&str>, payloads: &[&str]) -> Result<Vec<String>, Stop> {
        let messages: Vec<NewMessage<'_>> = payloads.iter().map(|payload| message(key, payload)).collect();
        self.insert(host, &messages).await
    }
}

/// A call that should have succeeded.
pub(super) fn call_failed(call: &'static str) -> impl Fn(Failure) -> Stop {
    move |failure| Stop::call(format!("the call `{call}` to succeed"), &failure)
}

impl Host {
    /// Stops unless the storage claims the rows of a key in order only.
    pub(super) fn needs_strict_order(&self) -> Checked {
        if self.open.plugin.description().strict_order {
            return Ok(());
        }
        Err(Stop::Skipped("the storage says that it keeps no strict order (strict-order = false)".to_owned()))
    }

    /// The storage itself, for calls whose failure means something.
    pub(super) fn storage(&self) -> &dyn Storage {
        &*self.open.plugin
    }

    /// Everything that is open.
    pub(super) fn open(&self) -> &OpenStorage {
        &self.open
    }

    /// What it offers for the command line.
    pub(super) fn admin(&self) -> Result<&dyn StorageAdmin, Stop> {
        if self.open.plugin.has_admin() {
            return Ok(&*self.open.plugin);
        }
        Err(Stop::Skipped("the storage does not export storage-admin".to_owned()))
    }

    /// Inserts messages; returns their ids.
    pub(super) async fn enqueue(&self, batch: &Batch) -> Result<Vec<String>, Stop> {
        self.admin()?.enqueue(batch).await.map_err(call_failed("enqueue"))
    }

    /// Claims; again, as a host does, while nothing was found and the search was cut short.
    pub(super) async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, Stop> {
        for _ in 0..MOST_UNFINISHED {
            let claimed = self.storage().claim(request).await.map_err(call_failed("claim"))?;
            if !(claimed.unfinished && claimed.batch.is_empty() && claimed.refused.is_empty()) {
                return Ok(claimed);
            }
        }
        Err(Stop::failed("a claim that has looked at everything", format!("{MOST_UNFINISHED} claims in a row that were cut short")))
    }

    /// Claims until nothing is left, and returns everything as one batch.
    pub(super) async fn claim_all(&self, request: &ClaimRequest) -> Result<Claimed, Stop> {
        let mut all = Claimed::default();
        while all.batch.len() + all.refused.len() <= MOST_ROWS {
            let claimed = self.claim(request).await?;
            if claimed.batch.is_empty() && claimed.refused.is_empty() {
                return Ok(all);
            }
            add(&mut all, claimed);
        }
        Err(Stop::failed("claims to come to an end", format!("{} rows, and more", all.batch.len())))
    }

    /// Claims again and again until so many rows are there. Without a delay, a row is due at once, but clocks have their grain.
    pub(super) async fn claim_in_time_all(&self, what: &str, request: &ClaimRequest, rows: usize) -> Result<Claimed, Stop> {
        let mut all = Claimed::default();
        while all.batch.len() < rows {
            add(&mut all, self.claim_in_time(what, request).await?);
        }
        Ok(all)
    }

    /// Claims again and again until something is returned.
    pub(super) async fn claim_in_time(&self, what: &str, request: &ClaimRequest) -> Result<Claimed, Stop> {
        let began = Instant::now();
        loop {
            let claimed = self.claim(request).await?;
            if !(claimed.batch.is_empty() && claimed.refused.is_empty()) {
                return Ok(claimed);
            }
            if began.elapsed() > PATIENCE {
                return Err(Stop::failed(format!("{what}: something to claim"), format!("nothing for {} s", PATIENCE.as_secs())));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Writes verdicts; returns the ids that are no longer held.
    pub(super) async fn settle(&self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Stop> {
        self.storage().settle(worker, settlements).await.map_err(call_failed("settle"))
    }

    /// Writes one verdict on rows that the worker holds.
    pub(super) async fn settle_held(&self, worker: &str, verdict: Verdict, ids: &[String]) -> Checked {
        let what = name_of(&verdict);
        let lost = self.settle(worker, &[settlement(verdict, ids)]).await?;
        expect(lost.is_empty(), format!("`{what}` on rows that the worker holds: none reported as lost"), || format!("lost: {lost:?}"))
    }

    /// Renews leases; returns the ids that are no longer held.
    pub(super) async fn extend(&self, worker: &str, ids: &[String], lease: Duration) -> Result<Vec<String>, Stop> {
        self.storage().extend(worker, &Column::of_texts(ids), lease).await.map_err(call_failed("extend"))
    }

    /// Settles, then claims.
    pub(super) async fn turn(&self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Stop> {
        self.storage().settle_and_claim(settlements, request).await.map_err(call_failed("settle-and-claim"))
    }

    /// Counts.
    pub(super) async fn stats(&self) -> Result<Stats, Stop> {
        self.storage().stats().await.map_err(call_failed("stats"))
    }

    /// All rows that match; for tables of a few rows.
    pub(super) async fn rows(&self, filter: &Filter) -> Result<Vec<Row>, Stop> {
        let page = self.admin()?.browse(filter, None, 100, false).await.map_err(call_failed("browse"))?;
        Ok(page.rows)
    }
}

/// What a verdict is called in the contract.
pub(super) fn name_of(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Delivered => "delivered",
        Verdict::Retry { .. } => "retry",
        Verdict::Release { .. } => "release",
        Verdict::Dead(_) => "dead",
    }
}
