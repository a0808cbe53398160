//! `conformance.toml` beside a component: what need not be said each time.
//!
//! Whoever brought the component may have brought this file. Its settings reach no further than the component does; what reaches
//! further, commands that are run on this machine and hosts that are granted, counts only if the operator trusts it.

use super::setup::{SetupError, text};
use super::shell::ShellCommand;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use toml::Table;

/// The name of the file.
const BESIDE: &str = "conformance.toml";

/// What the file says, and whether it is trusted.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    folder: PathBuf,
    is_trusted: bool,
    test: Defaults,
}

/// What may stand in it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    test: Defaults,
}

/// `[test]`: for the options of the same names.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Defaults {
    /// The adapter's own settings.
    #[serde(default)]
    config: Table,
    #[serde(default)]
    allow_hosts: Vec<String>,
    insert_command: Option<String>,
    destination_command: Option<String>,
    event: Option<String>,
    unwanted: Option<String>,
}

impl Beside {
    /// Reads it, if it is there.
    ///
    /// # Errors
    /// If it cannot be read, or has something else in it.
    pub(crate) fn read(folder: &Path, is_trusted: bool) -> Result<Self, SetupError> {
        let file = folder.join(BESIDE);
        let test = match text(&file)? {
            Some(text) => {
                let read: Result<File, _> = toml::from_str(&text);
                read.map_err(|error| SetupError::File { file, reason: error.message().to_owned() })?.test
            }
            None => Defaults::default(),
        };
        Ok(Self { folder: folder.to_owned(), is_trusted, test })
    }

    /// The adapter's own settings.
    pub(crate) fn config(&self) -> Table {
        self.test.config.clone()
    }

    /// The hosts that are granted.
    ///
    /// # Errors
    /// If there are some, and the file is not trusted.
    pub(crate) fn allow_hosts(&self) -> Result<Vec<String>, SetupError> {
        let hosts = &self.test.allow_hosts;
        if !hosts.is_empty() && !self.is_trusted {
            return Err(self.untrusted(format!("that the component may reach {}", hosts.join(", ")), "--allow-host"));
        }
        Ok(hosts.clone())
    }

    /// The command that fills a storage: the one that was given, or else the one of the file.
    ///
    /// # Errors
    /// If that would be run, and the file is not trusted.
    pub(crate) fn insert_command(&self, given: Option<String>) -> Result<Option<ShellCommand>, SetupError> {
        self.command(given, self.test.insert_command.as_ref(), "--insert-command")
    }

    /// The command that is a publisher's destination, in the same way.
    ///
    /// # Errors
    /// If that would be run, and the file is not trusted.
    pub(crate) fn destination_command(&self, given: Option<String>) -> Result<Option<ShellCommand>, SetupError> {
        self.command(given, self.test.destination_command.as_ref(), "--destination-command")
    }

    /// For a router: an event that somebody wants, and one that nobody wants.
    pub(crate) fn events(&self) -> (Option<&str>, Option<&str>) {
        (self.test.event.as_deref(), self.test.unwanted.as_deref())
    }

    fn command(&self, given: Option<String>, own: Option<&String>, option: &'static str) -> Result<Option<ShellCommand>, SetupError> {
        match (given, own) {
            (Some(line), _) => Ok(Some(ShellCommand { line, folder: None })),
            (None, None) => Ok(None),
            // Its relative paths are those of the file that it stands in.
            (None, Some(line)) if self.is_trusted => Ok(Some(ShellCommand { line: line.clone(), folder: Some(self.folder.clone()) })),
            (None, Some(line)) => Err(self.untrusted(format!("for the command {line:?} to be run on this machine"), option)),
        }
    }

    fn untrusted(&self, what: String, option: &'static str) -> SetupError {
        SetupError::Untrusted { file: self.folder.join(BESIDE), what, option }
    }

    /// What the file is trusted with, for people; none: with nothing.
    pub(crate) fn trusted(&self) -> Option<String> {
        let Defaults { config: _, allow_hosts, insert_command, destination_command, event: _, unwanted: _ } = &self.test;
        let commands = [insert_command, destination_command].into_iter().flatten().map(|line| format!("runs {line:?}"));
        let hosts = (!allow_hosts.is_empty()).then(|| format!("lets the component reach {}", allow_hosts.join(", ")));
        let told: Vec<String> = commands.chain(hosts).collect();
        let file = self.folder.join(BESIDE);
        (self.is_trusted && !told.is_empty()).then(|| format!("{}, which is trusted: {}", file.display(), told.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(is_trusted: bool) -> (tempfile::TempDir, Beside) {
        let folder = tempfile::tempdir().unwrap();
        let text = "[test]\nallow_hosts = [\"10.0.0.1:80\"]\ninsert_command = \"./insert\"\nconfig = { a = 1 }\n";
        std::fs::write(folder.path().join(BESIDE), text).unwrap();
        let read = Beside::read(folder.path(), is_trusted).unwrap();
        (folder, read)
    }

    #[test]
    fn without_trust_it_has_settings_and_nothing_else() {
        let (_folder, beside) = beside(false);
        assert_eq!(beside.config(), toml::from_str("a = 1").unwrap());
        let (hosts, command) = (beside.allow_hosts().unwrap_err().to_string(), beside.insert_command(None).unwrap_err().to_string());
        assert!(hosts.contains("10.0.0.1:80") && hosts.contains("--trust-beside"), "{hosts}");
        assert!(command.contains("\"./insert\"") && command.contains("--trust-beside"), "{command}");
        assert_eq!(beside.insert_command(Some("mine".to_owned())).unwrap(), Some("mine".into()));
        assert_eq!((beside.destination_command(None).unwrap(), beside.trusted()), (None, None));
    }

    #[test]
    fn with_trust_its_commands_are_run_where_it_is() {
        let (folder, beside) = beside(true);
        let there = ShellCommand { line: "./insert".to_owned(), folder: Some(folder.path().to_owned()) };
        assert_eq!(beside.insert_command(None).unwrap(), Some(there));
        assert_eq!(beside.allow_hosts().unwrap(), ["10.0.0.1:80"]);
        let told = beside.trusted().unwrap();
        assert!(told.ends_with("conformance.toml, which is trusted: runs \"./insert\"; lets the component reach 10.0.0.1:80"), "{told}");
    }
}
