//! A chart as SVG: title, legend, axes with their units, lines. It needs no fonts: whoever shows it chooses some.

use super::ruler::Ruler;
use super::scale::Scale;
use super::wrap::wrap;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A chart.
#[derive(Debug, Clone)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// Under what circumstances, in smaller letters.
    pub note: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// What is drawn, in the order of the legend.
    pub series: Vec<Series>,
}

/// An axis.
#[derive(Debug, Clone)]
pub struct Axis {
    /// What it measures, with the unit.
    pub label: String,
    /// How.
    pub scale: Scale,
}

/// Points that belong together.
#[derive(Debug, Clone)]
pub struct Series {
    /// In the legend; none: it is part of another one with the same colour.
    pub name: Option<String>,
    /// Number of its colour.
    pub color: usize,
    /// Whether a line joins the points.
    pub joined: bool,
    /// The points, in the order of the line. What has no place on the axes is left out.
    pub points: Vec<(f64, f64)>,
}

/// Width of a chart in pixels.
const WIDTH: u32 = 960;

/// Height of what is between the head and the lower edge.
const PLOT: u32 = 440;

/// Left and right of everything.
const MARGIN: i32 = 24;

/// Height of the title and a note of one line.
const HEAD: i32 = 72;

/// Height of each further line of the note.
const NOTE: i32 = 18;

/// Most characters of a line of the note: what there is room for, at about 7 pixels each.
const NOTE_LETTERS: usize = 130;

/// Height of a line of the legend.
const LEGEND: i32 = 22;

/// Roughly the width of a letter of the legend.
const LETTER: usize = 8;

/// Most characters of a line of the legend, beside the stroke.
const LEGEND_LETTERS: usize = 108;

/// Up to so many points of a line are marked.
const MARKED: usize = 64;

/// How many colours are told apart.
pub const MOST_COLORS: usize = 7;

/// Told apart by people who see fewer colours too (Okabe and Ito, "Color Universal Design").
const COLORS: [RGBColor; MOST_COLORS] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(85, 85, 85),
];

const INK: RGBColor = RGBColor(31, 41, 55);
const PALE_INK: RGBColor = RGBColor(107, 114, 128);
const GRID: RGBColor = RGBColor(229, 231, 235);

/// A chart that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw {title:?}: {reason}")]
pub struct ChartError {
    title: String,
    reason: String,
}

type Points = Vec<(f64, f64)>;

/// A line of the legend, and the colour of the stroke before it.
type Name = (String, Option<RGBColor>);

impl Chart {
    /// Whether anything would be drawn.
    #[must_use]
    pub fn has_points(&self) -> bool {
        self.series.iter().any(|series| !self.positions(series).is_empty())
    }

