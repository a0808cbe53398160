//! What arrives: payloads and headers as they were given, and an id to deduplicate by.

use super::stage::{AMPLE, Draft, Stage, deliver, publish_well, told};
use crate::conformance::clause::{Checked, Clause, Stop, expect};
use crate::conformance::destination::{Ability, Received, Script};
use crate::domain::{FailureCode, Outcome};
use std::collections::BTreeSet;

/// More than a header has in any protocol's habit, and more than wasi:http took by itself (128 KiB).
const OVERSIZED_HEADER: usize = 200 << 10;

/// More than destinations take in one message, and less than the host hands over at once.
const OVERSIZED: usize = 6 << 20;

pub(super) const CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "publisher.payload",
        title: "a payload arrives byte by byte",
        demands: "Bytes of every value, none added, none lost, whether or not they are text.",
        timed: false,
        check: |stage| Box::pin(payload(stage)),
    },
    Clause {
        id: "publisher.oversized",
        title: "a very large payload is delivered whole or rejected",
        demands: "6 MiB: either all of it arrives and it is delivered, or reject with the code too-large. The next message is delivered.",
        timed: false,
        check: |stage| Box::pin(oversized(stage)),
    },
    Clause {
        id: "publisher.oversized-headers",
        title: "a message with very large headers is delivered or rejected",
        demands: "200 KiB in one header: delivered, or reject with the code too-large. The next message is delivered.",
        timed: false,
        check: |stage| Box::pin(oversized_headers(stage)),
    },
    Clause {
        id: "publisher.empty-and-none",
        title: "an empty payload and none can be told apart",
        demands: "At the destination a tombstone (SQL NULL) looks different from an empty payload, or one of them is rejected.",
        timed: false,
        check: |stage| Box::pin(empty_and_none(stage)),
    },
    Clause {
        id: "publisher.headers",
        title: "headers arrive as they are, duplicates in their order",
        demands: "If headers of a message are passed on: with their values, of several with one name all, in their order.",
        timed: false,
        check: |stage| Box::pin(headers(stage)),
    },
    Clause {
        id: "publisher.binary-headers",
        title: "values of headers may be any bytes",
        demands: "Where the protocol has such headers and they are passed on: byte by byte.",
        timed: false,
        check: |stage| Box::pin(binary_headers(stage)),
    },
    Clause {
        id: "publisher.id",
        title: "the message's id goes with it",
        demands: "Delivery is at least once: without the id a receiver cannot tell a repetition.",
        timed: false,
        check: |stage| Box::pin(id(stage)),
    },
];

async fn payload(stage: &Stage) -> Checked {
    stage.script(Script::accepting()).await?;
    let draft = stage.draft();
    let bytes: Vec<u8> = draft.payload.iter().flatten().copied().chain(0..=255).chain(*b"\r\n\0").collect();
    let draft = draft.payload(Some(bytes.clone()));
    deliver(&*stage.open().await?, std::slice::from_ref(&draft)).await?;
    let arrived = arrived(stage, &draft).await?;
    let seen = arrived.payload.as_ref().map(|payload| payload.0.as_slice());
    expect(seen == Some(&bytes), format!("the {} bytes of the payload", bytes.len()), || match seen {
        None => "none".to_owned(),
        Some(seen) => {
            let differ = seen.iter().zip(&bytes).position(|(seen, sent)| seen != sent).unwrap_or(seen.len().min(bytes.len()));
            format!("{} bytes, other ones from byte {differ} on", seen.len())
        }
    })
}

/// The one attempt at a message that arrived last.
async fn arrived(stage: &Stage, draft: &Draft) -> Result<Received, Stop> {
    let received = stage.received().await?;
    let found = received.into_iter().rev().find(|one| one.id.as_deref() == Some(draft.id.as_str()));
    found.ok_or_else(|| Stop::failed("the message at the destination", "it was called delivered, and did not arrive"))
}

async fn oversized(stage: &Stage) -> Checked {
    stage.script(Script::accepting()).await?;
    let draft = stage.draft();
    let mut bytes = draft.payload.clone().unwrap_or_default();
    bytes.resize(OVERSIZED, b'x');
    let draft = draft.payload(Some(bytes.clone()));
    let publisher = stage.open().await?;
    let called = publish_well(&publisher, std::slice::from_ref(&draft), AMPLE).await?;
    match called.outcomes.first() {
        Some(Outcome::Delivered) => {
            let arrived = arrived(stage, &draft).await?;
            let whole = arrived.payload.as_ref().is_some_and(|payload| payload.0 == bytes);
            expect(whole, "all of the payload", || format!("{:?}", arrived.payload))?;
        }
        Some(Outcome::Reject(failure)) => {
            expect(failure.code == FailureCode::TooLarge, "code too-large", || failure.to_string())?;
        }
        other => return Err(Stop::failed("delivered, or reject with the code too-large", other.map_or_else(String::new, told))),
    }
    deliver(&publisher, &stage.drafts(&[None])).await.map(|_| ())
}

