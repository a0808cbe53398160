//! A program beside the kit: a line for `sh`, and where it is run.

use std::path::PathBuf;
use tokio::process::Command;

/// A line for `sh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShellCommand {
    /// The line.
    pub(crate) line: String,
    /// The folder that its relative paths start from; none: the current one.
    pub(crate) folder: Option<PathBuf>,
}

impl ShellCommand {
    /// The process to be, which ends with the kit.
    pub(crate) fn start(&self) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.line).kill_on_drop(true);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
    }
}

impl From<&str> for ShellCommand {
    fn from(line: &str) -> Self {
        Self { line: line.to_owned(), folder: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_run_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("here"), "").unwrap();
        let command = ShellCommand { line: "test -f ./here".to_owned(), folder: Some(folder.path().to_owned()) };
        assert!(command.start().status().await.unwrap().success());
        assert!(!ShellCommand::from("test -f ./here").start().status().await.unwrap().success());
    }
}
