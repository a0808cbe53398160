//! `outhaul fanout list` and `outhaul fanout show`.

use super::open::{Desk, RelayArg, TenantArg, whose};
use super::report::Report;
use crate::app::App;
use crate::cli::error::CommandError;
use crate::cli::output::{age, cell, span};
use crate::cli::{CommandResult, output};
use crate::ports::fan_out::{Delivery, DeliveryFilter, DeliveryState};
use anyhow::anyhow;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::json;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// Characters of an id that are shown.
const ID_LIMIT: usize = 100;
/// Characters of a recorded failure that are shown.
const DETAIL_LIMIT: usize = 2000;

const STATES: [(&str, DeliveryState); 5] = [
    ("pending", DeliveryState::Pending),
    ("leased", DeliveryState::Leased),
    ("complete", DeliveryState::Complete),
    ("suppressed", DeliveryState::Suppressed),
    ("quarantined", DeliveryState::Quarantined),
];

/// List deliveries of a tenant, in the order of their insertion.
///
/// pending: waits for its first or next attempt; leased: an attempt is under way; complete: the subscriber has it; suppressed: on purpose
/// not sent any more (the subscription is gone or has changed); quarantined: cannot be sent as it is. CODE says why.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul fanout list orders --tenant acme --state quarantined
  outhaul fanout list orders --tenant acme --event 17 --subscriber crm
  outhaul fanout list orders --json      {\"deliveries\":[{\"id\":\"dl_...\",\"state\":\"complete\",...}],\"next\":null}")]
pub(in crate::cli) struct List {
    #[command(flatten)]
    relay: RelayArg,
    #[command(flatten)]
    tenant: TenantArg,
    /// Only deliveries in this state.
    #[arg(long, value_parser = PossibleValuesParser::new(STATES.map(|(word, _)| word)).map(|word| state_of(&word)))]
    state: Option<DeliveryState>,
    /// Only deliveries of this event, of all its generations.
    #[arg(long, value_name = "ID")]
    event: Option<String>,
    /// Only deliveries to this subscriber.
    #[arg(long, value_name = "NAME")]
    subscriber: Option<String>,
    /// Only this delivery (may be repeated).
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,
    /// At most so many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Go on where an earlier list ended: what it printed as the next page.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Print one JSON document: {"deliveries": [...], "next": "..."}.
    #[arg(long)]
    pub(super) json: bool,
}

/// Show one delivery, with what was recorded of its last failure.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul fanout show orders dl_5f0c2a --tenant acme
  outhaul fanout show orders dl_5f0c2a --json      {\"delivery\":{\"id\":\"dl_5f0c2a\",...}}")]
pub(in crate::cli) struct Show {
    #[command(flatten)]
    relay: RelayArg,
    /// The delivery.
    id: String,
    #[command(flatten)]
    tenant: TenantArg,
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

fn state_of(word: &str) -> DeliveryState {
    STATES.iter().find(|(known, _)| *known == word).map_or(DeliveryState::Pending, |(_, state)| *state)
}

fn word_of(state: DeliveryState) -> &'static str {
    STATES.iter().find(|(_, known)| *known == state).map_or("unknown", |(word, _)| word)
}

pub(super) async fn list(args: List, app: &App) -> CommandResult {
    let chosen = args.relay.choose(&app.config)?;
    let opened = chosen.open(app).await?;
    let tenant = args.tenant.of(chosen)?;
    let filter = DeliveryFilter { tenant, state: args.state, event: args.event, subscriber: args.subscriber, ids: args.ids };
    page(opened.desk(), &filter, args.after.as_deref(), args.limit, SystemTime::now()).await?.end(args.json)
}

