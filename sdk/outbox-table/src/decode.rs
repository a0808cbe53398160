//! Rows, as a claim reads them, into a batch. A row that cannot be decoded is named, and the others flow.

use crate::config::PayloadEncoding;
use crate::database::{ColumnType, Integers, Reader, Value};
use crate::headers::Headers;
use crate::ids::{IdKind, Ids};
use outhaul_sdk::{Batch, Column, Failure};
use serde::de::IgnoredAny;
use std::collections::HashMap;

/// How rows are read.
#[derive(Debug, Clone, Default)]
pub struct Decoding {
    /// Which ids there are.
    pub ids: IdKind,
    /// How many texts tell a row's place in the order. 0: the order is one integer, and a column of every result.
    pub place_texts: usize,
    /// The id is the order too: it is not read twice.
    pub id_is_order: bool,
    /// The topic of every row; none: there is a column.
    pub topic: Option<String>,
    /// There is a column of keys.
    pub keys: bool,
    /// There is a column of headers.
    pub headers: bool,
    /// Payload encoding.
    pub encoding: PayloadEncoding,
    /// Header names of further columns.
    pub extra_headers: Vec<String>,
}

impl Decoding {
    /// The types to ask for: order, id, topic, key, headers, payload, attempts, creation, further columns; what is not there is left out.
    #[must_use]
    pub fn columns(&self) -> Vec<ColumnType> {
        let mut columns = Vec::new();
        if self.place_texts == 0 {
            columns.push(ColumnType::Integer);
        }
        if !self.id_is_order {
            columns.push(self.ids.column());
        }
        columns.extend(std::iter::repeat_n(
            ColumnType::Bytes,
            1 + [self.topic.is_none(), self.keys, self.headers].iter().filter(|has| **has).count(),
        ));
        columns.extend([ColumnType::Integer, ColumnType::Integer]);
        columns.extend(std::iter::repeat_n(ColumnType::Bytes, self.extra_headers.len()));
        columns
    }

    /// The columns that were asked for.
    ///
    /// # Errors
    /// If the database driver broke its promise.
    pub fn read(&self, reader: &mut Reader) -> Result<Fetched, Failure> {
        let order = if self.place_texts == 0 { Some(reader.integers()?) } else { None };
        let ids = match &order {
            Some(order) if self.id_is_order => Ids::Integers(order.clone()),
            _ => self.ids.read(reader)?,
        };
        Ok(Fetched {
            order,
            ids,
            topics: if self.topic.is_none() { Some(reader.bytes()?) } else { None },
            keys: if self.keys { Some(reader.bytes()?) } else { None },
            headers: if self.headers { Some(reader.bytes()?) } else { None },
            payloads: reader.bytes()?,
            attempts: reader.integers()?,
            created_at: reader.integers()?,
            extra: self.extra_headers.iter().map(|_| reader.bytes()).collect::<Result<_, _>>()?,
        })
    }

    /// Rows in insertion order; as they came, where no integer and no [`Fetched::in_order_of`] tells it. A row that cannot be decoded is
    /// left out and named, or (`keep`) is in the batch with what could be read of it.
    #[must_use]
    pub fn decode(&self, fetched: Fetched, keep: bool) -> Decoded {
        let mut rows: Vec<usize> = (0..fetched.ids.len()).collect();
        // UPDATE .. RETURNING has no order.
        if let Some(order) = &fetched.order {
            rows.sort_by_key(|row| order.get(*row));
        }
        let mut batch = Batch::new();
        let mut faults = Vec::new();
        rows.retain(|row| {
            let names = (batch.header_names.len(), batch.header_names.data.len(), batch.header_values.data.len());
            if let Err(reason) = self.decode_row(&fetched, *row, &mut batch) {
                cut(&mut batch.header_names, names.0, names.1);
                cut(&mut batch.header_values, names.0, names.2);
                if !keep {
                    faults.push((fetched.ids.text(*row).into_owned(), reason));
                    return false;
                }
            }
            batch.header_ends.push(u32::try_from(batch.header_names.len()).unwrap_or(u32::MAX));
            true
        });
        for row in &rows {
            batch.attempts.push(u32::try_from(fetched.attempts.count(*row)).unwrap_or(u32::MAX).max(1));
            batch.created_at.push(fetched.created_at.count(*row));
        }
        batch.ids = match &fetched.ids {
            Ids::Integers(_) => Column::of_texts(rows.iter().map(|row| fetched.ids.text(*row))),
            Ids::Texts(_) => Column::new(),
        };
        if let Ids::Texts(ids) = fetched.ids {
            batch.ids = texts(arrange(ids, &rows));
        }
        batch.topics = match (&self.topic, fetched.topics) {
            (None, Some(topics)) => texts(arrange(topics, &rows)),
            (topic, _) => Column::of_texts(rows.iter().map(|_| topic.as_deref().unwrap_or_default())),
        };
        batch.keys = match fetched.keys {
            Some(keys) => without_empty(texts(arrange(keys, &rows))),
            None => nones(rows.len()),
        };
        batch.payloads = arrange(fetched.payloads, &rows);
        Decoded { batch, faults }
    }

