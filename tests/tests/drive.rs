//! `outhaul plugin drive`: adapters worked by JSON lines, as a test suite in another language does it.

use anyhow::{Context, Result};
use outhaul_tests::places;
use outhaul_tests::process::bound;
use outhaul_tests::receiver::{Answer, Receiver};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// A session, and its answers that were read while others were waited for.
struct Session {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    early: HashMap<u64, Value>,
    next: u64,
}

impl Session {
    fn start(component: &Path, options: &[&str]) -> Result<Self> {
        let mut command = bound(&places::outhaul()?);
        command.args(["plugin", "drive"]).arg(component).args(options).env("XDG_CACHE_HOME", places::compiled()?);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("no output")?).lines();
        Ok(Self { input: child.stdin.take(), child, output, early: HashMap::new(), next: 0 })
    }

    fn of_plugin(plugin: &str, options: &[&str]) -> Result<Self> {
        Self::start(&places::plugins()?.join(format!("{plugin}.wasm")), options)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let input = self.input.as_mut().context("the input is closed")?;
        input.write_all(bytes)?;
        Ok(input.flush()?)
    }

    /// Sends a request, whose id is returned.
    fn send(&mut self, mut request: Value) -> Result<u64> {
        self.next += 1;
        request["id"] = self.next.into();
        self.write(format!("{request}\n").as_bytes())?;
        Ok(self.next)
    }

    fn line(&mut self) -> Result<Value> {
        Ok(serde_json::from_str(&self.output.next().context("the session has ended")??)?)
    }

    /// The answer to a request.
    fn answer(&mut self, id: u64) -> Result<Value> {
        loop {
            if let Some(answer) = self.early.remove(&id) {
                return Ok(answer);
            }
            let answer = self.line()?;
            self.early.insert(answer["id"].as_u64().context("an answer without an id")?, answer);
        }
    }

    fn ask(&mut self, request: Value) -> Result<Value> {
        let id = self.send(request)?;
        self.answer(id)
    }

    /// What a request that must go well returns.
    fn fine(&mut self, request: Value) -> Result<Value> {
        let answer = self.ask(request)?;
        answer.get("ok").cloned().with_context(|| format!("{answer}"))
    }

    /// The code and text of a request that must fail.
    fn refused(&mut self, request: Value) -> Result<(String, String)> {
        let answer = self.ask(request)?;
        let text = |key: &str| answer["error"][key].as_str().map(str::to_owned).with_context(|| format!("{answer}"));
        Ok((text("code")?, text("detail")?))
    }

    /// Ends its input; its exit code.
    fn end(mut self) -> Result<Option<i32>> {
        drop(self.input.take());
        assert!(self.output.next().is_none(), "an answer that nobody asked for");
        Ok(self.child.wait()?.code())
    }
}

