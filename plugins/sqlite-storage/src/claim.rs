//! Claiming: scan, choose, lease; in one transaction, together with settling where that is asked for.
//!
//! SQLite has one writer at a time, so what was scanned cannot change before it is leased, and no row has to be checked again.

use crate::outbox::{Outbox, Ready, millis};
use crate::settle;
use crate::walk::{self, Search, Walk};
use outbox_table::choose::{Candidate, Choice, Chooser, Limits, Refused};
use outbox_table::database::{Database, Integers, Reader, Results, Rows, SqlError, Statement, Transaction, Value};
use outbox_table::decode::Ids;
use outbox_table::failure;
use outbox_table::random::Random;
use outbox_table::template::{Slot, Template};
use outbox_table::window::{MAX_ROWS, Window};
use outhaul_sdk::{ClaimRequest, Claimed, Column, Failure, FailureCode, Refusal, Settlement, Turn};
use std::collections::HashSet;
use std::time::Instant;

/// Where no index leads past settled rows, every so many claims the scan starts from the very first row again, for rows that were
/// requeued behind its back.
const FROM_THE_START_EVERY: u32 = 8;
/// So many claims go on behind the rows that are in flight, before one looks at the front of the table again. A row that has become due
/// there waits that long, while full batches are claimed.
const CLAIMS_BEHIND_THE_FRONT: u32 = 16;

/// How far claims have looked.
#[derive(Debug)]
pub(crate) struct Progress {
    window: Window,
    /// No unsettled row up to here.
    floor: i64,
    claims: u32,
    /// What the last claims have passed over.
    passed: Option<Passed>,
    /// Where the walk over keys goes on.
    key: Value,
    key_start: Value,
    /// The key is text, even if it comes as bytes: text that is not UTF-8.
    key_is_text: bool,
    /// Where the passes over rows without a key go on.
    unkeyed: [i64; 2],
    /// What is left of a walk that was cut short.
    search: Option<Search>,
    /// It was said that there are rows with unusable ids.
    noticed: bool,
}

impl Progress {
    pub(crate) fn new(walk: Option<&Walk>) -> Self {
        let start = walk.map_or(Value::Null, |walk| walk.start.clone());
        Self {
            window: Window::new(),
            floor: i64::MIN,
            claims: 0,
            passed: None,
            key: start.clone(),
            key_start: start,
            key_is_text: false,
            unkeyed: [i64::MIN; 2],
            search: None,
            noticed: false,
        }
    }

    /// What was seen in a transaction that did not commit is worth nothing.
    pub(crate) fn forget(&mut self) {
        self.floor = i64::MIN;
        self.passed = None;
        self.search = None;
    }
}

/// The front of the table, as scans have seen it: rows in flight or waiting, which need not be read at each claim.
///
/// Every row up to `after` that was not settled then has its key in `keys`. Rows up to there can only become settled since (or be
/// requeued, which gives up their place in the order), so a row behind it whose key is not in `keys` overtakes nothing.
#[derive(Debug)]
struct Passed {
    after: i64,
    keys: HashSet<Box<[u8]>>,
    claims: u32,
    /// A scan from the front of the table that was cut short, and has found nothing so far.
    searching: bool,
}

/// Rows of one scan.
#[derive(Debug)]
struct Segment {
    order: Integers,
    ids: Ids,
    keys: Column,
    due: Integers,
    attempts: Integers,
    sizes: Integers,
    /// Rows whose id is not UTF-8, and so can be named to nobody: never claimed, and they hold back no other. Ascending.
    unusable: Vec<usize>,
}

