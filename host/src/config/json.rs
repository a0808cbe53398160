//! An adapter's `config` table as JSON: what the adapter's `open` gets.

use super::problem::Report;
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A table as a JSON object. What JSON cannot say is reported.
pub(super) fn object(report: &Report, path: &str, table: &DeTable<'_>) -> Map<String, Value> {
    table.iter().map(|(key, value)| (key.get_ref().to_string(), convert(report, &format!("{path}.{}", key.get_ref()), value))).collect()
}

fn convert(report: &Report, path: &str, value: &Spanned<DeValue<'_>>) -> Value {
    match value.get_ref() {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Boolean(flag) => Value::from(*flag),
        DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(integer) => Value::from(integer),
            Err(_) => problem(report, value, path, &format!("{integer} is out of range: at most 64 bits")),
        },
        DeValue::Float(float) => match float.as_str().parse::<f64>().ok().and_then(serde_json::Number::from_f64) {
            Some(number) => Value::Number(number),
            None => problem(report, value, path, &format!("{} cannot be handed to an adapter: write a finite number", float.as_str())),
        },
        DeValue::Datetime(time) => Value::from(time.to_string()),
        DeValue::Array(items) => {
            items.iter().enumerate().map(|(index, item)| convert(report, &format!("{path}[{index}]"), item)).collect::<Vec<_>>().into()
        }
        DeValue::Table(table) => Value::Object(object(report, path, table)),
    }
}

fn problem(report: &Report, value: &Spanned<DeValue<'_>>, path: &str, text: &str) -> Value {
    report.add(value.span().start, path, text);
    Value::Null
}
