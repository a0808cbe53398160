//! Short forms of the long runs and measurements, and the tour: `cargo xtask chaos fan-out`, `fan-out-throughput`, `demo fan-out`.

use anyhow::Result;
use outhaul_tests::fan_out::storm::Storm;
use outhaul_tests::fan_out::throughput::Load;
use outhaul_tests::fan_out::{Ground, on_newest_postgres, storm, throughput, tour};

/// Any seed must do: the one of a failed run is in its message.
fn two_hosts_killed_at_random(ground: Ground<'_>) -> Result<()> {
    let storm = Storm { events: 1_000, subscribers: 5, kills: 4, pace: 100, seed: rand::random() };
    println!("{}", storm::run(ground, storm, |_| {})?);
    Ok(())
}

#[test]
fn two_hosts_killed_at_random_nothing_is_lost_or_out_of_order_on_sqlite() -> Result<()> {
    two_hosts_killed_at_random(Ground::Sqlite)
}

#[test]
fn two_hosts_killed_at_random_nothing_is_lost_or_out_of_order_on_postgres() -> Result<()> {
    on_newest_postgres(two_hosts_killed_at_random)
}

fn measures_what_it_says(ground: Ground<'_>) -> Result<()> {
    for subscribers in [1, 10] {
        let rates = throughput::run(ground, Load { subscribers, deliveries: 500 })?;
        assert_eq!((rates.events, rates.deliveries), (500 / subscribers, 500));
        println!("{rates}");
    }
    Ok(())
}

#[test]
fn the_measurement_runs_on_sqlite() -> Result<()> {
    measures_what_it_says(Ground::Sqlite)
}

#[test]
fn the_measurement_runs_on_postgres() -> Result<()> {
    on_newest_postgres(measures_what_it_says)
}

fn tells_everything(ground: Ground<'_>) -> Result<()> {
    let mut told = String::new();
    tour::run(ground, |text| {
        told.push_str(text);
        told.push('\n');
    })?;
    for part in ["1.  ", "2.  ", "3.  ", "4.  ", "5.  ", "6.  ", "subscription_changed", "integrity_failure", "permanent_http"] {
        assert!(told.contains(part), "{part} is not in {told}");
    }
    Ok(())
}

#[test]
fn the_tour_is_true_on_sqlite() -> Result<()> {
    tells_everything(Ground::Sqlite)
}

#[test]
fn the_tour_is_true_on_postgres() -> Result<()> {
    on_newest_postgres(tells_everything)
}