    /// Appends the headers of a row.
    fn decode_row(&self, fetched: &Fetched, row: usize, batch: &mut Batch) -> Result<(), String> {
        if fetched.topics.as_ref().is_some_and(|topics| topics.get(row).is_none()) {
            return Err("the topic is NULL".to_owned());
        }
        if let Some(payload) = fetched.payloads.get(row) {
            match self.encoding {
                PayloadEncoding::Bytes => {}
                PayloadEncoding::Text => {
                    std::str::from_utf8(payload).map_err(|_| "the payload is not UTF-8 text")?;
                }
                PayloadEncoding::Json => check_json(payload)?,
            }
        }
        if let Some(stored) = fetched.headers.as_ref().and_then(|headers| headers.get(row)) {
            for (name, value) in Headers::decode(stored)?.0 {
                batch.header_names.push(Some(name.as_bytes()));
                batch.header_values.push(Some(value.as_bytes()));
            }
        }
        for (name, values) in self.extra_headers.iter().zip(&fetched.extra) {
            if let Some(value) = values.get(row) {
                batch.header_names.push(Some(name.as_bytes()));
                batch.header_values.push(Some(value));
            }
        }
        Ok(())
    }
}

/// Refuses what is not JSON.
///
/// # Errors
/// Where it is not. The text quotes nothing of it.
pub fn check_json(payload: &[u8]) -> Result<(), String> {
    serde_json::from_slice::<IgnoredAny>(payload).map(|_| ()).map_err(|error| format!("the payload is not JSON: {error}"))
}

/// Columns of rows, as they were read.
#[derive(Debug, Clone)]
pub struct Fetched {
    order: Option<Integers>,
    ids: Ids,
    topics: Option<Column>,
    keys: Option<Column>,
    headers: Option<Column>,
    payloads: Column,
    attempts: Integers,
    created_at: Integers,
    extra: Vec<Column>,
}

impl Fetched {
    /// The last place in the order; none: there are no rows, or the order is no integer.
    #[must_use]
    pub fn last_order(&self) -> Option<i64> {
        let order = self.order.as_ref()?;
        (0..order.len()).filter_map(|row| order.get(row)).max()
    }

    /// Says that the order is that of these ids, a parameter of the statement: for tables whose order is no integer.
    #[must_use]
    pub fn in_order_of(mut self, ids: &Value) -> Self {
        let places: HashMap<String, i64> = crate::search::names(ids).into_iter().zip(0..).collect();
        let place = |row| places.get(self.ids.text(row).as_ref()).copied().unwrap_or(i64::MAX);
        self.order = Some(Integers::from_iter((0..self.ids.len()).map(place)));
        self
    }
}

/// A batch, and the rows that could not be decoded: id and reason.
#[derive(Debug, Clone)]
pub struct Decoded {
    /// In insertion order.
    pub batch: Batch,
    /// Id and reason.
    pub faults: Vec<(String, String)>,
}

/// Forgets values appended after there were `len` values and `bytes` bytes.
fn cut(column: &mut Column, len: usize, bytes: usize) {
    column.ends.truncate(len);
    column.data.truncate(bytes);
    column.nulls.truncate(len);
}

/// The values of `rows`, in that order; nothing is copied where they are all of them in order.
fn arrange(column: Column, rows: &[usize]) -> Column {
    if column.len() == rows.len() && rows.iter().enumerate().all(|(at, row)| at == *row) {
        return column;
    }
    let mut arranged = Column::new();
    for row in rows {
        arranged.push(column.get(*row));
    }
    arranged
}

/// A column whose values are all UTF-8: what was not is replaced.
fn texts(column: Column) -> Column {
    let valid = std::str::from_utf8(&column.data)
        .is_ok_and(|text| column.ends.iter().all(|end| usize::try_from(*end).is_ok_and(|end| text.is_char_boundary(end))));
    if valid {
        return column;
    }
    let mut replaced = Column::new();
    for value in column.iter() {
        replaced.push(value.map(String::from_utf8_lossy).as_deref().map(str::as_bytes));
    }
    replaced
}

/// An empty key is no key: producers write it where there is none.
fn without_empty(column: Column) -> Column {
    if column.iter().all(|value| value.is_none_or(|value| !value.is_empty())) {
        return column;
    }
    let mut without = Column::new();
    for value in column.iter() {
        without.push(value.filter(|value| !value.is_empty()));
    }
    without
}

