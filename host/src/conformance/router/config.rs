//! Opening: wrong settings are told with their key, before an event waits for them.

use super::stage::Stage;
use crate::conformance::clause::{Checked, Clause, Stop, expect};
use crate::domain::{Failure, FailureCode};
use toml::{Table, Value};

/// A key that no adapter has.
const UNKNOWN: &str = "kit_unknown_key";

pub(super) const CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "router.unknown-key",
        title: "an unknown setting is refused by name",
        demands: "Code invalid-configuration, and the key in the text: a misspelt key that is passed over is a setting that does nothing.",
        timed: false,
        check: |stage| Box::pin(unknown_key(stage)),
    },
    Clause {
        id: "router.wrong-type",
        title: "a setting of the wrong type is refused by name",
        demands: "For each key of the settings, a table in the place of another value: code invalid-configuration, and the key in the text.",
        timed: false,
        check: |stage| Box::pin(wrong_type(stage)),
    },
];

/// That opening failed because of a key.
fn refused(failure: Option<Failure>, what: &str, key: &str) -> Checked {
    let Some(failure) = failure else { return Err(Stop::failed(format!("open fails: {what}"), "it opened")) };
    let coded = failure.code == FailureCode::InvalidConfiguration;
    expect(coded, format!("{what}: code invalid-configuration"), || failure.to_string())?;
    expect(failure.detail.contains(key), format!("{what}: the text names {key}"), || failure.to_string())
}

async fn unknown_key(stage: &Stage) -> Checked {
    let over = Table::from_iter([(UNKNOWN.to_owned(), Value::Integer(1))]);
    let opened = stage.open_as(stage.subject.setup.settings_with(over)).await;
    refused(opened.err(), "with an unknown key", UNKNOWN)
}

async fn wrong_type(stage: &Stage) -> Checked {
    let settings = stage.subject.setup.settings();
    for key in settings.iter().filter(|(_, value)| !value.is_table()).map(|(key, _)| key) {
        let mut wrong = settings.clone();
        wrong.insert(key.clone(), Value::Table(Table::from_iter([("kit".to_owned(), Value::Boolean(true))])));
        refused(stage.open_as(wrong).await.err(), &format!("with a table in the place of {key}"), key)?;
    }
    Ok(())
}
