//! A program with a time limit, and what it measured.

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a run found.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Messages handed to the destination.
    pub sent: u64,
    /// Messages that the table, the log or the topic says are done.
    pub settled: u64,
    /// How long that took. From what to what differs, as what they do does; the page says it of each.
    pub seconds: f64,
    /// What was run, by name.
    pub versions: BTreeMap<String, String>,
    /// Everything that the program printed, where it is ours.
    pub report: Option<Value>,
}

impl Measured {
    /// That everything was delivered, once, and settled.
    ///
    /// # Errors
    /// If not.
    pub fn complete(self, rows: u64) -> Result<Self> {
        ensure!(self.sent == rows && self.settled == rows, "sent {} and settled {} of {rows} messages", self.sent, self.settled);
        ensure!(self.seconds > 0.0, "it took no time");
        Ok(self)
    }
}

/// What the peers' programs print.
#[derive(Deserialize)]
struct Printed {
    sent: u64,
    settled: u64,
    seconds: f64,
    versions: BTreeMap<String, String>,
}

/// Runs a peer's program, whose last line of output is what it measured.
///
/// # Errors
/// If it fails, takes too long, or prints something else.
pub fn measure(command: &mut Command, limit: Duration) -> Result<Measured> {
    let output = run(command, limit)?;
    let line = output.trim_end().lines().last().unwrap_or_default();
    let Printed { sent, settled, seconds, versions } =
        serde_json::from_str(line).with_context(|| format!("cannot read what it measured in {line:?}"))?;
    Ok(Measured { sent, settled, seconds, versions, report: None })
}

/// Runs a program to its end; returns what it printed.
///
/// # Errors
/// If it cannot be started, fails, or takes too long: with the end of what it said.
pub fn run(command: &mut Command, limit: Duration) -> Result<String> {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default().display().to_string();
    // Its last words are for people.
    command.env_remove("RUST_BACKTRACE");
    // A group of its own: its children are killed with it.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut group = Group(command.spawn().with_context(|| format!("cannot start {name}"))?);
    let output = read(group.0.stdout.take());
    let errors = read(group.0.stderr.take());
    let ended = group.wait(limit)?;
    drop(group);
    let text = |reader: JoinHandle<Vec<u8>>| String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned();
    let (output, errors) = (text(output), text(errors));
    match ended {
        Some(status) if status.success() => Ok(output),
        Some(status) => bail!("it failed ({status}): {}", last_words(&errors)),
        None => bail!("it did not end in {} s: {}", limit.as_secs(), last_words(&errors)),
    }
}

/// A program and its children: all are killed when dropped, unless it has ended.
struct Group(Child);

impl Group {
    fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.0.try_wait().context("cannot wait for it")? {
                return Ok(Some(status));
            }
            if Instant::now() > end {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Once it was waited for, its id may be somebody else's.
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

fn read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What came before an error is all there is to tell.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// The last line about an error, else the last one; not too long.
fn last_words(errors: &str) -> String {
    let mut lines = errors.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("at "));
    let is_error = |line: &&str| ["error", "exception"].iter().any(|word| line.to_ascii_lowercase().contains(word));
    let line = lines.clone().rfind(is_error).or_else(|| lines.next_back());
    line.unwrap_or("it said nothing").chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<String> {
        run(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn a_failure_is_told_in_the_last_words() {
        assert_eq!(shell("echo out; echo err >&2", Duration::from_secs(60)).unwrap(), "out\n");
        let error = shell("echo first >&2; echo last >&2; echo >&2; exit 3", Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.to_string(), "it failed (exit status: 3): last");
        let java = "java.lang.IllegalStateException: gone\n\tat Relay.main(Relay.java:9)\nsee --help\n\n";
        assert_eq!(last_words(java), "java.lang.IllegalStateException: gone");
        assert_eq!(last_words(" \n"), "it said nothing");
    }

    #[test]
    fn what_takes_too_long_ends_with_its_children() {
        // The child keeps the pipe open: without its end this would never return.
        let error = shell("echo slow >&2; sleep 1000 & wait", Duration::from_millis(300)).unwrap_err();
        assert_eq!(error.to_string(), "it did not end in 0 s: slow");
    }

    #[test]
    fn what_was_measured_is_the_last_line() {
        let line = r#"echo noise; echo '{"sent": 3, "settled": 2, "seconds": 0.5, "versions": {"a": "1"}}'"#;
        let measured = measure(Command::new("sh").args(["-c", line]), Duration::from_secs(60)).unwrap();
        assert_eq!((measured.sent, measured.settled, measured.seconds), (3, 2, 0.5));
        assert_eq!(measured.complete(3).unwrap_err().to_string(), "sent 3 and settled 2 of 3 messages");
    }
}
