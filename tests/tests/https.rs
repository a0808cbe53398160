//! HTTPS from the table to the receiver: a private authority, a client certificate, and what is said where one is missing.

use anyhow::{Context, Result};
use outhaul_services::Certificates;
use outhaul_tests::https::Https;
use outhaul_tests::outbox::DELIVERED;
use outhaul_tests::receiver::{Answer, Receiver};
use outhaul_tests::rig::{Config, Rig};
use tempfile::TempDir;

struct Secure {
    certificates: Certificates,
    receiver: Receiver,
    config: Config,
    _folder: TempDir,
}

/// A receiver over TLS, and a configuration that sends there but trusts only the system's authorities.
fn secure(asks_for_client: bool) -> Result<Secure> {
    let folder = TempDir::with_prefix("outhaul-")?;
    let certificates = Certificates::create(folder.path().join("certificates"), None)?;
    let receiver = Receiver::start_https(&Https { certificates: &certificates, asks_for_client }, |_| Answer::status(204))?;
    let address = receiver.address();
    let config = Config::to(address)?.set("publishers.webhooks.config.url", format!("https://{address}/{{topic}}"));
    Ok(Secure { certificates, receiver, config, _folder: folder })
}

fn text(path: std::path::PathBuf) -> Result<String> {
    path.into_os_string().into_string().ok().context("the temporary folder's name is no text")
}

#[test]
fn a_private_authority_is_trusted_by_the_key_that_the_failure_names() -> Result<()> {
    let Secure { certificates, receiver, config, _folder } = secure(false)?;
    let rig = Rig::new(&config.clone().set("relays.0.max_attempts", 100))?;
    rig.outbox()?.fill("orders", 3, 30)?;

    let host = rig.host()?;
    let rows = rig.outbox()?.wait_for_rows("a failure", |rows| rows.iter().any(|row| row.last_error.is_some()))?;
    let reason = rows.iter().find_map(|row| row.last_error.clone()).context("there is one")?;
    assert!(
        reason.contains("its certificate was issued by an unknown authority: add tls_ca_file = \"FILE.pem\" under [publishers.webhooks]"),
        "{reason}"
    );
    host.shut_down()?;
    assert_eq!(receiver.requests().len(), 0, "nothing was sent to whom nobody trusts");

    rig.configure(&config.set("publishers.webhooks.tls_ca_file", text(certificates.ca())?))?;
    let host = rig.host()?;
    receiver.wait_for_accepted(30)?;
    rig.outbox()?.wait_for_rows("all delivered", |rows| rows.iter().all(|row| row.status == DELIVERED))?;
    host.shut_down()
}

#[test]
fn a_client_certificate_opens_a_receiver_that_asks_for_one() -> Result<()> {
    let Secure { certificates, receiver, config, _folder } = secure(true)?;
    let config = config.set("publishers.webhooks.tls_ca_file", text(certificates.ca())?);
    let rig = Rig::new(&config.clone().set("relays.0.max_attempts", 1))?;
    rig.outbox()?.add("orders", None, b"x")?;
    let host = rig.host()?;
    let rows = rig.outbox()?.wait_for_rows("a failure", |rows| rows.iter().any(|row| row.last_error.is_some()))?;
    let reason = rows[0].last_error.clone().context("there is one")?;
    assert!(reason.contains("asks for a client certificate"), "{reason}");
    assert!(reason.contains("add tls_cert_file and tls_key_file under [publishers.webhooks]"), "{reason}");
    host.shut_down()?;
    assert_eq!(receiver.requests().len(), 0);

    let config = config.set("publishers.webhooks.tls_cert_file", text(certificates.client_certificate())?);
    rig.configure(&config.set("publishers.webhooks.tls_key_file", text(certificates.client_key())?))?;
    rig.outbox()?.add("orders", None, b"y")?;
    let host = rig.host()?;
    receiver.wait_for_accepted(1)?;
    host.shut_down()
}

#[test]
fn check_tells_the_line_of_a_file_that_cannot_be_used() -> Result<()> {
    let Secure { certificates, config, receiver: _receiver, _folder } = secure(false)?;
    let config = config.set("publishers.webhooks.tls_cert_file", text(certificates.client_certificate())?);
    for (key, said) in [
        ("missing.key".to_owned(), "cannot be used: "),
        (text(certificates.other_client_key())?, "it is not the key of the certificate in "),
        (text(certificates.ca())?, "it has no private key in PEM form that is not encrypted"),
    ] {
        let rig = Rig::new(&config.clone().set("publishers.webhooks.tls_key_file", key))?;
        let told = rig.run(&["check"])?.failure(2)?;
        assert!(told.contains(": publishers.webhooks.tls_key_file: ") && told.contains(said), "{told}");
    }
    Ok(())
}
