//! A destination for `outhaul plugin test wrong-publisher.wasm --destination-command hex-destination`: HTTP with values of headers in
//! hexadecimal, a protocol in which they may be any bytes. It accepts everything.

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outhaul_tests::receiver::{Receiver, Request};
use serde_json::{Value, json};
use std::io::{BufRead, Write};

fn main() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let mut output = std::io::stdout().lock();
    let ready = json!({ "address": receiver.address().to_string(), "answers": ["accept"], "shows": ["binary_headers"] });
    writeln!(output, "{ready}")?;
    output.flush()?;
    let mut before = 0;
    for line in std::io::stdin().lock().lines() {
        let answer = if line? == "\"received\"" {
            let requests = receiver.requests();
            json!({ "received": requests.iter().skip(before).map(received).collect::<Result<Vec<_>>>()? })
        } else {
            // A script, which accepts: what came before it is forgotten.
            before = receiver.requests().len();
            json!({})
        };
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    Ok(())
}

fn received(request: &Request) -> Result<Value> {
    let kit = request.headers.iter().filter(|(name, _)| name.as_str().starts_with("x-kit"));
    let headers = kit.map(|(name, value)| Ok(json!([name.as_str(), { "base64": STANDARD.encode(bytes(value.to_str()?)?) }])));
    let headers = headers.collect::<Result<Vec<_>>>()?;
    let payload = STANDARD.encode(&request.body);
    Ok(
        json!({ "id": request.id, "carries_id": true, "payload": { "base64": payload }, "headers": headers, "accepted": request.accepted() }),
    )
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    let byte = |at| u8::from_str_radix(hex.get(at..at + 2).context("half a byte")?, 16).context("not hexadecimal");
    (0..hex.len()).step_by(2).map(byte).collect()
}
