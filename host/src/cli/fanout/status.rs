//! `outhaul fanout status`: the log of changes, and the checkpoints of its readers.

use super::open::{Desk, RelayArg, TenantArg, whose};
use super::report::Report;
use crate::app::App;
use crate::cli::error::CommandError;
use crate::cli::output::cell;
use crate::cli::{CommandResult, output};
use crate::fan_out::given::{READER_BYTES, check_name};
use crate::ports::fan_out::{Change, Subject};
use anyhow::anyhow;
use serde_json::json;
use std::time::{Duration, UNIX_EPOCH};

/// Read the log of changes of a tenant: every event that was expanded, re-emitted or quarantined, and every delivery that changed its
/// state. Positions have no gaps.
///
/// A reader has a checkpoint, up to which it has read. --reader shows what is behind it, and --advance moves it over what was shown,
/// after that was printed. If another process has moved it meanwhile, the checkpoint stays as it is and the exit code is 1: what was
/// shown is the other's to work off.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul fanout status orders --tenant acme --after 100 --limit 50
  outhaul fanout status orders --tenant acme --reader billing
  outhaul fanout status orders --tenant acme --reader billing --advance
  outhaul fanout status orders --tenant acme --reader billing --expected 100 --through 150
  outhaul fanout status orders --json      {\"after\":0,\"through\":1,\"changes\":[{\"position\":1,\"state\":\"expanded\",...}]}")]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    relay: RelayArg,
    #[command(flatten)]
    tenant: TenantArg,
    /// Changes behind this position.
    #[arg(long, value_name = "POSITION", default_value_t = 0, conflicts_with = "reader")]
    after: u64,
    /// At most so many.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Changes behind the checkpoint of this reader; a name that is new begins at 0. At most 512 bytes.
    #[arg(long, value_name = "NAME", value_parser = reader_name)]
    reader: Option<String>,
    /// Move the checkpoint over the changes that were printed.
    #[arg(long, requires = "reader", conflicts_with_all = ["expected", "through"])]
    advance: bool,
    /// Only move the checkpoint, if it is here ...
    #[arg(long, value_name = "POSITION", requires_all = ["reader", "through"])]
    expected: Option<u64>,
    /// ... to here: neither back nor behind the last change.
    #[arg(long, value_name = "POSITION", requires_all = ["reader", "expected"])]
    through: Option<u64>,
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

fn reader_name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("is empty: a reader has a name".to_owned());
    }
    check_name(text, READER_BYTES).map(|()| text.to_owned())
}

pub(super) async fn run(args: Args, app: &App) -> CommandResult {
    let chosen = args.relay.choose(&app.config)?;
    let opened = chosen.open(app).await?;
    let (desk, tenant) = (opened.desk(), args.tenant.of(chosen)?);
    let Some(reader) = &args.reader else {
        return read(desk, &tenant, args.after, args.limit).await?.report.end(args.json);
    };
    let reader = Reader { desk, tenant: &tenant, name: reader };
    if let (Some(expected), Some(through)) = (args.expected, args.through) {
        return reader.set(expected, through).await?.end(args.json);
    }
    let read = reader.read(args.limit).await?;
    let (from, through) = (read.after, read.through);
    // First the output, then the checkpoint: whoever dies between reads it again.
    read.report.end(args.json)?;
    if args.advance && through > from {
        let moved = reader.set(from, through).await?;
        match moved.fault {
            Some(fault) => return Err(fault.after_document()),
            None => output::note(&moved.text),
        }
    }
    Ok(())
}

/// What was read: up to where, and how to say it.
#[derive(Debug)]
pub(super) struct Read {
    /// Behind this position.
    pub(super) after: u64,
    /// Up to this one.
    pub(super) through: u64,
    /// What is said of it.
    pub(super) report: Report,
}

pub(super) async fn read(desk: Desk<'_>, tenant: &str, after: u64, limit: u32) -> Result<Read, CommandError> {
    let changes = desk.admin.read_status(tenant, after, limit).await.map_err(desk.failed("read-status"))?;
    let through = changes.last().map_or(after, |change| change.position);
    let document = json!({ "after": after, "through": through, "changes": changes });
    let text = match changes.is_empty() {
        true => format!("no changes behind position {after} {}", whose(tenant)),
        false => {
            let header = ["position", "at", "what", "id", "event", "gen", "subscriber", "state", "code"];
            output::table_text(header, changes.iter().map(row))
        }
    };
    Ok(Read { after, through, report: Report::new(text, document) })
}

fn row(change: &Change) -> [String; 9] {
    let or_dash = |text: &Option<String>, limit| text.as_deref().map_or_else(|| "-".to_owned(), |text| cell(text, limit));
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(change.at)).filter(|_| change.at < LAST_MILLISECOND);
    [
        change.position.to_string(),
        at.map_or_else(|| "-".to_owned(), |at| humantime::format_rfc3339_seconds(at).to_string()),
        match change.subject {
            Subject::Event => "event".to_owned(),
            Subject::Delivery => "delivery".to_owned(),
        },
        or_dash(&change.delivery, 100),
        cell(&change.event, 64),
        change.generation.to_string(),
        or_dash(&change.subscriber, 40),
        cell(&change.state, 20),
        or_dash(&change.code, 40),
    ]
}

/// The end of the year 9999: later times have no RFC 3339 form.
const LAST_MILLISECOND: u64 = 253_402_300_800_000;

/// A reader of the log of a tenant.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) desk: Desk<'a>,
    pub(super) tenant: &'a str,
    pub(super) name: &'a str,
}

impl Reader<'_> {
    async fn checkpoint(&self) -> Result<u64, CommandError> {
        self.desk.admin.checkpoint(self.tenant, self.name).await.map_err(self.desk.failed("checkpoint"))
    }

    /// What is behind its checkpoint.
    pub(super) async fn read(&self, limit: u32) -> Result<Read, CommandError> {
        let mut read = read(self.desk, self.tenant, self.checkpoint().await?, limit).await?;
        if let Some(members) = read.report.document.as_object_mut() {
            members.insert("reader".to_owned(), json!(self.name));
        }
        Ok(read)
    }

    /// Moves its checkpoint, if that is where it is expected.
    pub(super) async fn set(&self, expected: u64, through: u64) -> Result<Report, CommandError> {
        let name = self.name;
        if through < expected {
            let text = format!("--through {through} is before --expected {expected}: a checkpoint never goes back");
            return Err(CommandError::usage(anyhow!(text)));
        }
        let moved = self.desk.admin.advance(self.tenant, name, expected, through).await.map_err(self.desk.failed("advance"))?;
        if moved {
            let document = json!({ "reader": name, "checkpoint": through, "advanced": true });
            return Ok(Report::new(format!("the checkpoint of {name:?} is at {through} now"), document));
        }
        let at = self.checkpoint().await?;
        let why = match at == expected {
            true => format!("the log does not reach position {through} yet"),
            false => format!("it is at {at}, not at {expected}"),
        };
        let fault = CommandError::failure(anyhow!("the checkpoint of {name:?} was not moved: {why}"));
        let document = json!({ "reader": name, "checkpoint": at, "advanced": false });
        Ok(Report { text: String::new(), document, fault: Some(fault) })
    }
}
