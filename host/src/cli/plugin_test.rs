//! `outhaul plugin test`.

use super::error::CommandError;
use super::{CommandResult, output};
use crate::conformance::report::{Entry, Report, Verdict};
use crate::conformance::setup::{Setup, SetupArgs};
use crate::conformance::{self, Given, TestError};
use std::path::PathBuf;

/// Longest text of a clause that is shown: some quote what an adapter has written.
const MOST_SHOWN: usize = 2000;

/// Run the contract, clause by clause, against a component: what it does, under this host, with real databases and destinations.
///
/// Finds out whether the component is a storage, a publisher or a router. Everything that a clause needs is new for it: no clause sees what
/// another one has left. What does not apply to a component is skipped, with the reason.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul plugin test my-storage.wasm
  outhaul plugin test my-storage.wasm --set 'table = \"events\"' --clause storage.leased-head
  outhaul plugin test postgres-storage.wasm --database postgres://me@localhost/conformance
  outhaul plugin test my-storage.wasm --insert-command './insert.py'
  outhaul plugin test my-publisher.wasm --set 'url = \"{destination}/\"'
  outhaul plugin test my-router.wasm --event acme/orders.placed --unwanted acme/nothing
  outhaul plugin test --list

Storages: without --database, each clause gets a SQLite file of its own. A database that is named must be empty: everything in it is
dropped before each clause. In the settings, {clause} stands for a number that no other clause gets. A storage without storage-admin
is filled by --insert-command, a line for sh: it gets messages on stdin (a JSON object a line, as `outhaul enqueue --jsonl` takes them),
OUTHAUL_DATABASE in its environment, and prints the id of each message on a line. It is run once without messages, to make the table. It
ends with 65 if the table cannot hold a message; with any other code, it has failed.

Publishers: each clause has a destination of its own, which answers by a script: an HTTP server of the kit, or --destination-command, a
line for sh. {destination} in the settings stands for its address (http://127.0.0.1:PORT, or what the command says), which is granted
besides. A destination's command speaks JSON lines: first it says {\"address\", \"answers\", \"shows\"}; {\"script\": {ID: [{\"answer\": WORD}]}} is
answered with {}, \"received\" with {\"received\": [{\"id\", \"carries_id\", \"payload\", \"headers\", \"how\", \"accepted\"}]}. Answers: accept,
unavailable, throttled (retry_after_ms), invalid, too_large, gone, unauthorized, slow (accepts after ms), silent, broken; it shows
tombstones, binary_headers or neither.

Routers: who subscribes is a matter of the settings, or of the database, which the kit does not touch. --event names an event that somebody
wants, --unwanted one that nobody wants; clauses that need one that is not named are skipped.

A file conformance.toml beside the component says what need not be said each time:
  [test]
  config = { table = \"events\" }
  insert_command = \"./insert.py\"
Its commands are run, in its folder, and its allow_hosts are granted only with --trust-beside.

With --json: {\"component\", \"sha256\", \"kind\", \"name\", \"version\", \"passed\", \"failed\", \"skipped\", \"clauses\"}; each clause has id, title,
verdict, ms, and with the verdict \"failed\" expected and seen, with \"skipped\" why (the others: \"passed\"). Ids do not change.

Exit codes: 0 if no clause failed, 1 if one did, 2 if the component could not be set up.")]
pub(super) struct Args {
    /// The component's file.
    #[arg(required_unless_present = "list")]
    file: Option<PathBuf>,
    #[command(flatten)]
    setup: SetupArgs,
    /// Run this clause only (may be repeated).
    #[arg(long = "clause", value_name = "ID")]
    clauses: Vec<String>,
    /// List the clauses, and what each demands. Runs nothing.
    #[arg(long, conflicts_with_all = ["file", "clauses"])]
    list: bool,
    /// For a storage without storage-admin: a command that inserts messages.
    #[arg(long, value_name = "COMMAND")]
    insert_command: Option<String>,
    /// For a publisher of another protocol than HTTP: a command that is its destination.
    #[arg(long, value_name = "COMMAND")]
    destination_command: Option<String>,
    /// For a router: an event that somebody wants.
    #[arg(long, value_name = "TENANT/TOPIC")]
    event: Option<String>,
    /// For a router: an event that nobody wants.
    #[arg(long, value_name = "TENANT/TOPIC")]
    unwanted: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(args: Args) -> CommandResult {
    let Args { file, setup, clauses, list, insert_command, destination_command, event, unwanted, json } = args;
    let Some(file) = file.filter(|_| !list) else { return show_list(json) };
    let mut place = 0;
    let tell = |entry: &Entry, count: usize| {
        place += 1;
        output::note(&format!("{place:>3}/{count} {} {:<7} {} ms", entry.id, entry.verdict.as_str(), entry.ms));
    };
    let given = Given { insert: insert_command, destination: destination_command, event, unwanted };
    let setup = Setup::read(file, setup).await.map_err(CommandError::usage)?;
    setup.beside.trusted().iter().for_each(|told| output::note(told));
    let report = conformance::test(setup, given, &clauses, tell).await?;
    if json {
        output::json(&report)?;
    } else {
        show(&report)?;
    }
    if report.failed == 0 { Ok(()) } else { Err(CommandError::said(1)) }
}

impl From<TestError> for CommandError {
    fn from(error: TestError) -> Self {
        match error {
            TestError::NotCleared(_) => Self::failure(error),
            other => Self::usage(other),
        }
    }
}

fn show_list(json: bool) -> CommandResult {
    let clauses = conformance::clauses();
    if json {
        return output::json(&serde_json::json!({ "clauses": clauses }));
    }
    clauses.iter().try_for_each(|clause| output::line(&format!("{}\n    {}\n    {}", clause.id, clause.title, clause.demands)))
}

/// For people: a line for each clause, then what failed and what was seen, then the sum.
fn show(report: &Report) -> CommandResult {
    let rows = report.clauses.iter().map(|entry| {
        let why = match &entry.verdict {
            Verdict::Skipped { why } => output::cell(why, MOST_SHOWN),
            _ => entry.title.to_owned(),
        };
        [entry.id.to_owned(), entry.verdict.as_str().to_owned(), why]
    });
    output::table(["clause", "verdict", "what it says, or why it was skipped"], rows)?;
    for entry in &report.clauses {
        if let Verdict::Failed { expected, seen } = &entry.verdict {
            output::line(&format!("\nFAILED {}: {}", entry.id, entry.title))?;
            output::line(&format!("  expected  {}", output::cell(expected, MOST_SHOWN)))?;
            output::line(&format!("  seen      {}", output::cell(seen, MOST_SHOWN)))?;
        }
    }
    let Report { passed, failed, skipped, .. } = report;
    output::line(&format!("\n{passed} passed, {failed} failed, {skipped} skipped"))
}
