//! `outhaul enqueue`.

use super::error::CommandError;
use super::lines::{self, Stopped};
use super::storage::{Opened, StorageArg};
use super::{CommandResult, output};
use crate::app::App;
use crate::domain::{Batch, NewMessage};
use crate::ports::StorageAdmin;
use anyhow::{Context, anyhow};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Largest payload file: over it, something else was meant.
const MAX_INPUT: u64 = 256 << 20;

/// Insert messages into a storage's table, as a producer would.
///
/// Meant for tests and repairs: a service inserts in the transaction that holds its business rows. Prints the ids.
#[derive(Debug, clap::Args)]
#[command(
    group(clap::ArgGroup::new("content").required(true).args(["payload", "payload_file", "tombstone", "jsonl"])),
    after_help = "\
Examples:
  outhaul enqueue --topic orders.created --key 42 --payload '{\"total\": 3}' --header source=repair
  outhaul enqueue --topic orders.deleted --key 42 --tombstone
  outhaul enqueue --topic images.added --payload-file cat.png
  outhaul enqueue --jsonl messages.jsonl

A line of --jsonl:
  {\"topic\": \"orders.created\", \"key\": \"42\", \"headers\": {\"source\": \"repair\"}, \"payload\": \"...\"}
  headers: an object, or [[name, value], ...]; payload: a text, null for a tombstone, or payload_base64; id, key and headers
  may be left out. Lines are inserted in transactions of 500 at most. Of an input of up to 64 MiB nothing is inserted if any
  line is wrong: all wrong lines are told. A longer input ends at the first wrong line after that: the ids of what went in are
  printed, and the line to go on from (with --json: next_line)."
)]
pub(super) struct Args {
    #[command(flatten)]
    storage: StorageArg,
    /// Topic.
    #[arg(long, required_unless_present = "jsonl")]
    topic: Option<String>,
    /// Key: messages of one key are delivered in order.
    #[arg(long)]
    key: Option<String>,
    /// A header (may be repeated).
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// The id, where the table takes one; left out: the storage makes it.
    #[arg(long)]
    id: Option<String>,
    /// The payload, as text.
    #[arg(long, value_name = "TEXT")]
    payload: Option<String>,
    /// A file with the payload; - is stdin.
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// No payload: SQL NULL, which is not the same as empty.
    #[arg(long)]
    tombstone: bool,
    /// A file of messages, one JSON object a line; - is stdin.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["topic", "key", "headers", "id"])]
    jsonl: Option<PathBuf>,
    /// Print one JSON document: {"enqueued": 2, "ids": ["1", "2"]}.
    #[arg(long)]
    pub(super) json: bool,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

pub(super) async fn run(args: Args, app: App) -> CommandResult {
    let opened = Opened::open(&app, args.storage.choose(&app.config)?).await?;
    let mut ids = Vec::new();
    match &args.jsonl {
        Some(file) => lines(&opened, file, args.json, &mut ids).await?,
        None => insert(&opened, &single(&args)?, &mut ids).await?,
    }
    if args.json {
        return output::json(&serde_json::json!({ "enqueued": ids.len(), "ids": ids }));
    }
    print(&ids)
}

fn single(args: &Args) -> Result<Batch, CommandError> {
    let topic = args.topic.as_deref().unwrap_or_default();
    if topic.is_empty() {
        return Err(CommandError::usage(anyhow!("--topic is empty")));
    }
    let payload = match (&args.payload, &args.payload_file) {
        (Some(text), _) => Some(text.clone().into_bytes()),
        (None, Some(file)) => Some(read_file(file).map_err(CommandError::usage)?),
        (None, None) => None,
    };
    let mut batch = Batch::default();
    batch.push(&NewMessage {
        id: args.id.as_deref(),
        topic,
        key: args.key.as_deref(),
        headers: args.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect(),
        payload: payload.as_deref(),
        attempts: 0,
        created_at: 0,
    });
    Ok(batch)
}

fn open(file: &Path) -> anyhow::Result<Box<dyn BufRead + Send>> {
    if file == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let opened = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Box::new(BufReader::new(opened)))
}

fn read_file(file: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(file)?.take(MAX_INPUT + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {}", file.display()))?;
    if bytes.len() as u64 > MAX_INPUT {
        return Err(anyhow!("{} is larger than {MAX_INPUT} bytes", file.display()));
    }
    Ok(bytes)
}

async fn insert(opened: &Opened, batch: &Batch, ids: &mut Vec<String>) -> CommandResult {
    ids.extend(opened.storage.enqueue(batch).await.map_err(opened.failed("enqueue"))?);
    Ok(())
}

/// Inserts lines. What went in before it ended early is printed: whoever goes on from the line that is told has all ids.
async fn lines(opened: &Opened, file: &Path, json: bool, ids: &mut Vec<String>) -> CommandResult {
    let mut reader = open(file).map_err(CommandError::usage)?;
    let name = if file == Path::new("-") { "stdin".to_owned() } else { file.display().to_string() };
    let insert = async |batch: &Batch| opened.storage.enqueue(batch).await.map_err(opened.failed("enqueue"));
    let Err(Stopped { next_line, error }) = lines::feed(&mut reader, &name, lines::WHOLE, ids, insert).await else { return Ok(()) };
    if json {
        let (error_text, code) = (error.text(), error.code());
        output::json(&serde_json::json!({
            "enqueued": ids.len(), "ids": ids, "next_line": next_line, "error": error_text, "exit_code": code,
        }))?;
        return Err(error.after_document());
    }
    print(ids)?;
    if !ids.is_empty() {
        let done = output::count(u64::try_from(ids.len()).unwrap_or(u64::MAX), "message");
        output::note(&format!("{done} went in; go on from line {next_line} of {name}"));
    }
    Err(error)
}

fn print(ids: &[String]) -> CommandResult {
    ids.iter().try_for_each(|id| output::line(&output::cell(id, 1000)))
}
