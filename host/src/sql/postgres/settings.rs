//! What the operator configured, and what was found out about the server.

use super::fault::Fault;
use crate::config::model::{self, Endpoint, Password, PostgresUrl, ServerUrl, TlsMode};
use crate::config::parse_postgres_url;
use crate::secrets::Secrets;
use crate::sql::SqlErrorCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A database.
#[derive(Debug)]
pub(super) struct Settings {
    /// Its name in the configuration.
    pub(super) name: String,
    pub(super) configured: model::Postgres,
    secrets: Secrets,
    /// A pooler in transaction mode was met.
    pub(super) pooled: AtomicBool,
}

/// Where to connect to, and as whom: read anew for each session, so that a rotated secret is used.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) endpoint: Endpoint,
    pub(super) user: String,
    pub(super) password: Option<Password>,
    pub(super) database: String,
    pub(super) tls: TlsMode,
}

impl Settings {
    pub(super) fn new(name: &str, configured: &model::Postgres, secrets: &Secrets) -> Self {
        let secrets = secrets.clone();
        Self { name: name.to_owned(), configured: configured.clone(), secrets, pooled: AtomicBool::new(false) }
    }

    pub(super) fn max_connections(&self) -> usize {
        self.configured.max_connections
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.configured.connect_timeout
    }

    /// Remembers that there is a pooler, and says so once.
    pub(super) fn found_pooler(&self) {
        if !self.pooled.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                database = self.name,
                "a pooler stands between the host and the server: statements are not kept prepared, which costs time; a direct connection is faster"
            );
        }
    }

    /// Reads the secrets.
    ///
    /// # Errors
    /// `unavailable`, naming the key and the secret that has no value, or a wrong one.
    pub(super) async fn target(&self) -> Result<Target, Fault> {
        let url = match &self.configured.url {
            PostgresUrl::Written(url) => url.clone(),
            PostgresUrl::Secret(secret) => {
                let text = self.secret("url", secret).await?;
                let url = parse_postgres_url(&text);
                url.map_err(|problem| unavailable(format!("url: the value of the secret {secret:?} {problem}")))?
            }
        };
        let ServerUrl { endpoint, user, password, database, tls } = url;
        if tls.is_some() && self.configured.tls.is_some() {
            return Err(unavailable("tls contradicts sslmode in the url: leave one of the two out".to_owned()));
        }
        let tls = tls.or(self.configured.tls).unwrap_or_else(|| endpoint.default_tls());
        let password = match &self.configured.password {
            Some(secret) => Some(Password(self.secret("password", secret).await?)),
            None => password,
        };
        Ok(Target { endpoint, user, password, database, tls })
    }

    async fn secret(&self, key: &str, name: &str) -> Result<String, Fault> {
        self.secrets.read(name).await.map_err(|fault| unavailable(format!("{key}: {fault}")))
    }
}

fn unavailable(detail: String) -> Fault {
    Fault::harmless(SqlErrorCode::Unavailable, detail)
}
