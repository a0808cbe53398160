//! The storage: a configuration, two connections, and, once the table is there, its statements.

use crate::claim::Looking;
use crate::fan_out::{self, FanOut};
use crate::layout::{Layout, Order, Role, state_text};
use crate::lock::Claim;
use crate::statements::Sql;
use crate::walk::Walk;
use crate::{inspect, names, schema};
use outbox_table::config::{Config, StateValue};
use outbox_table::database::{Access, ColumnType, Database, Results, SqlError, SqlErrorCode, Statement, Value};
use outbox_table::decode::Decoding;
use outbox_table::failure;
use outbox_table::ident::{Ident, TableName};
use outbox_table::ids::IdKind;
use outbox_table::page;
use outbox_table::random::Random;
use outbox_table::settle::{Change, Verdicts};
use outbox_table::template::{Slot, Template};
use outhaul_sdk::{Counts, Description, Failure, FailureCode, NotificationSource, WakeSource};

/// An outbox in PostgreSQL. The calls are described in `wit/outbox.wit`.
#[derive(Debug)]
pub struct Outbox<D> {
    pub(crate) config: Config,
    /// Claims, settles and administration.
    pub(crate) writer: D,
    /// Counts and pages.
    pub(crate) reader: D,
    pub(crate) random: Random,
    /// What somebody should be told who runs the storage, and was not yet.
    pub(crate) notice: Option<String>,
    /// None: the table is not there yet.
    pub(crate) ready: Option<Ready>,
    pub(crate) looking: Looking,
    /// None: its tables are not there yet, or there is none.
    pub(crate) fan_out: Option<FanOut>,
}

/// A table that is there: its layout and statements.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) layout: Layout,
    pub(crate) decoding: Decoding,
    /// From the front, and from a place on.
    pub(crate) scan: [Template; 2],
    pub(crate) walk: Option<Walk>,
    /// What the chosen rows weigh; none: the scan says it.
    pub(crate) weigh: Option<Template>,
    pub(crate) claim: Claim,
    pub(crate) verdicts: Verdicts,
    /// Where the table is searched by tenant: so many of them, from the first one, and behind one.
    pub(crate) tenants: Option<[Template; 2]>,
    pub(crate) stats: [Template; 2],
    try_states: Vec<(&'static str, Template)>,
    /// The table takes every configured state, or is outhaul's own.
    pub(crate) states_tried: bool,
}

impl Ready {
    pub(crate) fn new(layout: Layout) -> Self {
        let config = &layout.config;
        let decoding = Decoding {
            ids: layout.ids,
            place_texts: match &layout.order {
                Order::Number(_) => 0,
                Order::Stamped(_) => 2,
                Order::Id => 1,
            },
            id_is_order: layout.ids == IdKind::Integer && layout.order == Order::Number(layout.columns.id.clone()),
            topic: if layout.columns.topic.is_some() { None } else { Some(config.topic.clone().unwrap_or_default()) },
            keys: layout.columns.key.is_some(),
            headers: layout.columns.headers.is_some(),
            encoding: config.payload_encoding,
            extra_headers: config.extra_headers.values().cloned().collect(),
        };
        let sql = Sql(&layout);
        let verdicts = Verdicts::new(decoding.ids, |change| sql.fenced(change, &decoding))
            .with_lock(sql.lock(), layout.side.is_some())
            .with_renewal_lock(sql.lock_at_once());
        let verdicts = match &layout.role {
            Role::Deliveries => verdicts.with_suppressed(sql.fenced(Change::Suppressed, &decoding)),
            _ => verdicts,
        };
        Self {
            scan: sql.scan(&decoding),
            walk: Walk::new(sql, &decoding),
            weigh: sql.weigh(&decoding),
            claim: Claim::new(sql, &decoding),
            verdicts,
            tenants: sql.tenants(),
            stats: sql.stats(),
            try_states: sql.try_states(),
            states_tried: config.columns.is_none(),
            decoding,
            layout,
        }
    }
}

