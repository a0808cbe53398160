//! The clauses for storages, and the stages that they are looked at on.

mod claim;
mod insert;
mod place;
#[expect(dead_code, reason = "for the clauses that come next")]
mod stage;

use super::clause::{Clause, Stages, Stop};
use super::setup::SetupError;
use super::subject::StorageSubject;
use place::Places;
use stage::Stage;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Every clause, in the order in which they are run and told.
pub(crate) fn clauses() -> Vec<&'static Clause<Stage>> {
    [claim::CLAUSES].into_iter().flatten().collect()
}

/// Sets stages for clauses.
pub(crate) struct Theatre {
    pub(crate) subject: Arc<StorageSubject>,
    places: Places,
    insert_command: Option<String>,
    number: AtomicU64,
}

impl Theatre {
    /// Opens the storage once, so that what is wrong with its configuration is told as that.
    ///
    /// # Errors
    /// If it does not open, or its database cannot be used.
    pub(crate) async fn new(subject: StorageSubject, insert_command: Option<String>) -> Result<Self, SetupError> {
        let insert_command = insert_command.or_else(|| subject.setup.defaults.insert_command.clone());
        let places = Places::new(subject.setup.database.as_deref(), &subject).await?;
        Ok(Self { subject: Arc::new(subject), places, insert_command, number: AtomicU64::new(0) })
    }

    /// Leaves everything as it was found.
    ///
    /// # Errors
    /// If that fails.
    pub(crate) async fn clear(&self) -> Result<(), Stop> {
        self.places.clear(&self.subject).await
    }
}

impl Stages for Theatre {
    type Stage = Stage;

    async fn set(&self) -> Result<Stage, Stop> {
        let place = self.places.set(&self.subject).await?;
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        Stage::set(Arc::clone(&self.subject), self.insert_command.clone(), number, place).await
    }

    fn at_once(&self) -> usize {
        self.places.at_once()
    }
}
