//! What a command has to say: to a person, or to a program as one JSON document; and how it ends.

use crate::cli::error::CommandError;
use crate::cli::{CommandResult, output};
use serde_json::Value;

/// See the module.
#[derive(Debug)]
pub(super) struct Report {
    /// To a person.
    pub(super) text: String,
    /// To a program.
    pub(super) document: Value,
    /// What went wrong although there is something to say.
    pub(super) fault: Option<CommandError>,
}

impl Report {
    /// All is well.
    pub(super) fn new(text: impl Into<String>, document: Value) -> Self {
        Self { text: text.into(), document, fault: None }
    }

    /// Says it.
    pub(super) fn end(self, json: bool) -> CommandResult {
        match json {
            true => output::json(&self.document)?,
            false if self.text.is_empty() => {}
            false => output::line(&self.text)?,
        }
        match self.fault {
            Some(fault) if json => Err(fault.after_document()),
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }
}
