//! What the command line and the metrics read: pages of rows, and counts.

use crate::database::{ColumnType, Reader, Results};
use outhaul_sdk::{Batch, Column, Counts, Failure, Row, RowState};

/// Rows of one page at most: a page with messages must fit into the sandbox.
pub const MAX_PAGE: u32 = 10_000;

/// What is asked for of each row beside its message: state (0 pending, 1 leased, 2 delivered, 3 dead), last error, milliseconds until it
/// is due, claims so far.
pub const COLUMNS: [ColumnType; 4] = [ColumnType::Integer, ColumnType::Bytes, ColumnType::Integer, ColumnType::Integer];

/// Rows from their messages, and from [`COLUMNS`] of the same rows in the same order.
///
/// # Errors
/// If the database driver broke its promise.
pub fn rows(batch: &Batch, reader: &mut Reader) -> Result<Vec<Row>, Failure> {
    let (codes, errors, due_in, attempts) = (reader.integers()?, reader.bytes()?, reader.integers()?, reader.integers()?);
    let row = |(at, message): (usize, outhaul_sdk::Message<'_>)| Row {
        id: message.id().to_owned(),
        topic: message.topic().to_owned(),
        key: message.key().map(str::to_owned),
        state: match codes.get(at) {
            Some(0) => RowState::Pending,
            Some(1) => RowState::Leased,
            Some(2) => RowState::Delivered,
            _ => RowState::Dead,
        },
        attempts: u32::try_from(attempts.count(at)).unwrap_or(u32::MAX),
        last_error: errors.get(at).map(|text| String::from_utf8_lossy(text).into_owned()),
        created_at: message.created_at().unwrap_or(0),
        due_in_ms: due_in.count(at),
    };
    Ok(batch.messages().enumerate().map(row).collect())
}

/// Counts from two results: unsettled, due, leased, age of the oldest in milliseconds; then dead.
///
/// # Errors
/// If the database driver broke its promise.
pub fn counts(results: &mut Results) -> Result<Counts, Failure> {
    let mut unsettled = results.next_rows()?;
    let (pending, due, leased, oldest) = (unsettled.integers()?, unsettled.integers()?, unsettled.integers()?, unsettled.integers()?);
    Ok(Counts {
        pending: pending.count(0),
        due: due.count(0),
        leased: leased.count(0),
        dead: results.next_rows()?.integers()?.count(0),
        oldest_pending_ms: oldest.get(0).map(|age| u64::try_from(age).unwrap_or(0)),
    })
}

/// A column's value as text, whatever its bytes; empty for none.
#[must_use]
pub fn text_of(column: &Column, at: usize) -> String {
    String::from_utf8_lossy(column.get(at).unwrap_or_default()).into_owned()
}
