//! Messages in lines, on their way into a table: all or none where they fit into memory, else in order, with a place to go on from.

use super::error::CommandError;
use super::output;
use crate::domain::Batch;
use crate::jsonl::JsonMessage;
use anyhow::anyhow;
use std::io::{BufRead, Read};

/// Rows of one transaction.
const BATCH: usize = 500;
/// Bytes of one transaction, about.
const BATCH_BYTES: usize = 4 << 20;
/// Longest line: over it, something else was meant.
const MAX_LINE: u64 = 256 << 20;
/// Input that is read as a whole before anything is inserted, in bytes: much more than anybody writes by hand, and a small part of
/// the memory of any machine.
pub(super) const WHOLE: usize = 64 << 20;
/// Wrong lines that are listed; of more, the number is told.
const MAX_LISTED: usize = 20;

/// Lines that go in together.
#[derive(Default)]
struct Chunk {
    batch: Batch,
    bytes: usize,
    /// Number of its first line.
    first: u64,
}

impl Chunk {
    fn is_full(&self) -> bool {
        self.batch.len() >= BATCH || self.bytes >= BATCH_BYTES
    }
}

/// Why not all lines went in.
#[derive(Debug)]
pub(super) struct Stopped {
    /// The line to go on from; everything before it went in.
    pub(super) next_line: u64,
    /// What happened.
    pub(super) error: CommandError,
}

/// Hands the messages of `reader` to `insert`, batch by batch, and the ids that it returns to `ids`. Of an input of at most `whole`
/// bytes nothing is inserted if any line is wrong. `name` is the input's, for errors.
pub(super) async fn feed(
    reader: &mut dyn BufRead,
    name: &str,
    whole: usize,
    ids: &mut Vec<String>,
    mut insert: impl AsyncFnMut(&Batch) -> Result<Vec<String>, CommandError>,
) -> Result<(), Stopped> {
    let (mut chunks, mut wrong, mut read_bytes) = (vec![Chunk { first: 1, ..Chunk::default() }], Wrong::default(), 0usize);
    let mut number = 1u64;
    let mut more = true;
    while more && read_bytes <= whole {
        let Some(chunk) = chunks.last_mut() else { break };
        // Reading blocks; nothing else runs in this process meanwhile but the open storage.
        match next_line(reader, &mut chunk.batch) {
            Line::End => more = false,
            Line::Read(bytes) => {
                chunk.bytes = chunk.bytes.saturating_add(bytes);
                read_bytes = read_bytes.saturating_add(bytes);
            }
            Line::Wrong(bytes, reason) => {
                wrong.add(number, reason);
                read_bytes = read_bytes.saturating_add(bytes);
            }
            Line::Unreadable(reason) => {
                wrong.add(number, reason);
                more = false;
            }
        }
        number = number.saturating_add(1);
        if chunk.is_full() {
            chunks.push(Chunk { first: number, ..Chunk::default() });
        }
    }
    if wrong.count > 0 {
        return Err(Stopped { next_line: 1, error: wrong.told(name, more) });
    }
    for chunk in chunks {
        put(chunk, ids, &mut insert).await?;
    }
    while more {
        let mut chunk = Chunk { first: number, ..Chunk::default() };
        let mut stopped = None;
        while more && stopped.is_none() && !chunk.is_full() {
            match next_line(reader, &mut chunk.batch) {
                Line::End => more = false,
                Line::Read(bytes) => chunk.bytes = chunk.bytes.saturating_add(bytes),
                Line::Wrong(_, reason) | Line::Unreadable(reason) => {
                    let text = anyhow!("{name}:{number}: {reason} (all lines before it went in, nothing from it on)");
                    stopped = Some(Stopped { next_line: number, error: CommandError::usage(text) });
                }
            }
            number = number.saturating_add(1);
        }
        // What was read before a wrong line goes in: its number then says exactly where to go on.
        put(chunk, ids, &mut insert).await?;
        if let Some(stopped) = stopped {
            return Err(stopped);
        }
    }
    Ok(())
}

async fn put(
    chunk: Chunk,
    ids: &mut Vec<String>,
    insert: &mut impl AsyncFnMut(&Batch) -> Result<Vec<String>, CommandError>,
) -> Result<(), Stopped> {
    if !chunk.batch.is_empty() {
        ids.extend(insert(&chunk.batch).await.map_err(|error| Stopped { next_line: chunk.first, error })?);
    }
    Ok(())
}

/// Lines that are wrong.
#[derive(Default)]
struct Wrong {
    count: u64,
    listed: Vec<(u64, String)>,
}

impl Wrong {
    fn add(&mut self, number: u64, reason: String) {
        self.count = self.count.saturating_add(1);
        if self.listed.len() < MAX_LISTED {
            self.listed.push((number, reason));
        }
    }

