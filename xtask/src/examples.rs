//! Builds the examples as their readers do: `outhaul plugin new`, then the commands of its README.
//!
//! Each language's tool comes from its registry, at the version that the example pins, into target/examples/. A language whose tools are
//! missing is left out by name; where `CI` is set that is a failure.

use crate::workspace::{GUEST_TARGET, Workspace, step};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The languages of the examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
    Rust,
    Js,
    Python,
    C,
    Go,
}

/// An example: the arguments of `outhaul plugin new`, and the name in its files.
struct Example {
    language: Language,
    kind: &'static str,
    name: &'static str,
}

const EXAMPLES: [Example; 6] = [
    Example { language: Language::Rust, kind: "publisher", name: "http-rust" },
    Example { language: Language::Js, kind: "publisher", name: "http-js" },
    Example { language: Language::Python, kind: "publisher", name: "http-python" },
    Example { language: Language::Python, kind: "storage", name: "kv-python" },
    Example { language: Language::C, kind: "publisher", name: "http-c" },
    Example { language: Language::Go, kind: "publisher", name: "http-go" },
];

/// Builds those of one language, or all.
///
/// # Errors
/// If a build fails; if tools are missing and `CI` is set.
pub(crate) fn build(workspace: &Workspace, only: Option<Language>) -> Result<()> {
    let mut missing = Vec::new();
    for example in EXAMPLES.iter().filter(|example| only.is_none_or(|only| only == example.language)) {
        match lacks(example.language) {
            Some(what) => {
                eprintln!("==> {}: SKIPPED, {what}", example.name);
                missing.push(format!("{}: {what}", example.name));
            }
            None => step(&format!("build {}", example.name), || build_one(workspace, example))?,
        }
    }
    if !missing.is_empty() && std::env::var_os("CI").is_some_and(|value| value == "true") {
        bail!("the examples cannot all be built: {}", missing.join("; "));
    }
    Ok(())
}

/// What is not installed, and how to install it; none: all is there.
fn lacks(language: Language) -> Option<&'static str> {
    let runs = |program: &str, argument: &str| {
        Command::new(program).arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    match language {
        Language::Rust => None,
        Language::Js => (!runs("node", "--version") || !runs("npm", "--version")).then_some("node and npm are not installed"),
        Language::Python => (!runs("python3", "-cimport venv, ensurepip")).then_some("python3 with its module venv is not installed"),
        Language::C => (!runs(&clang(), "--version") || !Path::new("/usr/include/wasm32-wasi").is_dir())
            .then_some("clang for WebAssembly is not installed: apt-get install clang-19 lld-19 wasi-libc libclang-rt-19-dev-wasm32"),
        Language::Go => (!runs("go", "version")).then_some("go is not installed"),
    }
}

fn clang() -> String {
    std::env::var("CLANG").unwrap_or_else(|_| "clang-19".to_owned())
}

