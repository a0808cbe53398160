//! Opening a session: address, TLS, authentication, and a look at who answers.
//!
//! All of it is sqlx's; here is what it is told. The name is resolved each time, so that it may follow the primary after a failover.

use super::fault::{Fault, Reach};
use super::no_delay::send_at_once;
use super::session::{SETTINGS, STATEMENTS_KEPT, Session};
use super::settings::{Settings, Target};
use crate::config::model::{self, ClientCertificate, Endpoint, TlsMode};
use crate::sql::SqlErrorCode;
use rustls::CertificateError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection as _, Row};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Whether the session takes writes, and what the server process was started with. One row.
const WHO: &str = "SELECT pg_catalog.current_setting('transaction_read_only'), pg_catalog.current_setting('outhaul.session', true)";

/// Variables of the environment that sqlx reads and that cannot be overruled where the configuration says nothing.
const VARIABLES: [&str; 3] = ["PGOPTIONS", "PGSSLCERT", "PGSSLKEY"];

/// SQLSTATE of a start-up message that is not understood.
const PROTOCOL_VIOLATION: &str = "08P01";

/// Opens a session, by `deadline` or within `connect_timeout`, whichever is sooner.
///
/// # Errors
/// `unavailable`, with the address and what to do.
pub(super) async fn open(settings: &Settings, deadline: Instant) -> Result<Session, Fault> {
    let limit = settings.connect_timeout();
    let until = Instant::now().checked_add(limit).map_or(deadline, |until| until.min(deadline));
    let target = settings.target().await?;
    let opening = tokio::time::timeout_at(until.into(), Fault::contained(establish(settings, &target))).await;
    let result = opening.unwrap_or_else(|_| {
        Err(unavailable(format!(
            "no connection within {}: the server or the network hangs, or connect_timeout is too short",
            humantime::format_duration(limit)
        )))
    });
    if let (Ok(_), Endpoint::Tcp { port, .. }) = (&result, &target.endpoint) {
        send_at_once(*port);
    }
    // Whatever fails here has nothing to say about sessions that are open.
    result.map_err(|fault| Fault { reach: Reach::Call, ..fault }.at(&format!("{}: ", target.endpoint)))
}

/// A pooler is found by a mark in the `options` of the start-up message: it refuses them, or leaves them out, or passes them on for a
/// server process that others have used before.
async fn establish(settings: &Settings, target: &Target) -> Result<Session, Fault> {
    let options = options(&settings.configured, target).await?;
    let explain = |error: &sqlx::Error| explained(error, &settings.configured, target);
    if !settings.pooled.load(Ordering::Relaxed) {
        let mark = format!("{:016x}", rand::random::<u64>());
        let lasting = SETTINGS.into_iter().chain([("default_transaction_isolation", "read committed"), ("outhaul.session", &mark)]);
        match PgConnection::connect_with(&options.clone().options(lasting)).await {
            Ok(connection) => {
                let (session, found) = who(connection).await?;
                if found.as_ref() == Some(&mark) {
                    return Ok(session);
                }
            }
            Err(sqlx::Error::Database(error)) if error.code().is_some_and(|code| code == PROTOCOL_VIOLATION) => {}
            Err(error) => return Err(explain(&error)),
        }
    }
    let connection = PgConnection::connect_with(&options).await.map_err(|error| explain(&error))?;
    let (mut session, _) = who(connection).await?;
    settings.found_pooler();
    session.pooled = true;
    Ok(session)
}

/// Opens a session that listens, within `connect_timeout`. sqlx wants a pool to take it from, which is asked for no second one: whoever
/// listens has to know when something may have been missed.
///
/// # Errors
/// As [`open`].
pub(super) async fn listener(settings: &Settings) -> Result<PgListener, Fault> {
    let target = settings.target().await?;
    let options = options(&settings.configured, &target).await?;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .min_connections(0)
        .test_before_acquire(false)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(settings.connect_timeout())
        .connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await.map_err(|error| explained(&error, &settings.configured, &target))?;
    listener.eager_reconnect(false);
    listener.ignore_pool_close_event(true);
    Ok(listener)
}

