//! A session: requests come in as lines, answers go out as lines. Requests to one instance are done in their order, those to
//! different instances at once; an answer carries the id of its request.

use super::instance::{Opener, Told, perform};
use super::lines::{self, Line, MAX_LINE};
use super::messages;
use super::request::{BadRequest, Request};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Instances of one session: each may take as much memory as its limits allow.
const MAX_INSTANCES: usize = 64;

/// Requests that wait for one instance, and answers that wait to be written; reading stops until there is room.
const WAITING: usize = 64;

/// How a line is no request, in the place of a failure's code.
const BAD_REQUEST: &str = "bad-request";

/// Characters that are told of what is wrong with a request: it may quote one of many megabytes.
const MOST_TOLD: usize = 1000;

/// Why a session ended before its input did.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// The requests cannot be read.
    #[error("the input cannot be read: {0}")]
    Input(io::Error),
    /// The answers cannot be written.
    #[error(transparent)]
    Output(io::Error),
    /// A call panicked in the host.
    #[error("a fault in outhaul itself: {0}")]
    Fault(tokio::task::JoinError),
}

/// A line with its number, or why there are no more.
type Input = io::Result<(u64, Line)>;

/// Serves until the input ends and everything is answered, or nobody reads the answers any more.
///
/// # Errors
/// The input cannot be read, or the output cannot be written.
pub(super) async fn serve(
    opener: impl Opener,
    input: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(), SessionError> {
    let mut input = read(input);
    let (answers, mut written) = write(output);
    let opener = Arc::new(opener);
    let mut instances: HashMap<String, mpsc::Sender<Request>> = HashMap::new();
    let mut tasks = JoinSet::new();
    let ended = loop {
        let (number, line) = tokio::select! {
            line = input.recv() => match line {
                Some(Ok(line)) => line,
                Some(Err(error)) => break Err(SessionError::Input(error)),
                None => break Ok(()),
            },
            // The reader of our answers has gone: nothing that is still asked matters.
            _ = answers.closed() => break Ok(()),
        };
        let request = match line {
            Line::Text(text) => Request::parse(&text),
            Line::Wrong(reason) => Err(BadRequest { id: Value::Null, reason }),
        };
        let bad = match request {
            Err(bad) => bad,
            Ok(Request { id, instance, .. }) if instances.len() >= MAX_INSTANCES && !instances.contains_key(&instance) => {
                BadRequest { id, reason: format!("{instance:?} would be one instance more than {MAX_INSTANCES}") }
            }
            Ok(request) => {
                let queue = instances.entry(request.instance.clone()).or_insert_with(|| {
                    let (queue, requests) = mpsc::channel(WAITING);
                    tasks.spawn(work(request.instance.clone(), Arc::clone(&opener), requests, answers.clone()));
                    queue
                });
                // Fails only where nobody reads answers any more, which is noticed above.
                let _ = queue.send(request).await;
                continue;
            }
        };
        let _ = answers.send(json!({ "id": bad.id, "error": bad_request(&format!("line {number}: {}", bad.reason)) })).await;
    };
    drop(instances);
    while let Some(task) = tasks.join_next().await {
        task.map_err(SessionError::Fault)?;
    }
    drop(answers);
    let wrote = written.recv().await.unwrap_or(Ok(()));
    ended.and(wrote.map_err(SessionError::Output))
}

/// One instance, until no request can come any more or nobody reads answers.
async fn work(name: String, opener: Arc<impl Opener>, mut requests: mpsc::Receiver<Request>, answers: mpsc::Sender<Value>) {
    let mut instance = None;
    while let Some(Request { id, call, .. }) = requests.recv().await {
        let told = perform(opener.as_ref(), &name, &mut instance, call).await;
        if answers.send(answer(id, told)).await.is_err() {
            return;
        }
    }
}

fn answer(id: Value, told: Told) -> Value {
    match told {
        Told::Fine(result) => json!({ "id": id, "ok": result }),
        Told::Failed(failure) => json!({ "id": id, "error": messages::failure(&failure) }),
        Told::Broken(failure, reports) => json!({ "id": id, "error": messages::failure(&failure), "reports": reports }),
        Told::Bad(reason) => json!({ "id": id, "error": bad_request(&reason) }),
    }
}

fn bad_request(reason: &str) -> Value {
    let mut detail: String = reason.chars().take(MOST_TOLD).collect();
    if detail.len() < reason.len() {
        detail.push_str("... (cut)");
    }
    json!({ "code": BAD_REQUEST, "detail": detail })
}

/// Reads lines on a thread of its own: reading blocks.
fn read(mut input: impl BufRead + Send + 'static) -> mpsc::Receiver<Input> {
    let (lines, out) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut number = 0;
        loop {
            let line = match lines::next(&mut input, &mut number, MAX_LINE) {
                Ok(None) => return,
                Ok(Some(line)) => Ok((number, line)),
                Err(error) => Err(error),
            };
            let last = line.is_err();
            if lines.blocking_send(line).is_err() || last {
                return;
            }
        }
    });
    out
}

