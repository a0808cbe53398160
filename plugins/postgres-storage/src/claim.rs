//! Claiming: search, lock what was chosen, lease what is still to be had; in one transaction.

use crate::outbox::{Outbox, Ready};
use crate::statements::after;
use crate::take::{Part, Taking};
use crate::walk;
use outbox_table::choose::Limits;
use outbox_table::database::{Database, Results, SqlErrorCode, Statement, Transaction, Value};
use outbox_table::decode::Decoding;
use outbox_table::search::{self, Found, Place, Progress, Reached, Segment, Source, Start, Trouble, integer};
use outbox_table::settle::{millis, undecodable};
use outbox_table::template::Slot;
use outhaul_sdk::{Batch, ClaimRequest, Claimed, Failure, FailureCode, Refusal, Settlement, Turn};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Others may have been faster with every row that was chosen; then there are others to choose. Not for ever: what somebody keeps locked
/// cannot be had, and is looked at again with the next claim.
pub(crate) const ROUNDS: u32 = 3;

/// Rows are worth passing over when they are so many batches: a claim that does so has to look every key up in the table (measured: a third
/// of its time), and fewer rows are sooner read again.
const BATCHES_PASSED_OVER: usize = 4;

/// How far claims have looked.
#[derive(Debug, Default)]
pub(crate) struct Looking {
    pub(crate) progress: Progress,
    /// It was said that there are rows with unusable ids.
    noticed: bool,
}

/// What a search is of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Scope<'a> {
    /// Where the table is searched by tenant: whose rows.
    pub(crate) tenant: Option<&'a str>,
    /// Deliveries that are older, and were tried, are too old; 0: none is.
    pub(crate) horizon_ms: u64,
}

/// A table that is searched.
#[derive(Debug)]
pub(crate) struct Searched<'a> {
    pub(crate) ready: &'a Ready,
    pub(crate) scope: Scope<'a>,
}

impl Searched<'_> {
    /// How many batches of rows are worth passing over, if any may be.
    pub(crate) fn worth(&self) -> Option<usize> {
        self.remembers().then_some(BATCHES_PASSED_OVER)
    }

    /// A value of a search.
    fn value(&self, place: Option<&Place>, slot: Slot) -> Value {
        match slot {
            Slot::Tenant => self.scope.tenant.map_or(Value::Null, |tenant| Value::Text(tenant.to_owned())),
            Slot::Horizon => millis(self.scope.horizon_ms),
            _ => after(place, slot),
        }
    }
}

impl Source for Searched<'_> {
    fn decoding(&self) -> &Decoding {
        &self.ready.decoding
    }

    fn scan(&self, place: Option<&Place>, rows: usize) -> Statement {
        let [front, behind] = &self.ready.scan;
        let template = if place.is_some() { behind } else { front };
        let mut statement = template.fill(|slot| self.value(place, slot));
        statement.sql.push_str(&format!(" LIMIT {}", in_steps(rows)));
        statement
    }

    /// A row may be committed in front of others that were claimed already. Where its key is looked up in the table itself before a later
    /// row of it is leased, none is overtaken.
    fn remembers(&self) -> bool {
        self.ready.layout.has_key_index
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

    fn without_key(&self, kind: usize, place: Option<&Place>, rows: usize) -> Statement {
        let Some([start, on]) = self.ready.walk.as_ref().and_then(|walk| walk.unkeyed.get(kind)) else {
            return self.scan(place, rows);
        };
        let template = if place.is_some() { on } else { start };
        template.fill(|slot| if matches!(slot, Slot::Keys | Slot::Limit) { integer(rows) } else { self.value(place, slot) })
    }

    fn with_key(&self, key: Option<&Reached>, keys: usize, rows: usize) -> Statement {
        let Some([start, on]) = self.ready.walk.as_ref().map(|walk| &walk.keys) else { return self.scan(None, rows) };
        let template = if key.is_some() { on } else { start };
        template.fill(|slot| match slot {
            Slot::Key => key.map_or(Value::Null, |(_, key)| Value::Text(String::from_utf8_lossy(key).into_owned())),
            Slot::Keys => integer(keys),
            Slot::Limit => integer(rows),
            _ => self.value(None, slot),
        })
    }
}

