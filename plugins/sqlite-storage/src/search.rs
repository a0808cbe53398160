//! A search for rows to lease, and what it has come to: which statements lease and end them. The whole table, or one tenant's rows in it.
//!
//! SQLite has one writer at a time, so what was scanned cannot change before it is leased, and no row has to be checked again.

use crate::outbox::Ready;
use crate::walk;
use outbox_table::choose::{Limits, Refused};
use outbox_table::database::{Results, Rows, Statement, Transaction, Value};
use outbox_table::decode::Decoding;
use outbox_table::failure;
use outbox_table::fan_out::{code_of, deliveries_reasons, detail};
use outbox_table::random::Random;
use outbox_table::search::{self, Passed, Place, Progress, Reached, Segment, Source, Start, Trouble, integer};
use outbox_table::settle::millis;
use outbox_table::template::{Slot, Template};
use outhaul_sdk::{Batch, ClaimRequest, Failure, FailureCode, Refusal};
use std::time::Duration;

/// Where no index leads past settled rows, every so many claims the scan starts from the very first row again, for rows that were
/// requeued behind its back.
const FROM_THE_START_EVERY: u32 = 8;

/// How far claims have looked.
#[derive(Debug, Default)]
pub(crate) struct Looking {
    progress: Progress,
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

    /// Where the next search starts.
    pub(crate) fn start(&mut self, ready: &Ready, limits: Limits) -> Start {
        let from_the_start =
            !ready.layout.order_only_grows() || !ready.scan.walks_settled || self.claims.is_multiple_of(FROM_THE_START_EVERY);
        let floor = if from_the_start { None } else { self.floor.clone() };
        self.claims = self.claims.wrapping_add(1);
        Start { floor, rows: self.progress.rows(limits.rows), passed: self.progress.passed() }
    }

    /// What the search has seen, once it is committed.
    pub(crate) fn keep(&mut self, chosen: &mut Chosen) {
        if let Some(Place::Number(order)) = &chosen.first_unsettled {
            self.floor = Some(Place::Number(order.saturating_sub(1)));
        }
        self.progress.keep(chosen.passed.take(), !chosen.is_empty());
    }
}

/// A search through one table, or the rows of one tenant in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Search<'a> {
    pub(crate) ready: &'a Ready,
    /// Where searches go tenant by tenant: whose rows.
    pub(crate) tenant: Option<&'a str>,
    /// How old a delivery may get; 0: as old as it likes.
    pub(crate) horizon_ms: u64,
}

impl Search<'_> {
    fn fill(&self, template: &Template, value: impl Fn(Slot) -> Value) -> Statement {
        template.fill(|slot| match slot {
            Slot::Tenant => self.tenant.map_or(Value::Null, |tenant| Value::Text(tenant.to_owned())),
            Slot::Horizon => millis(self.horizon_ms),
            _ => value(slot),
        })
    }
}

impl Source for Search<'_> {
    fn decoding(&self) -> &Decoding {
        &self.ready.decoding
    }

    fn scan(&self, after: Option<&Place>, rows: usize) -> Statement {
        self.fill(&self.ready.scan.template, |slot| match slot {
            Slot::After => behind(after),
            Slot::Limit => integer(rows),
            _ => Value::Null,
        })
    }

    fn remembers(&self) -> bool {
        self.ready.layout.order_only_grows()
    }

    fn walks(&self) -> bool {
        self.ready.walk.is_some()
    }

    fn patience(&self) -> Duration {
        walk::MAX_TIME
    }

    fn kinds_without_key(&self) -> usize {
        self.ready.walk.as_ref().map_or(0, |walk| walk.unkeyed.len())
    }

    fn without_key(&self, kind: usize, after: Option<&Place>, rows: usize) -> Statement {
        let template = self.ready.walk.as_ref().and_then(|walk| walk.unkeyed.get(kind)).unwrap_or(&self.ready.scan.template);
        self.fill(template, |slot| match slot {
            Slot::After => behind(after),
            Slot::Keys | Slot::Limit => integer(rows),
            _ => Value::Null,
        })
    }

    fn with_key(&self, after: Option<&Reached>, keys: usize, rows: usize) -> Statement {
        let walk = self.ready.walk.as_ref();
        let start = walk.map_or(Value::Null, |walk| walk.start.clone());
        let template = walk.map_or(&self.ready.scan.template, |walk| &walk.keys);
        self.fill(template, |slot| match slot {
            Slot::Key => after.and_then(|(kind, key)| typed(kind, key)).unwrap_or_else(|| start.clone()),
            // Text that is not UTF-8 goes in as bytes.
            Slot::Text => Value::Text(after.filter(|(kind, _)| kind == "text").map(|(kind, _)| kind.clone()).unwrap_or_default()),
            Slot::Keys => integer(keys),
            Slot::Limit => integer(rows),
            _ => Value::Null,
        })
    }
}