    /// Draws it.
    ///
    /// # Errors
    /// If the drawing library does.
    pub fn svg(&self) -> Result<String, ChartError> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| ChartError { title: self.title.clone(), reason: error.to_string() })?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
        let names = self.names();
        let columns = columns(&names);
        let lines = i32::try_from(names.len().div_ceil(columns)).unwrap_or(1);
        let note = wrap(&clean(&self.note), NOTE_LETTERS);
        let head = HEAD + i32::try_from(note.len().saturating_sub(1)).unwrap_or_default() * NOTE;
        let top = head + lines * LEGEND;
        let root = SVGBackend::with_string(svg, (WIDTH, PLOT.saturating_add_signed(top))).into_drawing_area();
        root.fill(&WHITE)?;
        root.draw_text(&clean(&self.title), &font(20, FontStyle::Bold, &INK), (MARGIN, 18))?;
        for (line, y) in note.iter().zip((0..).map(|line| 46 + line * NOTE)) {
            root.draw_text(line, &font(13, FontStyle::Normal, &PALE_INK), (MARGIN, y))?;
        }
        legend(&root, head, &names, columns)?;

        let series: Vec<(&Series, Points)> = self.series.iter().map(|series| (series, self.positions(series))).collect();
        let on = |pick: fn(&(f64, f64)) -> f64| series.iter().flat_map(|(_, points)| points).map(pick).collect::<Vec<f64>>();
        let x = self.x.scale.span(&on(|point| point.0), true);
        let y = self.y.scale.span(&on(|point| point.1), false);
        let (_, area) = root.split_vertically(top);
        let mut chart = ChartBuilder::on(&area)
            .margin_left(16)
            .margin_right(MARGIN)
            .margin_top(12)
            .margin_bottom(12)
            .x_label_area_size(58)
            .y_label_area_size(84)
            .build_cartesian_2d(Ruler::from(x), Ruler::from(y))?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(PALE_INK)
            .set_all_tick_mark_size(4)
            .label_style(font(13, FontStyle::Normal, &INK))
            .axis_desc_style(font(14, FontStyle::Normal, &INK))
            .x_desc(clean(&self.x.label))
            .y_desc(clean(&self.y.label))
            .draw()?;
        for (series, points) in series {
            let color = color(series.color);
            if !series.joined || points.len() <= MARKED {
                chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
            }
            if series.joined && points.len() > 1 {
                chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
            }
        }
        if !self.has_points() {
            let middle = Pos::new(HPos::Center, VPos::Center);
            let (width, height) = area.dim_in_pixel();
            let half = |size: u32| i32::try_from(size / 2).unwrap_or_default();
            area.draw_text("nothing to show", &font(16, FontStyle::Normal, &PALE_INK).pos(middle), (half(width), half(height)))?;
        }
        root.present()
    }

    /// The lines of the legend. One that goes on with the name above it has no stroke.
    fn names(&self) -> Vec<Name> {
        let named =
            self.series.iter().filter_map(|series| Some((wrap(&clean(series.name.as_deref()?), LEGEND_LETTERS), color(series.color))));
        let lines = named.flat_map(|(lines, color)| lines.into_iter().zip(std::iter::once(Some(color)).chain(std::iter::repeat(None))));
        lines.collect()
    }

    /// The points of a series as positions on the axes.
    fn positions(&self, series: &Series) -> Points {
        let place = |(x, y): &(f64, f64)| Some((self.x.scale.position(*x)?, self.y.scale.position(*y)?));
        series.points.iter().filter_map(place).collect()
    }
}

/// Names below the title and the note, in columns.
fn legend<B: DrawingBackend>(
    root: &DrawingArea<B, plotters::coord::Shift>,
    head: i32,
    names: &[Name],
    columns: usize,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let room = i32::try_from(WIDTH).unwrap_or_default() - 2 * MARGIN;
    let columns = i32::try_from(columns).unwrap_or(1).max(1);
    let places = (0..).map(|line| head + line * LEGEND + LEGEND / 2);
    let places = places.flat_map(|y| (0..columns).map(move |column| (MARGIN + column * (room / columns), y)));
    let left = Pos::new(HPos::Left, VPos::Center);
    for ((name, color), (x, y)) in names.iter().zip(places) {
        if let Some(color) = color {
            root.draw(&PathElement::new([(x, y), (x + 22, y)], color.stroke_width(3)))?;
        }
        root.draw_text(name, &font(14, FontStyle::Normal, &INK).pos(left), (x + 30, y))?;
    }
    Ok(())
}

/// As many columns as the longest name leaves room for; one where a name goes on in the next line.
fn columns(names: &[Name]) -> usize {
    if names.iter().any(|(_, color)| color.is_none()) {
        return 1;
    }
    let longest = names.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    let room = usize::try_from(WIDTH).unwrap_or_default();
    (room / (longest * LETTER + 60)).clamp(1, 4)
}

fn color(number: usize) -> RGBColor {
    COLORS.get(number % COLORS.len()).copied().unwrap_or(INK)
}

/// A font of so many pixels.
fn font(pixels: u32, style: FontStyle, color: &RGBColor) -> TextStyle<'static> {
    // The library divides by this when it writes SVG.
    FontDesc::new(FontFamily::SansSerif, f64::from(pixels) * 1.24, style).color(color)
}

