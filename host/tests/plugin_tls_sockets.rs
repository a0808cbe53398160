//! TLS of adapters over sockets of their own (`wasi:tls`): who is trusted, who is shown what, and the texts where it goes wrong.
//! `cargo test --test plugin_tls_sockets -- --nocapture` prints them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::print_stdout, reason = "a test stops at the first surprise")]

mod plugin_bench;

use outhaul::config::model::{ClientCertificate, Grants, Publisher as PublisherConfig};
use outhaul::domain::Outcome;
use plugin_bench::certificates::{Authority, Issued};
use plugin_bench::{Bench, granted, publish_within};
use rustls::{ServerConfig, version::TLS12, version::TLS13};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// A server that answers what it gets. The receiver tells of each connection: the bytes, or why there are none.
async fn echo(config: ServerConfig) -> (u16, mpsc::UnboundedReceiver<Result<Vec<u8>, String>>) {
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, seen) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            tokio::spawn(async move {
                let talk = async {
                    let mut stream = acceptor.accept(stream).await?;
                    let mut bytes = Vec::new();
                    stream.read_to_end(&mut bytes).await?;
                    stream.write_all(&bytes).await?;
                    stream.shutdown().await?;
                    Ok::<_, std::io::Error>(bytes)
                };
                let _ = sender.send(talk.await.map_err(|error| error.to_string()));
            });
        }
    });
    (port, seen)
}

/// A server that sends this to whoever connects, and hangs up if it is asked to.
async fn plain(greeting: &'static [u8], hangs_up: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            // What the client has sent is read first: closing with unread bytes would be a reset.
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(greeting).await;
            if !hangs_up {
                kept.push(stream);
            }
        }
    });
    port
}

/// What the guest came to with this attack. `localhost` is granted on the port, and its addresses.
async fn talk(bench: &Bench, port: u16, attack: &str, configure: impl FnOnce(&mut Grants)) -> String {
    let evil = bench.publisher("evil-publisher", |publisher| {
        local(publisher, port);
        configure(&mut publisher.adapter.grants);
    });
    let (outcomes, _) = publish_within(&*evil.await.unwrap(), &[attack], Duration::from_secs(10)).await;
    let Ok([Outcome::Reject(failure)]) = outcomes.as_deref() else { panic!("{attack}: {outcomes:?}") };
    println!("{}", failure.detail);
    failure.detail.clone()
}

fn local(publisher: &mut PublisherConfig, port: u16) {
    granted(publisher, "localhost", port);
    publisher.adapter.grants.networks = vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
}

