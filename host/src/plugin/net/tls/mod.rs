//! TLS of one adapter, for HTTPS and for its own sockets: whom it trusts, and how it shows who it is. Read once, when the adapter is
//! loaded. The private key stays here; no guest can ask for it.

pub(super) mod faults;
mod streams;
mod transport;

use crate::config::model::ClientCertificate;
use crate::plugin::PluginError;
use crate::plugin::call::{Gate, Notes};
use crate::plugin::denials::Denials;
use crate::plugin::grants::Policy;
use faults::Known;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use streams::Provider;
use wasmtime_wasi_tls::{WasiTlsCtx, WasiTlsCtxBuilder};

const CA_FILE: &str = "tls_ca_file";
const CERT_FILE: &str = "tls_cert_file";
const KEY_FILE: &str = "tls_key_file";

/// The settings of one adapter. Clones share them, and the sessions that servers let it take up again.
#[derive(Clone)]
pub(in crate::plugin) struct Tls(Arc<Settings>);

struct Settings {
    config: Arc<ClientConfig>,
    policy: Arc<Policy>,
    denials: Arc<Denials>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Tls({})", self.0.policy.section())
    }
}

impl Tls {
    /// Trusts the system's certificate authorities and those of the policy's `tls_ca_file`; shows its `tls_cert_file`.
    pub(in crate::plugin) fn new(policy: Arc<Policy>, denials: Arc<Denials>) -> Result<Self, PluginError> {
        let grants = policy.grants();
        // What cannot connect to anything need not wait for the system's authorities to be read.
        let roots =
            if policy.connects() && !grants.hosts.is_empty() { roots(grants.tls_ca_file.as_deref())? } else { RootCertStore::empty() };
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| PluginError::Engine(format!("TLS: {error}")))?
            .with_root_certificates(roots);
        let config = match &grants.tls_client {
            None => config.with_no_client_auth(),
            Some(files) => {
                let (chain, key) = identity(files)?;
                // The chain is what it is; of the two, it is the key that does not fit.
                config.with_client_auth_cert(chain, key).map_err(|error| match error {
                    rustls::Error::InconsistentKeys(_) => {
                        unusable(KEY_FILE, &files.key, format!("it is not the key of the certificate in {}", files.certificate.display()))
                    }
                    rustls::Error::InvalidCertificate(_) => unusable(CERT_FILE, &files.certificate, error.to_string()),
                    _ => unusable(KEY_FILE, &files.key, error.to_string()),
                })?
            }
        };
        Ok(Self(Arc::new(Settings { config: Arc::new(config), policy, denials })))
    }

    pub(in crate::plugin) fn policy(&self) -> &Arc<Policy> {
        &self.0.policy
    }

    pub(in crate::plugin) fn denials(&self) -> &Denials {
        &self.0.denials
    }

    pub(super) fn config(&self) -> &Arc<ClientConfig> {
        &self.0.config
    }

    /// Tells the operator why a server could not be talked to. Returns the text.
    pub(super) fn tell(&self, notes: &Notes, server: &str, error: &rustls::Error) -> String {
        let grants = self.0.policy.grants();
        let known = Known {
            section: self.0.policy.section(),
            ca_file: grants.tls_ca_file.as_deref(),
            cert_file: grants.tls_client.as_ref().map(|files| files.certificate.as_path()),
        };
        self.tell_text(notes, server, &faults::text(error, &known))
    }

    fn tell_text(&self, notes: &Notes, server: &str, text: &str) -> String {
        let text = format!("TLS with {server} failed: {text}");
        self.0.denials.tell(notes, &text);
        text
    }

    /// What the guest's `wasi:tls` works with during one call.
    pub(in crate::plugin) fn context(&self, gate: Gate, notes: Notes) -> WasiTlsCtx {
        WasiTlsCtxBuilder::new().provider(Box::new(Provider::new(self.clone(), gate, notes))).build()
    }
}

