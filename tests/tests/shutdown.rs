//! How a host ends: at the first signal in peace, at the second at once.

use anyhow::Result;
use outhaul_tests::outbox::{DELIVERED, Row};
use outhaul_tests::receiver::{Answer, Gate, Receiver};
use outhaul_tests::rig::{Config, Rig};
use outhaul_tests::{places, process};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Stdio;

/// A rig whose receiver holds the answer to its first request; 20 messages of one key are waiting, so that just one is in flight.
fn held_up(change: impl FnOnce(Config) -> Config) -> Result<(Rig, Receiver, Gate)> {
    let gate = Gate::closed();
    let behind = gate.clone();
    let receiver = Receiver::start(move |_| Answer::status(204).behind(&behind))?;
    let config = Config::to(receiver.address())?.set("publishers.webhooks.batch", 1);
    let rig = Rig::new(&change(config))?;
    rig.outbox()?.fill("orders", 1, 20)?;
    Ok((rig, receiver, gate))
}

fn untouched(row: &Row) -> bool {
    row.status == "pending" && row.attempts == 0 && row.leased_by.is_none() && row.due_in_ms <= 0
}

#[test]
fn the_first_signal_finishes_what_is_in_flight_and_hands_the_rest_back() -> Result<()> {
    for signal in [Signal::TERM, Signal::INT] {
        let (rig, receiver, gate) = held_up(|config| config)?;
        let mut host = rig.host()?;
        receiver.wait_for_requests(1)?;
        host.process().signal(signal)?;
        host.process().errors().wait_for_line("stopping")?;
        gate.open();
        assert!(host.process().wait()?.success());

        assert_eq!(receiver.requests().len(), 1, "nothing more was sent");
        let rows = rig.outbox()?.rows()?;
        assert_eq!((rows[0].status.as_str(), rows[0].attempts), (DELIVERED, 1));
        assert!(rows[1..].iter().all(untouched), "{rows:?}");
    }
    Ok(())
}

#[test]
fn the_second_signal_ends_it_at_once_and_leaves_the_leases_to_run_out() -> Result<()> {
    let (rig, receiver, _gate) = held_up(|config| config)?;
    let mut host = rig.host()?;
    receiver.wait_for_requests(1)?;
    host.process().signal(Signal::TERM)?;
    host.process().errors().wait_for_line("stopping")?;
    host.process().signal(Signal::TERM)?;
    host.process().wait()?;
    let first = &rig.outbox()?.rows()?[0];
    assert!(first.status == "pending" && first.leased_by.is_some() && first.due_in_ms > 0, "{first:?}");
    Ok(())
}

#[test]
fn a_graceful_end_does_not_take_longer_than_its_grace() -> Result<()> {
    let (rig, receiver, _gate) = held_up(|config| config.set("shutdown_grace", "200ms"))?;
    let mut host = rig.host()?;
    receiver.wait_for_requests(1)?;
    host.process().signal(Signal::TERM)?;
    host.process().wait()?;
    assert_eq!(rig.outbox()?.count(DELIVERED)?, 0, "the receiver has never answered");
    Ok(())
}

#[test]
fn a_log_that_nobody_reads_any_more_ends_nothing() -> Result<()> {
    let receiver = Receiver::start(|_| Answer::status(204))?;
    let rig = Rig::new(&Config::to(receiver.address())?)?;
    let mut command = process::bound(&places::outhaul()?);
    command.arg("--config").arg(rig.config()).arg("run").env("RUST_LOG", "debug").stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // From here on every line of the log is a broken pipe.
    drop(child.stderr.take());
    rig.outbox()?.fill("orders", 5, 20)?;
    receiver.wait_for_accepted(100)?;
    kill_process(Pid::from_child(&child), Signal::TERM)?;
    assert!(child.wait()?.success());
    assert_eq!(rig.outbox()?.count(DELIVERED)?, 100);
    Ok(())
}
