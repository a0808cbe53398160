//! What the database says of a table: its columns and indexes, read with table-valued pragmas. Changes nothing.

use outbox_table::database::{ColumnType, Database, Results, Statement, Value};
use outbox_table::failure;
use outbox_table::ident::TableName;
use outbox_table::page::text_of;
use outhaul_sdk::Failure;

/// How SQLite converts what is written into a column (<https://www.sqlite.org/datatype3.html>, section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Affinity {
    Integer,
    Text,
    Other,
}

impl Affinity {
    fn of(declared: &str) -> Self {
        let declared = declared.to_ascii_uppercase();
        if declared.contains("INT") {
            Self::Integer
        } else if ["CHAR", "CLOB", "TEXT"].iter().any(|part| declared.contains(part)) {
            Self::Text
        } else {
            Self::Other
        }
    }
}

/// A column.
#[derive(Debug, Clone)]
pub(crate) struct ColumnInfo {
    pub(crate) name: String,
    pub(crate) declared: String,
    pub(crate) affinity: Affinity,
    pub(crate) not_null: bool,
    pub(crate) has_default: bool,
    /// Its place in the primary key, from 1; 0: not in it.
    primary_key: i64,
}

/// An index.
#[derive(Debug, Clone)]
pub(crate) struct IndexInfo {
    pub(crate) name: String,
    pub(crate) unique: bool,
    pub(crate) partial: bool,
    /// Column names; an expression has an empty one.
    pub(crate) columns: Vec<String>,
    /// All its columns compare byte by byte.
    pub(crate) binary: bool,
}

/// A table.
#[derive(Debug, Clone)]
pub(crate) struct TableInfo {
    pub(crate) columns: Vec<ColumnInfo>,
    pub(crate) indexes: Vec<IndexInfo>,
    pub(crate) has_rowid: bool,
    /// Row numbers are never given out twice (`AUTOINCREMENT`); otherwise a table that was emptied starts again at 1.
    pub(crate) autoincrement: bool,
}

