//! The file as a whole: from text to model, section by section, those first that others refer to.

use super::adapters::{self, Names, PublisherEntry, StorageEntry};
use super::model::{Admin, Config, Log, Plugins, SecretSource};
use super::places::Places;
use super::problem::{Problems, Report};
use super::relays::{self, Adapters};
use super::section::Section;
use super::{databases, duplicates, registries, routers};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::de::DeTable;
use tracing_subscriber::EnvFilter;

/// Reads and checks the text.
pub(super) fn resolve(text: &str, file: &Path) -> Result<Config, Problems> {
    let report = Report::new(text);
    let (tree, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let (duplicates, errors): (Vec<_>, Vec<_>) = errors.into_iter().partition(|error| error.message() == duplicates::MESSAGE);
        for error in errors {
            report.add(error.span().map_or(0, |span| span.start), "", format!("not TOML: {}", error.message().replace('\n', ", ")));
        }
        duplicates::report(text, duplicates.iter().filter_map(toml::de::Error::span), &report);
        // What is left of a broken tree would only add problems that are not there.
        report.finish(file)?;
    }
    let config = sections(Section::root(&report, tree.get_ref()), file);
    report.finish(file)?;
    Ok(Config { places: Places::read(text, file, tree.get_ref()), ..config })
}

fn sections(root: Section<'_>, file: &Path) -> Config {
    let folder = file.parent().unwrap_or(Path::new(""));
    let shutdown_grace = root.duration("shutdown_grace", Duration::from_secs(30), true).value;
    let watch_config = root.flag("watch_config", false).value;
    let log = log(root.section("log"));
    let admin = admin(root.section("admin"));
    let plugins = plugins(root.section("plugins"), file);

    let secret_sections = root.named("secrets");
    let database_sections = root.named("databases");
    let names = Names {
        databases: database_sections.iter().map(|(name, _)| *name).collect(),
        secrets: secret_sections.iter().map(|(name, _)| *name).collect(),
        folder,
    };
    let secrets = collect(secret_sections, |_, section| secret(section, folder));
    let registry_sections = root.named_by("registries", registries::check_name);
    let registries = collect(registry_sections, |name, section| Some(registries::registry(name, section, &names)));
    let databases = collect(database_sections, |_, section| databases::database(section, &names));

    let storage_sections = root.named("storages");
    let publisher_sections = root.named("publishers");
    let storage_names: Vec<&str> = storage_sections.iter().map(|(name, _)| *name).collect();
    let publisher_names: Vec<&str> = publisher_sections.iter().map(|(name, _)| *name).collect();
    let router_sections = root.named("routers");
    let router_names: Vec<&str> = router_sections.iter().map(|(name, _)| *name).collect();
    for (name, section) in publisher_sections.iter().filter(|(name, _)| storage_names.contains(name)) {
        section
            .problem_here(format!("a storage is called {name:?} too: logs and metrics tell adapters apart by name, so give one another"));
    }
    for (name, section) in &router_sections {
        let other = [("storage", &storage_names), ("publisher", &publisher_names)].into_iter().find(|(_, names)| names.contains(name));
        if let Some((kind, _)) = other {
            section.problem_here(format!(
                "a {kind} is called {name:?} too: logs and metrics tell adapters apart by name, so give one another"
            ));
        }
    }
    let routers = router_sections.into_iter().filter_map(|(name, section)| routers::router(name, section, &names)).collect();
    let storages: BTreeMap<String, StorageEntry> = collect(storage_sections, |name, section| adapters::storage(name, section, &names));
    let publishers: BTreeMap<String, PublisherEntry> =
        collect(publisher_sections, |name, section| adapters::publisher(name, section, &names));

    let known = Adapters {
        storages: &storages,
        storage_names,
        publishers: &publishers,
        publisher_names,
        router_names,
        secret_names: names.secrets,
    };
    let relays = relays::relays(root.list("relays"), &known);
    root.finish();
    Config {
        file: file.to_owned(),
        plugins,
        registries,
        databases,
        secrets,
        storages: storages.into_iter().map(|(name, entry)| (name, entry.adapter)).collect(),
        publishers: publishers.into_iter().map(|(name, entry)| (name, entry.publisher)).collect(),
        routers,
        relays,
        admin,
        log,
        places: Places::default(),
        shutdown_grace,
        watch_config,
    }
}

