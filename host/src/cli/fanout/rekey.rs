//! `outhaul fanout rekey`: deliveries that are sealed with an older key are opened with that and sealed with the newest.

use super::open::{Desk, RelayArg};
use super::report::Report;
use crate::app::App;
use crate::cli::error::CommandError;
use crate::cli::output::cell;
use crate::cli::{CommandResult, output};
use crate::domain::{Batch, Column, Message, NewMessage};
use crate::fan_out::keys::{KeyFault, Keyring, SealingKey};
use crate::fan_out::{Binding, envelope};
use anyhow::anyhow;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::IsTerminal;

/// Deliveries a step: one short transaction each.
const STEP: u32 = 200;
/// Bytes a step: well under what an adapter may hand over at once.
const STEP_BYTES: u64 = 4 << 20;

/// Seal deliveries that are under an older key with the newest one: the first of `fan_out.keys`.
///
/// It may be interrupted at any time, and runs beside relays. A delivery that does not open with its key is left as it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul fanout rekey orders
  outhaul fanout rekey orders --json      {\"version\":\"2026-11\",\"resealed\":120,\"changed_meanwhile\":0,\"left\":[]}

Keys are changed in two steps, since a host that lacks the key of a delivery quarantines it (integrity_failure):
  1. Add the new key LAST to fan_out.keys on every host, and reload each (SIGHUP): now all of them can open what is sealed with it.
  2. Move it to the front on every host, and reload each: now all of them seal with it.
  3. Run this command until it seals nothing more.
  4. Remove the old key on every host.
Where a delivery was quarantined because a host lacked its key: put the key back, then `outhaul fanout requeue`.

Exit code 1 if a delivery does not open: \"left\" says which, and why.")]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    relay: RelayArg,
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(args: Args, app: &App) -> CommandResult {
    let chosen = args.relay.choose(&app.config)?;
    let opened = chosen.open(app).await?;
    let shown = std::io::stderr().is_terminal();
    let progress = |resealed| {
        if shown {
            output::note(&format!("{resealed} sealed again so far"));
        }
    };
    let tenant = chosen.fan_out.tenant.as_deref();
    rekey(opened.desk(), tenant, &Keyring::of(&app.config, chosen.fan_out), progress).await?.end(args.json)
}

/// A delivery that was left as it is.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
struct Left {
    id: String,
    key_version: String,
    reason: String,
}

/// With a tenant, its deliveries only.
pub(super) async fn rekey(desk: Desk<'_>, tenant: Option<&str>, keyring: &Keyring, progress: impl Fn(u64)) -> Result<Report, CommandError> {
    let newest = keyring.newest();
    let mut keys = Keys { keyring, known: BTreeMap::new() };
    // What cannot be sealed need not be opened.
    keys.load(newest).await?;
    let (mut resealed, mut meanwhile, mut left): (u64, u64, Vec<Left>) = (0, 0, Vec::new());
    let mut after: Option<String> = None;
    loop {
        let page = desk.admin.list_sealed(newest, after.as_deref(), STEP, STEP_BYTES).await.map_err(desk.failed("list-sealed"))?;
        let (mut batch, mut previous) = (Batch::default(), Column::default());
        let is_meant = |message: &Message<'_>| tenant.is_none_or(|tenant| column(*message, "account_id") == tenant);
        for message in page.deliveries.messages().filter(is_meant) {
            match keys.reseal(message, newest).await? {
                Ok(sealed) => {
                    previous.push(Some(sealed.previous.as_bytes()));
                    sealed.push_to(&mut batch, message);
                }
                Err(reason) => left.push(Left { id: message.id().to_owned(), key_version: column(message, "key_version"), reason }),
            }
        }
        if !batch.is_empty() {
            let sealed = u64::try_from(batch.len()).unwrap_or(u64::MAX);
            let replaced = u64::from(desk.admin.reseal(&batch, &previous).await.map_err(desk.failed("reseal"))?);
            resealed = resealed.saturating_add(replaced);
            meanwhile = meanwhile.saturating_add(sealed.saturating_sub(replaced));
            progress(resealed);
        }
        match page.next {
            Some(next) if after.as_ref() == Some(&next) => {
                let text =
                    format!("storages.{}: list-sealed does not get on from {}: no more is sealed again", desk.storage, cell(&next, 100));
                return Err(CommandError::failure(anyhow!(text)));
            }
            Some(next) => after = Some(next),
            None => break,
        }
    }
    Ok(said(newest, resealed, meanwhile, &left))
}

