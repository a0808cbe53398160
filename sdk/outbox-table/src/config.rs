//! How a table is laid out, as the operator says it: read from the adapter's configuration and checked as far as that is possible
//! without looking into the database.

use crate::ident::{Ident, NameFault, TableName};
use outhaul_sdk::Failure;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest visibility delay: a longer one is a mistake in the unit.
const MAX_VISIBILITY_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The adapter's configuration. Every key is described in the README of the storage.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The database, by its name in the host's configuration.
    pub database: String,
    /// The table: `table` or `schema.table`.
    #[serde(default = "outbox", deserialize_with = "table_name")]
    pub table: TableName,
    /// Rows of a key are claimed only behind all earlier ones.
    #[serde(default = "yes")]
    pub strict_order: bool,
    /// What becomes of delivered rows.
    #[serde(default)]
    pub on_delivered: OnDelivered,
    /// Rows can be claimed only so long after they were created.
    #[serde(default, deserialize_with = "duration")]
    pub visibility_delay: Duration,
    /// Columns of an existing table; left out: outhaul's own table.
    #[serde(default)]
    pub columns: Option<Columns>,
    /// Values of the state column.
    #[serde(default)]
    pub states: States,
    /// Unit of the columns that hold times, where their types do not say it; left out: milliseconds, or what the types suggest.
    #[serde(default)]
    pub time_unit: Option<TimeUnit>,
    /// Unit of `created_at` and `done_at`, where it is another one.
    #[serde(default)]
    pub created_at_unit: Option<TimeUnit>,
    /// How payloads are stored.
    #[serde(default)]
    pub payload_encoding: PayloadEncoding,
    /// Further columns that become headers: column to header name.
    #[serde(default)]
    pub extra_headers: BTreeMap<String, String>,
    /// The topic of every row, where there is no column for it.
    #[serde(default)]
    pub topic: Option<String>,
    /// A table of leases beside a table that has no columns for them; in the same schema.
    #[serde(default)]
    pub lease_table: Option<String>,
    /// The channel that a trigger of the table notifies of new rows. For databases that have channels.
    #[serde(default)]
    pub notify_channel: Option<String>,
    /// Outhaul's own table has a trigger that notifies of new rows. For databases that have channels.
    #[serde(default = "yes")]
    pub notify: bool,
    /// Deliveries are kept beside the table; left out: no fan-out.
    #[serde(default)]
    pub fan_out: Option<FanOut>,
}

/// What fan-out needs to know of the table of events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FanOut {
    /// The column of tenants of an existing table; left out: there are no tenants. Outhaul's own table has one, `tenant`.
    #[serde(default, deserialize_with = "some_ident")]
    pub tenant: Option<Ident>,
}

/// The column of tenants of outhaul's own table.
pub const OWN_TENANT: &str = "tenant";

/// Column names. What is left out does not exist in the table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Columns {
    /// Identifies a row to the outside; unique.
    #[serde(deserialize_with = "ident")]
    pub id: Ident,
    /// The order of insertion; left out: the id if it is a number, else the row number.
    #[serde(default, deserialize_with = "some_ident")]
    pub order: Option<Ident>,
    /// Topic.
    #[serde(default, deserialize_with = "some_ident")]
    pub topic: Option<Ident>,
    /// Key: rows with the same one are kept in order.
    #[serde(default, deserialize_with = "some_ident")]
    pub key: Option<Ident>,
    /// Payload.
    #[serde(deserialize_with = "ident")]
    pub payload: Ident,
    /// Headers, as JSON.
    #[serde(default, deserialize_with = "some_ident")]
    pub headers: Option<Ident>,
    /// State.
    #[serde(deserialize_with = "ident")]
    pub state: Ident,
    /// Claims so far.
    #[serde(default, deserialize_with = "some_ident")]
    pub attempts: Option<Ident>,
    /// Due from this time on.
    #[serde(default, deserialize_with = "some_ident")]
    pub available_at: Option<Ident>,
    /// Leased up to this time.
    #[serde(default, deserialize_with = "some_ident")]
    pub lease_until: Option<Ident>,
    /// The worker that holds the row.
    #[serde(default, deserialize_with = "some_ident")]
    pub leased_by: Option<Ident>,
    /// Last recorded failure.
    #[serde(default, deserialize_with = "some_ident")]
    pub last_error: Option<Ident>,
    /// When the row was created.
    #[serde(default, deserialize_with = "some_ident")]
    pub created_at: Option<Ident>,
    /// When it was delivered or ended dead.
    #[serde(default, deserialize_with = "some_ident")]
    pub done_at: Option<Ident>,
    /// The code of the last failure. Only deliveries have one: their payload is erased once nothing is to be sent any more.
    #[serde(skip)]
    pub code: Option<Ident>,
}

