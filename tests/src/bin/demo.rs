//! The product in a minute: orders and their events in SQLite, relayed to a local HTTP receiver that fails now and then.
//!
//! Started by `cargo xtask demo`, which builds what it needs. Everything it makes is in target/demo/; every number of its summary
//! is counted from the database or from the receiver's log, and a promise that was not kept ends it with an error.

use anyhow::{Context, Result, bail};
use clap::Parser;
use outhaul_tests::ledger::{Event, Report};
use outhaul_tests::outbox::{self, Outbox};
use outhaul_tests::places;
use outhaul_tests::process::{PATIENCE, poll};
use outhaul_tests::receiver::{Answer, Receiver, Request};
use outhaul_tests::rig::Rig;
use rusqlite::{Connection, TransactionBehavior, params};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

/// Orders that are committed; each has two events, in two transactions.
const ORDERS: u64 = 1_000;
/// Who places them: the events of one customer must arrive in order.
const CUSTOMERS: u64 = 150;
/// Every so many orders, one is rolled back: its event must never arrive.
const ROLL_BACK_EVERY: u64 = 20;
/// Every so many events, the receiver is busy at the first attempt.
const BUSY_EVERY: usize = 40;
/// The pause between two orders: slow enough to watch.
const PACE: Duration = Duration::from_millis(4);
/// The order whose first event the receiver will never take.
const UNACCEPTABLE: u64 = 500;

/// Shows outhaul at work.
#[derive(Parser)]
struct Demo {
    /// After the checks, leave the host and the receiver running until Ctrl-C, to look at the metrics.
    #[arg(long)]
    keep: bool,
}

fn main() -> Result<()> {
    let demo = Demo::parse();
    let start = Instant::now();
    let folder = places::target()?.join("demo");
    let rig = Rig::at(&folder);
    let receiver = Receiver::start(answer)?;
    let admin = free_address()?;

    say("1", "A fresh database with the service's own table `orders`, and the outbox beside it (outhaul schema --apply).");
    prepare(&rig, receiver.address(), admin)?;

    say("2", "outhaul run: sqlite-storage claims, http-publisher sends; both are WebAssembly components from target/plugins/.");
    let host = rig.host()?;

    say("3", &format!("A service commits {ORDERS} orders, each with its events in the same transaction, and rolls some back."));
    let database = database(&folder);
    let shop = std::thread::spawn(move || trade(&database));
    let work = Instant::now();
    let events = usize::try_from(2 * ORDERS)?;
    while receiver.wait_for_as_long_as(Duration::from_millis(500), "all events", |log| finished(log) >= events).is_err() {
        println!("      {}", receiver.look(Progress::of));
        if work.elapsed() > PATIENCE {
            bail!("the events did not arrive in time; the host logged:\n{}", host.log());
        }
    }
    println!("      {}", receiver.look(Progress::of));
    let seconds = work.elapsed().as_secs_f64();
    let written = shop.join().map_err(|_| anyhow::anyhow!("the service panicked"))??;
    let retried = host.metric("outhaul_retried_total")?;
    std::fs::write(folder.join("metrics.txt"), host.get("/metrics")?.1)?;

    let table = Outbox::open(&self::database(&folder))?;
    // The receiver has everything; the last verdicts may be on their way to the table.
    poll("every row to be settled", || Ok(table.count("pending")? == 0))?;
    let summary = Summary { written, requests: receiver.requests(), rows: count_rows(&folder)?, retried, seconds };
    summary.print();
    summary.check()?;
    println!("\n      All of this was checked, {:.0} s after the start.", start.elapsed().as_secs_f64());
    if !demo.keep {
        host.shut_down()?;
        return look_further(&rig, "the metrics live: the same once more, left running", "cargo xtask demo --keep");
    }
    look_further(&rig, "the metrics live, until Ctrl-C", &format!("{}/metrics", host.admin()))?;
    loop {
        std::thread::park();
    }
}

fn say(number: &str, text: &str) {
    println!("\n  {number}.  {text}");
}

/// The receiver: mostly well, now and then busy, and once it refuses for good.
fn answer(request: &Request) -> Answer {
    let work = Duration::from_millis(1);
    let order = request.json().ok().and_then(|body| body["order"].as_u64());
    if request.path == "/orders.placed" && order == Some(UNACCEPTABLE) {
        Answer::status(400).body("this order has no address").after(work)
    } else if request.earlier == 0 && request.number % BUSY_EVERY == BUSY_EVERY - 1 {
        Answer::status(503).header("retry-after", "1").after(work)
    } else {
        Answer::status(204).after(work)
    }
}

/// How many events have come to their end.
fn finished(requests: &[Request]) -> usize {
    requests.iter().filter(|request| request.accepted() || request.answered == Some(400)).count()
}

struct Progress {
    delivered: usize,
    busy: usize,
    refused: usize,
}

