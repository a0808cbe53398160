//! The table as configured and as it is: each named column is looked up, and what cannot work is refused with what would.

use crate::inspect::{Affinity, ColumnInfo, TableInfo};
use outbox_table::config::{Columns, Config, OnDelivered, StateValue, TimeUnit};
use outbox_table::ident::{Ident, TableName, literal};
use outhaul_sdk::Failure;

/// Everything that the statements are made from.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) config: Config,
    pub(crate) columns: Columns,
    pub(crate) info: TableInfo,
    /// The column or `rowid`, as SQL.
    pub(crate) order: String,
    pub(crate) order_is_rowid: bool,
    pub(crate) id_is_order: bool,
    pub(crate) integer_ids: bool,
    /// Ids may be NULL or of another type: such rows cannot be settled, and are left alone.
    pub(crate) id_needs_check: bool,
    /// The table of leases beside the table.
    pub(crate) side: Option<TableName>,
    /// The column of tenants, where searches go tenant by tenant.
    pub(crate) by_tenant: Option<Ident>,
}

impl Layout {
    /// Checks the configuration against the table.
    pub(crate) fn new(config: Config, info: TableInfo) -> Result<Self, Failure> {
        let columns = config.columns.clone().unwrap_or_else(Columns::own);
        for (key, name) in columns.named() {
            let is_rowid = key == "order" && name.name().eq_ignore_ascii_case("rowid") && info.has_rowid;
            if info.column(name.name()).is_none() && !is_rowid {
                return Err(unknown(&format!("columns.{key}"), name.name(), &config, &info));
            }
        }
        for name in config.extra_headers.keys() {
            if info.column(name).is_none() {
                return Err(unknown(&format!("extra_headers.{name}"), name, &config, &info));
            }
        }
        if let Some(tenant) = config.tenant() {
            check_tenant(&tenant, &config, &info)?;
        }
        let id = info.column(columns.id.name()).ok_or_else(|| unknown("columns.id", columns.id.name(), &config, &info))?.clone();
        let integer_ids = check_id(&id, &info)?;
        if config.fan_out.is_some() && info.is_rowid(&id) && !info.autoincrement {
            return Err(given_out_again(&id, &config));
        }
        let (order, order_is_rowid) = order(&columns, &id, &info)?;
        let side = config
            .lease_table
            .as_deref()
            .map(|name| Ident::new(name).map(|name| config.table.sibling(name)))
            .transpose()
            .map_err(|fault| Failure::invalid_configuration(format!("`lease_table`: {fault}")))?;
        Ok(Self {
            id_is_order: order == columns.id.to_string(),
            id_needs_check: !info.is_rowid(&id),
            config,
            columns,
            order,
            order_is_rowid,
            integer_ids,
            side,
            by_tenant: None,
            info,
        })
    }

    /// The same for searches that go tenant by tenant.
    pub(crate) fn by_tenant(self, tenant: Ident) -> Self {
        Self { by_tenant: Some(tenant), ..self }
    }

    /// The table holds deliveries.
    pub(crate) fn is_deliveries(&self) -> bool {
        self.columns.code.is_some()
    }

    pub(crate) fn table(&self) -> &TableName {
        &self.config.table
    }

    /// The unit of leases and due times.
    pub(crate) fn unit(&self) -> TimeUnit {
        self.config.time_unit.unwrap_or_default()
    }

    /// The unit of `created_at` and `done_at`.
    pub(crate) fn created_unit(&self) -> TimeUnit {
        self.config.created_at_unit.unwrap_or(self.unit())
    }

    /// The column that holds how long a row waits for its retry.
    pub(crate) fn due_column(&self) -> Option<&Ident> {
        self.columns.due(self.side.is_some())
    }

    /// The column that holds the end of the lease.
    pub(crate) fn lease_column(&self) -> Option<&Ident> {
        self.columns.lease(self.side.is_some())
    }

    /// Whether a new row always comes after every row that was there before, even if those are gone: only then can a claim remember how
    /// far an earlier one has looked. SQLite gives a row number out again if the row with the highest one is deleted.
    pub(crate) fn order_only_grows(&self) -> bool {
        self.order_is_rowid && (self.info.autoincrement || self.config.on_delivered == OnDelivered::Mark)
    }

    /// Whether the column may not be NULL.
    pub(crate) fn is_not_null(&self, column: &Ident) -> bool {
        self.info.column(column.name()).is_some_and(|column| column.not_null)
    }
}

