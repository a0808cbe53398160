//! The components that were pulled, on disk: a process starts without its registries where it has started before. Files are known by
//! the digest of their content, which is compared at every reading, so it does not matter who may write there.

use super::error::Fault;
use super::manifest;
use super::{Component, Digest, Pinned};
use crate::atomic;
use bytes::Bytes;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// After so long nobody writes to a temporary file any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The component of a reference, if it is there and whole.
pub(super) fn find(folder: &Path, pinned: &Pinned) -> Result<Option<Component>, Fault> {
    let Some(content) = content(&manifest_path(folder, &pinned.digest), &pinned.digest, manifest::MAX_BYTES)? else { return Ok(None) };
    let layer = manifest::read(&content)?;
    let path = component_path(folder, &layer.digest);
    let Some(bytes) = self::content(&path, &layer.digest, layer.bytes)? else { return Ok(None) };
    Ok(Some(Component { path, digest: layer.digest, bytes: bytes.into() }))
}

/// Keeps a component that was pulled, with the manifest that refers to it, which comes last: where it is, the component is.
pub(super) fn keep(folder: &Path, manifest: &[u8], component: &Bytes) -> Result<Component, Fault> {
    let digest = Digest::of(component);
    let path = component_path(folder, &digest);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| Fault::Store { path, error }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    sweep(folder);
    atomic::replace(&path, &[component]).map_err(failed(&path))?;
    let manifest_path = manifest_path(folder, &Digest::of(manifest));
    atomic::replace(&manifest_path, &[manifest]).map_err(failed(&manifest_path))?;
    Ok(Component { path, digest, bytes: component.clone() })
}

/// What a file holds; none: it is not there, or holds something else, and is fetched again.
fn content(path: &Path, digest: &Digest, limit: usize) -> Result<Option<Vec<u8>>, Fault> {
    let failed = |error| Fault::Store { path: path.to_owned(), error };
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    let mut content = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    file.take(most).read_to_end(&mut content).map_err(failed)?;
    if Digest::of(&content) != *digest {
        tracing::warn!(file = %path.display(), "is not what was pulled, and is pulled again");
        return Ok(None);
    }
    Ok(Some(content))
}

fn manifest_path(folder: &Path, digest: &Digest) -> PathBuf {
    folder.join(format!("sha256-{}.json", digest.hex()))
}

fn component_path(folder: &Path, digest: &Digest) -> PathBuf {
    folder.join(format!("sha256-{}.wasm", digest.hex()))
}

/// Removes what a process has left that died while it wrote. Where that fails, the disk is a little fuller.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_temporary = entry.file_name().to_string_lossy().starts_with(atomic::TEMPORARY);
        let age = entry.metadata().and_then(|metadata| metadata.modified()).map(|modified| SystemTime::now().duration_since(modified));
        if is_temporary
            && age.is_ok_and(|age| age.is_ok_and(|age| age > ABANDONED))
            && let Err(error) = fs::remove_file(entry.path())
        {
            tracing::debug!(file = %entry.path().display(), "cannot be removed: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with a component, and the reference to it.
    fn kept() -> (tempfile::TempDir, Pinned, Component) {
        let folder = tempfile::tempdir().unwrap();
        let component = Bytes::from_static(b"\0asm");
        let manifest = manifest::tests::of(&component);
        let kept = keep(folder.path(), &manifest, &component).unwrap();
        let pinned = Pinned { registry: "ghcr.io".into(), repository: "a".into(), digest: Digest::of(&manifest) };
        (folder, pinned, kept)
    }

    #[test]
    fn what_was_kept_is_found_by_its_digest_alone() {
        let (folder, pinned, kept) = kept();
        assert_eq!(find(folder.path(), &pinned).unwrap().unwrap(), kept);
        let elsewhere = Pinned { registry: "localhost:5000".into(), ..pinned.clone() };
        assert_eq!(find(folder.path(), &elsewhere).unwrap().unwrap(), kept);
        assert_eq!(find(folder.path(), &Pinned { digest: Digest::of(b""), ..pinned }).unwrap(), None);
    }

    #[test]
    fn what_is_damaged_is_as_if_it_were_not_there() {
        let (folder, pinned, kept) = kept();
        for path in [kept.path.clone(), manifest_path(folder.path(), &pinned.digest)] {
            let good = fs::read(&path).unwrap();
            let flipped = [&good[..1], &[good[1] ^ 1], &good[2..]].concat();
            for bad in [flipped, good[..good.len() - 1].to_vec(), [&good[..], b" "].concat()] {
                fs::write(&path, bad).unwrap();
                assert_eq!(find(folder.path(), &pinned).unwrap(), None, "{}", path.display());
            }
            fs::remove_file(&path).unwrap();
            assert_eq!(find(folder.path(), &pinned).unwrap(), None, "{}", path.display());
            fs::write(&path, good).unwrap();
        }
        assert_eq!(find(folder.path(), &pinned).unwrap().unwrap(), kept);
    }

    #[test]
    fn what_cannot_be_read_or_written_is_told() {
        let (folder, pinned, kept) = kept();
        fs::remove_file(&kept.path).unwrap();
        fs::create_dir(&kept.path).unwrap();
        let error = find(folder.path(), &pinned).unwrap_err().to_string();
        assert!(error.contains("it cannot be kept in plugins.store"), "{error}");
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(keep(&file.join("below"), b"", &Bytes::new()).is_err());
    }

    #[test]
    fn what_a_dead_process_has_left_goes() {
        let (folder, ..) = kept();
        let (old, new) = (folder.path().join(".outhaul-old"), folder.path().join(".outhaul-new"));
        let long_ago = SystemTime::now() - 2 * ABANDONED;
        fs::File::create(&old).unwrap().set_modified(long_ago).unwrap();
        fs::write(&new, "").unwrap();
        sweep(folder.path());
        assert!(!old.exists() && new.exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "what is kept stays");
    }
}
