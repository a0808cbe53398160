//! Many messages, several attempts, several instances, and what must not be said of secrets.

use super::batches::in_order;
use super::stage::{AMPLE, Draft, SHORT, Stage, deliver, failure_of, is_retry, publish, publish_well};
use crate::conformance::clause::{Checked, Clause, Stop, expect};
use crate::conformance::destination::{Answer, Script};
use toml::{Table, Value};

/// Messages of the large batch: several times what hosts send by default.
const MANY: usize = 500;

/// A shorter value may be found anywhere by chance.
const SHORTEST_SECRET: usize = 6;

pub(super) const CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "publisher.large-batch",
        title: "a batch of 500 messages is delivered in one call",
        demands: "All delivered within 30 seconds, each key in its order.",
        timed: false,
        check: |stage| Box::pin(large_batch(stage)),
    },
    Clause {
        id: "publisher.same-id",
        title: "every attempt at a message has the same id",
        demands: "A message that is tried again in a later call carries the same id as the first time.",
        timed: false,
        check: |stage| Box::pin(same_id(stage)),
    },
    Clause {
        id: "publisher.two-instances",
        title: "two instances at once do not disturb each other",
        demands: "Two instances publish different keys at the same time: all delivered, each key in its order.",
        timed: false,
        check: |stage| Box::pin(two_instances(stage)),
    },
    Clause {
        id: "publisher.secrets",
        title: "no failure has a secret in its text",
        demands: "Texts of failures are stored in tables and logs: with every kind of failure, none has the value of a granted secret.",
        timed: false,
        check: |stage| Box::pin(secrets(stage)),
    },
];

async fn large_batch(stage: &Stage) -> Checked {
    stage.script(Script::accepting()).await?;
    let keys = [Some("a"), Some("b"), Some("c"), None, Some("d"), Some("e"), Some("a"), None, Some("f"), Some("g")];
    let drafts = stage.drafts(&keys.repeat(MANY / keys.len()));
    deliver(&*stage.open().await?, &drafts).await?;
    in_order(&drafts, &stage.received().await?)
}

async fn same_id(stage: &Stage) -> Checked {
    let draft = stage.draft().key("a");
    stage.script(Script::accepting().always(&draft.id, Answer::Unavailable)).await?;
    let publisher = stage.open().await?;
    let called = publish_well(&publisher, std::slice::from_ref(&draft), SHORT).await?;
    is_retry("the first attempt", called.outcomes.first())?;
    let first = stage.received().await?;
    stage.script(Script::accepting()).await?;
    deliver(&publisher, &[draft.clone().attempt(2)]).await?;
    let second = stage.received().await?;
    for (attempts, what) in [(&first, "first"), (&second, "second")] {
        let carried = attempts.iter().any(|one| one.carries_id && one.id.as_deref() == Some(draft.id.as_str()));
        expect(carried, format!("the id {} in the {what} attempt", draft.id), || "it is nowhere".to_owned())?;
    }
    Ok(())
}

async fn two_instances(stage: &Stage) -> Checked {
    stage.script(Script::accepting()).await?;
    let (one, two) = (stage.open().await?, stage.open().await?);
    let (left, right) = (stage.drafts(&[Some("a"); 30]), stage.drafts(&[Some("b"); 30]));
    let (first, second) = tokio::join!(deliver(&one, &left), deliver(&two, &right));
    first.and(second)?;
    let all: Vec<Draft> = left.into_iter().chain(right).collect();
    in_order(&all, &stage.received().await?)
}

async fn secrets(stage: &Stage) -> Checked {
    let values: Vec<String> = stage.subject.setup.secrets().filter(|value| value.len() >= SHORTEST_SECRET).collect();
    if values.is_empty() {
        let why = format!("it was given no secret of {SHORTEST_SECRET} or more bytes: --secret NAME=VARIABLE, with settings that use it");
        return Err(Stop::Skipped(why));
    }
    let mut texts = Vec::new();
    let answers = [Answer::Unavailable, Answer::Invalid, Answer::Unauthorized, Answer::Broken, Answer::Gone, Answer::Silent];
    for answer in answers.into_iter().filter(|answer| stage.can_answer(answer)) {
        let draft = stage.draft();
        stage.script(Script::accepting().always(&draft.id, answer)).await?;
        let called = publish(&*stage.open().await?, &[draft], SHORT / 2).await?;
        texts.extend(called.outcomes.iter().filter_map(failure_of).map(ToString::to_string));
        texts.extend(called.broken.iter().map(ToString::to_string));
    }
    let called = publish(&*stage.open_nowhere().await?, &stage.drafts(&[None]), AMPLE).await?;
    texts.extend(called.outcomes.iter().filter_map(failure_of).map(ToString::to_string));
    let over = Table::from_iter([("kit_unknown_key".to_owned(), Value::Integer(1))]);
    texts.extend(stage.open_as(stage.subject.setup.settings_with(over)).await.err().map(|failure| failure.to_string()));
    let told = texts.iter().position(|text| values.iter().any(|value| text.contains(value.as_str())));
    // Which text it was, without the text.
    expect(told.is_none(), "texts without a secret", || format!("failure {} of {} has one in it", told.unwrap_or_default(), texts.len()))
}