fn collect<'a, T>(sections: Vec<(&'a str, Section<'a>)>, read: impl Fn(&str, Section<'a>) -> Option<T>) -> BTreeMap<String, T> {
    sections.into_iter().filter_map(|(name, section)| Some((name.to_owned(), read(name, section)?))).collect()
}

fn plugins(section: Section<'_>, file: &Path) -> Plugins {
    let folder = file.parent().unwrap_or(Path::new(""));
    let dir = section.text("dir").map_or("plugins", |dir| dir.value);
    let cache = match section.text_or_false("cache") {
        None => default_cache(|name| std::env::var_os(name)),
        Some(cache) => cache.value.map(|cache| folder.join(cache)),
    };
    let dir = folder.join(dir);
    let (watch, pinned) = (section.flag("watch", true).value, section.flag("pinned", false).value);
    let store = section.text("store").map_or_else(|| dir.join(".oci"), |store| folder.join(store.value));
    section.finish();
    Plugins { dir, cache, watch, pins: file.with_extension("lock"), pinned, store }
}

/// By the XDG base directory specification; none where there is no home.
fn default_cache(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // The specification: a path that is not absolute is to be ignored.
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache"))).map(|cache| cache.join("outhaul"))
}

fn secret(section: Section<'_>, folder: &Path) -> Option<SecretSource> {
    let (env, file) = (section.text("env"), section.text("file"));
    let source = match (env, file) {
        (Some(env), None) if env.value.is_empty() || env.value.contains(['=', '\0']) => {
            section.problem(env.at, "env", format!("{:?} is not the name of an environment variable", env.value));
            None
        }
        (None, Some(file)) if file.value.is_empty() => {
            section.problem(file.at, "file", "is empty: name a file");
            None
        }
        (Some(env), None) => Some(SecretSource::Env(env.value.to_owned())),
        (None, Some(file)) => Some(SecretSource::File(folder.join(file.value))),
        (Some(_), Some(file)) => {
            section.problem(file.at, "file", "contradicts env: a secret has one source, so leave one of the two out");
            None
        }
        (None, None) => {
            section.problem_here("says not where the secret is: add env = \"VARIABLE\" or file = \"PATH\"");
            None
        }
    };
    section.finish();
    source
}

fn admin(section: Section<'_>) -> Option<Admin> {
    let mut listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 9464));
    let allow_remote = section.flag("allow_remote", false).value;
    if let Some(text) = section.text("listen") {
        match text.value.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() || allow_remote => listen = address,
            Ok(address) => {
                let problem = format!(
                    "{address} can be reached from other machines, and nobody is asked for a password: \
                     add allow_remote = true if that is meant, or listen on 127.0.0.1"
                );
                section.problem(text.at, "listen", problem);
            }
            Err(_) => {
                section.problem(text.at, "listen", format!("{:?} is not an address and port: write \"127.0.0.1:9464\"", text.value));
            }
        }
    }
    let stats_interval = section.duration("stats_interval", Duration::from_secs(15), false).value;
    let present = section.is_present();
    section.finish();
    present.then_some(Admin { listen, stats_interval })
}

fn log(section: Section<'_>) -> Log {
    let json = section.word("format", &["text", "json"], "text").value == "json";
    let mut filter = "info";
    if let Some(text) = section.text("filter") {
        match EnvFilter::builder().parse(text.value) {
            Ok(_) => filter = text.value,
            Err(error) => {
                section.problem(
                    text.at,
                    "filter",
                    format!("{:?} is not a filter ({error}): write it as in \"info,outhaul=debug\"", text.value),
                );
            }
        }
    }
    section.finish();
    Log { filter: filter.to_owned(), json }
}