/// XML has no control characters, however they are written.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::xml;
    use super::*;

    fn chart(scale: Scale, points: Vec<(f64, f64)>) -> Chart {
        Chart {
            title: "Messages <a> & \"b\"".to_owned(),
            note: "a\u{1b}note".to_owned(),
            x: Axis { label: "time (s)".to_owned(), scale: Scale::Linear },
            y: Axis { label: "delay (ms)".to_owned(), scale },
            series: vec![Series { name: Some("run 1".to_owned()), color: 0, joined: true, points }],
        }
    }

    #[test]
    fn a_chart_has_its_texts_and_its_line() {
        let svg = chart(Scale::Linear, vec![(0.0, 0.0), (1.0, 50.0), (2.0, 100.0)]).svg().unwrap();
        let texts = xml::texts(&svg);
        for text in ["Messages <a> & \"b\"", "a note", "run 1", "time (s)", "delay (ms)", "0.5", "2", "100"] {
            assert!(texts.iter().any(|found| found == text), "{text} is not in {texts:?}");
        }
        let line = xml::values(&svg, "polyline", "points");
        assert!(line.iter().any(|points| points.split_whitespace().count() == 3), "{line:?}");
        assert_eq!(xml::values(&svg, "circle", "r"), ["3", "3", "3"]);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn many_points_are_a_line_without_marks() {
        let svg = chart(Scale::Linear, (0..1000).map(|at| (f64::from(at), 1.0)).collect()).svg().unwrap();
        assert!(xml::values(&svg, "circle", "r").is_empty());
        let mut scattered = chart(Scale::Linear, vec![(1.0, 1.0), (2.0, 2.0)]);
        scattered.series[0].joined = false;
        let svg = scattered.svg().unwrap();
        assert_eq!(xml::values(&svg, "circle", "r").len(), 2);
        assert!(xml::values(&svg, "polyline", "stroke-width").iter().all(|width| width != "2"));
    }

    #[test]
    fn nothing_one_point_and_what_is_no_number_are_drawn() {
        for scale in [Scale::Linear, Scale::Logarithmic, Scale::Nines, Scale::Names(vec!["a".to_owned()])] {
            for points in [vec![], vec![(0.0, 0.0)], vec![(f64::NAN, f64::INFINITY), (1.0, f64::NAN)], vec![(1.0, 0.5)]] {
                let chart = chart(scale.clone(), points);
                let svg = chart.svg().unwrap();
                let says_so = xml::texts(&svg).iter().any(|text| text == "nothing to show");
                assert_eq!(says_so, !chart.has_points(), "{chart:?}");
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }

    #[test]
    fn a_legend_has_room() {
        let named = |name: &str| Series { name: Some(name.to_owned()), color: 8, joined: true, points: vec![(1.0, 1.0)] };
        let mut short = chart(Scale::Linear, Vec::new());
        short.series = ["a", "b", "c", "d"].map(named).into();
        let mut long = short.clone();
        long.series = vec![named(&"long".repeat(20)); 4];
        let height = |chart: &Chart| xml::values(&chart.svg().unwrap(), "svg", "height")[0].parse::<i32>().unwrap();
        assert_eq!(height(&long) - height(&short), 3 * LEGEND);
    }

    #[test]
    fn long_texts_are_broken() {
        let mut chart = chart(Scale::Linear, vec![(1.0, 1.0)]);
        let height = |chart: &Chart| xml::values(&chart.svg().unwrap(), "svg", "height")[0].parse::<i32>().unwrap();
        let before = height(&chart);
        chart.note = "note ".repeat(60);
        chart.series[0].name = Some("name ".repeat(60));
        assert_eq!(height(&chart) - before, 2 * NOTE + 2 * LEGEND);
        let texts = xml::texts(&chart.svg().unwrap());
        for (word, lines, most) in [("note", 3, NOTE_LETTERS), ("name", 3, LEGEND_LETTERS)] {
            let found: Vec<_> = texts.iter().filter(|text| text.contains(word)).collect();
            assert!(found.len() == lines && found.iter().all(|text| text.chars().count() <= most), "{found:?}");
        }
    }
}
