//! One session: statements in, rows out.
//!
//! sqlx takes a round trip for each statement, so the host adds as few of its own as it can. How long a statement may take is a setting of
//! the session, made when it changes. A call begins its transaction (BEGIN) and ends with COMMIT. A single statement of which no answer can
//! undo it (it returns nothing, or may not write, and need not change a certain number of rows) is a transaction by itself.
//!
//! Statements are prepared at their first use, and kept by sqlx under their text, which is why the types of the parameters are part
//! of it. Behind a pooler they are sent anew each time, without a name, since the next transaction may run on another server process;
//! for the same reason every setting is made within the transaction, in one round trip with BEGIN.

use super::fault::{Fault, Reach};
use super::values::{self, Budget};
use crate::sql::place::place;
use crate::sql::{Access, Bounds, Rows, SqlErrorCode, Statement, Values};
use futures_util::TryStreamExt;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Either, Executor, SqlSafeStr, Statement as _};
use std::time::{Duration, Instant};

/// Prepared statements kept by a session. An adapter has a dozen; several may share a session.
pub(super) const STATEMENTS_KEPT: usize = 128;

/// Parameters that a statement can have in the protocol.
const MOST_PARAMETERS: usize = 65_535;

/// How long a transaction may sit idle beyond the deadline of its call, before the server ends it: a host that was frozen keeps its
/// locks for no longer.
const IDLE_BEYOND: Duration = Duration::from_secs(2);

/// A session that was used so recently is taken to be alive; another one is asked first.
const TRUSTED_FOR: Duration = Duration::from_millis(100);

/// Settings of every transaction. Stale statistics (a table that was analysed while it was empty) turn a claim of milliseconds into one
/// of seconds: without these ways to read a table the planner keeps to the index. Notices would end up in the log, with whatever values
/// they quote. The rest is how values are written as text.
pub(super) const SETTINGS: [(&str, &str); 7] = [
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
    ("client_min_messages", "error"),
    ("TimeZone", "UTC"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
];

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
    /// Whether each of them changes rows; as long as they are once they were let through.
    pub(super) changes: Vec<bool>,
    pub(super) bounds: Bounds,
    pub(super) finish: Finish,
}

impl Work {
    pub(super) fn new(start: Start, statements: Vec<Statement>, bounds: Bounds, finish: Finish) -> Self {
        let changes = Vec::with_capacity(statements.len());
        Self { start, statements, changes, bounds, finish }
    }

    /// Whether it is one statement that may be a transaction by itself: there is nothing in its answer that could undo it.
    fn is_alone(&self, access: Access) -> bool {
        match self.statements.as_slice() {
            [statement] => {
                self.finish == Finish::Commit
                    && statement.must_change.is_none()
                    && (access == Access::ReadOnly || statement.columns.is_empty())
            }
            _ => false,
        }
    }
}

/// An open session.
#[derive(Debug)]
pub(super) struct Session {
    connection: PgConnection,
    /// Whether another program stands between host and server, and hands out servers by the transaction.
    pub(super) pooled: bool,
    /// The server takes no writes.
    pub(super) read_only: bool,
    in_transaction: bool,
    /// What the session is set up for: for whom, and how long a statement may take, in milliseconds.
    settled: Option<(Access, u64)>,
    /// How long a statement of the open transaction may take, in milliseconds.
    limit: u64,
    /// Prepared statements are not what they were.
    outdated: bool,
    used: Instant,
}

impl Session {
    /// Takes over a connection that has just been opened.
    pub(super) fn new(connection: PgConnection) -> Self {
        Self {
            connection,
            pooled: false,
            read_only: false,
            in_transaction: false,
            settled: None,
            limit: 0,
            outdated: false,
            used: Instant::now(),
        }
    }

    /// Whether a transaction is open, failed or not.
    pub(super) fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// Whether it is set up for this access.
    pub(super) fn is_settled_for(&self, access: Access) -> bool {
        self.settled.is_some_and(|(settled, _)| settled == access)
    }

    /// Notes that the session goes out of use.
    pub(super) fn rest(&mut self) {
        self.used = Instant::now();
    }

    /// Whether the server is still there. Costs a round trip after a rest.
    pub(super) async fn is_alive(&mut self) -> bool {
        self.used.elapsed() < TRUSTED_FOR || self.connection.ping().await.is_ok()
    }