fn nones(len: usize) -> Column {
    Column { data: Vec::new(), ends: vec![0; len], nulls: vec![1; len] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::{Results, Rows, Values};
    use outhaul_sdk::sql;

    fn integers(values: &[i64]) -> Values {
        Values::Integers(sql::Integers { values: values.to_vec(), nulls: Vec::new() })
    }

    fn bytes(values: &[Option<&[u8]>]) -> Values {
        let mut column = Column::new();
        for value in values {
            column.push(*value);
        }
        Values::Bytes(column)
    }

    fn decode(decoding: &Decoding, columns: Vec<Values>, keep: bool) -> Decoded {
        let rows = Rows { changed: 0, columns };
        let fetched = decoding.read(&mut Results::new(vec![rows]).next_rows().unwrap()).unwrap();
        decoding.decode(fetched, keep)
    }

    fn decoding() -> Decoding {
        Decoding { ids: IdKind::Integer, id_is_order: true, keys: true, headers: true, ..Decoding::default() }
    }

    fn three(headers: [&str; 3], payloads: [&[u8]; 3]) -> Vec<Values> {
        vec![
            integers(&[9, 7, 8]),
            bytes(&[Some(b"t9"), Some(b"t7"), Some(b"\xff")]),
            bytes(&[Some(b"k"), Some(b""), None]),
            bytes(&headers.map(|text| Some(text.as_bytes()))),
            bytes(&payloads.map(Some)),
            integers(&[1, 2, 0]),
            integers(&[5, -1, 0]),
        ]
    }

    #[test]
    fn rows_come_out_in_insertion_order() {
        let decoded = decode(&decoding(), three([r#"{"a":"9"}"#, r#"{"a":"7","b":"7"}"#, ""], [b"9", b"7", b"8"]), false);
        let batch = decoded.batch;
        let shown: Vec<_> =
            batch.messages().map(|m| (m.id(), m.topic(), m.key(), m.payload().unwrap(), m.attempts(), m.created_at())).collect();
        assert_eq!(
            shown,
            [
                ("7", "t7", None, &b"7"[..], 2, None),
                ("8", "\u{fffd}", None, &b"8"[..], 1, None),
                ("9", "t9", Some("k"), &b"9"[..], 1, Some(5))
            ]
        );
        let headers: Vec<usize> = batch.messages().map(|message| message.headers().count()).collect();
        assert_eq!((headers, decoded.faults.len()), (vec![2, 0, 1], 0));
    }

    #[test]
    fn a_bad_row_is_left_out_and_named() {
        let columns = || three([r#"{"a":"9"}"#, "{\"a\":\"7\",", ""], [b"9", b"7", b"8"]);
        let decoded = decode(&decoding(), columns(), false);
        assert_eq!(decoded.batch.messages().map(|message| message.id()).collect::<Vec<_>>(), ["8", "9"]);
        assert_eq!(decoded.batch.message(1).headers().collect::<Vec<_>>(), [("a", &b"9"[..])]);
        assert_eq!(decoded.faults.len(), 1);
        assert_eq!(decoded.faults[0].0, "7");
        assert_eq!(decode(&decoding(), columns(), true).batch.len(), 3);
    }

    #[test]
    fn payloads_are_checked_where_they_are_said_to_be_text_or_json() {
        for (encoding, bad) in [(PayloadEncoding::Bytes, 0), (PayloadEncoding::Text, 1), (PayloadEncoding::Json, 2)] {
            let decoding = Decoding { encoding, ..decoding() };
            let decoded = decode(&decoding, three(["", "", ""], [b"{\"a\":1}", b"\xfe", b"text"]), false);
            assert_eq!(decoded.faults.len(), bad, "{encoding:?}: {:?}", decoded.faults);
        }
    }

    #[test]
    fn text_ids_a_constant_topic_and_further_columns() {
        let decoding = Decoding { topic: Some("all".into()), extra_headers: vec!["tenant".into()], ..Decoding::default() };
        let columns = vec![
            integers(&[1, 2]),
            bytes(&[Some(b"a"), Some(b"b")]),
            bytes(&[Some(b"1"), None]),
            integers(&[1, 1]),
            integers(&[0, 0]),
            bytes(&[Some(b"x"), None]),
        ];
        assert_eq!(decoding.columns().len(), columns.len());
        let batch = decode(&decoding, columns, false).batch;
        let shown: Vec<_> = batch.messages().map(|m| (m.id(), m.topic(), m.key(), m.payload(), m.headers().count())).collect();
        assert_eq!(shown, [("a", "all", None, Some(&b"1"[..]), 1), ("b", "all", None, None, 0)]);
    }

    #[test]
    fn text_that_is_cut_between_values_is_replaced() {
        // "é" split over two values: valid as a whole, and no value of it.
        let column = Column { data: "é".as_bytes().to_vec(), ends: vec![1, 2], nulls: Vec::new() };
        assert_eq!(texts(column).iter().map(|value| value.map(<[u8]>::len)).collect::<Vec<_>>(), [Some(3), Some(3)]);
    }
}
