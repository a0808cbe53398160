//! A message to a person: its row, headers and payload; bytes that are no text as a hex dump.

use super::output::{age, cell};
use crate::domain::Message;
use crate::ports::Row;
use std::fmt::Write;
use std::time::SystemTime;

/// Most bytes of a payload that are shown as text: a few screens.
const TEXT_LIMIT: usize = 16 << 10;
/// Most bytes that are shown as a hex dump: one screen.
const HEX_LIMIT: usize = 512;
/// Characters of a header's value.
const HEADER_LIMIT: usize = 500;

/// Everything that is known of a row.
pub(super) fn show(row: &Row, message: Message<'_>, now: SystemTime) -> String {
    let mut out = String::new();
    let mut field = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name:<11} {value}");
    };
    field("id", &cell(&row.id, HEADER_LIMIT));
    field("topic", &cell(&row.topic, HEADER_LIMIT));
    field("key", &row.key.as_deref().map_or_else(|| "(none)".to_owned(), |key| cell(key, HEADER_LIMIT)));
    field("state", row.state.as_str());
    field("attempts", &row.attempts.to_string());
    if row.created_at > 0 {
        field("created", &format!("{} ago", age(row.created_at, now)));
    }
    if let Some(error) = &row.last_error {
        field("last error", &lines(error, TEXT_LIMIT));
    }
    for (name, value) in message.headers() {
        let value = match std::str::from_utf8(value) {
            Ok(text) => cell(text, HEADER_LIMIT),
            Err(_) => format!("({} bytes that are no text)", value.len()),
        };
        field("header", &format!("{}: {value}", cell(name, HEADER_LIMIT)));
    }
    match message.payload() {
        None => field("payload", "(none: a tombstone)"),
        Some([]) => field("payload", "(empty)"),
        Some(bytes) => {
            field("payload", &format!("{} bytes", bytes.len()));
            out.push('\n');
            out.push_str(&payload(bytes));
        }
    }
    out.trim_end().to_owned()
}

fn payload(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|character| character.is_control() && !matches!(character, '\n' | '\r' | '\t')) => {
            lines(text, TEXT_LIMIT)
        }
        _ => hex_dump(bytes),
    }
}

/// Text as it is, but for control characters (a terminal would act on them), cut on a character border.
fn lines(text: &str, limit: usize) -> String {
    let end = text.floor_char_boundary(limit);
    let shown = text.get(..end).unwrap_or(text);
    let harmless = |character: char| if character.is_control() && !matches!(character, '\n' | '\t') { ' ' } else { character };
    let mut out: String = shown.chars().filter(|character| *character != '\r').map(harmless).collect();
    if end < text.len() {
        let _ = write!(out, "\n… ({} more bytes; --json has all of it)", text.len() - end);
    }
    out
}

fn hex_dump(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (index, chunk) in bytes.chunks(16).take(HEX_LIMIT / 16).enumerate() {
        let hex: String = chunk.iter().map(|byte| format!("{byte:02x} ")).collect();
        let text: String =
            chunk.iter().map(|byte| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' }).collect();
        let _ = writeln!(out, "{:08x}  {hex:<48} {text}", index * 16);
    }
    if bytes.len() > HEX_LIMIT {
        let _ = write!(out, "… ({} more bytes; --json has all of it)", bytes.len() - HEX_LIMIT);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Batch, NewMessage};
    use crate::ports::RowState;

    fn shown(payload: Option<&[u8]>) -> String {
        let mut batch = Batch::default();
        batch.push(&NewMessage { id: Some("7"), topic: "t", headers: vec![("h", b"v\x1b[2J")], payload, ..NewMessage::default() });
        let row = Row {
            id: "7".into(),
            topic: "t".into(),
            key: None,
            state: RowState::Dead,
            attempts: 3,
            last_error: Some("HTTP 400\u{1b}[2J".into()),
            created_at: 0,
            due_in_ms: 0,
        };
        show(&row, batch.message(0), SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn each_kind_of_payload_has_its_form() {
        assert!(shown(None).contains("tombstone"));
        assert!(shown(Some(b"")).contains("(empty)"));
        assert!(shown(Some(b"{\"a\": 1}")).ends_with("\n\n{\"a\": 1}"));
        assert!(shown(Some(b"\x00\xffab")).contains("00000000  00 ff 61 62 "));
    }

    #[test]
    fn nothing_reaches_the_terminal_but_text() {
        for payload in [&b"\x1b[2J"[..], b"\xff\x1b", b"a\rb"] {
            assert!(!shown(Some(payload)).contains(['\u{1b}', '\r']));
        }
    }

    #[test]
    fn long_payloads_are_cut() {
        let text = shown(Some("é".repeat(20_000).as_bytes()));
        assert!(text.len() < 20_000 && text.contains("--json has all of it"));
        let binary = shown(Some(&[0; 5000]));
        assert!(binary.len() < 5_000 && binary.contains("4488 more bytes"));
    }
}
