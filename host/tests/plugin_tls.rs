//! HTTPS of adapters: the system's authorities and `tls_ca_file`, over HTTP/1.1 and HTTP/2.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test stops at the first surprise")]

mod plugin_bench;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use outhaul::config::model::{ClientCertificate, Publisher as PublisherConfig};
use outhaul::domain::Outcome;
use plugin_bench::certificates::Authority;
use plugin_bench::{Bench, granted, publish};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc;

struct Server {
    port: u16,
    /// Its certificate, which is its own authority.
    ca_file: PathBuf,
    /// The version of each request.
    versions: mpsc::UnboundedReceiver<http::Version>,
    _folder: tempfile::TempDir,
}

/// An HTTPS server on localhost that speaks these protocols.
async fn server(protocols: &[&[u8]]) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let ca_file = folder.path().join("ca.pem");
    std::fs::write(&ca_file, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(made.cert.der().to_vec())], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    serve(config, ca_file, folder).await
}

async fn serve(config: rustls::ServerConfig, ca_file: PathBuf, folder: tempfile::TempDir) -> Server {
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, versions) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            tokio::spawn(async move {
                // A client that does not trust the certificate breaks off here: that is a part of the test. One that is not trusted
                // may have sent its request by then; closing on unread bytes would reset the connection and take the alert with it.
                let stream = match acceptor.accept(stream).into_fallible().await {
                    Ok(stream) => stream,
                    Err((_, mut stream)) => {
                        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                        return;
                    }
                };
                let answer = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let _ = sender.send(request.version());
                    std::future::ready(Ok::<_, std::convert::Infallible>(http::Response::new("ok".to_owned())))
                });
                let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    });
    Server { port, ca_file, versions, _folder: folder }
}

/// Grants the server, and trusts its authority.
fn local(publisher: &mut PublisherConfig, server: &Server) {
    granted(publisher, "localhost", server.port);
    publisher.adapter.grants.networks = vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
    publisher.adapter.grants.tls_ca_file = Some(server.ca_file.clone());
}

async fn get(bench: &Bench, server: &Server, trusted: bool) -> String {
    let evil = bench.publisher("evil-publisher", |publisher| {
        local(publisher, server);
        if !trusted {
            publisher.adapter.grants.tls_ca_file = None;
        }
    });
    let outcomes = publish(&*evil.await.unwrap(), &[&format!("http https://localhost:{}/", server.port)]).await;
    let Ok([Outcome::Reject(failure)]) = outcomes.as_deref() else { panic!("{outcomes:?}") };
    failure.detail.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_protocol_is_agreed_on_by_alpn() {
    let bench = Bench::new();
    for (protocols, version) in [(&[&b"h2"[..], b"http/1.1"][..], http::Version::HTTP_2), (&[b"http/1.1"], http::Version::HTTP_11)] {
        let mut server = server(protocols).await;
        let text = get(&bench, &server, true).await;
        assert!(text.contains("status 200, 2 bytes, whole"), "{text}");
        assert_eq!(server.versions.recv().await, Some(version));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_authority_is_not_trusted_and_the_key_is_named() {
    let bench = Bench::new();
    let mut server = server(&[b"http/1.1"]).await;
    let text = get(&bench, &server, false).await;
    assert!(
        text.contains("TlsCertificateError") && text.contains("add tls_ca_file = \"FILE.pem\" under [publishers.evil-publisher]"),
        "{text}"
    );
    assert!(server.versions.try_recv().is_err(), "no request was sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_tls_ca_file_is_told_at_start() {
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [("empty.pem", Some("")), ("missing.pem", None)] {
        let file = folder.path().join(name);
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        let loaded = bench.publisher("evil-publisher", |publisher| {
            granted(publisher, "localhost", 443);
            publisher.adapter.grants.tls_ca_file = Some(file.clone());
        });
        let text = loaded.await.unwrap_err().to_string();
        assert!(text.contains("tls_ca_file") && text.contains(name), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_for_a_client_certificate_gets_it() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let authority = Authority::new(folder.path(), "ours");
    let client = authority.issue("client", |_| {});
    let certificate = ClientCertificate { certificate: client.certificate_file, key: client.key_file };
    let config = Authority::server(authority.issue("localhost", |_| {}), Some(&authority), &[&rustls::version::TLS13]);
    let server = serve(config, authority.file.clone(), folder).await;
    for (certificate, text) in
        [(Some(certificate), "status 200"), (None, "add tls_cert_file and tls_key_file under [publishers.evil-publisher]")]
    {
        let evil = bench.publisher("evil-publisher", |publisher| {
            local(publisher, &server);
            publisher.adapter.grants.tls_client = certificate;
        });
        let outcomes = publish(&*evil.await.unwrap(), &[&format!("http https://localhost:{}/", server.port)]).await;
        let Ok([Outcome::Reject(failure)]) = outcomes.as_deref() else { panic!("{outcomes:?}") };
        assert!(failure.detail.contains(text), "{}", failure.detail);
    }
}
