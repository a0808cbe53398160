//! Settling: verdicts into statements, and which ids were no longer held.

use crate::outbox::{Outbox, Ready, millis};
use crate::statements::Change;
use outbox_table::database::{Database, Results, Statement, Value};
use outbox_table::failure::recorded;
use outbox_table::template::Slot;
use outhaul_sdk::{Column, Failure, FailureCode, Settlement, Verdict};
use std::collections::HashSet;

/// What is needed to read the results of written verdicts: the ids given, and how many results follow the first.
#[derive(Debug)]
pub(crate) struct Written<'a> {
    given: &'a Column,
    follow: bool,
    lost: Vec<String>,
}

/// The statements that write `change` to the rows `ids` that `worker` holds.
pub(crate) fn write<'a, D: Database>(
    ready: &Ready,
    worker: &str,
    change: Change,
    (duration, failure): (u64, Option<&Failure>),
    ids: &'a Column,
    statements: &mut Vec<Statement>,
) -> Option<Written<'a>> {
    if ids.is_empty() {
        return None;
    }
    let (values, lost) = Outbox::<D>::ids(ready, ids);
    let fenced = ready.fenced(change);
    let value = |slot: Slot| match slot {
        Slot::Ids => values.clone(),
        Slot::Worker => Value::Text(worker.to_owned()),
        Slot::Millis => millis(duration),
        Slot::Text => failure.map_or(Value::Null, |failure| Value::Text(recorded(failure))),
        _ => Value::Null,
    };
    statements.push(fenced.first.fill(value));
    statements.extend(fenced.then.as_ref().map(|template| template.fill(value)));
    Some(Written { given: ids, follow: fenced.then.is_some(), lost })
}

/// The statements of settlements.
pub(crate) fn statements<'a, D: Database>(
    ready: &Ready,
    worker: &str,
    settlements: &'a [Settlement],
    statements: &mut Vec<Statement>,
) -> Vec<Written<'a>> {
    let mut written = Vec::with_capacity(settlements.len());
    for settlement in settlements {
        let (change, with) = match &settlement.verdict {
            Verdict::Delivered => (Change::Delivered, (0, None)),
            Verdict::Retry(retry) => (Change::Retry, (retry.delay_ms, Some(&retry.failure))),
            Verdict::Release(delay) => (Change::Release, (*delay, None)),
            Verdict::Dead(failure) => (Change::Dead, (0, Some(failure))),
        };
        written.extend(write::<D>(ready, worker, change, with, &settlement.ids, statements));
    }
    written
}

/// Reads the results of written verdicts: the ids that were no longer held.
pub(crate) fn lost(ready: &Ready, written: Vec<Written<'_>>, results: &mut Results) -> Result<Vec<String>, Failure> {
    let mut lost = Vec::new();
    for written in written {
        let held = ready.decoding.read_ids(&mut results.next_rows()?)?;
        if written.follow {
            results.next_rows()?;
        }
        let held_count = match &held {
            outbox_table::decode::Ids::Integers(ids) => ids.len(),
            outbox_table::decode::Ids::Texts(ids) => ids.len(),
        };
        if held_count + written.lost.len() < written.given.len() {
            let held: HashSet<_> = (0..held_count).map(|at| held.text(at)).collect();
            let mut seen = HashSet::new();
            for at in 0..written.given.len() {
                let id = written.given.text(at).unwrap_or_default();
                if !held.contains(id) && seen.insert(id) && !written.lost.iter().any(|lost| lost == id) {
                    lost.push(id.to_owned());
                }
            }
        }
        lost.extend(written.lost);
    }
    Ok(lost)
}

impl<D: Database> Outbox<D> {
    /// Writes verdicts in one transaction; returns the ids no longer held.
    ///
    /// # Errors
    /// Those of the database; nothing is written then.
    pub fn settle(&mut self, worker: &str, settlements: &[Settlement]) -> Result<Vec<String>, Failure> {
        let ready = self.ready()?;
        let mut list = Vec::new();
        let written = statements::<D>(ready, worker, settlements, &mut list);
        self.run(written, list, "settling")
    }

    /// Lets leases end so long from now; returns the ids no longer held.
    ///
    /// # Errors
    /// Those of the database; nothing is written then.
    pub fn extend(&mut self, worker: &str, ids: &Column, lease_ms: u64) -> Result<Vec<String>, Failure> {
        let ready = self.ready()?;
        let mut list = Vec::new();
        let written = write::<D>(ready, worker, Change::Extend, (lease_ms, None), ids, &mut list);
        self.run(written.into_iter().collect(), list, "renewing leases")
    }

    /// Ends rows dead that `worker` has just claimed and that cannot be decoded: id and reason of each.
    pub(crate) fn end_dead(&mut self, worker: &str, faults: &[(String, String)]) -> Result<Vec<String>, Failure> {
        let settlements: Vec<Settlement> = faults
            .iter()
            .map(|(id, reason)| Settlement {
                verdict: Verdict::Dead(Failure::of(FailureCode::InvalidMessage, reason)),
                ids: Column::of_texts([id]),
            })
            .collect();
        self.settle(worker, &settlements)
    }

    fn run(&mut self, written: Vec<Written<'_>>, statements: Vec<Statement>, doing: &str) -> Result<Vec<String>, Failure> {
        if statements.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.writer.execute(statements).map_err(|error| self.failed(&error, doing))?;
        lost(self.ready()?, written, &mut Results::new(rows))
    }
}