    /// Runs statements of the host's own.
    ///
    /// # Errors
    /// What the server says, or the connection is lost.
    pub(super) async fn tell(&mut self, sql: String) -> Result<(), Fault> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.connection).await.map(drop).map_err(|error| Fault::of(&error))
    }

    /// Runs a statement of the host's own that returns one row.
    ///
    /// # Errors
    /// What the server says, or the connection is lost.
    pub(super) async fn ask(&mut self, sql: &'static str) -> Result<PgRow, Fault> {
        sqlx::raw_sql(sql).fetch_one(&mut self.connection).await.map_err(|error| Fault::of(&error))
    }

    /// Runs a call.
    ///
    /// # Errors
    /// What the server says, or what does not fit; the transaction is then still open, and has to be rolled back, unless the
    /// connection is lost.
    pub(super) async fn run(&mut self, work: &Work) -> Result<Vec<Rows>, Fault> {
        let mut result = self.run_all(work).await;
        if self.pooled
            && let Err(fault) = &mut result
            && fault.reach == Reach::Pooler
        {
            // Between preparing a statement and running it, sqlx asks the server for a type that it does not know yet, which ends a
            // statement without a name. Now it knows the type.
            if work.start == Start::Within {
                fault.lost = false;
            } else {
                self.roll_back().await?;
                result = self.run_all(work).await;
            }
        }
        if let Err(fault) = &result {
            self.outdated |= fault.reach == Reach::Statements;
        }
        result
    }

    async fn run_all(&mut self, work: &Work) -> Result<Vec<Rows>, Fault> {
        let count = work.statements.len();
        for (index, statement) in work.statements.iter().enumerate() {
            check_parameters(statement).map_err(|fault| fault.at(&place(index, count, &statement.sql)))?;
        }
        self.start(work).await?;
        let mut budget = Budget::new(work.bounds.max_result_bytes);
        let mut results = Vec::with_capacity(count);
        for (index, statement) in work.statements.iter().enumerate() {
            let changes = work.changes.get(index).ok_or_else(|| Fault::harmless(SqlErrorCode::Denied, "a statement was not looked at"))?;
            let ran = self.run_one(statement, *changes, &mut budget).await;
            results.push(ran.map_err(|fault| fault.at(&place(index, count, &statement.sql)))?);
        }
        if self.in_transaction && work.finish == Finish::Commit {
            // Whatever the answer is, nothing is left to roll back.
            self.in_transaction = false;
            self.tell("COMMIT".to_owned()).await?;
        }
        Ok(results)
    }

    /// Rolls back, if there is something to roll back, and forgets prepared statements that are no longer good.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn roll_back(&mut self) -> Result<(), Fault> {
        if self.in_transaction {
            self.tell("ROLLBACK".to_owned()).await?;
            self.in_transaction = false;
        }
        if self.outdated {
            self.connection.clear_cached_statements().await.map_err(|error| Fault::of(&error))?;
            self.outdated = false;
        }
        Ok(())
    }

    /// Makes the settings of a call, beginning its transaction if it needs one.
    async fn start(&mut self, work: &Work) -> Result<(), Fault> {
        let left = work.bounds.left();
        if left.is_zero() {
            return Err(Fault::harmless(
                SqlErrorCode::Timeout,
                "the deadline of the call passed before its statements began; raise limits.call_timeout",
            ));
        }
        let limit = rounded(left);
        match work.start {
            Start::New(access) if !self.pooled && work.is_alone(access) => self.settle(access, limit).await,
            Start::New(access) => self.begin(access, limit).await,
            Start::Within if limit == self.limit => Ok(()),
            Start::Within => {
                self.tell(times("SET LOCAL", limit)).await?;
                self.limit = limit;
                Ok(())
            }
        }
    }

    /// Sets the session up, if it is not. Costs nothing while little changes.
    async fn settle(&mut self, access: Access, limit: u64) -> Result<(), Fault> {
        if self.settled == Some((access, limit)) {
            return Ok(());
        }
        let writes = match access {
            // As the server, the database or the role has it: what takes no writes is to say so.
            Access::ReadWrite => "RESET default_transaction_read_only",
            Access::ReadOnly => "SET default_transaction_read_only = on",
        };
        self.settled = None;
        self.tell(format!("{}; {writes}", times("SET", limit))).await?;
        self.settled = Some((access, limit));
        Ok(())
    }

    async fn begin(&mut self, access: Access, limit: u64) -> Result<(), Fault> {
        let mode = match access {
            Access::ReadWrite => "",
            Access::ReadOnly => " READ ONLY",
        };
        let mut sql = format!("BEGIN ISOLATION LEVEL READ COMMITTED{mode}");
        if self.pooled {
            sql.push_str(&format!("; {}", times("SET LOCAL", limit)));
            for (name, value) in SETTINGS {
                sql.push_str(&format!("; SET LOCAL {name} = '{value}'"));
            }
        } else {
            self.settle(access, limit).await?;
        }
        self.in_transaction = true;
        self.limit = limit;
        self.tell(sql).await
    }

    async fn run_one(&mut self, statement: &Statement, changes: bool, budget: &mut Budget) -> Result<Rows, Fault> {
        let sql = AssertSqlSafe(values::with_types(&statement.sql, &statement.parameters));
        let arguments = values::arguments(&statement.parameters)?;
        let mut rows = Rows { changed: 0, columns: statement.columns.iter().map(|of| Values::empty(*of)).collect() };
        let (mut affected, mut returned) = (0, 0);
        let prepared;
        let query = if self.pooled {
            sqlx::query_with(sql, arguments).persistent(false)
        } else {
            let types: Vec<_> = statement.parameters.iter().map(values::type_of).collect();
            let found = self.connection.prepare_with(sql.into_sql_str(), &types).await;
            prepared = found.map_err(|error| Fault::of(&error))?;
            let checked = values::check_columns(prepared.columns(), &statement.columns);
            // What was kept may be older than the schema.
            checked.map_err(|fault| Fault { reach: Reach::Statements, ..fault })?;
            prepared.query_with(arguments)
        };
        let mut answers = (&mut self.connection).fetch_many(query);
        while let Some(answer) = answers.try_next().await.map_err(|error| Fault::of(&error))? {
            match answer {
                Either::Left(done) => affected += done.rows_affected(),
                Either::Right(row) => {
                    if self.pooled && returned == 0 {
                        values::check_columns(sqlx::Row::columns(&row), &statement.columns)?;
                    }
                    returned += 1;
                    values::push_row(&mut rows.columns, &row, budget)?;
                }
            }
        }
        if changes {
            rows.changed = affected;
        }
        if self.pooled && returned == 0 && rows.changed > 0 {
            values::check_columns(&[], &statement.columns)?;
        }
        must_have_changed(statement, rows.changed, returned)?;
        Ok(rows)
    }
}

