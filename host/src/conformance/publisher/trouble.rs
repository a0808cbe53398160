//! No answer: nobody is there, the connection breaks, or nothing is said.

use super::stage::{AMPLE, SHORT, Stage, deliver, failure_of, is_retry, publish, publish_well, told};
use crate::conformance::clause::{Checked, Clause, expect};
use crate::conformance::destination::{Answer, Script};
use crate::domain::Outcome;
use std::time::Duration;

pub(super) const CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "publisher.refused-connection",
        title: "where nobody listens, messages are to be tried again",
        demands: "Retry with a code of an outage, within the deadline; behind it, messages of its key are not delivered.",
        timed: true,
        check: |stage| Box::pin(refused_connection(stage)),
    },
    Clause {
        id: "publisher.broken-connection",
        title: "after a connection that broke in the middle of an answer, the message is to be tried again",
        demands: "Retry: nobody knows whether the message was taken. The next call delivers it.",
        timed: true,
        check: |stage| Box::pin(broken_connection(stage)),
    },
    Clause {
        id: "publisher.silence",
        title: "a destination that says nothing ends with the deadline",
        demands: "The call ends with its deadline, and what was taken by then is delivered: by an outcome that was reported, if the host had to \
                  end it. A message without an answer is not delivered, nothing of its key is, and no message is rejected for it.",
        timed: true,
        check: |stage| Box::pin(silence(stage)),
    },
    Clause {
        id: "publisher.slow",
        title: "an answer that comes late, and in time, counts",
        demands: "An answer after 2 of 10 seconds: delivered, and so is what is behind it.",
        timed: true,
        check: |stage| Box::pin(slow(stage)),
    },
    Clause {
        id: "publisher.after-silence",
        title: "after a call that had no time left, the next one works",
        demands: "Whether the instance lives on or is replaced: what was not delivered is delivered by the next call.",
        timed: true,
        check: |stage| Box::pin(after_silence(stage)),
    },
];

async fn refused_connection(stage: &Stage) -> Checked {
    stage.script(Script::accepting()).await?;
    let publisher = stage.open_nowhere().await?;
    let called = publish_well(&publisher, &stage.drafts(&[Some("a"), Some("a"), None]), SHORT).await?;
    for (index, what) in [(0, "the first of its key"), (2, "the message without a key")] {
        let outcome = called.outcomes.get(index);
        is_retry(what, outcome)?;
        let outage = outcome.and_then(failure_of).is_some_and(|failure| failure.code.is_outage());
        expect(outage, "a code of an outage, such as network", || outcome.map_or_else(String::new, told))?;
    }
    let second = called.outcomes.get(1);
    let is_so = matches!(second, Some(Outcome::Held | Outcome::Retry(_)));
    expect(is_so, "the second of its key: held", || second.map_or_else(String::new, told))
}

async fn broken_connection(stage: &Stage) -> Checked {
    let drafts = stage.drafts(&[Some("a"), None, Some("b")]);
    let [broken, ..] = drafts.as_slice() else { return Ok(()) };
    stage.script(Script::accepting().always(&broken.id, Answer::Broken)).await?;
    let publisher = stage.open().await?;
    let called = publish_well(&publisher, &drafts, SHORT).await?;
    is_retry("the message whose answer broke", called.outcomes.first())?;
    let received = stage.received().await?;
    // In some protocols the connection carries answers for other messages as well.
    let taken = |id: &str| received.iter().any(|one| one.accepted && one.id.as_deref() == Some(id));
    for (index, (draft, outcome)) in drafts.iter().zip(&called.outcomes).enumerate() {
        let is_so = *outcome == Outcome::Delivered || !taken(&draft.id);
        expect(is_so, format!("message {index}, which the destination took: delivered"), || told(outcome))?;
    }
    stage.script(Script::accepting()).await?;
    deliver(&publisher, std::slice::from_ref(broken)).await.map(|_| ())
}

async fn silence(stage: &Stage) -> Checked {
    let drafts = stage.drafts(&[Some("b"), Some("a"), Some("a"), Some("c"), None]);
    let (Some(silent), Some(follower)) = (drafts.get(1), drafts.get(2)) else { return Ok(()) };
    stage.script(Script::accepting().always(&silent.id, Answer::Silent)).await?;
    let called = publish(&*stage.open().await?, &drafts, SHORT).await?;
    let received = stage.received().await?;
    let taken = |id: &str| received.iter().any(|one| one.accepted && one.id.as_deref() == Some(id));
    for (index, (draft, outcome)) in drafts.iter().zip(&called.outcomes).enumerate() {
        let is_so = *outcome == Outcome::Delivered || !taken(&draft.id);
        expect(is_so, format!("message {index}, which the destination took: delivered"), || told(outcome))?;
        expect(!matches!(outcome, Outcome::Reject(_)), format!("message {index}: not rejected"), || told(outcome))?;
        if [1, 2].contains(&index) {
            expect(*outcome != Outcome::Delivered, format!("message {index}: not delivered, since nothing was said"), || told(outcome))?;
        }
    }
    let arrived = taken(&follower.id);
    expect(!arrived, "nothing of the key arrives behind the unanswered message", || "the next message of its key did".to_owned())
}

async fn slow(stage: &Stage) -> Checked {
    const LATE_MS: u64 = 2_000;
    const DEADLINE: Duration = Duration::from_secs(10);
    let drafts = stage.drafts(&[Some("a"), Some("a"), None]);
    let [late, ..] = drafts.as_slice() else { return Ok(()) };
    stage.script(Script::accepting().always(&late.id, Answer::Slow { ms: LATE_MS })).await?;
    let called = publish_well(&*stage.open().await?, &drafts, DEADLINE).await?;
    for (index, outcome) in called.outcomes.iter().enumerate() {
        expect(*outcome == Outcome::Delivered, format!("message {index}: delivered"), || told(outcome))?;
    }
    Ok(())
}

async fn after_silence(stage: &Stage) -> Checked {
    let drafts = stage.drafts(&[Some("a"), Some("a"), None]);
    let mut script = Script::accepting();
    for draft in &drafts {
        script = script.always(&draft.id, Answer::Silent);
    }
    stage.script(script).await?;
    let publisher = stage.open().await?;
    publish(&publisher, &drafts, SHORT / 2).await?;
    stage.script(Script::accepting()).await?;
    let called = publish_well(&publisher, &drafts, AMPLE).await?;
    for (index, outcome) in called.outcomes.iter().enumerate() {
        expect(*outcome == Outcome::Delivered, format!("message {index} in the next call: delivered"), || told(outcome))?;
    }
    Ok(())
}
