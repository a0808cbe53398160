//! How a command ends when it does not end well: one text on stderr, and an exit code that says whether trying again can help.

use super::output;
use crate::app::AppError;
use crate::config::ConfigError;
use crate::domain::{Failure, FailureCode};
use crate::plugin::PluginError;
use std::io;
use std::process::ExitCode;

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub(crate) struct CommandError {
    code: u8,
    /// None: there is nothing to say (the reader of our output has gone).
    error: Option<anyhow::Error>,
    /// Whether stdout has the one document of --json already.
    has_document: bool,
}

impl CommandError {
    /// A failure at run time: exit code 1.
    pub(crate) fn failure(error: impl Into<anyhow::Error>) -> Self {
        Self { code: 1, error: Some(error.into()), has_document: false }
    }

    /// Wrong usage or configuration: exit code 2.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { code: 2, error: Some(error.into()), has_document: false }
    }

    /// Exit code `code` after an output that has said everything.
    pub(crate) fn said(code: u8) -> Self {
        Self { code, error: None, has_document: true }
    }

    /// Writing the output failed. A reader that has gone (`outhaul dead list | head`) is not an error.
    pub(crate) fn output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::said(0),
            _ => Self::failure(anyhow::Error::new(error).context("cannot write the output")),
        }
    }

    /// A list was not to be had. Where it was to go on behind `after`, the storage may not know that for the end of a list.
    pub(crate) fn not_listed(after: Option<&str>, failure: Failure, other: impl FnOnce(Failure) -> Self) -> Self {
        match after {
            Some(after) if failure.code == FailureCode::InvalidMessage => Self::usage(anyhow::anyhow!(
                "--after {after:?} is not where an earlier list ended: pass what that printed as the next page"
            )),
            _ => other(failure),
        }
    }

    /// The same, after an output that is the document of --json already.
    pub(crate) fn after_document(self) -> Self {
        Self { has_document: true, ..self }
    }

    /// Its exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// What is told to a person; empty where there is nothing to say.
    pub(crate) fn text(&self) -> String {
        self.error.as_ref().map(text).unwrap_or_default()
    }

    /// Says it once to a person and, with `json`, to a program, and hands over the exit code.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        if self.error.is_some() {
            let _ = output_error(&self.text());
            if json && !self.has_document {
                // A reader that has gone cannot be told that it has.
                let _ = output::json(&serde_json::json!({ "error": self.text(), "exit_code": self.code }));
            }
        }
        ExitCode::from(self.code)
    }
}

/// Where stderr is gone too, nobody is left to be told.
fn output_error(text: &str) -> io::Result<()> {
    use std::io::Write;
    writeln!(io::stderr().lock(), "error: {text}")
}

/// An error and its causes in one line; a cause that the text before it names already is left out.
fn text(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

impl From<AppError> for CommandError {
    fn from(error: AppError) -> Self {
        if error.is_configuration() { Self::usage(error) } else { Self::failure(error) }
    }
}

impl From<PluginError> for CommandError {
    fn from(error: PluginError) -> Self {
        if error.is_transient() { Self::failure(error) } else { Self::usage(error) }
    }
}

impl From<ConfigError> for CommandError {
    fn from(error: ConfigError) -> Self {
        Self::usage(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let error = anyhow::Error::msg("no such file").context("cannot read x").context("cannot read x: no such file");
        assert_eq!(text(&error), "cannot read x: no such file");
        let error = anyhow::Error::msg("no such file").context("cannot read x");
        assert_eq!(text(&error), "cannot read x: no such file");
    }
}
