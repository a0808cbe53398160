//! Rows as an operator sees them.

use super::stage::{LONG, Stage, by, call_failed, failure, ids, message, retry};
use crate::conformance::clause::{Checked, Clause, Stop, expect, same};
use crate::domain::{NewMessage, Verdict};
use crate::ports::{Filter, RowState};
use std::time::Duration;

/// More pages than there are rows are without end.
const MOST_PAGES: usize = 20;

pub(super) static CLAUSES: &[Clause<Stage>] = &[
    Clause {
        id: "storage.browse-pages",
        title: "pages have every row once, in insertion order, with its message if asked for",
        demands: "browse: \"Rows in insertion order, at most `limit`. Changes nothing\"",
        timed: false,
        check: |stage| Box::pin(pages(stage)),
    },
    Clause {
        id: "storage.browse-rows",
        title: "a row is shown as it is: state, attempts, failure, and when it is due",
        demands: "row: what each field is",
        timed: false,
        check: |stage| Box::pin(rows(stage)),
    },
    Clause {
        id: "storage.browse-filters",
        title: "a filter lets through the rows that match all of it",
        demands: "filter: \"None: every state\", \"None: every topic\", \"Empty: every id\"",
        timed: false,
        check: |stage| Box::pin(filters(stage)),
    },
];

