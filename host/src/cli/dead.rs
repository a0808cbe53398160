//! `outhaul dead`: messages that ended dead, to be looked at, tried again, or thrown away.

use super::error::CommandError;
use super::storage::{Opened, StorageArg};
use super::{CommandResult, message, output};
use crate::app::App;
use crate::jsonl::JsonMessage;
use crate::ports::{Filter, RowState, StorageAdmin};
use anyhow::anyhow;
use serde_json::json;
use std::time::SystemTime;

/// Messages that ended dead: look at them, try them again, throw them away.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  outhaul dead list --topic orders.created
  outhaul dead show 17
  outhaul dead requeue --id 17 --id 18
  outhaul dead requeue --topic orders.created
  outhaul dead discard --all")]
pub(super) enum Command {
    /// List them, in the order of their insertion, with the last error of each.
    List(List),
    /// Show one with its headers and payload.
    Show(Show),
    /// Make them pending again, with no attempts counted.
    Requeue(Change),
    /// Delete them.
    Discard(Change),
}

#[derive(Debug, clap::Args)]
pub(super) struct List {
    #[command(flatten)]
    storage: StorageArg,
    /// Only messages of this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only this message (may be repeated).
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,
    /// At most so many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Go on where an earlier list ended: what it printed as the next page.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Print one JSON document: {"rows": [...], "next": "..."}.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Show {
    #[command(flatten)]
    storage: StorageArg,
    /// The message.
    id: String,
    /// Print one JSON document: {"row": {...}, "message": {...}}; the message is a line for `enqueue --jsonl`.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).multiple(true).args(["ids", "topic", "all"])))]
pub(super) struct Change {
    #[command(flatten)]
    storage: StorageArg,
    /// This message (may be repeated).
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,
    /// All dead messages of this topic; with --id: only if they are of it.
    #[arg(long)]
    topic: Option<String>,
    /// All dead messages.
    #[arg(long, conflicts_with_all = ["ids", "topic"])]
    all: bool,
    /// Print one JSON document: {"requeued": 2}, {"discarded": 2}.
    #[arg(long)]
    json: bool,
}

impl Command {
    /// Whether one JSON document was asked for.
    pub(super) fn is_json(&self) -> bool {
        match self {
            Self::List(args) => args.json,
            Self::Show(args) => args.json,
            Self::Requeue(args) | Self::Discard(args) => args.json,
        }
    }
}

pub(super) async fn run(command: Command, app: App) -> CommandResult {
    match command {
        Command::List(args) => list(args, app).await,
        Command::Show(args) => show(args, app).await,
        Command::Requeue(args) => requeue(args, app).await,
        Command::Discard(args) => discard(args, app).await,
    }
}

async fn list(args: List, app: App) -> CommandResult {
    let opened = Opened::open(&app, args.storage.choose(&app.config)?).await?;
    let filter = Filter { state: Some(RowState::Dead), topic: args.topic, ids: args.ids };
    let after = args.after.as_deref();
    let page = opened.storage.browse(&filter, after, args.limit, false).await;
    let page = page.map_err(|failure| CommandError::not_listed(after, failure, opened.failed("browse")))?;
    if args.json {
        return output::json(&json!({ "rows": page.rows, "next": page.next }));
    }
    if page.rows.is_empty() {
        return output::line("no dead messages");
    }
    let now = SystemTime::now();
    let rows = page.rows.iter().map(|row| {
        let key = row.key.as_deref().map_or_else(|| "-".to_owned(), |key| output::cell(key, 40));
        let error = output::cell(row.last_error.as_deref().unwrap_or("-"), 120);
        [output::cell(&row.id, 64), output::cell(&row.topic, 60), key, row.attempts.to_string(), output::age(row.created_at, now), error]
    });
    output::table(["id", "topic", "key", "attempts", "age", "last error"], rows)?;
    match page.next {
        Some(next) => output::line(&format!("\nthere are more: --after {next}")),
        None => Ok(()),
    }
}

async fn show(args: Show, app: App) -> CommandResult {
    let opened = Opened::open(&app, args.storage.choose(&app.config)?).await?;
    let filter = Filter { state: None, topic: None, ids: vec![args.id.clone()] };
    let page = opened.storage.browse(&filter, None, 1, true).await.map_err(opened.failed("browse"))?;
    let (Some(row), Some(messages)) = (page.rows.first(), &page.messages) else {
        return Err(CommandError::failure(anyhow!("there is no message {:?} in the storage {}", args.id, opened.name)));
    };
    if row.state != RowState::Dead {
        output::note(&format!("note: this message is {}, not dead", row.state.as_str()));
    }
    if args.json {
        return output::json(&json!({ "row": row, "message": JsonMessage::of(messages.message(0)) }));
    }
    output::line(&message::show(row, messages.message(0), SystemTime::now()))
}

async fn requeue(args: Change, app: App) -> CommandResult {
    let opened = Opened::open(&app, args.storage.choose(&app.config)?).await?;
    let count = opened.storage.requeue(&args.filter()).await.map_err(opened.failed("requeue"))?;
    args.say("requeued", count)
}

async fn discard(args: Change, app: App) -> CommandResult {
    let opened = Opened::open(&app, args.storage.choose(&app.config)?).await?;
    let count = opened.storage.discard(&args.filter()).await.map_err(opened.failed("discard"))?;
    args.say("discarded", count)
}

impl Change {
    fn filter(&self) -> Filter {
        Filter { state: Some(RowState::Dead), topic: self.topic.clone(), ids: self.ids.clone() }
    }

    fn say(&self, done: &str, count: u64) -> CommandResult {
        if self.json {
            return output::json(&json!({ (done): count }));
        }
        let messages = output::count(count, "message");
        let named = u64::try_from(self.ids.len()).unwrap_or(u64::MAX);
        match named.saturating_sub(count) {
            0 => output::line(&format!("{messages} {done}")),
            left => output::line(&format!("{messages} {done}; not dead, and left alone: {left} of those named")),
        }
    }
}
