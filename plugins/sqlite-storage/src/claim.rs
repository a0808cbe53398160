//! Claiming: scan, choose, lease; in one transaction, together with settling where that is asked for.
//!
//! SQLite has one writer at a time, so what was scanned cannot change before it is leased, and no row has to be checked again.

use crate::outbox::{Outbox, Ready};
use crate::walk;
use outbox_table::choose::Choice;
use outbox_table::database::{Database, Results, Rows, Statement, Transaction, Value};
use outbox_table::decode::Decoding;
use outbox_table::failure;
use outbox_table::search::{self, Place, Progress, Reached, Segment, Source, Start, Trouble, integer};
use outbox_table::settle::{millis, undecodable};
use outbox_table::template::Slot;
use outhaul_sdk::{ClaimRequest, Claimed, Failure, FailureCode, Refusal, Settlement, Turn};
use std::time::Duration;

/// Where no index leads past settled rows, every so many claims the scan starts from the very first row again, for rows that were
/// requeued behind its back.
const FROM_THE_START_EVERY: u32 = 8;

/// How far claims have looked.
#[derive(Debug, Default)]
pub(crate) struct Looking {
    pub(crate) progress: Progress,
    /// No unsettled row up to here.
    floor: Option<Place>,
    claims: u32,
    /// It was said that there are rows with unusable ids.
    noticed: bool,
}

impl Looking {
    /// What was seen in a transaction that did not commit is worth nothing.
    pub(crate) fn forget(&mut self) {
        self.floor = None;
        self.progress.forget();
    }
}

impl Source for Ready {
    fn decoding(&self) -> &Decoding {
        &self.decoding
    }

    fn scan(&self, after: Option<&Place>, rows: usize) -> Statement {
        self.scan.template.fill(|slot| match slot {
            Slot::After => behind(after),
            Slot::Limit => integer(rows),
            _ => Value::Null,
        })
    }

    fn remembers(&self) -> bool {
        self.layout.order_only_grows()
    }

    fn walks(&self) -> bool {
        self.walk.is_some()
    }

    fn patience(&self) -> Duration {
        walk::MAX_TIME
    }

    fn kinds_without_key(&self) -> usize {
        self.walk.as_ref().map_or(0, |walk| walk.unkeyed.len())
    }

    fn without_key(&self, kind: usize, after: Option<&Place>, rows: usize) -> Statement {
        let template = self.walk.as_ref().and_then(|walk| walk.unkeyed.get(kind)).unwrap_or(&self.scan.template);
        template.fill(|slot| match slot {
            Slot::After => behind(after),
            Slot::Keys | Slot::Limit => integer(rows),
            _ => Value::Null,
        })
    }

    fn with_key(&self, after: Option<&Reached>, keys: usize, rows: usize) -> Statement {
        let start = self.walk.as_ref().map_or(Value::Null, |walk| walk.start.clone());
        let template = self.walk.as_ref().map_or(&self.scan.template, |walk| &walk.keys);
        template.fill(|slot| match slot {
            Slot::Key => after.and_then(|(kind, key)| typed(kind, key)).unwrap_or_else(|| start.clone()),
            // Text that is not UTF-8 goes in as bytes.
            Slot::Text => Value::Text(after.filter(|(kind, _)| kind == "text").map(|(kind, _)| kind.clone()).unwrap_or_default()),
            Slot::Keys => integer(keys),
            Slot::Limit => integer(rows),
            _ => Value::Null,
        })
    }
}

impl<D: Database> Outbox<D> {
    /// Leases rows that are due.
    ///
    /// # Errors
    /// Those of the database; nothing is leased then.
    pub fn claim(&mut self, request: &ClaimRequest) -> Result<Claimed, Failure> {
        self.settle_and_claim(&[], request).map(|turn| turn.claimed)
    }

