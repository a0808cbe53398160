//! One session: statements in, rows out, with as few round trips as can be.
//!
//! A call is one *exchange* or a few: everything that needs no answer in between is sent at once, and ends with one Sync. BEGIN,
//! the settings, the statements and, where nothing is left to check, COMMIT are in one exchange; that is safe, because after an
//! error the server skips whatever comes before the Sync. The answer of a statement must be looked at before COMMIT if it returns
//! rows (they may be too many) or has to change a certain number of rows.
//!
//! Statements are prepared at their first use, which costs a round trip each, and kept by their text and the types of their
//! parameters. Behind a pooler they are sent anew each time, without a name, since the next transaction may run on another server
//! process; for the same reason every setting is made within the transaction.

use super::fault::{Fault, Reach};
use super::values::{self, Budget, Field};
use super::wire::Wire;
use crate::sql::place::place;
use crate::sql::{Access, Bounds, Rows, SqlErrorCode, Statement, Value, Values};
use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::Oid;
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend::{self, BindError};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Prepared statements kept by a session. An adapter has a dozen; several may share a session.
const STATEMENTS_KEPT: usize = 128;

/// Parameters that a statement can have in the protocol.
const MOST_PARAMETERS: usize = 65_535;

/// How long a transaction may sit idle beyond the deadline of its call, before the server ends it: a host that was frozen keeps its
/// locks for no longer.
const IDLE_BEYOND: Duration = Duration::from_secs(2);

/// Settings of one transaction. Stale statistics (a table that was analysed while it was empty) turn a claim of milliseconds into one of
/// seconds: without these ways to read a table the planner keeps to the index. The rest is what results are read by.
const SETTINGS: &str = "SELECT pg_catalog.set_config('statement_timeout', $1, true), pg_catalog.set_config('lock_timeout', $2, true), \
    pg_catalog.set_config('idle_in_transaction_session_timeout', $3, true), pg_catalog.set_config('enable_seqscan', 'off', true), \
    pg_catalog.set_config('enable_bitmapscan', 'off', true), pg_catalog.set_config('jit', 'off', true), \
    pg_catalog.set_config('TimeZone', 'UTC', true), pg_catalog.set_config('bytea_output', 'hex', true), \
    pg_catalog.set_config('extra_float_digits', '1', true)";

/// The same for a later call of an open transaction: only its time has changed.
const TIMES: &str = "SELECT pg_catalog.set_config('statement_timeout', $1, true), pg_catalog.set_config('lock_timeout', $2, true), \
    pg_catalog.set_config('idle_in_transaction_session_timeout', $3, true)";

/// In which transaction statements run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// A new one.
    New(Access),
    /// The one that is open.
    Within,
}

/// What happens after the statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    /// The transaction stays open.
    KeepOpen,
    /// It is committed.
    Commit,
}

/// Statements to run.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) start: Start,
    pub(super) statements: Vec<Statement>,
    pub(super) bounds: Bounds,
    pub(super) finish: Finish,
}

/// What tells prepared statements apart: a parameter of another type makes another statement.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    sql: String,
    types: Vec<Oid>,
}

impl Key {
    fn new(sql: &str, parameters: &[Value]) -> Self {
        Self { sql: sql.to_owned(), types: parameters.iter().map(values::type_of).collect() }
    }
}

/// A statement that the server has parsed before.
#[derive(Debug)]
struct Known {
    /// Its name there; empty: it has none.
    name: String,
    fields: Arc<[Field]>,
    /// When it was used last, in exchanges.
    used: u64,
}

/// An answer that is expected.
enum Expected {
    /// To Parse and Describe.
    Prepared { key: Key, name: String },
    /// To Bind and Execute of a statement of the host's own: rows, if any, are of no interest.
    Own,
    /// To Bind and Execute of statement `index`. What it returns is known from before, or is about to be described.
    Ran { index: usize, fields: Option<Arc<[Field]>>, formats: Vec<i16> },
    /// To what is left of a statement that returns something else than was asked for.
    Skipped,
    /// To COMMIT.
    Committed,
}