/// A value of the state column.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum StateValue {
    /// A number.
    Integer(i64),
    /// A text.
    Text(String),
}

/// One value, or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(StateValue),
    More(Vec<StateValue>),
}

/// Values of the state column.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct States {
    /// Waiting to be claimed. Rows that wait for a retry get the first one.
    #[serde(deserialize_with = "one_or_more")]
    pub pending: Vec<StateValue>,
    /// Set while a row is leased; none: leases do not show in the state.
    pub leased: Option<StateValue>,
    /// Delivered.
    pub delivered: StateValue,
    /// Dead.
    pub dead: StateValue,
}

impl Default for States {
    fn default() -> Self {
        let text = |text: &str| StateValue::Text(text.to_owned());
        Self { pending: vec![text("pending")], leased: None, delivered: text("done"), dead: text("dead") }
    }
}

impl States {
    /// Every value of a row that is neither delivered nor dead.
    #[must_use]
    pub fn unsettled(&self) -> Vec<&StateValue> {
        let mut all: Vec<&StateValue> = self.pending.iter().collect();
        all.extend(self.leased.iter().filter(|leased| !self.pending.contains(leased)));
        all
    }
}

/// What becomes of delivered rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnDelivered {
    /// They get the state `states.delivered`.
    #[default]
    Mark,
    /// They are deleted.
    Delete,
}

/// What a column of times holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimeUnit {
    /// Integers: milliseconds since the Unix epoch.
    #[default]
    Ms,
    /// Numbers: seconds since the Unix epoch, with fractions.
    Seconds,
    /// Text: ISO 8601 in UTC, or with an offset.
    Text,
}

/// What a column of payloads holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PayloadEncoding {
    /// Bytes, or text that is taken as its UTF-8 bytes.
    #[default]
    Bytes,
    /// Text: a row whose payload is not UTF-8 ends dead.
    Text,
    /// JSON text, sent exactly as it is stored: a row whose payload is not JSON ends dead.
    Json,
}

impl Config {
    /// Reads and checks the configuration.
    ///
    /// # Errors
    /// `invalid-configuration`, naming the key.
    pub fn parse(json: &str) -> Result<Self, Failure> {
        let config: Self = outhaul_sdk::parse_config(json)?;
        config.check().map_err(Failure::invalid_configuration)?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        self.check_states()?;
        if self.visibility_delay > MAX_VISIBILITY_DELAY {
            return Err("`visibility_delay` must not be over 24h".to_owned());
        }
        if let Some(name) = &self.lease_table {
            let name = Ident::new(name.as_str()).map_err(|fault| format!("`lease_table`: {fault}"))?;
            if name == self.table.table {
                return Err("`lease_table` must be another table than `table`".to_owned());
            }
        }
        let mut names: Vec<String> = Vec::new();
        for (column, header) in &self.extra_headers {
            Ident::new(column.as_str()).map_err(|fault| format!("`extra_headers`: {fault}"))?;
            if header.is_empty() || names.contains(&header.to_ascii_lowercase()) {
                return Err(format!("`extra_headers.{column}`: the header name `{header}` is empty or used twice"));
            }
            names.push(header.to_ascii_lowercase());
        }
        if !self.notify && self.notify_channel.is_some() {
            return Err("`notify = false` and `notify_channel` cannot both be set: either a channel is listened to, or none".to_owned());
        }
        if self.fan_out.is_some() && self.on_delivered == OnDelivered::Delete {
            return Err(
                "`fan_out` and `on_delivered = \"delete\"` cannot both be set: to be emitted again, an event must still be there; \
                        remove old ones with `outhaul purge`"
                    .to_owned(),
            );
        }
        let Some(columns) = &self.columns else {
            return self.check_own();
        };
        if !self.notify {
            return Err("`notify` is for outhaul's own table: an existing one is polled unless `notify_channel` is set".to_owned());
        }
        match (&columns.topic, &self.topic) {
            (Some(_), Some(_)) => Err("`topic` and `columns.topic` cannot both be set: one constant topic, or a column".to_owned()),
            (None, None) => Err("`columns.topic` is missing: name the column, or set `topic` to one topic for all rows".to_owned()),
            (None, Some(topic)) if topic.is_empty() => Err("`topic` must not be empty".to_owned()),
            _ => Ok(()),
        }?;
        if self.visibility_delay > Duration::ZERO && columns.created_at.is_none() {
            return Err("`visibility_delay` needs `columns.created_at`".to_owned());
        }
        if self.lease_table.is_some() {
            return match columns.leased_by {
                Some(_) => {
                    Err("`lease_table` and `columns.leased_by` cannot both be set: leases are either in the table or beside it".to_owned())
                }
                None => Ok(()),
            };
        }
        let remedy =
            "or set `lease_table` to the name of a table of leases, which `outhaul schema` prints and `outhaul schema --apply` creates";
        if columns.leased_by.is_none() {
            return Err(format!("`columns.leased_by` is missing: name the column that holds the worker, {remedy}"));
        }
        if columns.available_at.is_none() && columns.lease_until.is_none() {
            return Err(format!("`columns.available_at` and `columns.lease_until` are both missing: name at least one, {remedy}"));
        }
        if columns.attempts.is_none() {
            return Err(format!("`columns.attempts` is missing: name the column that counts attempts, {remedy}"));
        }
        Ok(())
    }

