//! The README of an example, followed word for word: its blocks of commands, and a shell that runs them as a reader would.

use crate::places;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A README.
pub struct Readme(String);

impl Readme {
    /// That of a folder.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of(folder: &Path) -> Result<Self> {
        let file = folder.join("README.md");
        std::fs::read_to_string(&file).map(Self).with_context(|| format!("cannot read {}", file.display()))
    }

    /// The text of the blocks of a language (`sh`, `toml`) in the section of this title, in their order.
    #[must_use]
    pub fn blocks(&self, section: &str, language: &str) -> Vec<String> {
        let (mut title, mut open, mut found) = ("", None::<&str>, Vec::new());
        for line in self.0.lines() {
            match open {
                Some(_) if line == "```" => open = None,
                Some(its) if its == language && title == section => {
                    if let Some(block) = found.last_mut() {
                        *block += line;
                        *block += "\n";
                    }
                }
                Some(_) => {}
                None => {
                    if let Some(heading) = line.strip_prefix("## ") {
                        title = heading;
                    } else if let Some(its) = line.strip_prefix("```") {
                        open = Some(its);
                        if its == language && title == section {
                            found.push(String::new());
                        }
                    }
                }
            }
        }
        found
    }

    /// The only such block.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub fn block(&self, section: &str, language: &str) -> Result<String> {
        match <[String; 1]>::try_from(self.blocks(section, language)) {
            Ok([block]) => Ok(block),
            Err(blocks) => bail!("`## {section}` has {} blocks of {language} instead of one", blocks.len()),
        }
    }
}

/// Where commands are run, and how they are shown.
pub struct Shell {
    folder: PathBuf,
    /// Comes before `PATH`.
    path: Vec<PathBuf>,
    /// Since when the clock runs, for a transcript.
    clock: Option<SystemTime>,
}

impl Shell {
    /// A shell in a folder, which finds `outhaul`, and `wit-bindgen` and `wasm-tools` if [`super::build`] has built them.
    ///
    /// # Errors
    /// If the host is not built.
    pub fn new(folder: &Path) -> Result<Self> {
        let host = places::outhaul()?.parent().context("the host is in no folder")?.to_owned();
        let tools = super::home()?.join("tools/debug");
        Ok(Self { folder: folder.to_owned(), path: vec![tools, host], clock: None })
    }

    /// Shows each command with the time since then, and the end of what it said.
    #[must_use]
    pub fn by_the_clock(mut self, since: SystemTime) -> Self {
        self.clock = Some(since);
        self
    }

    /// Runs the lines of a block one after the other in one shell, up to the first that fails. Lines that install something on the
    /// machine are left out: they were followed before. Returns what was said.
    ///
    /// # Errors
    /// If a command fails: with all that was said.
    pub fn run(&self, block: &str) -> Result<String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path: OsString = std::env::join_paths(self.path.iter().cloned().chain(std::env::split_paths(&path)))?;
        let mut command = Command::new("bash");
        command.arg("-c").arg(self.script(block)).current_dir(&self.folder).env("PATH", path).stdin(Stdio::null());
        // A new adapter has a target folder and a profile of its own.
        for variable in ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR", "RUST_LOG", "RUSTFLAGS"] {
            command.env_remove(variable);
        }
        if self.clock.is_some() {
            let status = command.status().context("cannot run bash")?;
            if !status.success() {
                bail!("a command failed in {} ({status}): see above", self.folder.display());
            }
            return Ok(String::new());
        }
        let output = command.stderr(Stdio::piped()).output().context("cannot run bash")?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if !output.status.success() {
            bail!("a command failed in {} ({}):\n{block}\n{said}", self.folder.display(), output.status);
        }
        Ok(said)
    }

    fn script(&self, block: &str) -> String {
        let lines = block.lines().filter(|line| !line.trim().is_empty());
        let Some(since) = self.clock else {
            let kept: Vec<&str> = lines.filter(|line| !is_set_up(line)).collect();
            return format!("set -e\n{}\n", kept.join("\n"));
        };
        let start = since.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_micros();
        let mut script = format!(
            "set -e\nsaid=$(mktemp)\ntrap 'rm -f \"$said\"' EXIT\n\
             clock() {{ local tenths=$(( (${{EPOCHREALTIME/[.,]/}} - {start}) / 100000 )); printf '%5d.%d s  ' $((tenths / 10)) $((tenths % 10)); }}\n"
        );
        for line in lines {
            let quoted = format!("'{}'", line.replace('\'', r"'\''"));
            if is_set_up(line) {
                script += &format!("clock; printf '$ %s\\n' {quoted}; echo '           (installed before)'\n");
            } else {
                // In this shell, because a line may set a variable for the next one.
                script += &format!("clock; printf '$ %s\\n' {quoted}\n{{ {line}\n}} > \"$said\" 2>&1 || {{ cat \"$said\"; exit 1; }}\n");
                script += "grep -v '^ *$' \"$said\" | tail -n 3 | sed 's/^/           /' || true\n";
            }
        }
        script + "clock; echo done\n"
    }
}

/// The lines of a block that install something on the machine: they are not run.
#[must_use]
pub fn set_up(block: &str) -> Vec<&str> {
    block.lines().filter(|line| is_set_up(line)).collect()
}

/// Whether a line installs something on the machine.
fn is_set_up(line: &str) -> bool {
    ["apt-get install ", "cargo install ", "rustup target add "].iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a\n\n## Build\n\n```sh\ncargo install x\nexport A='it is'\n\necho \"$A\" here\n```\n\n```toml\n[a]\n```\n\n## Run\n\n```sh\nb\n```\n```sh\nc\n```\n";

    #[test]
    fn blocks_are_found_by_section_and_language() {
        let readme = Readme(TEXT.to_owned());
        assert_eq!(readme.block("Build", "toml").unwrap(), "[a]\n");
        assert_eq!(readme.blocks("Run", "sh"), ["b\n", "c\n"]);
        assert!(readme.block("Run", "sh").is_err() && readme.block("Run", "toml").is_err());
    }

    #[test]
    fn lines_share_a_shell_and_the_first_failure_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let shell = Shell { folder: folder.path().to_owned(), path: Vec::new(), clock: None };
        let build = Readme(TEXT.to_owned()).block("Build", "sh").unwrap();
        assert_eq!((set_up(&build), shell.run(&build).unwrap().as_str()), (vec!["cargo install x"], "it is here\n"));
        let error = shell.run("echo before\nfalse\necho after").unwrap_err().to_string();
        assert!(error.contains("\nbefore\n") && !error.contains("\nafter\n\n"), "{error}");
        let clock = Shell { clock: Some(SystemTime::now()), ..shell };
        assert!(clock.run("export A=1\ntest \"$A\" = 1").is_ok() && clock.run("false").is_err());
    }
}
