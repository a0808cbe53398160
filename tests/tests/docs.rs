//! Every page of the documentation is run: commands, configuration, links. How blocks are marked is told in `outhaul_tests::docs`.

use anyhow::{Context, Result};
use outhaul_services::{Certificates, Major};
use outhaul_tests::components;
use outhaul_tests::docs::links;
use outhaul_tests::docs::page::Page;
use outhaul_tests::docs::run::{Told, run};
use outhaul_tests::docs::stage::Stage;
use outhaul_tests::places;
use outhaul_tests::registry::push;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Blocks that are shown and not run, of all pages: a change of this number wants a reason.
const NOT_RUN: usize = 4;

/// A page, and what a reader has when beginning with it.
struct Scene {
    page: &'static str,
    stage: fn() -> Result<Option<Stage>>,
}

macro_rules! pages {
    ($($test:ident: $page:literal, $stage:expr;)+) => {
        const SCENES: &[Scene] = &[$(Scene { page: $page, stage: || $stage().map(Into::into) }),+];

        $(#[test]
        fn $test() -> Result<()> {
            is_as_shown($page)
        })+
    };
}

pages! {
    readme: "README.md", Stage::checkout;
    docs_grants_and_limits: "docs/grants-and-limits.md", attacked;
    docs_bench: "docs/bench.md", Stage::relay;
    docs_metrics: "docs/metrics.md", Stage::relay;
    docs_fan_out: "docs/fan-out.md", Stage::relay;
    docs_operating_plugins: "docs/operating-plugins.md", with_another_version;
    docs_conformance: "docs/conformance.md", Stage::relay;
    docs_plugin_drive: "docs/plugin-drive.md", Stage::relay;
    docs_registries: "docs/registries.md", registry;
    docs_routers: "docs/routers.md", router_settings;
    docs_writing_an_adapter: "docs/writing-an-adapter.md", with_versions_of_the_checkout;
    examples: "examples/publishers/README.md", Stage::relay;
    docs_wit: "docs/wit.md", Stage::relay;
    wit: "wit/README.md", Stage::relay;
    http_publisher: "plugins/http-publisher/README.md", http_settings;
    kafka_publisher: "plugins/kafka-publisher/README.md", kafka_settings;
    sqlite_storage: "plugins/sqlite-storage/README.md", sqlite_settings;
    postgres_storage: "plugins/postgres-storage/README.md", postgres_settings;
}

/// With the component that attacks its host.
fn attacked() -> Result<Stage> {
    let evil = places::fixtures()?.join("evil-publisher.wasm");
    Stage::relay()?.with_file("plugins/evil-publisher.wasm", fs::read(&evil).with_context(|| format!("cannot read {}", evil.display()))?)
}

/// With another version of a publisher, to drop in.
fn with_another_version() -> Result<Stage> {
    Stage::relay()?.with_file("new/http-publisher.wasm", components::publisher("0.2.0")?)
}

/// A relay from the table `outbox` of a file, for publishers of which a page shows parts.
const RELAY: &str = r#"
[databases.main]
url = "sqlite:outbox.db"

[storages.outbox]
plugin = "sqlite-storage"
database = "main"
"#;

