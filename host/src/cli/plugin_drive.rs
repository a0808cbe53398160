//! `outhaul plugin drive`: an adapter in its sandbox, worked by requests in JSON lines, for test suites in any language.
//!
//! [`lines`] reads, [`request`], [`arguments`] and [`router`] say what a line means, [`instance`] does it, [`session`] puts it together.

mod arguments;
mod instance;
mod lines;
mod messages;
mod request;
mod router;
mod session;

use super::error::CommandError;
use super::{CommandResult, output};
use crate::conformance::setup::{Setup, SetupArgs, SetupError};
use crate::conformance::subject::{StorageSubject, Subject};
use crate::domain::{Failure, FailureCode};
use crate::plugin::{PluginError, Skew};
use crate::sql::Databases;
use anyhow::Context;
use instance::{Opened, Opener};
use serde_json::{Map, Value};
use session::SessionError;
use std::io::BufReader;
use std::path::PathBuf;
use tempfile::TempDir;

/// Work a component by requests in JSON lines: one request a line on stdin, one answer a line on stdout.
///
/// The component runs as in a relay: same sandbox, same limits, same checks of what it returns. A request names the call, an instance
/// (left out: "main") and an id of its own, which comes back with the answer. Requests to one instance are done in their order, those
/// to different instances at once: two workers race as two processes would. The session ends with its input.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The component's file.
    file: PathBuf,
    #[command(flatten)]
    setup: SetupArgs,
}