impl TableInfo {
    /// A column by its name; SQLite ignores the case of ASCII letters in names.
    pub(crate) fn column(&self, name: &str) -> Option<&ColumnInfo> {
        self.columns.iter().find(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// Whether the column is another name of the row number: the only column of the primary key, declared `INTEGER`.
    pub(crate) fn is_rowid(&self, column: &ColumnInfo) -> bool {
        self.has_rowid && column.declared.eq_ignore_ascii_case("INTEGER") && self.is_primary_key(column)
    }

    fn is_primary_key(&self, column: &ColumnInfo) -> bool {
        column.primary_key == 1 && self.columns.iter().filter(|column| column.primary_key > 0).count() == 1
    }

    /// Whether no two rows can have the same value in the column.
    pub(crate) fn is_unique(&self, column: &ColumnInfo) -> bool {
        self.is_primary_key(column)
            || self.indexes.iter().any(|index| {
                index.unique && !index.partial && matches!(index.columns.as_slice(), [only] if only.eq_ignore_ascii_case(&column.name))
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

const COLUMNS: &str =
    r#"SELECT name, type, "notnull", dflt_value IS NOT NULL, pk FROM pragma_table_xinfo(?1, ?2) WHERE hidden <> 1 ORDER BY cid"#;
const INDEXES: &str = r#"SELECT l.name, l."unique", l.partial, ifnull(x.name, ''), x.coll = 'BINARY'
FROM pragma_index_list(?1, ?2) AS l CROSS JOIN pragma_index_xinfo(l.name, ?2) AS x WHERE x.key = 1 ORDER BY l.seq, x.seqno"#;
const HAS_ROWID: &str = "SELECT wr = 0, (SELECT s.sql FROM sqlite_schema AS s WHERE s.type = 'table' AND s.name = l.name) \
FROM pragma_table_list(?1) AS l WHERE l.type = 'table' AND l.schema = ifnull(?2, l.schema)";
const TABLES: &str = "SELECT name FROM pragma_table_list WHERE type = 'table' AND substr(name, 1, 7) <> 'sqlite_' ORDER BY name LIMIT 50";

/// Reads a table; none if there is no such table.
pub(crate) fn table<D: Database>(database: &D, name: &TableName) -> Result<Option<TableInfo>, Failure> {
    let parameters = || {
        let schema = name.schema.as_ref().map_or(Value::Null, |schema| Value::Text(schema.name().to_owned()));
        vec![Value::Text(name.table.name().to_owned()), schema]
    };
    let (integer, text) = (ColumnType::Integer, ColumnType::Bytes);
    let query = |sql: &str, columns: &[ColumnType]| Statement {
        sql: sql.to_owned(),
        parameters: parameters(),
        columns: columns.to_vec(),
        must_change: None,
    };
    let rows = database
        .execute(vec![
            query(COLUMNS, &[text, text, integer, integer, integer]),
            query(INDEXES, &[text, integer, integer, text, integer]),
            query(HAS_ROWID, &[integer, text]),
        ])
        .map_err(|error| failure::of_sql(&error, "reading the schema"))?;
    let mut results = Results::new(rows);

    let mut reader = results.next_rows()?;
    let (names, types) = (reader.bytes()?, reader.bytes()?);
    let (not_null, has_default, primary_key) = (reader.integers()?, reader.integers()?, reader.integers()?);
    let columns: Vec<ColumnInfo> = (0..names.len())
        .map(|at| {
            let declared = text_of(&types, at);
            ColumnInfo {
                name: text_of(&names, at),
                affinity: Affinity::of(&declared),
                declared,
                not_null: not_null.count(at) == 1,
                has_default: has_default.count(at) == 1,
                primary_key: primary_key.get(at).unwrap_or_default(),
            }
        })
        .collect();
    if columns.is_empty() {
        return Ok(None);
    }

    let mut reader = results.next_rows()?;
    let (names, unique, partial) = (reader.bytes()?, reader.integers()?, reader.integers()?);
    let (column_names, binary) = (reader.bytes()?, reader.integers()?);
    let mut indexes: Vec<IndexInfo> = Vec::new();
    for at in 0..names.len() {
        let name = text_of(&names, at);
        if indexes.last().is_none_or(|index| index.name != name) {
            let (unique, partial) = (unique.count(at) == 1, partial.count(at) == 1);
            indexes.push(IndexInfo { name, unique, partial, columns: Vec::new(), binary: true });
        }
        if let Some(index) = indexes.last_mut() {
            index.columns.push(text_of(&column_names, at));
            index.binary &= binary.count(at) == 1;
        }
    }

    let mut reader = results.next_rows()?;
    let (has_rowid, created_by) = (reader.integers()?.count(0) == 1, text_of(&reader.bytes()?, 0));
    let autoincrement = created_by.to_ascii_uppercase().contains("AUTOINCREMENT");
    Ok(Some(TableInfo { columns, indexes, has_rowid, autoincrement }))
}

/// The failure for a table that is not there: says which are, and (`ours`) what creates it.
pub(crate) fn missing<D: Database>(database: &D, name: &TableName, key: &str, ours: bool) -> Failure {
    let statement = Statement { sql: TABLES.to_owned(), parameters: Vec::new(), columns: vec![ColumnType::Bytes], must_change: None };
    let tables = database
        .execute(vec![statement])
        .map_err(|error| failure::of_sql(&error, "reading the schema"))
        .and_then(|rows| Results::new(rows).next_rows()?.bytes());
    match tables {
        Ok(tables) => {
            let names: Vec<String> = (0..tables.len()).map(|at| text_of(&tables, at)).collect();
            let names = listed(names.iter().map(String::as_str));
            let remedy = if ours {
                "`outhaul schema` prints what creates it, `outhaul schema --apply` creates it"
            } else {
                "`columns` describes a table that somebody else creates"
            };
            Failure::invalid_configuration(format!("`{key}`: there is no table {name} in the database (tables: {names}); {remedy}"))
        }
        Err(failure) => failure,
    }
}
