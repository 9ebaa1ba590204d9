//! How figures look: fonts, colours, sizes, the strip with title and legend, the axes.

use std::path::Path;
use std::sync::Once;

use anyhow::Result;
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};

const FONT: &str = "sans-serif";
const TITLE_PX: u32 = 24;
pub const TEXT_PX: u32 = 17;
/// Height of the strip above the panels.
const STRIP_PX: u32 = 78;
const GRID: RGBColor = RGBColor(225, 225, 225);
pub const INK: RGBColor = RGBColor(40, 40, 40);

/// Okabe and Ito's colours, which people who don't see all colours tell apart, with a brown in the place of their yellow,
/// which is lost on white.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(120, 60, 20),
];

/// What can be drawn.
pub trait Figure {
    fn size(&self) -> (u32, u32);
    fn title(&self) -> String;
    /// What the signs mean, under the title.
    fn note(&self) -> &'static str;
    /// Names of the series; their places are their colours.
    fn legend(&self) -> &[String];
    /// Draws the panels below the strip.
    fn panels<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()>
    where
        B::ErrorType: 'static;
}

pub fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

pub fn text(px: u32) -> TextStyle<'static> {
    (FONT, px).into_font().color(&INK)
}

/// As SVG.
///
/// # Errors
/// When drawing fails.
pub fn svg(figure: &impl Figure) -> Result<String> {
    let mut text = String::new();
    draw(figure, SVGBackend::with_string(&mut text, figure.size()))?;
    Ok(text)
}

/// As PNG, into a file.
///
/// # Errors
/// When drawing or writing fails.
pub fn png(figure: &impl Figure, path: &Path) -> Result<()> {
    draw(figure, BitMapBackend::new(path, figure.size()))
}

fn draw<B: DrawingBackend>(figure: &impl Figure, backend: B) -> Result<()>
where
    B::ErrorType: 'static,
{
    static FONTS: Once = Once::new();
    // The same letters on every machine, whatever is installed there.
    FONTS.call_once(|| {
        drop(register_font(
            FONT,
            FontStyle::Normal,
            dejavu::sans::regular(),
        ))
    });
    let root = backend.into_drawing_area();
    root.fill(&WHITE)?;
    let (strip, panels) = root.split_vertically(STRIP_PX);
    strip.draw_text(&figure.title(), &text(TITLE_PX), (16, 10))?;
    let (title_px, _) = strip.estimate_text_size(&figure.title(), &text(TITLE_PX))?;
    strip.draw_text(
        figure.note(),
        &text(TEXT_PX),
        (16 + title_px as i32 + 24, 15),
    )?;
    let mut x = 16;
    for (i, name) in figure.legend().iter().enumerate() {
        let line = vec![(x, 57), (x + 20, 57)];
        strip.draw(&PathElement::new(line, colour(i).stroke_width(3)))?;
        strip.draw_text(name, &text(TEXT_PX), (x + 26, 48))?;
        x += 26 + strip.estimate_text_size(name, &text(TEXT_PX))?.0 as i32 + 14;
    }
    figure.panels(&panels)?;
    root.present()?;
    Ok(())
}

/// Starts a panel: margins, room for labels, its caption.
pub fn panel<'a, 'b, B: DrawingBackend>(
    area: &'a DrawingArea<B, Shift>,
    caption: &str,
) -> ChartBuilder<'a, 'b, B> {
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(12)
        .margin_right(20)
        .x_label_area_size(48)
        .y_label_area_size(74)
        .caption(caption, text(TEXT_PX + 2));
    builder
}

/// Grid, labels and names of the axes.
///
/// # Errors
/// When drawing fails.
pub fn axes<B, X, Y>(
    chart: &mut ChartContext<'_, B, Cartesian2d<X, Y>>,
    (x, y): (&str, &str),
) -> Result<()>
where
    B: DrawingBackend,
    B::ErrorType: 'static,
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .label_style(text(TEXT_PX - 2))
        .axis_desc_style(text(TEXT_PX))
        .x_desc(x)
        .y_desc(y)
        .x_labels(8)
        .y_labels(14)
        .x_label_formatter(&|v| number(*v))
        .y_label_formatter(&|v| number(*v))
        .draw()?;
    Ok(())
}

/// A small text that ends at its place and stands above it.
pub fn beside() -> TextStyle<'static> {
    text(TEXT_PX - 2).pos(Pos::new(HPos::Right, VPos::Bottom))
}

/// A small text that begins at its place and stands above it.
pub fn above() -> TextStyle<'static> {
    text(TEXT_PX - 2).pos(Pos::new(HPos::Left, VPos::Bottom))
}

/// Without zeros that say nothing.
fn number(v: f64) -> String {
    let text = format!("{v:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A logarithmic axis over positive values, from a round number to a round number.
pub fn log_range(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let positive = values.filter(|v| *v > 0.0 && v.is_finite());
    let (low, high) = positive.fold((f64::INFINITY, 0.0_f64), |(low, high), v| {
        (low.min(v), high.max(v))
    });
    if low > high {
        return 0.1..10.0;
    }
    // A decade at least, in steps of 1, 2 and 5.
    let floor = round_down(low);
    floor..(-round_down(-high)).max(floor * 10.0)
}

/// The next of 1, 2, 5, 10, … towards zero; of a negative number, away from it.
fn round_down(v: f64) -> f64 {
    let steps = [1.0, 2.0, 5.0, 10.0];
    let decade = 10f64.powf(v.abs().log10().floor());
    let share = v.abs() / decade;
    if v > 0.0 {
        let step = steps.iter().rev().find(|s| **s <= share * (1.0 + 1e-9));
        step.unwrap_or(&1.0) * decade
    } else {
        let step = steps.iter().find(|s| **s >= share * (1.0 - 1e-9));
        -step.unwrap_or(&10.0) * decade
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_axis_covers_its_values_and_begins_and_ends_round() {
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        let r = log_range([0.034, 7.3, 0.0, f64::NAN].into_iter());
        assert!(near(r.start, 0.02) && near(r.end, 10.0), "{r:?}");
        let r = log_range([0.1, 0.1].into_iter());
        assert!(near(r.start, 0.1) && near(r.end, 1.0), "{r:?}");
        assert_eq!(log_range(std::iter::empty()), 0.1..10.0);
        assert_eq!(
            (number(0.5), number(20.0), number(0.001)),
            ("0.5".into(), "20".into(), "0.001".into())
        );
    }
}