const HELP: &str = "\
Requests, for a storage (what is in brackets may be left out):
  {\"id\": 1, \"call\": \"open\", [\"instance\": \"a\",] [\"config\": {\"table\": \"t\"}]}     keys over those of the command line
  {\"call\": \"create_schema\"}   {\"call\": \"schema\"}   {\"call\": \"stats\"}   {\"call\": \"close\"}
  {\"call\": \"enqueue\", \"messages\": [{\"topic\": \"t\", [\"key\": \"k\",] [\"headers\": [[\"a\", \"1\"]],] \"payload\": \"p\"}]}
  {\"call\": \"claim\", \"worker\": \"w\", [\"limit\": 100,] [\"lease_ms\": 30000,] [\"max_bytes\": n,] [\"max_attempts\": 0,] [\"max_message_bytes\": n]}
  {\"call\": \"settle\", \"worker\": \"w\", \"settlements\": [
      {\"verdict\": \"delivered\", \"ids\": [\"1\"]},
      {\"verdict\": \"retry\", \"ids\": [\"2\"], \"failure\": {\"code\": \"network\", [\"detail\": \"...\"]}, \"delay_ms\": 500},
      {\"verdict\": \"release\", \"ids\": [\"3\"], [\"delay_ms\": 0]},
      {\"verdict\": \"dead\", \"ids\": [\"4\"], \"failure\": {\"code\": \"too-large\"}}]}
  {\"call\": \"settle_and_claim\", \"settlements\": [...], \"claim\": {\"worker\": \"w\", ...}}
  {\"call\": \"extend\", \"worker\": \"w\", \"ids\": [\"1\"], \"lease_ms\": 30000}
  {\"call\": \"browse\", [\"filter\": {[\"state\": \"dead\",] [\"topic\": \"t\",] [\"ids\": []]},] [\"after\": \"...\",] [\"limit\": 100,] [\"with_messages\": true]}
  {\"call\": \"requeue\", [\"filter\": {...}]}   {\"call\": \"discard\", [\"filter\": {...}]}   {\"call\": \"purge\", \"older_than_ms\": 0, [\"limit\": 100]}

For a publisher:
  {\"call\": \"publish\", \"messages\": [{\"id\": \"1\", \"topic\": \"t\", \"payload\": \"p\", ...}], [\"deadline_ms\": 30000]}

For a router:
  {\"call\": \"expand\", \"events\": [{[\"tenant\": \"a\",] \"topic\": \"t\", [\"id\": \"1\",] [\"key\": \"k\",] [\"payload\": \"p\"]}]}
  {\"call\": \"current\", \"inquiries\": [{[\"tenant\": \"a\",] \"subscriber\": \"s\", \"topic\": \"t\"}]}

Answers:
  {\"id\": 1, \"ok\": {...}}
  {\"id\": 1, \"error\": {\"code\": \"unavailable\", \"detail\": \"...\", [\"retry_after_ms\": 500]}}

Bytes are a text where they are UTF-8; else a payload is under \"payload_base64\", and a header's value is {\"base64\": \"...\"}. A payload that
is null is none. A line that is no request is answered with the code bad-request and its number; the session goes on.

Exit codes: 0 when everything is answered, or nobody reads answers any more, 1 if the input cannot be read or the output cannot be
written, 2 if the component could not be set up.

Examples:
  outhaul plugin drive sqlite-storage.wasm                              on a fresh SQLite file
  outhaul plugin drive postgres-storage.wasm --database postgres://localhost/test
  outhaul plugin drive http-publisher.wasm --set 'url = \"http://127.0.0.1:8080/\"' --allow-host 127.0.0.1:8080";

pub(super) async fn run(args: Args) -> CommandResult {
    let setup = Setup::read(args.file, args.setup).await.map_err(CommandError::usage)?;
    setup.beside.trusted().iter().for_each(|told| output::note(told));
    let opener = Ready::load(setup).await?;
    session::serve(opener, BufReader::new(std::io::stdin()), std::io::stdout()).await.map_err(|error| match error {
        SessionError::Output(error) => CommandError::output(error),
        other => CommandError::failure(other),
    })
}

/// The component, and the database that its instances share.
struct Ready {
    subject: Subject,
    database: String,
    /// Removed at the end, with the database in it.
    _folder: Option<TempDir>,
}

impl Ready {
    async fn load(setup: Setup) -> Result<Self, CommandError> {
        let (database, folder) = match &setup.database {
            Some(database) => (database.clone(), None),
            None => {
                let folder = tempfile::tempdir().context("cannot make a folder for the database").map_err(CommandError::failure)?;
                (format!("sqlite:{}", folder.path().join("main.db").display()), Some(folder))
            }
        };
        let subject = Subject::load(setup).await.map_err(CommandError::usage)?;
        if let (Subject::Storage(storage), Some(_)) = (&subject, &folder) {
            create(storage, &database).await?;
        }
        Ok(Self { subject, database, _folder: folder })
    }
}

/// Creates the file of a fresh database.
async fn create(storage: &StorageSubject, database: &str) -> CommandResult {
    let config = storage.setup.configure(Some(database), &[], &[]).map_err(CommandError::usage)?;
    for name in config.databases.keys() {
        Databases::new(&config.databases, &config.secrets).create(name).await.map_err(CommandError::failure)?;
    }
    Ok(())
}

impl Opener for Ready {
    async fn open(&self, config: Map<String, Value>) -> Result<Opened, Failure> {
        let wrong = |text: String| Failure::new(FailureCode::InvalidConfiguration, text);
        let over = toml::Table::try_from(config).map_err(|error| wrong(format!("config cannot be written as TOML: {error}")))?;
        let opened = match &self.subject {
            Subject::Storage(storage) => {
                let settings = storage.setup.settings_with(over);
                storage.open_as(settings, &self.database, &[], Skew::None).await.map(|open| Opened::Storage(open.plugin))
            }
            Subject::Publisher(publisher) => {
                let settings = publisher.setup.settings_with(over);
                publisher.open_as(settings, &[], &[]).await.map(Opened::Publisher)
            }
            Subject::Router(router) => router.open_as(router.setup.settings_with(over)).await.map(Opened::Router),
        };
        opened.map_err(|error| match error {
            SetupError::Plugin(PluginError::Open(failure)) => failure,
            other => wrong(other.to_string()),
        })
    }
}
