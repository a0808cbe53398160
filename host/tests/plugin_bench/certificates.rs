//! Certificates made for one test, and what a TLS server does with them.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    /// Its certificate, in PEM form.
    pub file: PathBuf,
}

pub struct Issued {
    pub certificate: CertificateDer<'static>,
    pub key: PrivateKeyDer<'static>,
    /// Both in PEM form.
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
}

impl Authority {
    /// Its files, and those of what it issues, go to the folder.
    pub fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let file = folder.join(format!("{name}.pem"));
        std::fs::write(&file, certificate.pem()).unwrap();
        Self { certificate: certificate.der().clone(), issuer: Issuer::new(params, key), file }
    }

    pub fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (certificate_file, key_file) =
            (self.file.with_file_name(format!("{name}.crt")), self.file.with_file_name(format!("{name}.key")));
        std::fs::write(&certificate_file, certificate.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Issued { certificate: certificate.der().clone(), key, certificate_file, key_file }
    }

    /// What a server does that shows this certificate, and wants one of the authority `clients` from the other side, if there is one.
    pub fn server(issued: Issued, clients: Option<&Authority>, versions: &[&'static SupportedProtocolVersion]) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(versions).unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.certificate.clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
                builder.with_client_cert_verifier(verifier)
            }
        };
        builder.with_single_cert(vec![issued.certificate], issued.key).unwrap()
    }
}