impl<D: Database> Outbox<D> {
    /// Opens the database that the configuration names, and looks at the table. A table that is not there yet is no failure here,
    /// so that `schema` and `create_schema` can be called; every other call then fails until it is there.
    ///
    /// # Errors
    /// `invalid-configuration`, naming the key, if the table cannot be worked off as configured; else those of the database.
    pub fn open(config: &str, connect: impl Fn(&str, Access) -> Result<D, SqlError>) -> Result<(Self, Description), Failure> {
        let config = Config::parse(config)?;
        check_names(&config)?;
        let connect = |access| {
            connect(&config.database, access)
                .map_err(|error| failure::of_sql(&error, &format!("opening the database `{}`", config.database)))
        };
        let (writer, reader) = (connect(Access::ReadWrite)?, connect(Access::ReadOnly)?);
        let mut outbox = Self {
            config,
            writer,
            reader,
            random: Random::from_system(),
            notice: None,
            ready: None,
            looking: Looking::default(),
            fan_out: None,
        };
        if inspect::table(&outbox.reader, &outbox.config.table, "table")?.is_some() && outbox.has_leases()? && outbox.has_fan_out()? {
            outbox.ready()?;
        }
        let wake = match outbox.channel()? {
            Some(channel) => WakeSource::Notification(NotificationSource { database: outbox.config.database.clone(), channel }),
            None => WakeSource::None,
        };
        let description = Description { strict_order: outbox.config.strict_order, prefers_fused: false, wake };
        Ok((outbox, description))
    }

    /// The channel that is notified of new rows: the configured one, or that of the trigger of outhaul's own table.
    fn channel(&self) -> Result<Option<String>, Failure> {
        match (&self.config.notify_channel, &self.config.columns) {
            (Some(channel), _) => Ok(Some(channel.clone())),
            (None, None) if self.config.notify => self.own_channel().map(Some),
            (None, _) => Ok(None),
        }
    }

    fn own_channel(&self) -> Result<String, Failure> {
        let table = self.own_name()?;
        Ok(names::channel(table.schema.as_ref().map_or("", Ident::name), &table.table))
    }

    /// What is to be told to whoever runs the storage; each thing once.
    pub fn notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    /// The layout of the table as it is now.
    fn layout(&self) -> Result<Layout, Failure> {
        let table = &self.config.table;
        let info = inspect::table(&self.reader, table, "table")?
            .ok_or_else(|| inspect::missing(&self.reader, table, "table", self.config.columns.is_none()))?;
        let layout = Layout::new(self.config.clone(), info)?;
        if self.config.fan_out.is_none() {
            return Ok(layout);
        }
        let emissions = fan_out::schema::tables(&layout.info.name).map_err(fan_out::invalid)?.emissions;
        Ok(layout.with_role(Role::Events { tenant: self.config.tenant(), emissions }))
    }

    /// Whether the tables of fan-out are there, or none are needed.
    fn has_fan_out(&self) -> Result<bool, Failure> {
        match self.layout()?.role {
            Role::Events { emissions, .. } => Ok(inspect::table(&self.reader, &emissions, "fan_out")?.is_some()),
            _ => Ok(true),
        }
    }

    /// Whether the table of leases is there, or none is needed.
    fn has_leases(&self) -> Result<bool, Failure> {
        match self.layout()?.side {
            Some(side) => Ok(inspect::table(&self.reader, &side, "lease_table")?.is_some()),
            None => Ok(true),
        }
    }

    /// The statements of the table.
    pub(crate) fn ready(&mut self) -> Result<&mut Ready, Failure> {
        let ready = match self.ready.take() {
            Some(ready) => ready,
            None => {
                let layout = self.layout()?;
                if let Some(side) = &layout.side {
                    let info = inspect::table(&self.reader, side, "lease_table")?
                        .ok_or_else(|| inspect::missing(&self.reader, side, "lease_table", true))?;
                    schema::check_leases(side, &info)?;
                }
                if let Role::Events { emissions, .. } = &layout.role {
                    layout.check_tenant()?;
                    inspect::table(&self.reader, emissions, "fan_out")?
                        .ok_or_else(|| inspect::missing(&self.reader, emissions, "fan_out", true))?;
                }
                if layout.config.columns.is_some() {
                    self.check_states(&layout)?;
                }
                Ready::new(layout)
            }
        };
        Ok(self.ready.insert(ready))
    }