fn shown(client: &Issued) -> Option<ClientCertificate> {
    Some(ClientCertificate { certificate: client.certificate_file.clone(), key: client.key_file.clone() })
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_come_and_go_with_both_versions() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let authority = Authority::new(folder.path(), "ours");
    for version in [&TLS12, &TLS13] {
        let (port, mut seen) = echo(Authority::server(authority.issue("localhost", |_| {}), None, &[version])).await;
        for text in ["hello".to_owned(), "x".repeat(300_000)] {
            let attack = format!("tls localhost:{port} localhost {text}");
            let answer = talk(&bench, port, &attack, |grants| grants.tls_ca_file = Some(authority.file.clone())).await;
            assert_eq!(answer, format!("{} bytes: {text:.20}", text.len()), "{version:?}");
            assert_eq!(seen.recv().await.unwrap(), Ok(text.into_bytes()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_not_to_be_trusted_are_refused() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let (ours, theirs) = (Authority::new(folder.path(), "ours"), Authority::new(folder.path(), "theirs"));
    let both = [&TLS12, &TLS13];
    let expired = |params: &mut rcgen::CertificateParams| params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let early = |params: &mut rcgen::CertificateParams| params.not_before = rcgen::date_time_ymd(2200, 1, 1);
    let ours_file = Some(ours.file.clone());
    for (issued, ca_file, text) in [
        (
            ours.issue("localhost", |_| {}),
            None,
            "issued by an unknown authority: add tls_ca_file = \"FILE.pem\" under [publishers.evil-publisher]",
        ),
        (
            theirs.issue("localhost", |_| {}),
            ours_file.clone(),
            "unknown authority, which is neither one of the system's nor in tls_ca_file (",
        ),
        (ours.issue("localhost", expired), ours_file.clone(), "its certificate has expired at 2020-01-01T00:00:00Z"),
        (
            ours.issue("localhost", early),
            ours_file.clone(),
            "its certificate is not valid before 2200-01-01T00:00:00Z by this machine's clock",
        ),
        (ours.issue("b1.example", |_| {}), ours_file, "its certificate is for b1.example, not for localhost"),
    ] {
        let (port, mut seen) = echo(Authority::server(issued, None, &both)).await;
        let told = talk(&bench, port, &format!("tls localhost:{port}"), |grants| grants.tls_ca_file = ca_file).await;
        assert!(told.contains("TLS with localhost failed: ") && told.contains(text), "{told}");
        assert_eq!(told.matches("TLS with localhost failed").count(), 1, "told once: {told}");
        seen.recv().await.unwrap().unwrap_err();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_is_shown_where_it_is_asked_for() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let (ours, theirs) = (Authority::new(folder.path(), "ours"), Authority::new(folder.path(), "theirs"));
    let (client, stranger) = (ours.issue("client", |_| {}), theirs.issue("stranger", |_| {}));
    let ca_file = Some(ours.file.clone());
    for version in [&TLS12, &TLS13] {
        let (port, _seen) = echo(Authority::server(ours.issue("localhost", |_| {}), Some(&ours), &[version])).await;
        for (certificate, text) in [
            (shown(&client), "5 bytes: hello"),
            (None, "it asks for a client certificate (alert"),
            (shown(&stranger), "it refuses the client certificate in tls_cert_file ("),
        ] {
            let attack = format!("tls localhost:{port}");
            let told = talk(&bench, port, &attack, |grants| {
                grants.tls_ca_file = ca_file.clone();
                grants.tls_client = certificate;
            });
            let told = told.await;
            assert!(told.contains(text), "{version:?}: {told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_without_tls_is_told_apart() {
    let bench = Bench::new();
    for (port, text) in [
        (plain(b"HTTP/1.1 400 Bad Request\r\n\r\n", true).await, "what the other side sent is not TLS: does it speak TLS on this port?"),
        (plain(b"", true).await, "the other side hung up during the handshake: does it speak TLS on this port?"),
    ] {
        let told = talk(&bench, port, &format!("tls localhost:{port}"), |_| {}).await;
        assert!(told.contains("TLS with localhost failed: ") && told.contains(text), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_is_not_taken_for_the_end_of_an_answer() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let authority = Authority::new(folder.path(), "ours");
    let config = Authority::server(authority.issue("localhost", |_| {}), None, &[&TLS13]);
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
        stream.write_all(b"half of the ans").await.unwrap();
        stream.flush().await.unwrap();
        // Dropped without the alert that says that this was all.
    });
    let told = talk(&bench, port, &format!("tls localhost:{port}"), |grants| grants.tls_ca_file = Some(authority.file.clone())).await;
    assert_eq!(told, "ConnectionAborted: localhost closed the connection without saying so");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_costs_the_call_no_more_than_its_time_and_the_guest_hears_of_it() {
    let bench = Bench::new();
    let port = plain(b"", false).await;
    let evil = bench.publisher("evil-publisher", |publisher| local(publisher, port)).await.unwrap();
    let began = Instant::now();
    let (outcomes, _) = publish_within(&*evil, &[&format!("tls localhost:{port}")], Duration::from_secs(1)).await;
    let Ok([Outcome::Reject(failure)]) = outcomes.as_deref() else { panic!("{outcomes:?}") };
    assert!(failure.detail.contains("TLS with localhost failed: no answer to the handshake in "), "{}", failure.detail);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_name_that_a_guest_claims_must_be_granted() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let authority = Authority::new(folder.path(), "ours");
    let (port, mut seen) = echo(Authority::server(authority.issue("bank.example", |_| {}), None, &[&TLS13])).await;
    let attack = format!("tls localhost:{port} bank.example");
    let told = talk(&bench, port, &attack, |grants| grants.tls_ca_file = Some(authority.file.clone())).await;
    assert!(told.contains("bank.example:PORT is not granted: set allow_hosts = [\"localhost:"), "{told}");
    seen.recv().await.unwrap().unwrap_err();
    let told = talk(&bench, port, &attack, |grants| {
        grants.tls_ca_file = Some(authority.file.clone());
        grants.hosts.push(outhaul::config::model::HostGrant { host: "bank.example".into(), port: Some(port) });
    });
    assert_eq!(told.await, "5 bytes: hello");
    // Nor may it be an address that nobody granted, though the certificate is for that.
    let (port, mut seen) = echo(Authority::server(authority.issue("10.9.8.7", |_| {}), None, &[&TLS13])).await;
    let attack = format!("tls localhost:{port} 10.9.8.7");
    let told = talk(&bench, port, &attack, |grants| grants.tls_ca_file = Some(authority.file.clone())).await;
    assert!(told.contains("10.9.8.7:PORT is not granted: set allow_hosts = [\"localhost:"), "{told}");
    seen.recv().await.unwrap().unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_grant_there_is_not_even_a_connection() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().unwrap());
    let authority = Authority::new(folder.path(), "ours");
    let (port, mut seen) = echo(Authority::server(authority.issue("localhost", |_| {}), None, &[&TLS13])).await;
    for (host, line) in
        [("localhost", "allow_hosts = [\"localhost:PORT\"]".to_owned()), ("127.0.0.1", format!("allow_hosts = [\"127.0.0.1:{port}\"]"))]
    {
        let told = talk(&bench, port, &format!("tls {host}:{port}"), |grants| *grants = Grants::default()).await;
        assert!(told.starts_with("PermissionDenied: the host denies it") && told.contains(&line), "{told}");
    }
    assert!(seen.try_recv().is_err());
}
