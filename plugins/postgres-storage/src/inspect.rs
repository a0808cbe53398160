//! What the database says of a table: where it is, its columns, its indexes; read from the system catalogue. Changes nothing.

use crate::ops::{EQ, GT, NE};
use outbox_table::database::{ColumnType, Database, Results, Statement, Value};
use outbox_table::failure;
use outbox_table::ident::{Ident, TableName};
use outbox_table::page::text_of;
use outhaul_sdk::Failure;

/// What a column can be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `smallint`, `integer`, `bigint`.
    Integer,
    /// `real`, `double precision`, `numeric`.
    Number,
    /// `text`, `varchar`.
    Text,
    /// `char(n)`, `name`: text, but not to be compared with text.
    Padded,
    Uuid,
    Bytea,
    /// `json`, `jsonb`.
    Json,
    Zoned,
    Unzoned,
    /// `boolean`, `date` and enumerations.
    Ordered,
    Other,
}

impl Kind {
    fn of(name: &str, is_enum: bool) -> Self {
        match name {
            "int2" | "int4" | "int8" => Self::Integer,
            "float4" | "float8" | "numeric" => Self::Number,
            "text" | "varchar" => Self::Text,
            "bpchar" | "name" => Self::Padded,
            "uuid" => Self::Uuid,
            "bytea" => Self::Bytea,
            "json" | "jsonb" => Self::Json,
            "timestamptz" => Self::Zoned,
            "timestamp" => Self::Unzoned,
            "bool" | "date" => Self::Ordered,
            _ if is_enum => Self::Ordered,
            _ => Self::Other,
        }
    }
}

/// A column.
#[derive(Debug, Clone)]
pub(crate) struct ColumnInfo {
    pub(crate) name: String,
    /// As SQL, with its schema.
    pub(crate) type_name: String,
    /// For a message.
    pub(crate) declared: String,
    pub(crate) kind: Kind,
    pub(crate) not_null: bool,
    pub(crate) has_default: bool,
    /// Computed from other columns: cannot be written.
    pub(crate) generated: bool,
    /// `GENERATED ALWAYS AS IDENTITY`: takes no value of ours.
    pub(crate) always_identity: bool,
    /// Characters that a `varchar(n)` or `char(n)` takes.
    pub(crate) most_characters: Option<u64>,
}

/// A B-tree index that is ready.
#[derive(Debug, Clone)]
pub(crate) struct IndexInfo {
    name: String,
    pub(crate) unique: bool,
    pub(crate) partial: bool,
    /// Column names; an expression has an empty one.
    pub(crate) columns: Vec<String>,
}

/// A table.
#[derive(Debug, Clone)]
pub(crate) struct TableInfo {
    /// With its schema: statements name it in full.
    pub(crate) name: TableName,
    pub(crate) partitioned: bool,
    pub(crate) columns: Vec<ColumnInfo>,
    pub(crate) indexes: Vec<IndexInfo>,
}

impl TableInfo {
    /// A column by its name, as it is written: the configuration's names are quoted, so their case counts.
    pub(crate) fn column(&self, name: &Ident) -> Option<&ColumnInfo> {
        self.columns.iter().find(|column| column.name == name.name())
    }

    /// Whether no two rows can have the same value in the column. A unique index of a partitioned table has its partition key beside it;
    /// that such an id is unique in the whole table is the producer's to see to.
    pub(crate) fn is_unique(&self, name: &Ident) -> bool {
        self.indexes.iter().filter(|index| index.unique && !index.partial).any(|index| match index.columns.as_slice() {
            [only] => only == name.name(),
            columns => self.partitioned && columns.iter().any(|column| column == name.name()),
        })
    }

