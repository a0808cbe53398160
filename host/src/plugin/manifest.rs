//! What a component says of itself: its exports and imports, and its manifest, a TOML text in the custom section
//! `outhaul-manifest` (of the component or of a core module inside it, where compilers put it). Nothing is compiled for this.

use super::grants::Request;
use serde::Deserialize;
use std::collections::BTreeSet;
use wasmparser::{Encoding, Parser, Payload};

/// Custom section that holds the manifest.
const SECTION: &str = "outhaul-manifest";

/// Longest manifest, in bytes.
const MAX_MANIFEST_BYTES: usize = 64 << 10;

/// The version of the WIT package that this host speaks: any `0.1.x`.
const PACKAGE_VERSION: &str = "0.1.";

const PUBLISHER: &str = "outhaul:adapter/publisher";
const STORAGE: &str = "outhaul:adapter/storage";
const FUSED: &str = "outhaul:adapter/storage-fused";
const ROUTER: &str = "outhaul:adapter/router";
const ADMIN: &str = "outhaul:adapter/storage-admin";
const FAN_OUT: &str = "outhaul:adapter/storage-fan-out";

/// What is wrong with a file that should be an adapter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComponentFault {
    /// Another kind of file.
    #[error("is not WebAssembly (it does not start with the WebAssembly magic bytes)")]
    NotWasm,
    /// What an engine makes of a component.
    #[error("is compiled code, not a component: it fits one version and one kind of engine only; put the .wasm that it was made from here")]
    Compiled,
    /// A core module.
    #[error("is a core module, not a component; build it for the target wasm32-wasip2, or wrap it with `wasm-tools component new`")]
    CoreModule,
    /// Cut off or damaged.
    #[error("is truncated or damaged: {0}")]
    Damaged(String),
    /// Its manifest cannot be read.
    #[error("has a manifest (custom section `outhaul-manifest`) that cannot be read: {0}")]
    Manifest(String),
    /// It is no adapter, or one of another kind.
    #[error("is not a {needed}: it exports {found}, and {wanted} is needed")]
    WrongWorld {
        /// `publisher`, `storage` or `router`.
        needed: &'static str,
        /// What it exports.
        found: String,
        /// The interface that is needed.
        wanted: &'static str,
    },
    /// It speaks another version of the package.
    #[error("exports {found}; this host speaks outhaul:adapter@0.1")]
    WrongVersion {
        /// The export.
        found: String,
    },
}

/// The manifest as written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    name: Option<String>,
    version: Option<String>,
    description: Option<String>,
    requests: Option<Vec<Request>>,
}

/// What a component says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Anatomy {
    pub(super) name: Option<String>,
    pub(super) version: Option<String>,
    pub(super) description: Option<String>,
    /// From the manifest; derived from the imports where it says nothing of requests.
    pub(super) requests: Vec<Request>,
    pub(super) imports: Vec<String>,
    pub(super) exports: Vec<String>,
}

