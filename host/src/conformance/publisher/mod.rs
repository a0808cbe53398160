//! What the contract demands of a publisher, looked at from its destination: what it says of messages, and what arrived.
//!
//! [`stage`] has what a clause works on; the clauses are in groups: [`batches`] (outcomes and order), [`answers`] (what answers mean),
//! [`trouble`] (no answers), [`content`] (what arrives), [`config`] (opening) and [`whole`] (many messages, attempts, instances).

mod answers;
mod batches;
mod config;
mod content;
mod stage;
mod trouble;
mod whole;

use super::clause::{Clause, Stages, Stop};
use super::destination::command::CommandDestination;
use super::destination::http::HttpDestination;
use super::destination::{Destination, DestinationError, PLACEHOLDER};
use super::setup::SetupError;
use super::shell::ShellCommand;
use super::subject::PublisherSubject;
use stage::Stage;
use std::sync::Arc;

/// Every clause for publishers.
pub(crate) fn clauses() -> Vec<&'static Clause<Stage>> {
    [batches::CLAUSES, answers::CLAUSES, trouble::CLAUSES, content::CLAUSES, config::CLAUSES, whole::CLAUSES]
        .into_iter()
        .flatten()
        .collect()
}

/// Sets a stage for each clause: a destination of its own, on which nothing has arrived.
pub(crate) struct Theatre {
    pub(crate) subject: Arc<PublisherSubject>,
    /// None: HTTP.
    command: Option<ShellCommand>,
    /// Tells messages of this run from those of others.
    run: u32,
}

impl Theatre {
    /// With a destination that is a command, or else HTTP. Opens the publisher once, so that what is wrong with its settings is told as
    /// that.
    ///
    /// # Errors
    /// If the settings do not say where the destination is, it cannot be had, or the publisher does not open.
    pub(crate) async fn new(subject: PublisherSubject, command: Option<String>) -> Result<Self, SetupError> {
        let command = subject.setup.beside.destination_command(command)?;
        if !subject.setup.settings().to_string().contains(PLACEHOLDER) {
            let text = format!(
                "the settings do not say where the destination is: write {PLACEHOLDER} for it, as in --set 'url = \"{PLACEHOLDER}/\"', or in \
                 a conformance.toml beside the component"
            );
            return Err(SetupError::Refused(vec![text]));
        }
        let theatre = Self { subject: Arc::new(subject), command, run: rand::random() };
        let destination = theatre.destination().await.map_err(|error| SetupError::Refused(vec![error.to_string()]))?;
        Stage::new(Arc::clone(&theatre.subject), destination, theatre.run).set_up().await?;
        Ok(theatre)
    }

    async fn destination(&self) -> Result<Box<dyn Destination>, DestinationError> {
        Ok(match &self.command {
            Some(command) => Box::new(CommandDestination::start(command).await?),
            None => Box::new(HttpDestination::start().await?),
        })
    }
}

impl Stages for Theatre {
    type Stage = Stage;

    async fn set(&self) -> Result<Stage, Stop> {
        let destination = self.destination().await.map_err(|error| Stop::failed("a destination", error.to_string()))?;
        Ok(Stage::new(Arc::clone(&self.subject), destination, self.run))
    }

    fn at_once(&self) -> usize {
        // Most of them wait for an answer that does not come.
        4
    }
}
