//! `outhaul plugin pin`: writes the hashes of the components in use down, or says where they differ.

use super::error::CommandError;
use super::plugin::shown;
use super::{CommandResult, output};
use crate::config::Config;
use crate::config::model::Router;
use crate::oci::{Pinned, Registries};
use crate::plugin::{self, Pin, Pins, PluginError};
use std::collections::{BTreeMap, BTreeSet};

/// Write the hashes of the components that the configuration uses to its lock file, so that no others are loaded.
///
/// The lock file is beside the configuration and has its name with the extension "lock" (outhaul.lock). Keep it under version control.
/// What adapters name by reference (oci://) is pulled first. Where the file is there, a component with another hash is refused: at the
/// start, and when it is dropped into a running host.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outhaul plugin pin               after a look at what is in the plugin directory
  outhaul plugin pin --check       in CI, or before a restart: is everything that is there pinned?
  outhaul plugin pin --json        {\"file\":\"outhaul.lock\",\"written\":true,\"plugins\":[{\"plugin\":\"...\",\"change\":\"changed\",...}]}

Exit codes: 0 if the pins are as they should be now, 2 if a component or the lock file cannot be read, or (with --check) something is not
as pinned. A lock file that cannot be read is never written over.")]
pub(super) struct Args {
    /// Write nothing; fail where a component is not as pinned.
    #[arg(long)]
    check: bool,
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

/// How a pin compares with what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Change {
    Same,
    New,
    Changed,
    Removed,
}

impl Change {
    fn as_str(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::New => "new",
            Self::Changed => "changed",
            Self::Removed => "no longer used",
        }
    }
}

#[derive(serde::Serialize)]
struct Entry {
    plugin: String,
    change: Change,
    /// Of the file; none: it is no longer used.
    sha256: Option<String>,
    /// As it was pinned.
    pinned: Option<String>,
    version: Option<String>,
}

pub(super) async fn run(args: Args, config: &Config) -> CommandResult {
    // Damaged pins may be all that is left of a review: they are mended by people, and never written over.
    let before = Pins::read(&config.plugins.pins).map_err(CommandError::usage)?.map(|pins| pins.plugins).unwrap_or_default();
    let storages = config.storages.values().map(|storage| &storage.plugin);
    let publishers = config.publishers.values().map(|publisher| &publisher.adapter.plugin);
    let routers = config.routers.iter().filter_map(Router::plugin).map(|router| &router.plugin);
    let used: BTreeSet<&String> = storages.chain(publishers).chain(routers).collect();
    let mut there = BTreeMap::new();
    for plugin in used {
        let file = match Pinned::in_plugin(plugin) {
            Some(Ok(pinned)) => Registries::of(config).component(&pinned).await.map_err(PluginError::from)?.path,
            Some(Err(_)) | None => plugin::file(&config.plugins.dir, plugin),
        };
        let seen = plugin::inspect(&file).await?;
        there.insert(plugin.clone(), Pin { sha256: seen.sha256, version: seen.version });
    }
    let entries = compared(&before, &there);
    let differ = entries.iter().any(|entry| entry.change != Change::Same);
    let pins = Pins { file: config.plugins.pins.clone(), plugins: there };
    let written = !args.check && (differ || !pins.file.exists());
    if written {
        pins.write().map_err(CommandError::failure)?;
    }
    let file = pins.file.display();
    if args.json {
        output::json(&serde_json::json!({ "file": pins.file, "written": written, "plugins": entries }))?;
    } else {
        let short = |digest: &Option<String>| digest.as_ref().map_or_else(|| "-".to_owned(), |digest| digest.chars().take(12).collect());
        let rows = entries.iter().map(|entry| {
            let version = entry.version.as_deref().map_or_else(|| "-".to_owned(), |version| output::cell(version, 40));
            [shown(&entry.plugin), version, short(&entry.sha256), short(&entry.pinned), entry.change.as_str().to_owned()]
        });
        output::table(["plugin", "version", "sha256", "pinned", "change"], rows)?;
        if written {
            output::note(&format!("written: {file}"));
        }
    }
    if args.check && differ {
        let text = format!("what is in {} is not what {file} pins: review it and run `outhaul plugin pin`", config.plugins.dir.display());
        return Err(CommandError::usage(anyhow::anyhow!(text)).after_document());
    }
    Ok(())
}

fn compared(before: &BTreeMap<String, Pin>, there: &BTreeMap<String, Pin>) -> Vec<Entry> {
    let names: BTreeSet<&String> = before.keys().chain(there.keys()).collect();
    let entry = |name: &String| {
        let (pinned, found) = (before.get(name), there.get(name));
        let change = match (pinned, found) {
            (Some(pinned), Some(found)) if pinned.sha256 == found.sha256 => Change::Same,
            (Some(_), Some(_)) => Change::Changed,
            (None, _) => Change::New,
            (_, None) => Change::Removed,
        };
        Entry {
            plugin: name.clone(),
            change,
            sha256: found.map(|pin| pin.sha256.clone()),
            pinned: pinned.map(|pin| pin.sha256.clone()),
            version: found.or(pinned).and_then(|pin| pin.version.clone()),
        }
    };
    names.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_plugin_is_held_against_its_pin() {
        let pins = |all: &[(&str, &str)]| -> BTreeMap<String, Pin> {
            all.iter().map(|(name, sha256)| ((*name).to_owned(), Pin { sha256: (*sha256).to_owned(), version: None })).collect()
        };
        let entries = compared(&pins(&[("a", "1"), ("b", "1"), ("c", "1")]), &pins(&[("a", "1"), ("b", "2"), ("d", "1")]));
        let changes: Vec<_> = entries.iter().map(|entry| (entry.plugin.as_str(), entry.change)).collect();
        assert_eq!(changes, [("a", Change::Same), ("b", Change::Changed), ("c", Change::Removed), ("d", Change::New)]);
    }
}
