//! The storage: a configuration, two connections, and, once the table is there, its statements.

use crate::fan_out::{self, FanOut};
use crate::layout::Layout;
use crate::plan::{self, Scan};
use crate::search::Looking;
use crate::statements::Sql;
use crate::walk::Walk;
use crate::{inspect, schema};
use outbox_table::config::{Config, PayloadEncoding};
use outbox_table::database::{Access, ColumnType, Database, Results, SqlError, SqlErrorCode, Statement, Value};
use outbox_table::decode::Decoding;
use outbox_table::failure;
use outbox_table::fan_out::Turns;
use outbox_table::ids::IdKind;
use outbox_table::page;
use outbox_table::random::Random;
use outbox_table::settle::{Change, Verdicts};
use outbox_table::template::{Slot, Template};
use outhaul_sdk::{Counts, Description, Failure, FailureCode, WakeSource};

/// An outbox in SQLite. The calls are described in `wit/outbox.wit`.
#[derive(Debug)]
pub struct Outbox<D> {
    pub(crate) config: Config,
    /// Claims, settles and administration.
    pub(crate) writer: D,
    /// Counts and pages: never wait for a writer.
    pub(crate) reader: D,
    pub(crate) random: Random,
    /// What somebody should be told who runs the storage, and was not yet.
    pub(crate) notice: Option<String>,
    /// None: the table is not there yet.
    pub(crate) ready: Option<Ready>,
    pub(crate) looking: Looking,
    /// None: it is not configured, or was not asked for yet.
    pub(crate) fan_out: Option<FanOut>,
    /// Whose turn it is to have events expanded.
    pub(crate) event_turns: Turns<Looking>,
    /// Whose turn it is to have deliveries claimed.
    pub(crate) delivery_turns: Turns<Looking>,
}

/// A table that is there: its layout and statements.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) layout: Layout,
    pub(crate) decoding: Decoding,
    pub(crate) scan: Scan,
    pub(crate) walk: Option<Walk>,
    pub(crate) claim: Vec<Template>,
    pub(crate) refuse: Vec<Template>,
    /// Of deliveries: ends them for their age.
    pub(crate) refuse_old: Option<Template>,
    pub(crate) verdicts: Verdicts,
    pub(crate) stats: [Template; 2],
    try_states: Vec<(&'static str, Template)>,
    /// The table takes every configured state, or is outhaul's own.
    pub(crate) states_tried: bool,
}

impl Ready {
    pub(crate) fn new<D: Database>(database: &D, layout: Layout) -> Result<Self, Failure> {
        let config = &layout.config;
        let decoding = Decoding {
            ids: if layout.integer_ids { IdKind::Integer } else { IdKind::Text },
            place_texts: 0,
            id_is_order: layout.id_is_order,
            topic: if layout.columns.topic.is_some() { None } else { Some(config.topic.clone().unwrap_or_default()) },
            keys: layout.columns.key.is_some(),
            headers: layout.columns.headers.is_some(),
            encoding: config.payload_encoding,
            extra_headers: config.extra_headers.values().cloned().collect(),
        };
        let sql = Sql(&layout);
        let walk = plan::walk(database, &layout, &decoding)?;
        let mut verdicts = Verdicts::new(decoding.ids, |change| sql.fenced(change, &decoding));
        let mut refuse = sql.refuse();
        if layout.is_deliveries() {
            verdicts = verdicts.with_suppressed(sql.fenced(Change::Suppressed, &decoding));
        } else if let Some(note) = fan_out::note_dead(&layout)? {
            refuse.push(note.clone());
            verdicts = verdicts.with_after_dead(note);
        }
        Ok(Self {
            scan: plan::scan(database, &layout, &decoding)?,
            claim: sql.claim(&decoding),
            refuse,
            refuse_old: sql.refuse_old(&decoding),
            verdicts,
            stats: sql.stats(),
            try_states: sql.try_states(),
            states_tried: config.columns.is_none() || layout.is_deliveries(),
            walk,
            decoding,
            layout,
        })
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
        if config.notify_channel.is_some() {
            return Err(Failure::invalid_configuration("`notify_channel`: SQLite has no channels; commits are noticed without one"));
        }
        if !config.notify {
            return Err(Failure::invalid_configuration("`notify`: SQLite has no triggers that notify; commits are noticed without one"));
        }
        let connect = |access| {
            connect(&config.database, access)
                .map_err(|error| failure::of_sql(&error, &format!("opening the database `{}`", config.database)))
        };
        let (writer, reader) = (connect(Access::ReadWrite)?, connect(Access::ReadOnly)?);
        let description =
            Description { strict_order: config.strict_order, prefers_fused: true, wake: WakeSource::DataVersion(config.database.clone()) };
        let mut outbox = Self {
            config,
            writer,
            reader,
            random: Random::from_system(),
            notice: None,
            ready: None,
            looking: Looking::default(),
            fan_out: None,
            event_turns: Turns::default(),
            delivery_turns: Turns::default(),
        };
        if let Some(info) = inspect::table(&outbox.reader, &outbox.config.table)?
            && outbox.has_leases()?
            && fan_out::is_there(&outbox.reader, &outbox.config, &info)?
        {
            outbox.ready()?;
        }
        Ok((outbox, description))
    }

