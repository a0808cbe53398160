//! `outhaul plugin`: what is in the plugin directory, what a component is, and the beginnings of new ones.

use super::error::CommandError;
use super::running::{self, Running};
use super::{CommandResult, output, pin, plugin_drive, plugin_test, pull};
use crate::app::inventory::Document;
use crate::config::Config;
use crate::config::model::Router;
use crate::oci::{Pinned, Registries};
use crate::plugin::{self, Inspection};
use crate::scaffold::{self, Kind, Language};
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Components: what is in the plugin directory, and what a file is.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    List(List),
    /// Show a component file: its world, what it imports and exports, and the grants that it asks for. Nothing is run.
    Inspect(Inspect),
    /// Begin a new adapter: a folder with all that builds and tests it.
    New(New),
    Pin(pin::Args),
    Pull(pull::Args),
    Test(plugin_test::Args),
    Drive(plugin_drive::Args),
}

/// List the plugin directory (world, version, size, hash, and which adapters use each), and what a running host makes of it.
///
/// A host that runs with the same configuration is asked by its admin address: which generation of each adapter it runs, and what
/// it refused and why.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul plugin list
  outhaul plugin list --json       {\"dir\":\"plugins\",\"plugins\":[...],\"running\":{\"plugins\":[...],...}}; running is null where no host answers")]
