//! Attacks of guests on their host (research cases 12, 16 and 17): each ends in a clear error that names the adapter; the process,
//! the adapter's next message and the other adapters go on. `cargo test --test plugin_evil -- --nocapture` prints the list.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and shows what it saw"
)]

mod plugin_bench;

use outhaul::domain::{Column, Failure, Outcome, Settlement, Verdict};
use outhaul::ports::{Publisher, Storage, StorageAdmin};
use plugin_bench::{Bench, claim_request, deliver, granted, publish, publish_within, receiver, texts};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Prints what an attack came to.
fn show(attack: &str, came_to: &str) {
    println!("{attack:<28} -> {came_to}");
}

fn detail(outcomes: Result<Vec<Outcome>, Failure>) -> String {
    match outcomes {
        Err(failure) => failure.to_string(),
        Ok(outcomes) => match outcomes.first() {
            Some(Outcome::Reject(failure) | Outcome::Retry(failure)) => failure.to_string(),
            other => format!("{other:?}"),
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_attacks_is_contained() {
    let bench = Bench::new();
    let evil = bench.publisher("evil-publisher", |publisher| publisher.adapter.limits.memory_bytes = 32 << 20).await.unwrap();
    let honest = bench.publisher("null-publisher", |_| {}).await.unwrap();
    let attacks = [
        ("spin", "publish was ended: its time was over"),
        ("sleep", "publish was ended: its time was over"),
        ("memory-bomb", "publish wants more memory than 32 MiB (limits.memory)"),
        ("return 1073741824", "publish wants more memory than 32 MiB (limits.memory)"),
        ("return 8388608", "publish handed over more than 1 MiB at once (limits.returned_bytes)"),
        ("panic", "publish panicked (unreachable code); stderr: about to panic"),
        ("recurse", "publish overflowed its stack"),
        ("exit", "publish exited with status 1"),
        ("few", "publish returned 1 outcomes for 2 messages"),
        ("many", "publish returned 3 outcomes for 2 messages"),
        ("report 2", "publish trapped: it reported an outcome of message 2 of a batch of 2"),
        ("report 4294967295", "publish trapped: it reported an outcome of message 4294967295 of a batch of 2"),
    ];
    for (attack, expected) in attacks {
        let (result, _) = publish_within(&*evil, &[attack, "second"], Duration::from_millis(400)).await;
        let text = detail(result);
        show(attack, &text);
        assert!(text.contains("publisher \"evil-publisher\" (generation 1)") && text.contains(expected), "{attack}: {text}");
        assert_eq!(deliver(&*evil).await, Ok(vec![Outcome::Delivered]), "the next message after {attack}");
        assert_eq!(deliver(&*honest).await, Ok(vec![Outcome::Delivered]), "another adapter after {attack}");
    }
    let metrics = bench.metrics.encode();
    assert!(metrics.contains("outhaul_adapter_restarts_total{adapter=\"evil-publisher\"} 10"), "{metrics}");
    assert!(metrics.contains("outhaul_adapter_faults_total{adapter=\"evil-publisher\",call=\"publish\"} 12"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_there_that_was_not_granted() {
    let bench = Bench::new();
    let evil = bench.publisher("evil-publisher", |_| {}).await.unwrap();
    let attacks = [
        ("http http://hooks.example.com/", "add allow_hosts = [\"hooks.example.com:80\"] under [publishers.evil-publisher]"),
        ("http https://169.254.169.254/", "add allow_hosts = [\"169.254.169.254:443\"] under [publishers.evil-publisher]"),
        ("http http://user@127.0.0.1/", "HttpRequestUriInvalid"),
        ("connect 127.0.0.1:5432", "add allow_hosts = [\"127.0.0.1:5432\"] under [publishers.evil-publisher]"),
        ("connect db.example.com:5432", "add allow_hosts = [\"db.example.com:PORT\"] under [publishers.evil-publisher]"),
        ("listen", "listening and UDP are not offered to adapters"),
        ("udp", "PermissionDenied"),
        ("files", "invalid-configuration: "),
        ("environment", "0 variables, 0 arguments"),
        ("secret signing-key", "add allow_secrets = [\"signing-key\"] under [publishers.evil-publisher]"),
    ];
    for (attack, expected) in attacks {
        let text = detail(publish(&*evil, &[attack]).await);
        show(attack, &text);
        assert!(text.contains(expected), "{attack}: {text}");
        assert!(!text.contains("connected") && !text.contains("bound") && !text.contains("read"), "{attack}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_address_behind_a_granted_name_is_not_reached() {
    let bench = Bench::new();
    let receiver = receiver("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let port = receiver.address.port();
    let by_name = bench.publisher("evil-publisher", |publisher| granted(publisher, "localhost", port)).await.unwrap();
    for attack in [format!("http http://localhost:{port}/"), format!("connect localhost:{port}")] {
        let text = detail(publish(&*by_name, &[&attack]).await);
        show(&attack.replace(&port.to_string(), "PORT"), &text);
        assert!(text.contains("is loopback; add allow_networks = [\""), "{text}");
    }
    assert_eq!(receiver.requests().await, 0, "nothing was connected");

    // The same name, with the network granted: it is reached. And an address that is an entry of its own.
    let with_network = bench
        .publisher("evil-publisher", |publisher| {
            granted(publisher, "localhost", port);
            publisher.adapter.grants.networks = vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
        })
        .await
        .unwrap();
    let url = format!("http http://localhost:{port}/");
    assert!(detail(publish(&*with_network, &[&url]).await).contains("status 200, 2 bytes, whole"));
    let connect = format!("connect localhost:{port}");
    assert!(detail(publish(&*with_network, &[&connect]).await).contains("connected"));
    let by_address = bench.publisher("evil-publisher", |publisher| granted(publisher, "127.0.0.1", port)).await.unwrap();
    let url = format!("http http://127.0.0.1:{port}/");
    assert!(detail(publish(&*by_address, &[&url]).await).contains("status 200, 2 bytes, whole"));
}

/// WASI's own drop of an output stream waits until all of it has gone out, which the peer decides: the guest hung in it past its deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_read_does_not_keep_a_guest_that_gives_up() {
    let bench = Bench::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let evil = bench.publisher("evil-publisher", |publisher| granted(publisher, "127.0.0.1", port)).await.unwrap();
    let attack = format!("flood 127.0.0.1:{port}");
    let (result, _) = publish_within(&*evil, &[&attack], Duration::from_secs(5)).await;
    let text = detail(result);
    show("flood", &text);
    assert!(text.contains("TimedOut") || text.contains("WouldBlock"), "{text}");

    // And what the system had not taken by then does not leave any more.
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut received = 0;
    let mut buffer = vec![0; 1 << 20];
    while let Ok(count @ 1..) = tokio::io::AsyncReadExt::read(&mut stream, &mut buffer).await {
        received += count;
    }
    assert!((1..24 << 20).contains(&received), "{received} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_are_handed_on_not_followed() {
    let bench = Bench::new();
    let receiver = receiver("HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n").await;
    let port = receiver.address.port();
    let evil = bench.publisher("evil-publisher", |publisher| granted(publisher, "127.0.0.1", port)).await.unwrap();
    let text = detail(publish(&*evil, &[&format!("http http://127.0.0.1:{port}/x")]).await);
    show("http (redirect)", &text);
    assert!(text.contains("status 302 to http://169.254.169.254/"), "{text}");
    assert_eq!(receiver.requests().await, 1);
    let head = receiver.last_head().await;
    assert!(head.starts_with("GET /x HTTP/1.1\r\n") && head.contains(&format!("host: 127.0.0.1:{port}\r\n")), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_bounded_in_bytes_and_in_time() {
    let bench = Bench::new();
    let body = "x".repeat(3 << 20);
    let large = receiver(&format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
    let head = receiver(&format!("HTTP/1.1 200 OK\r\nx: {}\r\ncontent-length: 0\r\n\r\n", "y".repeat(200_000))).await;
    let silent = receiver("").await;
    for (attack, receiver, expected) in [
        ("http (large body)", &large, "body size exceeds limit: 1048576 bytes"),
        ("http (large head)", &head, "HttpResponseHeaderSectionSize"),
        ("http (no answer)", &silent, "publish was ended: its time was over"),
    ] {
        let port = receiver.address.port();
        let evil = bench.publisher("evil-publisher", |publisher| granted(publisher, "127.0.0.1", port)).await.unwrap();
        let url = format!("http http://127.0.0.1:{port}/");
        let (result, _) = publish_within(&*evil, &[&url], Duration::from_millis(1500)).await;
        let text = detail(result);
        show(attack, &text);
        assert!(text.contains(expected), "{attack}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_reused() {
    let bench = Bench::new();
    let receiver = receiver("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let port = receiver.address.port();
    let evil = bench.publisher("evil-publisher", |publisher| granted(publisher, "127.0.0.1", port)).await.unwrap();
    let url = format!("http http://127.0.0.1:{port}/");
    for _ in 0..20 {
        assert!(detail(publish(&*evil, &[&url]).await).contains("status 200"));
    }
    assert_eq!((receiver.requests().await, receiver.connections().await), (20, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_log_lines_is_cut() {
    let bench = Bench::new();
    let evil = bench.publisher("evil-publisher", |_| {}).await.unwrap();
    let outcomes = publish(&*evil, &["log-flood"]).await;
    assert_eq!(outcomes, Ok(vec![Outcome::Delivered]));
    let metrics = bench.metrics.encode();
    let dropped = metrics
        .lines()
        .find_map(|line| line.strip_prefix("outhaul_adapter_log_lines_dropped_total{adapter=\"evil-publisher\"} "))
        .and_then(|count| count.parse::<u64>().ok())
        .unwrap();
    show("log-flood", &format!("{dropped} of 100000 lines dropped"));
    assert!(dropped > 90_000, "{dropped}");
}

#[tokio::test(flavor = "multi_thread")]
async fn spinning_guests_do_not_starve_the_others() {
    let bench = Bench::new();
    let evil = bench.publisher("evil-publisher", |publisher| publisher.lanes = 8).await.unwrap();
    let honest = bench.publisher("null-publisher", |_| {}).await.unwrap();
    let cancel = CancellationToken::new();
    let spinning: Vec<_> = (0..8)
        .map(|_| {
            let (evil, cancel) = (evil.clone(), cancel.clone());
            tokio::spawn(async move {
                let (call, _reports) = plugin_bench::call(Duration::from_secs(3600));
                evil.publish(plugin_bench::batch(&["spin"]), outhaul::ports::PublishCall { cancel, ..call }).await
            })
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(deliver(&*honest).await, Ok(vec![Outcome::Delivered]), "beside 8 guests that spin for an hour");
    }
    assert!(spinning.iter().all(|spin| !spin.is_finished()));
    cancel.cancel();
    for spin in spinning {
        assert!(detail(spin.await.unwrap()).contains("it was given up"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_given_up_ends_at_once_and_keeps_its_reports() {
    let bench = Bench::new();
    let evil = bench.publisher("evil-publisher", |_| {}).await.unwrap();
    let cancel = CancellationToken::new();
    let (call, mut reports) = plugin_bench::call(Duration::from_secs(600));
    let call = outhaul::ports::PublishCall { cancel: cancel.clone(), ..call };
    let batch = plugin_bench::batch(&["report-then-spin", "second"]);
    let running = tokio::spawn({
        let evil = evil.clone();
        async move { evil.publish(batch, call).await }
    });
    assert_eq!(reports.recv().await, Some((0, Outcome::Delivered)), "reported before the call returned");
    cancel.cancel();
    let text = detail(running.await.unwrap());
    show("report-then-spin, cancelled", &text);
    assert!(text.contains("publish was ended: it was given up"), "{text}");
    assert_eq!(deliver(&*evil).await, Ok(vec![Outcome::Delivered]));
    // Dropping the future throws the instance away as well.
    let dropped = tokio::time::timeout(Duration::from_millis(100), publish(&*evil, &["sleep"]));
    assert!(dropped.await.is_err());
    assert_eq!(deliver(&*evil).await, Ok(vec![Outcome::Delivered]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_report_of_a_message_stands() {
    let bench = Bench::new();
    let evil = bench.publisher("evil-publisher", |_| {}).await.unwrap();
    let (result, reports) = publish_within(&*evil, &["report-twice"], Duration::from_secs(5)).await;
    assert_eq!(result, Ok(vec![Outcome::Delivered]));
    assert_eq!(reports, [(0, Outcome::Held)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn attacks_while_opening_are_told() {
    let bench = Bench::new();
    for (attack, expected) in [
        ("spin", "open was ended: its time was over"),
        ("report", "open trapped: it reported an outcome outside of publish"),
        ("refuse", "open: `url`: is missing"),
    ] {
        let opened = bench.publisher("evil-publisher", |publisher| {
            publisher.adapter.config = serde_json::json!({ "open": attack });
            publisher.adapter.limits.call_timeout = Duration::from_millis(300);
        });
        let text = opened.await.unwrap_err().to_string();
        show(&format!("open: {attack}"), &text);
        assert!(text.contains("publisher \"evil-publisher\" (generation 1)") && text.contains(expected), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_that_attacks_is_contained() {
    let bench = Bench::new();
    let evil = bench
        .storage("evil-storage", |storage| {
            storage.limits.memory_bytes = 64 << 20;
            storage.limits.call_timeout = Duration::from_millis(700);
        })
        .await
        .unwrap();
    evil.create_schema().await.unwrap();
    let attacks = [
        ("too-many", "returned a broken batch: has 6 messages where at most 5 were asked for"),
        ("offsets", "returned a broken batch: the column of payloads offset 0 is out of order or out of range"),
        ("short-column", "returned a broken batch: the column of topics has 4 values instead of 5"),
        ("not-utf8", "returned a broken batch: the column of ids value 0 is not UTF-8"),
        ("headers", "returned a broken batch: the header ends are out of order"),
        ("huge 1073741824", "wants more memory than 64 MiB (limits.memory)"),
        ("huge 8388608", "handed over more than 1 MiB at once (limits.returned_bytes)"),
        ("open other", "database \"other\" is not granted: set database = \"other\" under [storages.evil-storage]"),
        ("sql ATTACH DATABASE '/tmp/evil.db' AS evil", "sql: "),
        ("sql PRAGMA writable_schema = ON", "sql: "),
        ("sql SELECT load_extension('x')", "sql: "),
        ("bad-column", "sql: "),
        ("trap-in-transaction", "claim panicked (unreachable code)"),
        ("spin-in-transaction", "claim was ended: its time was over"),
        ("hoard-connections", "it opened more than 16 database connections"),
    ];
    for (attack, expected) in attacks {
        let text = evil.claim(&claim_request(attack, 5)).await.unwrap_err().to_string();
        show(attack, &text);
        assert!(text.contains("storage \"evil-storage\" (generation 1): claim") && text.contains(expected), "{attack}: {text}");
        let fine = evil.claim(&claim_request("worker", 5)).await.unwrap();
        assert!(fine.batch.is_empty(), "the next call after {attack}");
    }
    // No attack left a row behind, and the database can be written.
    let text = evil.claim(&claim_request("count", 5)).await.unwrap_err().to_string();
    assert!(text.contains("0 rows"), "{text}");
    evil.claim(&claim_request("sql INSERT INTO evil (id) VALUES (7)", 5)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_left_open_is_rolled_back_when_the_call_ends() {
    let bench = Bench::new();
    let evil = bench.storage("evil-storage", |_| {}).await.unwrap();
    evil.create_schema().await.unwrap();
    evil.claim(&claim_request("leave-open", 5)).await.unwrap();
    // The instance is the same one: it still holds the handle, of a transaction that is over.
    let text = evil.claim(&claim_request("use-kept", 5)).await.unwrap_err().to_string();
    show("leave-open, use-kept", &text);
    assert!(text.contains("was rolled back when the call that began it returned"), "{text}");
    assert!(evil.claim(&claim_request("count", 5)).await.unwrap_err().to_string().contains("0 rows"));
    evil.claim(&claim_request("sql INSERT INTO evil (id) VALUES (7)", 5)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_others_hold_is_told_to_the_guest_and_is_not_its_fault() {
    let bench = Bench::new();
    let evil = bench.storage("evil-storage", |storage| storage.limits.call_timeout = Duration::from_secs(3)).await.unwrap();
    evil.create_schema().await.unwrap();
    let other = rusqlite::Connection::open(bench.database_file("main")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let insert = claim_request("sql INSERT INTO evil (id) VALUES (7)", 5);
    let text = evil.claim(&insert).await.unwrap_err().to_string();
    show("a lock held by others", &text);
    assert!(text.contains("database is locked"), "{text}");
    other.execute_batch("ROLLBACK").unwrap();
    evil.claim(&insert).await.unwrap();
    let metrics = bench.metrics.encode();
    let faults = |line: &&str| line.starts_with("outhaul_adapter_faults_total{") || line.starts_with("outhaul_adapter_restarts_total{");
    assert!(metrics.lines().filter(faults).all(|line| line.ends_with(" 0")), "{metrics}");
    assert!(metrics.lines().filter(faults).count() > 1, "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_none_are_not_repeated() {
    let bench = Bench::new();
    let evil = bench.storage("evil-storage", |_| {}).await.unwrap();
    for name in ["x".repeat(500_000), "ma\nin ERROR forged".to_owned()] {
        let text = evil.claim(&claim_request(&format!("open {name}"), 5)).await.unwrap_err().to_string();
        assert!(text.contains("is not a name") && text.len() < 1000 && !text.contains("forged"), "{text:.300}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_were_never_given_are_refused() {
    let bench = Bench::new();
    let evil = bench.storage("evil-storage", |_| {}).await.unwrap();
    let ids = Column::of_texts(["1", "2"]);
    let settlement = Settlement { verdict: Verdict::Delivered, ids: ids.clone() };
    let settled = evil.settle("foreign", std::slice::from_ref(&settlement)).await.unwrap_err().to_string();
    let extended = evil.extend("foreign", &ids, Duration::from_secs(60)).await.unwrap_err().to_string();
    for (call, text) in [("settle", settled), ("extend", extended)] {
        show(&format!("{call}: foreign id"), &text);
        assert!(text.contains(&format!("storage \"evil-storage\" (generation 1): {call} returned the id \"never-given\"")), "{text}");
    }
    let turn = evil.settle_and_claim(&[settlement], &claim_request("foreign", 5)).await.unwrap_err().to_string();
    assert!(turn.contains("settle-and-claim returned the id \"never-given\""), "{turn}");
    assert_eq!(evil.extend("worker", &ids, Duration::from_secs(60)).await, Ok(vec![]));
    let enqueued = evil.enqueue(&plugin_bench::batch(&["x"])).await.unwrap_err().to_string();
    assert!(enqueued.contains("enqueue returned 2 ids for 1 messages"), "{enqueued}");
    let browsed = evil.browse(&outhaul::ports::Filter::default(), None, 3, true).await.unwrap_err().to_string();
    assert!(browsed.contains("browse returned 3 messages for 0 rows"), "{browsed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_not_granted_cannot_be_opened() {
    let bench = Bench::new();
    let opened = bench.storage("evil-storage", |storage| storage.grants.databases.clear()).await;
    let text = opened.unwrap_err().to_string();
    show("open: no grant", &text);
    assert!(text.contains("database \"main\" is not granted: set database = \"main\" under [storages.evil-storage]"), "{text}");
    let opened = bench.storage("evil-storage", |storage| storage.config = serde_json::json!({ "attack": "watch-other" })).await;
    let text = opened.unwrap_err().to_string();
    show("open: foreign wake source", &text);
    assert!(text.contains("a wake source that it may not have: database \"other\" is not granted"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_come_by_grant_and_are_read_afresh() {
    let bench = Bench::new();
    let evil = bench.publisher("evil-publisher", |publisher| publisher.adapter.grants.secrets = texts(&["key", "gone"])).await.unwrap();
    for value in ["first", "second"] {
        std::fs::write(bench.secret_file("key"), format!("{value}\n")).unwrap();
        assert!(detail(publish(&*evil, &["secret key"]).await).contains(&format!("Some(\"{value}\")")));
    }
    assert!(detail(publish(&*evil, &["secret gone"]).await).contains("None"));
    assert!(detail(publish(&*evil, &["secret other"]).await).contains("set allow_secrets = [\"key\", \"gone\", \"other\"]"));
}
