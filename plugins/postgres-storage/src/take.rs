//! Taking what searches have found: rows that can never be claimed again are ended, the others leased, those of all tenants together.

use crate::layout::Role;
use crate::outbox::Ready;
use outbox_table::choose::Refused;
use outbox_table::database::{Reader, Results, Rows, Statement, Transaction, Value};
use outbox_table::decode::{Decoded, Fetched};
use outbox_table::failure;
use outbox_table::fan_out::{code_of, deliveries_reasons, detail};
use outbox_table::ids::IdKind;
use outbox_table::page::text_of;
use outbox_table::search::{self, Found, Trouble};
use outbox_table::settle::millis;
use outbox_table::template::{Slot, Template};
use outhaul_sdk::{Batch, ClaimRequest, Column, Failure, FailureCode, Refusal};
use std::collections::{HashMap, HashSet};

/// What was found of one tenant.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) found: Found,
}

/// A row that was found: which part, and where in it.
type At = (usize, usize);

/// Taking what was found.
pub(crate) struct Taking<'a> {
    pub(crate) ready: &'a Ready,
    pub(crate) request: &'a ClaimRequest,
    pub(crate) parts: &'a [Part<'a>],
    /// There may be rows in front of those that were found.
    pub(crate) probe: bool,
    pub(crate) horizon_ms: u64,
}

/// Tenant and generation of events, by their ids.
pub(crate) type Emissions = HashMap<String, (String, u32)>;

/// What was taken.
pub(crate) struct Taken {
    pub(crate) decoded: Decoded,
    pub(crate) refused: Vec<Refusal>,
    /// Tenant and generation by event, where they are told.
    pub(crate) emissions: Emissions,
}