fn build_one(workspace: &Workspace, example: &Example) -> Result<()> {
    let home = workspace.examples();
    let folder = home.join("src").join(example.name);
    let component = home.join(format!("{}.wasm", example.name));
    let stamp = home.join(format!("{}.stamp", example.name));

    // A fresh one each time, held against the last one that was built.
    let fresh = home.join("new");
    remove(&fresh)?;
    fs::create_dir_all(&fresh)?;
    let language = example.language.to_possible_value().context("a language without a name")?;
    let mut new = workspace.program("outhaul");
    new.args(["plugin", "new", "--lang", language.get_name(), "--kind", example.kind, example.name]).stdout(Stdio::null());
    run(new.current_dir(&fresh))?;
    let files = files(&fresh.join(example.name))?;
    // A digest would do; comparing the texts themselves leaves nothing to doubt.
    let text = files.iter().map(|(path, content)| format!("{}\n{content:?}\n", path.display())).collect::<String>();
    if component.exists() && fs::read_to_string(&stamp).is_ok_and(|last| last == text) {
        return Ok(());
    }
    for (path, content) in &files {
        let file = folder.join(path);
        fs::create_dir_all(file.parent().context("a file is in a folder")?)?;
        fs::write(&file, content)?;
        fs::set_permissions(&file, fs::metadata(fresh.join(example.name).join(path))?.permissions())?;
    }
    let commands = Tools { workspace, folder: &folder };
    match example.language {
        Language::Rust => {
            // Here the versions are those of this repository; elsewhere cargo chooses.
            fs::copy(workspace.root.join("Cargo.lock"), folder.join("Cargo.lock")).context("cannot copy Cargo.lock")?;
            commands.run(&["cargo", "test", "--quiet"])?;
            commands.run(&["cargo", "build", "--quiet", "--release", "--target", GUEST_TARGET])?;
        }
        Language::Js => {
            commands.run(&["npm", "ci", "--no-audit", "--no-fund", "--silent"])?;
            commands.run(&["npm", "--silent", "test"])?;
            commands.run(&["npm", "--silent", "run", "build"])?;
        }
        Language::Python => {
            commands.run(&["python3", "-m", "venv", ".venv"])?;
            commands.run(&[".venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", "requirements.txt"])?;
            commands.run(&["./test.sh"])?;
            commands.run(&["./build.sh"])?;
        }
        Language::C => {
            commands.tools()?;
            commands.run(&["./build.sh"])?;
            commands.run(&["./test.sh"])?;
        }
        Language::Go => {
            commands.tools()?;
            commands.run(&["./build.sh"])?;
            commands.run(&["go", "test", "./outhaul"])?;
        }
    }
    let built = match example.language {
        Language::Rust => folder.join("target").join(GUEST_TARGET).join("release").join(format!("{}.wasm", example.name.replace('-', "_"))),
        _ => folder.join(format!("{}.wasm", example.name)),
    };
    fs::copy(&built, &component).with_context(|| format!("the build made no {}", built.display()))?;
    fs::write(&stamp, text).context("cannot note what was built")
}

/// Runs the commands of an example's README in its folder.
struct Tools<'a> {
    workspace: &'a Workspace,
    folder: &'a Path,
}

impl Tools<'_> {
    /// Builds our `wit-bindgen` and `wasm-tools`, a workspace of their own.
    fn tools(&self) -> Result<()> {
        let manifest = self.workspace.root.join("tests/component-tools/Cargo.toml");
        let arguments = ["build", "--quiet", "--locked", "--manifest-path"].map(OsString::from).to_vec();
        self.workspace.cargo(arguments.into_iter().chain([manifest.into(), "--target-dir".into(), self.tools_target().into()]))
    }

    fn tools_target(&self) -> PathBuf {
        self.workspace.examples().join("tools")
    }

    fn run(&self, line: &[&str]) -> Result<()> {
        let (program, arguments) = line.split_first().context("an empty command")?;
        // Where our `wit-bindgen` and `wasm-tools` are, and componentize-py.
        let before = [self.folder.join(".venv/bin"), self.tools_target().join("debug")];
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path: OsString = std::env::join_paths(before.into_iter().chain(std::env::split_paths(&path)))?;
        // A relative program is looked up before the folder is changed.
        let program = if program.contains('/') { self.folder.join(program) } else { PathBuf::from(program) };
        // What a test prints is of interest if it fails only.
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.folder).env("PATH", path).env("CLANG", clang());
        // A new adapter has a target folder of its own.
        let output = command.env_remove("CARGO_TARGET_DIR").output();
        let output = output.with_context(|| format!("cannot run {line:?}"))?;
        if !output.status.success() {
            let text = [output.stdout, output.stderr].concat();
            bail!("{line:?} failed in {} ({}):\n{}", self.folder.display(), output.status, String::from_utf8_lossy(&text));
        }
        Ok(())
    }
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed ({status})");
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
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
