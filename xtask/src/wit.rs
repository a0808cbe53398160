//! A released version of a WIT package never changes: wit/ must equal the frozen copy of the version that it names.

use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Compares `wit/*.wit` with `wit/archive/VERSION/*.wit`, byte for byte.
///
/// # Errors
/// Names the first file that differs and says what to do.
pub(crate) fn check(folder: &Path) -> Result<()> {
    let version = version(&fs::read_to_string(folder.join("outbox.wit")).context("cannot read wit/outbox.wit")?)?;
    let frozen = folder.join("archive").join(&version);
    if !frozen.is_dir() {
        bail!("wit/archive/{version}/ is missing: a version is frozen when it is released, see wit/README.md");
    }
    for name in wit_files(folder)?.union(&wit_files(&frozen)?) {
        let (now, then) = (fs::read(folder.join(name)), fs::read(frozen.join(name)));
        if !matches!((now, then), (Ok(now), Ok(then)) if now == then) {
            bail!(
                "wit/{name} is not what was released as {version}: put it back as it is in wit/archive/{version}/, or give the package a new version \
                 as wit/README.md describes",
                name = Path::new(name).display()
            );
        }
    }
    Ok(())
}

/// The version in `package NAMESPACE:NAME@VERSION;`.
fn version(text: &str) -> Result<String> {
    text.lines()
        .find_map(|line| line.strip_prefix("package ")?.strip_suffix(';')?.split_once('@'))
        .map(|(_, version)| version.to_owned())
        .context("wit/outbox.wit has no line `package NAMESPACE:NAME@VERSION;`")
}

fn wit_files(folder: &Path) -> Result<BTreeSet<OsString>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "wit") {
            names.extend(path.file_name().map(ToOwned::to_owned));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(released: &[(&str, &str)], now: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive/0.1.0");
        fs::create_dir_all(&archive).unwrap();
        for (folder, files) in [(archive.as_path(), released), (folder.path(), now)] {
            for (name, text) in files {
                fs::write(folder.join(name), text).unwrap();
            }
        }
        folder
    }

    const RELEASED: (&str, &str) = ("outbox.wit", "package a:b@0.1.0;\ninterface c {}\n");

    #[test]
    fn the_same_bytes_pass() {
        check(tree(&[RELEASED], &[RELEASED]).path()).unwrap();
    }

    #[test]
    fn a_changed_an_added_and_a_removed_file_are_named() {
        let changed = ("outbox.wit", "package a:b@0.1.0;\ninterface c { }\n");
        let other = ("other.wit", "");
        for (released, now, name) in [
            (vec![RELEASED], vec![changed], "wit/outbox.wit"),
            (vec![RELEASED], vec![RELEASED, other], "wit/other.wit"),
            (vec![RELEASED, other], vec![RELEASED], "wit/other.wit"),
        ] {
            let error = check(tree(&released, &now).path()).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }

    #[test]
    fn a_version_without_a_frozen_copy_is_an_error() {
        let next = ("outbox.wit", "package a:b@0.2.0;\n");
        let error = check(tree(&[RELEASED], &[next]).path()).unwrap_err().to_string();
        assert!(error.contains("wit/archive/0.2.0/ is missing"), "{error}");
    }
}