impl Taking<'_> {
    /// The ids at positions, which ascend.
    fn ids(&self, positions: &[At]) -> Value {
        let kind = self.ready.decoding.ids;
        let ids = self.parts.iter().enumerate().map(|(part, of)| of.found.ids(within(positions, part), kind));
        joined(ids.collect(), kind)
    }

    /// The rows that were chosen.
    fn taken(&self) -> Vec<At> {
        let parts = self.parts.iter().enumerate();
        parts.flat_map(|(part, of)| of.found.choice.taken.iter().map(move |at| (part, *at))).collect()
    }

    /// Ends the rows that can never be claimed again, leases the others, and commits, unless the transaction is to be kept.
    pub(crate) fn take<T: Transaction>(&self, transaction: T, keep: bool) -> Result<(Taken, Option<T>), Trouble> {
        let claim = &self.ready.claim;
        let locked = match &claim.beside {
            None => None,
            Some(beside) => {
                let refused = self.parts.iter().enumerate();
                let refused = refused.flat_map(|(part, of)| of.found.choice.refused.iter().map(move |(at, _)| (part, *at)));
                let mut all: Vec<At> = self.taken().into_iter().chain(refused).collect();
                all.sort_unstable();
                let ids = self.ids(&all);
                Some(self.listed(&transaction, beside.lock.fill(|slot| if slot == Slot::Ids { ids.clone() } else { Value::Null }))?)
            }
        };
        let (refused, cut) = self.refuse(&transaction, locked.as_ref())?;
        let positions: Vec<At> = self.taken().into_iter().filter(|at| !cut.contains(at)).collect();
        if positions.is_empty() {
            let (_, kept) = end(transaction, Vec::new(), keep)?;
            let decoded = Decoded { batch: Batch::new(), faults: Vec::new() };
            return Ok((Taken { decoded, refused, emissions: HashMap::new() }, kept));
        }
        let ids = self.ids(&positions);
        let keys = numbered(&self.keys(&positions));
        let value = |slot: Slot| match slot {
            Slot::Ids => ids.clone(),
            Slot::KeyOf => Value::Integers(keys.clone()),
            Slot::Locked => locked.clone().unwrap_or(Value::Null),
            Slot::Worker => Value::Text(self.request.worker.clone()),
            Slot::Millis => millis(self.request.lease_ms),
            Slot::Attempts => Value::Integer(i64::from(self.request.max_attempts)),
            _ => Value::Null,
        };
        let lease = if self.probe { &claim.probe } else { &claim.lease };
        let ((fetched, emissions), kept) = match &claim.beside {
            None => {
                let (rows, kept) = end(transaction, vec![lease.fill(value)], keep)?;
                (self.read(Results::new(rows).next_rows()?)?, kept)
            }
            Some(beside) => {
                let leased = self.listed(&transaction, lease.fill(value))?;
                let of_leased = |template: &Template| template.fill(|slot| if slot == Slot::Ids { leased.clone() } else { value(slot) });
                let mut statements: Vec<Statement> = beside.mark.iter().map(of_leased).collect();
                let read_at = statements.len();
                statements.push(of_leased(&beside.read));
                let (rows, kept) = end(transaction, statements, keep)?;
                (self.read(Results::new(rows.into_iter().skip(read_at).collect()).next_rows()?)?, kept)
            }
        };
        Ok((Taken { decoded: self.ready.decoding.decode(self.in_order(fetched, &ids), false), refused, emissions }, kept))
    }

    /// Messages; and of events, their emissions.
    fn read(&self, mut reader: Reader) -> Result<(Fetched, Emissions), Failure> {
        let fetched = self.ready.decoding.read(&mut reader)?;
        if !self.ready.layout.tells_emissions {
            return Ok((fetched, HashMap::new()));
        }
        let (events, tenants, generations) = (reader.bytes()?, reader.bytes()?, reader.integers()?);
        let generation = |at| u32::try_from(generations.count(at)).unwrap_or(u32::MAX);
        let emission = |at| (text_of(&events, at), (text_of(&tenants, at), generation(at)));
        Ok((fetched, (0..events.len()).map(emission).collect()))
    }

    /// Messages come back in no order. Where the order is no number, it is that of the ids, which the search has read in order.
    fn in_order(&self, fetched: Fetched, ids: &Value) -> Fetched {
        if self.ready.decoding.place_texts == 0 { fetched } else { fetched.in_order_of(ids) }
    }

    /// Ends rows dead; and the positions that must not be taken: behind a row of the same key that others had by now.
    fn refuse<T: Transaction>(&self, transaction: &T, locked: Option<&Value>) -> Result<(Vec<Refusal>, HashSet<At>), Trouble> {
        let locked: Option<HashSet<String>> = locked.map(|ids| search::names(ids).into_iter().collect());
        let mut refusals = Vec::new();
        let mut cut = HashSet::new();
        for (why, reason) in self.reasons() {
            let parts = self.parts.iter().enumerate();
            let positions: Vec<At> = parts.flat_map(|(part, of)| of.found.refused(why).map(move |at| (part, at))).collect();
            if positions.is_empty() {
                continue;
            }
            let free: Vec<At> = match &locked {
                None => positions.clone(),
                Some(locked) => positions.iter().filter(|at| locked.contains(&self.name(**at))).copied().collect(),
            };
            let ended = self.end(transaction, why, &free, &reason)?;
            let not_ended: Vec<At> = positions.into_iter().filter(|at| !ended.contains_key(&self.name(*at))).collect();
            cut.extend(self.behind(&not_ended));
            refusals.extend(ended.into_iter().map(|(id, failure)| Refusal { id, failure }));
        }
        Ok((refusals, cut))
    }

    /// The id at a position, as text.
    fn name(&self, at: At) -> String {
        search::names(&self.ids(&[at])).pop().unwrap_or_default()
    }

    /// Why rows are ended.
    fn reasons(&self) -> Vec<(Refused, Failure)> {
        match self.ready.layout.role {
            Role::Deliveries => deliveries_reasons(self.request, self.horizon_ms).to_vec(),
            _ => search::reasons(self.request).to_vec(),
        }
    }

    /// Ends rows; returns the ids of those that were ended, with what was recorded.
    fn end<T: Transaction>(
        &self,
        transaction: &T,
        why: Refused,
        positions: &[At],
        reason: &Failure,
    ) -> Result<HashMap<String, Failure>, Trouble> {
        let claim = &self.ready.claim;
        let template = if why == Refused::TooOld { claim.expire.as_ref().unwrap_or(&claim.refuse) } else { &claim.refuse };
        let at_least = if why == Refused::AttemptsUsedUp { self.request.max_attempts } else { 0 };
        let ids = self.ids(positions);
        let recorded = if self.ready.layout.columns.code.is_some() { detail(reason) } else { failure::recorded(reason) };
        let value = |slot: Slot| match slot {
            Slot::Ids => ids.clone(),
            Slot::Text => Value::Text(recorded.clone()),
            Slot::Code => Value::Text(code_of(reason).to_owned()),
            Slot::Attempts => Value::Integer(i64::from(at_least)),
            Slot::Horizon => millis(self.horizon_ms),
            _ => Value::Null,
        };
        let mut reader = Results::new(transaction.execute(vec![template.fill(value)])?).next_rows()?;
        let ended = self.ready.decoding.ids.read(&mut reader)?.into_value();
        let names = search::names(&ended);
        if why == Refused::TooOld {
            // Each has the code that it had.
            let codes = reader.bytes()?;
            let failure = |at| Failure { code: FailureCode::Other(text_of(&codes, at)), ..reason.clone() };
            return Ok(names.into_iter().enumerate().map(|(at, id)| (id, failure(at))).collect());
        }
        if let Some(beside) = claim.beside.as_ref().and_then(|beside| beside.ended.as_ref()) {
            transaction.execute(vec![beside.fill(|slot| if slot == Slot::Ids { ended.clone() } else { value(slot) })])?;
        }
        Ok(names.into_iter().map(|id| (id, reason.clone())).collect())
    }

    /// The chosen positions behind one of these, of the same key.
    fn behind(&self, positions: &[At]) -> Vec<At> {
        if positions.is_empty() || !self.ready.layout.config.strict_order {
            return Vec::new();
        }
        let taken = self.taken();
        let (of_these, of_taken) = (self.keys(positions), self.keys(&taken));
        let first = |key: &[u8]| positions.iter().enumerate().find(|(at, _)| of_these.get(*at) == Some(key)).map(|(_, position)| *position);
        let is_behind = |(at, position): &(usize, &At)| of_taken.get(*at).and_then(first).is_some_and(|first| first < **position);
        taken.iter().enumerate().filter(is_behind).map(|(_, position)| *position).collect()
    }

    /// The keys at positions, which ascend. Those that are not UTF-8 (in a database without an encoding) are replaced: two that come to be
    /// the same hold each other back, and nothing else. Where there are several tenants, each has keys of its own.
    fn keys(&self, positions: &[At]) -> Column {
        let mut keys = Column::new();
        for (part, of) in self.parts.iter().enumerate() {
            for key in of.found.keys(within(positions, part)).iter() {
                let key = key.map(String::from_utf8_lossy);
                let key = if self.parts.len() > 1 { key.map(|key| format!("{}:{}{key}", of.tenant.len(), of.tenant).into()) } else { key };
                keys.push(key.as_deref().map(str::as_bytes));
            }
        }
        keys
    }

    /// Runs a statement that returns ids.
    fn listed<T: Transaction>(&self, transaction: &T, statement: Statement) -> Result<Value, Trouble> {
        let rows = transaction.execute(vec![statement])?;
        let ids = self.ready.decoding.ids.read(&mut Results::new(rows).next_rows()?)?;
        Ok(ids.into_value())
    }
}

