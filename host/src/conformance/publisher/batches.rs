//! Outcomes and order: as many as messages, in their order, and the order of each key.

use super::stage::{AMPLE, Called, Draft, SHORT, Stage, deliver, is_reject, publish_well, told};
use crate::conformance::clause::{Checked, Clause, Stop, expect, same};
use crate::conformance::destination::{Answer, Received, Script};
use crate::domain::Outcome;
use std::collections::HashSet;

pub(super) const CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "publisher.outcomes",
        title: "one outcome a message, in the order of the batch",
        demands: "Of a batch in which the destination refuses two messages for ever, exactly these two are rejected, each in its place.",
        timed: false,
        check: |stage| Box::pin(outcomes(stage)),
    },
    Clause {
        id: "publisher.empty-batch",
        title: "a batch without messages has no outcomes",
        demands: "An empty list of outcomes for an empty batch, and the next batch is delivered.",
        timed: false,
        check: |stage| Box::pin(empty_batch(stage)),
    },
    Clause {
        id: "publisher.order-by-key",
        title: "messages of one key arrive in the order of the batch",
        demands: "Keys are interleaved in a batch; at the destination, the messages of each key come in the order in which they were in it.",
        timed: false,
        check: |stage| Box::pin(order_by_key(stage)),
    },
    Clause {
        id: "publisher.held-after-retry",
        title: "behind a message that is to be tried again, those of its key are held",
        demands: "After the first message of a key that was not delivered, none of that key arrives, and all of them are held.",
        timed: false,
        check: |stage| Box::pin(held_after_retry(stage)),
    },
    Clause {
        id: "publisher.held-after-reject",
        title: "behind a message that was rejected, those of its key are held",
        demands: "As behind one that is to be tried again: a message that is rejected was not delivered.",
        timed: false,
        check: |stage| Box::pin(held_after_reject(stage)),
    },
    Clause {
        id: "publisher.other-keys-go-on",
        title: "a failure of one key holds up neither other keys nor messages without one",
        demands: "What the destination takes is delivered, whatever became of messages of other keys in the same batch.",
        timed: false,
        check: |stage| Box::pin(other_keys_go_on(stage)),
    },
    Clause {
        id: "publisher.early-reports",
        title: "what is reported early is what is returned",
        demands: "Each outcome that is reported before the call ends is the one that the list has for its message.",
        timed: false,
        check: |stage| Box::pin(early_reports(stage)),
    },
];

async fn outcomes(stage: &Stage) -> Checked {
    let drafts = stage.drafts(&[None; 12]);
    let mut script = Script::accepting();
    for refused in [2, 7] {
        script = script.always(&at(&drafts, refused)?.id, Answer::Invalid);
    }
    stage.script(script).await?;
    let publisher = stage.open().await?;
    let called = publish_well(&publisher, &drafts, AMPLE).await?;
    for (index, outcome) in called.outcomes.iter().enumerate() {
        let refused = [2, 7].contains(&index);
        let is_so = if refused { matches!(outcome, Outcome::Reject(_)) } else { *outcome == Outcome::Delivered };
        let expected = format!("message {index} of 12: {}", if refused { "reject" } else { "delivered" });
        expect(is_so, expected, || told(outcome))?;
    }
    Ok(())
}

async fn empty_batch(stage: &Stage) -> Checked {
    stage.script(Script::accepting()).await?;
    let publisher = stage.open().await?;
    publish_well(&publisher, &[], AMPLE).await?;
    same("messages at the destination", &stage.received().await?.len(), &0)?;
    deliver(&publisher, &stage.drafts(&[None])).await.map(|_| ())
}

async fn order_by_key(stage: &Stage) -> Checked {
    stage.script(Script::accepting()).await?;
    let keys = [Some("a"), Some("b"), None, Some("c"), Some("a")];
    let drafts = stage.drafts(&keys.repeat(8));
    let publisher = stage.open().await?;
    deliver(&publisher, &drafts).await?;
    in_order(&drafts, &stage.received().await?)
}