    /// Refuses states that the column's type does not have.
    fn check_states(&self, layout: &Layout) -> Result<(), Failure> {
        let states = &layout.config.states;
        let mut values: Vec<(&str, &StateValue)> = states.pending.iter().map(|state| ("states.pending", state)).collect();
        values.extend(states.leased.iter().map(|state| ("states.leased", state)));
        values.push(("states.dead", &states.dead));
        if !layout.deletes() {
            values.push(("states.delivered", &states.delivered));
        }
        for (key, value) in values {
            let sql = format!("SELECT CAST({} IS NOT NULL AS integer)", layout.state(value));
            match self.reader.execute(vec![statement(sql, Vec::new(), vec![ColumnType::Integer])]) {
                Ok(_) => {}
                Err(error) if passes(error.code) => return Err(failure::of_sql(&error, "reading the schema")),
                Err(error) => {
                    let (column, type_name) = (&layout.columns.state, layout.type_of(&layout.columns.state));
                    return Err(Failure::invalid_configuration(format!(
                        "`{key}`: the column {column} is of the type {type_name}, which has no value `{}`: {}",
                        state_text(value),
                        error.detail
                    )));
                }
            }
        }
        Ok(())
    }

    /// The table is no longer what it was: nothing that is known of it holds.
    fn look_afresh(&mut self) {
        self.ready = None;
        self.looking = Looking::default();
        self.fan_out = None;
    }

    /// The failure for a database error. Looks at the table afresh if it is no longer what it was, and says what is wrong with it now.
    pub(crate) fn failed(&mut self, error: &SqlError, doing: &str) -> Failure {
        self.looking.progress.forget();
        match error.code {
            SqlErrorCode::Other => self.look_afresh(),
            SqlErrorCode::Missing | SqlErrorCode::Syntax | SqlErrorCode::TypeMismatch => {
                self.look_afresh();
                return match (self.ready(), error.code) {
                    (Err(failure), _) => failure,
                    // It can be worked off as it is now: the next call does.
                    (Ok(_), SqlErrorCode::Missing) => {
                        Failure::of(FailureCode::Unavailable, format!("{doing}: the table has changed meanwhile: {}", error.detail))
                    }
                    (Ok(_), _) => failure::of_sql(error, doing),
                };
            }
            SqlErrorCode::Constraint => {
                if let Some(ready) = self.ready.as_mut().filter(|ready| ready.layout.config.columns.is_some()) {
                    ready.states_tried = false;
                }
                if let Err(failure) = self.try_states()
                    && failure.code == FailureCode::InvalidConfiguration
                {
                    return failure;
                }
            }
            _ => {}
        }
        failure::of_sql(error, doing)
    }

    /// Writes every configured state into a row, once, and takes it back: a state that a constraint of the table refuses is found here, and
    /// not when a verdict is to be written.
    ///
    /// # Errors
    /// `invalid-configuration`, naming the key and the constraint; else those of the database.
    pub(crate) fn try_states(&mut self) -> Result<(), Failure> {
        let Some(ready) = self.ready.as_mut().filter(|ready| !ready.states_tried) else { return Ok(()) };
        let fill = |slot| match slot {
            Slot::Millis => Value::Integer(0),
            Slot::Worker | Slot::Text => Value::Text(String::new()),
            _ => Value::Null,
        };
        for (key, template) in &ready.try_states {
            // Dropping the transaction rolls it back.
            if let Err(error) = self.writer.begin(vec![template.fill(fill)]) {
                let failure = failure::of_sql(&error, &format!("trying `{key}`"));
                return Err(match error.code {
                    SqlErrorCode::Constraint => Failure::invalid_configuration(format!(
                        "`{key}`: a constraint of the table {} refuses this state, or what is written with it: {}",
                        ready.layout.table(),
                        error.detail
                    )),
                    _ => failure,
                });
            }
        }
        ready.states_tried = true;
        Ok(())
    }

    /// Counts.
    ///
    /// # Errors
    /// Those of the database.
    pub fn stats(&mut self) -> Result<Counts, Failure> {
        let statements = self.ready()?.stats.each_ref().map(|template| template.fill(|_| Value::Null)).to_vec();
        let rows = self.reader.execute(statements).map_err(|error| self.failed(&error, "counting"))?;
        let counts = page::counts(&mut Results::new(rows))?;
        if counts.pending > 0 {
            // A database that cannot be written to now can still be counted.
            self.try_states().or_else(|failure| match failure.code {
                FailureCode::InvalidConfiguration => Err(failure),
                _ => Ok(()),
            })?;
        }
        Ok(counts)
    }

