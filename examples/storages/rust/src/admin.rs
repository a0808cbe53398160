//! What the command line asks for: the table, new rows, and a look at those that are there.

use crate::statement::{batch, run, statement, write_headers};
use outhaul_sdk::database::failure::of_sql;
use outhaul_sdk::database::{ColumnType, Reader, Results, SqlErrorCode, Transaction, Value};
use outhaul_sdk::{Batch, Column, Counts, Failure, Filter, Message, Page, Row, RowState};

/// The DDL, statement by statement. Running it again changes nothing.
pub(crate) fn schema(table: &str) -> [String; 3] {
    [
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE DEFAULT (lower(hex(random()))),
  topic TEXT NOT NULL,
  key TEXT,
  headers TEXT NOT NULL DEFAULT '[]',
  payload BLOB,
  state TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'dead')),
  attempts INTEGER NOT NULL DEFAULT 0,
  due_at INTEGER NOT NULL DEFAULT 0,
  worker TEXT,
  lease_end INTEGER NOT NULL DEFAULT 0,
  last_error TEXT,
  created_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  settled_at INTEGER
)"
        ),
        format!("CREATE INDEX IF NOT EXISTS {table}_state ON {table} (state, seq)"),
        format!("CREATE INDEX IF NOT EXISTS {table}_key ON {table} (key, seq) WHERE state = 'pending'"),
    ]
}

pub(crate) fn stats<T: Transaction>(transaction: &T, table: &str, now: i64) -> Result<Counts, Failure> {
    let sql = format!(
        "SELECT count(*), sum(due_at <= ?1 AND lease_end <= ?1), sum(lease_end > ?1), \
           (SELECT count(*) FROM {table} WHERE state = 'dead'), max(?1 - min(created_at), 0) \
         FROM {table} WHERE state = 'pending'"
    );
    let mut found = run(transaction, "counting", statement(sql, [Value::Integer(now)], &[ColumnType::Integer; 5]))?;
    let mut next = || found.integers();
    let (pending, due, leased, dead, oldest) = (next()?, next()?, next()?, next()?, next()?);
    Ok(Counts {
        pending: pending.count(0),
        due: due.count(0),
        leased: leased.count(0),
        dead: dead.count(0),
        oldest_pending_ms: oldest.get(0).map(|_| oldest.count(0)),
    })
}

pub(crate) fn enqueue<T: Transaction>(transaction: &T, table: &str, now: i64, batch: &Batch) -> Result<Vec<String>, Failure> {
    batch.messages().map(|message| insert(transaction, table, now, message)).collect()
}

fn insert<T: Transaction>(transaction: &T, table: &str, now: i64, message: Message<'_>) -> Result<String, Failure> {
    let id = message.id();
    if id.contains('\0') {
        // Verdicts pass ids as JSON, and SQLite ends a JSON text there.
        return Err(Failure::invalid_message("an id must not contain NUL"));
    }
    let sql = format!(
        "INSERT INTO {table} (id, topic, key, headers, payload, due_at, created_at) \
         VALUES (coalesce(?1, lower(hex(random()))), ?2, ?3, ?4, ?5, ?6, ?6) RETURNING id"
    );
    let text = |text: &str| Value::Text(text.to_owned());
    let parameters = [
        if id.is_empty() { Value::Null } else { text(id) },
        text(message.topic()),
        message.key().map_or(Value::Null, text),
        Value::Text(write_headers(message.headers())?),
        message.payload().map_or(Value::Null, |payload| Value::Bytes(payload.to_vec())),
        Value::Integer(now),
    ];
    let rows = transaction.execute(vec![statement(sql, parameters, &[ColumnType::Text])]).map_err(|error| match error.code {
        SqlErrorCode::Constraint => Failure::invalid_message(format!("the id `{id}` is taken")),
        _ => of_sql(&error, "inserting"),
    })?;
    Ok(Results::new(rows).next_rows()?.bytes()?.text(0).unwrap_or_default().to_owned())
}

