//! `outhaul check`.

use super::error::CommandError;
use super::{CommandResult, output};
use crate::app::{App, AppError};
use crate::config::model::{Adapter, Database, Router, RouterKind, SecretSource};
use crate::config::{self, Config, ConfigError, Place, Problem, Problems, Warning};
use crate::fan_out::keys::Keyring;
use crate::ports::fan_out::FanOutStorage;
use crate::ports::{Stats, Storage};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Say what is fine with the configuration, and what is not.
///
/// Reads the whole file, opens every adapter within its grants, looks for the tables of every storage, and says everything that
/// is wrong, not just the first. Sends nothing, and changes nothing but that what adapters name by reference (oci://) is pulled.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul check
  outhaul --config staging.toml check --json      {\"ok\":true,\"checks\":[{\"what\":\"storages.outbox\",\"state\":\"ok\",...}]}

With --json also a file that cannot be read or is wrong ends in that document: each check has what, state (ok, warning, failed),
text, and file, line and key, null where it is not about a line of the file.

Exit codes: 0 if all is fine (also with warnings), 1 if something outside did not answer, 2 if something has to be changed.")]
pub(super) struct Args {
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Warning,
    Failed,
}

#[derive(serde::Serialize)]
struct Check {
    what: String,
    state: State,
    file: Option<PathBuf>,
    line: Option<usize>,
    key: Option<String>,
    text: String,
}

/// What was found, and the exit code that follows from it.
#[derive(Default)]
struct Findings {
    checks: Vec<Check>,
    code: u8,
}

impl Findings {
    fn add(&mut self, what: impl Into<String>, state: State, text: impl Into<String>) {
        self.add_at(what, state, None, text);
    }

    fn add_at(&mut self, what: impl Into<String>, state: State, place: Option<Place>, text: impl Into<String>) {
        let (file, line, key) = place.map_or((None, None, None), |Place { file, line, key }| (Some(file), Some(line), Some(key)));
        self.checks.push(Check { what: what.into(), state, file, line, key, text: text.into() });
    }

    fn fail(&mut self, what: String, error: &AppError) {
        self.code = self.code.max(if error.is_configuration() { 2 } else { 1 });
        let text = error.to_string();
        let named = error.place().map_or_else(|| what.clone(), ToString::to_string);
        let text = text.strip_prefix(&format!("{named}: ")).unwrap_or(&text).to_owned();
        self.add_at(what, State::Failed, error.place().cloned(), text);
    }
}

pub(super) async fn run(args: Args, config: Config) -> CommandResult {
    let mut findings = Findings::default();
    findings.add("configuration", State::Ok, format!("{} is well-formed", config.file.display()));
    unused(&config, &mut findings);
    secrets(&config, &mut findings);
    for Warning { relay, place, text } in config::warnings(&config) {
        findings.add_at(format!("relays.{relay}"), State::Warning, place, text);
    }
    for (database, place) in config::written_passwords(&config) {
        findings.add_at(format!("databases.{database}"), State::Warning, place, config::WRITTEN_PASSWORD);
    }
    let app = App::new(config)?;
    for storage in app.config.storages.values() {
        let what = format!("storages.{}", storage.name);
        let fans_out = app.config.relays.iter().any(|relay| relay.storage == storage.name && relay.fan_out.is_some());
        let counted = count(&app, storage, fans_out).await;
        match counted {
            Ok(stats) => {
                findings.add(what, State::Ok, format!("{} opens; {} rows pending, {} dead", storage.plugin, stats.pending, stats.dead))
            }
            Err(error) => findings.fail(what, &error),
        }
    }
    for publisher in app.config.publishers.values() {
        let what = format!("publishers.{}", publisher.adapter.name);
        match app.publisher(publisher).await {
            Ok(_) => findings.add(what, State::Ok, format!("{} opens", publisher.adapter.plugin)),
            Err(error) => findings.fail(what, &error),
        }
    }
    for router in &app.config.routers {
        let what = format!("routers.{}", router.name);
        match app.probe_router(router).await {
            Ok(()) => findings.add(what, State::Ok, found(router)),
            Err(error) => findings.fail(what, &error),
        }
    }
    for relay in &app.config.relays {
        let what = format!("relays.{}", relay.name);
        let Some(fan_out) = &relay.fan_out else {
            let routes: Vec<String> = relay.routes.iter().map(|route| format!("{} -> {}", route.topic, route.publisher)).collect();
            findings.add(what, State::Ok, format!("{}: {}", relay.storage, routes.join(", ")));
            continue;
        };
        match Keyring::of(&app.config, fan_out).check().await {
            Ok(()) => {
                let old = match fan_out.keys.len() {
                    0 | 1 => String::new(),
                    number => format!(", opened with {number}"),
                };
                let newest = fan_out.keys.first().map_or("", |key| key.version.as_str());
                let text = format!("{}: fan-out by {} to {}", relay.storage, fan_out.router, fan_out.publisher);
                findings.add(what, State::Ok, format!("{text}, sealed with the key {newest}{old}"));
            }
            Err(fault) => findings.fail(what, &AppError::Key { relay: relay.name.clone(), fault }),
        }
    }
    tell(&findings, args.json)?;
    if findings.code == 0 { Ok(()) } else { Err(CommandError::said(findings.code)) }
}

/// Opens a storage and counts its rows, and its deliveries where a relay makes some.
async fn count(app: &App, storage: &Adapter, fans_out: bool) -> Result<Stats, AppError> {
    let failed = |call| move |failure| AppError::Call { storage: storage.name.clone(), call, failure };
    let opened = app.storage(storage).await?;
    if fans_out {
        opened.delivery_stats().await.map_err(failed("delivery-stats"))?;
    }
    opened.stats().await.map_err(failed("stats"))
}

/// What was found of a router.
fn found(router: &Router) -> String {
    match &router.kind {
        RouterKind::Plugin(adapter) => format!("{} opens", adapter.plugin),
        RouterKind::Table(table) => format!("the table {} is there, with its columns", table.table.as_str()),
        RouterKind::List(list) => format!("{} active in the list", list.iter().filter(|subscriber| subscriber.active).count()),
    }
}

/// Tells of a configuration of which nothing can be opened: a text on stderr as for any other command, or a document with one entry
/// for each problem.
pub(super) fn unreadable(args: Args, file: &Path, error: ConfigError) -> CommandResult {
    if !args.json {
        return Err(error.into());
    }
    let what = "configuration";
    let checks = match error {
        ConfigError::Invalid(Problems { file, list }) => list
            .into_iter()
            .map(|Problem { line, key, text, .. }| {
                let key = Some(key).filter(|key| !key.is_empty());
                Check { what: what.to_owned(), state: State::Failed, file: Some(file.clone()), line: Some(line), key, text }
            })
            .collect(),
        other => {
            let line = match &other {
                ConfigError::NotText { line, .. } => Some(*line),
                _ => None,
            };
            let text = CommandError::from(other).text();
            vec![Check { what: what.to_owned(), state: State::Failed, file: Some(file.to_owned()), line, key: None, text }]
        }
    };
    tell(&Findings { checks, code: 2 }, true)?;
    Err(CommandError::said(2))
}

fn tell(findings: &Findings, json: bool) -> CommandResult {
    if json {
        return output::json(&serde_json::json!({ "ok": findings.code == 0, "checks": findings.checks }));
    }
    for Check { what, state, file, line, key, text } in &findings.checks {
        let mark = match state {
            State::Ok => "ok     ",
            State::Warning => "warning",
            State::Failed => "FAILED ",
        };
        let place = match (file, line, key) {
            (Some(file), Some(line), Some(key)) => format!("{}:{line}: {key}: ", file.display()),
            _ => String::new(),
        };
        output::line(&format!("{mark} {what}: {place}{text}"))?;
    }
    Ok(())
}

/// What is in the file and has no effect.
fn unused(config: &Config, findings: &mut Findings) {
    if config.relays.is_empty() {
        findings.add(
            "relays",
            State::Warning,
            "there is none, and `run` and `drain` refuse to start: add [[relays]] with a name, a storage and routes",
        );
        return;
    }
    let storages: BTreeSet<&str> = config.relays.iter().map(|relay| relay.storage.as_str()).collect();
    let publishers: BTreeSet<&str> = config.relays.iter().flat_map(|relay| relay.publishers()).map(String::as_str).collect();
    for name in config.storages.keys().filter(|name| !storages.contains(name.as_str())) {
        findings.add(format!("storages.{name}"), State::Warning, "no relay claims from it");
    }
    for name in config.publishers.keys().filter(|name| !publishers.contains(name.as_str())) {
        findings.add(format!("publishers.{name}"), State::Warning, "no route leads to it");
    }
    let asked: BTreeSet<&str> = config.relays.iter().filter_map(|relay| Some(relay.fan_out.as_ref()?.router.as_str())).collect();
    for name in config.routers.iter().map(|router| &router.name).filter(|name| !asked.contains(name.as_str())) {
        findings.add(format!("routers.{name}"), State::Warning, "no relay asks it (fan_out.router)");
    }
    let storages = config.storages.values().flat_map(|storage| &storage.grants.databases);
    let databases: BTreeSet<&String> = storages.chain(config.routers.iter().flat_map(Router::databases)).collect();
    for name in config.databases.keys().filter(|name| !databases.contains(name)) {
        findings.add(format!("databases.{name}"), State::Warning, "no storage and no router uses it");
    }
}

/// Secrets that are granted and have no value now. They are read when an adapter asks, so this may change: warnings only.
fn secrets(config: &Config, findings: &mut Findings) {
    let adapters = config.storages.values().chain(config.publishers.values().map(|publisher| &publisher.adapter));
    let mut used: BTreeSet<&String> = adapters.flat_map(|adapter| &adapter.grants.secrets).collect();
    for database in config.databases.values() {
        if let Database::Postgres(postgres) = database {
            used.extend(postgres.secrets());
        }
    }
    used.extend(config.routers.iter().flat_map(Router::secrets));
    used.extend(config.relays.iter().filter_map(|relay| relay.fan_out.as_ref()).flat_map(|fan_out| &fan_out.keys).map(|key| &key.secret));
    used.extend(config.registries.values().filter_map(|registry| Some(&registry.credentials.as_ref()?.password)));
    for (name, source) in &config.secrets {
        let what = format!("secrets.{name}");
        if !used.contains(name) {
            findings.add(
                what,
                State::Warning,
                "no adapter is granted it (allow_secrets), and no database, registry, router or relay uses it",
            );
            continue;
        }
        match source {
            SecretSource::Env(variable) if std::env::var_os(variable).is_none() => {
                findings.add(what, State::Warning, format!("the environment variable {variable} is not set here"));
            }
            SecretSource::File(file) => match std::fs::metadata(file) {
                Ok(_) => {}
                Err(error) => findings.add(what, State::Warning, format!("cannot read {}: {error}", file.display())),
            },
            SecretSource::Env(_) => {}
        }
    }
}