/// A state value as SQL.
pub(crate) fn state_literal(value: &StateValue) -> String {
    match value {
        StateValue::Integer(number) => number.to_string(),
        StateValue::Text(text) => literal(text),
    }
}

fn unknown(key: &str, name: &str, config: &Config, info: &TableInfo) -> Failure {
    let hint = if config.columns.is_none() {
        "; this is not outhaul's own table, so describe it with `columns`"
    } else if ["columns.available_at", "columns.lease_until", "columns.leased_by", "columns.attempts"].contains(&key) {
        "; where the table has no such column, leave the key out and set `lease_table` to the name of a table of leases"
    } else {
        ""
    };
    Failure::invalid_configuration(format!(
        "`{key}`: the table {} has no column `{name}` (columns: {}){hint}",
        config.table,
        info.column_names()
    ))
}

/// Refuses a column that could not be searched for by the tenant's name.
fn check_tenant(tenant: &Ident, config: &Config, info: &TableInfo) -> Result<(), Failure> {
    let refuse = |what: String| Err(Failure::invalid_configuration(format!("`fan_out.tenant`: {what}")));
    let Some(column) = info.column(tenant.name()) else {
        let remedy = if config.columns.is_none() {
            "; `outhaul schema` prints what adds it, `outhaul schema --apply` adds it"
        } else {
            "; leave the key out if there are no tenants"
        };
        return refuse(format!("the table {} has no column {tenant} (columns: {}){remedy}", config.table, info.column_names()));
    };
    if column.affinity == Affinity::Other {
        return refuse(format!("the column {tenant} is declared `{}`; it must be declared as an INTEGER or TEXT type", column.declared));
    }
    if !column.not_null {
        return refuse(format!(
            "the column {tenant} may be NULL: make it NOT NULL, since an event without a tenant would never be expanded"
        ));
    }
    Ok(())
}

/// Refuses row numbers as ids of events that fan out: what deliveries, idempotency keys and the log call by an id must stay the only one.
fn given_out_again(id: &ColumnInfo, config: &Config) -> Failure {
    Failure::invalid_configuration(format!(
        "`fan_out`: `{}`, the id of the table {}, is an INTEGER PRIMARY KEY without AUTOINCREMENT: SQLite gives the number of a deleted row \
         out again, and an event that had the number of an earlier one would reach nobody. Rebuild the table with AUTOINCREMENT, or name \
         a column of unique texts (UUIDs) as `columns.id`",
        id.name, config.table
    ))
}

/// Whether ids are numbers.
fn check_id(id: &ColumnInfo, info: &TableInfo) -> Result<bool, Failure> {
    let refuse = |what: String| Err(Failure::invalid_configuration(format!("`columns.id`: {what}")));
    let integer = match id.affinity {
        Affinity::Integer => true,
        Affinity::Text => false,
        Affinity::Other => {
            return refuse(format!(
                "the column `{}` is declared `{}`; an id must be declared as an INTEGER or TEXT type",
                id.name, id.declared
            ));
        }
    };
    if info.is_unique(id) {
        Ok(integer)
    } else {
        refuse(format!(
            "the column `{}` is not unique: it must be the primary key, or have a UNIQUE constraint or a unique index of its own",
            id.name
        ))
    }
}

/// The order as SQL, and whether it is the row number.
fn order(columns: &Columns, id: &ColumnInfo, info: &TableInfo) -> Result<(String, bool), Failure> {
    let refuse = |what: String| Err(Failure::invalid_configuration(format!("`columns.order`: {what}")));
    let Some(name) = &columns.order else {
        return match id.affinity {
            Affinity::Integer => Ok((columns.id.to_string(), info.is_rowid(id))),
            _ if info.has_rowid => Ok(("rowid".to_owned(), true)),
            _ => refuse(
                "the table is WITHOUT ROWID and its id is text: name a unique column of integers that grow with each insert".to_owned(),
            ),
        };
    };
    let Some(column) = info.column(name.name()) else {
        // Checked above: only the row number has no column.
        return Ok(("rowid".to_owned(), true));
    };
    if info.is_rowid(column) {
        return Ok((name.to_string(), true));
    }
    let rowid = if info.has_rowid { "; `order = \"rowid\"` is the order in which SQLite inserted the rows" } else { "" };
    if column.affinity != Affinity::Integer || !column.not_null || !info.is_unique(column) {
        return refuse(format!("the column `{}` is not a unique INTEGER NOT NULL{rowid}", column.name));
    }
    Ok((name.to_string(), false))
}