    /// What makes no sense for outhaul's own table.
    fn check_own(&self) -> Result<(), String> {
        let only = [
            ("topic", self.topic.is_some()),
            ("lease_table", self.lease_table.is_some()),
            ("extra_headers", !self.extra_headers.is_empty()),
            ("time_unit", self.time_unit.is_some()),
            ("created_at_unit", self.created_at_unit.is_some()),
            ("states", self.states != States::default()),
        ];
        if let Some((key, _)) = only.into_iter().find(|(_, set)| *set) {
            return Err(format!("`{key}` is for existing tables: it needs `columns`"));
        }
        match self.fan_out.as_ref().and_then(|fan_out| fan_out.tenant.as_ref()) {
            Some(name) if name.name() != OWN_TENANT => Err(format!(
                "`fan_out.tenant`: outhaul's own table has the column `{OWN_TENANT}`, not {name}; leave the key out, or describe the table \
                 with `columns`"
            )),
            _ => Ok(()),
        }
    }

    /// The column of tenants; none: there are no tenants.
    #[must_use]
    pub fn tenant(&self) -> Option<Ident> {
        let fan_out = self.fan_out.as_ref()?;
        if self.columns.is_none() { Some(Ident::of(OWN_TENANT)) } else { fan_out.tenant.clone() }
    }

    fn check_states(&self) -> Result<(), String> {
        let states = &self.states;
        if states.pending.is_empty() {
            return Err("`states.pending` must have at least one value".to_owned());
        }
        let mut ends = vec![("states.dead", &states.dead)];
        if self.on_delivered == OnDelivered::Mark {
            ends.push(("states.delivered", &states.delivered));
            if states.delivered == states.dead {
                return Err("`states.delivered` and `states.dead` must differ".to_owned());
            }
        }
        for (key, end) in ends {
            if states.unsettled().contains(&end) {
                return Err(format!("`{key}` must differ from `states.pending` and `states.leased`"));
            }
        }
        let all = states.unsettled().into_iter().chain([&states.delivered, &states.dead]);
        if all.into_iter().any(|value| matches!(value, StateValue::Text(text) if text.contains('\0'))) {
            return Err("`states`: a value must not hold a NUL character".to_owned());
        }
        Ok(())
    }
}

fn outbox() -> TableName {
    TableName { schema: None, table: Ident::of("outbox") }
}

fn yes() -> bool {
    true
}

impl Columns {
    /// Of outhaul's own table.
    #[must_use]
    pub fn own() -> Self {
        let some = |name: &'static str| Some(Ident::of(name));
        Self {
            id: Ident::of("id"),
            order: None,
            topic: some("topic"),
            key: some("key"),
            payload: Ident::of("payload"),
            headers: some("headers"),
            state: Ident::of("status"),
            attempts: some("attempts"),
            available_at: some("available_at"),
            lease_until: None,
            leased_by: some("leased_by"),
            last_error: some("last_error"),
            created_at: some("created_at"),
            done_at: some("done_at"),
            code: None,
        }
    }