impl Anatomy {
    /// Reads a component's binary.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, ComponentFault> {
        // Engines write compiled code as ELF files, on every system.
        if bytes.starts_with(b"\x7fELF") {
            return Err(ComponentFault::Compiled);
        }
        if !bytes.starts_with(b"\0asm") {
            return Err(ComponentFault::NotWasm);
        }
        let damaged = |error: wasmparser::BinaryReaderError| ComponentFault::Damaged(error.to_string());
        let mut depth = 0_usize;
        let mut imports = Vec::new();
        let mut exports = Vec::new();
        let mut manifest: Option<Manifest> = None;
        for payload in Parser::new(0).parse_all(bytes) {
            match payload.map_err(damaged)? {
                Payload::Version { encoding, .. } => {
                    if depth == 0 && encoding == Encoding::Module {
                        return Err(ComponentFault::CoreModule);
                    }
                    depth += 1;
                }
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(section) if depth == 1 => {
                    for import in section {
                        imports.push(import.map_err(damaged)?.name.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(section) if depth == 1 => {
                    for export in section {
                        exports.push(export.map_err(damaged)?.name.name.to_owned());
                    }
                }
                Payload::CustomSection(section) if section.name() == SECTION => {
                    if manifest.is_some() {
                        return Err(ComponentFault::Manifest("there are two".to_owned()));
                    }
                    manifest = Some(parse(section.data())?);
                }
                _ => {}
            }
        }
        let manifest = manifest.unwrap_or_default();
        let requests = match manifest.requests {
            Some(requests) => BTreeSet::from_iter(requests),
            None => derived(&imports),
        };
        Ok(Self {
            name: manifest.name,
            version: manifest.version,
            description: manifest.description,
            requests: requests.into_iter().collect(),
            imports,
            exports,
        })
    }

    fn exports(&self, interface: &str) -> bool {
        self.exports.iter().any(|export| spoken(export, interface))
    }

    /// The name of the world that it was made for, as far as its exports tell.
    pub(super) fn world(&self) -> Option<&'static str> {
        if self.exports(PUBLISHER) {
            Some("publisher-adapter")
        } else if self.exports(STORAGE) {
            let full = self.exports(FUSED) && self.exports(ADMIN);
            Some(match full {
                true if self.exports(FAN_OUT) => "storage-adapter-fan-out",
                true => "storage-adapter-full",
                false => "storage-adapter",
            })
        } else if self.exports(ROUTER) {
            Some("router-adapter")
        } else {
            None
        }
    }

    pub(super) fn check_publisher(&self) -> Result<(), ComponentFault> {
        self.check(PUBLISHER, "publisher")
    }

    pub(super) fn check_storage(&self) -> Result<(), ComponentFault> {
        self.check(STORAGE, "storage")
    }

    pub(super) fn check_router(&self) -> Result<(), ComponentFault> {
        self.check(ROUTER, "router")
    }

    pub(super) fn has_fused(&self) -> bool {
        self.exports(FUSED)
    }

    pub(super) fn has_admin(&self) -> bool {
        self.exports(ADMIN)
    }

    pub(super) fn has_fan_out(&self) -> bool {
        self.exports(FAN_OUT)
    }

    fn check(&self, wanted: &'static str, needed: &'static str) -> Result<(), ComponentFault> {
        if self.exports(wanted) {
            return Ok(());
        }
        // Right interface, other version.
        let base = |export: &&String| export.split('@').next() == Some(wanted);
        if let Some(export) = self.exports.iter().find(base) {
            return Err(ComponentFault::WrongVersion { found: export.clone() });
        }
        // A file that was cut between two sections is a whole component to every parser.
        let found = if self.exports.is_empty() { "nothing (or it is truncated)".to_owned() } else { self.exports.join(", ") };
        Err(ComponentFault::WrongWorld { needed, found, wanted })
    }
}

/// Whether `export` is `interface` at a version that this host speaks.
fn spoken(export: &str, interface: &str) -> bool {
    export.split_once('@').is_some_and(|(base, version)| base == interface && version.starts_with(PACKAGE_VERSION))
}

fn parse(data: &[u8]) -> Result<Manifest, ComponentFault> {
    if data.len() > MAX_MANIFEST_BYTES {
        return Err(ComponentFault::Manifest(format!("it is longer than {MAX_MANIFEST_BYTES} bytes")));
    }
    let text = std::str::from_utf8(data).map_err(|error| ComponentFault::Manifest(error.to_string()))?;
    toml::from_str(text).map_err(|error| ComponentFault::Manifest(error.message().to_owned()))
}

/// The capabilities that the imports of a component without a manifest amount to.
fn derived(imports: &[String]) -> BTreeSet<Request> {
    let imports_any = |prefix: &str| imports.iter().any(|import| import.starts_with(prefix));
    [
        (Request::Http, "wasi:http/outgoing-handler@"),
        (Request::Tcp, "wasi:sockets/tcp@"),
        // Of no use but on a connection.
        (Request::Tcp, "wasi:tls/types@"),
        (Request::Databases, "outhaul:adapter/sql@"),
        (Request::Secrets, "outhaul:adapter/secrets@"),
    ]
    .into_iter()
    .filter(|(_, prefix)| imports_any(prefix))
    .map(|(request, _)| request)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anatomy(exports: &[&str], imports: &[&str]) -> Anatomy {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let imports = owned(imports);
        let requests = derived(&imports).into_iter().collect();
        Anatomy { name: None, version: None, description: None, requests, imports, exports: owned(exports) }
    }

    #[test]
    fn other_files_are_told_apart() {
        assert_eq!(Anatomy::read(b"#!/bin/sh"), Err(ComponentFault::NotWasm));
        assert_eq!(Anatomy::read(b"\0asm\x01\0\0\0"), Err(ComponentFault::CoreModule));
        assert!(matches!(Anatomy::read(b"\0asm\x0d\0\x01"), Err(ComponentFault::Damaged(_))));
        // A section that promises more bytes than there are.
        assert!(matches!(Anatomy::read(b"\0asm\x0d\0\x01\0\x00\x7f"), Err(ComponentFault::Damaged(_))));
    }

    #[test]
    fn the_manifest_is_read_and_checked() {
        let with = |text: &str| {
            let mut bytes = b"\0asm\x0d\0\x01\0\0".to_vec();
            bytes.push(u8::try_from(1 + SECTION.len() + text.len()).unwrap());
            bytes.push(u8::try_from(SECTION.len()).unwrap());
            bytes.extend_from_slice(SECTION.as_bytes());
            bytes.extend_from_slice(text.as_bytes());
            Anatomy::read(&bytes)
        };
        let anatomy = with("name = \"a\"\nversion = \"1.2.3\"\nrequests = [\"tcp\", \"http\"]\n").unwrap();
        assert_eq!((anatomy.name.as_deref(), anatomy.version.as_deref()), (Some("a"), Some("1.2.3")));
        assert_eq!(anatomy.requests, [Request::Http, Request::Tcp]);
        assert!(matches!(with("requests = [\"root\"]"), Err(ComponentFault::Manifest(text)) if text.contains("root")));
        assert!(matches!(with("nmae = 1"), Err(ComponentFault::Manifest(_))));
    }

    #[test]
    fn without_a_manifest_the_imports_tell() {
        let anatomy = anatomy(&[], &["wasi:http/outgoing-handler@0.2.3", "outhaul:adapter/secrets@0.1.0", "wasi:io/poll@0.2.3"]);
        assert_eq!(anatomy.requests, [Request::Http, Request::Secrets]);
        assert_eq!(self::anatomy(&[], &["wasi:tls/types@0.2.0-draft"]).requests, [Request::Tcp]);
    }

    #[test]
    fn the_wrong_world_is_named() {
        let storage = anatomy(&["outhaul:adapter/storage@0.1.0"], &[]);
        assert_eq!(storage.world(), Some("storage-adapter"));
        let interfaces =
            ["storage", "storage-fused", "storage-admin", "storage-fan-out"].map(|name| format!("outhaul:adapter/{name}@0.1.1"));
        let interfaces: Vec<&str> = interfaces.iter().map(String::as_str).collect();
        assert_eq!(anatomy(&interfaces[..3], &[]).world(), Some("storage-adapter-full"));
        assert_eq!(anatomy(&interfaces, &[]).world(), Some("storage-adapter-fan-out"));
        assert_eq!(
            storage.check_publisher().unwrap_err().to_string(),
            "is not a publisher: it exports outhaul:adapter/storage@0.1.0, and outhaul:adapter/publisher is needed"
        );
        let router = anatomy(&["outhaul:adapter/router@0.1.1"], &[]);
        assert_eq!((router.world(), router.check_router()), (Some("router-adapter"), Ok(())));
        assert_eq!(
            storage.check_router().unwrap_err().to_string(),
            "is not a router: it exports outhaul:adapter/storage@0.1.0, and outhaul:adapter/router is needed"
        );
        // Also what is left of one that was cut between two sections.
        assert_eq!(
            Anatomy::read(b"\0asm\x0d\0\x01\0").unwrap().check_storage().unwrap_err().to_string(),
            "is not a storage: it exports nothing (or it is truncated), and outhaul:adapter/storage is needed"
        );
        let newer = anatomy(&["outhaul:adapter/publisher@0.2.0"], &[]);
        assert_eq!(
            newer.check_publisher().unwrap_err().to_string(),
            "exports outhaul:adapter/publisher@0.2.0; this host speaks outhaul:adapter@0.1"
        );
    }
}