/// A publisher with everything that the parts on its page refer to.
fn http_settings() -> Result<Stage> {
    let folder = tempfile::tempdir()?;
    let certificates = Certificates::create(folder.path().to_owned(), None)?;
    let signing = "[publishers.webhooks]\nplugin = \"http-publisher\"\nallow_secrets = [\"hooks-new\", \"hooks-old\", \"hooks-key\"]\n\
                   [publishers.webhooks.config]\nurl = \"https://hooks.example.com/{topic}\"\n";
    let secrets = ["new", "old", "key"].map(|name| format!("[secrets.hooks-{name}]\nfile = \"{name}\"\n")).concat();
    Stage::relay()?
        .with_settings(&format!("{RELAY}{signing}{secrets}"))?
        .with_variable("HOOKS_TOKEN", "token")
        .with_file("new", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?
        .with_file("old", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?
        .with_file("key", "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")?
        .with_file("internal-ca.pem", fs::read(certificates.ca())?)?
        .with_file("outhaul.pem", fs::read(certificates.client_certificate())?)?
        .with_file("outhaul.key", fs::read(certificates.client_key())?)
}

fn kafka_settings() -> Result<Stage> {
    let publisher = "[publishers.events]\nplugin = \"kafka-publisher\"\nconfig = { brokers = [\"kafka.example.com:9092\"] }\n";
    Stage::relay()?.with_settings(&format!("{RELAY}{publisher}"))?.with_file("secrets/kafka", "password")
}

/// Where a new crate begins with the lock file of the checkout, as the example in Rust does in the suite: so what that one was built
/// from is not built again. Elsewhere cargo chooses.
fn with_versions_of_the_checkout() -> Result<Stage> {
    let lock = places::checkout().join("Cargo.lock").canonicalize()?;
    let script = format!("[ -e Cargo.lock ] || cp '{}' . || exit\nPATH=${{PATH#*:}} exec cargo \"$@\"", lock.display());
    Stage::relay()?.with_program("cargo", &script)
}

/// With a registry that has the page's image. None: there is no registry.
fn registry() -> Result<Option<Stage>> {
    let Some(registry) = outhaul_services::registry() else { return Ok(None) };
    let repository = "acme/http-publisher";
    let pinned = push(&registry, repository, "1.4", &components::publisher("0.2.0")?)?;
    let folder = tempfile::tempdir()?;
    let certificates = Certificates::create(folder.path().to_owned(), None)?;
    let stage = Stage::relay()?
        .with_settings(RELAY)?
        .with_file("ca.pem", fs::read(certificates.ca())?)?
        .with_file("secrets/registry", "password")?
        .with_file("outhaul.toml", format!("{RELAY}[registries.{:?}]\nplain_http = true\n", registry.name()))?
        .standing_in("ghcr.io/acme/http-publisher@sha256:3f0c...", &pinned)
        .standing_in("ghcr.io/acme/http-publisher:1.4", &format!("{}/{repository}:1.4", registry.name()))
        .keeping(registry);
    Ok(Some(stage))
}

/// With a database for the tables of subscriptions, and the secrets that they name.
fn router_settings() -> Result<Stage> {
    let stage = Stage::relay()?;
    let file = stage.checks().join("outbox.db");
    let authentication = "{\"type\": \"bearer\", \"token\": \"t\"}";
    stage
        .with_settings(RELAY)?
        .with_file("secrets/audit", authentication)?
        .with_file("secrets/crm-url", "https://crm.example.com/hooks")?
        .with_file("secrets/crm-auth", authentication)
        .map(|stage| stage.with_sql(move |text| Ok(rusqlite::Connection::open(&file)?.execute_batch(text)?)))
}

/// The storage of an existing table, of which the pages of storages show parts.
const EXISTING: &str = r#"
database = "main"

[storages.outbox.config]
table = "my_outbox"
lease_table = "my_outbox_leases"
columns = { id = "id", topic = "topic", key = "key", payload = "payload", state = "status" }
"#;

const MY_OUTBOX: &str = "CREATE TABLE my_outbox (id INTEGER PRIMARY KEY, topic TEXT, key TEXT, payload TEXT, status TEXT);\n";

fn sqlite_settings() -> Result<Stage> {
    let stage = Stage::relay()?;
    let file = stage.checks().join("outbox.db");
    rusqlite::Connection::open(&file)?.execute_batch(MY_OUTBOX)?;
    let settings = format!("[databases.main]\nurl = \"sqlite:outbox.db\"\n[storages.outbox]\nplugin = \"sqlite-storage\"\n{EXISTING}");
    Ok(stage.with_settings(&settings)?.with_sql(move |text| Ok(rusqlite::Connection::open(&file)?.execute_batch(text)?)))
}

/// On a server of the suite, as a role that has what the page grants to it and nothing else. None: there is no server.
fn postgres_settings() -> Result<Option<Stage>> {
    let Some(server) = outhaul_services::postgres(Major::V17) else { return Ok(None) };
    let database = server.create_database()?;
    database.connect()?.batch_execute(MY_OUTBOX)?;
    let settings = format!("[storages.outbox]\nplugin = \"postgres-storage\"\n{EXISTING}");
    let settings = format!("[databases.main]\nurl = {:?}\n{settings}", database.url());
    let stage = Stage::relay()?
        .with_settings(&settings)?
        .standing_in(
            "\"postgres://relay@db.example.com:5432/service\"\npassword = { secret = \"database-password\" }",
            &format!("{:?}", database.url()),
        )
        .standing_in(" TO relay;", " TO CURRENT_USER;")
        // Not possible in the transaction of a script.
        .standing_in("CREATE INDEX CONCURRENTLY", "CREATE INDEX")
        .with_sql(move |text| Ok(database.connect()?.batch_execute(text)?));
    Ok(Some(stage))
}

fn is_as_shown(path: &str) -> Result<()> {
    let page = Page::read(path)?;
    let scene = SCENES.iter().find(|scene| scene.page == path).context("no such page")?;
    let Some(mut stage) = (scene.stage)()? else { return Ok(()) };
    let Told { commands, looked_at, not_run } = run(&page, &mut stage)?;
    println!("{path}: {commands} commands run, {looked_at} blocks looked at, not run: {not_run:?}");
    Ok(())
}

/// The README of one example, which tests/languages.rs follows word for word.
fn is_followed_elsewhere(page: &Path) -> bool {
    page.starts_with("examples") && page.components().count() == 4
}

#[test]
fn links_of_the_examples_lead_somewhere() -> Result<()> {
    let mut pages = BTreeSet::new();
    find_pages(Path::new("examples"), &mut pages)?;
    pages.into_iter().filter(|page| is_followed_elsewhere(page)).try_for_each(|page| links::check(&Page::read(page)?))
}

#[test]
fn no_page_is_forgotten() -> Result<()> {
    let mut pages = BTreeSet::from([PathBuf::from("README.md"), PathBuf::from("wit/README.md")]);
    for folder in ["docs", "examples", "plugins"] {
        find_pages(Path::new(folder), &mut pages)?;
    }
    pages.retain(|page| !is_followed_elsewhere(page));
    let run: BTreeSet<PathBuf> = SCENES.iter().map(|scene| scene.page.into()).collect();
    assert_eq!(run, pages, "left: the pages that this test runs; right: those that there are");
    Ok(())
}

fn find_pages(folder: &Path, pages: &mut BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(places::checkout().join(folder)).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            find_pages(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.insert(path);
        }
    }
    Ok(())
}

#[test]
fn few_blocks_are_not_run() -> Result<()> {
    let mut reasons = Vec::new();
    for scene in SCENES {
        let page = Page::read(scene.page)?;
        reasons
            .extend(page.blocks.iter().filter_map(|block| Some(format!("{}:{}: {}", scene.page, block.line, block.marks.get("not-run")?))));
    }
    assert_eq!(reasons.len(), NOT_RUN, "{reasons:#?}");
    Ok(())
}

#[test]
fn every_clause_is_documented_with_its_title() -> Result<()> {
    let listed = Command::new(places::outhaul()?).args(["plugin", "test", "--list", "--json"]).output().context("cannot run outhaul")?;
    let listed: Value = serde_json::from_slice(&listed.stdout).context("no list")?;
    let text = |clause: &Value, key: &str| clause[key].as_str().map(str::to_owned).with_context(|| format!("a clause without {key}"));
    let clauses = listed["clauses"].as_array().context("no clauses")?;
    let rows = clauses.iter().map(|clause| Ok(format!("| `{}` | {} |", text(clause, "id")?, text(clause, "title")?)));
    let listed: BTreeSet<String> = rows.collect::<Result<_>>()?;
    let page = fs::read_to_string(places::checkout().join("docs/conformance.md"))?;
    let is_clause = |line: &&str| ["storage", "publisher", "router"].iter().any(|kind| line.starts_with(&format!("| `{kind}.")));
    let documented = page.lines().filter(is_clause).map(str::to_owned).collect();
    assert_eq!(listed, documented, "left: what the host lists; right: docs/conformance.md");
    Ok(())
}

#[test]
fn limits_are_documented_with_the_defaults_of_the_reference_file() -> Result<()> {
    let read = |path: &str| fs::read_to_string(places::checkout().join(path)).with_context(|| format!("cannot read {path}"));
    let reference: toml::Table = read("examples/outhaul.toml")?.parse()?;
    let publisher = &reference["publishers"]["webhooks"];
    let page = read("docs/grants-and-limits.md")?;
    for key in ["memory", "call_timeout", "returned_bytes", "lanes", "batch", "batch_bytes"] {
        let default = publisher.get(key).or_else(|| publisher["limits"].get(key)).with_context(|| format!("no {key} in the reference"))?;
        let row = format!("| `{key}` | `{default}` |");
        assert!(page.lines().any(|line| line.starts_with(&row)), "no row {row}");
    }
    Ok(())
}