impl Progress {
    fn of(requests: &[Request]) -> Self {
        let with = |status| requests.iter().filter(|request| request.answered == Some(status)).count();
        Self { delivered: with(204), busy: with(503), refused: with(400) }
    }
}

impl std::fmt::Display for Progress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let filled = (self.delivered * 30).checked_div(usize::try_from(2 * ORDERS).unwrap_or(1)).unwrap_or_default().min(30);
        let bar: String = (0..30).map(|place| if place < filled { '#' } else { '.' }).collect();
        write!(formatter, "[{bar}] delivered {:>4}   503: {:>2}   400: {}", self.delivered, self.busy, self.refused)
    }
}

fn database(folder: &Path) -> std::path::PathBuf {
    folder.join("shop.db")
}

/// An address that is free now: it goes into the configuration, so that it is the same the next time.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0").context("no free port")?.local_addr()?)
}

fn prepare(rig: &Rig, receiver: SocketAddr, admin: SocketAddr) -> Result<()> {
    let folder = rig.path();
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    std::fs::write(rig.config(), configuration(receiver, admin))?;
    Outbox::create_database(&database(folder))?;
    Connection::open(database(folder))?.execute_batch(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, amount INTEGER NOT NULL, paid INTEGER NOT NULL DEFAULT 0)",
    )?;
    rig.run(&["schema", "--storage", "shop", "--apply"])?.success()?;
    Ok(())
}

fn configuration(receiver: SocketAddr, admin: SocketAddr) -> String {
    format!(
        r#"# Written by `cargo xtask demo`. Paths are relative to this file.

[plugins]
dir = "../plugins"              # the components: sqlite-storage.wasm, http-publisher.wasm
cache = "../compiled"           # compiled once, loaded in milliseconds after that

[admin]
listen = "{admin}"     # /healthz, /readyz, /metrics, POST /wake

[log]
format = "json"

[databases.shop]
url = "sqlite:shop.db"

[storages.shop]                 # reads the outbox, and may reach that one database
plugin = "sqlite-storage"
database = "shop"
config = {{ table = "outbox" }}

[publishers.webhooks]           # sends, and may reach that one address
plugin = "http-publisher"
allow_hosts = ["{receiver}"]
config = {{ url = "http://{receiver}/{{topic}}" }}

[[relays]]
name = "orders"
storage = "shop"
routes = [ {{ topic = "orders.*", publisher = "webhooks" }} ]
backoff = {{ base = "200ms", factor = 2.0, max = "5s", jitter = 0.25 }}
"#
    )
}

/// What the service did.
struct Written {
    committed: BTreeSet<Event>,
    rolled_back: BTreeSet<u64>,
}

/// The service: a business row and its event, in one transaction.
fn trade(database: &Path) -> Result<Written> {
    let mut outbox = Outbox::open(database)?;
    let mut numbers: BTreeMap<u64, u64> = BTreeMap::new();
    let mut written = Written { committed: BTreeSet::new(), rolled_back: BTreeSet::new() };
    for order in 1..=ORDERS + ORDERS / ROLL_BACK_EVERY {
        std::thread::sleep(PACE);
        let customer = order * 7 % CUSTOMERS;
        let roll_back = order % (ROLL_BACK_EVERY + 1) == 0;
        let steps = if roll_back { &["placed"][..] } else { &["placed", "paid"] };
        for step in steps {
            let number = numbers.get(&customer).copied().unwrap_or_default() + 1;
            let event = Event { key: format!("customer-{customer}"), number };
            let transaction = outbox.connection().transaction_with_behavior(TransactionBehavior::Immediate)?;
            let business = match *step {
                "placed" => "INSERT INTO orders (id, customer, amount) VALUES (?1, ?2, ?1 * 3 % 90 + 10)",
                _ => "UPDATE orders SET paid = 1 WHERE id = ?1 AND customer = ?2",
            };
            transaction.execute(business, params![i64::try_from(order)?, event.key])?;
            let payload = serde_json::json!({ "order": order, "key": event.key, "number": event.number }).to_string();
            let message = "INSERT INTO outbox (topic, key, payload) VALUES (?1, ?2, ?3)";
            transaction.execute(message, params![format!("orders.{step}"), event.key, payload.as_bytes()])?;
            if roll_back {
                transaction.rollback()?;
                written.rolled_back.insert(order);
            } else {
                transaction.commit()?;
                numbers.insert(customer, number);
                written.committed.insert(event);
            }
        }
    }
    Ok(written)
}

/// What is in the database at the end.
struct Rows {
    orders: usize,
    delivered: usize,
    dead: usize,
    other: usize,
}

fn count_rows(folder: &Path) -> Result<Rows> {
    let mut table = Outbox::open(&database(folder))?;
    let orders: i64 = table.connection().query_row("SELECT count(*) FROM orders WHERE paid = 1", [], |row| row.get(0))?;
    let (delivered, dead) = (table.count(outbox::DELIVERED)?, table.count("dead")?);
    let all: i64 = table.connection().query_row("SELECT count(*) FROM outbox", [], |row| row.get(0))?;
    Ok(Rows { orders: orders.try_into()?, delivered, dead, other: usize::try_from(all)? - delivered - dead })
}

