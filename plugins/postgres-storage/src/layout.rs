//! The table as configured and as it is: each named column is looked up, and what cannot work is refused with what would.

use crate::inspect::{ColumnInfo, Kind, TableInfo};
use crate::names;
use crate::ops::literal;
use crate::time::Clock;
use outbox_table::config::{Columns, Config, OnDelivered, StateValue, TimeUnit};
use outbox_table::ident::{Ident, TableName};
use outbox_table::ids::IdKind;
use outhaul_sdk::Failure;

/// What the order of insertion is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    /// One integer, which no two rows share.
    Number(Ident),
    /// A timestamp, and the id where two rows have the same.
    Stamped(Ident),
    /// The id, which is no integer.
    Id,
}

/// Everything that the statements are made from.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) config: Config,
    pub(crate) columns: Columns,
    pub(crate) info: TableInfo,
    pub(crate) order: Order,
    pub(crate) ids: IdKind,
    /// The id's type, as SQL.
    pub(crate) id_type: String,
    /// The key's type, as SQL, if it can be compared as it is; else it is compared as text.
    pub(crate) key_type: Option<String>,
    /// Keys can be empty, not only NULL.
    pub(crate) empty_keys: bool,
    /// There is an index by key and order.
    pub(crate) has_key_index: bool,
    /// The table of leases beside the table.
    pub(crate) side: Option<TableName>,
    /// What the table is to fan-out.
    pub(crate) role: Role,
    /// The column of tenants that searches keep to, one at a time.
    pub(crate) tenant: Option<Ident>,
    /// Claims tell the tenant and the generation of each event.
    pub(crate) tells_emissions: bool,
}

/// What a table is to fan-out.
#[derive(Debug, Clone)]
pub(crate) enum Role {
    /// Nothing.
    None,
    /// It has the events.
    Events {
        /// The column of tenants; none: there are no tenants.
        tenant: Option<Ident>,
        /// The table of emissions.
        emissions: TableName,
    },
    /// It has the deliveries.
    Deliveries,
}

impl Layout {
    /// Checks the configuration against the table.
    pub(crate) fn new(config: Config, info: TableInfo) -> Result<Self, Failure> {
        let columns = config.columns.clone().unwrap_or_else(Columns::own);
        for (key, name) in columns.named() {
            column(&format!("columns.{key}"), name, &config, &info)?;
        }
        for name in config.extra_headers.keys() {
            let ident = Ident::new(name.as_str()).map_err(|fault| invalid(&format!("extra_headers.{name}"), &fault.to_string()))?;
            column(&format!("extra_headers.{name}"), &ident, &config, &info)?;
        }
        check_writable(&columns, &config, &info)?;
        let id = column("columns.id", &columns.id, &config, &info)?;
        let ids = check_id(id, &columns.id, &info)?;
        let order = order(&columns, ids, &config, &info)?;
        let key = columns.key.as_ref().map(|key| column("columns.key", key, &config, &info)).transpose()?;
        let comparable = |key: &&ColumnInfo| !matches!(key.kind, Kind::Json | Kind::Other | Kind::Bytea);
        let side = lease_table(&config, &info)?;
        let layout = Self {
            id_type: id.type_name.clone(),
            key_type: key.filter(comparable).map(|key| key.type_name.clone()),
            empty_keys: key.is_some_and(|key| !comparable(&key) || matches!(key.kind, Kind::Text | Kind::Padded)),
            has_key_index: false,
            config,
            columns,
            order,
            ids,
            side,
            info,
            role: Role::None,
            tenant: None,
            tells_emissions: false,
        };
        layout.check_types()?;
        Ok(Self { has_key_index: layout.finds_key_index(), ..layout })
    }

    /// The same table as what it is to fan-out.
    pub(crate) fn with_role(self, role: Role) -> Self {
        Self { role, ..self }
    }

