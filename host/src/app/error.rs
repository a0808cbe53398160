//! Why the process, or a command, cannot go on.

use crate::admin::ListenError;
use crate::config::{Place, Places};
use crate::domain::{Failure, FailureCode};
use crate::fan_out::keys::KeyFault;
use crate::plugin::PluginError;
use crate::sql::SqlError;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Why the process, or a command, cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppError {
    /// The WebAssembly engine.
    #[error(transparent)]
    Engine(PluginError),
    /// An adapter.
    #[error("{}", opening(kind, name, .place.as_ref(), .source))]
    Open {
        /// `storages`, `publishers` or `routers`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What has to be changed, where that is in the file.
        place: Option<Place>,
        /// Why.
        source: Box<PluginError>,
    },
    /// A SQLite file.
    #[error(
        "{}there is no database file {}: correct databases.{database}.url, or create the file and its table with \
         `outhaul schema --storage {storage} --apply`",
        .place.as_ref().map_or_else(|| format!("storages.{storage}: "), |place| format!("{place}: ")),
        .file.display()
    )]
    AbsentDatabase {
        /// The storage.
        storage: String,
        /// The database's name in the configuration.
        database: String,
        /// Where that says which file it is.
        place: Option<Box<Place>>,
        /// The file.
        file: PathBuf,
    },
    /// A database cannot be created.
    #[error("databases.{name} cannot be created: {source}")]
    CreateDatabase {
        /// Its name.
        name: String,
        /// Why.
        source: SqlError,
    },
    /// A storage call.
    #[error("storages.{storage}: {call} failed: {failure}")]
    Call {
        /// The storage.
        storage: String,
        /// What was called.
        call: &'static str,
        /// Why.
        failure: Failure,
    },
    /// A router that is built in.
    #[error("{}: {failure}", .place.as_ref().map_or_else(|| format!("routers.{name}"), ToString::to_string))]
    Router {
        /// Its name.
        name: String,
        /// Its section.
        place: Option<Box<Place>>,
        /// What it has not found.
        failure: Failure,
    },
    /// A relay with `fan_out`, and a storage that keeps no deliveries.
    #[error(
        "storages.{storage}: the relay {relay} has fan_out, and the component does not export outhaul:adapter/storage-fan-out: name another plugin"
    )]
    NoFanOut {
        /// The storage.
        storage: String,
        /// The relay.
        relay: String,
    },
    /// A key of `fan_out.keys`.
    #[error("relay {relay}: {fault}")]
    Key {
        /// The relay.
        relay: String,
        /// Why it cannot be used.
        fault: KeyFault,
    },
    /// The admin address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Signal handlers.
    #[error("cannot install signal handlers: {0}")]
    Signals(io::Error),
    /// Nothing to do.
    #[error("{file} has no relay: add [[relays]] with a name, a storage and routes", file = .0.display())]
    NoRelays(PathBuf),
    /// `--relay`.
    #[error("there is no relay {name:?} in the configuration; relays: {known}")]
    NoSuchRelay {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A name that was in the configuration, and is no longer.
    #[error("there is no [{kind}.{name}] in the configuration")]
    NoSuchAdapter {
        /// `storages`, `publishers` or `routers`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A relay ended although nobody asked it to.
    #[error("the relay {relay} ended: {reason}")]
    RelayEnded {
        /// Its name.
        relay: String,
        /// Why.
        reason: String,
    },
}

/// With the line that has to be changed, where there is one; else what an adapter itself says names it already.
fn opening(kind: &str, name: &str, place: Option<&Place>, source: &PluginError) -> String {
    match (source, place) {
        (PluginError::Open(failure), Some(place)) => format!("{place}: {}", complaint(&failure.detail, &place.key)),
        (PluginError::Open(failure), None) => failure.to_string(),
        (other, Some(place)) => format!("{place}: {other}"),
        (other, None) => format!("{kind}.{name}: {other}"),
    }
}

/// The place of what has to be changed after an adapter did not open.
pub(super) fn place(kind: &str, name: &str, places: &Places, source: &PluginError) -> Option<Place> {
    let section = format!("{kind}.{name}");
    match source {
        PluginError::Open(failure) if failure.code == FailureCode::InvalidConfiguration => places.meant(&section, &failure.detail),
        PluginError::Open(_) | PluginError::Engine(_) => None,
        PluginError::Pins(_) => places.first(["plugins.pinned"]),
        PluginError::TlsFile { key, .. } => places.first([format!("{section}.{key}"), section]),
        _ => places.first([format!("{section}.plugin"), section]),
    }
}

/// What an adapter complains of, without what the place tells already: `storage "outbox" (generation 1): open: `, and the key.
fn complaint<'a>(detail: &'a str, key: &str) -> &'a str {
    let own = detail.split_once("): open: ").map_or(detail, |(_, own)| own);
    let named = own.strip_prefix('`').and_then(|rest| rest.split_once("`: "));
    named.filter(|(path, _)| key.ends_with(&format!(".{path}"))).map_or(own, |(_, rest)| rest)
}

