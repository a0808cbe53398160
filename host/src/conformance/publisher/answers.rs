//! What a destination's answers mean: who has to act, and whether trying again can help.

use super::stage::{AMPLE, SHORT, Stage, failure_of, is_reject, is_retry, publish_well, told};
use crate::conformance::clause::{Checked, Clause, expect};
use crate::conformance::destination::{Answer, PLACEHOLDER, Script};
use crate::domain::{FailureCode, Outcome};
use std::time::Duration;

pub(super) const CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "publisher.accepted-statuses",
        title: "an answer of success means delivered",
        demands: "HTTP 200, 201, 202 and 204: delivered.",
        timed: false,
        check: |stage| Box::pin(statuses(stage, &[200, 201, 202, 204], |outcome| *outcome == Outcome::Delivered, "delivered")),
    },
    Clause {
        id: "publisher.unavailable",
        title: "a destination that cannot serve now means try again",
        demands: "Retry, with a code that says so (unavailable, network, timeout or throttled), not reject.",
        timed: true,
        check: |stage| Box::pin(unavailable(stage)),
    },
    Clause {
        id: "publisher.retried-statuses",
        title: "answers that may change mean try again",
        demands: "HTTP 408, 425, 429, 500, 502, 503 and 504: retry.",
        timed: false,
        check: |stage| {
            let retry = |outcome: &Outcome| matches!(outcome, Outcome::Retry(_));
            Box::pin(statuses(stage, &[408, 425, 429, 500, 502, 503, 504], retry, "retry"))
        },
    },
    Clause {
        id: "publisher.retry-after",
        title: "the wait that a destination asks for is handed on",
        demands: "For an answer that wants fewer requests and says from when on: retry, code throttled, with that wait.",
        timed: false,
        check: |stage| Box::pin(retry_after(stage)),
    },
    Clause {
        id: "publisher.invalid",
        title: "a message that will never be taken is rejected",
        demands: "Reject, and not retry: trying again would cost attempts and hold up its key.",
        timed: false,
        check: |stage| Box::pin(invalid(stage)),
    },
    Clause {
        id: "publisher.rejected-statuses",
        title: "answers that will not change mean reject",
        demands: "HTTP 400, 404, 405, 409, 415 and 422: reject.",
        timed: false,
        check: |stage| {
            let reject = |outcome: &Outcome| matches!(outcome, Outcome::Reject(_));
            Box::pin(statuses(stage, &[400, 404, 405, 409, 415, 422], reject, "reject"))
        },
    },
    Clause {
        id: "publisher.too-large",
        title: "a message over the destination's size limit is rejected as such",
        demands: "Reject, code too-large.",
        timed: false,
        check: |stage| Box::pin(coded(stage, Answer::TooLarge, FailureCode::TooLarge)),
    },
    Clause {
        id: "publisher.gone",
        title: "a destination that is gone for good is told as such",
        demands: "Reject, code destination-gone.",
        timed: false,
        check: |stage| Box::pin(coded(stage, Answer::Gone, FailureCode::DestinationGone)),
    },
    Clause {
        id: "publisher.unauthorized",
        title: "a refusal of credentials is told as such",
        demands: "Not delivered, code unauthorized: an operator has to act.",
        timed: false,
        check: |stage| Box::pin(unauthorized(stage)),
    },
    Clause {
        id: "publisher.redirects",
        title: "redirects are not followed",
        demands: "HTTP 301, 302, 303, 307 and 308: not delivered, and no request to where they point, which nobody has granted.",
        timed: false,
        check: |stage| Box::pin(redirects(stage)),
    },
];

/// A message for each status.
async fn statuses(stage: &Stage, statuses: &[u16], is_right: fn(&Outcome) -> bool, expected: &str) -> Checked {
    let drafts = stage.drafts(&vec![None; statuses.len()]);
    let mut script = Script::accepting();
    for (draft, status) in drafts.iter().zip(statuses) {
        script = script.always(&draft.id, Answer::status(*status));
    }
    stage.script(script).await?;
    let called = publish_well(&*stage.open().await?, &drafts, AMPLE).await?;
    for (outcome, status) in called.outcomes.iter().zip(statuses) {
        expect(is_right(outcome), format!("for an answer of {status}: {expected}"), || told(outcome))?;
    }
    Ok(())
}

