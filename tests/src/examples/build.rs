//! Builds the examples as their readers do: `outhaul plugin new`, then the commands of the README.
//!
//! Each language's tool comes from its registry, at the version that the example pins, into target/examples/. A language whose tools are
//! missing is left out by name; where `CI` is set that is a failure.

use super::readme::{Readme, Shell};
use super::{ALL, Example, Language};
use crate::places;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Builds those of one language, or all.
///
/// # Errors
/// If a build fails; if tools are missing and `CI` is set.
pub fn build(only: Option<Language>) -> Result<()> {
    let mut missing = Vec::new();
    for example in ALL.iter().filter(|example| only.is_none_or(|only| only == example.language)) {
        if let Some(what) = lacks(example.language) {
            eprintln!("    {}: SKIPPED, {what}", example.name);
            missing.push(format!("{}: {what}", example.name));
            continue;
        }
        let start = Instant::now();
        let built = build_one(example).with_context(|| format!("cannot build {}", example.name))?;
        let seconds = start.elapsed().as_secs_f64();
        eprintln!("    {}: {}", example.name, if built { format!("{seconds:.1} s") } else { "as before".to_owned() });
    }
    if !missing.is_empty() && super::must_be_whole() {
        bail!("the examples cannot all be built: {}", missing.join("; "));
    }
    Ok(())
}

/// What is not installed, and how to install it; none: all is there.
pub(super) fn lacks(language: Language) -> Option<&'static str> {
    let runs = |program: &str, argument: &str| {
        Command::new(program).arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    match language {
        Language::Rust => None,
        Language::Js => (!runs("node", "--version") || !runs("npm", "--version")).then_some("node and npm are not installed"),
        Language::Python => (!runs("python3", "-cimport venv, ensurepip")).then_some("python3 with its module venv is not installed"),
        Language::C => {
            let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang-19".to_owned());
            // What it links with is of packages of its own.
            let has = |argument: &str| {
                let asked = Command::new(&clang).args(["--target=wasm32-wasi", argument]).stderr(Stdio::null()).output();
                asked.is_ok_and(|told| Path::new(String::from_utf8_lossy(&told.stdout).trim()).is_file())
            };
            let whole =
                has("--print-prog-name=wasm-ld") && has("--print-libgcc-file-name") && Path::new("/usr/include/wasm32-wasi").is_dir();
            (!whole)
                .then_some("clang for WebAssembly is not installed: apt-get install clang-19 lld-19 wasi-libc libclang-rt-19-dev-wasm32")
        }
        Language::Go => (!runs("go", "version")).then_some("go is not installed"),
    }
}

/// Says whether there was something to do.
fn build_one(example: &Example) -> Result<bool> {
    let home = super::home()?;
    let folder = home.join("src").join(example.name);
    let component = home.join(format!("{}.wasm", example.name));
    let stamp = home.join(format!("{}.stamp", example.name));

    // A fresh one each time, held against the last one that was built.
    let fresh = home.join("new");
    remove(&fresh)?;
    fs::create_dir_all(&fresh)?;
    let new = Command::new(places::outhaul()?).args(example.arguments()).current_dir(&fresh).output().context("cannot run outhaul")?;
    if !new.status.success() {
        bail!("`outhaul plugin new` failed: {}", String::from_utf8_lossy(&new.stderr));
    }
    let fresh = fresh.join(example.name);
    if example.language == Language::Rust {
        // Here the versions are those of this repository; elsewhere cargo chooses.
        fs::copy(places::checkout().join("Cargo.lock"), fresh.join("Cargo.lock")).context("cannot copy Cargo.lock")?;
    }
    let files = files(&fresh)?;
    // A digest would do; comparing the texts themselves leaves nothing to doubt.
    let text = files.iter().map(|(path, content)| format!("{}\n{content:?}\n", path.display())).collect::<String>();
    if component.exists() && fs::read_to_string(&stamp).is_ok_and(|last| last == text) {
        return Ok(false);
    }
    for (path, content) in &files {
        let file = folder.join(path);
        fs::create_dir_all(file.parent().context("a file is in a folder")?)?;
        fs::write(&file, content)?;
        fs::set_permissions(&file, fs::metadata(fresh.join(path))?.permissions())?;
    }
    if matches!(example.language, Language::C | Language::Go) {
        tools()?;
    }
    let built = folder.join(format!("{}.wasm", example.name));
    remove_file(&built)?;
    Shell::new(&folder)?.run(&Readme::of(&folder)?.block("Build and test", "sh")?)?;
    fs::copy(&built, &component).with_context(|| format!("the build made no {}", built.display()))?;
    fs::write(&stamp, text).context("cannot note what was built")?;
    Ok(true)
}

/// Builds our `wit-bindgen` and `wasm-tools`, a workspace of their own, in place of the `cargo install` of the READMEs: the libraries
/// behind the two, at the same versions, without the rest of their commands.
pub(super) fn tools() -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = places::checkout().join("tests/component-tools/Cargo.toml");
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--locked", "--manifest-path"]).arg(manifest).arg("--target-dir").arg(super::home()?.join("tools"));
    let status = command.status().context("cannot run cargo")?;
    if !status.success() {
        bail!("wit-bindgen and wasm-tools cannot be built ({status})");
    }
    Ok(())
}

pub(super) fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

fn remove_file(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

/// Every file below a folder, by its path in it.
fn files(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            for entry in fs::read_dir(&path).with_context(|| format!("cannot list {}", path.display()))? {
                pending.push(entry?.path());
            }
        } else {
            let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            found.insert(path.strip_prefix(folder)?.to_owned(), content);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_at_every_depth() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/c"), "x").unwrap();
        fs::write(folder.path().join("d"), "y").unwrap();
        let found = files(folder.path()).unwrap();
        let paths: Vec<&str> = found.keys().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(paths, ["a/b/c", "d"]);
        assert_eq!(found[Path::new("a/b/c")], b"x");
    }
}
