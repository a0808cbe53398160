//! `outhaul plugin pull`: a component from a registry, as a file of the plugin directory.

use super::error::CommandError;
use super::{CommandResult, output};
use crate::atomic;
use crate::config::{Config, check_name};
use crate::oci::{Reference, Registries};
use crate::plugin::{self, PluginError};
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

/// Whether a file is this component already: then a running host has nothing to look at.
async fn is_there(file: &Path, sha256: &str) -> bool {
    plugin::inspect(file).await.is_ok_and(|seen| seen.sha256 == sha256)
}
