//! The conformance kit: the contract of `wit/`, looked at clause by clause in a component that nobody trusts.
//!
//! [`setup`] reads what is said of the component, and [`beside`] what a file beside it says, as far as that is trusted; [`shell`] runs the
//! commands that they name. [`subject`] compiles it and opens it as a host does, [`clause`] is a clause and how clauses are run,
//! [`report`] is what came of them. The clauses themselves are in [`storage`], in [`publisher`], which looks at a publisher from its
//! [`destination`], and in [`router`].

mod beside;
mod clause;
mod destination;
mod publisher;
pub(crate) mod report;
mod router;
pub(crate) mod setup;
mod shell;
mod stall;
pub(crate) mod storage;
pub(crate) mod subject;

use clause::Clause;
use report::{Entry, Report};
use setup::{Setup, SetupError};
use storage::Theatre;
use subject::Subject;

/// A clause, for a list.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub(crate) struct Listed {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) demands: &'static str,
}

fn listed<S>(clause: &Clause<S>) -> Listed {
    Listed { id: clause.id, title: clause.title, demands: clause.demands }
}

/// Every clause that there is.
pub(crate) fn clauses() -> Vec<Listed> {
    let storages = storage::clauses().into_iter().map(listed);
    let publishers = publisher::clauses().into_iter().map(listed);
    storages.chain(publishers).chain(router::clauses().into_iter().map(listed)).collect()
}

/// Why nothing was tested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TestError {
    /// The component cannot be set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// No clause has such an id.
    #[error("--clause {0}: there is no such clause for a {1}; `outhaul plugin test --list` shows all")]
    NoSuchClause(String, &'static str),
    /// The clause is another kind's.
    #[error(
        "--clause {id}: the component is a {is}, and this clause is one of a {of}: name clauses that begin with `{is}.`, or test a {of}"
    )]
    OtherKind {
        /// The clause.
        id: String,
        /// What the component is.
        is: &'static str,
        /// What has such a clause.
        of: &'static str,
    },
    /// The database that was named is not as it was found.
    #[error("the database could not be emptied at the end: {0}")]
    NotCleared(String),
}

/// What the kit is given besides, where it cannot know it: programs, each a line for `sh`, and events, each `TENANT/TOPIC`.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// For a storage that cannot insert: inserts messages.
    pub(crate) insert: Option<String>,
    /// For a publisher of another protocol than HTTP: a destination.
    pub(crate) destination: Option<String>,
    /// For a router: an event that somebody wants.
    pub(crate) event: Option<String>,
    /// For a router: an event that nobody wants.
    pub(crate) unwanted: Option<String>,
}

/// Runs the clauses for what the component is, or those of them that are named; `tell` is called with what came of each, and with how many
/// there are.
///
/// # Errors
/// If nothing could be tested, or the database could not be cleared.
pub(crate) async fn test(setup: Setup, given: Given, only: &[String], tell: impl FnMut(&Entry, usize)) -> Result<Report, TestError> {
    match Subject::load(setup).await? {
        Subject::Storage(subject) => {
            let clauses = chosen(storage::clauses(), only, "storage")?;
            let theatre = Theatre::new(subject, given.insert).await?;
            let entries = run(&theatre, clauses, tell).await;
            if let Err(stop) = theatre.clear().await {
                return Err(TestError::NotCleared(stop.to_string()));
            }
            Ok(Report::of(&theatre.subject.setup, entries))
        }
        Subject::Publisher(subject) => {
            let clauses = chosen(publisher::clauses(), only, "publisher")?;
            let theatre = publisher::Theatre::new(subject, given.destination).await?;
            let entries = run(&theatre, clauses, tell).await;
            Ok(Report::of(&theatre.subject.setup, entries))
        }
        Subject::Router(subject) => {
            let clauses = chosen(router::clauses(), only, "router")?;
            let theatre = router::Theatre::new(subject, given.event, given.unwanted).await?;
            let entries = run(&theatre, clauses, tell).await;
            Ok(Report::of(&theatre.subject.setup, entries))
        }
    }
}

async fn run<S: clause::Stages>(stages: &S, clauses: Vec<&Clause<S::Stage>>, mut tell: impl FnMut(&Entry, usize)) -> Vec<Entry> {
    let count = clauses.len();
    clause::run(stages, clauses, |entry| tell(entry, count)).await
}

/// The clauses that are named; all, if none is.
fn chosen<'a, S>(clauses: Vec<&'a Clause<S>>, only: &[String], kind: &'static str) -> Result<Vec<&'a Clause<S>>, TestError> {
    if let Some(unknown) = only.iter().find(|id| !clauses.iter().any(|clause| clause.id == **id)) {
        let known = self::clauses().into_iter().find(|clause| clause.id == unknown);
        return Err(match known.and_then(|clause| clause.id.split_once('.')) {
            Some((of, _)) => TestError::OtherKind { id: unknown.clone(), is: kind, of },
            None => TestError::NoSuchClause(unknown.clone(), kind),
        });
    }
    Ok(clauses.into_iter().filter(|clause| only.is_empty() || only.iter().any(|id| id == clause.id)).collect())
}