    /// The same table of events, searched by tenant if it has any, and telling emissions.
    pub(crate) fn telling_emissions(self) -> Self {
        let layout = Self { tells_emissions: true, ..self };
        match &layout.role {
            Role::Events { tenant: Some(tenant), .. } => {
                let tenant = tenant.clone();
                layout.by_tenant(tenant)
            }
            _ => layout,
        }
    }

    /// The same table, searched by tenant.
    pub(crate) fn by_tenant(self, tenant: Ident) -> Self {
        let layout = Self { tenant: Some(tenant), ..self };
        Self { has_key_index: layout.finds_key_index(), ..layout }
    }

    pub(crate) fn table(&self) -> &TableName {
        &self.info.name
    }

    fn column(&self, name: &Ident) -> Option<&ColumnInfo> {
        self.info.column(name)
    }

    /// The kind of a column that [`Layout::new`] has found.
    pub(crate) fn kind(&self, name: &Ident) -> Kind {
        self.column(name).map_or(Kind::Other, |column| column.kind)
    }

    /// The type of a column, as SQL.
    pub(crate) fn type_of(&self, name: &Ident) -> &str {
        self.column(name).map_or("pg_catalog.text", |column| column.type_name.as_str())
    }

    /// How a column holds times.
    pub(crate) fn clock(&self, name: &Ident) -> Clock {
        let of_created = [&self.columns.created_at, &self.columns.done_at].into_iter().flatten().any(|column| column == name);
        let unit = if of_created { self.config.created_at_unit.or(self.config.time_unit) } else { self.config.time_unit };
        match self.kind(name) {
            Kind::Zoned => Clock::Zoned,
            Kind::Unzoned => Clock::Unzoned,
            Kind::Integer if unit == Some(TimeUnit::Seconds) => Clock::Seconds(false),
            Kind::Integer => Clock::Millis(false),
            Kind::Number if unit == Some(TimeUnit::Ms) => Clock::Millis(true),
            Kind::Number => Clock::Seconds(true),
            _ => Clock::Text,
        }
    }

    /// The column that holds how long a row waits for its retry.
    pub(crate) fn due_column(&self) -> Option<&Ident> {
        self.columns.due(self.side.is_some())
    }

    /// The column that holds the end of the lease.
    pub(crate) fn lease_column(&self) -> Option<&Ident> {
        self.columns.lease(self.side.is_some())
    }

    /// Whether the column may not be NULL.
    pub(crate) fn is_not_null(&self, name: &Ident) -> bool {
        self.column(name).is_some_and(|column| column.not_null)
    }

    /// A state as SQL, in the column's own type.
    pub(crate) fn state(&self, value: &StateValue) -> String {
        format!("CAST({} AS {})", literal(&state_text(value)), self.type_of(&self.columns.state))
    }

    /// Whether payloads are text to the table.
    pub(crate) fn text_payload(&self) -> bool {
        self.kind(&self.columns.payload) != Kind::Bytea
    }

    /// Refuses columns whose types cannot hold what is to be written into them.
    fn check_types(&self) -> Result<(), Failure> {
        let columns = &self.columns;
        let text = &[Kind::Text, Kind::Padded][..];
        let times = &[Kind::Zoned, Kind::Unzoned, Kind::Integer, Kind::Number, Kind::Text][..];
        for (key, name, kinds, wanted) in [
            ("attempts", &columns.attempts, &[Kind::Integer][..], "smallint, integer or bigint"),
            ("leased_by", &columns.leased_by, text, "text or varchar"),
            ("last_error", &columns.last_error, text, "text or varchar"),
            ("available_at", &columns.available_at, times, "timestamptz, timestamp, a number or text"),
            ("lease_until", &columns.lease_until, times, "timestamptz, timestamp, a number or text"),
            ("created_at", &columns.created_at, times, "timestamptz, timestamp, a number or text"),
            ("done_at", &columns.done_at, times, "timestamptz, timestamp, a number or text"),
        ] {
            if let Some(column) = name.as_ref().and_then(|name| self.column(name))
                && !kinds.contains(&column.kind)
            {
                let what = format!("the column `{}` is declared `{}`; it must be {wanted}", column.name, column.declared);
                return Err(invalid(&format!("columns.{key}"), &what));
            }
        }
        Ok(())
    }

