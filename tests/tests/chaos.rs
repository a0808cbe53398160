//! Short forms of the long runs; `cargo xtask chaos` has the long ones.

use anyhow::Result;
use outhaul_tests::{chaos, cluster, swaps};
use std::time::Duration;

/// Any seed must do: the one of a failed run is in its message.
fn seed() -> u64 {
    rand::random()
}

#[test]
fn killed_again_and_again_nothing_is_lost_or_out_of_order() -> Result<()> {
    println!("{}", chaos::kill(12, seed(), |_| {})?);
    Ok(())
}

#[test]
fn two_hosts_on_one_file_killed_and_frozen_past_their_leases() -> Result<()> {
    println!("{}", chaos::two_hosts(Duration::from_secs(12), seed(), |_| {})?);
    Ok(())
}

#[test]
fn swapped_again_and_again_nothing_is_lost_out_of_order_or_repeated() -> Result<()> {
    println!("{}", swaps::run(20, seed(), |_| {})?);
    Ok(())
}

#[test]
fn two_hosts_and_three_brokers_killed_in_turn_nothing_is_lost_or_out_of_order() -> Result<()> {
    let (pause, pace) = (Duration::from_secs(1), Duration::from_millis(250));
    let plan = cluster::Plan { hosts: 2, events: 20_000, keys: 500, seed: seed(), pause, pace };
    if let Some(summary) = cluster::run(plan, |_| {})? {
        println!("{summary}");
    }
    Ok(())
}