/// What a search has come to: the statements that lease and end rows, and what their results will mean.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) statements: Vec<Statement>,
    /// Rows that it leases.
    pub(crate) rows: usize,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Rows that it ends.
    ended: usize,
    /// Those of them that end for a reason of their own.
    refusals: Vec<Refusal>,
    /// Which statement ends deliveries for their age, and why.
    too_old: Option<(usize, Failure)>,
    /// Rows could have been leased, and were left for want of room.
    pub(crate) left: bool,
    /// Nothing was found so far, and there is more to look at.
    pub(crate) unfinished: bool,
    /// The id of a row that can be named to nobody.
    unusable: Option<String>,
    passed: Option<Passed>,
    first_unsettled: Option<Place>,
}

/// What a claim has got.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) batch: Batch,
    pub(crate) refused: Vec<Refusal>,
    /// Leased rows that could not be decoded: id and reason.
    pub(crate) faults: Vec<(String, String)>,
}

impl Search<'_> {
    /// Looks for rows from the first segment on, and chooses among them.
    pub(crate) fn choose<T: Transaction>(
        &self,
        transaction: &T,
        looking: &mut Looking,
        random: &mut Random,
        (request, limits): (&ClaimRequest, Limits),
        (start, first): (Start, Segment),
    ) -> Result<Chosen, Trouble> {
        let mut looked = search::look(transaction, self, &mut looking.progress, limits, start, first)?;
        let (first_unsettled, unfinished) = (looked.first_unsettled.take(), looked.unfinished);
        // A database with one writer has nothing to look up for what was passed over.
        let (found, passed) = looked.choose(random, limits, self.remembers().then_some(0));
        let unusable = found.unusable_id().filter(|_| !looking.noticed);
        looking.noticed |= unusable.is_some();
        let mut chosen = Chosen {
            statements: Vec::new(),
            rows: found.choice.taken.len(),
            bytes: found.bytes(),
            ended: found.choice.refused.len(),
            refusals: Vec::new(),
            too_old: None,
            left: found.choice.first_left.is_some(),
            unfinished,
            unusable,
            passed,
            first_unsettled,
        };
        let kind = self.ready.decoding.ids;
        for (why, reason) in self.reasons(request) {
            let ids = found.ids(found.refused(why), kind);
            let names = search::names(&ids);
            if names.is_empty() {
                continue;
            }
            let deliveries = self.ready.layout.is_deliveries();
            let text = if deliveries { detail(&reason) } else { failure::recorded(&reason) };
            let value = |slot| match slot {
                Slot::Ids => ids.clone(),
                Slot::Text => Value::Text(text.clone()),
                Slot::Code => Value::Text(code_of(&reason).to_owned()),
                _ => Value::Null,
            };
            match self.ready.refuse_old.as_ref().filter(|_| why == Refused::TooOld) {
                Some(template) => {
                    chosen.too_old = Some((chosen.statements.len(), reason.clone()));
                    chosen.statements.push(template.fill(value));
                }
                None => {
                    chosen.statements.extend(self.ready.refuse.iter().map(|template| template.fill(value)));
                    chosen.refusals.extend(names.into_iter().map(|id| Refusal { id, failure: reason.clone() }));
                }
            }
        }
        if chosen.rows > 0 {
            let ids = found.ids(found.choice.taken.iter().copied(), kind);
            chosen.statements.extend(self.ready.claim.iter().map(|template| {
                template.fill(|slot| match slot {
                    Slot::Ids => ids.clone(),
                    Slot::Worker => Value::Text(request.worker.clone()),
                    Slot::Millis => millis(request.lease_ms),
                    _ => Value::Null,
                })
            }));
        }
        Ok(chosen)
    }

    /// Why rows end dead.
    fn reasons(&self, request: &ClaimRequest) -> Vec<(Refused, Failure)> {
        if self.ready.layout.is_deliveries() {
            deliveries_reasons(request, self.horizon_ms).into()
        } else {
            search::reasons(request).into()
        }
    }

    /// Reads the results of the statements.
    pub(crate) fn read(&self, chosen: &mut Chosen, mut rows: Vec<Rows>) -> Result<Taken, Failure> {
        let mut taken = Taken { refused: std::mem::take(&mut chosen.refusals), ..Taken::default() };
        if chosen.rows > 0 {
            let last: Vec<Rows> = rows.pop().into_iter().collect();
            let fetched = self.ready.decoding.read(&mut Results::new(last).next_rows()?)?;
            let decoded = self.ready.decoding.decode(fetched, false);
            (taken.batch, taken.faults) = (decoded.batch, decoded.faults);
        }
        if let Some((at, reason)) = chosen.too_old.take() {
            let mut reader = Results::new(rows.into_iter().skip(at).collect()).next_rows()?;
            let (ids, codes) = (self.ready.decoding.ids.read(&mut reader)?, reader.bytes()?);
            taken.refused.extend((0..ids.len()).map(|at| Refusal {
                id: ids.text(at).into_owned(),
                failure: Failure { code: FailureCode::Other(outbox_table::page::text_of(&codes, at)), ..reason.clone() },
            }));
        }
        Ok(taken)
    }
}

impl Chosen {
    /// There is nothing to lease and nothing to end.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0 && self.ended == 0
    }

    /// What is to be told to whoever runs the storage.
    pub(crate) fn notice(&mut self) -> Option<String> {
        let id = self.unusable.take()?;
        Some(format!("rows whose id is not UTF-8 text are left alone, and hold back no others; such as `{id}`"))
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