    /// Refuses a column of tenants that says nothing of some rows, or nothing that can be compared.
    pub(crate) fn check_tenant(&self) -> Result<(), Failure> {
        let Some(tenant) = self.config.tenant() else { return Ok(()) };
        let Some(found) = self.column(&tenant) else {
            let remedy = if self.config.columns.is_none() { "; `outhaul schema --apply` adds it" } else { "" };
            let (table, columns) = (&self.info.name, self.info.column_names());
            let what = format!("the table {table} has no column `{}` (columns: {columns}){remedy}", tenant.name());
            return Err(invalid("fan_out.tenant", &what));
        };
        let refuse = |what: &str| Err(invalid("fan_out.tenant", &format!("the column `{}` {what}", found.name)));
        if !found.not_null {
            return refuse("may be NULL: set it NOT NULL, or such events are never expanded");
        }
        if matches!(found.kind, Kind::Text | Kind::Uuid | Kind::Integer) {
            Ok(())
        } else {
            refuse(&format!("is declared `{}`; it must be text, varchar, uuid, smallint, integer or bigint", found.declared))
        }
    }

    /// How tenants are written.
    pub(crate) fn tenants(&self) -> IdKind {
        match self.tenant.as_ref().map(|tenant| self.kind(tenant)) {
            Some(Kind::Uuid) => IdKind::Uuid,
            Some(Kind::Integer) => IdKind::Integer,
            _ => IdKind::Text,
        }
    }

    /// Whether rows of one key can be found in order without reading those of others.
    fn finds_key_index(&self) -> bool {
        let (Some(key), Some(_)) = (&self.columns.key, &self.key_type) else { return false };
        let order: &[&Ident] = match &self.order {
            Order::Number(column) => &[column],
            Order::Stamped(column) => &[column, &self.columns.id],
            Order::Id => &[&self.columns.id],
        };
        self.info.indexes.iter().any(|index| {
            // Without a condition of its own, the index holds settled rows too: a walk would go through all of them.
            let mut names = index.columns.iter().map(String::as_str);
            let of_tenant = self.tenant.as_ref().is_none_or(|tenant| names.next() == Some(tenant.name()));
            index.partial && of_tenant && names.next() == Some(key.name()) && order.iter().all(|column| names.next() == Some(column.name()))
        })
    }
}

/// A state as text.
pub(crate) fn state_text(value: &StateValue) -> String {
    match value {
        StateValue::Integer(number) => number.to_string(),
        StateValue::Text(text) => text.clone(),
    }
}

fn invalid(key: &str, what: &str) -> Failure {
    Failure::invalid_configuration(format!("`{key}`: {what}"))
}

fn column<'a>(key: &str, name: &Ident, config: &Config, info: &'a TableInfo) -> Result<&'a ColumnInfo, Failure> {
    info.column(name).ok_or_else(|| {
        let hint = if config.columns.is_none() {
            "; this is not outhaul's own table, so describe it with `columns`"
        } else if ["columns.available_at", "columns.lease_until", "columns.leased_by", "columns.attempts"].contains(&key) {
            "; where the table has no such column, leave the key out and set `lease_table` to the name of a table of leases"
        } else {
            ""
        };
        invalid(key, &format!("the table {} has no column `{}` (columns: {}){hint}", info.name, name.name(), info.column_names()))
    })
}

