//! The search of a claim: rows from the front of the table, on behind rows in flight, and from key to key where much waits.
//!
//! A storage gives the statements ([`Source`]) and a transaction; the search says which rows a claim may take ([`Found`]), and remembers
//! in [`Progress`] how far it has looked. What another connection changes meanwhile is the storage's concern.

use crate::choose::{Candidate, Choice, Chooser, Limits, Refused};
use crate::database::{Integers, Reader, Results, SqlError, Statement, Transaction, Value};
use crate::decode::Decoding;
use crate::ids::{IdKind, Ids};
use crate::random::Random;
use crate::window::{MAX_ROWS, Window};
use outhaul_sdk::{ClaimRequest, Column, Failure, FailureCode};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Keys, or rows without a key, that one statement of the walk looks at.
pub const STEP: usize = 1024;
/// So many claims go on behind the rows that are in flight, before one looks at the front of the table again. A row that has become due
/// there waits that long, while full batches are claimed.
const CLAIMS_BEHIND_THE_FRONT: u32 = 16;
/// The code of a row whose last attempt was cut short.
pub(crate) const ATTEMPTS_USED_UP: &str = "attempts-used-up";

/// A row's place in the order of insertion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The order is one integer.
    Number(i64),
    /// The order is made of other values, as text.
    Texts(Vec<String>),
}

/// A key that a walk has reached: its type, if the storage needs to know, and its bytes.
pub type Reached = (String, Vec<u8>);

/// The statements of a search, and what may be done with them. Every scan returns, in this order: the place (an integer, or
/// [`Decoding::place_texts`] texts), the id (unless it is the place), the key as bytes, due (1; 2 if it is too old as well; or 0), claims so
/// far, bytes.
pub trait Source {
    /// How rows are read.
    fn decoding(&self) -> &Decoding;
    /// So many unsettled rows behind a place, in order.
    fn scan(&self, after: Option<&Place>, rows: usize) -> Statement;
    /// Whether a claim that starts behind the rows that earlier ones have passed over is in order. If not, each claim starts at the front.
    fn remembers(&self) -> bool;
    /// Whether there is an index to walk from key to key.
    fn walks(&self) -> bool;
    /// How long one claim walks, beside one step of each kind.
    fn patience(&self) -> Duration;
    /// How many kinds of rows without a key there are (NULL, empty).
    fn kinds_without_key(&self) -> usize;
    /// Of the next so many rows without a key, those that are due; then a row with the last place, and as `claims so far` how many were
    /// looked at.
    fn without_key(&self, kind: usize, after: Option<&Place>, rows: usize) -> Statement;
    /// The unsettled rows of the next keys whose first one is due, at most so many; then a row that says where the walk has ended. Two
    /// more columns: what [`Reached`] says of each row's key; NULL in the last row: there are no more keys.
    fn with_key(&self, after: Option<&Reached>, keys: usize, rows: usize) -> Statement;
}

/// How far claims have looked.
#[derive(Debug, Default)]
pub struct Progress {
    window: Window,
    /// What the last claims have passed over.
    passed: Option<Passed>,
    /// Where the walk over keys goes on.
    key: Option<Reached>,
    /// Where the passes over rows without a key go on.
    unkeyed: Vec<Option<Place>>,
    /// What is left of a walk that was cut short.
    walk: Option<Walk>,
    /// Nothing was due at the front of the table: so many claims need not look through all of it again before they walk.
    barren: u32,
    /// Nothing was to be had behind what was passed over, since its keys are those of the rows behind it as well: so many claims read the
    /// front of the table again.
    straight: u32,
}

impl Progress {
    /// What was seen in a transaction that did not commit is worth nothing.
    pub fn forget(&mut self) {
        self.passed = None;
        self.walk = None;
        self.barren = 0;
        self.straight = 0;
    }

    /// Whether a claim that finds nothing with its first statement walks at once.
    fn walks_at_once(&self) -> bool {
        self.barren > 0 || self.walk.is_some()
    }

    /// What the next search passes over; it is forgotten if that does not come back with [`Progress::keep`].
    pub fn passed(&mut self) -> Option<Passed> {
        self.passed.take().filter(|passed| passed.searching || passed.claims < CLAIMS_BEHIND_THE_FRONT)
    }