    /// The DDL that the configuration needs.
    ///
    /// # Errors
    /// Those of the database.
    pub fn schema(&mut self) -> Result<String, Failure> {
        let ddl = self.ddl()?;
        Ok(schema::text(&self.config, &ddl))
    }

    /// Runs that DDL; running it again changes nothing.
    ///
    /// # Errors
    /// Those of the database, and those of [`Outbox::open`] once everything is there.
    pub fn create_schema(&mut self) -> Result<(), Failure> {
        let statements: Vec<Statement> = self.ddl()?.into_iter().map(|(_, sql)| statement(sql, Vec::new(), Vec::new())).collect();
        if !statements.is_empty() {
            self.writer.execute(statements).map_err(|error| match error.code {
                SqlErrorCode::Denied => Failure::invalid_configuration(format!(
                    "creating the schema: {}; the role must own what is there already, and have CREATE on the schema. Or let the owner run \
                     what `outhaul schema` prints, and grant the role SELECT, INSERT, UPDATE and DELETE on the table, and USAGE on its schema",
                    error.detail
                )),
                _ => self.failed(&error, "creating the schema"),
            })?;
        }
        self.look_afresh();
        if self.config.fan_out.is_some() {
            self.fan_out()?;
        }
        self.ready().map(|_| ())
    }

    fn ddl(&self) -> Result<schema::Ddl, Failure> {
        let mut ddl = match &self.config.columns {
            None => schema::own(&self.config.table, self.channel()?.as_deref())?,
            Some(_) => schema::beside(&self.layout()?),
        };
        if self.config.fan_out.is_some() {
            let events = match &self.config.columns {
                None => self.own_name()?,
                Some(_) => {
                    let layout = self.layout()?;
                    layout.check_tenant()?;
                    layout.info.name
                }
            };
            if let (None, Some(tenant)) = (&self.config.columns, self.config.tenant()) {
                ddl.extend(fan_out::schema::tenants(&events, &tenant).map_err(fan_out::invalid)?);
            }
            let tables = fan_out::schema::tables(&events).map_err(fan_out::invalid)?;
            ddl.extend(fan_out::schema::beside(&tables).map_err(fan_out::invalid)?);
        }
        Ok(ddl)
    }

    /// The name of outhaul's own table, with its schema: where it is, or else where it would be created.
    fn own_name(&self) -> Result<TableName, Failure> {
        if let Some(info) = inspect::table(&self.reader, &self.config.table, "table")? {
            return Ok(info.name);
        }
        let mut name = self.config.table.clone();
        if name.schema.is_none() {
            name.schema = Ident::new(inspect::current_schema(&self.reader)?).ok();
        }
        Ok(name)
    }
}

/// Whether an error passes by itself, or is about access: it says nothing of the statement.
fn passes(code: SqlErrorCode) -> bool {
    matches!(code, SqlErrorCode::Unavailable | SqlErrorCode::Busy | SqlErrorCode::ReadOnly | SqlErrorCode::Timeout | SqlErrorCode::Denied)
}

/// Refuses names that Postgres would cut.
fn check_names(config: &Config) -> Result<(), Failure> {
    let refuse = |key: &str, name: &str| {
        Err(Failure::invalid_configuration(format!("`{key}`: PostgreSQL keeps {} bytes of a name; `{name}` is longer", names::MAX_BYTES)))
    };
    if let Some(name) = names::too_long(&config.table) {
        return refuse("table", name);
    }
    match &config.notify_channel {
        Some(channel) if channel.len() > names::MAX_BYTES => refuse("notify_channel", channel),
        Some(channel) if channel.is_empty() || channel.contains(['\0', '\'', '\\']) => Err(Failure::invalid_configuration(
            "`notify_channel`: the name of a channel must not be empty, nor hold a quote, a backslash or a NUL",
        )),
        _ => Ok(()),
    }
}

/// A statement built for one call.
pub(crate) fn statement(sql: String, parameters: Vec<Value>, columns: Vec<ColumnType>) -> Statement {
    Statement { sql, parameters, columns, must_change: None }
}