    /// Settles, then claims, in one transaction.
    ///
    /// # Errors
    /// Those of the database; nothing is settled or leased then.
    pub fn settle_and_claim(&mut self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Turn, Failure> {
        let (mut turn, faults) = match self.turn(settlements, request) {
            Ok(done) => done,
            Err(Trouble::Sql(error)) => return Err(self.failed(&error, "claiming")),
            Err(Trouble::Failure(failure)) => return Err(failure),
        };
        if !faults.is_empty() {
            // They are leased and stay out of the batch. Where they cannot be ended now, they come up again when the lease ends, and
            // are reported then; the rows beside them must not wait for that.
            if let Ok(lost) = self.settle(&request.worker, &undecodable(&faults)) {
                let ended = faults.into_iter().filter(|(id, _)| !lost.contains(id));
                turn.claimed.refused.extend(ended.map(|(id, reason)| Refusal { id, failure: Failure::invalid_message(reason) }));
            }
        }
        Ok(turn)
    }

    /// The transaction; and the leased rows that could not be decoded.
    fn turn(&mut self, settlements: &[Settlement], request: &ClaimRequest) -> Result<(Turn, Vec<(String, String)>), Trouble> {
        self.ready()?;
        let Self { writer, random, notice, ready: Some(ready), looking, .. } = self else { return Err(Trouble::Failure(not_ready())) };
        let limits = search::limits(request, ready.layout.config.strict_order);
        let from_the_start = !ready.remembers() || !ready.scan.walks_settled || looking.claims % FROM_THE_START_EVERY == 0;
        let floor = if from_the_start { None } else { looking.floor.clone() };
        looking.claims = looking.claims.wrapping_add(1);
        let start = Start { floor, rows: looking.progress.rows(limits.rows), passed: looking.progress.passed() };

        let mut statements = Vec::new();
        let written = ready.verdicts.settle(&request.worker, settlements, &mut statements);
        statements.push(Source::scan(ready, start.after(), start.rows));
        let (transaction, rows) = writer.begin(statements)?;
        let mut results = Results::new(rows);
        let lost = ready.verdicts.lost(written, &mut results)?;
        let first = Segment::read(&ready.decoding, &mut results.next_rows()?)?;

        let looked = search::look(&transaction, ready, &mut looking.progress, limits, start, first)?;
        let next_floor = match &looked.first_unsettled {
            Some(Place::Number(order)) => Some(Place::Number(order.saturating_sub(1))),
            _ => looking.floor.clone(),
        };
        let unfinished = looked.unfinished;
        let (found, passed) = looked.choose(random, limits, ready.remembers());
        if let (false, Some(id)) = (looking.noticed, found.unusable_id()) {
            looking.noticed = true;
            *notice = Some(format!("rows whose id is not UTF-8 text are left alone, and hold back no others; such as `{id}`"));
        }
        if !(found.is_empty() || ready.states_tried) {
            drop(transaction);
            self.try_states()?;
            return self.turn(settlements, request);
        }
        if found.is_empty() {
            if !settlements.is_empty() {
                transaction.commit(Vec::new())?;
            }
            looking.floor = next_floor;
            looking.progress.keep(passed, false);
            let claimed = Claimed { batch: outhaul_sdk::Batch::new(), refused: Vec::new(), unfinished };
            return Ok((Turn { lost, claimed }, Vec::new()));
        }

        let kind = ready.decoding.ids;
        let Choice { taken, .. } = &found.choice;
        let mut statements = Vec::new();
        let mut refusals = Vec::new();
        for (why, reason) in search::reasons(request) {
            let ids = found.ids(found.refused(why), kind);
            let names = search::names(&ids);
            if names.is_empty() {
                continue;
            }
            let text = failure::recorded(&reason);
            statements.extend(ready.refuse.iter().map(|template| {
                template.fill(|slot| match slot {
                    Slot::Ids => ids.clone(),
                    Slot::Text => Value::Text(text.clone()),
                    _ => Value::Null,
                })
            }));
            refusals.extend(names.into_iter().map(|id| Refusal { id, failure: reason.clone() }));
        }
        let before = statements.len();
        if !taken.is_empty() {
            let ids = found.ids(taken.iter().copied(), kind);
            statements.extend(ready.claim.iter().map(|template| {
                template.fill(|slot| match slot {
                    Slot::Ids => ids.clone(),
                    Slot::Worker => Value::Text(request.worker.clone()),
                    Slot::Millis => millis(request.lease_ms),
                    _ => Value::Null,
                })
            }));
        }
        let claims = statements.len() > before;
        let rows = transaction.commit(statements)?;
        looking.floor = next_floor;
        looking.progress.keep(passed, true);
        let (batch, faults) = if claims {
            let last: Vec<Rows> = rows.into_iter().next_back().into_iter().collect();
            let fetched = ready.decoding.read(&mut Results::new(last).next_rows()?)?;
            let decoded = ready.decoding.decode(fetched, false);
            (decoded.batch, decoded.faults)
        } else {
            (outhaul_sdk::Batch::new(), Vec::new())
        };
        Ok((Turn { lost, claimed: Claimed { batch, refused: refusals, unfinished: false } }, faults))
    }
}

/// A place as a parameter; none: before the first row.
fn behind(after: Option<&Place>) -> Value {
    match after {
        Some(Place::Number(order)) => Value::Integer(*order),
        _ => Value::Integer(i64::MIN),
    }
}

/// A key as it is stored.
fn typed(kind: &str, key: &[u8]) -> Option<Value> {
    let text = || std::str::from_utf8(key).ok();
    match kind {
        "integer" => text()?.parse().ok().map(Value::Integer),
        "real" => text()?.parse().ok().map(Value::Real),
        "text" => text().map_or_else(|| Some(Value::Bytes(key.to_vec())), |text| Some(Value::Text(text.to_owned()))),
        _ => Some(Value::Bytes(key.to_vec())),
    }
}

fn not_ready() -> Failure {
    Failure::of(FailureCode::Unavailable, "the table is not there")
}