    /// Rows of the first statement of a claim of `limit` rows.
    #[must_use]
    pub fn rows(&self, limit: usize) -> usize {
        if self.walks_at_once() { Window::new().rows(limit) } else { self.window.rows(limit) }
    }

    /// Of the rows that were chosen, others had some: look further next time.
    pub fn lost_a_race(&mut self, limit: usize) {
        self.window.observe(limit, 0, 0, true);
    }

    /// For the next claim; after one that took rows, a walk starts anew.
    pub fn keep(&mut self, passed: Option<Passed>, took: bool) {
        let straight = self.straight > 0 && passed.as_ref().is_some_and(|passed| !passed.searching);
        self.straight -= u32::from(straight);
        self.passed = passed.filter(|_| !straight);
        if took {
            self.walk = None;
        }
    }
}

/// What is left of a walk through everything that waits: how often each kind has still to come to its end. One that starts in the
/// middle comes to the end twice.
#[derive(Debug, Clone)]
struct Walk {
    unkeyed: Vec<u8>,
    keys: u8,
}

impl Walk {
    fn new(progress: &Progress) -> Self {
        let ends = |at_start| if at_start { 1 } else { 2 };
        Self { unkeyed: progress.unkeyed.iter().map(|after| ends(after.is_none())).collect(), keys: ends(progress.key.is_none()) }
    }

    fn is_whole(&self) -> bool {
        self.keys == 0 && self.unkeyed.iter().all(|ends| *ends == 0)
    }
}

/// The front of the table, as scans have seen it: rows in flight or waiting, which need not be read at each claim.
///
/// Every row up to `after` that was not settled then has its key in `keys`. Rows up to there can only become settled since (or be
/// requeued, which gives up their place in the order), so a row behind it whose key is not in `keys` overtakes none of them.
#[derive(Debug)]
pub struct Passed {
    after: Option<Place>,
    keys: HashSet<Box<[u8]>>,
    claims: u32,
    /// A scan from the front of the table that was cut short, and has found nothing so far.
    searching: bool,
}

impl Passed {
    /// The last row that was passed over.
    #[must_use]
    pub fn after(&self) -> Option<&Place> {
        self.after.as_ref()
    }
}

/// Places of scanned rows.
#[derive(Debug)]
enum Places {
    Numbers(Integers),
    Texts(Vec<Column>),
}

/// Rows of one scan.
#[derive(Debug)]
pub struct Segment {
    /// The rows of it that count.
    rows: usize,
    places: Places,
    ids: Ids,
    keys: Column,
    due: Integers,
    attempts: Integers,
    sizes: Integers,
    /// Rows whose id is not UTF-8, and so can be named to nobody: never claimed, and they hold back no other. Ascending.
    unusable: Vec<usize>,
}

impl Segment {
    /// Reads the result of a scan.
    ///
    /// # Errors
    /// If the database driver broke its promise.
    pub fn read(decoding: &Decoding, reader: &mut Reader) -> Result<Self, Failure> {
        let places = if decoding.place_texts == 0 {
            Places::Numbers(reader.integers()?)
        } else {
            Places::Texts((0..decoding.place_texts).map(|_| reader.bytes()).collect::<Result<_, _>>()?)
        };
        let ids = match &places {
            Places::Numbers(order) if decoding.id_is_order => Ids::Integers(order.clone()),
            _ => decoding.ids.read(reader)?,
        };
        Ok(Self {
            rows: ids.len(),
            unusable: ids.unusable(),
            places,
            ids,
            keys: reader.bytes()?,
            due: reader.integers()?,
            attempts: reader.integers()?,
            sizes: reader.integers()?,
        })
    }

    fn place(&self, at: usize) -> Option<Place> {
        match &self.places {
            Places::Numbers(order) => order.get(at).map(Place::Number),
            Places::Texts(columns) => {
                columns.iter().map(|column| column.text(at).map(str::to_owned)).collect::<Option<_>>().map(Place::Texts)
            }
        }
    }

    fn is_usable(&self, at: usize) -> bool {
        self.unusable.binary_search(&at).is_err()
    }

    fn key(&self, at: usize) -> Option<&[u8]> {
        self.keys.get(at).filter(|key| !key.is_empty())
    }

