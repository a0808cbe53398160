//! Verdicts and leases: only rows that the worker still holds are touched.

use crate::after;
use crate::statement::{run, statement};
use outhaul_sdk::database::failure::recorded;
use outhaul_sdk::database::{ColumnType, Statement, Transaction, Value};
use outhaul_sdk::{Column, Failure, Retry, Settlement, Verdict};
use std::collections::HashSet;

/// Rows of the ids `?1` that the worker `?2` holds. A lease that nobody took over is still its holder's.
const HELD: &str = "state = 'pending' AND worker = ?2 AND id IN (SELECT value FROM json_each(?1)) RETURNING id";

/// Writes verdicts, and returns the ids that the worker does not hold.
pub(crate) fn settle<T: Transaction>(
    transaction: &T,
    table: &str,
    now: i64,
    worker: &str,
    settlements: &[Settlement],
) -> Result<Vec<String>, Failure> {
    let mut lost = Vec::new();
    for Settlement { verdict, ids } in settlements {
        let held = |set: &str| format!("UPDATE {table} SET worker = NULL, lease_end = 0, {set} WHERE {HELD}");
        let (its, holder) = (Value::Texts(ids.clone()), Value::Text(worker.to_owned()));
        let update = match verdict {
            Verdict::Delivered => update(held("state = 'delivered', settled_at = ?3"), [its, holder, Value::Integer(now)]),
            Verdict::Release(delay_ms) => {
                update(held("attempts = attempts - 1, due_at = ?3"), [its, holder, Value::Integer(after(now, *delay_ms))])
            }
            Verdict::Retry(Retry { failure, delay_ms }) => update(
                held("due_at = ?3, last_error = ?4"),
                [its, holder, Value::Integer(after(now, *delay_ms)), Value::Text(recorded(failure))],
            ),
            Verdict::Dead(failure) => update(
                held("state = 'dead', settled_at = ?3, last_error = ?4"),
                [its, holder, Value::Integer(now), Value::Text(recorded(failure))],
            ),
        };
        lost.extend(others(ids, &run(transaction, "writing verdicts", update)?.bytes()?));
    }
    Ok(lost)
}

/// Lets the worker's leases end then, and returns the ids that it does not hold.
pub(crate) fn extend<T: Transaction>(
    transaction: &T,
    table: &str,
    lease_end: i64,
    worker: &str,
    ids: &Column,
) -> Result<Vec<String>, Failure> {
    let parameters = [Value::Texts(ids.clone()), Value::Text(worker.to_owned()), Value::Integer(lease_end)];
    let update = update(format!("UPDATE {table} SET lease_end = ?3 WHERE {HELD}"), parameters);
    let held = run(transaction, "renewing leases", update)?.bytes()?;
    Ok(others(ids, &held))
}

fn update<const N: usize>(sql: String, parameters: [Value; N]) -> Statement {
    statement(sql, parameters, &[ColumnType::Text])
}

/// The ids that are not among the held ones, in their order.
fn others(ids: &Column, held: &Column) -> Vec<String> {
    let held: HashSet<Option<&[u8]>> = held.iter().collect();
    let text = |index| ids.text(index).unwrap_or_default().to_owned();
    (0..ids.len()).filter(|index| !held.contains(&ids.get(*index))).map(text).collect()
}