/// What became of a call so far.
struct Progress<'a> {
    statements: &'a [Statement],
    results: Vec<Rows>,
    /// Rows that each statement returned.
    returned: Vec<u64>,
    budget: Budget,
}

/// An open session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) wire: Wire,
    /// Whether another program stands between host and server, and hands out servers by the transaction.
    pub(super) pooled: bool,
    /// The server takes no writes.
    pub(super) read_only: bool,
    known: HashMap<Key, Known>,
    names: u64,
    exchanges: u64,
    /// As the server reported it last: idle, in a transaction, or in one that has failed.
    status: u8,
}

impl Session {
    /// Takes over a connection that has just become ready.
    pub(super) fn new(wire: Wire) -> Self {
        Self { wire, pooled: false, read_only: false, known: HashMap::new(), names: 0, exchanges: 0, status: b'I' }
    }

    /// Whether a transaction is open, failed or not.
    pub(super) fn in_transaction(&self) -> bool {
        self.status != b'I'
    }

    /// Forgets what was prepared: the schema has changed.
    fn forget_statements(&mut self) {
        for (_, known) in self.known.drain() {
            // Only a text with a NUL can fail here.
            let _ = frontend::close(b'S', &known.name, self.wire.out());
        }
    }

    /// Runs a statement of the host's own outside of a transaction, and returns the texts of its last row.
    ///
    /// # Errors
    /// What the server says, or the connection is lost.
    pub(super) async fn ask(&mut self, sql: &str) -> Result<Vec<Option<String>>, Fault> {
        let malformed = |error: std::io::Error| Fault::protocol(&error.to_string());
        frontend::query(sql, self.wire.out()).map_err(|error| unsendable(&error))?;
        let (mut texts, mut outcome) = (Vec::new(), Ok(()));
        loop {
            match self.wire.receive().await? {
                Message::DataRow(row) => {
                    let text = |range: Option<std::ops::Range<usize>>| {
                        Ok(range.map(|range| String::from_utf8_lossy(row.buffer().get(range).unwrap_or_default()).into_owned()))
                    };
                    texts = row.ranges().map(text).collect().map_err(malformed)?;
                }
                Message::ErrorResponse(body) => {
                    let fault = Fault::of(&body);
                    // After a fatal error nothing more comes.
                    if fault.lost {
                        return Err(fault);
                    }
                    outcome = outcome.and(Err(fault));
                }
                Message::ReadyForQuery(body) => {
                    self.status = body.status();
                    return outcome.map(|()| texts);
                }
                _ => {}
            }
        }
    }

    /// Runs a call.
    ///
    /// # Errors
    /// What the server says, or what does not fit; the transaction is then still open, and has to be rolled back, unless the
    /// connection is lost.
    pub(super) async fn run(&mut self, work: &Work) -> Result<Vec<Rows>, Fault> {
        let result = self.run_all(work).await;
        if let Err(fault) = &result {
            // What was written for an exchange that never began.
            self.wire.out().clear();
            if fault.reach == Reach::Statements {
                self.forget_statements();
            }
        }
        result
    }

    async fn run_all(&mut self, work: &Work) -> Result<Vec<Rows>, Fault> {
        let count = work.statements.len();
        let empty = |statement: &Statement| Rows { changed: 0, columns: statement.columns.iter().map(|of| Values::empty(*of)).collect() };
        let mut progress = Progress {
            statements: &work.statements,
            results: work.statements.iter().map(empty).collect(),
            returned: vec![0; count],
            budget: Budget::new(work.bounds.max_result_bytes),
        };
        for (index, statement) in work.statements.iter().enumerate() {
            check_parameters(&statement.parameters).map_err(|fault| fault.at(&place(index, count, &statement.sql)))?;
        }
        let columns = work.statements.iter().map(|statement| statement.columns.len()).max().unwrap_or(0);
        self.wire.bound_rows(progress.budget.longest_row(columns));

        let mut expected = VecDeque::new();
        self.start(work, &mut expected)?;
        for (index, statement) in work.statements.iter().enumerate() {
            self.send(index, statement, &mut expected, &mut progress).await?;
        }
        if work.finish == Finish::KeepOpen {
            self.exchange(expected, Some(&mut progress)).await?;
            must_have_changed(&progress)?;
        } else if self.nothing_to_check(&work.statements) {
            self.commit(&mut expected)?;
            self.exchange(expected, Some(&mut progress)).await?;
        } else {
            self.exchange(expected, Some(&mut progress)).await?;
            must_have_changed(&progress)?;
            let mut expected = VecDeque::new();
            self.commit(&mut expected)?;
            self.exchange(expected, None).await?;
        }
        self.check_status(work.finish)?;
        Ok(progress.results)
    }