    /// A key with rows that were passed over waits.
    fn feed(&self, chooser: &mut Chooser, passed: Option<&Passed>) {
        for at in 0..self.rows {
            if !self.is_usable(at) {
                chooser.skip();
                continue;
            }
            let key = self.key(at);
            let waits = passed.is_some_and(|passed| key.is_some_and(|key| passed.keys.contains(key)));
            chooser.feed(Candidate {
                key,
                due: matches!(self.due.get(at), Some(1 | 2)) && !waits,
                too_old: self.due.get(at) == Some(2),
                attempts: self.attempts.count(at),
                size: self.sizes.count(at),
            });
        }
    }

    /// The last row is a mark.
    fn without_mark(mut self) -> (Self, usize) {
        self.rows = self.rows.saturating_sub(1);
        let mark = self.rows;
        (self, mark)
    }
}

/// What a search has found to take, before it is taken.
#[derive(Debug)]
pub struct Found {
    segments: Vec<Segment>,
    /// Positions count through all scanned rows.
    pub choice: Choice,
}

impl Found {
    /// Whether there is nothing to take and nothing to end.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.choice.taken.is_empty() && self.choice.refused.is_empty()
    }

    /// The ids at positions, which ascend.
    pub fn ids(&self, positions: impl Iterator<Item = usize>, kind: IdKind) -> Value {
        let mut numbers = Vec::new();
        let mut texts = Column::new();
        self.each(positions, |segment, at| match &segment.ids {
            Ids::Integers(ids) => numbers.extend(ids.get(at)),
            Ids::Texts(ids) => texts.push(ids.get(at)),
        });
        if kind == IdKind::Integer { Value::Integers(numbers) } else { Value::Texts(texts) }
    }

    /// The keys at positions, which ascend; none for rows without one.
    pub fn keys(&self, positions: impl Iterator<Item = usize>) -> Column {
        let mut keys = Column::new();
        self.each(positions, |segment, at| keys.push(segment.key(at)));
        keys
    }

    /// The bytes of what is to be taken.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let mut bytes = 0_u64;
        self.each(self.choice.taken.iter().copied(), |segment, at| bytes = bytes.saturating_add(segment.sizes.count(at)));
        bytes
    }

    fn each(&self, positions: impl Iterator<Item = usize>, mut take: impl FnMut(&Segment, usize)) {
        let (mut segments, mut start) = (self.segments.iter().peekable(), 0);
        for position in positions {
            while segments.next_if(|segment| position - start >= segment.rows).map(|segment| start += segment.rows).is_some() {}
            if let Some(segment) = segments.peek() {
                take(segment, position - start);
            }
        }
    }

    /// Rows before the first one that is left for the next claim.
    fn behind_us(&self) -> usize {
        let rows = self.segments.iter().map(|segment| segment.rows).sum();
        self.choice.first_left.unwrap_or(rows)
    }

    /// The positions of rows that end dead for a reason.
    pub fn refused(&self, why: Refused) -> impl Iterator<Item = usize> {
        self.choice.refused.iter().filter(move |(_, refused)| *refused == why).map(|(at, _)| *at)
    }

    /// The id of one of the rows that were left out because of it.
    #[must_use]
    pub fn unusable_id(&self) -> Option<String> {
        let rows = |segment: &Segment| segment.unusable.first().filter(|at| **at < segment.rows).copied();
        self.segments.iter().find_map(|segment| rows(segment).map(|at| segment.ids.text(at).into_owned()))
    }

    /// What the next claim need not read: the rows before the first one that was left for it.
    #[must_use]
    pub fn pass(&self, passed: Option<Passed>, searching: bool) -> Passed {
        let mut passed = passed.unwrap_or(Passed { after: None, keys: HashSet::new(), claims: 0, searching: false });
        let mut left = self.choice.first_left.unwrap_or(usize::MAX);
        for segment in &self.segments {
            let rows = segment.rows.min(left);
            for key in (0..rows).filter(|at| segment.is_usable(*at)).filter_map(|at| segment.key(at)) {
                if !passed.keys.contains(key) {
                    passed.keys.insert(key.into());
                }
            }
            if let Some(last) = rows.checked_sub(1).and_then(|at| segment.place(at)) {
                passed.after = Some(last);
            }
            left -= rows;
            if left == 0 {
                break;
            }
        }
        passed.claims += 1;
        passed.searching = searching;
        passed
    }
}

