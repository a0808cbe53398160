//! Claiming: search, lock what was chosen, lease what is still to be had; in one transaction.

use crate::lock::Claim;
use crate::outbox::{Outbox, Ready};
use crate::statements::after;
use crate::walk;
use outbox_table::choose::Limits;
use outbox_table::database::{Database, Results, SqlErrorCode, Statement, Transaction, Value};
use outbox_table::decode::{Decoded, Decoding, Fetched};
use outbox_table::failure;
use outbox_table::search::{self, Found, Place, Progress, Reached, Segment, Source, Start, Trouble, integer};
use outbox_table::settle::{millis, undecodable};
use outbox_table::template::{Slot, Template};
use outhaul_sdk::{Batch, ClaimRequest, Claimed, Column, Failure, FailureCode, Refusal, Settlement, Turn};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Others may have been faster with every row that was chosen; then there are others to choose. Not for ever: what somebody keeps locked
/// cannot be had, and is looked at again with the next claim.
const ROUNDS: u32 = 3;

/// How far claims have looked.
#[derive(Debug, Default)]
pub(crate) struct Looking {
    pub(crate) progress: Progress,
    /// It was said that there are rows with unusable ids.
    noticed: bool,
}

impl Source for Ready {
    fn decoding(&self) -> &Decoding {
        &self.decoding
    }

    fn scan(&self, place: Option<&Place>, rows: usize) -> Statement {
        let [front, behind] = &self.scan;
        let template = if place.is_some() { behind } else { front };
        template.fill(|slot| if slot == Slot::Limit { integer(rows) } else { after(place, slot) })
    }

    /// A row may be committed in front of others that were claimed already. Where its key is looked up in the table itself before a later
    /// row of it is leased, none is overtaken.
    fn remembers(&self) -> bool {
        self.layout.has_key_index
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

    fn without_key(&self, kind: usize, place: Option<&Place>, rows: usize) -> Statement {
        let [start, on] = self.walk.as_ref().and_then(|walk| walk.unkeyed.get(kind)).unwrap_or(&self.scan);
        let template = if place.is_some() { on } else { start };
        template.fill(|slot| if matches!(slot, Slot::Keys | Slot::Limit) { integer(rows) } else { after(place, slot) })
    }

    fn with_key(&self, key: Option<&Reached>, keys: usize, rows: usize) -> Statement {
        let [start, on] = self.walk.as_ref().map_or(&self.scan, |walk| &walk.keys);
        let template = if key.is_some() { on } else { start };
        template.fill(|slot| match slot {
            Slot::Key => key.map_or(Value::Null, |(_, key)| Value::Text(String::from_utf8_lossy(key).into_owned())),
            Slot::Keys => integer(keys),
            Slot::Limit => integer(rows),
            _ => Value::Null,
        })
    }
}

/// What one round came to.
#[derive(Debug)]
struct Round {
    turn: Turn,
    /// Leased rows that could not be decoded.
    faults: Vec<(String, String)>,
    /// Rows were chosen, and none of them was to be had.
    raced: bool,
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
        let mut rounds = 1..ROUNDS;
        let mut round = loop {
            match self.round(settlements, request) {
                Ok(round) => break round,
                // Nothing was written. Somebody was in the way, such as one who has moved a row to another partition.
                Err(Trouble::Sql(error)) if error.code == SqlErrorCode::Busy && rounds.next().is_some() => self.looking.progress.forget(),
                Err(Trouble::Sql(error)) => return Err(self.failed(&error, "claiming")),
                Err(Trouble::Failure(failure)) => return Err(failure),
            }
        };
        let lost = std::mem::take(&mut round.turn.lost);
        for _ in rounds {
            if !round.raced {
                break;
            }
            // What was settled is committed. A failure now is met again by the next claim.
            match self.round(&[], request) {
                Ok(next) => round = next,
                Err(Trouble::Sql(error)) => {
                    self.failed(&error, "claiming");
                    break;
                }
                Err(Trouble::Failure(_)) => break,
            }
        }
        let Round { mut turn, faults, .. } = round;
        turn.lost = lost;
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