async fn who(connection: PgConnection) -> Result<(Session, Option<String>), Fault> {
    let mut session = Session::new(connection);
    let row = session.ask(WHO).await?;
    let unreadable = |error: sqlx::Error| Fault::of(&error);
    session.read_only = row.try_get::<String, _>(0).map_err(unreadable)? == "on";
    Ok((session, row.try_get(1).map_err(unreadable)?))
}

fn unavailable(detail: String) -> Fault {
    Fault::lost(SqlErrorCode::Unavailable, detail)
}

/// What sqlx is told. It would take from the environment what it is not.
///
/// # Errors
/// `unavailable`: a file that cannot be used, or a variable of the environment that would be.
async fn options(configured: &model::Postgres, target: &Target) -> Result<PgConnectOptions, Fault> {
    check_environment(configured.tls_client.is_some(), |variable| std::env::var_os(variable).is_some())?;
    let options = PgConnectOptions::new_without_pgpass()
        .username(&target.user)
        .password(target.password.as_ref().map_or("", |password| password.0.as_str()))
        .database(&target.database)
        .application_name("outhaul")
        .extra_float_digits(None)
        .statement_cache_capacity(STATEMENTS_KEPT)
        .ssl_mode(mode(target)?)
        .disable_statement_logging();
    let options = match &target.endpoint {
        Endpoint::Tcp { host, port } => options.host(host).port(*port),
        Endpoint::Unix(file) => {
            let port = file.extension().and_then(OsStr::to_str).and_then(|port| port.parse().ok());
            let (Some(folder), Some(port)) = (file.parent(), port) else {
                return Err(unavailable("the name of a Unix socket must end in its port".to_owned()));
            };
            options.host("localhost").socket(folder).port(port)
        }
    };
    // The files are read each time: certificates are renewed while the host runs.
    let configured = configured.clone();
    let with_files = tokio::task::spawn_blocking(move || with_files(options, &configured)).await;
    with_files.map_err(|error| unavailable(error.to_string()))?
}

/// Refuses variables that would be used besides the configuration.
fn check_environment(has_certificate: bool, is_set: impl Fn(&str) -> bool) -> Result<(), Fault> {
    let overruled = |variable: &str| has_certificate && variable != "PGOPTIONS";
    match VARIABLES.into_iter().find(|variable| is_set(variable) && !overruled(variable)) {
        Some(variable) => Err(unavailable(format!(
            "the environment variable {variable} is set, which would change the connection: unset it, the configuration file is all that counts"
        ))),
        None => Ok(()),
    }
}

fn mode(target: &Target) -> Result<PgSslMode, Fault> {
    Ok(match (&target.endpoint, target.tls) {
        // Servers have no TLS on Unix sockets.
        (_, TlsMode::Disable) | (Endpoint::Unix(_), TlsMode::Prefer) => PgSslMode::Disable,
        (Endpoint::Unix(_), mode) => {
            return Err(unavailable(format!("tls = {:?} is not possible on a Unix socket: leave tls out", mode.as_str())));
        }
        (_, TlsMode::Prefer) => PgSslMode::Prefer,
        (_, TlsMode::Require) => PgSslMode::Require,
        (_, TlsMode::VerifyCa) => PgSslMode::VerifyCa,
        (_, TlsMode::VerifyFull) => PgSslMode::VerifyFull,
    })
}