/// What went wrong inside of a claim.
#[derive(Debug)]
pub enum Trouble {
    /// An error of the database.
    Sql(SqlError),
    /// Anything else.
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

/// Scanned rows, and the chooser that has seen them.
#[derive(Debug)]
pub struct Looked {
    segments: Vec<Segment>,
    chooser: Chooser,
    /// What was passed over, if the scan started behind it.
    passed: Option<Passed>,
    /// The rows are those of the table, in order, none left out.
    in_order: bool,
    /// The first row of the table that is not settled, if the scan started before it.
    pub first_unsettled: Option<Place>,
    /// Nothing was found so far, and there is more to look at.
    pub unfinished: bool,
}

impl Looked {
    fn new(limits: Limits, in_order: bool) -> Self {
        Self { segments: Vec::new(), chooser: Chooser::new(limits), passed: None, in_order, first_unsettled: None, unfinished: false }
    }

    /// Whether there may be rows before the scanned ones that were not looked at by this search.
    #[must_use]
    pub fn left_out(&self) -> bool {
        !self.in_order || self.passed.as_ref().is_some_and(|passed| passed.after.is_some())
    }

    /// Chooses; and what the next claim passes over, from so many batches of rows on (`worth`; none: it passes over nothing).
    #[must_use]
    pub fn choose(mut self, random: &mut Random, limits: Limits, worth: Option<usize>) -> (Found, Option<Passed>) {
        let keeps = self.in_order && limits.strict && (self.unfinished || self.chooser.found() >= limits.rows);
        let worth = worth.filter(|_| keeps).map(|batches| limits.rows.saturating_mul(batches));
        let passed = self.passed.take();
        let found = Found { segments: self.segments, choice: self.chooser.choose(random) };
        let passes = worth.is_some_and(|rows| self.unfinished || passed.is_some() || found.behind_us() >= rows);
        let passed = if passes { Some(found.pass(passed, self.unfinished)) } else { None };
        (found, passed)
    }
}

/// Where a search starts.
#[derive(Debug)]
pub struct Start {
    /// No unsettled row up to here.
    pub floor: Option<Place>,
    /// Rows of the first statement.
    pub rows: usize,
    /// What the first statement has passed over.
    pub passed: Option<Passed>,
}

impl Start {
    /// The first statement's place.
    #[must_use]
    pub fn after(&self) -> Option<&Place> {
        self.passed.as_ref().map_or(self.floor.as_ref(), Passed::after)
    }
}

/// Scans on from the first rows until half a batch can be taken, or there is nothing more within reach.
///
/// # Errors
/// Those of the database.
pub fn look<T: Transaction>(
    transaction: &T,
    source: &impl Source,
    progress: &mut Progress,
    limits: Limits,
    start: Start,
    first: Segment,
) -> Result<Looked, Trouble> {
    let Start { floor, rows: mut size, passed } = start;
    // Half a batch is worth a few more rows, not many.
    let enough = size.saturating_mul(4);
    let mut looked = Looked { passed, ..Looked::new(limits, true) };
    let mut scanned = 0;
    let mut segment = first;
    loop {
        segment.feed(&mut looked.chooser, looked.passed.as_ref());
        let more = segment.rows >= size;
        let last = segment.rows.checked_sub(1).and_then(|at| segment.place(at));
        if scanned == 0 {
            let found = looked.chooser.found().min(limits.rows);
            progress.window.observe(limits.rows, found, looked.chooser.enough_after(), more);
            if looked.passed.is_none() {
                looked.first_unsettled = segment.place(0).filter(|_| segment.rows > 0);
            }
        }
        scanned += segment.rows;
        looked.segments.push(segment);
        let found = looked.chooser.found();
        if found > 0 {
            progress.barren = 0;
        }
        if found.saturating_mul(2) >= limits.rows || (found > 0 && (!more || scanned >= enough)) {
            return Ok(looked);
        }
        let after = match last {
            _ if found == 0 && looked.passed.as_ref().is_some_and(|passed| !passed.searching) => {
                // Nothing behind what was passed over: look at that again.
                progress.straight = CLAIMS_BEHIND_THE_FRONT;
                looked = Looked::new(limits, true);
                scanned = 0;
                floor.clone()
            }
            Some(last) if more => Some(last),
            _ => return Ok(looked),
        };
        // The window has grown to half of the bound by then: more of the same is dearer than the walk.
        let looked_through = scanned >= MAX_ROWS / 2;
        if found == 0 && source.walks() && (looked_through || progress.walks_at_once()) {
            progress.barren = if looked_through { CLAIMS_BEHIND_THE_FRONT } else { progress.barren.saturating_sub(1) };
            return look_further(transaction, source, progress, limits);
        }
        // Others wait meanwhile. Where nothing may be remembered, there is no other way than on to the end.
        if found == 0 && scanned >= MAX_ROWS && source.remembers() && limits.strict {
            looked.unfinished = true;
            return Ok(looked);
        }
        size = size.saturating_mul(2).min(MAX_ROWS.max(size));
        segment = run(transaction, source, source.scan(after.as_ref(), size))?;
    }
}

/// Walks from key to key, and over the rows without one, from where the last claim ended: until something is found, the cycle is whole, or
/// the time is used up. Each kind goes on by at least one step, so that claims that are cut short come to the end of the cycle.
fn look_further<T: Transaction>(transaction: &T, source: &impl Source, progress: &mut Progress, limits: Limits) -> Result<Looked, Trouble> {
    let mut looked = Looked::new(limits, false);
    let started = Instant::now();
    progress.unkeyed.resize(source.kinds_without_key(), None);
    let mut walk = progress.walk.take().unwrap_or_else(|| Walk::new(progress));
    for (kind, ends) in walk.unkeyed.iter_mut().enumerate() {
        while *ends != 0 {
            if pass_over(transaction, source, progress, &mut looked, kind)? {
                *ends -= 1;
            }
            if looked.chooser.found() >= limits.rows || started.elapsed() >= source.patience() {
                break;
            }
        }
    }
    while walk.keys > 0 {
        if walk_keys(transaction, source, progress, &mut looked, limits)? {
            walk.keys -= 1;
        }
        if looked.chooser.found() > 0 || started.elapsed() >= source.patience() {
            break;
        }
    }
    looked.unfinished = looked.chooser.found() == 0 && !walk.is_whole();
    progress.walk = looked.unfinished.then_some(walk);
    Ok(looked)
}

/// One step over the rows without a key; whether it came to their end.
fn pass_over<T: Transaction>(
    transaction: &T,
    source: &impl Source,
    progress: &mut Progress,
    looked: &mut Looked,
    kind: usize,
) -> Result<bool, Trouble> {
    let Some(cursor) = progress.unkeyed.get_mut(kind) else { return Ok(true) };
    let (segment, mark) = run(transaction, source, source.without_key(kind, cursor.as_ref(), STEP))?.without_mark();
    segment.feed(&mut looked.chooser, None);
    let ended = segment.attempts.count(mark) < u64::try_from(STEP).unwrap_or(u64::MAX);
    *cursor = if ended { None } else { segment.place(mark) };
    looked.segments.push(segment);
    Ok(ended)
}

/// One step from key to key; whether it came to the last one.
fn walk_keys<T: Transaction>(
    transaction: &T,
    source: &impl Source,
    progress: &mut Progress,
    looked: &mut Looked,
    limits: Limits,
) -> Result<bool, Trouble> {
    let wanted = limits.rows.saturating_mul(2);
    let rows = transaction.execute(vec![source.with_key(progress.key.as_ref(), STEP, wanted)])?;
    let mut reader = Results::new(rows).next_rows()?;
    let (segment, mark) = Segment::read(source.decoding(), &mut reader)?.without_mark();
    let (types, keys) = (reader.bytes()?, reader.bytes()?);
    segment.feed(&mut looked.chooser, None);
    // Cut short, the walk goes on behind the last key that was looked at; else behind the last key that was reached.
    let end = if segment.rows >= wanted { segment.rows.checked_sub(1) } else { Some(mark) };
    progress.key = end.and_then(|at| Some((types.text(at).unwrap_or_default().to_owned(), keys.get(at)?.to_vec())));
    looked.segments.push(segment);
    Ok(progress.key.is_none())
}

fn run<T: Transaction>(transaction: &T, source: &impl Source, statement: Statement) -> Result<Segment, Trouble> {
    let rows = transaction.execute(vec![statement])?;
    Ok(Segment::read(source.decoding(), &mut Results::new(rows).next_rows()?)?)
}

/// What a claim may take.
#[must_use]
pub fn limits(request: &ClaimRequest, strict: bool) -> Limits {
    Limits {
        rows: usize::try_from(request.limit.max(1)).unwrap_or(usize::MAX),
        bytes: request.max_bytes.max(1),
        first_bytes: u64::MAX,
        max_attempts: request.max_attempts,
        max_message_bytes: request.max_message_bytes,
        strict,
    }
}

/// Why rows end dead, as it is recorded and reported.
#[must_use]
pub fn reasons(request: &ClaimRequest) -> [(Refused, Failure); 2] {
    let used_up = format!("gave up after {} attempts: the lease of the last one ran out", request.max_attempts);
    let too_large = format!(
        "the message, its headers and key included, is larger than {} bytes, the relay's `max_message_bytes`",
        request.max_message_bytes
    );
    [
        (Refused::AttemptsUsedUp, Failure::of(FailureCode::Other(ATTEMPTS_USED_UP.to_owned()), used_up)),
        (Refused::TooLarge, Failure::of(FailureCode::TooLarge, too_large)),
    ]
}

/// Ids, given as a parameter, as text.
#[must_use]
pub fn names(ids: &Value) -> Vec<String> {
    match ids {
        Value::Integers(ids) => ids.iter().map(ToString::to_string).collect(),
        Value::Texts(ids) => ids.iter().map(|id| String::from_utf8_lossy(id.unwrap_or_default()).into_owned()).collect(),
        _ => Vec::new(),
    }
}

/// A number of rows as a parameter.
#[must_use]
pub fn integer(number: usize) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::{Rows, SqlErrorCode, Values};
    use outhaul_sdk::sql;
    use std::cell::RefCell;

