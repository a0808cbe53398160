//! A destination of any protocol: a program that is started and spoken to in JSON lines on its stdin and stdout.
//!
//! It first says where it is and what it can do:
//! `{"address": "127.0.0.1:9092", "answers": ["accept", "unavailable"], "shows": ["tombstones"]}`. Then it is asked, and answers each
//! line with one: `{"script": {"ID": [{"answer": "unavailable"}, {"answer": "accept"}]}}` with `{}`, and `"received"` with
//! `{"received": [{"id": "ID", "carries_id": true, "payload": "p", "headers": [["a", "1"]], "accepted": true}]}`. It ends when its
//! input does.

use super::{Ability, Answer, Destination, DestinationError, Nowhere, Place, Received, Script};
use crate::conformance::shell::ShellCommand;
use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::Mutex;

/// How long it may take to answer: it has nothing to do but to look at its own memory.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest line that it may answer with: what the kit sends, several times over.
const MAX_LINE: u64 = 256 << 20;

/// What it says first.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ready {
    address: String,
    answers: BTreeSet<String>,
    #[serde(default)]
    shows: BTreeSet<Ability>,
}

/// What it is asked.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Ask<'a> {
    Script(&'a Script),
    Received,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Done {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arrived {
    received: Vec<Received>,
}

/// The program. Ends when dropped.
pub(crate) struct CommandDestination {
    command: String,
    ready: Ready,
    nowhere: String,
    _held: Nowhere,
    pipes: Mutex<Pipes>,
}

struct Pipes {
    // Killed when dropped.
    _child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl CommandDestination {
    /// Starts it.
    pub(crate) async fn start(command: &ShellCommand) -> Result<Self, DestinationError> {
        let line = &command.line;
        let start = |error| DestinationError::Start { command: line.clone(), error };
        let spawned = command.start().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(start)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(start(std::io::Error::other("it has no pipes")));
        };
        let mut pipes = Pipes { _child: child, input, output: BufReader::new(output) };
        let ready: Ready = pipes.line().await.map_err(|what| DestinationError::Silent { command: line.clone(), what })?;
        let held = Nowhere::hold()?;
        let nowhere = Place::of(&ready.address).moved_to(held.address);
        Ok(Self { command: line.clone(), ready, nowhere, _held: held, pipes: Mutex::new(pipes) })
    }

    async fn ask<T: DeserializeOwned>(&self, ask: &Ask<'_>) -> Result<T, DestinationError> {
        let asked = async {
            let mut line = serde_json::to_string(ask).map_err(|error| format!("cannot be asked: {error}"))?;
            line.push('\n');
            let mut pipes = self.pipes.lock().await;
            pipes.input.write_all(line.as_bytes()).await.map_err(|error| format!("takes no more lines: {error}"))?;
            pipes.line().await
        };
        asked.await.map_err(|what| DestinationError::Silent { command: self.command.clone(), what })
    }
}

impl Pipes {
    /// The next line that it says, or what is wrong with that.
    async fn line<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        let mut line = String::new();
        let mut bounded = (&mut self.output).take(MAX_LINE);
        match tokio::time::timeout(PATIENCE, bounded.read_line(&mut line)).await {
            Err(_) => Err(format!("has said nothing for {} seconds", PATIENCE.as_secs())),
            Ok(Err(error)) => Err(format!("cannot be read: {error}")),
            Ok(Ok(0)) => Err("has ended".to_owned()),
            Ok(Ok(_)) => serde_json::from_str(&line).map_err(|error| {
                let start: String = line.trim_end().chars().take(200).collect();
                format!("said what it may not ({error}): {start}")
            }),
        }
    }
}

#[async_trait]
impl Destination for CommandDestination {
    fn address(&self) -> &str {
        &self.ready.address
    }

    fn nowhere(&self) -> &str {
        &self.nowhere
    }

    fn answers(&self, word: &str) -> bool {
        word == Answer::Accept.word() || self.ready.answers.contains(word)
    }

    fn shows(&self, ability: Ability) -> bool {
        self.ready.shows.contains(&ability)
    }

    async fn script(&self, script: &Script) -> Result<(), DestinationError> {
        self.ask::<Done>(&Ask::Script(script)).await.map(|Done {}| ())
    }

    async fn received(&self) -> Result<Vec<Received>, DestinationError> {
        self.ask::<Arrived>(&Ask::Received).await.map(|arrived| arrived.received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that answers with the given lines, one for each line that it is asked.
    fn program(folder: &tempfile::TempDir, lines: &[&str]) -> String {
        let file = folder.path().join("destination.sh");
        let mut text = String::new();
        for (index, line) in lines.iter().enumerate() {
            text.push_str(&format!("{}echo '{line}'\n", if index > 0 { "read -r asked; echo \"$asked\" >&2; " } else { "" }));
        }
        text.push_str("read -r asked\n");
        std::fs::write(&file, text).unwrap();
        format!("sh {}", file.display())
    }

    #[tokio::test]
    async fn a_program_is_asked_and_answers() {
        let folder = tempfile::tempdir().unwrap();
        let lines = [
            r#"{"address":"127.0.0.1:7","answers":["unavailable"],"shows":["tombstones"]}"#,
            "{}",
            r#"{"received":[{"id":null,"carries_id":false,"payload":{"base64":"/w=="},"accepted":true}]}"#,
        ];
        let destination = CommandDestination::start(&program(&folder, &lines).as_str().into()).await.unwrap();
        assert_eq!(destination.address(), "127.0.0.1:7");
        assert!(destination.answers("accept") && destination.answers("unavailable") && !destination.answers("gone"));
        assert!(destination.shows(Ability::Tombstones) && !destination.shows(Ability::BinaryHeaders));
        destination.script(&Script::accepting().always("a", Answer::Unavailable)).await.unwrap();
        let received = destination.received().await.unwrap();
        assert_eq!(received[0].payload.as_ref().unwrap().0, [0xff]);
    }

    #[tokio::test]
    async fn one_that_does_not_keep_to_it_is_told() {
        let folder = tempfile::tempdir().unwrap();
        for (command, expected) in [("/no/such/program", "has ended"), ("true", "has ended"), ("echo hello", "said what it may not")] {
            let error = CommandDestination::start(&command.into()).await.err().unwrap().to_string();
            assert!(error.contains(expected), "{command}: {error}");
        }
        let lines = [r#"{"address":"a","answers":[]}"#, r#"{"received":[]}"#];
        let destination = CommandDestination::start(&program(&folder, &lines).as_str().into()).await.unwrap();
        let error = destination.script(&Script::accepting()).await.unwrap_err().to_string();
        assert!(error.contains("said what it may not (unknown field `received`"), "{error}");
    }
}
