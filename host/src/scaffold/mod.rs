//! `outhaul plugin new`: the beginnings of an adapter. What is written are the examples of this repository, embedded in the binary, under
//! another name; nothing is kept twice.

mod rust;
mod templates;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A language that adapters are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Language {
    /// Rust, with the SDK.
    Rust,
    /// JavaScript, built with componentize-js.
    Js,
    /// Python, built with componentize-py.
    Python,
    /// C, built with clang and wit-bindgen.
    C,
    /// Go, built with wit-bindgen: experimental.
    Go,
}

/// What the adapter will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Sends messages to where they belong.
    Publisher,
    /// A table of outbox rows.
    Storage,
    /// Says who subscribes to what.
    Router,
}

/// Longest name of an adapter: it becomes the name of files and packages.
const MAX_NAME: usize = 64;

/// Why there is no new adapter.
#[derive(Debug, thiserror::Error)]
pub enum ScaffoldError {
    /// The name cannot be that of a package.
    #[error("`{0}` cannot be the name of an adapter: use lower-case letters, digits and `-`, a letter first, at most 64 in all")]
    Name(String),
    /// No crate in Rust can have that name here.
    #[error("`{0}` cannot be the name of an adapter in Rust: Rust itself or a crate that outhaul uses has that name; choose another")]
    Taken(String),
    /// There is no such example.
    #[error("there is no {kind} in {language} to begin with; there are: {known}")]
    Unknown {
        /// As on the command line.
        language: String,
        /// As on the command line.
        kind: String,
        /// What there is.
        known: String,
    },
    /// The folder is there.
    #[error("{} is there already: choose another name, or remove it", .0.display())]
    Exists(PathBuf),
    /// A file cannot be written.
    #[error("cannot write {}: {source}", .file.display())]
    Write {
        /// Which.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Writes a new adapter into the folder `parent/name` and returns the folder.
///
/// # Errors
/// If the name is not fit, there is no such example, or the folder is there already or cannot be written.
pub fn create(parent: &Path, name: &str, language: Language, kind: Kind) -> Result<PathBuf, ScaffoldError> {
    let is_plain = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-';
    if !name.starts_with(|character: char| character.is_ascii_lowercase()) || !name.chars().all(is_plain) || name.len() > MAX_NAME {
        return Err(ScaffoldError::Name(name.to_owned()));
    }
    if language == Language::Rust && rust::is_taken(name) {
        return Err(ScaffoldError::Taken(name.to_owned()));
    }
    let files = files(name, language, kind)?;
    let folder = parent.join(name);
    if folder.exists() {
        return Err(ScaffoldError::Exists(folder));
    }
    for (path, content) in files {
        let file = folder.join(path);
        write(&file, &content).map_err(|source| ScaffoldError::Write { file, source })?;
    }
    Ok(folder)
}

fn write(file: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(file, content)?;
    #[cfg(unix)]
    if file.extension().is_some_and(|extension| extension == "sh") {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(file, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Every file of a new adapter, by its path in the folder.
fn files(name: &str, language: Language, kind: Kind) -> Result<Vec<(String, Vec<u8>)>, ScaffoldError> {
    let template = templates::find(language, kind).ok_or_else(|| ScaffoldError::Unknown {
        language: word(language),
        kind: word(kind),
        known: templates::ALL
            .iter()
            .map(|template| format!("a {} in {}", word(template.kind), word(template.language)))
            .collect::<Vec<_>>()
            .join(", "),
    })?;
    let underscored = |text: &str| text.replace('-', "_");
    let renamed = |old: &'static str, files: &'static [(&'static str, &'static str)]| {
        let text = move |text: &str| text.replace(old, name).replace(&underscored(old), &underscored(name)).into_bytes();
        files.iter().map(move |(path, its)| ((*path).to_owned(), text(its)))
    };
    let mut files: Vec<(String, Vec<u8>)> = renamed(template.name, template.files).collect();
    if let Some(shared) = &template.shared {
        files.extend(renamed(shared.name, shared.files));
    }
    let more = if language == Language::Rust { rust::more(&mut files) } else { templates::wit() };
    files.extend(more);
    if language == Language::Go {
        let adapter = wasi_preview1_component_adapter_provider::WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER;
        files.push(("wasi_snapshot_preview1.reactor.wasm".to_owned(), adapter.to_vec()));
    }
    Ok(files)
}

fn word(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A file that an example has and its template lacks would be missing from every new adapter.
    #[test]
    fn the_templates_are_the_examples() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples"));
        for template in templates::ALL {
            let folder = root.join(template.folder);
            let mut found = BTreeSet::new();
            list(&folder, &folder, &mut found);
            let embedded: BTreeSet<String> = template.files.iter().map(|(path, _)| (*path).to_owned()).collect();
            assert_eq!(embedded, found, "{}", template.folder);
        }
    }

    fn list(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                list(root, &path, found);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn a_new_adapter_has_its_name_everywhere() {
        for template in templates::ALL {
            let folder = tempfile::tempdir().unwrap();
            let created = create(folder.path(), "to-the-moon", template.language, template.kind).unwrap();
            let shared = template.shared.as_ref().map_or((template.name, &[][..]), |shared| (shared.name, shared.files));
            for (old, files) in [(template.name, template.files), shared] {
                for (path, _) in files {
                    let text = fs::read_to_string(created.join(path)).unwrap();
                    assert!(!text.contains(old) && !text.contains(&old.replace('-', "_")), "{path} of {}", template.folder);
                }
            }
            let readme = fs::read_to_string(created.join("README.md")).unwrap();
            assert!(readme.starts_with("# to-the-moon\n"), "{readme}");
            assert!(
                created.join(if template.language == Language::Rust { "wit/outbox.wit" } else { "wit/deps/outhaul-adapter.wit" }).exists()
            );
        }
    }

    #[test]
    fn every_language_begins_publishers_and_storages() {
        use clap::ValueEnum as _;
        for language in Language::value_variants() {
            for kind in [Kind::Publisher, Kind::Storage] {
                assert!(templates::find(*language, kind).is_some(), "a {} in {}", word(kind), word(*language));
            }
        }
    }

    #[test]
    fn a_folder_that_is_there_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        let error = create(folder.path(), "a", Language::C, Kind::Publisher).unwrap_err();
        assert!(matches!(error, ScaffoldError::Exists(_)), "{error}");
        assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 0);
    }

    #[test]
    fn names_that_would_break_a_package_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["", "A", "1a", "-a", "a_b", "a/b", "..", "a b", "ä", &"a".repeat(65)] {
            let error = create(folder.path(), name, Language::C, Kind::Publisher).unwrap_err();
            assert!(matches!(error, ScaffoldError::Name(_)), "{name}: {error}");
        }
    }

    #[test]
    fn names_of_what_rust_has_already_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["outhaul-sdk", "serde", "wasip2", "std", "test", "fn", "async"] {
            let error = create(folder.path(), name, Language::Rust, Kind::Publisher).unwrap_err();
            assert!(matches!(error, ScaffoldError::Taken(_)), "{name}: {error}");
        }
        create(folder.path(), "fn", Language::C, Kind::Publisher).unwrap();
    }

    #[test]
    fn what_there_is_not_is_told_with_what_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let error = create(folder.path(), "a", Language::Js, Kind::Router).unwrap_err().to_string();
        assert!(error.starts_with("there is no router in js to begin with; there are: ") && error.contains("a router in rust"), "{error}");
        let error = create(folder.path(), "a", Language::Go, Kind::Router).unwrap_err().to_string();
        assert!(error.starts_with("there is no router in go to begin with; there are: a publisher in rust, "), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
