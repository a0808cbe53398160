//! `outhaul enqueue`.

use super::error::CommandError;
use super::jsonl::JsonMessage;
use super::storage::{Opened, StorageArg};
use super::{CommandResult, output};
use crate::app::App;
use crate::domain::{Batch, NewMessage};
use crate::ports::StorageAdmin;
use anyhow::{Context, anyhow};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Rows of one transaction.
const BATCH: usize = 500;
/// Bytes of one transaction, about.
const BATCH_BYTES: usize = 4 << 20;
/// Longest line, and largest payload file: over it, something else was meant.
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
  may be left out. Lines are inserted in transactions of 500 at most; a wrong line ends it there and tells how many went in."
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
    json: bool,
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
        Some(file) => lines(&opened, file, &mut ids).await?,
        None => insert(&opened, &single(&args)?, &mut ids).await?,
    }
    if args.json {
        return output::json(&serde_json::json!({ "enqueued": ids.len(), "ids": ids }));
    }
    ids.iter().try_for_each(|id| output::line(&output::cell(id, 1000)))
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

async fn lines(opened: &Opened, file: &Path, ids: &mut Vec<String>) -> CommandResult {
    let mut reader = open(file).map_err(CommandError::usage)?;
    let (mut number, mut bytes, mut batch) = (0u64, 0usize, Batch::default());
    let wrong = loop {
        number = number.saturating_add(1);
        // Reading blocks; nothing else runs in this process meanwhile but the open storage.
        let read = match next_line(&mut reader, &mut batch) {
            Ok(read) => read,
            Err(reason) => break Some(reason),
        };
        bytes = bytes.saturating_add(read);
        if batch.len() >= BATCH || bytes >= BATCH_BYTES {
            insert(opened, &std::mem::take(&mut batch), ids).await?;
            bytes = 0;
        }
        if read == 0 {
            break None;
        }
    };
    // What was read before a wrong line goes in: its number then says exactly where to go on.
    if !batch.is_empty() {
        insert(opened, &batch, ids).await?;
    }
    let Some(reason) = wrong else { return Ok(()) };
    let name = if file == Path::new("-") { "stdin".to_owned() } else { file.display().to_string() };
    let done = output::count(u64::try_from(ids.len()).unwrap_or(u64::MAX), "message");
    Err(CommandError::usage(anyhow!("{name}:{number}: {reason} ({done} of the lines before it went in, nothing from it on)")))
}

/// Reads a line into the batch and says how many bytes it had; 0: there are no more. Blank lines are passed over.
fn next_line(reader: &mut dyn BufRead, batch: &mut Batch) -> Result<usize, String> {
    let mut line = Vec::new();
    let read = reader.take(MAX_INPUT).read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
    if line.len() as u64 == MAX_INPUT {
        return Err(format!("is longer than {MAX_INPUT} bytes"));
    }
    let text = std::str::from_utf8(&line).map_err(|error| format!("is not UTF-8: {error}"))?;
    if !text.trim().is_empty() {
        JsonMessage::parse(text)?.push_to(batch)?;
    }
    Ok(read)
}
