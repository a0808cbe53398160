//! An axis as the drawing library wants it: positions become pixels, and ticks have the texts of the [`Span`].

use super::scale::Span;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use std::ops::Range;

/// An axis.
pub(super) struct Ruler {
    line: RangedCoordf64,
    ticks: Vec<(f64, String)>,
}

impl From<Span> for Ruler {
    fn from(span: Span) -> Self {
        Self { line: (span.from..span.to).into(), ticks: span.ticks }
    }
}

impl Ranged for Ruler {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.line.map(value, limit)
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        // Between the ticks there are no lighter ones.
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.iter().map(|(position, _)| *position).collect() }
    }

    fn range(&self) -> Range<f64> {
        self.line.range()
    }
}

impl ValueFormatter<f64> for Ruler {
    fn format(position: &f64) -> String {
        position.to_string()
    }

    fn format_ext(&self, position: &f64) -> String {
        let tick = self.ticks.iter().find(|(tick, _)| (tick - position).abs() < f64::EPSILON);
        tick.map(|(_, text)| super::chart::clean(text)).unwrap_or_default()
    }
}
