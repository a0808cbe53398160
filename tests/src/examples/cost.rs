//! What each language costs: the size of its component, the host's start without and with compiled code, and the time a message takes.

use super::{ALL, Kind, component};
use crate::outbox::Outbox;
use crate::places;
use crate::process::poll;
use crate::receiver::Receiver;
use crate::rig::{Config, Rig};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How much is measured.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Amount {
    /// Messages of one run.
    #[arg(long, default_value_t = 2000)]
    messages: u64,
    /// Runs of each, of which the median counts; an odd number.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Starts without compiled code, of which the median counts; an odd number.
    #[arg(long, default_value_t = 1)]
    cold_starts: usize,
}

/// Measures the shipped publisher and those of the examples that are built, and prints a table.
///
/// # Errors
/// If a host does not start, or a message is lost.
pub fn measure(amount: &Amount) -> Result<()> {
    println!(
        "{} with {} messages of 256 bytes, batches of 50, one lane, the median of {} runs and {} cold starts; {} cores, load {}",
        places::outhaul()?.display(),
        amount.messages,
        amount.runs,
        amount.cold_starts,
        std::thread::available_parallelism()?,
        std::fs::read_to_string("/proc/loadavg").map(|load| load.trim().to_owned()).unwrap_or_else(|_| "unknown".to_owned()),
    );
    println!("{:<16} {:>10} {:>12} {:>12} {:>12}", "publisher", "KiB", "first start", "start", "a message");
    let mut publishers = vec![("http-publisher", places::plugins()?.join("http-publisher.wasm"))];
    for example in ALL.iter().filter(|example| example.kind == Kind::Publisher) {
        publishers.extend(component(example.name)?.map(|file| (example.name, file)));
    }
    for (name, file) in publishers {
        let cost = one(name, &file, amount).with_context(|| name.to_owned())?;
        let milliseconds = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1000.0);
        let size = std::fs::metadata(&file)?.len() / 1024;
        let [first, warm, message] = [cost.first_start, cost.start, cost.message].map(milliseconds);
        println!("{name:<16} {size:>10} {first:>12} {warm:>12} {message:>12}");
    }
    Ok(())
}

struct Cost {
    /// Until the host is ready, everything compiled.
    first_start: Duration,
    /// The same with compiled code on disk.
    start: Duration,
    /// From the table to the receiver and back to the table.
    message: Duration,
}

fn one(name: &str, file: &Path, amount: &Amount) -> Result<Cost> {
    let receiver = Receiver::accepting()?;
    let rig = Rig::empty()?;
    let folder = rig.path().join("plugins");
    std::fs::create_dir(&folder)?;
    std::fs::copy(file, folder.join(format!("{name}.wasm")))?;
    std::fs::copy(places::plugins()?.join("sqlite-storage.wasm"), folder.join("sqlite-storage.wasm"))?;
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
    rig.run(&["schema", "--apply"])?.success()?;

    let cache: PathBuf = rig.path().join("compiled");
    let first_starts = (0..amount.cold_starts.max(1)).map(|_| {
        std::fs::remove_dir_all(&cache).context("no folder of compiled code")?;
        start(&rig)
    });
    let first_start = median(first_starts.collect::<Result<_>>()?);
    let start_again = median((0..amount.runs.max(1)).map(|_| start(&rig)).collect::<Result<_>>()?);
    let message = median((0..amount.runs.max(1)).map(|_| drain(&rig, amount.messages)).collect::<Result<_>>()?);
    Ok(Cost { first_start, start: start_again, message })
}

/// Until `/readyz` says so. Patience ends after a minute: a machine that needs so long has too much else to do.
fn start(rig: &Rig) -> Result<Duration> {
    let began = Instant::now();
    let host = rig.host()?;
    poll("the host to be ready", || Ok(host.get("/readyz")?.0 == 200))?;
    let took = began.elapsed();
    host.shut_down()?;
    Ok(took)
}

/// The time of one of so many messages, without the start of the process.
fn drain(rig: &Rig, messages: u64) -> Result<Duration> {
    let time = |rows: u64| -> Result<Duration> {
        let body = "x".repeat(256);
        let mut outbox = rig.outbox()?;
        let transaction = outbox.connection().transaction()?;
        for _ in 0..rows {
            crate::outbox::insert(&transaction, "orders", None, body.as_bytes())?;
        }
        transaction.commit()?;
        let began = Instant::now();
        let sent = rig.drain()?["sent"].as_u64();
        ensure!(sent == Some(rows), "{sent:?} of {rows} were sent");
        Ok(began.elapsed())
    };
    let empty = time(0)?;
    let full = time(messages)?;
    Ok(full.saturating_sub(empty) / u32::try_from(messages.max(1)).context("too many messages")?)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