fn ids(answer: &Value) -> Vec<String> {
    let messages = answer["messages"].as_array().cloned().unwrap_or_default();
    messages.iter().filter_map(|message| message["id"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_storage_does_everything_that_is_asked() -> Result<()> {
    let mut session = Session::of_plugin("sqlite-storage", &["--set", "table = \"events\""])?;
    let opened = session.fine(json!({"call": "open"}))?;
    assert_eq!((&opened["kind"], &opened["strict_order"], &opened["admin"]), (&json!("storage"), &json!(true), &json!(true)));
    assert_eq!(opened["fused"], json!(true));
    session.fine(json!({"call": "open", "instance": "other"}))?;
    assert!(session.fine(json!({"call": "schema"}))?["sql"].as_str().context("no text")?.contains("\"events\""));
    session.fine(json!({"call": "create_schema"}))?;
    let messages = json!([
        {"topic": "t", "key": "k", "headers": [["a", "1"], ["a", "2"]], "payload_base64": "/wA="},
        {"topic": "t", "key": "k", "payload": null},
        {"topic": "u", "payload": ""},
        {"topic": "u", "payload": "text"},
    ]);
    let enqueued = session.fine(json!({"call": "enqueue", "messages": messages}))?;
    assert_eq!(enqueued["ids"].as_array().map(Vec::len), Some(4));
    let claim = |worker: &str| json!({"call": "claim", "worker": worker, "limit": 10, "lease_ms": 60_000});
    let claimed = session.fine(claim("w"))?;
    let of = |index: usize, key: &str| claimed["messages"][index][key].clone();
    assert_eq!(
        (of(0, "payload_base64"), of(1, "payload"), of(2, "payload"), of(3, "payload")),
        (json!("/wA="), Value::Null, json!(""), json!("text"))
    );
    assert_eq!((of(0, "headers"), of(0, "attempts")), (json!([["a", "1"], ["a", "2"]]), json!(1)));
    let ids = ids(&claimed);
    let mut elsewhere = claim("v");
    elsewhere["instance"] = "other".into();
    assert_eq!(session.fine(elsewhere)?["messages"], json!([]));

    // Who does not hold it cannot write it.
    let late = json!({"call": "settle", "worker": "v", "settlements": [{"verdict": "delivered", "ids": [ids[0]]}]});
    assert_eq!(session.fine(late)?, json!({"lost": [ids[0]]}));
    assert_eq!(
        session.fine(json!({"call": "extend", "worker": "w", "ids": [ids[0], "999"], "lease_ms": 60_000}))?,
        json!({"lost": ["999"]})
    );
    let settlements = json!([
        {"verdict": "delivered", "ids": [ids[0]]},
        {"verdict": "retry", "ids": [ids[1]], "failure": {"code": "network", "detail": "down\u{0}"}, "delay_ms": 3_600_000},
        {"verdict": "dead", "ids": [ids[2]], "failure": {"code": "mine", "detail": "no"}},
    ]);
    assert_eq!(session.fine(json!({"call": "settle", "worker": "w", "settlements": settlements}))?, json!({"lost": []}));
    let stats = session.fine(json!({"call": "stats"}))?;
    assert_eq!((&stats["pending"], &stats["leased"], &stats["dead"]), (&json!(2), &json!(1), &json!(1)));

    let page = session.fine(json!({"call": "browse", "filter": {"state": "dead"}, "with_messages": true}))?;
    assert_eq!((&page["rows"][0]["id"], &page["messages"][0]["payload"]), (&json!(ids[2]), &json!("")));
    assert_eq!(session.fine(json!({"call": "requeue", "filter": {"ids": [ids[2]]}}))?, json!({"rows": 1}));
    assert_eq!(session.fine(json!({"call": "discard"}))?, json!({"rows": 0}));
    let settled = json!([{"verdict": "release", "ids": [ids[3]]}]);
    let turn = session.fine(json!({"call": "settle_and_claim", "settlements": settled, "claim": {"worker": "w"}}))?;
    assert_eq!(turn["lost"], json!([]));
    let again: Vec<_> = turn["claimed"]["messages"]
        .as_array()
        .context("no messages")?
        .iter()
        .map(|message| (&message["id"], &message["attempts"]))
        .collect();
    assert_eq!(again, [(&json!(ids[2]), &json!(1)), (&json!(ids[3]), &json!(1))]);
    assert_eq!(session.fine(json!({"call": "purge", "older_than_ms": 0}))?, json!({"rows": 1}));
    assert_eq!(session.fine(json!({"call": "close"}))?, json!({"was_open": true}));
    assert_eq!(session.refused(json!({"call": "stats"}))?.0, "bad-request");
    assert_eq!(session.end()?, Some(0));
    Ok(())
}

#[test]
fn two_instances_race_and_never_split_a_key() -> Result<()> {
    let mut session = Session::of_plugin("sqlite-storage", &[])?;
    for instance in ["a", "b"] {
        session.fine(json!({"call": "open", "instance": instance, "config": {"table": "raced"}}))?;
    }
    session.fine(json!({"call": "create_schema", "instance": "a"}))?;
    let rounds = 20;
    let messages: Vec<_> = (0..rounds).map(|number| json!({"topic": "t", "key": "k", "payload": number.to_string()})).collect();
    session.fine(json!({"call": "enqueue", "instance": "a", "messages": messages}))?;
    for number in 0..rounds {
        let claim = |worker: &str| json!({"call": "claim", "instance": worker, "worker": worker, "limit": 1});
        let sent = [session.send(claim("a"))?, session.send(claim("b"))?];
        let mut held = Vec::new();
        for (worker, id) in ["a", "b"].into_iter().zip(sent) {
            let answer = session.answer(id)?;
            held.extend(ids(&answer["ok"]).into_iter().map(|id| (worker, id, answer["ok"]["messages"][0]["payload"].clone())));
        }
        let [(worker, id, payload)] = held.as_slice() else { panic!("round {number}: {held:?}") };
        assert_eq!(*payload, json!(number.to_string()));
        let settle =
            json!({"call": "settle", "instance": worker, "worker": worker, "settlements": [{"verdict": "delivered", "ids": [id]}]});
        assert_eq!(session.fine(settle)?, json!({"lost": []}));
    }
    assert_eq!(session.end()?, Some(0));
    Ok(())
}

#[test]
fn wrong_lines_are_told_and_the_session_goes_on() -> Result<()> {
    let mut session = Session::of_plugin("sqlite-storage", &[])?;
    session.write(b"nonsense\n\n{\"id\": \"x\", \"call\": \"claim\", \"worker\": 7}\n\xff\xfe\n")?;
    let told = [session.line()?, session.line()?, session.line()?];
    let expected = ["line 1: is not JSON", "line 3: claim: `worker`: invalid type: integer `7`", "line 4: is not UTF-8"];
    for (answer, expected) in told.iter().zip(expected) {
        let detail = answer["error"]["detail"].as_str().unwrap_or_default();
        assert!(answer["error"]["code"] == "bad-request" && detail.starts_with(expected), "{answer}");
    }
    assert_eq!(told[1]["id"], "x");
    // The adapter's own refusals come with their codes.
    let (code, detail) = session.refused(json!({"call": "open", "config": {"tabel": "t"}}))?;
    assert!(code == "invalid-configuration" && detail.contains("tabel"), "{code}: {detail}");
    session.fine(json!({"call": "open"}))?;
    let (_, detail) = session.refused(json!({"call": "stats"}))?;
    assert!(detail.contains("outbox"), "{detail}");
    assert_eq!(session.refused(json!({"call": "publish", "messages": []}))?.0, "bad-request");
    assert_eq!(session.end()?, Some(0));
    Ok(())
}

#[test]
fn a_publisher_publishes_and_reports() -> Result<()> {
    let receiver = Receiver::start(|request| Answer::status(if request.body == "bad" { 400 } else { 204 }))?;
    let (url, host) = (format!("url = \"http://{}/\"", receiver.address()), receiver.address().to_string());
    let mut session = Session::of_plugin("http-publisher", &["--set", &url, "--allow-host", &host])?;
    assert_eq!(session.fine(json!({"call": "open"}))?["kind"], "publisher");
    let message = |id: &str, key: &str, payload: &str| json!({"id": id, "topic": "t", "key": key, "payload": payload});
    let messages = [message("1", "a", "good"), message("2", "b", "bad"), message("3", "b", "good")];
    let published = session.fine(json!({"call": "publish", "messages": messages}))?;
    let outcomes: Vec<_> = published["outcomes"].as_array().context("none")?.iter().map(|outcome| outcome["outcome"].clone()).collect();
    assert_eq!(outcomes, ["delivered", "reject", "held"]);
    assert_eq!(published["outcomes"][1]["failure"]["code"], "invalid-message");
    let mut reports = published["reports"].as_array().context("none")?.clone();
    reports.sort_by_key(|report| report["index"].as_u64());
    assert_eq!(reports.iter().map(|report| report["outcome"].clone()).collect::<Vec<_>>(), outcomes);
    assert_eq!(session.refused(json!({"call": "stats"}))?.0, "bad-request");
    assert_eq!(session.end()?, Some(0));
    Ok(())
}

#[test]
fn an_adapter_that_traps_is_told_with_what_it_had_reported_and_works_again() -> Result<()> {
    let mut session = Session::start(&places::fixtures()?.join("evil-publisher.wasm"), &[])?;
    session.fine(json!({"call": "open"}))?;
    let publish =
        |payload: &str| json!({"call": "publish", "messages": [{"id": "1", "topic": "t", "payload": payload}], "deadline_ms": 1000});
    let answer = session.ask(publish("report-then-spin"))?;
    assert_eq!(
        (&answer["error"]["code"], &answer["reports"]),
        (&json!("timeout"), &json!([{"index": 0, "outcome": "delivered"}])),
        "{answer}"
    );
    assert_eq!(session.refused(publish("panic"))?.0, "trapped");
    assert_eq!(session.fine(publish("x"))?["outcomes"], json!([{"outcome": "delivered"}]));
    assert_eq!(session.end()?, Some(0));
    Ok(())
}

#[test]
fn what_is_no_component_is_wrong_usage() -> Result<()> {
    let session = Session::start(Path::new("/no/such/adapter.wasm"), &[])?;
    assert_eq!(session.end()?, Some(2));
    Ok(())
}