pub(super) async fn page(
    desk: Desk<'_>,
    filter: &DeliveryFilter,
    after: Option<&str>,
    limit: u32,
    now: SystemTime,
) -> Result<Report, CommandError> {
    let page = desk.admin.list_deliveries(filter, after, limit).await;
    let page = page.map_err(|failure| CommandError::not_listed(after, failure, desk.failed("list-deliveries")))?;
    let document = json!({ "deliveries": page.deliveries, "next": page.next });
    let mut text = match page.deliveries.is_empty() {
        true => format!("no such deliveries {}", whose(&filter.tenant)),
        false => {
            let header = ["id", "event", "gen", "topic", "subscriber", "state", "attempts", "due", "age", "code"];
            output::table_text(header, page.deliveries.iter().map(|delivery| row(delivery, now)))
        }
    };
    if let Some(next) = page.next {
        let _ = write!(text, "\n\nthere are more: --after {}", cell(&next, DETAIL_LIMIT));
    }
    Ok(Report::new(text, document))
}

fn row(delivery: &Delivery, now: SystemTime) -> [String; 10] {
    [
        cell(&delivery.id, ID_LIMIT),
        cell(&delivery.event, 64),
        delivery.generation.to_string(),
        cell(&delivery.topic, 60),
        cell(&delivery.subscriber, 40),
        word_of(delivery.state).to_owned(),
        delivery.attempts.to_string(),
        due(delivery),
        age(delivery.created_at, now),
        cell(delivery.code.as_deref().unwrap_or("-"), 40),
    ]
}

/// When its next attempt is due; for a leased one, when its lease ends.
fn due(delivery: &Delivery) -> String {
    match delivery.state {
        DeliveryState::Complete | DeliveryState::Suppressed | DeliveryState::Quarantined => "-".to_owned(),
        DeliveryState::Pending | DeliveryState::Leased if delivery.due_in_ms == 0 => "now".to_owned(),
        // Not "0s", which it is not.
        DeliveryState::Pending | DeliveryState::Leased => format!("in {}", span(Duration::from_millis(delivery.due_in_ms.max(1000)))),
    }
}

pub(super) async fn show(args: Show, app: &App) -> CommandResult {
    let chosen = args.relay.choose(&app.config)?;
    let opened = chosen.open(app).await?;
    one(opened.desk(), &args.tenant.of(chosen)?, &args.id, SystemTime::now()).await?.end(args.json)
}

pub(super) async fn one(desk: Desk<'_>, tenant: &str, id: &str, now: SystemTime) -> Result<Report, CommandError> {
    let filter = DeliveryFilter { tenant: tenant.to_owned(), ids: vec![id.to_owned()], ..DeliveryFilter::default() };
    let page = desk.admin.list_deliveries(&filter, None, 1).await.map_err(desk.failed("list-deliveries"))?;
    let Some(delivery) = page.deliveries.first() else {
        let text = format!("there is no delivery {id:?} {} in the storage {}", whose(tenant), desk.storage);
        return Err(CommandError::failure(anyhow!(text)));
    };
    Ok(Report::new(described(delivery, now), json!({ "delivery": delivery })))
}

fn described(delivery: &Delivery, now: SystemTime) -> String {
    let mut out = String::new();
    let mut field = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name:<15} {}", cell(value, DETAIL_LIMIT));
    };
    field("id", &delivery.id);
    field("event", &delivery.event);
    field("generation", &delivery.generation.to_string());
    field("topic", &delivery.topic);
    field("subscriber", &delivery.subscriber);
    field("idempotency key", &delivery.idempotency_key);
    field("key version", &delivery.key_version);
    field("state", word_of(delivery.state));
    field("attempts", &delivery.attempts.to_string());
    if due(delivery) != "-" {
        field("due", &due(delivery));
    }
    if delivery.created_at > 0 {
        field("created", &format!("{} ago", age(delivery.created_at, now)));
    }
    if let Some(code) = &delivery.code {
        field("code", code);
    }
    if let Some(detail) = &delivery.detail {
        field("last failure", detail);
    }
    out.trim_end().to_owned()
}