    fn round(&mut self, settlements: &[Settlement], request: &ClaimRequest) -> Result<Round, Trouble> {
        self.ready()?;
        let Self { writer, random, notice, ready: Some(ready), looking, .. } = self else { return Err(Trouble::Failure(not_ready())) };
        let limits = search::limits(request, ready.layout.config.strict_order);
        // An estimate refuses nothing.
        let searched = if ready.weigh.is_some() { Limits { max_message_bytes: u64::MAX, ..limits } } else { limits };
        let start = Start { floor: None, rows: looking.progress.rows(limits.rows), passed: looking.progress.passed() };

        let mut statements = Vec::new();
        let written = ready.verdicts.settle(&request.worker, settlements, &mut statements);
        statements.push(Source::scan(ready, start.after(), start.rows));
        let (transaction, rows) = writer.begin(statements)?;
        let mut results = Results::new(rows);
        let lost = ready.verdicts.lost(written, &mut results)?;
        let first = Segment::read(&ready.decoding, &mut results.next_rows()?)?;

        let looked = search::look(&transaction, ready, &mut looking.progress, searched, start, first)?;
        let (unfinished, probe) = (looked.unfinished, looked.left_out());
        let (mut found, mut passed) = looked.choose(random, searched, ready.remembers());
        if let (false, Some(id)) = (looking.noticed, found.unusable_id()) {
            looking.noticed = true;
            *notice = Some(format!("rows whose id is not UTF-8 text are left alone, and hold back no others; such as `{id}`"));
        }
        if !(found.is_empty() || ready.states_tried) {
            drop(transaction);
            self.try_states()?;
            return self.round(settlements, request);
        }
        if found.is_empty() {
            if !settlements.is_empty() {
                transaction.commit(Vec::new())?;
            }
            looking.progress.keep(passed, false);
            let claimed = Claimed { batch: Batch::new(), refused: Vec::new(), unfinished };
            return Ok(Round { turn: Turn { lost, claimed }, faults: Vec::new(), raced: false });
        }
        if weigh(ready, &transaction, &mut found, limits)? {
            // Others were to be passed over than are left now.
            passed = None;
        }
        let taken = Taking { ready, request, found: &found, probe }.take(transaction)?;
        let got = taken.decoded.batch.len() + taken.decoded.faults.len();
        if got.saturating_mul(2) < found.choice.taken.len() {
            looking.progress.lost_a_race(limits.rows);
        }
        looking.progress.keep(passed, true);
        let raced = got == 0 && taken.refused.is_empty();
        let claimed = Claimed { batch: taken.decoded.batch, refused: taken.refused, unfinished: false };
        Ok(Round { turn: Turn { lost, claimed }, faults: taken.decoded.faults, raced })
    }
}

/// Weighs what was chosen, where the scan could not; whether rows that were chosen are left for the next claim.
fn weigh<T: Transaction>(ready: &Ready, transaction: &T, found: &mut Found, limits: Limits) -> Result<bool, Trouble> {
    let Some(weigh) = ready.weigh.as_ref().filter(|_| !found.choice.taken.is_empty()) else { return Ok(false) };
    let kind = ready.decoding.ids;
    let ids = found.ids(found.choice.taken.iter().copied(), kind);
    let rows = transaction.execute(vec![weigh.fill(|slot| if slot == Slot::Ids { ids.clone() } else { Value::Null })])?;
    let mut reader = Results::new(rows).next_rows()?;
    let (weighed, sizes) = (search::names(&kind.read(&mut reader)?.into_value()), reader.integers()?);
    let size_of: HashMap<String, u64> = weighed.into_iter().enumerate().map(|(at, id)| (id, sizes.count(at))).collect();
    // One that is gone weighs nothing, and is not to be had.
    let sizes: Vec<u64> = search::names(&ids).iter().map(|id| size_of.get(id).copied().unwrap_or(0)).collect();
    let (choice, cut) = std::mem::take(&mut found.choice).weighed(limits, &sizes);
    found.choice = choice;
    Ok(cut)
}

/// Taking what was found.
struct Taking<'a> {
    ready: &'a Ready,
    request: &'a ClaimRequest,
    found: &'a Found,
    /// There may be rows in front of those that were found.
    probe: bool,
}

/// What was taken.
struct Taken {
    decoded: Decoded,
    refused: Vec<Refusal>,
}

