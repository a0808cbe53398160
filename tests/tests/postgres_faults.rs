//! Faults between the host and PostgreSQL that leave a verdict in doubt: an answer that is lost after the commit, a row that somebody
//! else has locked, a table that is away for a moment. On each major version.

use anyhow::{Context, Result};
use outhaul_services::{Database, Postgres};
use outhaul_tests::host::Host;
use outhaul_tests::postgres::{Outbox, on_each_major};
use outhaul_tests::receiver::{Answer, Gate, Receiver};
use outhaul_tests::rig::{Config, Rig};
use outhaul_tests::wire::{Loss, Wire};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Leases run out soon, and calls give up before.
const HASTY: &str = "lease = \"10s\"\npublish_timeout = \"8s\"";
const CALL_TIMEOUT: &str = "3s";

/// A host that looks again only after ten minutes: what comes sooner was announced, or was due.
const ASLEEP: &str = r#"poll = { min = "10m", max = "10m" }"#;

fn config(receiver: &Receiver) -> Result<Config> {
    let config = Config::to(receiver.address())?.set("publishers.webhooks.config.timeout", "7s");
    Ok(config.set_all("relays.0", HASTY).set("storages.outbox.limits.call_timeout", CALL_TIMEOUT))
}

/// A database behind a wire, with its table.
fn stage(server: &Postgres, config: Config) -> Result<(Database, Outbox, Wire, Rig)> {
    let database = server.create_database()?;
    let wire = Wire::to(server.port)?;
    let rig = Rig::new(&config.on_postgres(&wire.url(&database.url(), server.port)))?;
    let outbox = Outbox::of(&database)?;
    Ok((database, outbox, wire, rig))
}

/// Messages that were sent more than once, and how often.
fn sent_again(receiver: &Receiver) -> HashMap<String, usize> {
    let mut sends = HashMap::new();
    receiver.look(|log| log.iter().for_each(|request| *sends.entry(request.id.clone()).or_insert(0) += 1));
    sends.retain(|_, sends| *sends > 1);
    sends
}

fn nothing_is_dead(host: Host, outbox: &mut Outbox) -> Result<()> {
    host.shut_down()?;
    assert_eq!(outbox.count("dead")?, 0);
    Ok(())
}

#[test]
fn a_retry_whose_answer_was_lost_is_not_written_over_the_lease_of_the_next_try() -> Result<()> {
    on_each_major(|server| {
        for loss in [Loss::Silence, Loss::Cut] {
            // The second try is under way for longer than the lost call is waited for.
            let receiver = Receiver::start(|request| match request.earlier {
                0 => Answer::status(503),
                _ => Answer::status(204).after(Duration::from_millis(4500)),
            })?;
            let (_database, mut outbox, wire, rig) = stage(server, config(&receiver)?)?;
            let host = rig.host()?;
            wire.lose_the_commit_after(b"answered 503", loss);
            let id = outbox.add("orders", Some("k"), b"x")?;
            wire.wait_until_sprung()?;
            outbox.wait_until_settled()?;
            assert_eq!(receiver.requests().len(), 2, "{loss:?}\n{}", host.log());
            assert_eq!(outbox.row(&id)?.attempts, 2, "{loss:?}\n{}", host.log());
            nothing_is_dead(host, &mut outbox)?;
        }
        Ok(())
    })
}

#[test]
fn a_claim_or_a_delivery_whose_answer_was_lost_costs_no_second_send() -> Result<()> {
    on_each_major(|server| {
        for (of_claim, loss) in [true, false].into_iter().flat_map(|of| [Loss::Silence, Loss::Cut].map(|loss| (of, loss))) {
            let gate = Gate::closed();
            let behind = gate.clone();
            let receiver = Receiver::start(move |_| Answer::status(204).behind(&behind))?;
            let (_database, mut outbox, wire, rig) = stage(server, config(&receiver)?.set_all("relays.0", ASLEEP))?;
            let host = rig.host()?;
            if of_claim {
                wire.lose_the_commit_after(b"", loss);
                gate.open();
            }
            for number in 0..3 {
                outbox.add("orders", Some(&format!("k{number}")), b"x")?;
            }
            if !of_claim {
                receiver.wait_for_requests(3)?;
                wire.lose_the_commit_after(b"", loss);
                gate.open();
            }
            wire.wait_until_sprung()?;
            receiver.wait_for_accepted(3)?;
            outbox.wait_until_settled().with_context(|| format!("claim: {of_claim}, {loss:?}\n{}", host.log()))?;
            assert_eq!(receiver.requests().len(), 3, "claim: {of_claim}, {loss:?}");
            nothing_is_dead(host, &mut outbox)?;
        }
        Ok(())
    })
}

/// A row in flight is locked by somebody for several leases. All others are settled meanwhile, each having been sent once.
#[test]
fn a_row_that_somebody_has_locked_holds_up_only_itself() -> Result<()> {
    on_each_major(|server| {
        let gate = Gate::closed();
        let behind = gate.clone();
        let receiver = Receiver::start(move |_| Answer::status(204).behind(&behind))?;
        let (database, mut outbox, _wire, rig) = stage(server, config(&receiver)?.set("relays.0.max_attempts", 3))?;
        outbox.fill("orders", 50, 1)?;
        let host = rig.host()?;
        let first = receiver.wait_for_requests(50)?;
        let locked = first[25].id.clone();
        let mut other = database.connect()?;
        let mut locking = other.transaction()?;
        locking.execute("SELECT 1 FROM outbox WHERE id::text = $1 FOR UPDATE", &[&locked])?;
        let started = Instant::now();
        gate.open();
        let mut keys = 50;
        while started.elapsed() < Duration::from_secs(25) {
            for _ in 0..10 {
                outbox.add("orders", Some(&format!("n{keys}")), b"x")?;
                keys += 1;
            }
            receiver.wait_for_accepted(keys)?;
        }
        outbox.wait_for_rows("all but one to be settled", |rows| rows.iter().filter(|row| row.status == "pending").count() == 1)?;
        assert_eq!(outbox.row(&locked)?.status, "pending");
        locking.rollback()?;
        outbox.wait_until_settled()?;
        let mut again = sent_again(&receiver);
        // Its lease could not be renewed: it may have been claimed again.
        again.remove(&locked);
        assert!(again.is_empty(), "{again:?}\n{}", host.log());
        nothing_is_dead(host, &mut outbox)
    })
}

#[test]
fn a_table_that_is_away_for_a_moment_costs_no_second_send() -> Result<()> {
    on_each_major(|server| {
        let gate = Gate::closed();
        let behind = gate.clone();
        let receiver = Receiver::start(move |_| Answer::status(204).behind(&behind))?;
        let (_database, mut outbox, _wire, rig) = stage(server, config(&receiver)?)?;
        outbox.fill("orders", 5, 1)?;
        let mut host = rig.host()?;
        receiver.wait_for_requests(5)?;
        outbox.client().batch_execute("ALTER TABLE outbox RENAME TO elsewhere")?;
        gate.open();
        host.process().errors().wait_for_line("the storage fails")?;
        // Nothing tells that verdicts have been refused several times over: several of their waits fit in here.
        std::thread::sleep(Duration::from_secs(3));
        outbox.client().batch_execute("ALTER TABLE elsewhere RENAME TO outbox")?;
        outbox.wait_until_settled()?;
        assert_eq!(receiver.requests().len(), 5);
        nothing_is_dead(host, &mut outbox)
    })
}
