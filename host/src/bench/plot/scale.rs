//! Where a value lies on an axis, and which values the axis names. Pure: an axis is a line from one position to another.

/// How values become positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scale {
    /// From zero on, in equal steps.
    Linear,
    /// Each power of ten takes as much room as the next. Only values above zero.
    Logarithmic,
    /// Shares from 0 to below 1, each further nine of them with as much room as the one before: 90 %, 99 %, 99.9 %.
    Nines,
    /// Names beside each other; the values are 0, 1, 2 and so on.
    Names(Vec<String>),
}

/// An axis: from where to where, and what is written at which positions. All finite, the end above the begin.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Position of the begin.
    pub from: f64,
    /// Position of the end.
    pub to: f64,
    /// Positions with their texts, in order.
    pub ticks: Vec<(f64, String)>,
}

/// About how many parts a linear axis has.
const PARTS: f64 = 5.0;

/// More ticks than any axis has: a bound for loops over floating-point numbers.
const MOST_TICKS: i32 = 100;

/// The most nines that are told apart: one message in a million.
const MOST_NINES: f64 = 6.0;

impl Scale {
    /// The position of a value; none for what cannot be on this scale.
    #[must_use]
    pub fn position(&self, value: f64) -> Option<f64> {
        match self {
            Self::Linear | Self::Names(_) => (value.is_finite() && value >= 0.0).then_some(value),
            Self::Logarithmic => (value.is_finite() && value > 0.0).then(|| value.log10()),
            Self::Nines => (0.0..1.0).contains(&value).then(|| (-(1.0 - value).log10()).clamp(0.0, MOST_NINES)),
        }
    }

    /// The axis for values at these positions. `tight`: it ends with the last value and not with the next tick.
    #[must_use]
    pub fn span(&self, positions: &[f64], tight: bool) -> Span {
        let lowest = positions.iter().copied().reduce(f64::min);
        let highest = positions.iter().copied().reduce(f64::max);
        match self {
            Self::Linear => linear(highest.unwrap_or_default(), tight),
            Self::Logarithmic => logarithmic(lowest.unwrap_or_default(), highest.unwrap_or_default()),
            Self::Nines => nines(highest.unwrap_or_default()),
            Self::Names(names) => beside_each_other(names),
        }
    }
}

fn linear(highest: f64, tight: bool) -> Span {
    let highest = if highest > 0.0 { highest } else { 1.0 };
    let step = step(highest / PARTS);
    let ticks: Vec<f64> = (0..MOST_TICKS).map(|tick| f64::from(tick) * step).take_while(|tick| *tick < highest + step * 0.999).collect();
    let last = ticks.last().copied().unwrap_or(highest);
    let to = if tight { highest } else { last };
    // A hair beyond the end counts as the end.
    let ticks = ticks.into_iter().filter(|tick| *tick <= to * 1.000_001).map(|tick| (tick, short(tick))).collect();
    Span { from: 0.0, to, ticks }
}

/// The next of 1, 2, 2.5, 5 times a power of ten that is not smaller.
fn step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= least * 0.999_999).unwrap_or(least)
}

/// From the mark below to the mark above, of 1, 2 and 5 times each power of ten.
fn logarithmic(lowest: f64, highest: f64) -> Span {
    let first = lowest.floor();
    let decades = (0..MOST_TICKS).map(|decade| first + f64::from(decade)).take_while(|decade| *decade <= highest + 1.0);
    let marks: Vec<(f64, f64)> = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|factor: f64| (decade + factor.log10(), factor))).collect();
    let hair = 1e-9;
    let from = marks.iter().rev().find(|(position, _)| *position <= lowest + hair).map_or(first, |(position, _)| *position);
    let above = |least: f64| marks.iter().find(|(position, _)| *position >= least).map(|(position, _)| *position);
    // One value alone is not at the edge.
    let to = above(highest - hair).filter(|to| *to > from + hair).or_else(|| above(from + hair)).unwrap_or(from + 1.0);
    // With many decades only their begins are named.
    let all = to - from <= 3.0;
    let inside = marks.iter().filter(|(position, factor)| (from - hair..=to + hair).contains(position) && (all || *factor < 1.5));
    Span { from, to, ticks: inside.map(|(position, _)| (*position, short(10_f64.powf(*position)))).collect() }
}

