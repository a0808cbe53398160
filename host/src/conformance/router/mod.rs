//! What the contract demands of a router. Who subscribes is its own affair: the kit asks about an event that somebody wants, and one
//! that nobody wants, as far as it is told of such.
//!
//! [`stage`] has what a clause works on; the clauses are in two groups: [`answers`] and [`config`] (opening).

mod answers;
mod config;
mod stage;

use super::clause::{Clause, Stages, Stop};
use super::setup::SetupError;
use super::subject::RouterSubject;
use stage::{Event, Stage};
use std::sync::Arc;

/// Every clause for routers.
pub(crate) fn clauses() -> Vec<&'static Clause<Stage>> {
    [answers::CLAUSES, config::CLAUSES].into_iter().flatten().collect()
}

/// Sets a stage for each clause: the router, to be opened afresh.
pub(crate) struct Theatre {
    pub(crate) subject: Arc<RouterSubject>,
    event: Option<Event>,
    unwanted: Option<Event>,
}

impl Theatre {
    /// Opens the router once, so that what is wrong with its settings is told as that.
    ///
    /// # Errors
    /// If it does not open, or an event is not written as one.
    pub(crate) async fn new(subject: RouterSubject, event: Option<String>, unwanted: Option<String>) -> Result<Self, SetupError> {
        let read = |given: Option<String>, beside: Option<&str>, option: &str| {
            let text = given.or_else(|| beside.map(str::to_owned));
            text.map(|text| Event::read(&text).ok_or_else(|| SetupError::Refused(vec![format!("{option} {text:?}: write TENANT/TOPIC")])))
                .transpose()
        };
        let (event_beside, unwanted_beside) = subject.setup.beside.events();
        let event = read(event, event_beside, "--event")?;
        let unwanted = read(unwanted, unwanted_beside, "--unwanted")?;
        subject.open_as(subject.setup.settings().clone()).await?;
        Ok(Self { subject: Arc::new(subject), event, unwanted })
    }
}

impl Stages for Theatre {
    type Stage = Stage;

    async fn set(&self) -> Result<Stage, Stop> {
        Ok(Stage { subject: Arc::clone(&self.subject), event: self.event.clone(), unwanted: self.unwanted.clone() })
    }

    fn at_once(&self) -> usize {
        4
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
        assert!(clauses.iter().all(|clause| clause.id.starts_with("router.") && !clause.demands.is_empty()));
    }
}
