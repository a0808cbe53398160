//! TLS in all its modes, and client certificates.

use super::{databases, found, run, wait_for};
use crate::sql::{Access, ColumnType, SqlErrorCode, Statement};
use outhaul_services::{Certificates, Major, Postgres, ServerOptions};
use std::path::Path;

/// Opens a session, and asks whether it is protected.
fn protected(url: &str, more: &str) -> Result<bool, crate::sql::SqlError> {
    wait_for(async {
        let connection = databases(url, more).open("main", Access::ReadOnly).await?;
        let asked = Statement::new("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").returning([ColumnType::Integer]);
        Ok(found(&[run(&connection, asked).await?]) == 1)
    })
}

fn key(name: &str, file: &Path) -> String {
    format!("{name} = {:?}\n", file.display().to_string())
}

fn ca(certificates: &Certificates) -> String {
    key("tls_ca_file", &certificates.ca())
}

#[test]
fn the_modes_are_as_strict_as_they_say() {
    for major in Major::ALL {
        let Some(server) = outhaul_services::postgres(major) else { continue };
        let certificates = &server.certificates;
        let url = server.url("postgres");
        assert!(!protected(&url, "tls = \"disable\"").unwrap());
        for mode in ["prefer", "require"] {
            assert!(protected(&url, &format!("tls = {mode:?}")).unwrap(), "{mode}");
        }
        assert!(protected(&url, "").unwrap(), "TLS is preferred on this machine");
        for mode in ["verify-ca", "verify-full"] {
            assert!(protected(&url, &format!("tls = {mode:?}\n{}", ca(certificates))).unwrap(), "{mode}");
            assert!(protected(&format!("{url}?sslmode={mode}"), &ca(certificates)).unwrap(), "{mode}");
            let other = key("tls_ca_file", &certificates.other_ca());
            for untrusted in ["", &other] {
                let error = protected(&url, &format!("tls = {mode:?}\n{untrusted}")).unwrap_err();
                assert!(error.code == SqlErrorCode::Unavailable && error.detail.contains("tls_ca_file"), "{mode}: {error}");
            }
        }
        // The same server by an address that its certificate is not for.
        let elsewhere = url.replace("127.0.0.1", "[::ffff:127.0.0.1]");
        for tls in ["", "tls = \"verify-full\"\n"] {
            let error = protected(&elsewhere, &format!("{tls}{}", ca(certificates))).unwrap_err();
            assert!(error.detail.contains("is not for \"::ffff:127.0.0.1\""), "{error}");
        }
        assert!(protected(&elsewhere, &format!("tls = \"verify-ca\"\n{}", ca(certificates))).unwrap());
    }
}

#[test]
fn a_client_certificate_stands_in_for_a_password() {
    let Some(server) = outhaul_services::postgres(Major::V17) else { return };
    let certificates = &server.certificates;
    let url = format!("postgres://{}@127.0.0.1:{}/postgres", outhaul_services::certificates::CLIENT, server.port);
    let with = |certificate: &Path, file: &Path| {
        format!("tls = \"verify-full\"\n{}{}{}", ca(certificates), key("tls_cert_file", certificate), key("tls_key_file", file))
    };
    assert!(protected(&url, &with(&certificates.client_certificate(), &certificates.client_key())).unwrap());
    let error = protected(&url, &format!("tls = \"verify-full\"\n{}", ca(certificates))).unwrap_err();
    assert_eq!(error.code, SqlErrorCode::Unavailable, "{error}");
    protected(&url, &with(&certificates.other_client_certificate(), &certificates.other_client_key())).unwrap_err();
    let error = protected(&url, &with(&certificates.client_certificate(), &certificates.other_client_key())).unwrap_err();
    assert!(error.detail.contains("tls_cert_file"), "{error}");
}

#[test]
fn an_expired_certificate_and_a_server_without_tls_are_refused() {
    if outhaul_services::postgres(Major::V17).is_none() {
        return;
    }
    let options = ServerOptions { fsync: false, expired_certificate: true, ..ServerOptions::default() };
    let server = Postgres::start_with(Major::V17, &options).unwrap();
    let error = protected(&server.url("postgres"), &format!("tls = \"verify-full\"\n{}", ca(&server.certificates))).unwrap_err();
    assert!(error.detail.contains("has expired"), "{error}");
    let server = Postgres::start_with(Major::V17, &ServerOptions { fsync: false, no_tls: true, ..ServerOptions::default() }).unwrap();
    assert!(!protected(&server.url("postgres"), "").unwrap());
    let error = protected(&server.url("postgres"), "tls = \"require\"").unwrap_err();
    assert!(error.detail.contains("the server has no TLS, and tls = \"require\" asks for it"), "{error}");
}

#[test]
fn a_unix_socket_works_without_it() {
    let Some(server) = outhaul_services::postgres(Major::V17) else { return };
    let Some(folder) = &server.socket else { return };
    let url = format!(
        "postgres://{}:{}@:{}/postgres?host={}",
        outhaul_services::postgres::USER,
        outhaul_services::postgres::PASSWORD,
        server.port,
        folder.display()
    );
    assert!(!protected(&url, "").unwrap());
    let error = protected(&url, "tls = \"require\"").unwrap_err();
    assert!(error.detail.contains("not possible on a Unix socket"), "{error}");
}