    /// Rolls back, if there is something to roll back.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn roll_back(&mut self) -> Result<(), Fault> {
        if self.in_transaction() {
            let mut expected = VecDeque::new();
            self.own("ROLLBACK", &[], &mut expected)?;
            self.exchange(expected, None).await?;
        }
        self.check_status(Finish::Commit)
    }

    fn check_status(&self, finish: Finish) -> Result<(), Fault> {
        let wanted = if finish == Finish::Commit { b'I' } else { b'T' };
        if self.status == wanted { Ok(()) } else { Err(Fault::protocol("the transaction is not in the state that it should be in")) }
    }

    fn start(&mut self, work: &Work, expected: &mut VecDeque<Expected>) -> Result<(), Fault> {
        let left = work.bounds.left();
        if left.is_zero() {
            return Err(Fault::harmless(
                SqlErrorCode::Timeout,
                "the deadline of the call passed before its statements began; raise limits.call_timeout",
            ));
        }
        // A lock that does not come is `busy`, which the statement's own time-out must not forestall. Zero would mean: no time-out.
        let millis = |time: Duration| Value::Text(time.as_millis().clamp(1, i32::MAX.unsigned_abs().into()).to_string());
        let times = [millis(left), millis(left.mul_f64(0.9)), millis(left + IDLE_BEYOND)];
        match work.start {
            Start::New(access) => {
                let begin = match access {
                    Access::ReadWrite => "BEGIN ISOLATION LEVEL READ COMMITTED",
                    Access::ReadOnly => "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY",
                };
                self.own(begin, &[], expected)?;
                self.own(SETTINGS, &times, expected)
            }
            Start::Within => self.own(TIMES, &times, expected),
        }
    }

    fn commit(&mut self, expected: &mut VecDeque<Expected>) -> Result<(), Fault> {
        self.own("COMMIT", &[], expected)?;
        if let Some(last) = expected.back_mut() {
            *last = Expected::Committed;
        }
        Ok(())
    }

    /// Whether nothing that the statements can answer may keep the transaction from being committed.
    fn nothing_to_check(&self, statements: &[Statement]) -> bool {
        let known_to_return_nothing = |statement: &Statement| {
            let known = self.known.get(&Key::new(&statement.sql, &statement.parameters));
            known.is_some_and(|known| known.fields.is_empty())
        };
        statements
            .iter()
            .all(|statement| statement.columns.is_empty() && statement.must_change.is_none() && known_to_return_nothing(statement))
    }

    /// Sends a statement of the host's own: prepared at its first use, without a look at what it returns.
    fn own(&mut self, sql: &str, parameters: &[Value], expected: &mut VecDeque<Expected>) -> Result<(), Fault> {
        let key = Key::new(sql, parameters);
        let name = match self.known.get_mut(&key) {
            Some(known) if !self.pooled => {
                known.used = self.exchanges;
                known.name.clone()
            }
            _ => self.prepare(key, expected)?,
        };
        bind(&name, parameters, &[], self.wire.out())?;
        execute(self.wire.out())?;
        expected.push_back(Expected::Own);
        Ok(())
    }

    /// Sends a statement of a guest.
    async fn send(
        &mut self,
        index: usize,
        statement: &Statement,
        expected: &mut VecDeque<Expected>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Fault> {
        let key = Key::new(&statement.sql, &statement.parameters);
        let here = |fault: Fault| fault.at(&place(index, progress.statements.len(), &statement.sql));
        if !self.pooled && !self.known.contains_key(&key) {
            // What it returns has to be known before it is executed; and it can only be parsed once what comes before it has run.
            self.prepare(key.clone(), expected).map_err(here)?;
            let sent = std::mem::take(expected);
            self.exchange(sent, Some(progress)).await?;
        }
        let here = |fault: Fault| fault.at(&place(index, progress.statements.len(), &statement.sql));
        let (name, fields) = match self.known.get_mut(&key) {
            Some(known) => {
                known.used = self.exchanges;
                (known.name.clone(), Some(Arc::clone(&known.fields)))
            }
            None => (String::new(), None),
        };
        let mut formats = Vec::new();
        if let Some(fields) = &fields {
            // What was kept may be older than the schema.
            let checked = values::check_fields(fields, &statement.columns);
            checked.map_err(|fault| here(Fault { reach: Reach::Statements, ..fault }))?;
            if !self.pooled {
                formats = fields.iter().zip(&statement.columns).map(|(field, asked)| values::format(field, *asked)).collect();
            }
        }
        if self.pooled {
            frontend::parse("", &statement.sql, key.types, self.wire.out()).map_err(|error| here(unsendable(&error)))?;
        }
        bind(&name, &statement.parameters, &formats, self.wire.out()).map_err(here)?;
        if self.pooled {
            frontend::describe(b'P', "", self.wire.out()).map_err(|error| here(unsendable(&error)))?;
        }
        execute(self.wire.out()).map_err(here)?;
        expected.push_back(Expected::Ran { index, fields: fields.filter(|_| !self.pooled), formats });
        Ok(())
    }

    /// Sends Parse and Describe under a new name (behind a pooler: none), which it returns.
    fn prepare(&mut self, key: Key, expected: &mut VecDeque<Expected>) -> Result<String, Fault> {
        let name = if self.pooled {
            String::new()
        } else {
            self.make_room()?;
            self.names += 1;
            format!("outhaul{}", self.names)
        };
        frontend::parse(&name, &key.sql, key.types.iter().copied(), self.wire.out()).map_err(|error| unsendable(&error))?;
        frontend::describe(b'S', &name, self.wire.out()).map_err(|error| unsendable(&error))?;
        expected.push_back(Expected::Prepared { key, name: name.clone() });
        Ok(name)
    }

    /// Closes the statement that was not used for the longest time, if there are too many.
    fn make_room(&mut self) -> Result<(), Fault> {
        if self.known.len() < STATEMENTS_KEPT {
            return Ok(());
        }
        let oldest = self.known.iter().min_by_key(|(_, known)| known.used).map(|(key, _)| key.clone());
        if let Some(known) = oldest.and_then(|key| self.known.remove(&key)) {
            frontend::close(b'S', &known.name, self.wire.out()).map_err(|error| unsendable(&error))?;
        }
        Ok(())
    }

    /// Sends what was written, and takes every answer to it. The first error is the one that counts.
    async fn exchange(&mut self, mut expected: VecDeque<Expected>, mut progress: Option<&mut Progress<'_>>) -> Result<(), Fault> {
        frontend::sync(self.wire.out());
        self.exchanges += 1;
        let mut outcome = Ok(());
        loop {
            let message = self.wire.receive().await?;
            let answer = match message {
                Message::ReadyForQuery(body) => {
                    self.status = body.status();
                    if outcome.is_ok() && !expected.is_empty() {
                        return Err(Fault::protocol("an answer is missing"));
                    }
                    return outcome;
                }
                Message::ErrorResponse(body) => {
                    let fault = at(expected.front(), progress.as_deref(), Fault::of(&body));
                    // After a fatal error nothing more comes.
                    if fault.lost {
                        return Err(fault);
                    }
                    Err(fault)
                }
                message => self.answer(message, &mut expected, progress.as_deref_mut()),
            };
            if let Err(fault) = answer {
                if fault.lost {
                    return Err(fault);
                }
                outcome = outcome.and(Err(fault));
            }
        }
    }

    /// Takes one answer.
    fn answer(&mut self, message: Message, expected: &mut VecDeque<Expected>, progress: Option<&mut Progress<'_>>) -> Result<(), Fault> {
        match (message, expected.front_mut()) {
            // They come at any time.
            (Message::NoticeResponse(_) | Message::ParameterStatus(_) | Message::NotificationResponse(_), _) => Ok(()),
            (Message::ParseComplete | Message::BindComplete | Message::CloseComplete | Message::ParameterDescription(_), _) => Ok(()),
            (Message::RowDescription(body), Some(Expected::Prepared { .. })) => self.prepared(expected, values::fields(&body)?),
            (Message::NoData, Some(Expected::Prepared { .. })) => self.prepared(expected, Vec::new()),
            (Message::RowDescription(body), Some(Expected::Ran { index, .. })) => {
                let index = *index;
                self.described(index, values::fields(&body)?, expected, progress)
            }
            (Message::NoData, Some(Expected::Ran { index, .. })) => {
                let index = *index;
                self.described(index, Vec::new(), expected, progress)
            }
            (Message::DataRow(_), Some(Expected::Own | Expected::Skipped)) => Ok(()),
            (Message::DataRow(row), Some(Expected::Ran { index, fields, formats })) => {
                let (Some(progress), Some(fields)) = (progress, fields) else { return Err(Fault::protocol("a row without a description")) };
                let (Some(result), Some(returned)) = (progress.results.get_mut(*index), progress.returned.get_mut(*index)) else {
                    return Err(Fault::protocol("a row of no statement"));
                };
                *returned += 1;
                values::push_row(&mut result.columns, &row, fields, formats, &mut progress.budget)
                    .map_err(|fault| fault.at(&here(*index, progress.statements)))
            }
            (Message::CommandComplete(body), Some(_)) => {
                let tag = body.tag().map_err(|error| Fault::protocol(&error.to_string()))?;
                match (expected.pop_front(), progress) {
                    (Some(Expected::Ran { index, .. }), Some(progress)) => {
                        if let Some(result) = progress.results.get_mut(index) {
                            result.changed = changed(tag);
                        }
                        Ok(())
                    }
                    (Some(Expected::Committed), _) if tag != "COMMIT" => {
                        Err(Fault::harmless(SqlErrorCode::Other, "the transaction could not be committed: it had failed before"))
                    }
                    _ => Ok(()),
                }
            }
            (Message::EmptyQueryResponse, Some(Expected::Ran { index, .. })) => {
                let place = progress.map(|progress| here(*index, progress.statements)).unwrap_or_default();
                expected.pop_front();
                Err(Fault::harmless(SqlErrorCode::Syntax, "there is no statement in it").at(&place))
            }
            _ => Err(Fault::protocol("an answer that was not asked for")),
        }
    }

    fn prepared(&mut self, expected: &mut VecDeque<Expected>, fields: Vec<Field>) -> Result<(), Fault> {
        if let Some(Expected::Prepared { key, name }) = expected.pop_front()
            && !self.pooled
        {
            self.known.insert(key, Known { name, fields: fields.into(), used: self.exchanges });
        }
        Ok(())
    }

    /// Behind a pooler: what statement `index` is about to return.
    fn described(
        &mut self,
        index: usize,
        fields: Vec<Field>,
        expected: &mut VecDeque<Expected>,
        progress: Option<&mut Progress<'_>>,
    ) -> Result<(), Fault> {
        let Some((progress, statement)) =
            progress.and_then(|progress| progress.statements.get(index).map(|statement| (progress, statement)))
        else {
            return Err(Fault::protocol("a description of no statement"));
        };
        let fields: Arc<[Field]> = fields.into();
        let checked = values::check_fields(&fields, &statement.columns);
        if let Some(front) = expected.front_mut() {
            *front = match &checked {
                Ok(()) => Expected::Ran { index, fields: Some(Arc::clone(&fields)), formats: Vec::new() },
                Err(_) => Expected::Skipped,
            };
        }
        if self.known.len() >= STATEMENTS_KEPT {
            self.known.clear();
        }
        let key = Key::new(&statement.sql, &statement.parameters);
        self.known.insert(key, Known { name: String::new(), fields, used: self.exchanges });
        checked.map_err(|fault| fault.at(&here(index, progress.statements)))
    }
}

