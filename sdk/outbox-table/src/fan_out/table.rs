//! The tables of fan-out beside a table of events, and the deliveries' table described as an outbox, so that it is claimed, settled and
//! decoded by the same code.

use crate::config::{Columns, Config, OnDelivered, PayloadEncoding, StateValue, States};
use crate::ident::{Ident, NameFault, TableName};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a routing column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text,
    /// A text, or NULL.
    OptionalText,
    /// A number, which travels as decimal text.
    Number,
}

/// A routing column: what the host has sealed a delivery with, as it is in the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routing {
    /// The name of the column, and of the header.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
}

const fn column(name: &'static str, kind: Kind) -> Routing {
    Routing { name, kind }
}

/// Every routing column. The one list of their names.
pub const ROUTING: [Routing; 20] = [
    column("account_id", Kind::Text),
    column("delivery_id", Kind::Text),
    column("subscriber_id", Kind::Text),
    column("principal_id", Kind::Text),
    column("notification_id", Kind::Text),
    column("notification_type", Kind::Text),
    column("emission_generation", Kind::Number),
    column("idempotency_key", Kind::Text),
    column("destination_sha256", Kind::Text),
    column("subscription_fingerprint", Kind::Text),
    column("signing_scope_id", Kind::OptionalText),
    column("cause_kind", Kind::Text),
    column("cause_id", Kind::Text),
    column("cause_generation", Kind::Number),
    column("consumer_namespace", Kind::Text),
    column("auth_mode", Kind::Text),
    column("body_sha256", Kind::Text),
    column("envelope_version", Kind::Number),
    column("key_version", Kind::Text),
    column("order_key", Kind::OptionalText),
];

/// The tables of fan-out, in the schema of the events' table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    /// A row a delivery.
    pub deliveries: TableName,
    /// A row for each emission of an event that was expanded, quarantined or asked for again.
    pub emissions: TableName,
    /// The log of what changed.
    pub status: TableName,
    /// The last position of each tenant's log.
    pub heads: TableName,
    /// How far each reader of the log is.
    pub readers: TableName,
}

impl Tables {
    /// Beside a table of events.
    ///
    /// # Errors
    /// If a name gets too long.
    pub fn of(events: &TableName) -> Result<Self, NameFault> {
        let beside = |suffix: &str| Ident::new(format!("{}_{suffix}", events.table.name())).map(|name| events.sibling(name));
        Ok(Self {
            deliveries: beside("deliveries")?,
            emissions: beside("emissions")?,
            status: beside("status")?,
            heads: beside("status_heads")?,
            readers: beside("readers")?,
        })
    }

    /// Each of them.
    #[must_use]
    pub fn all(&self) -> [&TableName; 5] {
        [&self.deliveries, &self.emissions, &self.status, &self.heads, &self.readers]
    }
}

/// The deliveries' table as the configuration of an outbox. The events' table decides about the order.
#[must_use]
pub fn deliveries(events: &Config, tables: &Tables) -> Config {
    let some = |name: &'static str| Some(Ident::of(name));
    let state = |text: &str| StateValue::Text(text.to_owned());
    Config {
        database: events.database.clone(),
        table: tables.deliveries.clone(),
        strict_order: events.strict_order,
        on_delivered: OnDelivered::Mark,
        visibility_delay: Duration::ZERO,
        columns: Some(Columns {
            id: Ident::of("delivery_id"),
            order: some("seq"),
            topic: some("notification_type"),
            key: some("order_key"),
            payload: Ident::of("envelope"),
            headers: None,
            state: Ident::of("state"),
            attempts: some("attempts"),
            available_at: some("available_at"),
            lease_until: None,
            leased_by: some("leased_by"),
            last_error: some("last_error"),
            created_at: some("created_at"),
            done_at: some("done_at"),
            code: some("error_code"),
        }),
        states: States { pending: vec![state("pending")], leased: None, delivered: state("complete"), dead: state("quarantined") },
        time_unit: None,
        created_at_unit: None,
        payload_encoding: PayloadEncoding::Bytes,
        extra_headers: headers(),
        topic: None,
        lease_table: None,
        notify_channel: None,
        notify: true,
        fan_out: None,
    }
}

/// The routing columns as headers of the same names.
#[must_use]
pub fn headers() -> BTreeMap<String, String> {
    ROUTING.iter().map(|column| (column.name.to_owned(), column.name.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_named_after_the_events_and_stay_in_their_schema() {
        let tables = Tables::of(&TableName::parse("app.\"my.events\"").unwrap()).unwrap();
        let shown = tables.all().map(ToString::to_string);
        assert_eq!(
            shown,
            [
                r#""app"."my.events_deliveries""#,
                r#""app"."my.events_emissions""#,
                r#""app"."my.events_status""#,
                r#""app"."my.events_status_heads""#,
                r#""app"."my.events_readers""#
            ]
        );
    }

    #[test]
    fn the_names_of_the_contract_are_all_there() {
        let wit = include_str!("../../../../wit/fan-out.wit");
        let listed = wit.split("by these names").nth(1).and_then(|text| text.split("interface storage-fan-out").next()).unwrap();
        for column in ROUTING {
            assert!(listed.contains(&format!("`{}`", column.name)), "{}", column.name);
        }
        assert_eq!(headers().len(), ROUTING.len());
    }
}