impl Segment {
    fn read(ready: &Ready, reader: &mut Reader) -> Result<Self, Failure> {
        let order = reader.integers()?;
        let ids = if ready.layout.id_is_order { Ids::Integers(order.clone()) } else { ready.decoding.read_ids(reader)? };
        let unusable = match &ids {
            Ids::Integers(_) => Vec::new(),
            Ids::Texts(ids) => (0..ids.len()).filter(|at| std::str::from_utf8(ids.get(*at).unwrap_or_default()).is_err()).collect(),
        };
        Ok(Self {
            unusable,
            order,
            ids,
            keys: reader.bytes()?,
            due: reader.integers()?,
            attempts: reader.integers()?,
            sizes: reader.integers()?,
        })
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    fn is_usable(&self, at: usize) -> bool {
        self.unusable.binary_search(&at).is_err()
    }

    fn key(&self, at: usize) -> Option<&[u8]> {
        self.keys.get(at).filter(|key| !key.is_empty())
    }

    /// The rows before `end`. A key with rows that were passed over waits.
    fn feed(&self, chooser: &mut Chooser, end: usize, passed: Option<&Passed>) {
        for at in 0..end {
            if !self.is_usable(at) {
                chooser.skip();
                continue;
            }
            let key = self.key(at);
            let waits = passed.is_some_and(|passed| key.is_some_and(|key| passed.keys.contains(key)));
            chooser.feed(Candidate {
                key,
                due: self.due.get(at) == Some(1) && !waits,
                attempts: self.attempts.count(at),
                size: self.sizes.count(at),
            });
        }
    }
}

/// What a claim's transaction has found to take, before it is taken.
struct Found {
    segments: Vec<Segment>,
    choice: Choice,
}

impl Found {
    /// The ids at positions, which ascend.
    fn ids(&self, positions: impl Iterator<Item = usize>, integers: bool) -> Value {
        let mut numbers = Vec::new();
        let mut texts = Column::new();
        let (mut segments, mut start) = (self.segments.iter().peekable(), 0);
        for position in positions {
            while segments.next_if(|segment| position - start >= segment.len()).map(|segment| start += segment.len()).is_some() {}
            match segments.peek().map(|segment| &segment.ids) {
                Some(Ids::Integers(ids)) => numbers.extend(ids.get(position - start)),
                Some(Ids::Texts(ids)) => texts.push(ids.get(position - start)),
                None => {}
            }
        }
        if integers { Value::Integers(numbers) } else { Value::Texts(texts) }
    }
}

impl Found {
    /// The id of one of the rows that were left out because of it.
    fn unusable_id(&self) -> Option<String> {
        self.segments.iter().find_map(|segment| segment.unusable.first().map(|at| segment.ids.text(*at).into_owned()))
    }

    /// What the next claim need not read: the rows before the first one that was left for it.
    fn pass(&self, passed: Option<Passed>, searching: bool) -> Option<Passed> {
        let mut passed = passed.unwrap_or(Passed { after: i64::MIN, keys: HashSet::new(), claims: 0, searching: false });
        let mut left = self.choice.first_left.unwrap_or(usize::MAX);
        for segment in &self.segments {
            let rows = segment.len().min(left);
            for key in (0..rows).filter(|at| segment.is_usable(*at)).filter_map(|at| segment.key(at)) {
                if !passed.keys.contains(key) {
                    passed.keys.insert(key.into());
                }
            }
            if let Some(last) = rows.checked_sub(1).and_then(|at| segment.order.get(at)) {
                passed.after = last;
            }
            left -= rows;
            if left == 0 {
                break;
            }
        }
        passed.claims += 1;
        passed.searching = searching;
        Some(passed)
    }
}

/// What went wrong inside of a claim.
enum Trouble {
    Sql(SqlError),
    Failure(Failure),
}

impl From<SqlError> for Trouble {
    fn from(error: SqlError) -> Self {
        Self::Sql(error)
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
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
            if let Ok(lost) = self.end_dead(&request.worker, &faults) {
                let ended = faults.into_iter().filter(|(id, _)| !lost.contains(id));
                turn.claimed.refused.extend(ended.map(|(id, reason)| Refusal { id, failure: Failure::invalid_message(reason) }));
            }
        }
        Ok(turn)
    }

