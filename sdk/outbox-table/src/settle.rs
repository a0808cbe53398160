//! Verdicts into statements, and which ids were no longer held.
//!
//! The statements themselves, fence included, are the storage's; what is shared is which of them a settlement needs, in which order, and
//! how their results are read.

use crate::database::{Results, Statement, Value};
use crate::failure::recorded;
use crate::fan_out;
use crate::ids::{IdKind, Ids};
use crate::template::{Slot, Template};
use outhaul_sdk::{Column, DeliverySettlement, DeliveryVerdict, Failure, FailureCode, Settlement, Verdict};
use std::collections::HashSet;

/// Longest duration that is taken at its word, in milliseconds: a hundred years. More would overflow what a column holds.
const MAX_MILLIS: u64 = 100 * 366 * 24 * 60 * 60 * 1000;

/// A duration from outside as a parameter.
#[must_use]
pub fn millis(duration: u64) -> Value {
    Value::Integer(i64::try_from(duration.min(MAX_MILLIS)).unwrap_or(i64::MAX))
}

/// What becomes of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Done.
    Delivered,
    /// Due again after a delay, with a failure.
    Retry,
    /// Due again after a delay, the attempt given back.
    Release,
    /// Never again.
    Dead,
    /// Leased for longer.
    Extend,
    /// Of deliveries: never again, on purpose.
    Suppressed,
}

/// Statements that are run together; the first returns the ids of the rows that were held.
#[derive(Debug, Clone)]
pub struct Fenced {
    /// Writes into the table, only to rows that `Worker` holds and that are not settled; returns their ids.
    pub first: Template,
    /// Writes beside the table.
    pub then: Option<Template>,
}

/// The statements of every change to one table.
#[derive(Debug, Clone)]
pub struct Verdicts {
    ids: IdKind,
    /// Locks the rows `Ids` in one order for everybody, so that two callers never wait for each other. None: the database has one writer.
    lock: Option<Template>,
    /// Whether even a single change needs the lock: where leases are beside the table, and a statement must not judge them by what it
    /// saw before it had waited.
    always_lock: bool,
    /// Comes before a renewal instead: the same lock, or at once an error, so that a row that others hold for long delays no other renewal.
    renewal_lock: Option<Template>,
    delivered: Fenced,
    retry: Fenced,
    release: Fenced,
    dead: Fenced,
    extend: Fenced,
    /// Of a table of deliveries.
    suppressed: Option<Fenced>,
    /// Of a table of events: notes which of the rows `Ids` are dead now, with `Code`.
    after_dead: Option<Template>,
}

/// What is needed to read the results of written verdicts.
#[derive(Debug)]
pub struct Written<'a> {
    /// A lock comes first.
    locked: bool,
    changes: Vec<WrittenChange<'a>>,
}

/// The ids given, how many results follow the first, and ids that cannot be in the table.
#[derive(Debug)]
struct WrittenChange<'a> {
    given: &'a Column,
    follow: usize,
    lost: Vec<String>,
}

impl Verdicts {
    /// For a database with one writer.
    pub fn new(ids: IdKind, fenced: impl Fn(Change) -> Fenced) -> Self {
        Self {
            ids,
            lock: None,
            always_lock: false,
            renewal_lock: None,
            delivered: fenced(Change::Delivered),
            retry: fenced(Change::Retry),
            release: fenced(Change::Release),
            dead: fenced(Change::Dead),
            extend: fenced(Change::Extend),
            suppressed: None,
            after_dead: None,
        }
    }

    /// The same for a table of events: `note` comes after rows have ended dead.
    #[must_use]
    pub fn with_after_dead(self, note: Template) -> Self {
        Self { after_dead: Some(note), ..self }
    }

    /// The same for a table of deliveries.
    #[must_use]
    pub fn with_suppressed(self, suppressed: Fenced) -> Self {
        Self { suppressed: Some(suppressed), ..self }
    }

    /// The same for a database with many: `lock` comes before several changes, or (`always`) before each.
    #[must_use]
    pub fn with_lock(self, lock: Template, always: bool) -> Self {
        Self { lock: Some(lock), always_lock: always, ..self }
    }

    /// The same for renewals: `lock` must fail rather than wait.
    #[must_use]
    pub fn with_renewal_lock(self, lock: Template) -> Self {
        Self { renewal_lock: Some(lock), ..self }
    }

    fn fenced(&self, change: Change) -> &Fenced {
        match change {
            Change::Delivered => &self.delivered,
            Change::Retry => &self.retry,
            Change::Release => &self.release,
            Change::Dead => &self.dead,
            Change::Extend => &self.extend,
            Change::Suppressed => self.suppressed.as_ref().unwrap_or(&self.dead),
        }
    }