async fn pages(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    let admin = host.admin()?;
    let numbers: Vec<String> = (0..11).map(|number| number.to_string()).collect();
    let messages: Vec<_> = numbers.iter().map(|number| message(None, number)).collect();
    let inserted = stage.insert(&host, &messages).await?;
    for (limit, with_messages) in [(3, true), (1, false), (11, true), (100, false)] {
        let (mut seen, mut after, mut payloads) = (Vec::new(), None, Vec::new());
        for _ in 0..MOST_PAGES {
            let page = admin.browse(&Filter::default(), after.as_deref(), limit, with_messages).await.map_err(call_failed("browse"))?;
            seen.extend(page.rows.iter().map(|row| row.id.clone()));
            same("whether a page has messages", &page.messages.is_some(), &with_messages)?;
            if let Some(batch) = &page.messages {
                same("ids of the messages of a page", &ids(batch), &page.rows.iter().map(|row| row.id.clone()).collect())?;
                payloads.extend(super::stage::payloads(batch));
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        expect(after.is_none(), format!("the last page within {MOST_PAGES} pages of {limit}"), || "further ones".to_owned())?;
        same(&format!("the ids of all pages of {limit}"), &seen, &inserted)?;
        if with_messages {
            same(&format!("the payloads of all pages of {limit}"), &payloads, &numbers)?;
        }
    }
    let claimed = host.claim_all(&by("a")).await?;
    same("attempts at the first claim, after browsing", &claimed.batch.attempts, &vec![1; numbers.len()])
}

async fn rows(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    host.admin()?;
    for (payload, verdict) in [("waits", Some(retry(LONG))), ("dead", Some(Verdict::Dead(failure()))), ("leased", None)] {
        stage.insert_of(&host, Some(payload), &[payload]).await?;
        let claimed = host.claim(&by("a")).await?;
        if let Some(verdict) = verdict {
            host.settle_held("a", verdict, &ids(&claimed.batch)).await?;
        }
    }
    stage.insert_of(&host, None, &["pending"]).await?;
    let rows = host.rows(&Filter::default()).await?;
    let seen: Vec<_> = rows.iter().map(|row| (row.topic.as_str(), row.key.as_deref(), row.state, row.attempts)).collect();
    let expected = vec![
        ("t", Some("waits"), RowState::Pending, 1),
        ("t", Some("dead"), RowState::Dead, 1),
        ("t", Some("leased"), RowState::Leased, 1),
        ("t", None, RowState::Pending, 0),
    ];
    same("topic, key, state and attempts of the rows", &seen, &expected)?;
    let [waits, dead, leased, pending] = rows.as_slice() else { return Err(Stop::failed("four rows", format!("{}", rows.len()))) };
    let hour = u64::try_from(LONG.as_millis()).unwrap_or(u64::MAX);
    let soon = u64::try_from(Duration::from_secs(120).as_millis()).unwrap_or(0);
    expect((hour - soon..=hour).contains(&waits.due_in_ms), "a row that waits for an hour: due in about that", || {
        format!("due in {} ms", waits.due_in_ms)
    })?;
    for (what, row) in [("a dead row", dead), ("a row that is due", pending)] {
        same(&format!("{what}: milliseconds until it is due"), &row.due_in_ms, &0)?;
    }
    let text = failure().detail;
    for (what, row) in [("a row that waits for its retry", waits), ("a dead row", dead)] {
        let recorded = row.last_error.clone().unwrap_or_default();
        expect(recorded.contains(&text), format!("{what}: the failure {text:?}"), || format!("{recorded:?}"))?;
    }
    let is_empty = |error: &Option<String>| error.as_deref().unwrap_or_default().is_empty();
    expect(is_empty(&leased.last_error) && is_empty(&pending.last_error), "no failure where there was none", || {
        format!("{:?} and {:?}", leased.last_error, pending.last_error)
    })
}

async fn filters(stage: &Stage) -> Checked {
    let host = stage.host().await?;
    host.admin()?;
    let mut all = Vec::new();
    for (topic, verdict) in [
        ("t", Some(Verdict::Dead(failure()))),
        ("u", Some(Verdict::Dead(failure()))),
        ("u", Some(Verdict::Delivered)),
        ("t", Some(retry(LONG))),
        ("t", None),
    ] {
        let inserted = stage.insert(&host, &[NewMessage { topic, ..message(None, "p") }]).await?;
        host.claim(&by("a")).await?;
        if let Some(verdict) = verdict {
            host.settle_held("a", verdict, &inserted).await?;
        }
        all.extend(inserted);
    }
    all.extend(stage.insert_of(&host, None, &["pending"]).await?);
    let places = |places: &[usize]| places.iter().filter_map(|place| all.get(*place).cloned()).collect::<Vec<_>>();
    // Delivered rows may be gone, by configuration.
    let delivered = host.rows(&Filter { state: Some(RowState::Delivered), ..Filter::default() }).await?;
    let kept = !delivered.is_empty();
    let [of_u, of_all]: [&[usize]; 2] = if kept { [&[1, 2], &[0, 1, 2, 3, 4, 5]] } else { [&[1], &[0, 1, 3, 4, 5]] };
    let topic = |topic: &str| Some(topic.to_owned());
    let filter = |state, topic, ids: &[usize]| Filter { state, topic, ids: places(ids) };
    for (what, filter, expected) in [
        ("without a filter", Filter::default(), of_all),
        ("dead", filter(Some(RowState::Dead), None, &[]), &[0, 1]),
        ("delivered", filter(Some(RowState::Delivered), None, &[]), if kept { &[2] } else { &[] }),
        ("leased", filter(Some(RowState::Leased), None, &[]), &[4]),
        ("pending", filter(Some(RowState::Pending), None, &[]), &[3, 5]),
        ("of the topic u", filter(None, topic("u"), &[]), of_u),
        ("dead and of the topic u", filter(Some(RowState::Dead), topic("u"), &[]), &[1]),
        ("of three ids, two of them of the topic t", filter(None, topic("t"), &[0, 1, 3]), &[0, 3]),
        ("pending and of three ids", filter(Some(RowState::Pending), None, &[0, 3, 4]), &[3]),
        ("of a topic that there is not", filter(None, topic("v"), &[]), &[]),
        ("of an id that there is not", Filter { ids: vec!["no such id".to_owned()], ..Filter::default() }, &[]),
    ] {
        let seen: Vec<String> = host.rows(&filter).await?.into_iter().map(|row| row.id).collect();
        same(&format!("ids of the rows {what}"), &seen, &places(expected))?;
    }
    Ok(())
}