impl AppError {
    /// What has to be changed in the configuration, where it is known; the text begins with it.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Open { place, .. } => place.as_ref(),
            Self::AbsentDatabase { place, .. } | Self::Router { place, .. } => place.as_deref(),
            _ => None,
        }
    }

    /// Whether it is the component that cannot be used, whatever its settings are.
    #[must_use]
    pub(super) fn is_of_component(&self) -> bool {
        use PluginError::{Compile, Component, Import, Missing, Pinned, Pull, Read};
        let source = match self {
            Self::Open { source, .. } => source,
            Self::NoFanOut { .. } => return true,
            _ => return false,
        };
        matches!(**source, Missing { .. } | Pinned { .. } | Pull(_) | Read { .. } | Component { .. } | Compile { .. } | Import { .. })
    }

    /// Whether there is no file of the component that could be read.
    #[must_use]
    pub(super) fn is_of_absent_file(&self) -> bool {
        matches!(self, Self::Open { source, .. } if matches!(**source, PluginError::Missing { .. } | PluginError::Read { .. }))
    }

    /// Whether the file of the component was changed since then, or taken away: it is not the one that was there.
    #[must_use]
    pub(super) fn is_of_file_changed_since(&self, then: SystemTime) -> bool {
        use PluginError::{Compile, Component, Import, Missing, Pinned, Read};
        let Self::Open { source, .. } = self else { return false };
        let (Missing { path, .. }
        | Pinned { path, .. }
        | Read { path, .. }
        | Component { path, .. }
        | Compile { path, .. }
        | Import { path, .. }) = &**source
        else {
            return false;
        };
        // Not when it was written: who copies a file may keep that. Of a file that is not there, the directory tells.
        let stamp = |path: &Path| std::fs::metadata(path).ok().map(|metadata| (metadata.ctime(), metadata.ctime_nsec()));
        let changed = stamp(path).or_else(|| path.parent().and_then(stamp));
        let then = then.duration_since(UNIX_EPOCH).unwrap_or_default();
        changed.is_some_and(|(seconds, nanos)| {
            let since = Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0));
            since > then
        })
    }

    /// Whether the same may go well later without anything changing that can be looked at: what was away may be back, and what is in
    /// a database or at a registry may be put right there.
    #[must_use]
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Open { kind: "storages" | "routers", source, .. } => matches!(**source, PluginError::Open(_)) || source.is_transient(),
            Self::Open { source, .. } => source.is_transient(),
            Self::AbsentDatabase { .. } => true,
            other => !other.is_configuration(),
        }
    }

    /// Whether a person must change the configuration or its surroundings, rather than wait: exit code 2.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Open { source, .. } => !source.is_transient(),
            // One that cannot be read may be there soon; one that is none has to be changed.
            Self::Key { fault, .. } => !matches!(fault, KeyFault::Unreadable { .. }),
            Self::NoFanOut { .. }
            | Self::AbsentDatabase { .. }
            | Self::Listen(_)
            | Self::NoRelays(_)
            | Self::NoSuchRelay { .. }
            | Self::NoSuchAdapter { .. } => true,
            // A table that is not there, or not as the configuration says: found only when it is looked at.
            Self::Call { failure, .. } | Self::Router { failure, .. } => failure.code == FailureCode::InvalidConfiguration,
            Self::Engine(_) | Self::CreateDatabase { .. } | Self::Signals(_) | Self::RelayEnded { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    const TEXT: &str = r#"
[databases.main]
url = "sqlite:outbox.db"
[storages.outbox]
plugin = "sqlite-storage"
database = "main"
config = { table = "a",
  tabel = "b" }
tls_key_file = "me.key"
tls_cert_file = "me.pem"
"#;

    fn told(source: PluginError) -> String {
        let config = config::parse(TEXT, Path::new("o.toml")).unwrap();
        let place = place("storages", "outbox", &config.places, &source);
        AppError::Open { kind: "storages", name: "outbox".into(), place, source: source.into() }.to_string()
    }

    fn refused(code: FailureCode, text: &str) -> String {
        told(PluginError::Open(Failure::new(code, format!("storage \"outbox\" (generation 1): open: {text}"))))
    }

    #[test]
    fn what_an_adapter_does_not_take_has_a_line() {
        assert_eq!(
            refused(FailureCode::InvalidConfiguration, "unknown field `tabel`, expected `table`"),
            "o.toml:8: storages.outbox.config.tabel: unknown field `tabel`, expected `table`"
        );
        assert_eq!(refused(FailureCode::InvalidConfiguration, "`table`: is empty"), "o.toml:7: storages.outbox.config.table: is empty");
        assert_eq!(
            refused(FailureCode::InvalidConfiguration, "missing field `url`"),
            "o.toml:7: storages.outbox.config: missing field `url`"
        );
        assert!(refused(FailureCode::Unavailable, "the `table` is locked").starts_with("unavailable: storage \"outbox\""));
    }

    #[test]
    fn a_file_for_tls_has_the_line_that_names_it_or_else_its_section() {
        let told = |key| told(PluginError::TlsFile { key, file: "/etc/me.key".into(), reason: "no such file".into() });
        let text = "tls_key_file = \"/etc/me.key\" cannot be used: no such file";
        assert_eq!(told("tls_key_file"), format!("o.toml:9: storages.outbox.tls_key_file: {text}"));
        assert!(told("tls_ca_file").starts_with("o.toml:4: storages.outbox: tls_ca_file = "), "{}", told("tls_ca_file"));
    }

    #[test]
    fn a_component_that_is_missing_has_the_line_that_names_it() {
        let missing = PluginError::Missing { path: "plugins/sqlite-storage.wasm".into(), present: "it has: other".into() };
        assert_eq!(told(missing), "o.toml:5: storages.outbox.plugin: there is no plugins/sqlite-storage.wasm; it has: other");
    }

    #[test]
    fn a_file_that_came_later_is_told_from_the_one_that_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wasm");
        std::fs::write(&path, "no component").unwrap();
        let of = |source| AppError::Open { kind: "publishers", name: "hooks".into(), place: None, source: Box::new(source) };
        let unreadable = of(PluginError::Read { path: path.clone(), error: io::Error::other("x") });
        let missing = of(PluginError::Missing { path: path.clone(), present: String::new() });
        let later = SystemTime::now() + Duration::from_secs(3600);
        assert!(unreadable.is_of_file_changed_since(UNIX_EPOCH) && !unreadable.is_of_file_changed_since(later));
        std::fs::remove_file(&path).unwrap();
        assert!(missing.is_of_file_changed_since(UNIX_EPOCH) && !missing.is_of_file_changed_since(later));
        assert!(!of(PluginError::Engine("x".into())).is_of_file_changed_since(UNIX_EPOCH));
    }
}