struct Summary {
    written: Written,
    requests: Vec<Request>,
    rows: Rows,
    retried: f64,
    seconds: f64,
}

impl Summary {
    fn with_status(&self, status: u16) -> usize {
        self.requests.iter().filter(|request| request.answered == Some(status)).count()
    }

    /// Requests for orders that were rolled back.
    fn of_rolled_back(&self) -> usize {
        let order = |request: &Request| request.json().ok().and_then(|body| body["order"].as_u64());
        self.requests.iter().filter(|request| order(request).is_some_and(|order| self.written.rolled_back.contains(&order))).count()
    }

    /// First acceptances against what was committed, but for the events that the receiver refused.
    fn report(&self) -> Result<Report> {
        let events = |wanted: fn(&Request) -> bool| -> Result<Vec<Event>> {
            self.requests.iter().filter(|request| wanted(request)).map(|request| Event::from_payload(&request.body)).collect()
        };
        let mut committed = self.written.committed.clone();
        for refused in events(|request| request.answered == Some(400))? {
            committed.remove(&refused);
        }
        Ok(Report::new(&committed, &events(Request::accepted)?))
    }

    fn print(&self) {
        let keys: BTreeSet<&str> = self.written.committed.iter().map(|event| event.key.as_str()).collect();
        let line = |name: &str, value: String, how: &str| println!("      {name:<24}{value:>6}   {how}");
        say("4", "What the database and the receiver's log say:\n");
        line("orders committed", self.rows.orders.to_string(), "rows of `orders`");
        line(
            "events delivered",
            self.rows.delivered.to_string(),
            &format!("rows marked delivered; accepted by the receiver: {}", self.with_status(204)),
        );
        line(
            "attempts retried",
            format!("{:.0}", self.retried),
            &format!("counted by the host; 503 with Retry-After: {}", self.with_status(503)),
        );
        line(
            "dead",
            self.rows.dead.to_string(),
            &format!("rows marked dead, with the reason; 400 by the receiver: {}", self.with_status(400)),
        );
        line(
            "orders rolled back",
            self.written.rolled_back.len().to_string(),
            &format!("of which the receiver saw {}", self.of_rolled_back()),
        );
        line("customers", keys.len().to_string(), "whose events arrived in the order of their transactions");
        let rate = f64::from(u32::try_from(self.requests.len()).unwrap_or(u32::MAX)) / self.seconds;
        line(
            "requests",
            self.requests.len().to_string(),
            &format!("in {:.1} s, {rate:.0} a second: as fast as the service wrote, not as fast as outhaul goes", self.seconds),
        );
    }

    fn check(&self) -> Result<()> {
        let orders = usize::try_from(ORDERS)?;
        let report = self.report()?;
        report.check(&BTreeMap::new()).context("the receiver's log does not agree with what was committed")?;
        let facts = [
            ("every committed order is there", self.rows.orders == orders),
            ("every event is delivered or dead", self.rows.other == 0 && self.rows.delivered + self.rows.dead == 2 * orders),
            ("the receiver accepted what is marked delivered", self.rows.delivered == self.with_status(204)),
            ("the host counted each 503 as a retry", (self.retried - f64::from(u32::try_from(self.with_status(503))?)).abs() < 0.5),
            ("exactly the refused event is dead", self.rows.dead == 1 && self.with_status(400) == 1),
            ("something was retried", self.with_status(503) > 0),
            ("no rolled back order was seen", self.of_rolled_back() == 0 && !self.written.rolled_back.is_empty()),
        ];
        for (fact, holds) in facts {
            if !holds {
                bail!("not true: {fact}");
            }
        }
        Ok(())
    }
}

/// What else there is to see; the metrics last.
fn look_further(rig: &Rig, metrics: &str, seen_by: &str) -> Result<()> {
    let here = std::env::current_dir()?;
    let show = |path: &Path| path.strip_prefix(&here).unwrap_or(path).display().to_string();
    let outhaul = format!("{} --config {}", show(&places::outhaul()?), show(&rig.config()));
    println!("\n  5.  To look further:\n\n      {outhaul} dead list\n");
    for line in rig.run(&["dead", "list"])?.success()?.lines() {
        println!("        {line}");
    }
    println!();
    for (command, purpose) in [
        (format!("{outhaul} stats"), "what is in the table"),
        (format!("{outhaul} plugin list"), "the components, and what they ask for"),
        (show(&rig.config()), "the configuration, commented"),
        (show(&rig.path().join("metrics.txt")), "what Prometheus would have read"),
        (seen_by.to_owned(), metrics),
    ] {
        println!("      {command}\n        {purpose}");
    }
    println!();
    Ok(())
}
