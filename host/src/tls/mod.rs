//! TLS as a client, whoever speaks it: whom to trust ([`roots`]), what to show ([`certificates`], [`private_key`]), and what went wrong
//! in words that say what to change ([`faults`]).

pub(crate) mod faults;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;

/// The certificate authorities of the system, and those of the file.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::warn!("a system certificate authority cannot be read: {error}");
    }
    roots.add_parsable_certificates(system.certs);
    for certificate in ca_file.map(certificates).transpose()?.unwrap_or_default() {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

/// The certificates of a PEM file: at least one.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(file).and_then(Iterator::collect).map_err(|error: pem::Error| error.to_string())?;
    if certificates.is_empty() {
        return Err("it has no certificate in PEM form".to_owned());
    }
    Ok(certificates)
}

/// The private key of a PEM file.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| match error {
        pem::Error::NoItemsFound => "it has no private key in PEM form that is not encrypted".to_owned(),
        other => other.to_string(),
    })
}