    /// A table in memory: key and due of each row, by place; and the kinds of statements that were run, with their rows.
    #[derive(Default)]
    struct Table {
        rows: Vec<(&'static str, bool)>,
        decoding: Decoding,
        run: RefCell<Vec<(String, i64)>>,
    }

    fn statement(kind: &str, after: i64, rows: usize) -> Statement {
        Statement { sql: kind.to_owned(), parameters: vec![Value::Integer(after), integer(rows)], columns: Vec::new(), must_change: None }
    }

    fn number(place: Option<&Place>) -> i64 {
        if let Some(Place::Number(number)) = place { *number } else { -1 }
    }

    impl Source for Table {
        fn decoding(&self) -> &Decoding {
            &self.decoding
        }
        fn scan(&self, after: Option<&Place>, rows: usize) -> Statement {
            statement("scan", number(after), rows)
        }
        fn remembers(&self) -> bool {
            true
        }
        fn walks(&self) -> bool {
            true
        }
        fn patience(&self) -> Duration {
            Duration::ZERO
        }
        fn kinds_without_key(&self) -> usize {
            0
        }
        fn without_key(&self, _: usize, _: Option<&Place>, _: usize) -> Statement {
            statement("pass", 0, 0)
        }
        fn with_key(&self, _: Option<&Reached>, _: usize, rows: usize) -> Statement {
            statement("walk", 0, rows)
        }
    }

