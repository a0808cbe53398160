//! Kafka's own programs, and sources that use its libraries.

use super::VERSION;
use crate::download;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Quick to start rather than quick in the long run; and small.
const SMALL: [&str; 4] = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"];

/// Where Kafka's libraries are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JavaTools {
    libraries: PathBuf,
}

impl JavaTools {
    /// Kafka of [`VERSION`], fetched if it is not there yet.
    ///
    /// # Errors
    /// If there is no Java 17 or later, or Kafka cannot be fetched: what to install.
    pub fn get() -> Result<Self> {
        match Command::new("java").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
            Ok(status) if status.success() => {}
            _ => bail!("Kafka needs Java 17 or later (Debian: apt-get install default-jdk-headless; macOS: brew install openjdk)"),
        }
        let kafka = "org.apache.kafka";
        // slf4j 2 does not find Kafka's loggers.
        let artifacts = [(kafka, "kafka_2.13", VERSION), (kafka, "kafka-tools", VERSION), ("org.slf4j", "slf4j-simple", "1.7.36")];
        Ok(Self { libraries: download::jars(&format!("kafka-{VERSION}"), &artifacts)? })
    }

    /// A command for a class of these libraries, or for a source file (`File.java`), which `java` compiles in memory.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("java");
        command.args(SMALL).arg("-Xmx256m").arg("-cp").arg(self.class_path()).arg(program);
        command
    }

    /// Runs one to its end; returns what it printed.
    ///
    /// # Errors
    /// If it fails: with what it said.
    pub fn run<A: AsRef<OsStr>>(&self, program: impl AsRef<OsStr>, arguments: impl IntoIterator<Item = A>) -> Result<String> {
        let mut command = self.command(&program);
        let output = command.args(arguments).stdin(Stdio::null()).output().context("cannot run java")?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{} failed ({}): {printed}{said}", Path::new(program.as_ref()).display(), output.status);
        }
        Ok(printed)
    }

    /// Everything in the folder.
    #[must_use]
    pub fn class_path(&self) -> String {
        format!("{}/*", self.libraries.display())
    }

    /// The arguments of `java` for a broker.
    pub(super) fn broker(&self, heap: u32, configuration: &Path) -> Vec<String> {
        let own = [format!("-Xmx{heap}m"), "-cp".into(), self.class_path(), "kafka.Kafka".into(), configuration.display().to_string()];
        // Warnings tell why a broker does not start.
        SMALL[..3].iter().map(ToString::to_string).chain(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn".into()]).chain(own).collect()
    }
}
