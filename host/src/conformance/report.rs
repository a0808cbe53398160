//! What came of each clause.

use super::setup::Setup;
use serde::Serialize;
use std::path::PathBuf;

/// What came of a clause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// It holds.
    Passed,
    /// It does not.
    Failed {
        /// What should have been.
        expected: String,
        /// What was seen instead.
        seen: String,
    },
    /// It does not apply, or cannot be looked at.
    Skipped {
        /// Why.
        why: String,
    },
}

/// One clause in the report.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Entry {
    /// Stable, as in `storage.order-in-batch`.
    pub(crate) id: &'static str,
    /// A sentence.
    pub(crate) title: &'static str,
    /// What came of it.
    #[serde(flatten)]
    pub(crate) verdict: Verdict,
    /// How long it took, in milliseconds.
    pub(crate) ms: u64,
}

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    component: PathBuf,
    sha256: String,
    kind: &'static str,
    name: Option<String>,
    version: Option<String>,
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    pub(crate) clauses: Vec<Entry>,
}

impl Report {
    /// Of what was found of a component.
    pub(crate) fn of(setup: &Setup, clauses: Vec<Entry>) -> Self {
        let count = |matches: fn(&Verdict) -> bool| clauses.iter().filter(|entry| matches(&entry.verdict)).count();
        Self {
            component: setup.inspection.file.clone(),
            sha256: setup.inspection.sha256.clone(),
            kind: setup.kind.as_str(),
            name: setup.inspection.name.clone(),
            version: setup.inspection.version.clone(),
            passed: count(|verdict| *verdict == Verdict::Passed),
            failed: count(|verdict| matches!(verdict, Verdict::Failed { .. })),
            skipped: count(|verdict| matches!(verdict, Verdict::Skipped { .. })),
            clauses,
        }
    }
}

impl Verdict {
    /// The word for it.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed { .. } => "FAILED",
            Self::Skipped { .. } => "skipped",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_one_flat_object() {
        let failed = Verdict::Failed { expected: "1 row".to_owned(), seen: "2 rows".to_owned() };
        let entry = Entry { id: "storage.limit", title: "t", verdict: failed, ms: 7 };
        let expected =
            serde_json::json!({ "id": "storage.limit", "title": "t", "verdict": "failed", "expected": "1 row", "seen": "2 rows", "ms": 7 });
        assert_eq!(serde_json::to_value(entry).unwrap(), expected);
    }
}