    /// Appends the statements that settle.
    pub fn settle<'a>(&self, worker: &str, settlements: &'a [Settlement], statements: &mut Vec<Statement>) -> Written<'a> {
        let changes = settlements.iter().map(|settlement| {
            let (change, delay, failure) = match &settlement.verdict {
                Verdict::Delivered => (Change::Delivered, 0, None),
                Verdict::Retry(retry) => (Change::Retry, retry.delay_ms, Some(&retry.failure)),
                Verdict::Release(delay) => (Change::Release, *delay, None),
                Verdict::Dead(failure) => (Change::Dead, 0, Some(failure)),
            };
            (change, delay, failure, &settlement.ids)
        });
        self.write(worker, changes.collect(), self.lock_of(settlements.len()), statements)
    }

    /// Appends the statements that settle deliveries.
    pub fn settle_deliveries<'a>(
        &self,
        worker: &str,
        settlements: &'a [DeliverySettlement],
        statements: &mut Vec<Statement>,
    ) -> Written<'a> {
        let changes = settlements.iter().map(|settlement| {
            let (change, delay, failure) = match &settlement.verdict {
                DeliveryVerdict::Complete => (Change::Delivered, 0, None),
                DeliveryVerdict::Retry(retry) => (Change::Retry, retry.delay_ms, Some(&retry.failure)),
                DeliveryVerdict::Release(delay) => (Change::Release, *delay, None),
                DeliveryVerdict::Suppressed(failure) => (Change::Suppressed, 0, Some(failure)),
                DeliveryVerdict::Quarantined(failure) => (Change::Dead, 0, Some(failure)),
            };
            (change, delay, failure, &settlement.ids)
        });
        self.write(worker, changes.collect(), self.lock_of(settlements.len()), statements)
    }

    fn lock_of(&self, settlements: usize) -> Option<&Template> {
        self.lock.as_ref().filter(|_| settlements > usize::from(!self.always_lock))
    }

    /// Appends the statements that renew leases.
    pub fn extend<'a>(&self, worker: &str, ids: &'a Column, lease_ms: u64, statements: &mut Vec<Statement>) -> Written<'a> {
        let lock = self.renewal_lock.as_ref().or(self.lock.as_ref().filter(|_| self.always_lock));
        self.write(worker, vec![(Change::Extend, lease_ms, None, ids)], lock, statements)
    }

    fn write<'a>(
        &self,
        worker: &str,
        changes: Vec<(Change, u64, Option<&Failure>, &'a Column)>,
        lock: Option<&Template>,
        statements: &mut Vec<Statement>,
    ) -> Written<'a> {
        let mut written = Vec::with_capacity(changes.len());
        let mut all = Vec::new();
        let mut writes = Vec::new();
        for (change, duration, failure, given) in changes {
            if given.is_empty() {
                continue;
            }
            let (ids, lost) = self.ids.parameter(given);
            let fenced = self.fenced(change);
            let value = |slot: Slot| match slot {
                Slot::Ids => ids.clone(),
                Slot::Worker => Value::Text(worker.to_owned()),
                Slot::Millis => millis(duration),
                // Deliveries have a column for the code.
                Slot::Text if self.suppressed.is_some() => failure.map_or(Value::Null, |failure| Value::Text(fan_out::detail(failure))),
                Slot::Text => failure.map_or(Value::Null, |failure| Value::Text(recorded(failure))),
                Slot::Code => failure.map_or(Value::Null, |failure| Value::Text(fan_out::code_of(failure).to_owned())),
                _ => Value::Null,
            };
            let after = self.after_dead.as_ref().filter(|_| change == Change::Dead);
            let follow: Vec<&Template> = fenced.then.iter().chain(after).collect();
            writes.push(fenced.first.fill(value));
            writes.extend(follow.iter().map(|template| template.fill(value)));
            written.push(WrittenChange { given, follow: follow.len(), lost });
            all.push(ids);
        }
        let lock = lock.filter(|_| !written.is_empty());
        let locked = lock.is_some();
        if let Some(lock) = lock {
            let all = IdKind::joined(all);
            statements.push(lock.fill(|slot| if slot == Slot::Ids { all.clone() } else { Value::Null }));
        }
        statements.extend(writes);
        Written { locked, changes: written }
    }

    /// Reads the results of written verdicts: the ids that were no longer held, each once.
    ///
    /// # Errors
    /// If the database driver broke its promise.
    pub fn lost(&self, written: Written<'_>, results: &mut Results) -> Result<Vec<String>, Failure> {
        let mut lost = Vec::new();
        if written.locked {
            results.next_rows()?;
        }
        for change in written.changes {
            let held = self.ids.read(&mut results.next_rows()?)?;
            for _ in 0..change.follow {
                results.next_rows()?;
            }
            if held.len() + change.lost.len() < change.given.len() {
                lost.extend(missing(&held, &change));
            }
            lost.extend(change.lost);
        }
        Ok(lost)
    }
}

fn missing(held: &Ids, change: &WrittenChange<'_>) -> Vec<String> {
    let held: HashSet<_> = (0..held.len()).map(|at| held.text(at)).collect();
    let mut seen = HashSet::new();
    let given = (0..change.given.len()).map(|at| change.given.text(at).unwrap_or_default());
    given.filter(|id| !held.contains(*id) && seen.insert(*id) && !change.lost.iter().any(|lost| lost == id)).map(str::to_owned).collect()
}

/// Verdicts on rows that were claimed and cannot be decoded: id and reason of each.
#[must_use]
pub fn undecodable(faults: &[(String, String)]) -> Vec<Settlement> {
    let dead = |(id, reason): &(String, String)| Settlement {
        verdict: Verdict::Dead(Failure::of(FailureCode::InvalidMessage, reason)),
        ids: Column::of_texts([id]),
    };
    faults.iter().map(dead).collect()
}