    /// Numbers are places; a walk finds every due row whose key is `z`, and the end of the keys.
    impl Transaction for &Table {
        fn execute(&self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
            let run = |statement: Statement| {
                let [Value::Integer(after), Value::Integer(limit)] = statement.parameters.as_slice() else {
                    return Err(SqlError { code: SqlErrorCode::Other, detail: String::new() });
                };
                self.run.borrow_mut().push((statement.sql.clone(), *limit));
                let walks = statement.sql == "walk";
                let numbered = (0..).zip(&self.rows).filter(|(at, (key, due))| at > after && (!walks || (*key == "z" && *due)));
                let rows: Vec<(i64, Option<&str>, bool)> =
                    numbered.map(|(at, (key, due))| (at, Some(*key), *due)).take(usize::try_from(*limit).unwrap_or(0)).collect();
                let rows: Vec<_> = rows.into_iter().chain(walks.then_some((0, None, false))).collect();
                let integers = |values: Vec<i64>| Values::Integers(sql::Integers { values, nulls: Vec::new() });
                let mut keys = Column::new();
                rows.iter().for_each(|(_, key, _)| keys.push(key.map(str::as_bytes)));
                let mut columns = vec![
                    integers(rows.iter().map(|row| row.0).collect()),
                    Values::Bytes(keys.clone()),
                    integers(rows.iter().map(|row| i64::from(row.2)).collect()),
                    integers(vec![0; rows.len()]),
                    integers(vec![1; rows.len()]),
                ];
                if walks {
                    columns.extend([Values::Texts(keys.clone()), Values::Bytes(keys)]);
                }
                Ok(Rows { changed: 0, columns })
            };
            statements.into_iter().map(run).collect()
        }
        fn commit(self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
            self.execute(statements)
        }
    }