    /// What is to be told to whoever runs the storage; each thing once.
    pub fn notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    /// Whether the table of leases is there, or none is needed.
    fn has_leases(&self) -> Result<bool, Failure> {
        match schema::lease_table(&self.config)? {
            Some(side) => Ok(inspect::table(&self.reader, &side)?.is_some()),
            None => Ok(true),
        }
    }

    /// The statements of the table.
    pub(crate) fn ready(&mut self) -> Result<&mut Ready, Failure> {
        let ready = match self.ready.take() {
            Some(ready) => ready,
            None => {
                let table = &self.config.table;
                let info = inspect::table(&self.reader, table)?
                    .ok_or_else(|| inspect::missing(&self.reader, table, "table", self.config.columns.is_none()))?;
                let layout = Layout::new(self.config.clone(), info)?;
                if let Some(side) = &layout.side {
                    let info =
                        inspect::table(&self.reader, side)?.ok_or_else(|| inspect::missing(&self.reader, side, "lease_table", true))?;
                    schema::check_leases(side, &info)?;
                }
                fan_out::check(&self.reader, &self.config)?;
                Ready::new(&self.reader, layout)?
            }
        };
        Ok(self.ready.insert(ready))
    }

    /// The table is no longer what it was: nothing that is known of it holds.
    fn look_afresh(&mut self) {
        self.ready = None;
        self.looking = Looking::default();
        self.fan_out = None;
        self.event_turns = Turns::default();
        self.delivery_turns = Turns::default();
    }

    /// The failure for a database error. Looks at the table afresh if it is no longer what it was, and says what is wrong with it now.
    pub(crate) fn failed(&mut self, error: &SqlError, doing: &str) -> Failure {
        self.looking.forget();
        self.event_turns.forget();
        self.delivery_turns.forget();
        match error.code {
            SqlErrorCode::Other => self.look_afresh(),
            SqlErrorCode::Missing => {
                self.look_afresh();
                return match self.ready() {
                    Err(failure) => failure,
                    // It can be worked off as it is now: the next call does.
                    Ok(_) => Failure::of(FailureCode::Unavailable, format!("{doing}: the table has changed meanwhile: {}", error.detail)),
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
        let statements: Vec<Statement> = self
            .ddl()?
            .into_iter()
            .map(|(_, sql)| Statement { sql, parameters: Vec::new(), columns: Vec::new(), must_change: None })
            .collect();
        if !statements.is_empty() {
            self.writer.execute(statements).map_err(|error| self.failed(&error, "creating the schema"))?;
        }
        self.look_afresh();
        self.ready().map(|_| ())
    }

    fn ddl(&mut self) -> Result<schema::Ddl, Failure> {
        let table = &self.config.table;
        let info = inspect::table(&self.reader, table)?;
        let integer_ids = match &self.config.columns {
            None => true,
            Some(_) => {
                let info = info.clone().ok_or_else(|| inspect::missing(&self.reader, table, "table", self.config.columns.is_none()))?;
                Layout::new(self.config.clone(), info)?.integer_ids
            }
        };
        let mut ddl = schema::ddl(&self.config, integer_ids)?;
        ddl.extend(fan_out::schema::ddl(&self.config, info.as_ref())?);
        Ok(ddl)
    }

    /// Whether payloads are written as text.
    pub(crate) fn text_payloads(&self) -> bool {
        self.config.payload_encoding != PayloadEncoding::Bytes
    }
}

/// A statement built for one call.
pub(crate) fn statement(sql: String, parameters: Vec<Value>, columns: Vec<ColumnType>) -> Statement {
    Statement { sql, parameters, columns, must_change: None }
}
