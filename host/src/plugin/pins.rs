//! Pins: the hashes of the components that a configuration may load, in a file beside it (`outhaul.lock` for `outhaul.toml`) that
//! `outhaul plugin pin` writes and people review. Where it is there, no other component is loaded: not at the start, not in a swap.

use crate::atomic;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Largest file that is read, in bytes: a pin takes a hundred.
const MAX_BYTES: u64 = 1 << 20;

/// First lines of the file, for whoever reviews it.
const HEADER: &str = "\
# The components that outhaul may load, by their SHA-256. Written by `outhaul plugin pin`; keep it under version control, and review
# a change as you would review code. Without this file any component in plugins.dir is loaded.
";

/// The pins cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the pins {} {reason}", .file.display())]
pub struct PinsError {
    /// The file.
    pub file: PathBuf,
    /// Why.
    pub reason: String,
}

/// One component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// SHA-256 of the file, in lower-case hexadecimal.
    #[serde(deserialize_with = "digest")]
    pub sha256: String,
    /// The version that its manifest says, for people: not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// The pins of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pins {
    /// Where they stand.
    pub file: PathBuf,
    /// By the plugin's name, or its reference with the digest.
    pub plugins: BTreeMap<String, Pin>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    plugins: BTreeMap<String, Pin>,
}

impl Pins {
    /// Reads the file; none: there is none.
    ///
    /// # Errors
    /// It cannot be read, or is not what [`Pins::write`] writes: never taken for "no pins".
    pub fn read(file: &Path) -> Result<Option<Self>, PinsError> {
        let fault = |reason: String| PinsError { file: file.to_owned(), reason };
        let unreadable = |error: io::Error| fault(format!("cannot be read: {error}"));
        match std::fs::metadata(file) {
            // A link that leads nowhere is no absence: who has put it there wants pins.
            Err(error) if error.kind() == io::ErrorKind::NotFound && file.symlink_metadata().is_err() => return Ok(None),
            Err(error) => return Err(unreadable(error)),
            Ok(metadata) if metadata.len() > MAX_BYTES => return Err(fault(format!("are larger than {MAX_BYTES} bytes"))),
            Ok(_) => {}
        }
        let bytes = std::fs::read(file).map_err(unreadable)?;
        let damaged = |at: usize, what: &str| {
            let line = bytes.iter().take(at).filter(|byte| **byte == b'\n').count() + 1;
            let advice = "restore the file, or review the components, remove it, and write it anew with `outhaul plugin pin`";
            fault(format!("are damaged in line {line}: {what}; {advice}"))
        };
        let text = std::str::from_utf8(&bytes).map_err(|error| damaged(error.valid_up_to(), "not UTF-8"))?;
        let Document { plugins } = toml::from_str(text)
            .map_err(|error| damaged(error.span().map_or(0, |span| span.start), &error.message().replace('\n', ", ")))?;
        Ok(Some(Self { file: file.to_owned(), plugins }))
    }

    /// Writes the file, all of it or nothing.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self) -> Result<(), PinsError> {
        let fault = |reason: String| PinsError { file: self.file.clone(), reason: format!("cannot be written: {reason}") };
        let document = Document { plugins: self.plugins.clone() };
        let text = toml::to_string(&document).map_err(|error| fault(error.to_string()))?;
        let written = atomic::replace(&self.file, &[HEADER.as_bytes(), b"\n", text.as_bytes()]);
        written.map_err(|error| fault(error.to_string()))
    }

    /// The hash that a plugin must have; none: it is not pinned.
    #[must_use]
    pub fn of(&self, plugin: &str) -> Option<&str> {
        self.plugins.get(plugin).map(|pin| pin.sha256.as_str())
    }
}

fn digest<'de, D: Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    let text = String::deserialize(value)?;
    let is_digest = text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_digest { Ok(text) } else { Err(D::Error::custom("sha256 is not 64 lower-case hexadecimal digits")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_people_can_read_it_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("outhaul.lock");
        assert_eq!(Pins::read(&file).unwrap(), None);
        let pin = Pin { sha256: "0a".repeat(32), version: Some("1.2.3".into()) };
        let pins = Pins { file: file.clone(), plugins: [("http-publisher".to_owned(), pin)].into() };
        pins.write().unwrap();
        assert_eq!(Pins::read(&file).unwrap(), Some(pins.clone()));
        assert_eq!(pins.of("http-publisher"), Some("0a".repeat(32).as_str()));
        assert_eq!(pins.of("other"), None);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with('#') && text.contains("[plugins.http-publisher]\nsha256 = \"0a0a"), "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_link_that_leads_nowhere_is_not_taken_for_no_pins() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("outhaul.lock");
        std::os::unix::fs::symlink("nowhere", &file).unwrap();
        let text = Pins::read(&file).unwrap_err().to_string();
        assert!(text.contains("cannot be read"), "{text}");
    }

    #[test]
    fn what_is_damaged_is_not_taken_for_no_pins() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("outhaul.lock");
        for (text, line) in [
            (&b"plugins = 1"[..], 1),
            (b"# ours\n[plugins.a]\nsha256 = \"AB\"", 3),
            (b"[plugins.a]\nmd5 = \"x\"", 2),
            (b"\n\n[plugin.a]", 3),
            (b"\0", 1),
            (b"[plugins.a]\nsha256 = \"\xff\"", 2),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Pins::read(&file).unwrap_err().to_string();
            let told = format!("outhaul.lock are damaged in line {line}: ");
            assert!(error.contains(&told) && error.contains("outhaul plugin pin"), "{}: {error}", text.escape_ascii());
        }
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(Pins::read(&file).unwrap_err().to_string().contains("cannot be read"));
    }
}
