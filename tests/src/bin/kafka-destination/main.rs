//! A destination for `outhaul plugin test kafka-publisher.wasm --destination-command kafka-destination`: one scripted broker in memory,
//! worked by JSON lines on stdin and stdout.
//!
//! Its answers are those of a broker: what is scripted for one message befalls the whole batch that it is in, but a record that is
//! refused for itself is named.

mod broker;
mod records;

use anyhow::{Context, Result};
use broker::{Broker, State};
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;
use std::io::{BufRead, Write};

/// What the kit asks.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    Script(HashMap<String, Vec<broker::Answer>>),
    Received,
}

fn main() -> Result<()> {
    let broker = Broker::start()?;
    let mut output = std::io::stdout().lock();
    let answers = ["accept", "unavailable", "invalid", "too_large", "unauthorized", "slow", "silent", "broken"];
    let ready = json!({ "address": broker.address.to_string(), "answers": answers, "shows": ["binary_headers", "tombstones"] });
    writeln!(output, "{ready}")?;
    output.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let ask: Ask = serde_json::from_str(&line).with_context(|| format!("not a request: {line}"))?;
        let answer = match ask {
            Ask::Script(script) => {
                *broker.state() = State::of(script);
                json!({})
            }
            Ask::Received => json!({ "received": broker.state().received }),
        };
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    Ok(())
}