fn must_have_changed(statement: &Statement, changed: u64, returned: u64) -> Result<(), Fault> {
    let (found, verb) = if statement.columns.is_empty() { (changed, "changed") } else { (returned, "returned") };
    match statement.must_change {
        Some(expected) if found != expected => Err(Fault::harmless(
            SqlErrorCode::Changed,
            format!("it {verb} {found} rows instead of {expected}; the transaction was rolled back"),
        )),
        _ => Ok(()),
    }
}

fn check_parameters(statement: &Statement) -> Result<(), Fault> {
    let parameters = &statement.parameters;
    if statement.sql.contains('\0') {
        return Err(Fault::harmless(SqlErrorCode::Syntax, "it holds a NUL character"));
    }
    if parameters.len() > MOST_PARAMETERS {
        let text = format!("it has {} parameters, and the protocol allows {MOST_PARAMETERS}: use an array", parameters.len());
        return Err(Fault::harmless(SqlErrorCode::TypeMismatch, text));
    }
    parameters.iter().zip(1..).try_for_each(|(parameter, position)| values::check(parameter, position))
}

/// How long a statement may take, in milliseconds: what is left, rounded down by less than a sixteenth, so that calls with the same
/// time-out have the same limit and it need not be set each time. Zero would mean: no limit.
fn rounded(left: Duration) -> u64 {
    let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).clamp(1, i32::MAX.unsigned_abs().into());
    let step = (1_u64 << millis.ilog2()) / 16;
    millis - millis.checked_rem(step).unwrap_or(0)
}

/// The settings of time. A lock that does not come is `busy`, which the statement's own time-out must not forestall.
fn times(set: &str, limit: u64) -> String {
    let lock = (limit - limit / 10).max(1);
    let idle = limit + limit / 16 + u64::try_from(IDLE_BEYOND.as_millis()).unwrap_or(u64::MAX);
    let idle = idle.min(i32::MAX.unsigned_abs().into());
    format!("{set} statement_timeout = {limit}; {set} lock_timeout = {lock}; {set} idle_in_transaction_session_timeout = {idle}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn limits_are_rounded_down_a_little() {
        let limit = |millis| rounded(Duration::from_millis(millis));
        assert_eq!((limit(0), limit(1), limit(31), limit(33)), (1, 1, 31, 32));
        assert_eq!((limit(29_998), limit(29_700), limit(500)), (29_696, 29_696, 496));
        assert_eq!(rounded(Duration::MAX), 0x7c00_0000);
    }

    proptest! {
        #[test]
        fn no_limit_is_zero_or_longer_than_the_time_left(millis in 1_u64..=i32::MAX.unsigned_abs().into()) {
            let limit = rounded(Duration::from_millis(millis));
            prop_assert!(limit > 0 && limit <= millis && (millis - limit) * 16 < millis);
        }
    }
}
