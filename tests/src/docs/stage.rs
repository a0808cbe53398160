//! The folder that a page is run in, and what a reader has there already.

use super::shell::Setting;
use crate::{examples, places};
use anyhow::{Context, Result};
use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What every address of a page begins with, before its port.
const LOCAL: &str = "127.0.0.1:";

/// A folder, the built host in the search path, and what stands in for things of the page. Removed when dropped.
pub struct Stage {
    root: TempDir,
    environment: Vec<(String, String)>,
    /// Texts of the page, and what they are here.
    stand_ins: Vec<(String, String)>,
    /// Addresses of the page, and what they are here.
    addresses: BTreeMap<String, String>,
    /// What configuration that is shown in parts is a part of.
    settings: toml::Table,
    sql: Option<Box<Sql>>,
    /// Servers that go on until the page ends.
    kept: Vec<Box<dyn Any>>,
}

/// Runs a script in the database of a stage.
type Sql = dyn Fn(&str) -> Result<()>;

impl Stage {
    /// A folder with the adapters in `plugins/` and the folder `examples/` of the checkout, as an operator has it.
    ///
    /// # Errors
    /// If anything of it is not built.
    pub fn relay() -> Result<Self> {
        let stage = Self::new()?;
        copy_files(&places::plugins()?, &stage.folder().join("plugins"))?;
        symlink(places::checkout().join("examples"), stage.folder().join("examples"))?;
        copy_files(&places::plugins()?, &stage.checks().join("plugins"))?;
        Ok(stage)
    }

    /// A checkout with everything built in `target/`.
    ///
    /// # Errors
    /// If anything of it is not built.
    pub fn checkout() -> Result<Self> {
        let stage = Self::new()?;
        for entry in fs::read_dir(places::checkout())? {
            let entry = entry?;
            if entry.file_name() != "target" {
                symlink(entry.path().canonicalize()?, stage.folder().join(entry.file_name()))?;
            }
        }
        let target = stage.folder().join("target");
        copy_files(&places::plugins()?, &target.join("plugins"))?;
        copy_files(&places::plugins()?, &stage.checks().join("plugins"))?;
        fs::create_dir(target.join("release"))?;
        symlink(places::outhaul()?, target.join("release/outhaul"))?;
        Ok(stage)
    }

    fn new() -> Result<Self> {
        let root = TempDir::with_prefix("outhaul-docs-").context("no temporary folder")?;
        for name in ["bin", "work", "checks"] {
            fs::create_dir(root.path().join(name))?;
        }
        symlink(places::outhaul()?, root.path().join("bin/outhaul"))?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([root.path().join("bin")].into_iter().chain(std::env::split_paths(&path)))?;
        // What components are compiled to is kept from run to run; what crates of adapters need is shared with the example in Rust.
        let (cache, build) = (places::target()?.join("pages/cache"), examples::home()?.join("src/http-rust/target"));
        let environment = [
            ("PATH", path.as_os_str()),
            ("XDG_CACHE_HOME", cache.as_os_str()),
            ("CARGO_BUILD_BUILD_DIR", build.as_os_str()),
            ("NO_COLOR", OsStr::new("1")),
        ];
        let text = |value: &OsStr| value.to_str().map(str::to_owned).context("the environment is not UTF-8");
        let environment = environment.into_iter().map(|(name, value)| Ok((name.to_owned(), text(value)?))).collect::<Result<_>>()?;
        Ok(Self {
            root,
            environment,
            stand_ins: Vec::new(),
            addresses: BTreeMap::new(),
            settings: toml::Table::new(),
            sql: None,
            kept: Vec::new(),
        })
    }

    /// With something else in place of a text of the page, in commands, files and what they print.
    #[must_use]
    pub fn standing_in(mut self, for_text: &str, what: &str) -> Self {
        self.stand_ins.push((for_text.to_owned(), what.to_owned()));
        self
    }