/// What comes of one message that always gets this answer.
async fn one(stage: &Stage, answer: Answer) -> Result<Option<Outcome>, crate::conformance::clause::Stop> {
    let draft = stage.draft();
    stage.script(Script::accepting().always(&draft.id, answer)).await?;
    let called = publish_well(&*stage.open().await?, &[draft], SHORT).await?;
    Ok(called.outcomes.into_iter().next())
}

async fn unavailable(stage: &Stage) -> Checked {
    let outcome = one(stage, Answer::Unavailable).await?;
    is_retry("the message", outcome.as_ref())?;
    let code = outcome.as_ref().and_then(failure_of).map(|failure| failure.code.clone());
    let says_so = matches!(code, Some(FailureCode::Unavailable | FailureCode::Network | FailureCode::Timeout | FailureCode::Throttled));
    expect(says_so, "a code that says that nothing gets through now", || outcome.as_ref().map_or_else(String::new, told))
}

async fn retry_after(stage: &Stage) -> Checked {
    let outcome = one(stage, Answer::Throttled { retry_after_ms: 7000 }).await?;
    is_retry("the message", outcome.as_ref())?;
    let failure = outcome.as_ref().and_then(failure_of);
    let seen = || outcome.as_ref().map_or_else(String::new, told);
    expect(failure.is_some_and(|failure| failure.code == FailureCode::Throttled), "code throttled", seen)?;
    let wait = failure.and_then(|failure| failure.retry_after);
    expect(wait == Some(Duration::from_secs(7)), "a wait of 7000 ms, as the destination asked", || format!("{wait:?}"))
}

async fn invalid(stage: &Stage) -> Checked {
    is_reject("the message", one(stage, Answer::Invalid).await?.as_ref())
}

async fn coded(stage: &Stage, answer: Answer, code: FailureCode) -> Checked {
    let outcome = one(stage, answer).await?;
    is_reject("the message", outcome.as_ref())?;
    let seen = || outcome.as_ref().map_or_else(String::new, told);
    let right = outcome.as_ref().and_then(failure_of).is_some_and(|failure| failure.code == code);
    expect(right, format!("code {}", code.as_str()), seen)
}

async fn unauthorized(stage: &Stage) -> Checked {
    let outcome = one(stage, Answer::Unauthorized).await?;
    let right = outcome.as_ref().and_then(failure_of).is_some_and(|failure| failure.code == FailureCode::Unauthorized);
    expect(right, "retry or reject, code unauthorized", || outcome.as_ref().map_or_else(|| "no outcome".to_owned(), told))
}

async fn redirects(stage: &Stage) -> Checked {
    let statuses = [301, 302, 303, 307, 308];
    let drafts = stage.drafts(&[None; 5]);
    let mut script = Script::accepting();
    for (draft, status) in drafts.iter().zip(statuses) {
        let headers = vec![("location".to_owned(), format!("{PLACEHOLDER}/elsewhere/{}", draft.id))];
        script = script.in_turn(&draft.id, vec![Answer::Status { status, headers }, Answer::Accept]);
    }
    stage.script(script).await?;
    let called = publish_well(&*stage.open().await?, &drafts, AMPLE).await?;
    for (outcome, status) in called.outcomes.iter().zip(statuses) {
        let is_so = matches!(outcome, Outcome::Retry(_) | Outcome::Reject(_));
        expect(is_so, format!("for an answer of {status}: not delivered"), || told(outcome))?;
    }
    let followed = stage.received().await?.into_iter().find(|one| one.how.contains("/elsewhere/"));
    expect(followed.is_none(), "no request to where a redirect points", || followed.map(|one| one.how).unwrap_or_default())
}