impl Taking<'_> {
    fn ids(&self, positions: impl Iterator<Item = usize>) -> Value {
        self.found.ids(positions, self.ready.decoding.ids)
    }

    /// Ends the rows that can never be claimed again, leases the others, and commits.
    fn take<T: Transaction>(&self, transaction: T) -> Result<Taken, Trouble> {
        let claim = &self.ready.claim;
        let choice = &self.found.choice;
        let locked = match &claim.beside {
            None => None,
            Some(beside) => {
                let mut all: Vec<usize> = choice.taken.iter().copied().chain(choice.refused.iter().map(|(at, _)| *at)).collect();
                all.sort_unstable();
                let ids = self.ids(all.into_iter());
                Some(self.listed(&transaction, beside.lock.fill(|slot| if slot == Slot::Ids { ids.clone() } else { Value::Null }))?)
            }
        };
        let (refused, cut) = self.refuse(&transaction, locked.as_ref())?;
        let positions: Vec<usize> = choice.taken.iter().copied().filter(|at| !cut.contains(at)).collect();
        if positions.is_empty() {
            transaction.commit(Vec::new())?;
            return Ok(Taken { decoded: Decoded { batch: Batch::new(), faults: Vec::new() }, refused });
        }
        let ids = self.ids(positions.iter().copied());
        let keys = keys(self.found, &positions);
        let value = |slot: Slot| match slot {
            Slot::Ids => ids.clone(),
            Slot::KeyOf => Value::Texts(keys.clone()),
            Slot::Locked => locked.clone().unwrap_or(Value::Null),
            Slot::Worker => Value::Text(self.request.worker.clone()),
            Slot::Millis => millis(self.request.lease_ms),
            Slot::Attempts => Value::Integer(i64::from(self.request.max_attempts)),
            _ => Value::Null,
        };
        let lease = if self.probe { &claim.probe } else { &claim.lease };
        let fetched = match &claim.beside {
            None => {
                let rows = transaction.commit(vec![lease.fill(value)])?;
                self.ready.decoding.read(&mut Results::new(rows).next_rows()?)?
            }
            Some(beside) => {
                let leased = self.listed(&transaction, lease.fill(value))?;
                let of_leased = |template: &Template| template.fill(|slot| if slot == Slot::Ids { leased.clone() } else { value(slot) });
                let mut statements: Vec<Statement> = beside.mark.iter().map(of_leased).collect();
                let read_at = statements.len();
                statements.push(of_leased(&beside.read));
                let rows = transaction.commit(statements)?;
                self.ready.decoding.read(&mut Results::new(rows.into_iter().skip(read_at).collect()).next_rows()?)?
            }
        };
        Ok(Taken { decoded: self.ready.decoding.decode(self.in_order(fetched, &ids), false), refused })
    }

    /// Messages come back in no order. Where the order is no number, it is that of the ids, which the search has read in order.
    fn in_order(&self, fetched: Fetched, ids: &Value) -> Fetched {
        if self.ready.decoding.place_texts == 0 { fetched } else { fetched.in_order_of(ids) }
    }

    /// Ends rows dead; and the positions that must not be taken: behind a row of the same key that others had by now.
    fn refuse<T: Transaction>(&self, transaction: &T, locked: Option<&Value>) -> Result<(Vec<Refusal>, HashSet<usize>), Trouble> {
        let Claim { refuse, beside, .. } = &self.ready.claim;
        let locked: Option<HashSet<String>> = locked.map(|ids| search::names(ids).into_iter().collect());
        let mut refusals = Vec::new();
        let mut cut = HashSet::new();
        for (why, reason) in search::reasons(self.request) {
            let positions: Vec<usize> = self.found.refused(why).collect();
            if positions.is_empty() {
                continue;
            }
            let ids = self.ids(positions.iter().copied());
            let free: Vec<usize> = match &locked {
                None => positions.clone(),
                Some(locked) => {
                    let names = search::names(&ids);
                    positions.iter().zip(names).filter(|(_, id)| locked.contains(id)).map(|(at, _)| *at).collect()
                }
            };
            let free = self.ids(free.into_iter());
            let text = failure::recorded(&reason);
            let at_least = if why == outbox_table::choose::Refused::AttemptsUsedUp { self.request.max_attempts } else { 0 };
            let value = |slot: Slot| match slot {
                Slot::Ids => free.clone(),
                Slot::Text => Value::Text(text.clone()),
                Slot::Attempts => Value::Integer(i64::from(at_least)),
                _ => Value::Null,
            };
            let ended = self.listed(transaction, refuse.fill(value))?;
            if let Some(beside) = beside.as_ref().and_then(|beside| beside.ended.as_ref()) {
                transaction.execute(vec![beside.fill(|slot| if slot == Slot::Ids { ended.clone() } else { value(slot) })])?;
            }
            let ended = search::names(&ended);
            let is_ended: HashSet<&String> = ended.iter().collect();
            let not_ended: Vec<usize> =
                positions.iter().zip(search::names(&ids)).filter(|(_, id)| !is_ended.contains(id)).map(|(at, _)| *at).collect();
            cut.extend(self.behind(&not_ended));
            refusals.extend(ended.into_iter().map(|id| Refusal { id, failure: reason.clone() }));
        }
        Ok((refusals, cut))
    }

    /// The chosen positions behind one of these, of the same key.
    fn behind(&self, positions: &[usize]) -> Vec<usize> {
        if positions.is_empty() || !self.ready.layout.config.strict_order {
            return Vec::new();
        }
        let taken = &self.found.choice.taken;
        let (of_these, of_taken) = (self.found.keys(positions.iter().copied()), self.found.keys(taken.iter().copied()));
        let first = |key: &[u8]| positions.iter().enumerate().find(|(at, _)| of_these.get(*at) == Some(key)).map(|(_, position)| *position);
        let is_behind = |(at, position): &(usize, &usize)| of_taken.get(*at).and_then(first).is_some_and(|first| first < **position);
        taken.iter().enumerate().filter(is_behind).map(|(_, position)| *position).collect()
    }

    /// Runs a statement that returns ids.
    fn listed<T: Transaction>(&self, transaction: &T, statement: Statement) -> Result<Value, Trouble> {
        let rows = transaction.execute(vec![statement])?;
        let ids = self.ready.decoding.ids.read(&mut Results::new(rows).next_rows()?)?;
        Ok(ids.into_value())
    }
}

/// The keys at positions. Those that are not UTF-8 (in a database without an encoding) are replaced: two that come to be the same hold each
/// other back, and nothing else.
fn keys(found: &Found, positions: &[usize]) -> Column {
    let mut keys = Column::new();
    for key in found.keys(positions.iter().copied()).iter() {
        keys.push(key.map(String::from_utf8_lossy).as_deref().map(str::as_bytes));
    }
    keys
}

fn not_ready() -> Failure {
    Failure::of(FailureCode::Unavailable, "the table is not there")
}