    const LIMITS: Limits =
        Limits { rows: 50, bytes: 1 << 20, first_bytes: u64::MAX, max_attempts: 0, max_message_bytes: 1 << 20, strict: true };

    /// Batches worth passing over.
    const WORTH: usize = 4;

    /// One search; how many rows it has found, and the statements that it took.
    fn search(table: &Table, progress: &mut Progress) -> (usize, Vec<(String, i64)>) {
        table.run.borrow_mut().clear();
        let start = Start { floor: None, rows: progress.rows(LIMITS.rows), passed: progress.passed() };
        let first = run(&table, table, table.scan(start.after(), start.rows)).unwrap_or_else(|trouble| panic!("{trouble:?}"));
        let looked = look(&table, table, progress, LIMITS, start, first).unwrap_or_else(|trouble| panic!("{trouble:?}"));
        let (found, passed) = looked.choose(&mut Random::seeded(1), LIMITS, Some(WORTH));
        progress.keep(passed, !found.is_empty());
        (found.choice.taken.len(), table.run.borrow().clone())
    }

    fn table(rows: impl IntoIterator<Item = (&'static str, bool)>) -> Table {
        let decoding = Decoding { ids: IdKind::Integer, id_is_order: true, keys: true, ..Decoding::default() };
        Table { rows: rows.into_iter().collect(), decoding, ..Table::default() }
    }

    #[test]
    fn a_barren_front_is_looked_through_once_and_then_passed_by() {
        let mut table = table(std::iter::once(("a", false)).chain(std::iter::repeat_n(("a", true), 9000)).chain([("z", true); 60]));
        let mut progress = Progress::default();
        let (found, run) = search(&table, &mut progress);
        let scanned: i64 = run.iter().filter(|(kind, _)| kind == "scan").map(|(_, rows)| rows).sum();
        assert!(found == 50 && scanned > 4096, "{run:?}");
        for _ in 0..CLAIMS_BEHIND_THE_FRONT {
            let (found, run) = search(&table, &mut progress);
            assert_eq!((found, run), (50, vec![("scan".to_owned(), 100), ("walk".to_owned(), 100)]));
        }
        let (_, run) = search(&table, &mut progress);
        assert!(run.first().is_some_and(|(_, rows)| *rows > 4096), "the front is looked through again: {run:?}");
        // It has become due: the first rows of it are found at once, and no walk follows.
        table.rows[0].1 = true;
        let (found, run) = search(&table, &mut progress);
        assert_eq!((found, run.len()), (50, 1), "{run:?}");
        assert_eq!(progress.barren, 0);
    }

    #[test]
    fn a_few_rows_in_flight_are_read_again_and_many_are_passed_over() {
        let flight = |rows| table(std::iter::repeat_n(("a", false), rows).chain([("y", true); 50]).chain([("z", true); 50]));
        for (rows, passes) in [(WORTH * 50 - 51, false), (WORTH * 50, true)] {
            let (table, mut progress) = (flight(rows), Progress::default());
            assert_eq!(search(&table, &mut progress).0, 50);
            assert_eq!(progress.passed.is_some(), passes, "{rows} rows in flight");
        }
    }

    #[test]
    fn where_the_keys_behind_are_those_passed_over_the_front_is_read_again_for_a_while() {
        // One key is taken, and what follows is of the same key.
        let table = table(std::iter::repeat_n(("a", false), 300).chain([("z", true); 200]));
        let mut progress = Progress::default();
        assert_eq!(search(&table, &mut progress).0, 50);
        assert!(progress.passed.is_some());
        let (found, run) = search(&table, &mut progress);
        assert!(found == 50 && run.len() > 1, "in vain behind the front, then from the front: {run:?}");
        for _ in 1..CLAIMS_BEHIND_THE_FRONT {
            assert!(progress.passed.is_none());
            assert_eq!(search(&table, &mut progress).0, 50);
        }
        assert!(progress.passed.is_none() && progress.straight == 0);
        search(&table, &mut progress);
        assert!(progress.passed.is_some(), "tried again");
    }
}
