//! Debezium embedded: a Java program with its libraries, to nowhere or to Kafka.

use super::plan::{Setting, Way};
use super::program::{self, Measured};
use super::stage::{Stage, built, sources, text};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// It has some 70 libraries.
const BUILDING: Duration = Duration::from_secs(600);

/// The folder with its classes and libraries.
pub(super) fn build() -> Result<PathBuf> {
    let folder = built("debezium")?;
    let mut command = Command::new("mvn");
    command.args(["--quiet", "--batch-mode", "--strict-checksums", "--file"]).arg(sources("debezium").join("pom.xml"));
    command.arg(format!("-Dpeers.target={}", text(&folder)?)).args(["compile", "dependency:copy-dependencies"]);
    program::run(&mut command, BUILDING).context("mvn")?;
    Ok(folder)
}

pub(super) fn measure(stage: &mut Stage, setting: Setting) -> Result<Measured> {
    let folder = stage.debezium()?;
    let (folder, load, limit) = (text(&folder)?, stage.load, stage.limit);
    let mut command = Command::new("java");
    command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", &format!("{folder}/classes:{folder}/lib/*"), "Relay"]);
    command.args([load.rows.to_string(), load.keys.to_string(), load.payload.to_string()]);
    let database = stage.logical_database()?;
    // Slots belong to the server: one that a failed run has left would keep all of the log.
    database.connect()?.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active", &[])?;
    command.env("PEER_DATABASE", database.url());
    if setting.way != Way::PostgresToKafka {
        return program::measure(&mut command, limit);
    }
    let (kafka, topic) = stage.topic()?;
    let measured = program::measure(command.env("PEER_KAFKA", kafka.bootstrap()).env("PEER_TOPIC", &topic), limit)?;
    // As many go before those that count.
    let settled = super::records(&kafka.bootstrap(), &topic)?.saturating_sub(load.rows);
    Ok(Measured { settled, ..measured })
}
