//! Deliveries as the host gives them, into parameters: one array for each column. Envelopes are one value of bytes, and where each of them is
//! in it: a parameter cannot be an array of bytes.

use outbox_table::database::Value;
use outbox_table::fan_out::{Kind, ROUTING, Routing, delivery_values};
use outhaul_sdk::{Batch, Column, Expansion, Failure};
use std::collections::HashSet;

/// Deliveries that are to be inserted.
#[derive(Debug)]
pub(super) struct Given {
    /// The event of each, as its place among the expansions, from 1.
    pub(super) events: Vec<i64>,
    /// The tenant of each event; none: no delivery says so.
    pub(super) tenants: Column,
    /// The parameters that [`Inserted`] begins with.
    pub(super) columns: Vec<Value>,
}

/// Takes deliveries apart.
///
/// # Errors
/// `invalid-message` if they do not go with the expansions, or one of them cannot be stored.
pub(super) fn given(expansions: &[Expansion], deliveries: &Batch) -> Result<Given, Failure> {
    let refuse = |what: String| Err(Failure::invalid_message(what));
    let mut rows = deliveries.messages();
    let mut columns: Vec<Value> = ROUTING.iter().map(empty).collect();
    let (mut events, mut tenants, mut seen) = (Vec::with_capacity(deliveries.len()), Column::new(), HashSet::new());
    for (expansion, place) in expansions.iter().zip(1..) {
        if !seen.insert(&expansion.event) {
            return refuse(format!("the event `{}` is expanded twice in one call", expansion.event));
        }
        let mut tenant: Option<String> = None;
        for _ in 0..expansion.deliveries {
            let Some(message) = rows.next() else {
                return refuse(format!("the event `{}` has fewer deliveries than were announced", expansion.event));
            };
            let (account, values) = delivery_values(message, &expansion.event, expansion.generation)?;
            if tenant.get_or_insert_with(|| account.clone()) != &account {
                return refuse(format!("the deliveries of the event `{}` are of several tenants", expansion.event));
            }
            columns.iter_mut().zip(values).for_each(|(column, value)| append(column, value));
            events.push(place);
        }
        tenants.push(tenant.as_deref().map(str::as_bytes));
    }
    if rows.next().is_some() {
        return refuse("there are more deliveries than were announced".to_owned());
    }
    columns.extend(envelopes(deliveries)?);
    Ok(Given { events, tenants, columns })
}

fn empty(column: &Routing) -> Value {
    if column.kind == Kind::Number { Value::Integers(Vec::new()) } else { Value::Texts(Column::new()) }
}

fn append(column: &mut Value, value: Value) {
    match (column, value) {
        (Value::Integers(numbers), Value::Integer(number)) => numbers.push(number),
        (Value::Texts(texts), Value::Text(text)) => texts.push(Some(text.as_bytes())),
        (Value::Texts(texts), _) => texts.push(None),
        _ => {}
    }
}

/// All envelopes; where each of them begins, from 1; and how long it is.
///
/// # Errors
/// `invalid-message` if one is missing.
pub(super) fn envelopes(deliveries: &Batch) -> Result<[Value; 3], Failure> {
    let (mut starts, mut sizes) = (Vec::with_capacity(deliveries.len()), Vec::with_capacity(deliveries.len()));
    let mut bytes = Vec::with_capacity(deliveries.payloads.data.len());
    let number = |len: usize| i64::try_from(len).unwrap_or(i64::MAX);
    for message in deliveries.messages() {
        let Some(envelope) = message.payload() else {
            return Err(Failure::invalid_message(format!("delivery {} of the batch: it has no envelope", message.index() + 1)));
        };
        starts.push(number(bytes.len()).saturating_add(1));
        sizes.push(number(envelope.len()));
        bytes.extend_from_slice(envelope);
    }
    Ok([Value::Bytes(bytes), Value::Integers(starts), Value::Integers(sizes)])
}

/// The envelope of a row `y` that has `start` and `size`, where all of them are in a parameter.
pub(super) fn envelope(parameter: usize) -> String {
    format!("pg_catalog.substr(CAST(${parameter} AS pg_catalog.bytea), CAST(y.start AS integer), CAST(y.size AS integer))")
}

/// How rows `y` are made of [`Given::columns`].
#[derive(Debug)]
pub(super) struct Inserted {
    /// The table's columns.
    pub(super) columns: String,
    /// What goes into them.
    pub(super) values: String,
    /// What is taken apart into `y`, and the names of that.
    pub(super) arrays: String,
    pub(super) names: String,
}

impl Inserted {
    /// The parameters begin with number `first`.
    pub(super) fn from(first: usize) -> Self {
        let bytes = first + ROUTING.len();
        let list = |of: &dyn Fn(usize, &Routing) -> String| {
            ROUTING.iter().enumerate().map(|(at, column)| of(at, column)).collect::<Vec<_>>().join(", ")
        };
        let kind = |column: &Routing| if column.kind == Kind::Number { "bigint" } else { "pg_catalog.text" };
        let names = list(&|_, column| column.name.to_owned());
        Self {
            columns: format!("{names}, envelope"),
            values: format!("{}, {}", list(&|_, column| format!("y.{}", column.name)), envelope(bytes)),
            arrays: format!(
                "{}, {}, {}",
                list(&|at, column| unnest(first + at, kind(column))),
                unnest(bytes + 1, "bigint"),
                unnest(bytes + 2, "bigint")
            ),
            names: format!("{names}, start, size"),
        }
    }
}

/// The values of an array in a parameter.
pub(super) fn unnest(parameter: usize, kind: &str) -> String {
    format!("pg_catalog.unnest(CAST(${parameter} AS {kind}[]))")
}
