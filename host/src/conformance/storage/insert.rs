//! Putting messages into a storage's table: through the storage itself, or, where it has no `storage-admin`, by a command of the
//! author's that reads them from its standard input.

use crate::conformance::clause::Stop;
use crate::conformance::shell::ShellCommand;
use crate::domain::{Batch, Failure, FailureCode};
use crate::jsonl::JsonMessage;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// How long the command may take.
const WITHIN: Duration = Duration::from_secs(60);

/// The variable that tells the command which database it is.
const DATABASE: &str = "OUTHAUL_DATABASE";

/// How a command ends that was given a message which the table cannot hold: `EX_DATAERR` of sysexits(3).
const REFUSES: i32 = 65;

/// Runs the command: messages go in as JSON, one a line; their ids come out, one a line, in the same order.
pub(super) async fn by_command(command: &ShellCommand, database: &str, batch: &Batch) -> Result<Vec<String>, Stop> {
    let failed = |why: String| Stop::failed(format!("the command {:?} to insert {} messages", command.line, batch.len()), why);
    let mut lines = String::new();
    for message in batch.messages() {
        lines.push_str(&serde_json::to_string(&JsonMessage::of(message)).map_err(|error| failed(error.to_string()))?);
        lines.push('\n');
    }
    let mut running = command
        .start()
        .env(DATABASE, database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("it cannot be started: {error}")))?;
    let stdin = running.stdin.take();
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A command that reads no further says why by its end.
            let _ = stdin.write_all(lines.as_bytes()).await;
        }
    };
    let ended = tokio::time::timeout(WITHIN, async { tokio::join!(feed, running.wait_with_output()).1 }).await;
    let output = ended.map_err(|_| failed(format!("it did not end within {} s", WITHIN.as_secs())))?;
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let told = crate::domain::text::clean_bytes(&output.stderr);
        let told = format!("it ended with {}: {told}", output.status);
        if output.status.code() == Some(REFUSES) {
            return Err(Stop::call("a message that the table can hold", &Failure::new(FailureCode::InvalidMessage, told)));
        }
        return Err(failed(told));
    }
    let ids: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    if ids.len() != batch.len() {
        return Err(failed(format!("it wrote {} ids: one a line is expected, in the order of the messages", ids.len())));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::NewMessage;

    fn batch() -> Batch {
        let mut batch = Batch::default();
        for id in ["1", "2"] {
            batch.push(&NewMessage { id: Some(id), topic: "t", payload: Some(b"p"), ..NewMessage::default() });
        }
        batch
    }

    #[tokio::test]
    async fn lines_go_in_and_ids_come_out() {
        let ids = by_command(&"cat > /dev/null; echo \"$OUTHAUL_DATABASE-1\"; echo b".into(), "sqlite:x", &batch()).await;
        assert_eq!(ids, Ok(vec!["sqlite:x-1".to_owned(), "b".to_owned()]));
    }

    #[tokio::test]
    async fn a_command_that_fails_is_told_with_its_own_words() {
        for (command, expected, refuses) in [
            ("echo no table >&2; exit 3", "no table", false),
            ("echo no bytes >&2; exit 65", "no bytes", true),
            ("cat > /dev/null; echo 1", "it wrote 1 ids", false),
        ] {
            let Err(Stop::Failed { seen, code, .. }) = by_command(&command.into(), "", &batch()).await else { panic!("{command}") };
            assert!(seen.contains(expected), "{seen}");
            assert_eq!(code, refuses.then_some(FailureCode::InvalidMessage), "{command}");
        }
    }
}
