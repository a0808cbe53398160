//! What each language costs: the size of its component, the host's start without and with compiled code, and a message; each by the clock
//! and in processor time. Printed as the README of the publishers has it.

use super::{ALL, Kind, Language, component};
use crate::outbox::Outbox;
use crate::receiver::Receiver;
use crate::rig::{Config, Rig};
use crate::{places, process};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

/// How much is measured.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Amount {
    /// Messages of one run.
    #[arg(long, default_value_t = 2000)]
    messages: u32,
    /// Runs of each, of which the median counts; an odd number.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Starts without compiled code, of which the median counts; an odd number.
    #[arg(long, default_value_t = 1)]
    cold_starts: usize,
}

/// Measures the shipped publisher and those of the examples that are built, and prints a table in Markdown with what it was measured on.
///
/// # Errors
/// If a host does not start, or a message is lost.
pub fn measure(amount: &Amount) -> Result<()> {
    let mut publishers = vec![("bundled `http-publisher`", "http-publisher", places::plugins()?.join("http-publisher.wasm"))];
    for example in ALL.iter().filter(|example| example.kind == Kind::Publisher) {
        publishers.extend(component(example.name)?.map(|file| (spelled(example.language), example.name, file)));
    }
    println!(
        "| | component | first start: compiled, once | any other start | a message, host and database included |\n|---|---|---|---|---|"
    );
    for (spelled, name, file) in publishers {
        let cost = one(name, &file, amount).with_context(|| name.to_owned())?;
        let size = Size(fs::metadata(&file)?.len());
        println!("| {spelled} | {size} | {} | {} | {} |", cost.first_start, cost.start, cost.message);
    }
    let optimised = places::outhaul()?.components().any(|part| part.as_os_str() == "release");
    println!(
        "\nBy the clock, and in brackets the processor time of the host, in steps of 10 ms. {}, {} cores, load {} at the end. A start is \
         `outhaul check`: the first, which compiles `sqlite-storage` as well, is {}, the others are {}. A message is one of {} of 256 bytes in \
         `outhaul drain`, less an empty one, {}: one lane, batches of 50, each message an HTTP request to a receiver on the same machine.",
        if optimised { "An optimised host" } else { "A host without optimisation" },
        std::thread::available_parallelism()?,
        fs::read_to_string("/proc/loadavg")?.split(' ').next().unwrap_or("unknown"),
        runs(amount.cold_starts),
        runs(amount.runs),
        amount.messages,
        runs(amount.runs),
    );
    Ok(())
}

fn runs(number: usize) -> String {
    if number > 1 { format!("the median of {number}") } else { "one run".to_owned() }
}

fn spelled(language: Language) -> &'static str {
    match language {
        Language::Rust => "Rust",
        Language::Js => "JavaScript",
        Language::Python => "Python",
        Language::C => "C",
        Language::Go => "Go",
    }
}

/// Bytes, in the unit that reads best.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 >> 10 {
            kib @ 0..1024 => write!(out, "{kib} KiB"),
            kib => write!(out, "{}.{} MiB", kib >> 10, ((kib & 1023) * 10) >> 10),
        }
    }
}

/// What a command took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Took {
    elapsed: Duration,
    /// Of the process and all its threads, in user and in system mode.
    processor: Duration,
}

impl fmt::Display for Took {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [elapsed, processor] = [self.elapsed, self.processor].map(|time| match time.as_secs_f64() {
            seconds if seconds < 0.01 => format!("{:.2} ms", seconds * 1000.0),
            seconds if seconds < 10.0 => format!("{seconds:.2} s"),
            seconds => format!("{seconds:.0} s"),
        });
        write!(out, "{elapsed} ({processor})")
    }
}

struct Cost {
    /// `check`, everything compiled.
    first_start: Took,
    /// The same with compiled code on disk.
    start: Took,
    /// From the table to the receiver and back to the table.
    message: Took,
}