fn here(index: usize, statements: &[Statement]) -> String {
    statements.get(index).map(|statement| place(index, statements.len(), &statement.sql)).unwrap_or_default()
}

/// Says which statement an error is about.
fn at(expected: Option<&Expected>, progress: Option<&Progress<'_>>, fault: Fault) -> Fault {
    let Some(progress) = progress else { return fault };
    let index = match expected {
        Some(Expected::Ran { index, .. }) => Some(*index),
        Some(Expected::Prepared { key, .. }) => progress.statements.iter().position(|statement| statement.sql == key.sql),
        _ => None,
    };
    match index {
        Some(index) => fault.at(&here(index, progress.statements)),
        None => fault,
    }
}

fn must_have_changed(progress: &Progress<'_>) -> Result<(), Fault> {
    for (index, ((statement, rows), returned)) in progress.statements.iter().zip(&progress.results).zip(&progress.returned).enumerate() {
        let (found, verb) = if statement.columns.is_empty() { (rows.changed, "changed") } else { (*returned, "returned") };
        if let Some(expected) = statement.must_change
            && found != expected
        {
            let fault = Fault::harmless(
                SqlErrorCode::Changed,
                format!("it {verb} {found} rows instead of {expected}; the transaction was rolled back"),
            );
            return Err(fault.at(&here(index, progress.statements)));
        }
    }
    Ok(())
}

