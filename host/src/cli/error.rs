//! How a command ends when it does not end well: one text on stderr, and an exit code that says whether trying again can help.

use crate::app::AppError;
use crate::config::ConfigError;
use std::io;
use std::process::ExitCode;

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub(crate) struct CommandError {
    code: u8,
    /// None: there is nothing to say (the reader of our output has gone).
    error: Option<anyhow::Error>,
}

impl CommandError {
    /// A failure at run time: exit code 1.
    pub(crate) fn failure(error: impl Into<anyhow::Error>) -> Self {
        Self { code: 1, error: Some(error.into()) }
    }

    /// Wrong usage or configuration: exit code 2.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { code: 2, error: Some(error.into()) }
    }

    /// Exit code `code` after an output that has said everything.
    pub(crate) fn said(code: u8) -> Self {
        Self { code, error: None }
    }

    /// Writing the output failed. A reader that has gone (`outhaul dead list | head`) is not an error.
    pub(crate) fn output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::said(0),
            _ => Self::failure(anyhow::Error::new(error).context("cannot write the output")),
        }
    }

    /// Says it once, and hands over the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if let Some(error) = &self.error {
            let _ = output_error(&text(error));
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
