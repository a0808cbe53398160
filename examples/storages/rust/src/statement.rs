//! Statements, and their rows as messages.

use outhaul_sdk::database::failure::of_sql;
use outhaul_sdk::database::{ColumnType, Reader, Results, Statement, Transaction, Value};
use outhaul_sdk::{Batch, Failure, FailureCode, NewMessage};

/// The columns of a message, as [`batch`] reads them.
const MESSAGE: &str = "id, topic, key, headers, payload, attempts, created_at";

/// A statement; `columns` are the types of what it returns.
pub(crate) fn statement<const N: usize>(sql: impl Into<String>, parameters: [Value; N], columns: &[ColumnType]) -> Statement {
    Statement { sql: sql.into(), parameters: parameters.into(), columns: columns.to_vec(), must_change: None }
}

/// Runs a statement of a transaction.
pub(crate) fn run<T: Transaction>(transaction: &T, doing: &str, statement: Statement) -> Result<Reader, Failure> {
    let rows = transaction.execute(vec![statement]).map_err(|error| of_sql(&error, doing))?;
    Results::new(rows).next_rows()
}

/// The messages of these rows, in their order.
pub(crate) fn batch<T: Transaction>(transaction: &T, table: &str, rows: Vec<i64>) -> Result<Batch, Failure> {
    use ColumnType::{Bytes, Integer, Text};
    let sql = format!("SELECT {MESSAGE} FROM {table} WHERE seq IN (SELECT value FROM json_each(?1)) ORDER BY seq");
    let statement = statement(sql, [Value::Integers(rows)], &[Text, Text, Text, Text, Bytes, Integer, Integer]);
    let mut found = run(transaction, "reading messages", statement)?;
    let (ids, topics, keys, headers) = (found.bytes()?, found.bytes()?, found.bytes()?, found.bytes()?);
    let (payloads, attempts, created_at) = (found.bytes()?, found.integers()?, found.integers()?);
    let mut batch = Batch::new();
    for index in 0..ids.len() {
        let id = ids.text(index).unwrap_or_default();
        let headers = read_headers(id, headers.text(index).unwrap_or_default())?;
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        batch.push(&NewMessage {
            id,
            topic: topics.text(index).unwrap_or_default(),
            key: keys.text(index),
            headers: &headers,
            payload: payloads.get(index),
            attempts: u32::try_from(attempts.count(index)).unwrap_or(u32::MAX),
            created_at: created_at.count(index),
        });
    }
    Ok(batch)
}

/// The text in the column `headers`: a JSON list of names and bytes, in order, duplicates kept.
pub(crate) fn write_headers<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Result<String, Failure> {
    let headers: Vec<(&str, &[u8])> = headers.collect();
    serde_json::to_string(&headers).map_err(|error| Failure::invalid_message(format!("headers: {error}")))
}

fn read_headers(id: &str, text: &str) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::of(FailureCode::Integrity, format!("headers of row `{id}`: {error}")))
}
