//! The admin address, asked over real connections.

use super::*;
use crate::app::inventory::Inventory;
use crate::app::status::{Phase, RelayStatus};
use crate::metrics::RelayLabels;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(super) struct Server {
    address: SocketAddr,
    relay: Arc<RelayStatus>,
    stopping: CancellationToken,
    inventory: Arc<Inventory>,
    metrics: Metrics,
    end: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

pub(super) async fn server() -> Server {
    server_with(serve::ALLOWANCE).await
}

async fn server_with(allowance: serve::Allowance) -> Server {
    let (relay, stopping, metrics) = (Arc::new(RelayStatus::new("orders")), CancellationToken::new(), Metrics::new());
    let status = Status::new(vec![Arc::clone(&relay)], stopping.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let inventory = Arc::new(Inventory::new("outhaul.toml".into()));
    let router = router(status, Arc::clone(&inventory), Arc::new(fan_out_tests::Orders::default()), metrics.clone());
    let end = CancellationToken::new();
    let serving = tokio::spawn(serve::serve(listener, router, allowance, end.clone()));
    Server { address, relay, stopping, inventory, metrics, end, serving }
}

impl Server {
    pub(super) async fn ask(&self, request: &str) -> (u16, String) {
        self.ask_with(request, "").await
    }

    /// With further lines of headers.
    pub(super) async fn ask_with(&self, request: &str, headers: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream
            .write_all(format!("{request} HTTP/1.1\r\n{headers}host: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        (answer[9..12].parse().unwrap(), answer)
    }
}

#[tokio::test]
async fn readiness_follows_the_relays() {
    let server = server().await;
    let (code, answer) = server.ask("GET /readyz").await;
    assert!(code == 503 && answer.contains("\"state\":\"opening\""), "{answer}");
    server.relay.set(Phase::Waiting("the database cannot be reached".into()));
    let (code, answer) = server.ask("GET /readyz").await;
    assert!(code == 503 && answer.contains("the database cannot be reached"), "{answer}");
    server.relay.set(Phase::Running);
    let (code, answer) = server.ask("GET /readyz").await;
    assert!(code == 200 && answer.contains("\"ready\":true"), "{answer}");
    server.stopping.cancel();
    let (code, answer) = server.ask("GET /readyz").await;
    assert!(code == 503 && answer.contains("\"stopping\":true"), "{answer}");
    assert_eq!(server.ask("GET /healthz").await.0, 200);
}

#[tokio::test]
async fn metrics_are_openmetrics() {
    let server = server().await;
    server.metrics.claimed.get_or_create(&RelayLabels { relay: "orders".into() }).inc();
    let (code, answer) = server.ask("GET /metrics").await;
    assert_eq!(code, 200);
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"), "{answer}");
    assert!(answer.contains("outhaul_claimed_total{relay=\"orders\"} 1") && answer.trim_end().ends_with("# EOF"), "{answer}");
}

#[tokio::test]
async fn plugins_are_told_as_they_are_now() {
    let server = server().await;
    let (code, answer) = server.ask("GET /plugins").await;
    assert!(code == 200 && answer.ends_with("{\"config\":\"outhaul.toml\",\"config_refused\":null,\"plugins\":[]}"), "{answer}");
    let generation = crate::plugin::Generation { number: 3, file: "a.wasm".into(), sha256: "ab".into(), version: None };
    server.inventory.opened("publishers.webhooks", "a", &generation);
    let (_, answer) = server.ask("GET /plugins").await;
    assert!(answer.contains("\"adapter\":\"publishers.webhooks\"") && answer.contains("\"generation\":3"), "{answer}");
}

#[tokio::test]
async fn a_wake_up_reaches_the_relay() {
    let server = server().await;
    assert_eq!(server.ask("GET /wake").await.0, 405);
    let (code, answer) = server.ask("POST /wake").await;
    assert!(code == 200 && answer.ends_with("{\"woken\":[\"orders\"]}"), "{answer}");
    tokio::time::timeout(Duration::from_secs(5), server.relay.wake.notified()).await.expect("nobody was woken");
}

#[tokio::test]
async fn another_path_is_told_what_there_is() {
    let (code, answer) = server().await.ask("GET /").await;
    assert!(code == 404 && ENDPOINTS.iter().all(|endpoint| answer.contains(endpoint)), "{answer}");
}

#[tokio::test]
async fn a_taken_address_names_the_key() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let status = Status::new(Vec::new(), CancellationToken::new());
    let inventory = Arc::new(Inventory::new("outhaul.toml".into()));
    let fan_outs = Arc::new(fan_out_tests::Orders::default());
    let Err(error) = listen(address, status, inventory, fan_outs, Metrics::new(), CancellationToken::new()).await else {
        panic!("two listen on {address}")
    };
    assert!(error.to_string().contains("admin.listen") && error.to_string().contains("another process"), "{error}");
}

/// A client that sends this much of a request and then waits for the server to close.
async fn half(address: SocketAddr, sent: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sent.as_bytes()).await.unwrap();
    stream
}

async fn is_closed(mut stream: TcpStream) {
    // A reset is an end as well.
    let mut rest = Vec::new();
    let read = stream.read_to_end(&mut rest);
    drop(tokio::time::timeout(Duration::from_secs(20), read).await.expect("it is still open"));
}

#[tokio::test]
async fn half_sent_heads_take_no_place_for_long() {
    let server = server_with(serve::Allowance { connections: 2, head: Duration::from_millis(100), ..serve::ALLOWANCE }).await;
    let sent = ["", "GET", "GET /healthz HTTP/1.1\r\n", "GET /healthz HTTP/1.1\r\nhost: x\r\nx:"];
    let mut halves = Vec::new();
    for sent in sent {
        halves.push(half(server.address, sent).await);
    }
    let answered = tokio::time::timeout(Duration::from_secs(20), server.ask("GET /healthz")).await.expect("it does not answer");
    assert_eq!(answered.0, 200);
    for half in halves {
        is_closed(half).await;
    }
}

#[tokio::test]
async fn so_many_connections_and_no_more() {
    let allowance = serve::Allowance { connections: 1, head: Duration::from_secs(3600), whole: Duration::from_secs(3600) };
    let server = server_with(allowance).await;
    let only = half(server.address, "GET").await;
    let waiting = tokio::time::timeout(Duration::from_millis(200), server.ask("GET /healthz"));
    assert!(waiting.await.is_err(), "a second connection was served beside the first");
    drop(only);
    assert_eq!(server.ask("GET /healthz").await.0, 200);
}

#[tokio::test]
async fn a_connection_has_its_time_and_the_end_is_graceful() {
    let server = server_with(serve::Allowance { whole: Duration::from_millis(100), ..serve::ALLOWANCE }).await;
    is_closed(half(server.address, "GET").await).await;
    assert_eq!(server.ask("GET /healthz").await.0, 200);
    server.end.cancel();
    tokio::time::timeout(Duration::from_secs(20), server.serving).await.expect("it goes on").unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}