#[allow(clippy::too_many_arguments, reason = "those of the call, and where it runs")]
pub(crate) fn browse<T: Transaction>(
    transaction: &T,
    table: &str,
    now: i64,
    filter: &Filter,
    after: Option<&str>,
    limit: u32,
    with_messages: bool,
) -> Result<Page, Failure> {
    use ColumnType::{Integer, Text};
    let after = after.map_or(Ok(0), str::parse).map_err(|_| Failure::invalid_message("`after` is not what a page said"))?;
    let sql = format!(
        "SELECT seq, id, topic, key, shown, attempts, last_error, created_at, max(due_at - ?1, 0) FROM ( \
           SELECT *, CASE WHEN state = 'pending' AND lease_end > ?1 THEN 'leased' ELSE state END AS shown FROM {table}) \
         WHERE seq > ?2 AND (?3 IS NULL OR shown = ?3) AND (?4 IS NULL OR topic = ?4) \
           AND (?5 IS NULL OR id IN (SELECT value FROM json_each(?5))) \
         ORDER BY seq LIMIT ?6"
    );
    let [topic, ids] = wanted(filter);
    let state = filter.state.map_or(Value::Null, |state| Value::Text(word(state).to_owned()));
    // One more than asked for tells whether there is a next page.
    let parameters = [Value::Integer(now), Value::Integer(after), state, topic, ids, Value::Integer(i64::from(limit) + 1)];
    let columns = [Integer, Text, Text, Text, Text, Integer, Text, Integer, Integer];
    let (mut rows, mut seqs) = read_rows(run(transaction, "browsing", statement(sql, parameters, &columns))?)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let is_last = rows.len() <= limit;
    rows.truncate(limit);
    seqs.truncate(limit);
    let next = if is_last { None } else { seqs.last().map(ToString::to_string) };
    let messages = if with_messages { Some(batch(transaction, table, seqs)?) } else { None };
    Ok(Page { rows, messages, next })
}

fn read_rows(mut found: Reader) -> Result<(Vec<Row>, Vec<i64>), Failure> {
    let (seqs, ids, topics, keys, shown) = (found.integers()?, found.bytes()?, found.bytes()?, found.bytes()?, found.bytes()?);
    let (attempts, errors, created_at, due_in) = (found.integers()?, found.bytes()?, found.integers()?, found.integers()?);
    let text = |column: &Column, index| column.text(index).map(str::to_owned);
    let row = |index| {
        let state = state(shown.text(index).unwrap_or_default());
        Row {
            id: text(&ids, index).unwrap_or_default(),
            topic: text(&topics, index).unwrap_or_default(),
            key: text(&keys, index),
            state,
            attempts: u32::try_from(attempts.count(index)).unwrap_or(u32::MAX),
            last_error: text(&errors, index),
            created_at: created_at.count(index),
            due_in_ms: if state == RowState::Pending { due_in.count(index) } else { 0 },
        }
    };
    Ok(((0..ids.len()).map(row).collect(), (0..seqs.len()).filter_map(|index| seqs.get(index)).collect()))
}

pub(crate) fn requeue<T: Transaction>(transaction: &T, table: &str, now: i64, filter: &Filter) -> Result<u64, Failure> {
    let set = format!("UPDATE {table} SET state = 'pending', attempts = 0, due_at = ?3, settled_at = NULL");
    let [topic, ids] = wanted(filter);
    dead(transaction, filter, &set, [topic, ids, Value::Integer(now)])
}

pub(crate) fn discard<T: Transaction>(transaction: &T, table: &str, filter: &Filter) -> Result<u64, Failure> {
    dead(transaction, filter, &format!("DELETE FROM {table}"), wanted(filter))
}

/// Changes dead rows that match; rows in other states are left alone, whatever the filter says.
fn dead<T: Transaction, const N: usize>(transaction: &T, filter: &Filter, change: &str, parameters: [Value; N]) -> Result<u64, Failure> {
    if filter.state.is_some_and(|state| state != RowState::Dead) {
        return Ok(0);
    }
    let sql =
        format!("{change} WHERE state = 'dead' AND (?1 IS NULL OR topic = ?1) AND (?2 IS NULL OR id IN (SELECT value FROM json_each(?2)))");
    Ok(run(transaction, "changing dead rows", statement(sql, parameters, &[]))?.changed)
}

pub(crate) fn purge<T: Transaction>(transaction: &T, table: &str, now: i64, older_than_ms: u64, limit: u32) -> Result<u64, Failure> {
    let sql = format!(
        "DELETE FROM {table} WHERE seq IN (SELECT seq FROM {table} WHERE state = 'delivered' AND settled_at <= ?1 ORDER BY seq LIMIT ?2)"
    );
    let before = now.saturating_sub(i64::try_from(older_than_ms).unwrap_or(i64::MAX));
    let parameters = [Value::Integer(before), Value::Integer(i64::from(limit))];
    Ok(run(transaction, "purging", statement(sql, parameters, &[]))?.changed)
}

/// The topic and the ids of a filter; NULL: any.
fn wanted(filter: &Filter) -> [Value; 2] {
    let topic = filter.topic.clone().map_or(Value::Null, Value::Text);
    [topic, if filter.ids.is_empty() { Value::Null } else { Value::Texts(Column::of_texts(&filter.ids)) }]
}

fn word(state: RowState) -> &'static str {
    match state {
        RowState::Pending => "pending",
        RowState::Leased => "leased",
        RowState::Delivered => "delivered",
        RowState::Dead => "dead",
    }
}

fn state(word: &str) -> RowState {
    match word {
        "leased" => RowState::Leased,
        "delivered" => RowState::Delivered,
        "dead" => RowState::Dead,
        _ => RowState::Pending,
    }
}
