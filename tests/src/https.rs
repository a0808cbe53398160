//! TLS in front of a receiver.

use anyhow::{Context, Result};
use axum::serve::Listener;
use outhaul_services::Certificates;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// What the receiver shows, and asks for.
#[derive(Debug, Clone, Copy)]
pub struct Https<'a> {
    /// Its certificate is the good one of these, signed by their authority.
    pub certificates: &'a Certificates,
    /// Whether a client must show a certificate of the same authority.
    pub asks_for_client: bool,
}

impl Https<'_> {
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let builder = if self.asks_for_client {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(read(&self.certificates.ca())?);
            builder.with_client_cert_verifier(WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?)
        } else {
            builder.with_no_client_auth()
        };
        let chain = read(&self.certificates.server_certificate())?;
        let key = PrivateKeyDer::from_pem_file(self.certificates.server_key()).context("the receiver's key")?;
        Ok(TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key)?)))
    }
}

fn read(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(file).and_then(Iterator::collect).with_context(|| file.display().to_string())
}

/// Connections after their handshakes, one at a time: good enough for the few clients of a test.
pub(crate) struct Secured {
    pub(crate) listener: TcpListener,
    pub(crate) acceptor: TlsAcceptor,
}

impl Listener for Secured {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.listener).await;
            // A client that does not trust the receiver breaks off here: that is what some tests are about.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
