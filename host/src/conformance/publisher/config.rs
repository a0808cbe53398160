//! Opening: wrong settings are told with their key, before a message is lost by them.

use super::stage::{Stage, told_failure};
use crate::conformance::clause::{Checked, Clause, Stop, expect};
use crate::domain::{Failure, FailureCode};
use toml::{Table, Value};

/// A key that no adapter has.
const UNKNOWN: &str = "kit_unknown_key";

pub(super) const CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "publisher.open-without-destination",
        title: "opening does not need the destination",
        demands: "It opens although nobody listens where its settings point: hosts start in any order.",
        timed: false,
        check: |stage| Box::pin(async move { stage.open_nowhere().await.map(|_| ()) }),
    },
    Clause {
        id: "publisher.unknown-key",
        title: "an unknown setting is refused by name",
        demands: "Code invalid-configuration, and the key in the text: a misspelt key that is passed over is a setting that does nothing.",
        timed: false,
        check: |stage| Box::pin(unknown_key(stage)),
    },
    Clause {
        id: "publisher.wrong-type",
        title: "a setting of the wrong type is refused by name",
        demands: "For each key of the settings, a table in the place of a text or number: code invalid-configuration, and the key in the text.",
        timed: false,
        check: |stage| Box::pin(wrong_type(stage)),
    },
    Clause {
        id: "publisher.missing-key",
        title: "a setting that is missing is told by name",
        demands: "Without any settings it opens all the same, or fails with the code invalid-configuration and the name of a key.",
        timed: false,
        check: |stage| Box::pin(missing_key(stage)),
    },
];

/// That opening failed because of `keys`.
fn refused(failure: Option<Failure>, what: &str, keys: &[&str]) -> Checked {
    let Some(failure) = failure else { return Err(Stop::failed(format!("open fails: {what}"), "it opened")) };
    let coded = failure.code == FailureCode::InvalidConfiguration;
    expect(coded, format!("{what}: code invalid-configuration"), || told_failure(&failure))?;
    let named = keys.iter().any(|key| failure.detail.contains(key));
    expect(named, format!("{what}: the text names {}", keys.join(" or ")), || told_failure(&failure))
}

async fn unknown_key(stage: &Stage) -> Checked {
    let over = Table::from_iter([(UNKNOWN.to_owned(), Value::Integer(1))]);
    let opened = stage.open_as(stage.subject.setup.settings_with(over)).await;
    refused(opened.err(), "with an unknown key", &[UNKNOWN])
}

async fn wrong_type(stage: &Stage) -> Checked {
    let settings = stage.subject.setup.settings();
    let scalars = settings.iter().filter(|(_, value)| !value.is_table());
    for (key, _) in scalars {
        let mut wrong = settings.clone();
        wrong.insert(key.clone(), Value::Table(Table::from_iter([("kit".to_owned(), Value::Boolean(true))])));
        let opened = stage.open_as(wrong).await;
        refused(opened.err(), &format!("with a table in the place of {key}"), &[key])?;
    }
    Ok(())
}

async fn missing_key(stage: &Stage) -> Checked {
    let Err(failure) = stage.open_as(Table::new()).await else {
        return Err(Stop::Skipped("it opens without any settings: no key is required".to_owned()));
    };
    let keys: Vec<&str> = stage.subject.setup.settings().keys().map(String::as_str).collect();
    refused(Some(failure), "without any settings", &keys)
}
