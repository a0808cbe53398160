//! What a claim turns to when the front of the table holds nothing due: a walk from key to key, and a pass over the rows without
//! one, both from where the last one ended. Needs an index by key and order.

use crate::inspect::Affinity;
use crate::statements::{Sql, template};
use outbox_table::database::{ColumnType, Value};
use outbox_table::decode::Decoding;
use outbox_table::template::{Slot, Template};
use std::time::Duration;

/// How long one claim walks, beside one step of each kind: others wait to write meanwhile. (8192 keys take some 20 ms.)
pub(crate) const MAX_TIME: Duration = Duration::from_millis(50);

/// The statements, for one index.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    /// The unsettled rows of the keys after `Key` whose first one is due; then a row that says where the walk ended (NULL: at the end).
    pub(crate) keys: Template,
    /// Of the next `Keys` rows without a key after `After` (NULL, then empty), those that are due; then a row with the last order that
    /// was looked at, and how many were.
    pub(crate) unkeyed: [Template; 2],
    /// What sorts before every key.
    pub(crate) start: Value,
}

impl Walk {
    /// None: the table has no keys.
    pub(crate) fn new(sql: Sql<'_>, index: &str, decoding: &Decoding) -> Option<Self> {
        let layout = sql.0;
        let name = layout.columns.key.as_ref()?;
        let indexed = format!("INDEXED BY {index}");
        let key = sql.column(name);
        let (from, unsettled, order, due) = (sql.from(&indexed), sql.waiting(), sql.order(), sql.due());
        let (scanned, usable) = (sql.scanned(), sql.usable_id());
        let no_id = if layout.id_is_order { "" } else { "NULL, " };
        let table = layout.table();
        let next =
            |after: &str| format!("SELECT {key} FROM {table} AS t {indexed} WHERE {unsettled} AND {key} > {after} ORDER BY {key} LIMIT 1");
        let typed =
            |key: &str| format!("typeof({key}), CASE WHEN typeof({key}) IN ('integer', 'real') THEN CAST({key} AS TEXT) ELSE {key} END");
        let columns = sql.scanned_columns(decoding);

        // CROSS JOIN keeps the nesting: key by key, and with the index by key and order, each from its first row on.
        let keys = format!(
            "WITH RECURSIVE h(k, n) AS (SELECT ({first}), 1 UNION ALL SELECT ({following}), h.n + 1 FROM h WHERE h.k IS NOT NULL AND h.n < {keys}), \
             w(k, n) AS MATERIALIZED (SELECT k, n FROM h) \
             SELECT * FROM (SELECT {scanned}, {of_row} FROM w CROSS JOIN {from} WHERE w.k IS NOT NULL AND w.k <> '' \
             AND (SELECT {due} FROM {from} WHERE {unsettled} AND {key} = w.k{usable} ORDER BY {order} LIMIT 1) \
             AND {unsettled} AND {key} = w.k{usable} LIMIT {rows}) \
             UNION ALL SELECT * FROM (SELECT NULL, {no_id}NULL, 0, 0, 0, {of_end} FROM w ORDER BY n DESC LIMIT 1)",
            // Text that is not UTF-8 comes in as bytes.
            first = next(&format!("CASE {} WHEN 'text' THEN CAST({} AS TEXT) ELSE {} END", Slot::Text, Slot::Key, Slot::Key)),
            following = next("h.k"),
            keys = Slot::Keys,
            of_row = typed(&key),
            of_end = typed("k"),
            rows = Slot::Limit,
        );
        let pass = |no_key: &str| {
            let text = format!(
                "WITH p AS MATERIALIZED (SELECT {scanned} FROM {from} WHERE {unsettled} AND {key} {no_key} AND {order} > {after}{usable} \
                 ORDER BY {order} LIMIT {rows}) SELECT * FROM p WHERE d UNION ALL SELECT max(o), {no_id}NULL, 0, count(*), 0 FROM p",
                after = Slot::After,
                rows = Slot::Keys,
            );
            template(&text, &columns)
        };
        let start = match layout.info.column(name.name()).map(|column| column.affinity) {
            Some(Affinity::Text) => Value::Text(String::new()),
            // Numbers sort before text; a parameter takes the column's affinity only where that is text.
            _ => Value::Real(f64::MIN),
        };
        let unkeyed = [pass("IS NULL"), pass("= ''")];
        let mut with_key = columns.clone();
        with_key.extend([ColumnType::Text, ColumnType::Bytes]);
        Some(Self { keys: template(&keys, &with_key), unkeyed, start })
    }
}