/// Checked here, because sqlx names no file.
fn with_files(options: PgConnectOptions, configured: &model::Postgres) -> Result<PgConnectOptions, Fault> {
    // Without a file: nothing, rather than what the environment says.
    let authorities = configured.tls_ca_file.as_ref().map(|file| certificates("tls_ca_file", file)).transpose()?;
    let options = options.ssl_root_cert_from_pem(authorities.unwrap_or_default());
    let Some(ClientCertificate { certificate, key }) = &configured.tls_client else { return Ok(options) };
    let chain = certificates("tls_cert_file", certificate)?;
    let pem = std::fs::read(key).map_err(|error| unusable("tls_key_file", key, &error.to_string()))?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| unusable("tls_key_file", key, &error.to_string()))?;
    Ok(options.ssl_client_cert_from_pem(chain).ssl_client_key_from_pem(pem))
}

fn unusable(key: &str, file: &Path, reason: &str) -> Fault {
    unavailable(format!("{key} = \"{}\" cannot be used: {reason}", file.display()))
}

fn certificates(key: &str, file: &Path) -> Result<Vec<u8>, Fault> {
    let pem = std::fs::read(file).map_err(|error| unusable(key, file, &error.to_string()))?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    if read.map_err(|error| unusable(key, file, &error.to_string()))?.is_empty() {
        return Err(unusable(key, file, "it has no certificate in PEM form"));
    }
    Ok(pem)
}

/// Why no connection came about, and what can be done.
fn explained(error: &sqlx::Error, configured: &model::Postgres, target: &Target) -> Fault {
    match error {
        sqlx::Error::Io(error) => match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
            Some(error) => unavailable(certificate(error, target)),
            None if error.kind() == io::ErrorKind::UnexpectedEof => Fault::broken(error),
            None => unavailable(format!("cannot connect: {error}; check the url and whether the server runs")),
        },
        sqlx::Error::Tls(error) => match (error.downcast_ref::<rustls::Error>(), &configured.tls_client) {
            (Some(error), Some(client)) => unusable("tls_cert_file", &client.certificate, &error.to_string()),
            _ if error.to_string().contains("does not support TLS") => unavailable(format!(
                "the server has no TLS, and tls = {:?} asks for it{}: let the server use TLS, or write tls = \"disable\" for a network that nobody can listen in to",
                target.tls.as_str(),
                if configured.tls.is_none() { " (the default for a host that is not this machine)" } else { "" }
            )),
            _ => unavailable(format!("TLS: {error}; tls_ca_file names the authority to trust")),
        },
        sqlx::Error::Protocol(text) if text.contains("authentication method") => unavailable(
            "the server asks for a kind of authentication that the host does not have: allow scram-sha-256 in pg_hba.conf".to_owned(),
        ),
        sqlx::Error::Database(said) if target.password.is_none() && said.code().is_some_and(|code| code == "28P01") => {
            unavailable(format!("the server asks for the password of {:?}: add password = {{ secret = \"NAME\" }}", target.user))
        }
        sqlx::Error::PoolTimedOut => {
            unavailable("no connection within connect_timeout: check the url and whether the server runs".to_owned())
        }
        error => Fault { lost: true, ..Fault::of(error) },
    }
}

fn certificate(error: &rustls::Error, target: &Target) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "TLS: the server's certificate comes from no trusted authority: name the authority's certificate with tls_ca_file".to_owned()
        }
        rustls::Error::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) => {
            let host = match &target.endpoint {
                Endpoint::Tcp { host, .. } => host.as_str(),
                Endpoint::Unix(_) => "localhost",
            };
            format!("TLS: the server's certificate is not for {host:?}: write the name that it is for into the url, or tls = \"verify-ca\"")
        }
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "TLS: the server's certificate has expired: renew it".to_owned()
        }
        error => format!("TLS: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_cannot_be_overruled_are_refused() {
        for (variable, has_certificate, refused) in [
            ("PGOPTIONS", false, true),
            ("PGOPTIONS", true, true),
            ("PGSSLCERT", false, true),
            ("PGSSLKEY", true, false),
            ("PGPASSWORD", false, false),
        ] {
            let checked = check_environment(has_certificate, |name| name == variable);
            assert_eq!(checked.is_err(), refused, "{variable}");
            assert!(checked.is_ok() || checked.unwrap_err().error.detail.contains(variable));
        }
    }
}
