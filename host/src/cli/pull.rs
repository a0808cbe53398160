//! `outhaul plugin pull`: a component from a registry, as a file of the plugin directory.

use super::error::CommandError;
use super::{CommandResult, output};
use crate::atomic;
use crate::config::model::Router;
use crate::config::{Config, check_name};
use crate::oci::{Reference, Registries};
use crate::plugin::{self, Inspection, Pins, PluginError};
use anyhow::{Context, anyhow};
use std::path::Path;

/// Fetch a component from an OCI registry into the plugin directory.
///
/// The digest says which one, whatever the registry has under a tag by now. How the registry is reached is in [registries."HOST"] of
/// the configuration. A host that runs takes the new file over as any other. Where there is no need of a file, an adapter can name
/// the reference itself: plugin = "oci://REFERENCE".
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul plugin pull ghcr.io/acme/adapter@sha256:3f0c...
  outhaul plugin pull ghcr.io/acme/adapter:1.4 --resolve     what the tag means now; write the digest down
  outhaul plugin pull ghcr.io/acme/adapter@sha256:3f0c... --name http-publisher
  outhaul plugin pull REFERENCE --json    {\"reference\":\"...@sha256:...\",\"plugin\":\"adapter\",\"file\":\"...\",\"sha256\":\"...\",...}

Exit codes: 0 if the file is there now, 1 if the registry does not answer, 2 if it refuses, or has no such component.")]
pub(super) struct Args {
    /// REGISTRY/REPOSITORY@sha256:DIGEST
    reference: String,
    /// The file's name without `.wasm`; otherwise the last part of the repository.
    #[arg(long)]
    name: Option<String>,
    /// Take what the tag (or `latest`) means now, and say its digest.
    #[arg(long)]
    resolve: bool,
    /// Put it in place although the pins have another one under its name: hosts go on without it until `outhaul plugin pin`.
    #[arg(long)]
    replace_pinned: bool,
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(args: Args, config: &Config) -> CommandResult {
    let reference = Reference::parse(&args.reference).map_err(|error| CommandError::usage(anyhow!(error)))?;
    if reference.digest.is_none() && !args.resolve {
        let text = format!(
            "{reference} has no digest, so that nobody can tell which component it is: add @sha256:DIGEST, or --resolve to take what it is \
             now"
        );
        return Err(CommandError::usage(anyhow!(text)));
    }
    let last = reference.repository.rsplit('/').next().unwrap_or_default();
    let name = args.name.unwrap_or_else(|| last.to_owned());
    check_name(&name).map_err(|error| CommandError::usage(anyhow!("--name: {error}")))?;

    let pulled = Registries::of(config).pull(&reference).await.map_err(PluginError::from)?;
    let file = plugin::file(&config.plugins.dir, &name);
    // What is no adapter does not come as far as the directory.
    let seen = plugin::inspect_bytes(&file, pulled.component.clone());
    let seen = seen.with_context(|| format!("{} is not put in place", pulled.pinned)).map_err(CommandError::usage)?;
    if seen.world.is_none() {
        let text = format!("{} is not put in place: it is a component and no adapter, because it exports neither world", pulled.pinned);
        return Err(CommandError::usage(anyhow!(text)));
    }
    let pins = Pins::read(&config.plugins.pins).map_err(CommandError::usage)?;
    let pins = pins.as_ref().filter(|_| !args.replace_pinned);
    if let Some(objection) = objection(config, pins, &name, &seen) {
        return Err(CommandError::usage(anyhow!("{} is not put in place: {objection}", pulled.pinned)));
    }
    let changed = !is_there(&file, &seen.sha256).await;
    if changed {
        let put = atomic::replace(&file, &[&pulled.component]);
        put.with_context(|| format!("cannot write {} (plugins.dir)", file.display())).map_err(CommandError::failure)?;
    }
    if args.json {
        return output::json(&serde_json::json!({
            "reference": pulled.pinned.to_string(),
            "plugin": name,
            "file": file,
            "changed": changed,
            "world": seen.world,
            "version": seen.version,
            "bytes": seen.bytes,
            "sha256": seen.sha256,
        }));
    }
    for (title, value) in [
        ("reference", pulled.pinned.to_string()),
        ("plugin", name),
        ("file", format!("{}{}", file.display(), if changed { "" } else { " (it was there already)" })),
        ("version", seen.version.as_deref().map_or_else(|| "-".to_owned(), |version| output::cell(version, 40))),
        ("sha256", seen.sha256),
    ] {
        output::line(&format!("{title:<12} {value}"))?;
    }
    if reference.digest.is_none() {
        output::note(&format!("the tag may mean something else tomorrow: write {} down", pulled.pinned));
    }
    Ok(())
}

/// Why a component must not take a name: those who use it want another kind, or the pins have another component under it.
fn objection(config: &Config, pins: Option<&Pins>, name: &str, seen: &Inspection) -> Option<String> {
    let is = kind(seen.world.as_deref());
    let storages = config.storages.values().map(|adapter| ("storage", adapter));
    let publishers = config.publishers.values().map(|publisher| ("publisher", &publisher.adapter));
    let routers = config.routers.iter().filter_map(Router::plugin).map(|adapter| ("router", adapter));
    let misled = storages.chain(publishers).chain(routers).find(|(wanted, adapter)| adapter.plugin == name && is != Some(wanted));
    let misled = misled.map(|(wanted, adapter)| {
        let what = is.map_or_else(|| "is no adapter".to_owned(), |is| format!("is a {is}"));
        format!("it {what}, and {wanted}s.{} uses the name {name}", adapter.name)
    });
    if let Some(misled) = misled {
        return Some(format!("{misled}: give it another one with --name"));
    }
    let (pins, pinned) = pins.and_then(|pins| Some((pins, pins.of(name)?)))?;
    (pinned != seen.sha256).then(|| {
        format!(
            "{} pins another component as {name} (SHA-256 {pinned}; this one has {}), and no host would load it: give it another name with \
             --name, or replace the pinned one with --replace-pinned and review it before `outhaul plugin pin`",
            pins.file.display(),
            seen.sha256
        )
    })
}

/// What a component is by its world.
fn kind(world: Option<&str>) -> Option<&'static str> {
    ["publisher", "storage", "router"].into_iter().find(|kind| world.is_some_and(|world| world.starts_with(kind)))
}

/// Whether a file is this component already: then a running host has nothing to look at.
async fn is_there(file: &Path, sha256: &str) -> bool {
    plugin::inspect(file).await.is_ok_and(|seen| seen.sha256 == sha256)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::plugin::Pin;

    const CONFIG: &str = "
        [databases.main]
        url = \"sqlite:o.db\"
        [storages.outbox]
        plugin = \"rows\"
        database = \"main\"
        [publishers.webhooks]
        plugin = \"hooks\"
        [routers.directory]
        plugin = \"who\"
    ";

    #[test]
    fn a_name_that_is_in_use_is_not_given_to_another_kind_nor_to_what_is_not_pinned() {
        let config = config::parse(CONFIG, Path::new("outhaul.toml")).unwrap();
        let pin = |sha256: &str| Pin { sha256: sha256.to_owned(), version: None };
        let pins = Pins { file: "outhaul.lock".into(), plugins: [("hooks".to_owned(), pin("aa"))].into() };
        for (name, world, sha256, told) in [
            ("hooks", "publisher-adapter", "aa", None),
            ("new", "publisher-adapter", "bb", None),
            ("rows", "storage-adapter-full", "bb", None),
            ("who", "router-adapter", "bb", None),
            ("hooks", "router-adapter", "aa", Some("it is a router, and publishers.webhooks uses the name hooks: give it another")),
            ("who", "storage-adapter-full", "bb", Some("it is a storage, and routers.directory uses the name who: give it another")),
            ("hooks", "publisher-adapter", "bb", Some("outhaul.lock pins another component as hooks (SHA-256 aa; this one has bb)")),
            ("hooks", "storage-adapter", "aa", Some("it is a storage, and publishers.webhooks uses the name hooks: give it another")),
            ("rows", "publisher-adapter", "bb", Some("it is a publisher, and storages.outbox uses the name rows: give it another")),
        ] {
            let objection = objection(&config, Some(&pins), name, &Inspection::of_world(Some(world), sha256));
            match (told, objection) {
                (None, None) => {}
                (Some(told), Some(objection)) => assert!(objection.contains(told), "{name}: {objection}"),
                (told, objection) => panic!("{name}: expected {told:?}, found {objection:?}"),
            }
        }
        assert_eq!(objection(&config, None, "hooks", &Inspection::of_world(Some("publisher-adapter"), "bb")), None);
    }
}
