//! Rows of a table of subscriptions, as they were read.

use super::event_types::{Compiled, Wanted};
use super::statement::COLUMNS;
use crate::domain::Column;
use crate::ports::fan_out::Subscription;
use crate::sql::{Rows, Values};
use std::collections::HashMap;

/// An active subscription. Where a column is NULL that has to have something, it is empty here, and whoever checks the answer will say.
pub(super) struct Row {
    pub(super) subscription: Subscription,
    wanted: Wanted,
}

impl Row {
    /// Whether a topic is wanted.
    ///
    /// # Errors
    /// Its event types make no sense: what is wrong with them.
    pub(super) fn wants(&self, topic: &str) -> Result<bool, &str> {
        match &self.wanted {
            Ok(patterns) => Ok(patterns.iter().any(|pattern| pattern.is_match(topic))),
            Err(fault) => Err(fault),
        }
    }
}

/// Rows by tenant, those of a tenant in the order of the bytes of their names.
#[derive(Default)]
pub(super) struct Snapshot {
    tenants: HashMap<String, Vec<Row>>,
}

impl Snapshot {
    /// Takes the result of the one statement apart. `json`: its event types are JSON.
    pub(super) fn of(rows: &Rows, compiled: &Compiled, json: bool) -> Self {
        let texts = |index: usize| match rows.columns.get(index) {
            Some(Values::Texts(column)) => Some(column),
            _ => None,
        };
        let mut snapshot = Self::default();
        let columns: [Option<&Column>; COLUMNS] = std::array::from_fn(texts);
        let count = columns.iter().flatten().map(|column| column.len()).max().unwrap_or(0);
        for row in 0..count {
            let [tenant, subscriber, url, event_types, signing_scope, authentication, principal, revision] =
                columns.map(|column| column.and_then(|column| column.text(row)));
            let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
            // Empty is as good as NULL where there may be none.
            let maybe = |value: Option<&str>| value.filter(|value| !value.is_empty()).map(ToOwned::to_owned);
            let subscription = Subscription {
                tenant: text(tenant),
                subscriber: text(subscriber),
                principal: text(principal),
                url: text(url),
                signing_scope: maybe(signing_scope),
                authentication: maybe(authentication),
                revision: text(revision),
            };
            let wanted = compiled.wanted(event_types, json);
            snapshot.tenants.entry(subscription.tenant.clone()).or_default().push(Row { subscription, wanted });
        }
        // Databases sort by rules of their own.
        for rows in snapshot.tenants.values_mut() {
            rows.sort_by(|one, other| one.subscription.subscriber.cmp(&other.subscription.subscriber));
        }
        snapshot
    }

    /// The rows of a tenant.
    pub(super) fn of_tenant(&self, tenant: &str) -> &[Row] {
        self.tenants.get(tenant).map_or(&[], Vec::as_slice)
    }

    /// The rows of a tenant that have a name: one, unless the table allows more.
    pub(super) fn named(&self, tenant: &str, subscriber: &str) -> &[Row] {
        let rows = self.of_tenant(tenant);
        let from = rows.partition_point(|row| row.subscription.subscriber.as_str() < subscriber);
        let to = rows.partition_point(|row| row.subscription.subscriber.as_str() <= subscriber);
        rows.get(from..to).unwrap_or_default()
    }
}
