//! The SQL of a table of subscriptions: the one statement that reads it, and the DDL that creates it.

use crate::config::model::{SqlName, SubscriptionColumns, SubscriptionTable};
use crate::sql::{ColumnType, Dialect, Statement, Value};
use std::fmt::Write;

/// What counts as active, in lower case: whatever a database calls true, and the words that people write.
const ACTIVE: &str = "'1', 't', 'true', 'yes', 'active', 'enabled'";

/// Columns of [`Sql::select`], in their order.
pub(super) const COLUMNS: usize = 8;

/// Which rows are read.
pub(super) enum Which<'a> {
    /// Those of tenants.
    Tenants(&'a [&'a str]),
    /// Those that have one of these tenants and one of these names.
    Subscribers(&'a [&'a str], &'a [&'a str]),
    /// None at all: whether the statement is one.
    None,
}

/// The SQL of a table.
pub(super) struct Sql<'a>(pub(super) &'a SubscriptionTable);

impl Sql<'_> {
    /// Reads active subscriptions. One statement: what it returns was there at one moment.
    pub(super) fn select(&self, which: &Which<'_>, dialect: Dialect) -> Statement {
        let SubscriptionColumns { tenant, subscriber, url, event_types, signing_scope, authentication, principal, revision, active } =
            &self.0.columns;
        let read = |column: Option<&SqlName>| match (column, dialect) {
            (None, Dialect::Postgres) => "NULL::text".to_owned(),
            (None, _) => "NULL".to_owned(),
            (Some(column), Dialect::Postgres) => format!("t.{column}::text"),
            (Some(column), _) => format!("t.{column}"),
        };
        let event_types = match (event_types, dialect) {
            // An array, a text and JSON in one form.
            (Some(column), Dialect::Postgres) => format!("to_jsonb(t.{column})::text"),
            (column, _) => read(column.as_ref()),
        };
        let columns: [String; COLUMNS] = [
            read(tenant.as_ref()),
            read(Some(subscriber)),
            read(Some(url)),
            event_types,
            read(signing_scope.as_ref()),
            read(authentication.as_ref()),
            read(principal.as_ref()),
            read(revision.as_ref()),
        ];
        let mut conditions = Vec::new();
        let mut parameters = Vec::new();
        let mut among = |column: &SqlName, values: &[&str]| {
            parameters.push(Value::Texts(crate::domain::Column::of_texts(values)));
            let place = parameters.len();
            conditions.push(match dialect {
                Dialect::Postgres => format!("t.{column} = ANY(${place})"),
                _ => format!("t.{column} IN (SELECT value FROM json_each(?{place}))"),
            });
        };
        let (tenants, named): (&[&str], Option<&[&str]>) = match which {
            Which::Tenants(tenants) => (tenants, None),
            Which::Subscribers(tenants, subscribers) => (tenants, Some(subscribers)),
            Which::None => (&[], Some(&[])),
        };
        if let Some(tenant) = tenant {
            among(tenant, tenants);
        }
        if let Some(named) = named {
            among(subscriber, named);
        }
        if let Some(active) = active {
            let text = if dialect == Dialect::Postgres { format!("t.{active}::text") } else { format!("CAST(t.{active} AS TEXT)") };
            conditions.push(format!("lower({text}) IN ({ACTIVE})"));
        }
        let mut sql = format!("SELECT {} FROM {} AS t", columns.join(", "), self.0.table);
        if !conditions.is_empty() {
            // Writing into a text does not fail.
            let _ = write!(sql, " WHERE {}", conditions.join(" AND "));
        }
        Statement::new(sql).bind(parameters).returning([ColumnType::Text; COLUMNS])
    }

    /// Creates the table, unless there is one.
    pub(super) fn create(&self, dialect: Dialect) -> String {
        let SubscriptionColumns { tenant, subscriber, url, event_types, signing_scope, authentication, principal, revision, active } =
            &self.0.columns;
        let postgres = dialect == Dialect::Postgres;
        let mut columns: Vec<String> = Vec::new();
        let mut add = |name: Option<&SqlName>, kind: &str| columns.extend(name.map(|name| format!("{name} {kind}")));
        add(tenant.as_ref(), "text NOT NULL DEFAULT ''");
        add(Some(subscriber), "text NOT NULL");
        add(Some(url), "text NOT NULL");
        add(event_types.as_ref(), if postgres { "text[]" } else { "text" });
        add(signing_scope.as_ref(), "text");
        add(authentication.as_ref(), if postgres { "jsonb" } else { "text" });
        add(principal.as_ref(), "text NOT NULL DEFAULT ''");
        add(revision.as_ref(), "bigint NOT NULL DEFAULT 1");
        add(active.as_ref(), "boolean NOT NULL DEFAULT true");
        let key = tenant.iter().chain([subscriber]).map(ToString::to_string).collect::<Vec<_>>().join(", ");
        columns.push(format!("PRIMARY KEY ({key})"));
        format!("CREATE TABLE IF NOT EXISTS {} (\n    {}\n)", self.0.table, columns.join(",\n    "))
    }
}