    /// The column that holds how long a row waits for its retry: `available_at`, or else the end of the lease. `beside`: leases are in a
    /// table of their own, and no column has to serve for both.
    #[must_use]
    pub fn due(&self, beside: bool) -> Option<&Ident> {
        self.available_at.as_ref().or(if beside { None } else { self.lease_until.as_ref() })
    }

    /// The column that holds the end of the lease: `lease_until`, or else `available_at`.
    #[must_use]
    pub fn lease(&self, beside: bool) -> Option<&Ident> {
        self.lease_until.as_ref().or(if beside { None } else { self.available_at.as_ref() })
    }

    /// Every column that is named, with its key in the configuration.
    #[must_use]
    pub fn named(&self) -> Vec<(&'static str, &Ident)> {
        [
            ("id", Some(&self.id)),
            ("order", self.order.as_ref()),
            ("topic", self.topic.as_ref()),
            ("key", self.key.as_ref()),
            ("payload", Some(&self.payload)),
            ("headers", self.headers.as_ref()),
            ("state", Some(&self.state)),
            ("attempts", self.attempts.as_ref()),
            ("available_at", self.available_at.as_ref()),
            ("lease_until", self.lease_until.as_ref()),
            ("leased_by", self.leased_by.as_ref()),
            ("last_error", self.last_error.as_ref()),
            ("created_at", self.created_at.as_ref()),
            ("done_at", self.done_at.as_ref()),
        ]
        .into_iter()
        .filter_map(|(key, name)| name.map(|name| (key, name)))
        .collect()
    }
}

fn fault<E: serde::de::Error>(fault: NameFault) -> E {
    E::custom(fault)
}

fn table_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TableName, D::Error> {
    TableName::parse(&String::deserialize(deserializer)?).map_err(fault)
}

fn ident<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Ident, D::Error> {
    Ident::new(String::deserialize(deserializer)?).map_err(fault)
}

fn some_ident<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Ident>, D::Error> {
    ident(deserializer).map(Some)
}

fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<StateValue>, D::Error> {
    Ok(
        match OneOrMore::deserialize(deserializer)
            .map_err(|_| serde::de::Error::custom("expected a text or a number, or a list of them"))?
        {
            OneOrMore::One(value) => vec![value],
            OneOrMore::More(values) => values,
        },
    )
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text).map_err(|error| serde::de::Error::custom(format!("{error}; write a duration such as \"2s\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(json: &str) -> String {
        match Config::parse(json) {
            Err(failure) => {
                assert_eq!(failure.code, outhaul_sdk::FailureCode::InvalidConfiguration);
                failure.detail
            }
            Ok(config) => panic!("accepted: {config:?}"),
        }
    }

    /// A table with everything that is needed, changed by `with`.
    fn mapped(columns: &str, more: &str) -> String {
        format!(r#"{{"database":"d","table":"t","columns":{{"id":"i","payload":"p","state":"s"{columns}}}{more}}}"#)
    }

    #[test]
    fn the_least_is_a_database() {
        let config = Config::parse(r#"{"database":"main"}"#).unwrap();
        assert_eq!((config.table.to_string().as_str(), config.strict_order, config.on_delivered), ("\"outbox\"", true, OnDelivered::Mark));
        assert!(config.columns.is_none());
    }

    #[test]
    fn each_mistake_is_named() {
        let leases = r#","topic":"t","leased_by":"l","attempts":"a","available_at":"v""#;
        for (json, expected) in [
            (r#"{"database":"d","tabel":"x"}"#.to_owned(), "unknown field `tabel`"),
            (r#"{"table":"x"}"#.to_owned(), "missing field `database`"),
            (r#"{"database":"d","table":""}"#.to_owned(), "`table`: a name must not be empty"),
            (r#"{"database":"d","table":"a\u0000"}"#.to_owned(), "`table`: a name must not hold a NUL"),
            (r#"{"database":"d","visibility_delay":"5"}"#.to_owned(), "`visibility_delay`: "),
            (r#"{"database":"d","visibility_delay":"48h"}"#.to_owned(), "`visibility_delay` must not be over 24h"),
            (r#"{"database":"d","on_delivered":"drop"}"#.to_owned(), "`on_delivered`: unknown variant `drop`"),
            (r#"{"database":"d","lease_table":"l"}"#.to_owned(), "`lease_table` is for existing tables"),
            (r#"{"database":"d","notify":false,"notify_channel":"c"}"#.to_owned(), "`notify = false` and `notify_channel` cannot both"),
            (
                mapped(r#","available_at":"a","leased_by":"w","attempts":"n","topic":"c""#, r#","notify":false"#),
                "`notify` is for outhaul's own",
            ),
            (mapped(leases, r#","topic":"x""#), "`topic` and `columns.topic` cannot both be set"),
            (mapped(r#","leased_by":"l","attempts":"a","available_at":"v""#, ""), "`columns.topic` is missing"),
            (mapped(r#","topic":"t""#, ""), "`columns.leased_by` is missing"),
            (mapped(r#","topic":"t","leased_by":"l""#, ""), "`columns.available_at` and `columns.lease_until` are both missing"),
            (mapped(r#","topic":"t","leased_by":"l","lease_until":"u""#, ""), "`columns.attempts` is missing"),
            (mapped(leases, r#","lease_table":"l""#), "`lease_table` and `columns.leased_by`"),
            (mapped(r#","topic":"t""#, r#","lease_table":"t""#), "`lease_table` must be another table"),
            (mapped(leases, r#","visibility_delay":"1s""#), "`visibility_delay` needs `columns.created_at`"),
            (mapped(leases, r#","states":{"pending":[]}"#), "`states.pending` must have at least one value"),
            (mapped(leases, r#","states":{"pending":true}"#), "`states.pending`: expected a text or a number"),
            (mapped(leases, r#","states":{"delivered":"pending"}"#), "`states.delivered` must differ"),
            (mapped(leases, r#","states":{"dead":"done"}"#), "`states.delivered` and `states.dead` must differ"),
            (mapped(leases, r#","states":{"leased":"dead"}"#), "`states.dead` must differ"),
            (mapped(leases, r#","extra_headers":{"a":"x","b":"X"}"#), "`extra_headers.b`"),
            (mapped(r#","topic":"""#, ""), "`columns.topic`: a name must not be empty"),
            (
                r#"{"database":"d","fan_out":{},"on_delivered":"delete"}"#.to_owned(),
                "`fan_out` and `on_delivered = \"delete\"` cannot both",
            ),
            (
                r#"{"database":"d","fan_out":{"tenant":"account"}}"#.to_owned(),
                "`fan_out.tenant`: outhaul's own table has the column `tenant`",
            ),
            (r#"{"database":"d","fan_out":{"tenants":"t"}}"#.to_owned(), "unknown field `tenants`"),
            (r#"{"database":"d","fan_out":{"tenant":""}}"#.to_owned(), "`fan_out.tenant`: a name must not be empty"),
            (mapped(r#","code":"c""#, ""), "unknown field `code`"),
        ] {
            let detail = refused(&json);
            assert!(detail.contains(expected), "{json}\n  says: {detail}\n  not:  {expected}");
        }
    }

    #[test]
    fn tenants_have_a_column_in_the_own_table_and_elsewhere_where_one_is_named() {
        let tenant = |json: &str| Config::parse(json).unwrap().tenant().map(|name| name.name().to_owned());
        assert_eq!(tenant(r#"{"database":"d"}"#), None);
        assert_eq!(tenant(r#"{"database":"d","fan_out":{}}"#).as_deref(), Some("tenant"));
        let leases = r#","topic":"t","leased_by":"l","attempts":"a","available_at":"v""#;
        assert_eq!(tenant(&mapped(leases, r#","fan_out":{}"#)), None);
        assert_eq!(tenant(&mapped(leases, r#","fan_out":{"tenant":"account"}"#)).as_deref(), Some("account"));
    }

    #[test]
    fn a_missing_lease_column_names_the_remedy() {
        assert!(refused(&mapped(r#","topic":"t""#, "")).contains("`lease_table`"));
        assert!(Config::parse(&mapped(r#","topic":"t""#, r#","lease_table":"leases""#)).is_ok());
    }

    #[test]
    fn states_may_be_numbers_and_one_or_more() {
        let config =
            Config::parse(&mapped(r#","topic":"t""#, r#","lease_table":"l","states":{"pending":0,"leased":1,"delivered":2,"dead":3}"#))
                .unwrap();
        assert_eq!(config.states.pending, [StateValue::Integer(0)]);
        assert_eq!(config.states.unsettled(), [&StateValue::Integer(0), &StateValue::Integer(1)]);
    }
}
