//! That a message comes back as it went in. What a table cannot hold may be refused, but never changed.

use super::stage::{Host, Stage, by, message, settlement};
use crate::conformance::clause::{Checked, Clause, Stop, expect, same};
use crate::domain::{NewMessage, Verdict};

pub(super) static CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "storage.ids",
        title: "the ids of a batch are those under which the messages were inserted, each once",
        demands: "batch: \"Text, opaque to the host and unique within the storage. Stable across attempts\"",
        timed: false,
        check: |stage| Box::pin(inserted_ids(stage)),
    },
    Clause {
        id: "storage.ids-given",
        title: "an id that is given with a message is kept as it is, where the table takes it",
        demands: "enqueue: \"`ids` of the batch are used where the table takes them\"",
        timed: false,
        check: |stage| Box::pin(given_ids(stage)),
    },
    Clause {
        id: "storage.texts",
        title: "topics and keys come back as they were, and no key is none",
        demands: "batch: \"Text, never none\" (topics); \"None: the message is independent of all others\" (keys)",
        timed: false,
        check: |stage| Box::pin(texts(stage)),
    },
    Clause {
        id: "storage.payloads",
        title: "payloads come back byte by byte; none is not empty",
        demands: "batch: \"The exact stored bytes. None: SQL NULL (a tombstone), which is not the same as empty\"",
        timed: false,
        check: |stage| Box::pin(contents(stage)),
    },
    Clause {
        id: "storage.headers",
        title: "headers keep their order, and those of the same name",
        demands: "batch: \"order and duplicates are kept\"",
        timed: false,
        check: |stage| Box::pin(headers(stage)),
    },
];

async fn inserted_ids(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let mut inserted = stage.insert_of(&host, None, &["a", "b", "c"]).await?;
    inserted.extend(stage.insert_of(&host, Some("k"), &["d", "e"]).await?);
    let mut seen = Vec::new();
    for _ in 0..inserted.len() {
        // A key's rows may come one at a time.
        let claimed = host.claim(&by("a")).await?;
        let found = super::stage::ids(&claimed.batch);
        if !found.is_empty() {
            host.settle("a", &[settlement(Verdict::Delivered, &found)]).await?;
        }
        seen.extend(found);
    }
    seen.sort_unstable();
    inserted.sort_unstable();
    same("the ids of all messages", &seen, &inserted)?;
    inserted.dedup();
    expect(inserted.len() == 5, "5 different ids", || format!("{inserted:?}"))
}

async fn given_ids(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let mut taken = 0;
    for id in ["700100", "7c9e6679-7425-40de-944b-e07fc1f90ae7", "Order/ö-7 '\"%"] {
        let given = NewMessage { id: Some(id), ..message(None, "p") };
        let Ok(inserted) = stage.insert_if_taken(&host, &[given]).await? else { continue };
        let claimed = super::stage::ids(&host.claim(&by("a")).await?.batch);
        same("the id under which a message is claimed", &claimed, &inserted)?;
        host.settle_held("a", Verdict::Delivered, &claimed).await?;
        taken += usize::from(inserted == [id]);
    }
    if taken == 0 {
        return Err(Stop::Skipped("the table makes its ids itself: it took neither a number nor a UUID nor another text".to_owned()));
    }
    Ok(())
}

async fn texts(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let long = "Lang".repeat(50);
    for text in ["orders.created", "ö/日本/😊", "'; DROP TABLE outbox; --", "%d {} \\ \"", " a  b ", &long] {
        let given = [NewMessage { topic: text, key: Some(text), payload: Some(b"p"), ..NewMessage::default() }];
        comes_back(stage, &host, &format!("a message of topic and key {text:?}"), &given[0], Demand::Taken).await?;
    }
    let given = NewMessage { topic: "t", key: None, payload: Some(b"p"), ..NewMessage::default() };
    comes_back(stage, &host, "a message without a key", &given, Demand::Taken).await.map(|_| ())
}

