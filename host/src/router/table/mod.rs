//! Subscribers that stand in a table of one of the configured databases. The host reads it, with one statement a call, and never writes.

mod event_types;
mod rows;
mod statement;
#[cfg(test)]
mod tests;

use super::resolve::{Readings, invalid};
use crate::config::model::SubscriptionTable;
use crate::domain::{Batch, Failure, FailureCode};
use crate::ports::fan_out::{Inquiry, Router, Subscription};
use crate::secrets::Secrets;
use crate::sql::{Access, Bounds, Databases, Dialect, SqlError, SqlErrorCode, Statement};
use async_trait::async_trait;
use event_types::Compiled;
use rows::{Row, Snapshot};
use statement::{Sql, Which};
use std::collections::BTreeSet;
use std::time::Duration;

/// Most bytes that one look at the table may return: a batch of 500 events, each of another tenant with a thousand subscribers, has less.
const MAX_RESULT_BYTES: usize = 256 << 20;

/// Longest time of what an operator waits for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A router over a table.
pub(crate) struct TableRouter {
    name: String,
    settings: SubscriptionTable,
    databases: Databases,
    secrets: Secrets,
    compiled: Compiled,
}

impl TableRouter {
    /// Opens nothing.
    pub(crate) fn new(name: &str, settings: SubscriptionTable, databases: Databases, secrets: Secrets) -> Self {
        Self { name: name.to_owned(), settings, databases, secrets, compiled: Compiled::default() }
    }

    /// Whether the table is there, with its columns.
    ///
    /// # Errors
    /// What is not as it should be.
    pub(crate) async fn probe(&self) -> Result<(), Failure> {
        self.read(&Which::None, PATIENCE).await.map(|_| ())
    }

    /// The DDL of the table.
    pub(crate) fn schema(&self, dialect: Dialect) -> String {
        Sql(&self.settings).create(dialect)
    }

    /// Creates the table, unless there is one.
    ///
    /// # Errors
    /// The database does not do it.
    pub(crate) async fn create(&self) -> Result<(), Failure> {
        let created = async {
            let connection = self.databases.open(&self.settings.database, Access::ReadWrite).await?;
            let statement = Statement::new(Sql(&self.settings).create(connection.dialect()));
            connection.execute(vec![statement], Bounds::within(PATIENCE, MAX_RESULT_BYTES)).await
        };
        created.await.map(|_| ()).map_err(|error| self.failure(&error))
    }

    async fn read(&self, which: &Which<'_>, deadline: Duration) -> Result<Snapshot, Failure> {
        let read = async {
            let bounds = Bounds::within(deadline, MAX_RESULT_BYTES);
            let connection = self.databases.open(&self.settings.database, Access::ReadOnly).await?;
            let dialect = connection.dialect();
            let mut rows = connection.execute(vec![Sql(&self.settings).select(which, dialect)], bounds).await?;
            Ok(rows.pop().map(|rows| Snapshot::of(&rows, &self.compiled, dialect == Dialect::Postgres)).unwrap_or_default())
        };
        read.await.map_err(|error| self.failure(&error))
    }

    /// A database error as a failure.
    fn failure(&self, error: &SqlError) -> Failure {
        let (name, table) = (&self.name, self.settings.table.as_str());
        let (code, advice) = match error.code {
            SqlErrorCode::Unavailable | SqlErrorCode::ReadOnly => (FailureCode::Unavailable, String::new()),
            SqlErrorCode::Busy | SqlErrorCode::Timeout => (FailureCode::Timeout, String::new()),
            SqlErrorCode::Missing => (
                FailureCode::InvalidConfiguration,
                format!(
                    "; create the table with `outhaul fanout schema {name} --apply`, or write under routers.{name}.columns what its columns \
                     are called, and false for those that it does not have"
                ),
            ),
            SqlErrorCode::Syntax => (
                FailureCode::InvalidConfiguration,
                "; columns for tenant and subscriber must be text: where they are not, name a view that has them so".to_owned(),
            ),
            SqlErrorCode::Denied | SqlErrorCode::Constraint | SqlErrorCode::TypeMismatch | SqlErrorCode::Changed => {
                (FailureCode::InvalidConfiguration, String::new())
            }
            SqlErrorCode::Other => (FailureCode::Other("database".to_owned()), String::new()),
        };
        Failure::new(code, format!("router {name:?}, table {table}: {error}{advice}"))
    }

    fn late(&self) -> Failure {
        Failure::new(FailureCode::Timeout, format!("router {:?}, table {}: took too long to read", self.name, self.settings.table.as_str()))
    }