/// Runs the last statements and commits, unless the transaction is to be kept.
fn end<T: Transaction>(transaction: T, statements: Vec<Statement>, keep: bool) -> Result<(Vec<Rows>, Option<T>), Trouble> {
    if keep { Ok((transaction.execute(statements)?, Some(transaction))) } else { Ok((transaction.commit(statements)?, None)) }
}

/// Keys as numbers, equal ones as equal numbers; 0: none.
fn numbered(keys: &Column) -> Vec<i64> {
    let mut numbers: HashMap<&[u8], i64> = HashMap::new();
    let mut next = 0;
    let mut number = |key| {
        *numbers.entry(key).or_insert_with(|| {
            next += 1;
            next
        })
    };
    keys.iter().map(|key| key.map_or(0, &mut number)).collect()
}

/// Those of the positions that are in a part.
fn within(positions: &[At], part: usize) -> impl Iterator<Item = usize> + '_ {
    positions.iter().filter(move |(of, _)| *of == part).map(|(_, at)| *at)
}

/// Ids of several parts as one parameter.
fn joined(lists: Vec<Value>, kind: IdKind) -> Value {
    let mut numbers = Vec::new();
    let mut texts = Column::new();
    for list in lists {
        match list {
            Value::Integers(ids) => numbers.extend(ids),
            Value::Texts(ids) => ids.iter().for_each(|id| texts.push(id)),
            _ => {}
        }
    }
    if kind == IdKind::Integer { Value::Integers(numbers) } else { Value::Texts(texts) }
}