/// Writes answers on a thread of its own, and tells at last whether that went well.
fn write(mut output: impl Write + Send + 'static) -> (mpsc::Sender<Value>, mpsc::Receiver<io::Result<()>>) {
    let (answers, mut queue) = mpsc::channel::<Value>(WAITING);
    let (done, told) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut all = || {
            while let Some(answer) = queue.blocking_recv() {
                // Whoever asked waits for it: each is flushed.
                writeln!(output, "{answer}")?;
                output.flush()?;
            }
            Ok(())
        };
        let result = all();
        drop(queue);
        // Whoever wanted to know may have gone.
        let _ = done.blocking_send(result);
    });
    (answers, told)
}

#[cfg(test)]
mod tests {
    use super::super::instance::Opened;
    use super::*;
    use crate::domain::{Failure, FailureCode};
    use serde_json::Map;
    use std::sync::{Mutex, PoisonError};

    /// Opens nothing: what is told of wrong lines needs no adapter.
    struct Closed;

    impl Opener for Closed {
        async fn open(&self, config: Map<String, Value>) -> Result<Opened, Failure> {
            Err(Failure::new(FailureCode::InvalidConfiguration, format!("`{}`: unknown", config.keys().cloned().collect::<String>())))
        }
    }

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    async fn answers(input: &[u8]) -> Vec<Value> {
        let sink = Sink::default();
        serve(Closed, io::Cursor::new(input.to_vec()), sink.clone()).await.unwrap();
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn bad(id: Value, detail: &str) -> Value {
        json!({ "id": id, "error": { "code": "bad-request", "detail": detail } })
    }

    #[tokio::test]
    async fn every_line_is_answered_and_wrong_ones_say_what_is_wrong() {
        let lines = b"nonsense\n\n\xff\n{\"id\": 1, \"call\": \"stats\"}\n{\"id\": 2, \"call\": \"open\", \"config\": {\"kay\": 1}}\n";
        let mut answers = answers(lines).await;
        answers.sort_by_key(|answer| answer["id"].as_u64());
        let expected = [
            bad(Value::Null, "line 1: is not JSON: expected ident at column 2"),
            bad(Value::Null, "line 3: is not UTF-8: invalid utf-8 sequence of 1 bytes from index 0"),
            bad(json!(1), "\"main\" is not open: send {\"call\": \"open\"} first"),
            json!({ "id": 2, "error": { "code": "invalid-configuration", "detail": "`kay`: unknown" } }),
        ];
        assert_eq!(answers, expected);
    }

    #[tokio::test]
    async fn there_is_a_bound_on_instances() {
        let line = |index| format!("{{\"id\": {index}, \"instance\": \"{index}\", \"call\": \"close\"}}\n");
        let lines: String = (0..=MAX_INSTANCES).map(line).collect();
        let answers = answers(lines.as_bytes()).await;
        let refused: Vec<&Value> = answers.iter().filter(|answer| answer.get("error").is_some()).collect();
        assert_eq!(answers.len(), MAX_INSTANCES + 1);
        assert_eq!(refused, [&bad(json!(64), "line 65: \"64\" would be one instance more than 64")]);
    }

    /// A pipe whose reader has gone.
    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_session_whose_answers_nobody_reads_ends() {
        let error = serve(Closed, io::Cursor::new("{}\n".repeat(1000)), Gone).await.unwrap_err();
        assert!(matches!(&error, SessionError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe), "{error}");
    }

    #[tokio::test]
    async fn an_input_that_cannot_be_read_is_told_as_that() {
        let folder = tempfile::tempdir().unwrap();
        let input = io::BufReader::new(std::fs::File::open(folder.path()).unwrap());
        let error = serve(Closed, input, Sink::default()).await.unwrap_err();
        assert_eq!(error.to_string(), "the input cannot be read: Is a directory (os error 21)");
    }

    #[tokio::test]
    async fn what_a_wrong_request_says_is_quoted_up_to_a_bound() {
        let long = "☃".repeat(5000);
        let lines = format!("{{\"id\": 1, \"call\": \"{long}\"}}\n{{\"id\": 2, \"instance\": \"{long}\", \"call\": \"stats\"}}\n");
        let answers = answers(lines.as_bytes()).await;
        assert_eq!(answers.len(), 2);
        for answer in answers {
            let detail = answer["error"]["detail"].as_str().unwrap();
            assert!(detail.chars().count() == MOST_TOLD + 9 && detail.ends_with("☃... (cut)"), "{detail}");
        }
    }

    #[tokio::test]
    async fn a_line_that_breaks_off_is_answered_and_one_that_is_whole_is_done() {
        for (last, told) in [
            ("{\"id\": 2, \"call\": \"clo", bad(Value::Null, "line 2: is not JSON: EOF while parsing a string at column 22")),
            ("{\"id\": 2, \"call\": \"close\"}", json!({ "id": 2, "ok": { "was_open": false } })),
        ] {
            let answers = answers(format!("{{\"id\": 1, \"call\": \"close\"}}\n{last}").as_bytes()).await;
            assert!(answers.len() == 2 && answers.contains(&told), "{answers:?}");
        }
    }
}