async fn contents(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let every: Vec<u8> = (0..=u8::MAX).collect();
    let large = vec![b'x'; 300_000];
    let mut refused = Vec::new();
    for (what, payload, demand) in [
        ("a text", Some(&b"{\"total\": 3}"[..]), Demand::Taken),
        ("no payload", None, Demand::Unchanged),
        ("an empty payload", Some(&b""[..]), Demand::Unchanged),
        ("every byte", Some(&every[..]), Demand::Unchanged),
        ("300000 bytes", Some(&large[..]), Demand::Unchanged),
    ] {
        let given = NewMessage { topic: "t", payload, ..NewMessage::default() };
        refused.extend(comes_back(stage, &host, &format!("a message with {what}"), &given, demand).await?);
    }
    match refused.as_slice() {
        // Everything but the text.
        [why, _, _, _] => Err(Stop::Skipped(format!("the table takes short texts only, so that little was to be seen: {why}"))),
        _ => Ok(()),
    }
}

async fn headers(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let one = NewMessage { headers: vec![("a", b"1")], ..message(None, "p") };
    match stage.insert_if_taken(&host, &[one]).await? {
        Ok(inserted) => {
            host.claim(&by("a")).await?;
            host.settle_held("a", Verdict::Delivered, &inserted).await?;
        }
        Err(why) => return Err(Stop::Skipped(format!("the table takes no headers: {why}"))),
    }
    for (what, headers, demand) in [
        ("no headers", vec![], Demand::Taken),
        ("headers that repeat a name", vec![("z", &b"1"[..]), ("a", b"2"), ("z", b"3"), ("Z", b"4")], Demand::Taken),
        (
            "headers with unusual texts",
            vec![("a", &b""[..]), ("b", "ö😊 \"\\\n".as_bytes()), ("c", b"1.50"), ("d", b"null")],
            Demand::Taken,
        ),
        ("a header of bytes that are no text", vec![("a", &b"\xff\x00\xfe"[..])], Demand::Unchanged),
    ] {
        let given = NewMessage { headers, ..message(Some("k"), "p") };
        comes_back(stage, &host, &format!("a message with {what}"), &given, demand).await?;
    }
    Ok(())
}

/// What is asked of a storage that is given a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Demand {
    /// It takes it, and gives it back unchanged.
    Taken,
    /// It gives it back unchanged, if it takes it.
    Unchanged,
}

/// That a message comes back as it was given; or, where that is allowed, why it is refused.
async fn comes_back(stage: &Stage, host: &Host, what: &str, given: &NewMessage<'_>, demand: Demand) -> Result<Option<String>, Stop> {
    let inserted = match stage.insert_if_taken(host, std::slice::from_ref(given)).await? {
        Ok(inserted) => inserted,
        Err(why) if demand == Demand::Unchanged => return Ok(Some(why)),
        Err(why) => return Err(Stop::failed(format!("{what}: inserted"), why)),
    };
    let claimed = host.claim(&by("a")).await?;
    expect(claimed.batch.len() == 1, format!("{what}: claimed"), || format!("{} messages", claimed.batch.len()))?;
    let seen = claimed.batch.message(0);
    same(&format!("{what}: its id"), &[seen.id().to_owned()].to_vec(), &inserted)?;
    same(&format!("{what}: its topic"), &seen.topic(), &given.topic)?;
    same(&format!("{what}: its key"), &seen.key(), &given.key)?;
    let told = |payload: Option<&[u8]>| match payload {
        None => "none".to_owned(),
        Some(bytes) => format!("{} bytes: {}", bytes.len(), bytes.escape_ascii().to_string().chars().take(500).collect::<String>()),
    };
    expect(seen.payload() == given.payload, format!("{what}: its payload: {}", told(given.payload)), || told(seen.payload()))?;
    let shown = |headers: &[(&str, &[u8])]| {
        headers.iter().map(|(name, value)| format!("{name}={}", value.escape_ascii())).collect::<Vec<_>>().join(", ")
    };
    let headers: Vec<_> = seen.headers().collect();
    expect(headers == given.headers, format!("{what}: its headers: {}", shown(&given.headers)), || shown(&headers))?;
    host.settle_held("a", Verdict::Delivered, &inserted).await.map(|()| None)
}