    /// `more`: the input goes on, and has not been looked at to its end.
    fn told(&self, name: &str, more: bool) -> CommandError {
        let so_far = if more { " in the part that was read" } else { "" };
        let mut text = format!("nothing was inserted: {name} has {}{so_far}:", output::count(self.count, "wrong line"));
        for (number, reason) in &self.listed {
            text.push_str(&format!("\n  {name}:{number}: {reason}"));
        }
        let left = self.count.saturating_sub(u64::try_from(self.listed.len()).unwrap_or(u64::MAX));
        if left > 0 {
            text.push_str(&format!("\n  and {left} more"));
        }
        CommandError::usage(anyhow!(text))
    }
}

/// What a line was.
enum Line {
    /// There are no more.
    End,
    /// So many bytes: a message that is in the batch now, or blank.
    Read(usize),
    /// So many bytes that are no message.
    Wrong(usize, String),
    /// Nothing that comes after it can be read.
    Unreadable(String),
}

fn next_line(reader: &mut dyn BufRead, batch: &mut Batch) -> Line {
    let mut line = Vec::new();
    let read = match reader.take(MAX_LINE).read_until(b'\n', &mut line) {
        Ok(0) => return Line::End,
        Ok(read) => read,
        Err(error) => return Line::Unreadable(format!("cannot be read: {error}")),
    };
    if line.len() as u64 == MAX_LINE {
        return Line::Unreadable(format!("is longer than {MAX_LINE} bytes"));
    }
    let parsed = match std::str::from_utf8(&line) {
        Ok(text) if text.trim().is_empty() => Ok(()),
        Ok(text) => JsonMessage::parse(text).and_then(|message| message.push_to(batch)),
        Err(error) => Err(format!("is not UTF-8: {error}")),
    };
    parsed.map_or_else(|reason| Line::Wrong(read, reason), |()| Line::Read(read))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    const GOOD: &str = "{\"topic\":\"t\",\"payload\":\"p\"}\n";

    /// Feeds a text; `refuse` is the call of `insert` that fails. Ids are numbers in the order of insertion.
    async fn fed(text: &str, whole: usize, refuse: Option<usize>) -> (Vec<String>, Option<(u64, String)>) {
        let (mut ids, mut calls, mut made) = (Vec::new(), 0, 0);
        let insert = async |batch: &Batch| {
            calls += 1;
            if refuse == Some(calls) {
                return Err(CommandError::failure(anyhow!("locked")));
            }
            let first = made;
            made += batch.len();
            Ok((first..made).map(|id| id.to_string()).collect())
        };
        let ended = feed(&mut Cursor::new(text.to_owned()), "in.jsonl", whole, &mut ids, insert).await;
        (ids, ended.err().map(|stopped| (stopped.next_line, stopped.error.text())))
    }

    #[tokio::test]
    async fn good_lines_go_in_and_blank_ones_are_passed_over() {
        let (ids, stopped) = fed(&format!("{GOOD}\n{GOOD}"), WHOLE, None).await;
        assert_eq!((ids.len(), stopped), (2, None));
        let (ids, stopped) = fed(&GOOD.repeat(3 * BATCH + 1), WHOLE, None).await;
        assert_eq!((ids.len(), stopped), (3 * BATCH + 1, None));
        assert_eq!(fed(&GOOD.repeat(3 * BATCH + 1), 10, None).await, (ids, None));
        assert_eq!(fed("", WHOLE, None).await, (vec![], None));
    }

    #[tokio::test]
    async fn one_wrong_line_keeps_all_out_and_every_wrong_line_is_told() {
        let text = format!("{}{{\n{GOOD}{{\"topic\":\"t\"}}\n", GOOD.repeat(BATCH + 1));
        let (ids, stopped) = fed(&text, WHOLE, None).await;
        let (next, told) = stopped.unwrap();
        assert_eq!((ids.len(), next), (0, 1));
        assert!(told.starts_with("nothing was inserted: in.jsonl has 2 wrong lines:\n  in.jsonl:502: "), "{told}");
        assert!(told.contains("\n  in.jsonl:504: has no payload"), "{told}");
        let (_, stopped) = fed(&"{\n".repeat(MAX_LISTED + 7), WHOLE, None).await;
        assert!(stopped.unwrap().1.ends_with("\n  and 7 more"));
    }

    #[tokio::test]
    async fn a_long_input_goes_in_up_to_the_wrong_line() {
        let text = format!("{}{{\n{GOOD}", GOOD.repeat(2 * BATCH + 3));
        let (ids, stopped) = fed(&text, 100, None).await;
        let (next, told) = stopped.unwrap();
        assert_eq!((ids.len(), next), (2 * BATCH + 3, 2 * BATCH as u64 + 4));
        assert!(told.starts_with("in.jsonl:1004: ") && told.contains("all lines before it went in"), "{told}");
    }

    #[tokio::test]
    async fn after_a_failure_the_first_line_of_its_batch_is_told() {
        for whole in [WHOLE, 10] {
            let (ids, stopped) = fed(&GOOD.repeat(3 * BATCH), whole, Some(2)).await;
            let (next, told) = stopped.unwrap();
            assert_eq!(ids.len() as u64 + 1, next, "{whole}");
            assert!(!ids.is_empty() && told == "locked", "{told}");
        }
    }
}