/// A number of rows for the text of a statement, rounded up to one of four between each power of two and the next.
///
/// In the text, for a limit that is a parameter is unknown to a plan that is kept: Postgres then makes a new one each time (measured: 0.12
/// ms, and 0.07 ms for the scan of 100 rows itself). Rounded, so that there are few texts.
fn in_steps(rows: usize) -> usize {
    let rows = rows.max(1);
    rows.next_multiple_of(((1 << rows.ilog2()) / 4).max(1))
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
        let searched_table = Searched { ready, scope: Scope::default() };
        statements.push(searched_table.scan(start.after(), start.rows));
        let (transaction, rows) = writer.begin(statements)?;
        let mut results = Results::new(rows);
        let lost = ready.verdicts.lost(written, &mut results)?;
        let first = Segment::read(&ready.decoding, &mut results.next_rows()?)?;

        let looked = search::look(&transaction, &searched_table, &mut looking.progress, searched, start, first)?;
        let (unfinished, probe) = (looked.unfinished, looked.left_out());
        let (mut found, mut passed) = looked.choose(random, searched, searched_table.worth());
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
        if weigh(ready, &transaction, &mut found, limits)?.0 {
            // Others were to be passed over than are left now.
            passed = None;
        }
        let of = [Part { tenant: "", found }];
        let taken = Taking { ready, request, parts: &of, probe, horizon_ms: 0 }.take(transaction, false)?.0;
        let got = taken.decoded.batch.len() + taken.decoded.faults.len();
        if got.saturating_mul(2) < of.iter().map(|part| part.found.choice.taken.len()).sum() {
            looking.progress.lost_a_race(limits.rows);
        }
        looking.progress.keep(passed, true);
        let raced = got == 0 && taken.refused.is_empty();
        let claimed = Claimed { batch: taken.decoded.batch, refused: taken.refused, unfinished: false };
        Ok(Round { turn: Turn { lost, claimed }, faults: taken.decoded.faults, raced })
    }
}

/// Weighs what was chosen, where the scan could not; whether rows that were chosen are left for the next claim, and the bytes of the others.
pub(crate) fn weigh<T: Transaction>(ready: &Ready, transaction: &T, found: &mut Found, limits: Limits) -> Result<(bool, u64), Trouble> {
    let Some(weigh) = ready.weigh.as_ref().filter(|_| !found.choice.taken.is_empty()) else { return Ok((false, found.bytes())) };
    let kind = ready.decoding.ids;
    let ids = found.ids(found.choice.taken.iter().copied(), kind);
    let rows = transaction.execute(vec![weigh.fill(|slot| if slot == Slot::Ids { ids.clone() } else { Value::Null })])?;
    let mut reader = Results::new(rows).next_rows()?;
    let (weighed, sizes) = (search::names(&kind.read(&mut reader)?.into_value()), reader.integers()?);
    let size_of: HashMap<String, u64> = weighed.into_iter().enumerate().map(|(at, id)| (id, sizes.count(at))).collect();
    // One that is gone weighs nothing, and is not to be had.
    let sizes: Vec<u64> = search::names(&ids).iter().map(|id| size_of.get(id).copied().unwrap_or(0)).collect();
    let taken = found.choice.taken.clone();
    let (choice, cut) = std::mem::take(&mut found.choice).weighed(limits, &sizes);
    let kept: HashSet<usize> = choice.taken.iter().copied().collect();
    let bytes = taken.iter().zip(&sizes).filter(|(at, _)| kept.contains(at)).fold(0_u64, |sum, (_, size)| sum.saturating_add(*size));
    found.choice = choice;
    Ok((cut, bytes))
}

fn not_ready() -> Failure {
    Failure::of(FailureCode::Unavailable, "the table is not there")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_few_and_never_too_small() {
        assert_eq!([0, 1, 3, 32, 33, 100, 1000, 8192].map(in_steps), [1, 1, 3, 32, 40, 112, 1024, 8192]);
        let steps: HashSet<usize> = (1..=8192).map(in_steps).collect();
        assert!((1..=8192).all(|rows| in_steps(rows) >= rows && in_steps(rows) <= rows + rows / 4));
        assert_eq!(steps.len(), 48);
    }
}