fn nines(highest: f64) -> Span {
    let named = [(0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"), (0.99999, "99.999 %")];
    let to = highest.max(1.0);
    let ticks = named.into_iter().filter_map(|(share, text)| Some((Scale::Nines.position(share)?, text.to_owned())));
    Span { from: 0.0, to, ticks: ticks.filter(|(position, _)| *position <= to).collect() }
}

/// With half a place of room on either side.
fn beside_each_other(names: &[String]) -> Span {
    let ticks: Vec<(f64, String)> = (0..MOST_TICKS).map(f64::from).zip(names.iter().cloned()).collect();
    let last = ticks.last().map_or(0.0, |(position, _)| *position);
    Span { from: -0.5, to: last + 0.5, ticks }
}

/// A figure in little room: `0.25`, `1500`, `20 k`, `1.5 M`.
#[must_use]
pub fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        large if large >= 1e6 => (value / 1e6, " M"),
        large if large >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    // Six places hide what binary fractions add.
    let digits = format!("{value:.6}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(span: &Span) -> Vec<&str> {
        span.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn linear_axes_begin_with_zero() {
        let span = Scale::Linear.span(&[41_000.0, 3.0], false);
        assert_eq!((span.from, span.to), (0.0, 50_000.0));
        assert_eq!(texts(&span), ["0", "10 k", "20 k", "30 k", "40 k", "50 k"]);
        let tight = Scale::Linear.span(&[3.1], true);
        assert_eq!((tight.from, tight.to), (0.0, 3.1));
        assert_eq!(texts(&tight), ["0", "1", "2", "3"]);
        assert_eq!(Scale::Linear.span(&[1.0], false).to, 1.0);
        assert_eq!(texts(&Scale::Linear.span(&[0.3], false)), ["0", "0.1", "0.2", "0.3"]);
    }

    #[test]
    fn logarithmic_axes_end_with_marks() {
        let marks = |values: &[f64]| {
            let positions: Vec<f64> = values.iter().filter_map(|value| Scale::Logarithmic.position(*value)).collect();
            Scale::Logarithmic.span(&positions, false).ticks.into_iter().map(|(_, text)| text).collect::<Vec<_>>()
        };
        assert_eq!(marks(&[4.0, 31.0]), ["2", "5", "10", "20", "50"]);
        assert_eq!(marks(&[1.0, 10.0]), ["1", "2", "5", "10"]);
        assert_eq!(marks(&[0.002, 5000.0]), ["0.01", "0.1", "1", "10", "100", "1000"]);
        assert_eq!(marks(&[7.0]), ["5", "10"]);
        assert_eq!(marks(&[10.0]), ["10", "20"]);
    }

    #[test]
    fn nines_have_equal_room() {
        let position = |share| Scale::Nines.position(share).unwrap();
        assert_eq!(position(0.0), 0.0);
        assert!((position(0.9) - 1.0).abs() < 1e-9 && (position(0.999) - 3.0).abs() < 1e-9);
        assert_eq!(position(1.0 - 1e-12), 6.0);
        assert_eq!(texts(&Scale::Nines.span(&[position(0.995)], false)), ["0 %", "50 %", "90 %", "99 %"]);
    }

    #[test]
    fn names_stand_beside_each_other() {
        let span = Scale::Names(vec!["1".to_owned(), "2".to_owned(), "4".to_owned()]).span(&[], false);
        assert_eq!((span.from, span.to, texts(&span)), (-0.5, 2.5, vec!["1", "2", "4"]));
    }

    #[test]
    fn what_cannot_be_on_a_scale_has_no_position() {
        for (scale, values) in [
            (Scale::Linear, [f64::NAN, f64::INFINITY, -1.0]),
            (Scale::Logarithmic, [f64::NAN, 0.0, f64::INFINITY]),
            (Scale::Nines, [f64::NAN, 1.0, -0.1]),
        ] {
            assert_eq!(values.map(|value| scale.position(value)), [None; 3], "{scale:?}");
        }
    }

    #[test]
    fn an_axis_without_values_is_an_axis() {
        for scale in [Scale::Linear, Scale::Logarithmic, Scale::Nines, Scale::Names(Vec::new())] {
            for positions in [&[][..], &[0.0]] {
                let span = scale.span(positions, true);
                assert!(span.from < span.to && span.from.is_finite() && span.to.is_finite(), "{scale:?} {span:?}");
            }
        }
    }

    #[test]
    fn figures_are_short() {
        for (value, text) in [(0.0, "0"), (0.1 + 0.2, "0.3"), (0.001, "0.001"), (1500.0, "1500"), (12_500.0, "12.5 k"), (2e6, "2 M")] {
            assert_eq!(short(value), text);
        }
    }
}
