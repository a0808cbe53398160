//! The clauses for storages, and the stages that they are looked at on.

mod admin;
mod browse;
mod claim;
mod content;
mod insert;
mod late;
mod lease;
mod order;
mod place;
mod race;
mod settle;
mod stage;
mod stats;

use super::clause::{Clause, Stages, Stop};
use super::setup::SetupError;
use super::shell::ShellCommand;
use super::subject::StorageSubject;
use crate::domain::Batch;
use crate::plugin::Skew;
use place::Places;
use stage::Stage;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Every clause, in the order in which they are run and told.
pub(crate) fn clauses() -> Vec<&'static Clause<Stage>> {
    let groups = [
        claim::CLAUSES,
        content::CLAUSES,
        lease::CLAUSES,
        settle::CLAUSES,
        late::CLAUSES,
        order::CLAUSES,
        race::CLAUSES,
        stats::CLAUSES,
        admin::CLAUSES,
        browse::CLAUSES,
    ];
    groups.into_iter().flatten().collect()
}

/// Sets stages for clauses.
pub(crate) struct Theatre {
    pub(crate) subject: Arc<StorageSubject>,
    places: Places,
    insert_command: Option<ShellCommand>,
    number: AtomicU64,
}

impl Theatre {
    /// Opens the storage once, so that what is wrong with its configuration is told as that.
    ///
    /// # Errors
    /// If it does not open, or its database cannot be used.
    pub(crate) async fn new(subject: StorageSubject, insert_command: Option<String>) -> Result<Self, SetupError> {
        let insert_command = subject.setup.beside.insert_command(insert_command)?;
        let places = Places::new(subject.setup.database.as_deref(), &subject).await?;
        rehearse(&subject, &places, insert_command.as_ref()).await?;
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

/// Opens the storage on a database of its own, and nothing else. One that nothing can be put into cannot be tested.
async fn rehearse(subject: &StorageSubject, places: &Places, insert_command: Option<&ShellCommand>) -> Result<(), SetupError> {
    let refused = |stop: Stop| SetupError::Refused(vec![stop.to_string()]);
    let place = places.set(subject).await.map_err(refused)?;
    if let Some(command) = insert_command {
        insert::by_command(command, &place.url, &Batch::default()).await.map_err(refused)?;
    }
    let open = subject.open(&place.url, &[("clause", "0")], Skew::None).await?;
    if insert_command.is_none() && !open.plugin.has_admin() {
        let text = "the storage does not export storage-admin, so the kit cannot fill its table: name a command that does, with \
                    --insert-command (see `outhaul plugin test --help`)";
        return Err(SetupError::Refused(vec![text.to_owned()]));
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_clause_has_a_name_of_its_own_and_says_what_it_demands() {
        let clauses = clauses();
        let ids: BTreeSet<&str> = clauses.iter().map(|clause| clause.id).collect();
        assert_eq!(ids.len(), clauses.len());
        assert!(clauses.iter().all(|clause| clause.id.starts_with("storage.") && !clause.demands.is_empty()));
    }
}