fn unusable(key: &'static str, file: &Path, reason: String) -> PluginError {
    PluginError::TlsFile { key, file: file.to_owned(), reason }
}

/// The certificate authorities of the system, and those of the file.
fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, PluginError> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::warn!("a system certificate authority cannot be read: {error}");
    }
    roots.add_parsable_certificates(system.certs);
    if let Some(file) = ca_file {
        for certificate in certificates(CA_FILE, file)? {
            roots.add(certificate).map_err(|error| unusable(CA_FILE, file, error.to_string()))?;
        }
    }
    Ok(roots)
}

fn identity(files: &ClientCertificate) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), PluginError> {
    let chain = certificates(CERT_FILE, &files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| {
        let reason = match error {
            rustls::pki_types::pem::Error::NoItemsFound => "it has no private key in PEM form that is not encrypted".to_owned(),
            other => other.to_string(),
        };
        unusable(KEY_FILE, &files.key, reason)
    })?;
    let readable_by_all = std::fs::metadata(&files.key).is_ok_and(|file| file.permissions().mode() & 0o004 != 0);
    if readable_by_all {
        tracing::warn!("{KEY_FILE} = {:?} can be read by every user of this machine: `chmod o-r` it", files.key);
    }
    Ok((chain, key))
}

fn certificates(key: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, PluginError> {
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(file).and_then(Iterator::collect).map_err(|error| unusable(key, file, error.to_string()))?;
    if certificates.is_empty() {
        return Err(unusable(key, file, "it has no certificate in PEM form".to_owned()));
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::{Grants, HostGrant};
    use crate::plugin::grants::Request;
    use crate::plugin::identity::{Identity, Kind};
    use std::path::PathBuf;

    fn tls(tls_client: Option<ClientCertificate>) -> Result<Tls, PluginError> {
        let hosts = vec![HostGrant { host: "broker.example".into(), port: None }];
        let policy = Policy::new("publishers.kafka".into(), Grants { hosts, tls_client, ..Grants::default() }, vec![Request::Tcp]);
        let identity = Identity { kind: Kind::Publisher, name: "kafka".into(), generation: 1 };
        Tls::new(Arc::new(policy), Arc::new(Denials::new(identity)))
    }

    #[test]
    fn a_client_certificate_must_be_there_and_its_key_must_fit() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| -> PathBuf {
            let file = folder.path().join(name);
            std::fs::write(&file, content).unwrap();
            file
        };
        let [one, other] = ["one", "other"].map(|name| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap());
        let certificate = file("client.pem", &one.cert.pem());
        let key = file("client.key", &one.signing_key.serialize_pem());
        let load = |certificate: &Path, key: &Path| {
            tls(Some(ClientCertificate { certificate: certificate.to_owned(), key: key.to_owned() }))
                .map(|tls| tls.0.config.client_auth_cert_resolver.has_certs())
        };
        assert!(load(&certificate, &key).unwrap());
        assert!(!tls(None).unwrap().0.config.client_auth_cert_resolver.has_certs());
        let missing = folder.path().join("missing");
        let encrypted = file("encrypted", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
        for (certificate, key, text) in [
            (
                &certificate,
                &file("other.key", &other.signing_key.serialize_pem()),
                "tls_key_file = \"FOLDER/other.key\" cannot be used: it is not the key of",
            ),
            (&certificate, &missing, "tls_key_file = \"FOLDER/missing\" cannot be used: "),
            (&certificate, &encrypted, "it has no private key in PEM form that is not encrypted"),
            (&missing, &key, "tls_cert_file = \"FOLDER/missing\" cannot be used: "),
            (&key, &key, "tls_cert_file = \"FOLDER/client.key\" cannot be used: it has no certificate"),
        ] {
            let error = load(certificate, key).unwrap_err().to_string().replace(&folder.path().display().to_string(), "FOLDER");
            assert!(error.contains(text), "{error}");
        }
    }
}