fn check_parameters(parameters: &[Value]) -> Result<(), Fault> {
    if parameters.len() > MOST_PARAMETERS {
        let text = format!("it has {} parameters, and the protocol allows {MOST_PARAMETERS}: use an array", parameters.len());
        return Err(Fault::harmless(SqlErrorCode::TypeMismatch, text));
    }
    parameters.iter().zip(1..).try_for_each(|(parameter, position)| values::check(parameter, position))
}

/// Rows changed, out of `INSERT 0 5`, `UPDATE 5`, `DELETE 5` or `MERGE 5`.
fn changed(tag: &str) -> u64 {
    let mut words = tag.split(' ');
    match words.next() {
        Some("INSERT" | "UPDATE" | "DELETE" | "MERGE") => words.next_back().and_then(|count| count.parse().ok()).unwrap_or(0),
        _ => 0,
    }
}

fn bind(statement: &str, parameters: &[Value], formats: &[i16], out: &mut BytesMut) -> Result<(), Fault> {
    // One code for all: binary.
    let bound = frontend::bind("", statement, [1], parameters, values::write, formats.iter().copied(), out);
    bound.map_err(|error| match error {
        BindError::Conversion(error) => Fault::lost(SqlErrorCode::TypeMismatch, format!("a parameter cannot be sent: {error}")),
        BindError::Serialization(error) => unsendable(&error),
    })
}

/// All rows at once: a limit would keep the server from parallel plans.
fn execute(out: &mut BytesMut) -> Result<(), Fault> {
    frontend::execute("", 0, out).map_err(|error| unsendable(&error))
}

/// What was written so far cannot be taken back, so that the connection is lost.
fn unsendable(error: &std::io::Error) -> Fault {
    Fault::lost(SqlErrorCode::Syntax, format!("the statement cannot be sent: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_tell_what_changed() {
        for (tag, count) in
            [("INSERT 0 5", 5), ("UPDATE 3", 3), ("DELETE 0", 0), ("MERGE 2", 2), ("SELECT 7", 0), ("CREATE TABLE", 0), ("", 0)]
        {
            assert_eq!(changed(tag), count, "{tag}");
        }
    }
}
