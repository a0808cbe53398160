//! The server by itself: claim and settle in a loop inside it, by the procedures of bench/peers/limit.sql.

use super::plan::Setting;
use super::program::Measured;
use super::stage::{Stage, sources};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::time::Instant;

pub(super) fn measure(stage: &mut Stage, call: impl Fn(u32) -> String, setting: Setting) -> Result<Measured> {
    let load = stage.load;
    let sql = std::fs::read_to_string(sources("limit.sql")).context("cannot read limit.sql")?;
    let database = stage.database()?;
    let mut client = database.connect()?;
    client.batch_execute(&sql)?;
    client.batch_execute(&format!("CALL limit_fill({}, {}, {})", load.rows, load.keys, load.payload))?;
    let limit = stage.limit.as_millis();
    client
        .batch_execute(&format!("SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; SET statement_timeout = {limit}"))?;
    let started = Instant::now();
    client.batch_execute(&format!("CALL {}", call(setting.batch))).context("the server did not come to an end")?;
    let seconds = started.elapsed().as_secs_f64();
    let settled = client.query_one("SELECT count(*) FROM limit_outbox WHERE status = 'done' AND attempts = 1", &[])?.get::<_, i64>(0);
    let settled = u64::try_from(settled)?;
    let version: String = client.query_one("SHOW server_version", &[])?.get(0);
    let versions = BTreeMap::from([("PostgreSQL (server limit)".to_owned(), version)]);
    // Nothing is sent: what was claimed once and settled counts as both.
    Ok(Measured { sent: settled, settled, seconds, versions, report: None })
}