/// Refuses generated columns where outhaul has to write.
fn check_writable(columns: &Columns, config: &Config, info: &TableInfo) -> Result<(), Failure> {
    let written = [
        ("state", Some(&columns.state)),
        ("attempts", columns.attempts.as_ref()),
        ("available_at", columns.available_at.as_ref()),
        ("lease_until", columns.lease_until.as_ref()),
        ("leased_by", columns.leased_by.as_ref()),
        ("last_error", columns.last_error.as_ref()),
        ("done_at", columns.done_at.as_ref()),
    ];
    for (key, name) in written.into_iter().filter_map(|(key, name)| name.map(|name| (key, name))) {
        let key = format!("columns.{key}");
        if column(&key, name, config, info)?.generated {
            return Err(invalid(&key, &format!("the column `{}` is generated from others and cannot be written", name.name())));
        }
    }
    Ok(())
}

/// Which ids there are.
fn check_id(id: &ColumnInfo, name: &Ident, info: &TableInfo) -> Result<IdKind, Failure> {
    let kind = match id.kind {
        Kind::Integer => IdKind::Integer,
        Kind::Text => IdKind::Text,
        Kind::Uuid => IdKind::Uuid,
        _ => {
            let what = format!(
                "the column `{}` is declared `{}`; an id must be smallint, integer, bigint, uuid, text or varchar",
                id.name, id.declared
            );
            return Err(invalid("columns.id", &what));
        }
    };
    if !info.is_unique(name) {
        let what = "it must be the primary key, or have a UNIQUE constraint or a unique index of its own";
        return Err(invalid("columns.id", &format!("the column `{}` is not unique: {what}", id.name)));
    }
    if !id.not_null {
        return Err(invalid(
            "columns.id",
            &format!("the column `{}` may be NULL: set it NOT NULL, or such rows are never delivered", id.name),
        ));
    }
    Ok(kind)
}

fn order(columns: &Columns, ids: IdKind, config: &Config, info: &TableInfo) -> Result<Order, Failure> {
    let refuse = |what: &str| Err(invalid("columns.order", what));
    let is_stamp = |column: &ColumnInfo| column.not_null && matches!(column.kind, Kind::Zoned | Kind::Unzoned);
    let Some(name) = &columns.order else {
        if ids == IdKind::Integer {
            return Ok(Order::Number(columns.id.clone()));
        }
        let created = columns.created_at.as_ref().filter(|created| info.column(created).is_some_and(is_stamp));
        return created.map_or_else(
            || {
                refuse(
                    "ids of this table are no integers, and tell no order: name a unique integer column that grows with each insert \
                     (bigserial, identity), or else a timestamp that is NOT NULL",
                )
            },
            |created| Ok(Order::Stamped(created.clone())),
        );
    };
    let found = column("columns.order", name, config, info)?;
    match found.kind {
        Kind::Integer if found.not_null && info.is_unique(name) => Ok(Order::Number(name.clone())),
        _ if is_stamp(found) => Ok(Order::Stamped(name.clone())),
        _ if *name == columns.id => Ok(Order::Id),
        _ => refuse(&format!(
            "the column `{}` is declared `{}`; it must be a unique integer that is NOT NULL, a timestamp that is NOT NULL, or the id itself",
            found.name, found.declared
        )),
    }
}

/// The table of leases, in the schema of the table itself.
fn lease_table(config: &Config, info: &TableInfo) -> Result<Option<TableName>, Failure> {
    let Some(name) = &config.lease_table else { return Ok(None) };
    let name = Ident::new(name.as_str()).map_err(|fault| invalid("lease_table", &fault.to_string()))?;
    if name.name().len() > names::MAX_BYTES {
        return Err(invalid("lease_table", "PostgreSQL cuts names at 63 bytes: choose a shorter one"));
    }
    Ok(Some(info.name.sibling(name)))
}

impl Layout {
    /// Delivered rows are deleted.
    pub(crate) fn deletes(&self) -> bool {
        self.config.on_delivered == OnDelivered::Delete
    }
}