fn said(newest: &str, resealed: u64, meanwhile: u64, left: &[Left]) -> Report {
    let mut text = format!("sealed again with the key of the version {newest:?}: {resealed}");
    if meanwhile > 0 {
        text.push_str(&format!("\nended or sealed by others meanwhile: {meanwhile}"));
    }
    for Left { id, key_version, reason } in left {
        text.push_str(&format!("\nleft as it is: {}, key version {:?}: {reason}", cell(id, 100), cell(key_version, 100)));
    }
    let fault = (!left.is_empty()).then(|| {
        let (number, them) = if left.len() == 1 { ("1 delivery does".to_owned(), "it") } else { (format!("{} deliveries do", left.len()), "them") };
        CommandError::failure(anyhow!(
            "{number} not open: an attempt would quarantine {them} (integrity_failure); if the key is missing, put it back into fan_out.keys"
        ))
    });
    Report { text, document: json!({ "version": newest, "resealed": resealed, "changed_meanwhile": meanwhile, "left": left }), fault }
}

/// A routing column, as far as it is there.
fn column(message: Message<'_>, name: &str) -> String {
    let found = message.headers().find(|(found, _)| *found == name);
    found.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
}

/// A delivery under the newest key.
struct Sealed {
    binding: Binding,
    envelope: Vec<u8>,
    /// The version that it was under.
    previous: String,
}

impl Sealed {
    /// With everything else as it was.
    fn push_to(&self, batch: &mut Batch, message: Message<'_>) {
        let headers = self.binding.headers();
        batch.push(&NewMessage {
            id: Some(message.id()),
            topic: message.topic(),
            key: message.key(),
            headers: headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect(),
            payload: Some(&self.envelope),
            ..NewMessage::default()
        });
    }
}

/// The keys, each read once: a run is one look at the secrets.
struct Keys<'a> {
    keyring: &'a Keyring,
    known: BTreeMap<String, SealingKey>,
}

impl Keys<'_> {
    /// Reads a key; false: there is none of that version.
    async fn load(&mut self, version: &str) -> Result<bool, CommandError> {
        if self.known.contains_key(version) {
            return Ok(true);
        }
        match self.keyring.key(version).await {
            Ok(key) => {
                self.known.insert(version.to_owned(), key);
                Ok(true)
            }
            Err(KeyFault::Unknown(_)) => Ok(false),
            // With a key that is there but cannot be read for now, its deliveries would look like forgeries.
            Err(fault @ KeyFault::Unreadable { .. }) => Err(CommandError::failure(fault)),
            Err(fault @ KeyFault::Malformed { .. }) => Err(CommandError::usage(fault)),
        }
    }

    /// Opens a delivery and seals it again; else, why it is left as it is.
    async fn reseal(&mut self, message: Message<'_>, newest: &str) -> Result<Result<Sealed, String>, CommandError> {
        let binding = match Binding::from_headers(message.headers()) {
            Ok(binding) => binding,
            Err(fault) => return Ok(Err(fault.to_string())),
        };
        if !self.load(&binding.key_version).await? {
            return Ok(Err(KeyFault::Unknown(binding.key_version).to_string()));
        }
        let (Some(old), Some(new)) = (self.known.get(&binding.key_version), self.known.get(newest)) else {
            return Ok(Err(KeyFault::Unknown(binding.key_version).to_string()));
        };
        let opened = message.payload().ok_or(envelope::DoesNotOpen).and_then(|bytes| envelope::open(old, &binding, bytes));
        let contents = match opened {
            Ok(contents) => contents,
            Err(fault) => return Ok(Err(fault.to_string())),
        };
        let previous = binding.key_version.clone();
        let binding = Binding { key_version: newest.to_owned(), ..binding };
        Ok(match envelope::seal(new, &binding, &contents) {
            Ok(envelope) => Ok(Sealed { binding, envelope, previous }),
            Err(fault) => Err(fault.to_string()),
        })
    }
}
