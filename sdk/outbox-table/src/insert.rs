//! A message on its way into the table: checked against what the table can hold, so that nothing is silently left out.

use crate::config::{Columns, Config};
use crate::database::Value;
use crate::decode::{Decoding, check_json};
use crate::headers::Headers;
use crate::ident::Ident;
use outhaul_sdk::{Failure, Message};

/// How a table takes payloads and ids.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Payloads are written as text.
    pub text_payload: bool,
    /// Payloads must be JSON.
    pub json_payload: bool,
    /// A message's own id is used.
    pub takes_ids: bool,
}

/// Columns that a message fills, with their values, at most one each.
///
/// # Errors
/// `invalid-message`, with its number in the batch, if the table cannot hold it.
pub fn values(
    config: &Config,
    columns: &Columns,
    decoding: &Decoding,
    shape: Shape,
    message: Message<'_>,
) -> Result<Vec<(Ident, Value)>, Failure> {
    let refuse = |what: String| Err(Failure::invalid_message(format!("message {} ({}): {what}", message.index() + 1, message.topic())));
    let mut values = Vec::new();
    match message.id() {
        id if id.is_empty() || !shape.takes_ids => {}
        id if decoding.ids.takes(id) => values.push((columns.id.clone(), decoding.ids.value(id))),
        id => {
            let kind = if decoding.ids == crate::ids::IdKind::Integer { "a number" } else { "a UUID in lower case" };
            return refuse(format!("the id `{id}` is not {kind}, and ids of this table are"));
        }
    }
    match &columns.topic {
        Some(topic) => values.push((topic.clone(), Value::Text(message.topic().to_owned()))),
        None if decoding.topic.as_deref() != Some(message.topic()) => {
            return refuse(format!("the table holds one topic only, `{}`", decoding.topic.as_deref().unwrap_or_default()));
        }
        None => {}
    }
    match (&columns.key, message.key().filter(|key| !key.is_empty())) {
        (Some(column), Some(key)) => values.push((column.clone(), Value::Text(key.to_owned()))),
        (None, Some(_)) => return refuse("the table has no column for keys".to_owned()),
        (_, None) => {}
    }
    let payload = match message.payload() {
        None => Value::Null,
        Some(bytes) if shape.text_payload => match std::str::from_utf8(bytes) {
            Ok(payload) => Value::Text(payload.to_owned()),
            Err(_) => {
                return refuse("the payload is not UTF-8 text, which the table's `payload_encoding` or its column asks for".to_owned());
            }
        },
        Some(bytes) => Value::Bytes(bytes.to_vec()),
    };
    if let (true, Some(payload)) = (shape.json_payload, message.payload())
        && let Err(reason) = check_json(payload)
    {
        return refuse(reason);
    }
    values.push((columns.payload.clone(), payload));

    let mut stored = Headers::default();
    let mut taken = Vec::new();
    for (name, value) in message.headers() {
        let Ok(value) = std::str::from_utf8(value) else { return refuse(format!("the value of the header `{name}` is not UTF-8 text")) };
        let extra = config.extra_headers.iter().find(|(_, header)| header.eq_ignore_ascii_case(name)).map(|(column, _)| column);
        match extra.filter(|column| !taken.contains(column)) {
            Some(column) => {
                taken.push(column);
                // Checked when the configuration was read.
                if let Ok(column) = Ident::new(column.as_str()) {
                    values.push((column, Value::Text(value.to_owned())));
                }
            }
            None => stored.0.push((name.to_owned(), value.to_owned())),
        }
    }
    match &columns.headers {
        Some(column) if !stored.0.is_empty() => values.push((column.clone(), Value::Text(stored.encode()))),
        None if !stored.0.is_empty() => return refuse("the table has no column for headers".to_owned()),
        _ => {}
    }
    Ok(values)
}
