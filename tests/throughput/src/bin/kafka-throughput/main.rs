//! Messages per second of kafka-publisher, as a component in the host and as plain Rust, beside librdkafka: the same messages in batches
//! of the same size, acknowledged by all replicas, idempotent, to one partition of the same broker, in turn. Run by
//! `cargo xtask kafka-throughput`, which builds with optimisation and starts a broker.

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

mod component;
mod librdkafka;
mod native;
mod shape;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use component::Component;
use librdkafka::Librdkafka;
use native::Native;
use outhaul::bench::compare;
use shape::Shape;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Parser)]
#[command(about = "Messages per second to Kafka: kafka-publisher as a component and as plain Rust, beside librdkafka")]
struct Options {
    /// Directory with kafka-publisher.wasm.
    #[arg(long)]
    plugins: PathBuf,
    /// Messages of each run.
    #[arg(long, default_value_t = 100_000)]
    messages: usize,
    /// Payload bytes.
    #[arg(long, default_value_t = 256)]
    payload: usize,
    /// Messages of a record batch.
    #[arg(long, default_value_t = 500)]
    batch: usize,
    /// Batches without an answer.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 5])]
    in_flight: Vec<usize>,
    /// Rounds: in each, everyone has one run.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// A broker; default: that of the test services.
    #[arg(long)]
    bootstrap: Option<String>,
}

/// Somebody who sends messages to Kafka.
trait Contestant {
    /// Sends everything; how long it took until all of it was acknowledged.
    fn run(&mut self) -> Result<Duration>;
}

/// In the order of the columns.
const NAMES: [&str; 3] = ["component", "native", "librdkafka"];

fn main() -> Result<()> {
    let options = Options::parse();
    let kafka = outhaul_services::kafka();
    let bootstrap = match (&options.bootstrap, &kafka) {
        (Some(bootstrap), _) => bootstrap.clone(),
        (None, Some(kafka)) => kafka.bootstrap(),
        (None, None) => bail!("there is no broker: name one with --bootstrap"),
    };
    println!("{} messages of {} bytes in batches of {}; messages a second", options.messages, options.payload, options.batch);
    println!("{:>9} {:>4} {:>12} {:>12} {:>12} {:>8} {:>8}", "in flight", "run", NAMES[0], NAMES[1], NAMES[2], "c / l", "c / n");
    for in_flight in &options.in_flight {
        let shape = Shape {
            bootstrap: bootstrap.clone(),
            topic: format!("throughput-{}-{in_flight}", std::process::id()),
            messages: options.messages,
            payload: options.payload,
            batch: options.batch,
            in_flight: *in_flight,
        };
        match &kafka {
            Some(kafka) if options.bootstrap.is_none() => kafka.create_topic(&shape.topic, 1)?,
            _ => println!("the topic {} must be there, or come into being when somebody asks for it", shape.topic),
        }
        compare(&shape, &options)?;
    }
    Ok(())
}

fn compare(shape: &Shape, options: &Options) -> Result<()> {
    let mut contestants: [Box<dyn Contestant>; 3] =
        [Box::new(Component::load(shape, &options.plugins)?), Box::new(Native::new(shape)?), Box::new(Librdkafka::new(shape)?)];
    // Connections, compilers and caches are warm after this; it does not count.
    for contestant in &mut contestants {
        contestant.run()?;
    }
    let (mut to_librdkafka, mut to_native) = (Vec::new(), Vec::new());
    for run in 0..options.runs {
        let mut rates = [0.0; 3];
        // Each is first in turn: a drift of the machine falls on all.
        for place in 0..contestants.len() {
            let index = (place + run) % contestants.len();
            let contestant = contestants.get_mut(index).context("one of the three")?;
            let rate = f64::from(u32::try_from(shape.messages)?) / contestant.run()?.as_secs_f64();
            *rates.get_mut(index).context("one of the three")? = rate;
        }
        let [component, native, librdkafka] = rates;
        to_librdkafka.push(component / librdkafka);
        to_native.push(component / native);
        println!(
            "{:>9} {:>4} {component:>12.0} {native:>12.0} {librdkafka:>12.0} {:>8.3} {:>8.3}",
            shape.in_flight,
            run + 1,
            component / librdkafka,
            component / native
        );
    }
    let expected = shape.messages * NAMES.len() * (options.runs + 1);
    let written = librdkafka::count(&shape.bootstrap, &shape.topic)?;
    if i64::try_from(expected)? != written {
        bail!("{expected} messages were acknowledged, and {written} are there");
    }
    println!("{:>9} median ratios {:.3} to librdkafka, {:.3} to native", shape.in_flight, median(to_librdkafka), median(to_native));
    Ok(())
}

fn median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    compare::median(&ratios).unwrap_or(0.0)
}