async fn oversized_headers(stage: &Stage) -> Checked {
    stage.script(Script::accepting()).await?;
    let draft = stage.draft().header("x-kit-large", &vec![b'x'; OVERSIZED_HEADER]);
    let publisher = stage.open().await?;
    let called = publish_well(&publisher, std::slice::from_ref(&draft), AMPLE).await?;
    match called.outcomes.first() {
        Some(Outcome::Delivered) => drop(arrived(stage, &draft).await?),
        Some(Outcome::Reject(failure)) => {
            expect(failure.code == FailureCode::TooLarge, "code too-large", || failure.to_string())?;
        }
        other => return Err(Stop::failed("delivered, or reject with the code too-large", other.map_or_else(String::new, told))),
    }
    deliver(&publisher, &stage.drafts(&[None])).await.map(|_| ())
}

async fn empty_and_none(stage: &Stage) -> Checked {
    stage.needs(Ability::Tombstones, "way to say that there is no payload")?;
    let publisher = stage.open().await?;
    let mut seen = Vec::new();
    for payload in [Some(Vec::new()), None] {
        let rejected = {
            stage.script(Script::accepting()).await?;
            let draft = stage.draft().payload(payload);
            let called = publish_well(&publisher, std::slice::from_ref(&draft), AMPLE).await?;
            match called.outcomes.first() {
                Some(Outcome::Delivered) => None,
                Some(Outcome::Reject(_)) => Some(()),
                other => return Err(Stop::failed("delivered or reject", other.map_or_else(String::new, told))),
            }
        };
        if rejected.is_some() {
            return Ok(());
        }
        // The only one that has arrived: without a payload, its id may be all that could tell which it is.
        let received = stage.received().await?.into_iter().next_back();
        seen.push(received.ok_or_else(|| Stop::failed("the message at the destination", "it did not arrive"))?);
    }
    let looks = |one: &Received| {
        let names: BTreeSet<String> = one.headers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
        let method = one.how.split(' ').next().unwrap_or_default().to_owned();
        (one.payload.clone(), names, method)
    };
    let [empty, none] = seen.as_slice() else { return Ok(()) };
    expect(looks(empty) != looks(none), "two messages that differ in payload, method or headers", || {
        "the same payload, method and names of headers for both".to_owned()
    })
}

async fn headers(stage: &Stage) -> Checked {
    stage.script(Script::accepting()).await?;
    let draft = stage.draft().header("x-kit-one", b"1").header("x-kit-two", b"first").header("x-kit-two", b"second, with a comma");
    deliver(&*stage.open().await?, std::slice::from_ref(&draft)).await?;
    let arrived = arrived(stage, &draft).await?;
    let of = |name: &str| -> Vec<String> {
        let named = arrived.headers.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name));
        named.map(|(_, value)| String::from_utf8_lossy(&value.0).into_owned()).collect()
    };
    let (one, two) = (of("x-kit-one"), of("x-kit-two"));
    if one.is_empty() && two.is_empty() {
        return Err(Stop::Skipped("with these settings it passes no headers of messages on".to_owned()));
    }
    expect(one == ["1"], "x-kit-one: \"1\"", || format!("{one:?}"))?;
    // HTTP allows several values of a name to be joined with a comma (RFC 9110 section 5.3).
    let joined = two.join(", ");
    expect(joined == "first, second, with a comma", "x-kit-two: \"first\", and then \"second, with a comma\"", || format!("{two:?}"))
}

async fn binary_headers(stage: &Stage) -> Checked {
    stage.needs(Ability::BinaryHeaders, "headers of any bytes")?;
    stage.script(Script::accepting()).await?;
    let bytes = [0, 255, 10, 128];
    let draft = stage.draft().header("x-kit-bytes", &bytes);
    deliver(&*stage.open().await?, std::slice::from_ref(&draft)).await?;
    let arrived = arrived(stage, &draft).await?;
    match arrived.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-kit-bytes")) {
        None => Err(Stop::Skipped("with these settings it passes no headers of messages on".to_owned())),
        Some((_, value)) => expect(value.0 == bytes, "x-kit-bytes: 00 ff 0a 80", || format!("{value:?}")),
    }
}

async fn id(stage: &Stage) -> Checked {
    stage.script(Script::accepting()).await?;
    let draft = stage.draft();
    deliver(&*stage.open().await?, std::slice::from_ref(&draft)).await?;
    let arrived = arrived(stage, &draft).await?;
    expect(arrived.carries_id, format!("the id {} in the message", draft.id), || "it is nowhere".to_owned())
}
