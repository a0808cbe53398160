//! From nothing to a delivered message, by the clock: what a reader of each README sees, and how long it takes.

use super::readme::{Readme, Shell, set_up};
use super::{ALL, Example, Language, build};
use crate::places;
use crate::receiver::Receiver;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// What the READMEs send a message to.
const RECEIVER: &str = "127.0.0.1:8080";

/// Goes through the examples of one language, or all, and prints a transcript.
///
/// # Errors
/// If a command fails, the contract is broken, or the message does not arrive.
pub fn tour(only: Option<Language>) -> Result<()> {
    let (mut summary, mut left_out) = (String::new(), BTreeSet::new());
    for example in ALL.iter().filter(|example| only.is_none_or(|only| only == example.language)) {
        if let Some(what) = build::lacks(example.language) {
            println!("{}: SKIPPED, {what}\n", example.name);
            continue;
        }
        if matches!(example.language, Language::C | Language::Go) {
            build::tools()?;
        }
        println!("# {}", example.name);
        let Stages { built, tested, delivered, set_up } =
            one(example).with_context(|| format!("the tour of {} ended early", example.name))?;
        println!();
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let name = format!("{}{}", example.name, if set_up.is_empty() { "" } else { " *" });
        writeln!(summary, "{name:<13} {:>9} {:>9} {:>9}", seconds(built), seconds(tested), seconds(delivered))?;
        left_out.extend(set_up);
    }
    print!("{:<13} {:>9} {:>9} {:>9}\n{summary}", "since new", "built", "contract", "delivered");
    if !left_out.is_empty() {
        println!("* Not counted, because it was done before, as once in the life of a machine (cargo compiles for minutes):");
    }
    for line in left_out {
        println!("  {line}");
    }
    Ok(())
}

/// The times since the beginning, and what they leave out.
struct Stages {
    /// Built, and its own tests green.
    built: Duration,
    /// Held against the contract.
    tested: Duration,
    /// A message has arrived.
    delivered: Duration,
    /// Lines of its README that were not run.
    set_up: Vec<String>,
}

fn one(example: &Example) -> Result<Stages> {
    let parent = super::home()?.join("tour");
    let folder = parent.join(example.name);
    build::remove(&folder)?;
    fs::create_dir_all(&parent)?;
    let (start, since) = (Instant::now(), SystemTime::now());
    Shell::new(&parent)?.by_the_clock(since).run(&format!("outhaul {}\ncd {}", example.arguments().join(" "), example.name))?;
    let (readme, shell) = (Readme::of(&folder)?, Shell::new(&folder)?.by_the_clock(since));
    let build = readme.block("Build and test", "sh")?;
    shell.run(&build)?;
    let built = start.elapsed();
    shell.run(&readme.block("Hold it against the contract", "sh")?)?;
    let tested = start.elapsed();
    deliver(example, &readme, &shell, &folder, None)?;
    let set_up = set_up(&build).into_iter().map(str::to_owned).collect();
    Ok(Stages { built, tested, delivered: start.elapsed(), set_up })
}

/// Follows the section `Run` in a folder, with a receiver that says 204 to the message, if one is sent. `cache`: where compiled components are kept, if not where they
/// always are.
///
/// # Errors
/// If a command fails, or the message does not arrive as the README has it.
pub fn deliver(example: &Example, readme: &Readme, shell: &Shell, folder: &Path, cache: Option<&Path>) -> Result<()> {
    let receiver = Receiver::accepting()?;
    let blocks = readme.blocks("Run", "sh");
    let [install, run] = &blocks[..] else { anyhow::bail!("`## Run` has {} blocks of commands instead of two", blocks.len()) };
    shell.run(install)?;
    if let Some(companion) = example.companion() {
        fs::copy(places::plugins()?.join(companion), folder.join("plugins").join(companion))?;
    }
    let delivers = example.companion().is_some();
    let mut config = readme.block("Run", "toml")?;
    let expected = config.contains(RECEIVER) == delivers && config.contains("dir = \"plugins\"\n");
    ensure!(expected, "`## Run` has another configuration: {config}");
    config = config.replace(RECEIVER, &receiver.address().to_string());
    if let Some(cache) = cache {
        config = config.replace("dir = \"plugins\"\n", &format!("dir = \"plugins\"\ncache = {:?}\n", cache));
    }
    fs::write(folder.join("outhaul.toml"), config)?;
    shell.run(run)?;
    let requests = receiver.requests();
    let bodies: Vec<_> = requests.iter().map(|request| String::from_utf8_lossy(&request.body)).collect();
    let expected: &[&str] = if delivers { &[r#"{"total": 5}"#] } else { &[] };
    ensure!(bodies == expected, "the receiver got {bodies:?}");
    Ok(())
}
