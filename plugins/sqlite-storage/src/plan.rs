//! Which indexes the statements name. Left to itself, SQLite's planner walks the delivered rows too, and a claim slows down with
//! every row delivered; so an index is named, and asked of the planner first whether it can be used.

use crate::layout::Layout;
use crate::statements::Sql;
use crate::walk::Walk;
use outbox_table::database::{ColumnType, Database, Results, SqlErrorCode, Value};
use outbox_table::decode::Decoding;
use outbox_table::failure;
use outbox_table::ident::Ident;
use outbox_table::template::Template;
use outhaul_sdk::Failure;

/// How the front of the table is read.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    pub(crate) template: Template,
    /// Settled rows are walked over as well: worth remembering where the unsettled ones start.
    pub(crate) walks_settled: bool,
    /// Lists tenants, where searches go tenant by tenant: the first ones, and those behind one.
    pub(crate) tenants: Option<[Template; 2]>,
}

/// Finds how to scan.
pub(crate) fn scan<D: Database>(database: &D, layout: &Layout, decoding: &Decoding) -> Result<Scan, Failure> {
    let sql = Sql(layout);
    let found = |indexed: &str, template: Template, walks_settled: bool| Scan { template, walks_settled, tenants: sql.tenants(indexed) };
    // A partial index in insertion order is the smallest; then one by state.
    for want_partial in [true, false] {
        for index in layout.info.indexes.iter().filter(|index| index.partial == want_partial) {
            if leads_to_order(layout, &index.columns, want_partial) {
                let indexed = indexed_by(&index.name)?;
                let template = sql.scan(&indexed, decoding);
                if usable(database, &template)? {
                    return Ok(found(&indexed, template, false));
                }
            }
        }
    }
    if layout.order_is_rowid || !layout.info.has_rowid {
        let template = sql.scan("NOT INDEXED", decoding);
        if usable(database, &template)? {
            return Ok(found("", template, true));
        }
    }
    // The order is a unique column with an index of its own: the planner's to find.
    Ok(found("", sql.scan("", decoding), true))
}

/// Whether an index may serve a scan: it begins with the state, or holds unsettled rows only; and then with the tenant, if there are any.
fn leads_to_order(layout: &Layout, columns: &[String], partial: bool) -> bool {
    let mut columns = columns.iter().map(String::as_str).peekable();
    let by_state = columns.next_if(|column| column.eq_ignore_ascii_case(layout.columns.state.name())).is_some();
    let next = columns.next().unwrap_or_default();
    match &layout.by_tenant {
        Some(tenant) => (by_state || partial) && next.eq_ignore_ascii_case(tenant.name()),
        None => by_state || (partial && is_order(layout, next)),
    }
}

/// Finds how to walk from key to key; none: there are no keys, order is loose, or no index allows it.
pub(crate) fn walk<D: Database>(database: &D, layout: &Layout, decoding: &Decoding) -> Result<Option<Walk>, Failure> {
    let Some(key) = layout.columns.key.as_ref().filter(|_| layout.config.strict_order) else {
        return Ok(None);
    };
    let is_key = |column: Option<&String>| column.is_some_and(|column| column.eq_ignore_ascii_case(key.name()));
    for index in &layout.info.indexes {
        let mut columns = index.columns.iter().peekable();
        if !index.partial {
            // Without a condition of its own, the index must start with the state.
            columns.next_if(|column| column.eq_ignore_ascii_case(layout.columns.state.name()));
            if columns.len() == index.columns.len() {
                continue;
            }
        }
        if let Some(tenant) = &layout.by_tenant
            && columns.next_if(|column| column.eq_ignore_ascii_case(tenant.name())).is_none()
        {
            continue;
        }
        let in_order = is_key(columns.next()) && columns.next().map_or(layout.order_is_rowid, |column| is_order(layout, column));
        if !in_order || !index.binary {
            continue;
        }
        if let Some(walk) = Walk::new(Sql(layout), &Ident::new(index.name.as_str()).map_err(invalid_name)?.to_string(), decoding) {
            let [of_null, of_empty] = &walk.unkeyed;
            if prepares(database, &walk.keys)?.is_some() && usable(database, of_null)? && usable(database, of_empty)? {
                return Ok(Some(walk));
            }
        }
    }
    Ok(None)
}

fn indexed_by(name: &str) -> Result<String, Failure> {
    Ident::new(name).map(|name| format!("INDEXED BY {name}")).map_err(invalid_name)
}

/// Whether a column, as an index names it, is the insertion order.
fn is_order(layout: &Layout, column: &str) -> bool {
    let named = Ident::new(column).is_ok_and(|column| column.to_string().eq_ignore_ascii_case(&layout.order));
    named || (layout.order_is_rowid && layout.info.column(column).is_some_and(|column| layout.info.is_rowid(column)))
}

/// Whether the statement reads rows in order, without sorting all of them first.
fn usable<D: Database>(database: &D, template: &Template) -> Result<bool, Failure> {
    Ok(prepares(database, template)?.is_some_and(|plan| !plan.contains("TEMP B-TREE")))
}

/// The planner's answer; none if it cannot do it in that way.
fn prepares<D: Database>(database: &D, template: &Template) -> Result<Option<String>, Failure> {
    let mut statement = template.fill(|_| Value::Null);
    statement.sql.insert_str(0, "EXPLAIN QUERY PLAN ");
    statement.columns = vec![ColumnType::Integer, ColumnType::Integer, ColumnType::Integer, ColumnType::Bytes];
    match database.execute(vec![statement]) {
        Ok(rows) => {
            let mut reader = Results::new(rows).next_rows()?;
            for _ in 0..3 {
                reader.integers()?;
            }
            let details = reader.bytes()?;
            Ok(Some(String::from_utf8_lossy(&details.data).into_owned()))
        }
        // "no query solution": the named index does not serve.
        Err(error) if matches!(error.code, SqlErrorCode::Other | SqlErrorCode::Syntax | SqlErrorCode::Missing) => Ok(None),
        Err(error) => Err(failure::of_sql(&error, "choosing an index")),
    }
}

fn invalid_name(fault: outbox_table::ident::NameFault) -> Failure {
    Failure::invalid_configuration(format!("the table has an index that cannot be named: {fault}"))
}