/// That what was delivered has arrived, the messages of each key in their order.
pub(super) fn in_order(drafts: &[Draft], received: &[Received]) -> Checked {
    let keys: HashSet<&str> = drafts.iter().filter_map(|draft| draft.key).collect();
    for key in keys {
        let sent: Vec<&str> = drafts.iter().filter(|draft| draft.key == Some(key)).map(|draft| draft.id.as_str()).collect();
        let mut seen = HashSet::new();
        let arrived = received.iter().filter(|one| one.accepted).filter_map(|one| one.id.as_deref());
        // A repetition is allowed: delivery is at least once.
        let first: Vec<&str> = arrived.filter(|id| sent.contains(id) && seen.insert(*id)).collect();
        let place = |id: &str| sent.iter().position(|sent| *sent == id);
        let expected = format!("the {} messages of key \"{key}\" in their order", sent.len());
        expect(first == sent, expected, || {
            let places = first.iter().filter_map(|id| place(id)).map(|place| place.to_string());
            format!("they arrived as {}", places.collect::<Vec<_>>().join(", "))
        })?;
    }
    let arrived: HashSet<&str> = received.iter().filter(|one| one.accepted).filter_map(|one| one.id.as_deref()).collect();
    let lost = drafts.iter().position(|draft| !arrived.contains(draft.id.as_str()));
    expect(lost.is_none(), "everything that was called delivered has arrived", || format!("message {} has not", lost.unwrap_or_default()))
}

/// Messages of a key of which the second one fails, among others.
async fn second_fails(stage: &Stage, answer: Answer) -> Result<(Vec<Draft>, Called, Vec<Received>), Stop> {
    let keys = [Some("a"), Some("b"), Some("a"), None, Some("c"), Some("a"), Some("b"), Some("a"), Some("c"), None];
    let drafts = stage.drafts(&keys);
    stage.script(Script::accepting().always(&at(&drafts, 2)?.id, answer)).await?;
    let publisher = stage.open().await?;
    let called = publish_well(&publisher, &drafts, SHORT).await?;
    Ok((drafts, called, stage.received().await?))
}

/// The places of key "a".
const FAILING: [usize; 4] = [0, 2, 5, 7];

async fn held_after_retry(stage: &Stage) -> Checked {
    let (drafts, called, received) = second_fails(stage, Answer::Unavailable).await?;
    held(&drafts, &called, &received)
}

async fn held_after_reject(stage: &Stage) -> Checked {
    let (drafts, called, received) = second_fails(stage, Answer::Invalid).await?;
    is_reject("the refused message", called.outcomes.get(2))?;
    held(&drafts, &called, &received)
}

/// That a run of delivered ones is followed by one failure at the latest where the destination failed, and then by held ones.
fn held(drafts: &[Draft], called: &Called, received: &[Received]) -> Checked {
    let mut failed = false;
    for index in FAILING {
        let draft = at(drafts, index)?;
        let Some(outcome) = called.outcomes.get(index) else { continue };
        let arrived = received.iter().any(|one| one.accepted && one.id.as_deref() == Some(draft.id.as_str()));
        if failed {
            expect(!arrived, "nothing of the key arrives after the failed message", || format!("message {index} did"))?;
            expect(*outcome == Outcome::Held, format!("message {index}, behind the failed one of its key: held"), || told(outcome))?;
        } else {
            failed = *outcome != Outcome::Delivered;
            expect(failed || index == 0, format!("message {index}, which the destination refused: not delivered"), || told(outcome))?;
            expect(*outcome != Outcome::Held, format!("message {index}, behind none that failed: not held"), || told(outcome))?;
        }
    }
    Ok(())
}

async fn other_keys_go_on(stage: &Stage) -> Checked {
    for answer in [Answer::Unavailable, Answer::Invalid] {
        if !stage.can_answer(&answer) {
            continue;
        }
        let (_, called, _) = second_fails(stage, answer).await?;
        for (index, outcome) in called.outcomes.iter().enumerate().filter(|(index, _)| !FAILING.contains(index)) {
            expect(*outcome == Outcome::Delivered, format!("message {index}, of another key: delivered"), || told(outcome))?;
        }
    }
    Ok(())
}

async fn early_reports(stage: &Stage) -> Checked {
    let (_, called, _) = second_fails(stage, Answer::Unavailable).await?;
    if called.reports.is_empty() {
        return Err(Stop::Skipped("it reports nothing before the call ends, which is allowed".to_owned()));
    }
    for (index, reported) in &called.reports {
        let returned = called.outcomes.get(*index);
        let expected = || format!("message {index}: {}, as was reported", told(reported));
        expect(returned.is_some_and(|returned| returned == reported), expected(), || returned.map_or_else(String::new, told))?;
    }
    Ok(())
}

fn at(drafts: &[Draft], index: usize) -> Result<&Draft, Stop> {
    drafts.get(index).ok_or_else(|| Stop::failed("a message", format!("there is no message {index}: a fault of the kit")))
}
