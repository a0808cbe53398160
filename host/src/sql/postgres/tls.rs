//! TLS to the server, as strict as the mode says.

use super::fault::Fault;
use super::wire::Stream;
use crate::config::model::{self, ClientCertificate, TlsMode};
use crate::sql::SqlErrorCode;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// Opens TLS on a stream whose server is ready for it.
///
/// # Errors
/// `unavailable`: a file that cannot be used, or why the other side is not trusted.
pub(super) async fn handshake(
    settings: &model::Postgres,
    mode: TlsMode,
    host: &str,
    stream: Box<dyn Stream>,
) -> Result<Box<dyn Stream>, Fault> {
    // The files are read each time: certificates are renewed while the host runs. Reading the system's takes milliseconds.
    let (settings, wanted) = (settings.clone(), host.to_owned());
    let prepared = tokio::task::spawn_blocking(move || {
        let name =
            ServerName::try_from(wanted).map_err(|_| unavailable("the host of the url is neither a name nor an address".to_owned()))?;
        Ok((config(&settings, mode)?, name))
    });
    let (config, name) = prepared.await.map_err(|error| unavailable(error.to_string()))??;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| unavailable(explain(&error, host)))?;
    Ok(Box::new(stream))
}

fn unavailable(detail: String) -> Fault {
    Fault::lost(SqlErrorCode::Unavailable, detail)
}

fn explain(error: &std::io::Error, host: &str) -> String {
    let certificate = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
    match certificate {
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "TLS: the server's certificate comes from no trusted authority: name the authority's certificate with tls_ca_file".to_owned()
        }
        Some(Error::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })) => {
            format!("TLS: the server's certificate is not for {host:?}: write the name that it is for into the url, or tls = \"verify-ca\"")
        }
        Some(Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. })) => {
            "TLS: the server's certificate has expired: renew it".to_owned()
        }
        _ => format!("TLS: {error}"),
    }
}

fn config(settings: &model::Postgres, mode: TlsMode) -> Result<ClientConfig, Fault> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| unavailable(format!("TLS: {error}")))?;
    let verifier: Arc<dyn ServerCertVerifier> = match mode {
        TlsMode::VerifyFull => trusted(settings, &provider)?,
        TlsMode::VerifyCa => Arc::new(AnyName(trusted(settings, &provider)?)),
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => Arc::new(Anybody(provider)),
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let Some(ClientCertificate { certificate, key }) = &settings.tls_client else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates("tls_cert_file", certificate)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable("tls_key_file", key, &error.to_string()))?;
    builder.with_client_auth_cert(chain, key).map_err(|error| unusable("tls_cert_file", certificate, &error.to_string()))
}

fn unusable(key: &str, file: &Path, reason: &str) -> Fault {
    unavailable(format!("{key} = \"{}\" cannot be used: {reason}", file.display()))
}

fn certificates(key: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let certificates: Vec<CertificateDer<'static>> = read.map_err(|error| unusable(key, file, &error.to_string()))?;
    if certificates.is_empty() {
        return Err(unusable(key, file, "it has no certificate in PEM form"));
    }
    Ok(certificates)
}

/// The usual verification, against the operator's authorities or the system's.
fn trusted(settings: &model::Postgres, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, Fault> {
    let mut roots = RootCertStore::empty();
    match &settings.tls_ca_file {
        Some(file) => {
            for certificate in certificates("tls_ca_file", file)? {
                roots.add(certificate).map_err(|error| unusable("tls_ca_file", file, &error.to_string()))?;
            }
        }
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
    verifier.map_err(|error| unavailable(format!("TLS: there is no certificate authority to trust ({error}): name one with tls_ca_file")))
}

/// `verify-ca`: the usual verification, but for the name.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The name is looked at last: whoever fails by it has passed everything else.
        match self.0.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(Error::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// `require` and `prefer`: nobody can listen in, but anybody can pretend to be the server.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
