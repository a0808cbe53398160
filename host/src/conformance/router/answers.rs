//! Answers: as many as questions, each about what was asked, and the same subscription whichever way it is asked for.

use super::stage::{NO_SUBSCRIBER, Stage, current, expand, names};
use crate::config::endpoint;
use crate::conformance::clause::{Checked, Clause, Stop, expect};
use crate::ports::fan_out::Subscription;
use crate::router::has_type;
use std::collections::HashSet;

/// Events of the large batch: several times what hosts ask at once by default.
const MANY: usize = 2000;

pub(super) const CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "router.nothing-asked",
        title: "no questions have no answers",
        demands: "Without events and without inquiries: an empty list each.",
        timed: false,
        check: |stage| Box::pin(nothing_asked(stage)),
    },
    Clause {
        id: "router.subscribers",
        title: "an event has its subscribers, each once, of its tenant",
        demands: "For an event that somebody wants: at least one subscriber, none twice, none without a name, all of the event's tenant.",
        timed: false,
        check: |stage| Box::pin(subscribers(stage)),
    },
    Clause {
        id: "router.destinations",
        title: "a subscription says where to and how",
        demands: "The URL is absolute, http or https, without a user; the authentication, if there is one, a JSON object with a type. The host ends other events dead.",
        timed: false,
        check: |stage| Box::pin(destinations(stage)),
    },
    Clause {
        id: "router.answers-in-order",
        title: "as many answers as questions, in their order",
        demands: "2000 events in one call, every other one of a tenant that there is not: the answers stand in the order of the events.",
        timed: false,
        check: |stage| Box::pin(answers_in_order(stage)),
    },
    Clause {
        id: "router.one-snapshot",
        title: "the answers of a call agree",
        demands: "The same event twice in one call has the same subscriptions twice.",
        timed: false,
        check: |stage| Box::pin(one_snapshot(stage)),
    },
    Clause {
        id: "router.unknown-tenant",
        title: "a tenant that there is not has no subscribers",
        demands: "An empty list, and none when asked for a subscription: not a failure, and nobody of another tenant.",
        timed: false,
        check: |stage| Box::pin(unknown_tenant(stage)),
    },
    Clause {
        id: "router.unknown-subscriber",
        title: "a subscriber that there is not is none",
        demands: "Among inquiries about subscribers that there are, one about another is answered with none; the others as without it.",
        timed: false,
        check: |stage| Box::pin(unknown_subscriber(stage)),
    },
    Clause {
        id: "router.current-agrees",
        title: "a subscription asked for alone is the one that the event had",
        demands: "Every field is equal, time and again: the host sends nothing where one differs.",
        timed: false,
        check: |stage| Box::pin(current_agrees(stage)),
    },
    Clause {
        id: "router.unwanted-topic",
        title: "who does not want a topic does not get it",
        demands: "An event that nobody wants has no subscribers, and each subscriber of the other event is none when asked for with this topic.",
        timed: false,
        check: |stage| Box::pin(unwanted_topic(stage)),
    },
    Clause {
        id: "router.two-instances",
        title: "every instance has the same answers",
        demands: "Two instances, opened one after the other, answer alike: hosts open several, and open them again.",
        timed: false,
        check: |stage| Box::pin(two_instances(stage)),
    },
];

async fn nothing_asked(stage: &Stage) -> Checked {
    let router = stage.open().await?;
    expand(&router, &[]).await?;
    current(&router, &[]).await.map(|_| ())
}

/// The subscriptions of the event that somebody wants.
async fn wanted(stage: &Stage) -> Result<Vec<Subscription>, Stop> {
    let router = stage.open().await?;
    let answer = expand(&router, &[stage.event()?]).await?.pop().unwrap_or_default();
    if answer.is_empty() {
        return Err(Stop::failed("a subscriber of the event that somebody wants", "none"));
    }
    Ok(answer)
}

async fn subscribers(stage: &Stage) -> Checked {
    let (event, answer) = (stage.event()?, wanted(stage).await?);
    let mut seen = HashSet::new();
    for Subscription { tenant, subscriber, .. } in &answer {
        expect(tenant == &event.tenant, format!("subscribers of the tenant {:?}", event.tenant), || {
            format!("{subscriber:?} of {tenant:?}")
        })?;
        expect(!subscriber.is_empty(), "subscribers with a name", || "one that is empty".to_owned())?;
        expect(seen.insert(subscriber), "each subscriber once", || format!("{subscriber:?} twice"))?;
    }
    Ok(())
}

async fn destinations(stage: &Stage) -> Checked {
    for Subscription { subscriber, url, authentication, .. } in wanted(stage).await? {
        let fault = endpoint::fault(&url);
        expect(fault.is_none(), format!("a URL of {subscriber:?}"), || format!("it {}", fault.unwrap_or_default()))?;
        expect(
            authentication.as_deref().is_none_or(has_type),
            format!("an authentication of {subscriber:?} that is a JSON object with a type"),
            || "something else".to_owned(),
        )?;
    }
    Ok(())
}