    /// The names of its columns, for a message.
    pub(crate) fn column_names(&self) -> String {
        listed(self.columns.iter().map(|column| column.name.as_str()))
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn query(sql: String, parameters: Vec<Value>, columns: &[ColumnType]) -> Statement {
    Statement { sql, parameters, columns: columns.to_vec(), must_change: None }
}

/// The table's number.
fn oid() -> &'static str {
    "pg_catalog.to_regclass(CAST($1 AS pg_catalog.text))"
}

/// Reads a table; none if there is no such table.
pub(crate) fn table<D: Database>(database: &D, name: &TableName, key: &str) -> Result<Option<TableInfo>, Failure> {
    let parameter = || vec![Value::Text(name.to_string())];
    let (integer, text) = (ColumnType::Integer, ColumnType::Bytes);
    let oid = oid();
    let relation = format!(
        "SELECT CAST(n.nspname AS pg_catalog.text), CAST(c.relname AS pg_catalog.text), CAST(c.relkind AS pg_catalog.text) \
         FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid {EQ} c.relnamespace WHERE c.oid {EQ} {oid}"
    );
    // A domain is what it is made of; its own name is what values are cast to.
    let columns = format!(
        "SELECT CAST(a.attname AS pg_catalog.text), CAST(n.nspname AS pg_catalog.text), CAST(y.typname AS pg_catalog.text), \
         CAST(b.typname AS pg_catalog.text), CAST((b.typtype {EQ} 'e') AS integer), pg_catalog.format_type(a.atttypid, a.atttypmod), \
         CAST((a.attnotnull OR y.typnotnull) AS integer), CAST((a.atthasdef OR a.attidentity {NE} '') AS integer), \
         CAST((a.attgenerated {NE} '') AS integer), CAST((a.attidentity {EQ} 'a') AS integer), a.atttypmod \
         FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_type AS y ON y.oid {EQ} a.atttypid \
         JOIN pg_catalog.pg_namespace AS n ON n.oid {EQ} y.typnamespace \
         JOIN pg_catalog.pg_type AS b ON b.oid {EQ} CASE WHEN y.typtype {EQ} 'd' THEN y.typbasetype ELSE y.oid END \
         WHERE a.attrelid {EQ} {oid} AND a.attnum {GT} 0 AND NOT a.attisdropped ORDER BY a.attnum"
    );
    let indexes = format!(
        "SELECT CAST(c.relname AS pg_catalog.text), CAST(i.indisunique AS integer), CAST((i.indpred IS NOT NULL) AS integer), \
         CAST(coalesce(a.attname, '') AS pg_catalog.text) \
         FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid {EQ} i.indexrelid \
         JOIN pg_catalog.pg_am AS m ON m.oid {EQ} c.relam CROSS JOIN LATERAL pg_catalog.generate_series(0, i.indnkeyatts OPERATOR(pg_catalog.-) 1) AS p(n) \
         LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid {EQ} i.indrelid AND a.attnum {EQ} i.indkey[p.n] \
         WHERE i.indrelid {EQ} {oid} AND i.indisvalid AND i.indisready AND m.amname {EQ} 'btree' ORDER BY c.relname, p.n"
    );
    let mut column_types = vec![text, text, text, text, integer, text];
    column_types.extend([integer; 5]);
    let rows = database
        .execute(vec![
            query(relation, parameter(), &[text, text, text]),
            query(columns, parameter(), &column_types),
            query(indexes, parameter(), &[text, integer, integer, text]),
        ])
        .map_err(|error| failure::of_sql(&error, "reading the schema"))?;
    let mut results = Results::new(rows);

    let mut reader = results.next_rows()?;
    let (schemas, names, kinds) = (reader.bytes()?, reader.bytes()?, reader.bytes()?);
    if schemas.is_empty() {
        return Ok(None);
    }
    let kind = text_of(&kinds, 0);
    let what = match kind.as_str() {
        "r" | "p" => None,
        "v" | "m" => Some("a view: its rows cannot be locked; name the table behind it"),
        "f" => Some("a foreign table: its rows cannot be locked; configure the database that it is in"),
        _ => Some("no table"),
    };
    if let Some(what) = what {
        return Err(Failure::invalid_configuration(format!("`{key}`: {name} is {what}")));
    }
    let ident = |name: String| Ident::new(name).map_err(|fault| Failure::invalid_configuration(format!("`{key}`: {fault}")));
    let found = TableName { schema: Some(ident(text_of(&schemas, 0))?), table: ident(text_of(&names, 0))? };

    let mut reader = results.next_rows()?;
    let (names, type_schemas, types, bases) = (reader.bytes()?, reader.bytes()?, reader.bytes()?, reader.bytes()?);
    let (enums, declared) = (reader.integers()?, reader.bytes()?);
    let (not_null, has_default, generated) = (reader.integers()?, reader.integers()?, reader.integers()?);
    let (always, modifiers) = (reader.integers()?, reader.integers()?);
    let mut columns = Vec::with_capacity(names.len());
    for at in 0..names.len() {
        let kind = Kind::of(&text_of(&bases, at), enums.count(at) == 1);
        columns.push(ColumnInfo {
            name: text_of(&names, at),
            type_name: format!("{}.{}", ident(text_of(&type_schemas, at))?, ident(text_of(&types, at))?),
            declared: text_of(&declared, at),
            kind,
            not_null: not_null.count(at) == 1,
            has_default: has_default.count(at) == 1,
            generated: generated.count(at) == 1,
            always_identity: always.count(at) == 1,
            // The modifier of these types is their length and 4 bytes of header.
            most_characters: modifiers.count(at).checked_sub(4).filter(|_| matches!(kind, Kind::Text | Kind::Padded)),
        });
    }

    let mut reader = results.next_rows()?;
    let (names, unique, partial, column_names) = (reader.bytes()?, reader.integers()?, reader.integers()?, reader.bytes()?);
    let mut indexes: Vec<IndexInfo> = Vec::new();
    for at in 0..names.len() {
        let name = text_of(&names, at);
        if indexes.last().is_none_or(|index| index.name != name) {
            indexes.push(IndexInfo { name, unique: unique.count(at) == 1, partial: partial.count(at) == 1, columns: Vec::new() });
        }
        if let Some(index) = indexes.last_mut() {
            index.columns.push(text_of(&column_names, at));
        }
    }
    Ok(Some(TableInfo { name: found, partitioned: kind == "p", columns, indexes }))
}

/// The schema in which a table without one would be created.
pub(crate) fn current_schema<D: Database>(database: &D) -> Result<String, Failure> {
    let sql = "SELECT CAST(coalesce(pg_catalog.current_schema(), '') AS pg_catalog.text)".to_owned();
    let rows = database.execute(vec![query(sql, Vec::new(), &[ColumnType::Bytes])]);
    let rows = rows.map_err(|error| failure::of_sql(&error, "reading the schema"))?;
    Ok(text_of(&Results::new(rows).next_rows()?.bytes()?, 0))
}

/// The failure for a table that is not there: says which are, and (`ours`) what creates it.
pub(crate) fn missing<D: Database>(database: &D, name: &TableName, key: &str, ours: bool) -> Failure {
    let sql = format!(
        "SELECT CAST(pg_catalog.concat(n.nspname, '.', c.relname) AS pg_catalog.text) FROM pg_catalog.pg_class AS c \
         JOIN pg_catalog.pg_namespace AS n ON n.oid {EQ} c.relnamespace WHERE (c.relkind {EQ} 'r' OR c.relkind {EQ} 'p') \
         AND n.nspname {NE} 'pg_catalog' AND n.nspname {NE} 'information_schema' AND NOT pg_catalog.starts_with(n.nspname, 'pg_') \
         ORDER BY n.nspname, c.relname LIMIT 50"
    );
    let tables = database
        .execute(vec![query(sql, Vec::new(), &[ColumnType::Bytes])])
        .map_err(|error| failure::of_sql(&error, "reading the schema"))
        .and_then(|rows| Results::new(rows).next_rows()?.bytes());
    match tables {
        Ok(tables) => {
            let names: Vec<String> = (0..tables.len()).map(|at| text_of(&tables, at)).collect();
            let names = listed(names.iter().map(String::as_str));
            let remedy = if ours {
                "`outhaul schema` prints what creates it, `outhaul schema --apply` creates it; if it is there, the role lacks USAGE on its schema"
            } else {
                "`columns` describes a table that somebody else creates; one outside of the role's search path needs its schema, `schema.table`, and the role USAGE on that"
            };
            Failure::invalid_configuration(format!("`{key}`: there is no table {name} in the database (tables: {names}); {remedy}"))
        }
        Err(failure) => failure,
    }
}
