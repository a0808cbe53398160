//! A real PostgreSQL behind the `sql` capability's trait, as the WIT package describes it; and a table to test with.

use outbox_table::database::{Access, ColumnType, Database, Rows, SqlError, SqlErrorCode, Statement, Transaction, Value, Values};
use outhaul_sdk::{Batch, ClaimRequest, Claimed, Column, Description, Failure, FailureCode, Retry, Settlement, Verdict, sql};
use postgres::fallible_iterator::FallibleIterator as _;
use postgres::types::{FromSql, IsNull, ToSql, Type, private::BytesMut};
use postgres::{Client, NoTls};
use postgres_storage::Outbox;
use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex};

thread_local! {
    /// The statements of this thread: text and parameters.
    static RUN: RefCell<Vec<(String, String)>> = const { RefCell::new(Vec::new()) };
}

/// Something to be done before a statement of this thread that contains a text; once.
type Step = (String, Box<dyn Fn()>);

thread_local! {
    static STEP: RefCell<Option<Step>> = const { RefCell::new(None) };
}

/// Does something before the next statement of this thread that contains `part`.
pub(crate) fn before(part: &str, step: impl Fn() + 'static) {
    STEP.set(Some((part.to_owned(), Box::new(step))));
}

thread_local! {
    static TAMPERING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Leaves the chain check out of this thread's claims, to see whether a test would notice.
pub(crate) fn tampering(on: bool) {
    TAMPERING.set(on);
}

/// The last statement of this thread that contains `part`: text and parameters.
pub(crate) fn last_run(part: &str) -> (String, String) {
    RUN.with_borrow(|run| run.iter().rfind(|(sql, _)| sql.contains(part)).cloned()).expect(part)
}

/// The plan of a statement that was run, with the settings of its session.
pub(crate) fn plan(bench: &Bench, (sql, _): &(String, String)) -> String {
    let (mut text, mut at) = (sql.clone(), 0);
    while sql.contains(&format!("${}", at + 1)) {
        at += 1;
    }
    // From the last on: $1 is a part of $10.
    for number in (1..=at).rev() {
        text = text.replace(&format!("CAST(${number} AS bigint)"), "100").replace(&format!("${number}"), "NULL");
    }
    let settings = "SET enable_seqscan = off; SET enable_bitmapscan = off";
    let mut client = bench.sql.borrow_mut();
    let messages = client.simple_query(&format!("{settings}; EXPLAIN (COSTS OFF) {text}")).expect(&text);
    let lines = messages.iter().filter_map(|message| match message {
        postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The plan of a statement that was run, whatever its values: the one that a prepared statement comes to have.
pub(crate) fn generic_plan(bench: &Bench, (sql, _): &(String, String)) -> String {
    let mut parameters = 0;
    while sql.contains(&format!("${}", parameters + 1)) {
        parameters += 1;
    }
    let settings = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET plan_cache_mode = force_generic_plan";
    let nulls = vec!["NULL"; parameters].join(", ");
    let mut client = bench.sql.borrow_mut();
    let explain = format!("{settings}; PREPARE explained AS {sql}; EXPLAIN (COSTS OFF) EXECUTE explained({nulls}); DEALLOCATE explained");
    let messages = client.simple_query(&explain).expect(&explain);
    let lines = messages.iter().filter_map(|message| match message {
        postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

struct Session {
    client: Client,
    prepared: HashMap<String, postgres::Statement>,
}

/// A connection.
#[derive(Clone)]
pub(crate) struct Postgres(Arc<Mutex<Session>>);

impl std::fmt::Debug for Postgres {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Postgres")
    }
}

/// An open transaction.
pub(crate) struct Open(Option<Postgres>);

impl Postgres {
    pub(crate) fn open(url: &str, access: Access) -> Result<Self, SqlError> {
        let mut client = Client::connect(url, NoTls).map_err(error)?;
        // As the host sets it.
        client
            .batch_execute("SET TimeZone = 'UTC'; SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off")
            .map_err(error)?;
        if matches!(access, Access::ReadOnly) {
            client.batch_execute("SET default_transaction_read_only = on").map_err(error)?;
        }
        Ok(Self(Arc::new(Mutex::new(Session { client, prepared: HashMap::new() }))))
    }

    fn batch(&self, sql: &str) -> Result<(), SqlError> {
        self.0.lock().expect("lock").client.batch_execute(sql).map_err(error)
    }
}

impl Database for Postgres {
    type Transaction = Open;
    fn execute(&self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        let (transaction, rows) = self.begin(statements)?;
        transaction.commit(Vec::new())?;
        Ok(rows)
    }
    fn begin(&self, statements: Vec<Statement>) -> Result<(Open, Vec<Rows>), SqlError> {
        self.batch("BEGIN")?;
        let transaction = Open(Some(self.clone()));
        let rows = transaction.execute(statements)?;
        Ok((transaction, rows))
    }
}

impl Transaction for Open {
    fn execute(&self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        let connection = self.0.as_ref().expect("open");
        let chain = " AND (g.key IS NULL OR g.chain)";
        let tamper = |mut statement: Statement| {
            if TAMPERING.get() && statement.sql.contains(chain) {
                statement.sql = statement.sql.replace(chain, "");
            }
            statement
        };
        statements.into_iter().map(tamper).map(|statement| run(connection, &statement)).collect()
    }
    fn commit(mut self, statements: Vec<Statement>) -> Result<Vec<Rows>, SqlError> {
        let rows = self.execute(statements)?;
        self.0.take().expect("open").batch("COMMIT")?;
        Ok(rows)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.batch("ROLLBACK").expect("roll back");
        }
    }
}

/// Any value of a result, as it came.
struct Raw(Option<Vec<u8>>);

impl<'a> FromSql<'a> for Raw {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(Some(raw.to_vec())))
    }
    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(None))
    }
    fn accepts(_: &Type) -> bool {
        true
    }
}

/// NULL of any type.
#[derive(Debug)]
struct Null;

impl ToSql for Null {
    fn to_sql(&self, _: &Type, _: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        Ok(IsNull::Yes)
    }
    fn accepts(_: &Type) -> bool {
        true
    }
    postgres::types::to_sql_checked!();
}

fn run(connection: &Postgres, statement: &Statement) -> Result<Rows, SqlError> {
    let step = STEP.with_borrow_mut(|step| step.take_if(|(part, _)| statement.sql.contains(part.as_str())));
    if let Some((_, step)) = step {
        step();
    }
    RUN.with_borrow_mut(|run| run.push((statement.sql.clone(), format!("{:?}", statement.parameters))));
    let Session { client, prepared } = &mut *connection.0.lock().expect("lock");
    let values: Vec<(Type, Box<dyn ToSql + Sync>)> = statement.parameters.iter().map(bound).collect::<Result<_, _>>()?;
    let kept = prepared.get(&statement.sql).cloned();
    let prepared = match kept {
        Some(kept) => kept,
        None => {
            let types: Vec<Type> = values.iter().map(|(kind, _)| kind.clone()).collect();
            let new = client.prepare_typed(&statement.sql, &types).map_err(error)?;
            prepared.insert(statement.sql.clone(), new.clone());
            new
        }
    };
    let parameters: Vec<&(dyn ToSql + Sync)> = values.iter().map(|(_, value)| &**value).collect();
    let mut columns: Vec<Values> = statement.columns.iter().map(|column| empty(*column)).collect();
    if columns.is_empty() {
        let changed = client.execute(&prepared, &parameters).map_err(error)?;
        return Ok(Rows { changed, columns });
    }
    let rows = client.query(&prepared, &parameters).map_err(error)?;
    for row in &rows {
        assert_eq!(row.len(), columns.len(), "{}", statement.sql);
        for (at, column) in columns.iter_mut().enumerate() {
            let Raw(value) = row.get(at);
            append(column, row.columns()[at].type_(), value.as_deref())
                .map_err(|what| fail(SqlErrorCode::TypeMismatch, format!("column {at} of {}: {what}", statement.sql)))?;
        }
    }
    Ok(Rows { changed: rows.len() as u64, columns })
}

fn bound(value: &Value) -> Result<(Type, Box<dyn ToSql + Sync>), SqlError> {
    Ok(match value {
        Value::Null => (Type::UNKNOWN, Box::new(Null)),
        Value::Integer(number) => (Type::INT8, Box::new(*number)),
        Value::Real(number) => (Type::FLOAT8, Box::new(*number)),
        Value::Text(text) => (Type::TEXT, Box::new(text.clone())),
        Value::Bytes(bytes) => (Type::BYTEA, Box::new(bytes.clone())),
        Value::Integers(numbers) => (Type::INT8_ARRAY, Box::new(numbers.clone())),
        Value::Texts(texts) => {
            let text = |at| texts.get(at).map(|text| std::str::from_utf8(text).map(str::to_owned)).transpose();
            let texts: Result<Vec<Option<String>>, _> = (0..texts.len()).map(text).collect();
            (Type::TEXT_ARRAY, Box::new(texts.map_err(|fault| fail(SqlErrorCode::TypeMismatch, fault.to_string()))?))
        }
    })
}

fn empty(column: ColumnType) -> Values {
    match column {
        ColumnType::Integer => Values::Integers(sql::Integers { values: Vec::new(), nulls: Vec::new() }),
        ColumnType::Real => Values::Reals(sql::Reals { values: Vec::new(), nulls: Vec::new() }),
        ColumnType::Text => Values::Texts(Column::new()),
        ColumnType::Bytes => Values::Bytes(Column::new()),
    }
}

fn append(column: &mut Values, kind: &Type, value: Option<&[u8]>) -> Result<(), String> {
    match (column, value) {
        (Values::Integers(column), None) => {
            column.values.push(0);
            column.nulls.push(1);
        }
        (Values::Integers(column), Some(bytes)) => {
            let number = match *kind {
                Type::INT4 => i64::from(i32::from_be_bytes(bytes.try_into().expect("4 bytes"))),
                Type::INT8 => i64::from_be_bytes(bytes.try_into().expect("8 bytes")),
                _ => return Err(format!("a value of type {kind}")),
            };
            column.values.push(number);
            column.nulls.push(0);
        }
        (Values::Texts(column) | Values::Bytes(column), value) if matches!(*kind, Type::TEXT | Type::BYTEA | Type::VARCHAR) => {
            column.push(value);
        }
        _ => return Err(format!("a value of type {kind}")),
    }
    Ok(())
}

fn fail(code: SqlErrorCode, detail: String) -> SqlError {
    SqlError { code, detail }
}

fn error(error: postgres::Error) -> SqlError {
    let Some(reported) = error.as_db_error() else { return fail(SqlErrorCode::Unavailable, error.to_string()) };
    let code = match reported.code().code() {
        "42P01" | "42703" | "3F000" => SqlErrorCode::Missing,
        code if code.starts_with("23") => SqlErrorCode::Constraint,
        "40001" | "40P01" | "55P03" => SqlErrorCode::Busy,
        "25006" => SqlErrorCode::ReadOnly,
        "57014" => SqlErrorCode::Timeout,
        "42501" => SqlErrorCode::Denied,
        code if code.starts_with("22") => SqlErrorCode::TypeMismatch,
        code if code.starts_with("42") => SqlErrorCode::Syntax,
        code if code.starts_with("08") || code.starts_with("57") => SqlErrorCode::Unavailable,
        _ => SqlErrorCode::Other,
    };
    fail(code, reported.message().to_owned())
}

/// A database, and a connection that looks at it from outside.
pub(crate) struct Bench {
    database: outhaul_services::Database,
    sql: RefCell<Client>,
}

impl Bench {
    /// A database with what `ddl` creates; none where there is no server.
    pub(crate) fn new(ddl: &str) -> Option<Self> {
        let database = outhaul_services::postgres(crate::MAJOR)?.create_database().expect("a database");
        let mut sql = Client::connect(&database.url(), NoTls).expect("connect");
        sql.batch_execute(ddl).expect("ddl");
        Some(Self { database, sql: RefCell::new(sql) })
    }

    /// Outhaul's own table, with further configuration keys (`,"a":1`).
    pub(crate) fn own(more: &str) -> Option<(Self, Outbox<Postgres>)> {
        let bench = Self::new("")?;
        let mut outbox = bench.open(more);
        outbox.create_schema().expect("schema");
        Some((bench, outbox))
    }

    pub(crate) fn url(&self) -> String {
        self.database.url()
    }

    pub(crate) fn config(&self, more: &str) -> String {
        config(&self.url(), more)
    }

    pub(crate) fn open(&self, more: &str) -> Outbox<Postgres> {
        open(&self.config(more)).expect("open")
    }

    /// Inserts a row into outhaul's own table.
    pub(crate) fn insert(&self, key: Option<&str>, payload: &str) -> String {
        let sql = "INSERT INTO outbox (topic, key, payload) VALUES ('t', $1, $2) RETURNING id";
        let row = self.sql.borrow_mut().query_one(sql, &[&key, &payload.as_bytes()]).expect("insert");
        row.get::<_, i64>(0).to_string()
    }

    /// How many notifications of a channel some statements bring about.
    pub(crate) fn notified(&self, channel: &str, sql: &str) -> usize {
        let mut listener = Client::connect(&self.url(), NoTls).expect("connect");
        listener.batch_execute(&format!("LISTEN \"{channel}\"")).expect("listen");
        self.run(sql);
        // One more, which nobody has to wait for in vain.
        self.run(&format!("NOTIFY \"{channel}\", 'end'"));
        let mut notifications = listener.notifications();
        let mut notifications = notifications.timeout_iter(std::time::Duration::from_secs(30));
        let mut count = 0;
        while notifications.next().expect("notification").expect("notified").payload() != "end" {
            count += 1;
        }
        count
    }

    /// Inserts a row into outhaul's own table, in a transaction that stays open.
    pub(crate) fn late_insert(&self, key: &str) -> Late {
        let mut client = Client::connect(&self.url(), NoTls).expect("connect");
        client.batch_execute("BEGIN").expect("begin");
        let row = client.query_one("INSERT INTO outbox (topic, key, payload) VALUES ('t', $1, 'x') RETURNING id", &[&key]).expect("insert");
        Late { client, id: row.get::<_, i64>(0).to_string() }
    }

    /// A transaction that has run some statements and stays open; dropped, it is rolled back.
    pub(crate) fn holding(&self, sql: &str) -> Late {
        let mut client = Client::connect(&self.url(), NoTls).expect("connect");
        client.batch_execute("BEGIN").expect("begin");
        client.batch_execute(sql).expect(sql);
        Late { client, id: String::new() }
    }

    /// Waits until a count is not 0.
    pub(crate) fn wait_for(&self, count: &str) {
        while self.value(count) == "0" {
            std::thread::yield_now();
        }
    }

    /// Waits until somebody waits for a lock, in this database: other tests have theirs on the same server.
    pub(crate) fn wait_for_a_waiter(&self) {
        self.wait_for("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'");
    }

    /// Runs statements, which return nothing.
    pub(crate) fn run(&self, sql: &str) {
        self.sql.borrow_mut().batch_execute(sql).expect(sql);
    }

    /// One value as text; `NULL` for none.
    pub(crate) fn value(&self, sql: &str) -> String {
        let messages = self.sql.borrow_mut().simple_query(sql).expect(sql);
        let row = messages.iter().find_map(|message| match message {
            postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        match row.expect(sql).get(0) {
            Some("t") => "true".to_owned(),
            Some("f") => "false".to_owned(),
            value => value.unwrap_or("NULL").to_owned(),
        }
    }
}

/// A transaction that is not committed, and the row that it has inserted.
pub(crate) struct Late {
    client: Client,
    pub(crate) id: String,
}

impl Late {
    /// Commits; the row's id.
    pub(crate) fn commit(mut self) -> String {
        self.client.batch_execute("COMMIT").expect("commit");
        self.id
    }
}

pub(crate) fn config(url: &str, more: &str) -> String {
    format!("{{\"database\":{}{more}}}", serde_json::Value::from(url))
}

pub(crate) fn open(config: &str) -> Result<Outbox<Postgres>, Failure> {
    Outbox::open(config, Postgres::open).map(|(outbox, _)| outbox)
}

pub(crate) fn describe(config: &str) -> Description {
    Outbox::open(config, Postgres::open).expect("open").1
}

pub(crate) fn request(worker: &str, limit: u32) -> ClaimRequest {
    ClaimRequest { worker: worker.to_owned(), limit, max_bytes: 1 << 30, lease_ms: 60_000, max_attempts: 0, max_message_bytes: 1 << 20 }
}

pub(crate) fn claim(outbox: &mut Outbox<Postgres>, worker: &str, limit: u32) -> Claimed {
    outbox.claim(&request(worker, limit)).expect("claim")
}

pub(crate) fn ids(batch: &Batch) -> Vec<String> {
    batch.messages().map(|message| message.id().to_owned()).collect()
}

pub(crate) fn settle(outbox: &mut Outbox<Postgres>, worker: &str, verdict: Verdict, ids: &[String]) -> Vec<String> {
    outbox.settle(worker, &[settlement(verdict, ids)]).expect("settle")
}

/// Calls again for as long as a row is locked by another transaction, as the host does.
pub(crate) fn patiently<T>(mut call: impl FnMut() -> Result<T, Failure>) -> T {
    loop {
        match call() {
            Err(failure) if failure.code == FailureCode::Timeout => {}
            result => return result.unwrap(),
        }
    }
}

pub(crate) fn settlement(verdict: Verdict, ids: &[String]) -> Settlement {
    Settlement { verdict, ids: Column::of_texts(ids) }
}

pub(crate) fn retry(detail: &str, delay_ms: u64) -> Verdict {
    Verdict::Retry(Retry { failure: Failure::of(FailureCode::Network, detail), delay_ms })
}

pub(crate) fn dead(detail: &str) -> Verdict {
    Verdict::Dead(Failure::of(FailureCode::InvalidMessage, detail))
}