    async fn subscription(&self, row: &Row, readings: &mut Readings<'_>) -> Result<Subscription, Failure> {
        let mut subscription = row.subscription.clone();
        if let Some(secret) = subscription.authentication.as_deref().and_then(named_secret) {
            if !self.settings.secrets.contains(&secret) {
                let text = format!(
                    "authentication names the secret {secret:?}, which is not granted: add it to allow_secrets of routers.{}",
                    self.name
                );
                return Err(self.about(&subscription, invalid(text)));
            }
            let authentication = readings.authentication(&secret).await.map_err(|failure| self.about(&subscription, failure))?;
            subscription.authentication = Some(authentication);
        }
        Ok(subscription)
    }

    /// A failure that is about one row.
    fn about(&self, subscription: &Subscription, failure: Failure) -> Failure {
        let (name, Subscription { tenant, subscriber, .. }) = (&self.name, subscription);
        Failure::new(failure.code, format!("router {name:?}, subscriber {subscriber:?} of tenant {tenant:?}: {}", failure.detail))
    }

    /// The rows among these that want a topic.
    fn wanting<'a>(&self, rows: &'a [Row], topic: &str) -> Result<Vec<&'a Row>, Failure> {
        let mut wanting = Vec::new();
        for row in rows {
            match row.wants(topic) {
                Ok(true) => wanting.push(row),
                Ok(false) => {}
                Err(fault) => return Err(self.about(&row.subscription, invalid(format!("event_types {fault}")))),
            }
        }
        Ok(wanting)
    }

    async fn expanded(&self, snapshot: &Snapshot, events: &Batch, tenants: &[String]) -> Vec<Result<Vec<Subscription>, Failure>> {
        let mut readings = Readings::new(&self.secrets);
        let mut answers = Vec::with_capacity(events.len());
        for (index, event) in events.messages().enumerate() {
            let rows = snapshot.of_tenant(tenants.get(index).map_or("", String::as_str));
            let answer = async {
                let mut subscriptions = Vec::new();
                for row in self.wanting(rows, event.topic())? {
                    subscriptions.push(self.subscription(row, &mut readings).await?);
                }
                Ok(subscriptions)
            };
            answers.push(answer.await);
        }
        answers
    }

    async fn looked_up(&self, snapshot: &Snapshot, inquiries: &[Inquiry]) -> Vec<Result<Option<Subscription>, Failure>> {
        let mut readings = Readings::new(&self.secrets);
        let mut answers = Vec::with_capacity(inquiries.len());
        for Inquiry { tenant, subscriber, topic } in inquiries {
            answers.push(match snapshot.named(tenant, subscriber) {
                [] => Ok(None),
                [row] => match row.wants(topic) {
                    Ok(false) => Ok(None),
                    Ok(true) => self.subscription(row, &mut readings).await.map(Some),
                    Err(fault) => Err(self.about(&row.subscription, invalid(format!("event_types {fault}")))),
                },
                [row, ..] => Err(self.about(&row.subscription, invalid("is there more than once: make tenant and subscriber unique"))),
            });
        }
        answers
    }
}

#[async_trait]
impl Router for TableRouter {
    async fn expand(
        &self,
        events: &Batch,
        tenants: &[String],
        deadline: Duration,
    ) -> Result<Vec<Result<Vec<Subscription>, Failure>>, Failure> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let distinct = distinct((0..events.len()).map(|index| tenants.get(index).map_or("", String::as_str)));
        let answer = async {
            let snapshot = self.read(&Which::Tenants(&distinct), deadline).await?;
            Ok(self.expanded(&snapshot, events, tenants).await)
        };
        tokio::time::timeout(deadline, answer).await.unwrap_or_else(|_| Err(self.late()))
    }

    async fn current(&self, inquiries: &[Inquiry], deadline: Duration) -> Result<Vec<Result<Option<Subscription>, Failure>>, Failure> {
        if inquiries.is_empty() {
            return Ok(Vec::new());
        }
        let tenants = distinct(inquiries.iter().map(|one| one.tenant.as_str()));
        let subscribers = distinct(inquiries.iter().map(|one| one.subscriber.as_str()));
        let answer = async {
            let snapshot = self.read(&Which::Subscribers(&tenants, &subscribers), deadline).await?;
            Ok(self.looked_up(&snapshot, inquiries).await)
        };
        tokio::time::timeout(deadline, answer).await.unwrap_or_else(|_| Err(self.late()))
    }
}

/// What to look for, each once. A text with a NUL, which an event may have, is in no table of PostgreSQL, and may not even be asked for.
fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    texts.filter(|text| !text.contains('\0')).collect::<BTreeSet<&str>>().into_iter().collect()
}

/// The name in `{"secret": "NAME"}`, if it is that and nothing else.
fn named_secret(authentication: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Named {
        secret: String,
    }
    serde_json::from_str::<Named>(authentication).ok().map(|named| named.secret)
}