fn one(name: &str, file: &Path, amount: &Amount) -> Result<Cost> {
    let receiver = Receiver::accepting()?;
    let rig = Rig::empty()?;
    let folder = rig.path().join("plugins");
    fs::create_dir(&folder)?;
    fs::copy(file, folder.join(format!("{name}.wasm")))?;
    fs::copy(places::plugins()?.join("sqlite-storage.wasm"), folder.join("sqlite-storage.wasm"))?;
    let address = receiver.address();
    let config = Config::to(address)?
        .set("plugins.dir", "plugins")
        .set("plugins.cache", "compiled")
        .set("publishers.webhooks.plugin", name)
        .set("publishers.webhooks.lanes", 1)
        .set("publishers.webhooks.batch", 50)
        .set("publishers.webhooks.config.url", format!("http://{address}/in"));
    rig.configure(&config)?;
    Outbox::create_database(&rig.database())?;
    run(&rig, &["schema", "--apply"])?;

    let cache = rig.path().join("compiled");
    let first_starts = (0..amount.cold_starts.max(1)).map(|_| {
        fs::remove_dir_all(&cache).context("no folder of compiled code")?;
        Ok(run(&rig, &["check"])?.0)
    });
    let first_start = median(first_starts.collect::<Result<_>>()?);
    let start = median((0..amount.runs.max(1)).map(|_| Ok(run(&rig, &["check"])?.0)).collect::<Result<_>>()?);
    let message = median((0..amount.runs.max(1)).map(|_| drain(&rig, amount.messages.max(1))).collect::<Result<_>>()?);
    Ok(Cost { first_start, start, message })
}

/// What one of so many messages took, without the start of the process.
fn drain(rig: &Rig, messages: u32) -> Result<Took> {
    let time = |rows: u32| -> Result<Took> {
        let body = "x".repeat(256);
        let mut outbox = rig.outbox()?;
        let transaction = outbox.connection().transaction()?;
        for _ in 0..rows {
            crate::outbox::insert(&transaction, "orders", None, body.as_bytes())?;
        }
        transaction.commit()?;
        let (took, output) = run(rig, &["drain", "--json"])?;
        let sent = serde_json::from_str::<serde_json::Value>(&output)?["sent"].as_u64();
        ensure!(sent == Some(rows.into()), "{sent:?} of {rows} were sent");
        Ok(took)
    };
    let (empty, full) = (time(0)?, time(messages)?);
    let one = |full: Duration, empty: Duration| full.saturating_sub(empty) / messages;
    Ok(Took { elapsed: one(full.elapsed, empty.elapsed), processor: one(full.processor, empty.processor) })
}

/// Runs a command of outhaul to its end, for as long as it takes (compiling Python on a busy machine took 70 s): what it took and what it
/// printed.
fn run(rig: &Rig, arguments: &[&str]) -> Result<(Took, String)> {
    let [output, errors] = ["output", "errors"].map(|name| rig.path().join(name));
    let mut command = process::bound(&places::outhaul()?);
    command.arg("--config").arg(rig.config()).args(arguments).env_remove("RUST_LOG");
    let began = Instant::now();
    let mut child = command.stdout(File::create(&output)?).stderr(File::create(&errors)?).spawn().context("cannot start outhaul")?;
    // It has ended, and is still there to be asked.
    let pid = Pid::from_child(&child);
    while waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?.is_none() {}
    let elapsed = began.elapsed();
    let processor = process::processor_time(pid.as_raw_nonzero().get())?;
    if !child.wait()?.success() {
        bail!("outhaul {arguments:?} failed:\n{}{}", fs::read_to_string(output)?, fs::read_to_string(errors)?);
    }
    Ok((Took { elapsed, processor }, fs::read_to_string(output)?))
}

/// The median of each of the two times.
fn median(took: Vec<Took>) -> Took {
    let middle = |of: fn(&Took) -> Duration| {
        let mut times: Vec<Duration> = took.iter().map(of).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    };
    Took { elapsed: middle(|took| took.elapsed), processor: middle(|took| took.processor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_the_table() {
        let took =
            |elapsed: u64, processor: u64| Took { elapsed: Duration::from_micros(elapsed), processor: Duration::from_micros(processor) };
        assert_eq!(took(612, 5_000).to_string(), "0.61 ms (5.00 ms)");
        assert_eq!(took(120_000, 71_400_000).to_string(), "0.12 s (71 s)");
        assert_eq!(
            [Size(51 << 10), Size(18 << 20), Size((3 << 20) + (614 << 10))].map(|size| size.to_string()),
            ["51 KiB", "18.0 MiB", "3.5 MiB"]
        );
        assert_eq!(median(vec![took(3, 1), took(1, 2), took(2, 9)]), took(2, 2));
    }
}