pub(super) struct List {
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul plugin inspect plugins/http-publisher.wasm
  outhaul plugin inspect http-publisher.wasm --json")]
pub(super) struct Inspect {
    /// The file.
    file: PathBuf,
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul plugin new --lang python my-publisher
  outhaul plugin new --lang rust --kind router my-router
Then follow the README.md of the new folder.")]
pub(super) struct New {
    /// The language to write it in.
    #[arg(long)]
    lang: Language,
    /// What it will be.
    #[arg(long, default_value = "publisher")]
    kind: Kind,
    /// Its name, and that of the new folder.
    name: String,
}

/// One entry of the list.
struct Entry {
    plugin: String,
    used_by: Vec<String>,
    /// None: it is in a registry, and not pulled yet.
    file: Option<PathBuf>,
    inspection: Option<Inspection>,
    error: Option<String>,
}

impl Entry {
    /// For a program: every key in any case, null where the file cannot be looked at.
    fn document(&self) -> serde_json::Value {
        let seen = self.inspection.as_ref();
        serde_json::json!({
            "plugin": self.plugin,
            "used_by": self.used_by,
            "file": self.file,
            "world": seen.map(|seen| &seen.world),
            "name": seen.map(|seen| &seen.name),
            "version": seen.map(|seen| &seen.version),
            "description": seen.map(|seen| &seen.description),
            "imports": seen.map(|seen| &seen.imports),
            "exports": seen.map(|seen| &seen.exports),
            "requests": seen.map(|seen| &seen.requests),
            "bytes": seen.map(|seen| seen.bytes),
            "sha256": seen.map(|seen| &seen.sha256),
            "error": self.error,
        })
    }
}

pub(super) async fn list(args: List, config: &Config) -> CommandResult {
    let mut used: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for storage in config.storages.values() {
        used.entry(storage.plugin.clone()).or_default().push(format!("storages.{}", storage.name));
    }
    for publisher in config.publishers.values() {
        used.entry(publisher.adapter.plugin.clone()).or_default().push(format!("publishers.{}", publisher.adapter.name));
    }
    for router in config.routers.iter().filter_map(Router::plugin) {
        used.entry(router.plugin.clone()).or_default().push(format!("routers.{}", router.name));
    }
    let directory = &config.plugins.dir;
    let mut names =
        components(directory).with_context(|| format!("cannot list plugins.dir ({})", directory.display())).map_err(CommandError::usage)?;
    names.extend(used.keys().cloned());
    let mut entries = Vec::new();
    for plugin in names {
        let used_by = used.remove(&plugin).unwrap_or_default();
        let (file, inspected) = look_at(&plugin, config).await;
        let (inspection, error) = match inspected {
            Ok(inspection) => (Some(inspection), None),
            Err(error) => (None, Some(error)),
        };
        entries.push(Entry { plugin, used_by, file, inspection, error });
    }
    let running = running::ask(config).await;
    if args.json {
        let plugins: Vec<_> = entries.iter().map(Entry::document).collect();
        let running = match &running {
            Running::Says(document) => Some(document),
            Running::Silent(_) => None,
        };
        return output::json(&serde_json::json!({ "dir": directory, "plugins": plugins, "running": running }));
    }
    if entries.is_empty() {
        output::line(&format!("no plugins in {}", directory.display()))?;
    } else {
        on_disk(&entries)?;
    }
    match running {
        Running::Says(document) => at_work(&document),
        Running::Silent(why) => {
            output::note(&format!("\n{why}"));
            Ok(())
        }
    }
}

/// The file of a plugin, if it is known which, and what it is. Nothing is pulled for that.
async fn look_at(plugin: &str, config: &Config) -> (Option<PathBuf>, Result<Inspection, String>) {
    let file = match Pinned::in_plugin(plugin) {
        None => plugin::file(&config.plugins.dir, plugin),
        Some(Err(error)) => return (None, Err(error)),
        Some(Ok(pinned)) => match Registries::of(config).stored(&pinned).await {
            Ok(Some(component)) => component.path,
            Ok(None) => return (None, Err(format!("{plugin} is not pulled yet: the next start, and `outhaul check`, pull it"))),
            Err(error) => return (None, Err(error.to_string())),
        },
    };
    let inspected = plugin::inspect(&file).await.map_err(|error| error.to_string());
    (Some(file), inspected)
}

/// The name of a plugin in a table: of a digest, so much as is shown of hashes.
pub(super) fn shown(plugin: &str) -> String {
    match plugin.split_once("@sha256:") {
        Some((name, digest)) => format!("{name}@sha256:{}", digest.chars().take(12).collect::<String>()),
        None => plugin.to_owned(),
    }
}

fn on_disk(entries: &[Entry]) -> CommandResult {
    let rows = entries.iter().map(|entry| {
        let used_by = if entry.used_by.is_empty() { "-".to_owned() } else { entry.used_by.join(", ") };
        match &entry.inspection {
            Some(inspection) => [
                shown(&entry.plugin),
                word(inspection.world.as_deref()),
                word(inspection.version.as_deref()),
                size(inspection.bytes),
                inspection.sha256.chars().take(12).collect(),
                used_by,
            ],
            None => [shown(&entry.plugin), "not usable (see below)".to_owned(), "-".to_owned(), "-".to_owned(), "-".to_owned(), used_by],
        }
    });
    output::table(["plugin", "world", "version", "size", "sha256", "used by"], rows)?;
    for error in entries.iter().filter_map(|entry| entry.error.as_deref()) {
        output::line(&format!("\n{error}"))?;
    }
    Ok(())
}

/// What the running host says. Its texts are shown as harmlessly as those out of files: they hold what adapters have written.
fn at_work(document: &Document) -> CommandResult {
    output::line("\nrunning:")?;
    let now = std::time::SystemTime::now();
    let rows = document.plugins.iter().map(|running| {
        let state = match (&running.refused, running.file_is_gone) {
            (Some(_), _) => "its file is refused (see below)",
            (None, true) => "its file is gone: put it back",
            (None, false) => "ok",
        };
        [
            output::cell(&running.adapter, 80),
            output::cell(&shown(&running.plugin), 120),
            running.generation.to_string(),
            word(running.version.as_deref()),
            running.sha256.chars().filter(char::is_ascii_hexdigit).take(12).collect(),
            output::age(running.since, now),
            state.to_owned(),
        ]
    });
    output::table(["adapter", "plugin", "generation", "version", "sha256", "since", "state"], rows)?;
    for running in &document.plugins {
        if let Some(refused) = &running.refused {
            let (adapter, generation, ago) = (output::cell(&running.adapter, 80), running.generation, output::age(refused.at, now));
            let reason = output::cell(&refused.reason, 2000);
            output::line(&format!("\n{adapter} stays with generation {generation}: refused {ago} ago: {reason}"))?;
        }
    }
    match &document.config_refused {
        Some(refused) => {
            let (file, ago) = (output::cell(&document.config.to_string_lossy(), 200), output::age(refused.at, now));
            output::line(&format!("\n{file} was refused {ago} ago: {}", output::cell(&refused.reason, 2000)))
        }
        None => Ok(()),
    }
}

/// Names of the component files of a directory, without `.wasm`.
fn components(directory: &Path) -> std::io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "wasm") {
            names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(names)
}

pub(super) async fn inspect(args: Inspect) -> CommandResult {
    let inspection = plugin::inspect(&args.file).await.map_err(CommandError::usage)?;
    if args.json {
        return output::json(&inspection);
    }
    for (name, value) in [
        ("file", inspection.file.display().to_string()),
        ("world", inspection.world.clone().unwrap_or_else(|| "none: this is no adapter".to_owned())),
        ("name", word(inspection.name.as_deref())),
        ("version", word(inspection.version.as_deref())),
        ("description", word(inspection.description.as_deref())),
        ("size", format!("{} ({} bytes)", size(inspection.bytes), inspection.bytes)),
        ("sha256", inspection.sha256.clone()),
    ] {
        output::line(&format!("{name:<12} {value}"))?;
    }
    listed("exports", &inspection.exports)?;
    listed("imports", &inspection.imports)?;
    listed("asks for", &inspection.requests.iter().map(ToString::to_string).collect::<Vec<_>>())
}

pub(super) fn new(args: &New) -> CommandResult {
    let folder = scaffold::create(Path::new(""), &args.name, args.lang, args.kind).map_err(CommandError::usage)?;
    output::line(&format!("{} is there: its README.md says how to build, test and run it", folder.display()))
}

fn listed(title: &str, items: &[String]) -> CommandResult {
    if items.is_empty() {
        return output::line(&format!("{title:<12} nothing"));
    }
    output::line(title)?;
    items.iter().try_for_each(|item| output::line(&format!("  {}", output::cell(item, 200))))
}

/// A text out of a component file, harmless to a terminal.
fn word(text: Option<&str>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| output::cell(text, 200))
}

fn size(bytes: usize) -> String {
    bytesize::ByteSize::b(u64::try_from(bytes).unwrap_or(u64::MAX)).display().iec().to_string()
}