async fn answers_in_order(stage: &Stage) -> Checked {
    let event = stage.event()?;
    let (nobody, expected) = (event.of_nobody(), wanted(stage).await?);
    let events = [event, &nobody].repeat(MANY / 2);
    let answers = expand(&*stage.open().await?, &events).await?;
    for (index, pair) in answers.chunks(2).enumerate() {
        let alternate = matches!(pair, [of_event, of_nobody] if *of_event == expected && of_nobody.is_empty());
        expect(alternate, format!("{} for event {}, and none for the next", names(&expected), 2 * index), || {
            pair.iter().map(|answer| names(answer)).collect::<Vec<_>>().join(", ")
        })?;
    }
    Ok(())
}

async fn one_snapshot(stage: &Stage) -> Checked {
    let event = stage.event()?;
    let answers = expand(&*stage.open().await?, &[event, event]).await?;
    let [first, second] = answers.as_slice() else { return Err(Stop::failed("two answers", answers.len().to_string())) };
    expect(first == second, format!("{} again, with equal fields", names(first)), || names(second))
}

async fn unknown_tenant(stage: &Stage) -> Checked {
    let (nobody, found) = (stage.event()?.of_nobody(), wanted(stage).await?);
    let router = stage.open().await?;
    let answer = expand(&router, &[&nobody]).await?.pop().unwrap_or_default();
    expect(answer.is_empty(), "no subscribers", || names(&answer))?;
    let inquiries: Vec<_> = found.iter().map(|one| nobody.inquiry(&one.subscriber)).collect();
    let known = current(&router, &inquiries).await?.into_iter().flatten().collect::<Vec<_>>();
    expect(known.is_empty(), "none of them with that tenant", || names(&known))
}

async fn unknown_subscriber(stage: &Stage) -> Checked {
    let (event, found) = (stage.event()?, wanted(stage).await?);
    let mut inquiries: Vec<_> = found.iter().map(|one| event.inquiry(&one.subscriber)).collect();
    inquiries.insert(0, event.inquiry(NO_SUBSCRIBER));
    let mut answers = current(&*stage.open().await?, &inquiries).await?.into_iter();
    let unknown = answers.next().flatten();
    expect(unknown.is_none(), "none for a subscriber that there is not", || "a subscription".to_owned())?;
    let others: Vec<Subscription> = answers.flatten().collect();
    expect(others == found, format!("{}, with equal fields", names(&found)), || names(&others))
}

async fn current_agrees(stage: &Stage) -> Checked {
    let (event, found) = (stage.event()?, wanted(stage).await?);
    let inquiries: Vec<_> = found.iter().map(|one| event.inquiry(&one.subscriber)).collect();
    let router = stage.open().await?;
    for _ in 0..3 {
        let answers = current(&router, &inquiries).await?;
        for (expected, answer) in found.iter().zip(answers) {
            let subscriber = &expected.subscriber;
            expect(answer.as_ref() == Some(expected), format!("{subscriber:?} as it was"), || match &answer {
                None => "none".to_owned(),
                Some(answer) => differing(expected, answer),
            })?;
        }
    }
    Ok(())
}

/// Which fields differ, without what is in them.
fn differing(one: &Subscription, other: &Subscription) -> String {
    let fields = [
        ("tenant", one.tenant == other.tenant),
        ("subscriber", one.subscriber == other.subscriber),
        ("principal", one.principal == other.principal),
        ("url", one.url == other.url),
        ("signing-scope", one.signing_scope == other.signing_scope),
        ("authentication", one.authentication == other.authentication),
        ("revision", one.revision == other.revision),
    ];
    let differ: Vec<&str> = fields.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect();
    format!("another {}", differ.join(", "))
}

async fn unwanted_topic(stage: &Stage) -> Checked {
    let unwanted = stage.unwanted()?;
    let router = stage.open().await?;
    let answer = expand(&router, &[unwanted]).await?.pop().unwrap_or_default();
    expect(answer.is_empty(), "no subscribers of the event that nobody wants", || names(&answer))?;
    let found = wanted(stage).await?;
    let inquiries: Vec<_> = found.iter().map(|one| unwanted.inquiry(&one.subscriber)).collect();
    let wanting = current(&router, &inquiries).await?.into_iter().flatten().collect::<Vec<_>>();
    expect(wanting.is_empty(), "none when asked for with that topic", || names(&wanting))
}

async fn two_instances(stage: &Stage) -> Checked {
    let (first, second) = (wanted(stage).await?, wanted(stage).await?);
    expect(first == second, format!("{} from the second, with equal fields", names(&first)), || names(&second))
}