    /// With a program of its own, a script for sh, in place of one of the machine.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn with_program(self, name: &str, script: &str) -> Result<Self> {
        let file = self.root.path().join("bin").join(name);
        put(&file, format!("#!/bin/sh\n{script}\n").as_bytes())?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).with_context(|| format!("cannot change {}", file.display()))?;
        Ok(self)
    }

    /// With something that must go on for as long as the page is run.
    #[must_use]
    pub fn keeping(mut self, what: impl Any) -> Self {
        self.kept.push(Box::new(what));
        self
    }

    /// With a variable in the environment.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a file, for what is run and for what is checked.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn with_file(self, name: &str, content: impl AsRef<[u8]>) -> Result<Self> {
        for folder in [self.folder(), self.checks()] {
            put(&folder.join(name), content.as_ref())?;
        }
        Ok(self)
    }

    /// With the configuration of which the page shows parts.
    ///
    /// # Errors
    /// If it is not TOML.
    pub fn with_settings(mut self, text: &str) -> Result<Self> {
        self.settings = text.parse().context("the settings of the stage are not TOML")?;
        Ok(self)
    }

    /// With a database for the SQL of the page.
    #[must_use]
    pub fn with_sql(mut self, run: impl Fn(&str) -> Result<()> + 'static) -> Self {
        self.sql = Some(Box::new(run));
        self
    }

    /// Runs SQL of the page, if there is a database; tells whether there is.
    ///
    /// # Errors
    /// If the database refuses it.
    pub fn run_sql(&mut self, text: &str) -> Result<bool> {
        let text = self.here(text)?;
        let Some(run) = &self.sql else { return Ok(false) };
        run(&text).context("the database refuses it")?;
        Ok(true)
    }

    /// Where the commands of the page begin.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.root.path().join("work")
    }

    /// Where configuration is checked: apart, so that nothing is in the way of the commands.
    #[must_use]
    pub fn checks(&self) -> PathBuf {
        self.root.path().join("checks")
    }

    /// A terminal in a folder.
    #[must_use]
    pub fn setting<'a>(&'a self, folder: &'a Path) -> Setting<'a> {
        (folder, &self.environment)
    }

    /// What configuration that is shown in parts is a part of.
    #[must_use]
    pub fn settings(&self) -> &toml::Table {
        &self.settings
    }

    /// Writes a file of the page.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, folder: &Path, name: &str, text: &str) -> Result<()> {
        let text = self.here(text)?;
        put(&folder.join(name), text.as_bytes())
    }

    /// A text of the page with what stands in for parts of it.
    ///
    /// # Errors
    /// If there is no free port.
    pub fn here(&mut self, text: &str) -> Result<String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(LOCAL) {
            let (before, found) = rest.split_at(at);
            let ports = &found[LOCAL.len()..];
            let digits = ports.len() - ports.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (address, after) = found.split_at(LOCAL.len() + digits);
            out.push_str(before);
            out.push_str(&self.address(address)?);
            rest = after;
        }
        out.push_str(rest);
        for (from, to) in &self.stand_ins {
            out = out.replace(from, to);
        }
        Ok(out)
    }

    fn address(&mut self, of_page: &str) -> Result<String> {
        // Of these, the system chooses anyway.
        if of_page == LOCAL || of_page.ends_with(":0") {
            return Ok(of_page.to_owned());
        }
        if let Some(known) = self.addresses.get(of_page) {
            return Ok(known.clone());
        }
        // Free at this moment, and not given out again soon.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr()).context("no free port")?;
        self.addresses.insert(of_page.to_owned(), free.to_string());
        Ok(free.to_string())
    }
}

fn put(file: &Path, content: &[u8]) -> Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(file, content).with_context(|| format!("cannot write {}", file.display()))
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_stand_ins_are_the_same_everywhere() {
        let mut stage = Stage::new().unwrap().standing_in("db.example", "127.0.0.1:1");
        let text = stage.here("http://127.0.0.1:8080/x 127.0.0.1:8081, 127.0.0.1:0, 127.0.0.1: db.example").unwrap();
        let [first, second] = ["127.0.0.1:8080", "127.0.0.1:8081"].map(|address| stage.addresses[address].clone());
        assert_ne!(first, second);
        assert!(text.starts_with(&format!("http://{first}/x {second}, 127.0.0.1:0, 127.0.0.1: 127.0.0.1:1")), "{text}");
        assert_eq!(stage.here("127.0.0.1:8080").unwrap(), first);
    }
}