    /// The transaction; and the leased rows that could not be decoded.
    fn turn(&mut self, settlements: &[Settlement], request: &ClaimRequest) -> Result<(Turn, Vec<(String, String)>), Trouble> {
        self.ready()?;
        let Self { writer, random, notice, ready: Some(ready), .. } = self else { return Err(Trouble::Failure(not_ready())) };
        let limit = usize::try_from(request.limit.max(1)).unwrap_or(usize::MAX);
        let limits = Limits {
            rows: limit,
            bytes: request.max_bytes.max(1),
            max_attempts: request.max_attempts,
            max_message_bytes: request.max_message_bytes,
            strict: ready.layout.config.strict_order,
        };
        let remembers = ready.layout.order_only_grows();
        let from_the_start = !remembers || !ready.scan.walks_settled || ready.progress.claims % FROM_THE_START_EVERY == 0;
        let floor = if from_the_start { i64::MIN } else { ready.progress.floor };
        ready.progress.claims = ready.progress.claims.wrapping_add(1);
        let passed = ready.progress.passed.take().filter(|passed| passed.searching || passed.claims < CLAIMS_BEHIND_THE_FRONT);

        let mut statements = Vec::new();
        let written = settle::statements::<D>(ready, &request.worker, settlements, &mut statements);
        let size = ready.progress.window.rows(limit);
        statements.push(scan(ready, passed.as_ref().map_or(floor, |passed| passed.after), size));
        let (transaction, rows) = writer.begin(statements)?;
        let mut results = Results::new(rows);
        let lost = settle::lost(ready, written, &mut results)?;
        let first = Segment::read(ready, &mut results.next_rows()?)?;

        let mut looked = look(&transaction, ready, limits, Start { floor, size, passed }, first)?;
        let next_floor = looked.first_unsettled.map_or(ready.progress.floor, |order| order.saturating_sub(1));
        let passed = looked.passed.take();
        let unfinished = looked.unfinished;
        let keeps_passed =
            remembers && looked.in_order && ready.layout.config.strict_order && (unfinished || looked.chooser.found() >= limit);
        let found = looked.choose(random);
        let passed = if keeps_passed { found.pass(passed, unfinished) } else { None };
        if let (false, Some(id)) = (ready.progress.noticed, found.unusable_id()) {
            ready.progress.noticed = true;
            *notice = Some(format!("rows whose id is not UTF-8 text are left alone, and hold back no others; such as `{id}`"));
        }
        let Choice { taken, refused, .. } = &found.choice;
        if !(taken.is_empty() && refused.is_empty() || ready.states_tried) {
            drop(transaction);
            self.try_states()?;
            return self.turn(settlements, request);
        }
        if taken.is_empty() && refused.is_empty() {
            if !settlements.is_empty() {
                transaction.commit(Vec::new())?;
            }
            ready.progress.floor = next_floor;
            ready.progress.passed = passed.filter(|passed| passed.searching);
            let claimed = Claimed { batch: outhaul_sdk::Batch::new(), refused: Vec::new(), unfinished };
            return Ok((Turn { lost, claimed }, Vec::new()));
        }

        let mut statements = Vec::new();
        let mut refusals = Vec::new();
        for (why, reason) in reasons(request) {
            let positions = refused.iter().filter(|(_, refused)| *refused == why).map(|(at, _)| *at);
            let ids = found.ids(positions, ready.decoding.integer_ids);
            let names = names(&ids);
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
            let ids = found.ids(taken.iter().copied(), ready.decoding.integer_ids);
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
        ready.progress.floor = next_floor;
        ready.progress.passed = passed;
        ready.progress.search = None;
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

/// Scanned rows, and the chooser that has seen them.
struct Looked {
    segments: Vec<Segment>,
    chooser: Chooser,
    /// What was passed over, if the scan started behind it.
    passed: Option<Passed>,
    /// The rows are those of the table, in order, none left out.
    in_order: bool,
    /// The first row of the table that is not settled, if the scan started before it.
    first_unsettled: Option<i64>,
    /// Nothing was found so far, and there is more to look at.
    unfinished: bool,
}

impl Looked {
    fn new(limits: Limits, in_order: bool) -> Self {
        Self { segments: Vec::new(), chooser: Chooser::new(limits), passed: None, in_order, first_unsettled: None, unfinished: false }
    }

    fn choose(self, random: &mut Random) -> Found {
        Found { segments: self.segments, choice: self.chooser.choose(random) }
    }
}

/// Where a scan starts.
struct Start {
    /// No unsettled row up to here.
    floor: i64,
    /// Rows of the first statement.
    size: usize,
    /// What the first statement has passed over.
    passed: Option<Passed>,
}

/// Scans on from the first rows until half a batch can be taken, or there is nothing more within reach.
fn look<T: Transaction>(transaction: &T, ready: &mut Ready, limits: Limits, start: Start, first: Segment) -> Result<Looked, Trouble> {
    let Start { floor, mut size, passed } = start;
    // Half a batch is worth a few more rows, not many.
    let enough = size.saturating_mul(4);
    let mut looked = Looked { passed, ..Looked::new(limits, true) };
    let mut scanned = 0;
    let mut segment = first;
    loop {
        segment.feed(&mut looked.chooser, segment.len(), looked.passed.as_ref());
        let more = segment.len() >= size;
        let last = segment.len().checked_sub(1).and_then(|at| segment.order.get(at));
        if scanned == 0 {
            let found = looked.chooser.found().min(limits.rows);
            ready.progress.window.observe(limits.rows, found, looked.chooser.enough_after(), more);
            if looked.passed.is_none() {
                looked.first_unsettled = segment.order.get(0);
            }
        }
        scanned += segment.len();
        looked.segments.push(segment);
        let found = looked.chooser.found();
        if found.saturating_mul(2) >= limits.rows || (found > 0 && (!more || scanned >= enough)) {
            return Ok(looked);
        }
        let after = match last {
            _ if found == 0 && looked.passed.as_ref().is_some_and(|passed| !passed.searching) => {
                // Nothing behind what was passed over: look at that again.
                looked = Looked::new(limits, true);
                scanned = 0;
                floor
            }
            Some(last) if more => last,
            _ => return Ok(looked),
        };
        // The window has grown to half of the bound by then: more of the same is dearer than the walk.
        if found == 0 && scanned >= MAX_ROWS / 2 && ready.walk.is_some() {
            return look_further(transaction, ready, limits);
        }
        // Others wait to write meanwhile. Where nothing may be remembered, there is no other way than on to the end.
        if found == 0 && scanned >= MAX_ROWS && ready.layout.order_only_grows() && ready.layout.config.strict_order {
            looked.unfinished = true;
            return Ok(looked);
        }
        size = size.saturating_mul(2).min(MAX_ROWS.max(size));
        segment = run(transaction, ready, scan(ready, after, size))?;
    }
}

/// Walks from key to key, and over the rows without one, from where the last claim ended: until something is found, the cycle is whole, or
/// the time is used up. Each kind goes on by at least one step, so that claims that are cut short come to the end of the cycle.
fn look_further<T: Transaction>(transaction: &T, ready: &mut Ready, limits: Limits) -> Result<Looked, Trouble> {
    let mut looked = Looked::new(limits, false);
    let Some(walk) = ready.walk.clone() else { return Ok(looked) };
    let started = Instant::now();
    let progress = &ready.progress;
    let mut search = progress
        .search
        .clone()
        .unwrap_or_else(|| Search::new(progress.unkeyed.map(|after| after == i64::MIN), is_start(&progress.key, &progress.key_start)));
    for (at, template) in walk.unkeyed.iter().enumerate() {
        while search.unkeyed.get(at).is_some_and(|ends| *ends != 0) {
            let ended = pass_over(transaction, ready, &mut looked, at, template)?;
            if let (true, Some(ends)) = (ended, search.unkeyed.get_mut(at)) {
                *ends -= 1;
            }
            if looked.chooser.found() >= limits.rows || started.elapsed() >= walk::MAX_TIME {
                break;
            }
        }
    }
    while search.keys > 0 {
        if walk_keys(transaction, ready, &mut looked, &walk, limits)? {
            search.keys -= 1;
        }
        if looked.chooser.found() > 0 || started.elapsed() >= walk::MAX_TIME {
            break;
        }
    }
    looked.unfinished = looked.chooser.found() == 0 && !search.is_whole();
    ready.progress.search = looked.unfinished.then_some(search);
    Ok(looked)
}

/// One step over the rows without a key; whether it came to their end.
fn pass_over<T: Transaction>(
    transaction: &T,
    ready: &mut Ready,
    looked: &mut Looked,
    at: usize,
    template: &Template,
) -> Result<bool, Trouble> {
    let after = ready.progress.unkeyed.get(at).copied().unwrap_or(i64::MIN);
    let statement = template.fill(|slot| match slot {
        Slot::After => Value::Integer(after),
        Slot::Keys => integer(walk::STEP),
        _ => Value::Null,
    });
    let segment = run(transaction, ready, statement)?;
    let rows = segment.len().saturating_sub(1);
    segment.feed(&mut looked.chooser, rows, None);
    let ended = segment.attempts.count(rows) < u64::try_from(walk::STEP).unwrap_or(u64::MAX);
    let next = if ended { i64::MIN } else { segment.order.get(rows).unwrap_or(i64::MIN) };
    if let Some(cursor) = ready.progress.unkeyed.get_mut(at) {
        *cursor = next;
    }
    looked.push(segment, rows);
    Ok(ended)
}

/// One step from key to key; whether it came to the last one.
fn walk_keys<T: Transaction>(
    transaction: &T,
    ready: &mut Ready,
    looked: &mut Looked,
    walk: &Walk,
    limits: Limits,
) -> Result<bool, Trouble> {
    let wanted = limits.rows.saturating_mul(2);
    let statement = walk.keys.fill(|slot| match slot {
        Slot::Key => ready.progress.key.clone(),
        Slot::Text => Value::Text(if ready.progress.key_is_text { "text" } else { "" }.to_owned()),
        Slot::Keys => integer(walk::STEP),
        Slot::Limit => integer(wanted),
        _ => Value::Null,
    });
    let rows = transaction.execute(vec![statement])?;
    let mut reader = Results::new(rows).next_rows()?;
    let segment = Segment::read(ready, &mut reader)?;
    let (types, keys) = (reader.bytes()?, reader.bytes()?);
    let rows = segment.len().saturating_sub(1);
    segment.feed(&mut looked.chooser, rows, None);
    // Cut short, the walk goes on behind the last key that was looked at; else behind the last key that was reached.
    let end = if rows >= wanted { rows.checked_sub(1) } else { Some(rows) };
    let next = end.and_then(|at| Some((types.text(at)?, keys.get(at)?)));
    ready.progress.key_is_text = next.is_some_and(|(kind, _)| kind == "text");
    let next = next.and_then(|(kind, key)| typed(kind, key));
    let ended = next.is_none();
    ready.progress.key = next.unwrap_or_else(|| ready.progress.key_start.clone());
    looked.push(segment, rows);
    Ok(ended)
}

impl Looked {
    /// Keeps a segment of which the first `rows` were fed; the row after them is the mark of where the walk ended.
    fn push(&mut self, mut segment: Segment, rows: usize) {
        segment.order.truncate(rows);
        self.segments.push(segment);
    }
}

fn is_start(key: &Value, start: &Value) -> bool {
    match (key, start) {
        (Value::Text(key), Value::Text(start)) => key == start,
        (Value::Real(key), Value::Real(start)) => key == start,
        _ => false,
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

fn scan(ready: &Ready, after: i64, rows: usize) -> Statement {
    ready.scan.template.fill(|slot| match slot {
        Slot::After => Value::Integer(after),
        Slot::Limit => integer(rows),
        _ => Value::Null,
    })
}

fn run<T: Transaction>(transaction: &T, ready: &Ready, statement: Statement) -> Result<Segment, Trouble> {
    let rows = transaction.execute(vec![statement])?;
    Ok(Segment::read(ready, &mut Results::new(rows).next_rows()?)?)
}

fn integer(number: usize) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

/// Why rows end dead, as it is recorded and reported.
fn reasons(request: &ClaimRequest) -> [(Refused, Failure); 2] {
    let used_up = format!("gave up after {} attempts: the lease of the last one ran out", request.max_attempts);
    let too_large = format!(
        "the message, its headers and key included, is larger than {} bytes, the relay's `max_message_bytes`",
        request.max_message_bytes
    );
    [
        (Refused::AttemptsUsedUp, Failure::of(FailureCode::Other("attempts-used-up".to_owned()), used_up)),
        (Refused::TooLarge, Failure::of(FailureCode::TooLarge, too_large)),
    ]
}

/// Ids as text.
fn names(ids: &Value) -> Vec<String> {
    match ids {
        Value::Integers(ids) => ids.iter().map(ToString::to_string).collect(),
        Value::Texts(ids) => ids.iter().map(|id| String::from_utf8_lossy(id.unwrap_or_default()).into_owned()).collect(),
        _ => Vec::new(),
    }
}

fn not_ready() -> Failure {
    Failure::of(FailureCode::Unavailable, "the table is not there")
}
