//! TLS of one adapter, for HTTPS and for its own sockets: whom it trusts (read once, when the adapter is loaded), and how it shows
//! who it is ([`identity`]). The private key stays here; no guest can ask for it.

mod identity;
mod streams;
mod transport;

use crate::plugin::PluginError;
use crate::plugin::call::{CurrentGate, Notes};
use crate::plugin::denials::Denials;
use crate::plugin::grants::Policy;
use crate::tls::faults::{self, Known};
use crate::tls::roots;
use identity::Identity;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
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
        let ca_file = grants.tls_ca_file.as_deref();
        let roots = if policy.connects() && !grants.hosts.is_empty() {
            roots(ca_file).map_err(|reason| unusable(CA_FILE, ca_file.unwrap_or(Path::new("")), reason))?
        } else {
            RootCertStore::empty()
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| PluginError::Engine(format!("TLS: {error}")))?
            .with_root_certificates(roots);
        let config = match &grants.tls_client {
            None => config.with_no_client_auth(),
            Some(files) => config.with_client_cert_resolver(Arc::new(Identity::load(files, provider)?)),
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

    /// What the `wasi:tls` of one instance works with.
    pub(in crate::plugin) fn context(&self, current: CurrentGate, notes: Notes) -> WasiTlsCtx {
        WasiTlsCtxBuilder::new().provider(Box::new(Provider::new(self.clone(), current, notes))).build()
    }
}

fn unusable(key: &'static str, file: &Path, reason: String) -> PluginError {
    PluginError::TlsFile { key, file: file.to_owned(), reason }
}
