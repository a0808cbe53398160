//! An adapter that attacks its host, in the real process: its own messages end dead, and nobody else notices.
//!
//! The attacks one by one, with everything that the host makes of them: `host/tests/plugin_evil.rs`.

use anyhow::{Context, Result};
use outhaul_tests::outbox::{DELIVERED, insert};
use outhaul_tests::receiver::Receiver;
use outhaul_tests::rig::{Config, Rig};

/// A payload that is an attack, and what is recorded of its message's last attempt, in which it was alone.
const ATTACKS: [(&str, &str); 15] = [
    ("spin", "publish was ended: its time was over"),
    ("report-then-spin", ""),
    ("sleep", "publish was ended: its time was over"),
    ("panic", "publish panicked (unreachable code); stderr: about to panic"),
    ("recurse", "publish overflowed its stack"),
    ("exit", "publish exited with status 1"),
    ("memory-bomb", "publish wants more memory than 32 MiB (limits.memory)"),
    ("return 1073741824", "publish wants more memory than 32 MiB (limits.memory)"),
    ("return 8388608", "publish handed over more than 4 MiB at once (limits.returned_bytes)"),
    ("few", "publish returned 0 outcomes for 1 messages"),
    ("many", "publish returned 2 outcomes for 1 messages"),
    ("report 7", "publish trapped: it reported an outcome of message 7 of a batch of 1"),
    ("http http://hooks.example.com/", "add allow_hosts = [\"hooks.example.com:80\"] under [publishers.evil]"),
    ("connect 127.0.0.1:5432", "add allow_hosts = [\"127.0.0.1:5432\"] under [publishers.evil]"),
    ("secret signing-key", "add allow_secrets = [\"signing-key\"] under [publishers.evil]"),
];

#[test]
fn an_evil_publisher_harms_its_own_messages_only() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let config = Config::to(receiver.address())?
        .with_evil_publisher()
        .set("publishers.evil.limits.returned_bytes", "4MiB")
        // A publisher that only fails looks like an outage, which would end no message: here the messages are to blame.
        .set_all("relays.0", "publish_timeout = \"500ms\"\nmax_attempts = 2\nbreaker = { failures = 0 }")
        .set("publishers.webhooks.config.timeout", "400ms");
    let rig = Rig::with_fixtures(&config)?;
    let mut outbox = rig.outbox()?;
    let host = rig.host()?;
    for (round, (attack, told)) in ATTACKS.into_iter().enumerate() {
        // In one transaction, so that they are claimed at once: the first three are one batch.
        let transaction = outbox.connection().transaction()?;
        let evil = insert(&transaction, "evil", None, attack.as_bytes())?;
        let innocents = [insert(&transaction, "evil", None, b"innocent")?, insert(&transaction, "evil", Some("k"), b"innocent")?];
        let other = insert(&transaction, "orders", None, attack.as_bytes())?;
        transaction.commit()?;
        outbox
            .wait_for_rows("the rows to be settled", |rows| rows.iter().all(|row| row.status != "pending"))
            .with_context(|| format!("after {attack}; the host logged:\n{}", host.log()))?;
        for id in innocents.iter().chain([&other]) {
            let row = outbox.row(id)?;
            assert_eq!(row.status, DELIVERED, "beside {attack}: {:?}", row.last_error);
        }
        assert_eq!(receiver.requests().len(), round + 1, "the other publisher goes on beside {attack}");
        let row = outbox.row(&evil)?;
        if told.is_empty() {
            // What it reported before it went wrong stands.
            assert_eq!(row.status, DELIVERED, "{attack}: {:?}", row.last_error);
            continue;
        }
        assert_eq!(row.status, "dead", "{attack}");
        let reason = row.last_error.context("no reason was recorded")?;
        assert!(reason.contains(told), "{attack}: {reason}");
        assert!(reason.contains("publisher \"evil\"") || reason.contains("[publishers.evil]"), "{attack}: {reason}");
    }
    // Each attack had hit a call of three messages first.
    let batches = host.log().lines().filter(|line| line.contains("publish call failed") && line.contains("\"messages\":3")).count();
    assert_eq!(batches, ATTACKS.len() - 1, "{}", host.log());
    assert_eq!(host.get("/healthz")?.0, 200);
    assert!(host.metric("outhaul_adapter_faults_total{adapter=\"webhooks\",call=\"publish\"}")?.abs() < 0.5);
    host.shut_down()
}
