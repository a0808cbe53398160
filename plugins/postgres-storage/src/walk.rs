//! What a search turns to when the front of the table holds nothing due: a walk from key to key, and a pass over the rows without one,
//! both from where the last one ended. Needs an index by key and order.

use crate::ops::{EQ, GT, LT, NE, PLUS, text};
use crate::statements::{Sql, template};
use outbox_table::database::ColumnType;
use outbox_table::decode::Decoding;
use outbox_table::template::{Slot, Template};
use std::time::Duration;

/// How long one claim walks, beside one step of each kind: a relay with other work waits for it. (8192 keys take some 30 ms.)
pub(crate) const MAX_TIME: Duration = Duration::from_millis(30);

/// The statements, each from the start and from where the last one ended.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    pub(crate) keys: [Template; 2],
    /// One for each kind of rows without a key.
    pub(crate) unkeyed: Vec<[Template; 2]>,
}

impl Walk {
    /// None: there are no keys, order is loose, or no index allows it.
    pub(crate) fn new(sql: Sql<'_>, decoding: &Decoding) -> Option<Self> {
        let layout = sql.0;
        if !(layout.config.strict_order && layout.has_key_index) {
            return None;
        }
        let key_type = layout.key_type.as_ref()?;
        let key = sql.column(layout.columns.key.as_ref()?);
        let columns = sql.scanned_columns(decoding);
        let names = sql.scanned_names(decoding);
        let (from, table, unsettled, due) = (sql.from(), layout.table(), sql.searched(), sql.due());
        let (scanned, order) = (sql.scanned(decoding), sql.order());
        let keyed = if layout.empty_keys { format!(" AND {key} {NE} ''") } else { String::new() };
        // What a mark has no value for: `k`, `d`, `s` and all that stands before the attempts.
        let mark = |place: bool, attempts: &str| {
            let value = |name: &&str| match *name {
                "o" | "o2" if place => format!("z.{name}"),
                "d" | "s" => "0".to_owned(),
                "a" => attempts.to_owned(),
                _ => "NULL".to_owned(),
            };
            names.iter().map(value).collect::<Vec<_>>().join(", ")
        };

        let first = format!("CAST({} AS {key_type})", text(&Slot::Key.to_string()));
        let keys = [String::new(), format!(" AND {key} {GT} {first}")].map(|behind| {
            let sql = format!(
                "WITH RECURSIVE h(k, n) AS ((SELECT {key}, 1 FROM {table} AS t WHERE {unsettled} AND {key} IS NOT NULL{keyed}{behind} \
                 ORDER BY {key} LIMIT 1) UNION ALL SELECT x.k, (h.n {PLUS} 1) FROM h CROSS JOIN LATERAL (SELECT {key} AS k FROM {table} AS t \
                 WHERE {unsettled} AND {key} {GT} h.k ORDER BY {key} LIMIT 1) AS x WHERE h.n {LT} CAST({steps} AS bigint)), \
                 w AS MATERIALIZED (SELECT h.k, h.n FROM h), \
                 e AS MATERIALIZED (SELECT w.k FROM w CROSS JOIN LATERAL (SELECT ({due}) AS due FROM {from} WHERE {unsettled} \
                 AND {key} {EQ} w.k ORDER BY {order} LIMIT 1) AS x WHERE x.due), \
                 r AS MATERIALIZED (SELECT s.* FROM e CROSS JOIN LATERAL (SELECT {scanned}, CAST('' AS pg_catalog.text) AS kind, \
                 {} AS reached FROM {from} WHERE {unsettled} AND {key} {EQ} e.k ORDER BY {order} LIMIT CAST({rows} AS bigint)) AS s \
                 LIMIT CAST({rows} AS bigint)) \
                 SELECT * FROM r UNION ALL SELECT {}, '', (SELECT {} FROM w WHERE w.n {EQ} CAST({steps} AS bigint))",
                text(&key),
                mark(false, "0"),
                text("w.k"),
                steps = Slot::Keys,
                rows = Slot::Limit,
            );
            let mut with_key = columns.clone();
            with_key.extend([ColumnType::Text, ColumnType::Bytes]);
            template(&sql, &with_key)
        });

        // By the key as well: to the planner, `IS NULL` does not make an index by key and order one by order.
        let mut kinds = vec![(format!("{key} IS NULL"), format!("{key}, {order}"))];
        if layout.empty_keys {
            kinds.push((format!("{key} {EQ} ''"), order.clone()));
        }
        let names_of_p = names.iter().map(|name| format!("p.{name}")).collect::<Vec<_>>().join(", ");
        let pass = |(no_key, order): (String, String)| {
            [String::new(), format!(" AND {}", sql.behind())].map(|behind| {
                let text = format!(
                    "WITH p AS MATERIALIZED (SELECT {scanned}, pg_catalog.row_number() OVER (ORDER BY {order}) AS n FROM {from} \
                     WHERE {unsettled} AND {no_key}{behind} ORDER BY {order} LIMIT CAST({} AS bigint)) \
                     SELECT {names_of_p} FROM p WHERE p.d {NE} 0 UNION ALL SELECT {} FROM (SELECT pg_catalog.count(*) AS n FROM p) AS y \
                     LEFT JOIN p AS z ON z.n {EQ} y.n",
                    Slot::Keys,
                    mark(true, "y.n"),
                );
                template(&text, &columns)
            })
        };
        Some(Self { keys, unkeyed: kinds.into_iter().map(pass).collect() })
    }
}
