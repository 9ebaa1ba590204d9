//! The share of promises that was kept against the confidence that they were made with: on the diagonal a confidence is
//! worth its name, above it promises are longer than they had to be, below it they are worth less than they say.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{self, Figure, INK};

/// See the module's text.
pub struct Calibration {
    legend: Vec<String>,
    series: Vec<Series>,
}

/// One arm.
pub struct Series {
    pub name: String,
    /// By level.
    pub shares: Vec<Share>,
}

/// What was kept of promises at one level.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Share {
    pub level: f64,
    pub kept: f64,
    pub interval: (f64, f64),
}

impl Calibration {
    pub fn of(series: Vec<Series>) -> Self {
        Self {
            legend: series.iter().map(|s| s.name.clone()).collect(),
            series,
        }
    }

    /// Of both axes: so much below the lowest level or interval, in steps of a twentieth.
    fn lowest(&self, of: impl Fn(&Share) -> f64) -> f64 {
        let lowest = self.series.iter().flat_map(|s| &s.shares).map(of);
        ((lowest.fold(0.95, f64::min) * 20.0 - 0.5).floor() / 20.0).max(0.0)
    }
}

impl Figure for Calibration {
    fn size(&self) -> (u32, u32) {
        (1200, 78 + 520)
    }

    fn title(&self) -> String {
        "Calibration".into()
    }

    fn note(&self) -> &'static str {
        "share of the promises that was kept, all loads together, with its 95% interval"
    }

    fn legend(&self) -> &[String] {
        &self.legend
    }

    fn panels<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()>
    where
        B::ErrorType: 'static,
    {
        let (from, low) = (self.lowest(|s| s.level), self.lowest(|s| s.interval.0));
        let mut chart =
            canvas::panel(area, "").build_cartesian_2d(from..1.0, low..1.0 + 0.02 * (1.0 - low))?;
        canvas::axes(&mut chart, ("confidence", "kept"))?;
        let faint = INK.mix(0.6).stroke_width(1);
        let start = from.max(low);
        let diagonal = [(start, start), (1.0, 1.0)];
        chart.draw_series(DashedLineSeries::new(diagonal, 6, 5, faint))?;
        // Between the usual levels.
        let beside = start + 0.4 * (1.0 - start);
        let label = Text::new("as promised ", (beside, beside), canvas::beside());
        chart.draw_series([label])?;
        // Beside each other where several have a level.
        let apart = 0.012 * (1.0 - from);
        let middle = (self.series.len() - 1) as f64 / 2.0;
        for (i, series) in self.series.iter().enumerate() {
            let colour = canvas::colour(i);
            let at = |s: &Share| s.level + (i as f64 - middle) * apart;
            let bars = series.shares.iter().flat_map(|s| {
                let (x, (low, high)) = (at(s), s.interval);
                let cap = |y: f64| [(x - 0.3 * apart, y), (x + 0.3 * apart, y)];
                [[(x, low), (x, high)], cap(low), cap(high)]
            });
            let style = colour.stroke_width(2);
            chart.draw_series(bars.map(|ends| PathElement::new(ends.to_vec(), style)))?;
            let dots = series
                .shares
                .iter()
                .map(|s| Circle::new((at(s), s.kept), 5, colour.filled()));
            chart.draw_series(dots)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axes_begin_at_a_twentieth_below_what_they_show() {
        let share = |level, low| Share {
            level,
            kept: level,
            interval: (low, 1.0),
        };
        let of = |shares| {
            Calibration::of(vec![Series {
                name: "a".into(),
                shares,
            }])
        };
        let figure = of(vec![share(0.8, 0.72), share(0.99, 0.97)]);
        assert_eq!(figure.lowest(|s| s.level), 0.75);
        assert_eq!(figure.lowest(|s| s.interval.0), 0.65);
        // Of the highest levels alone as well.
        assert_eq!(of(vec![share(0.99, 0.01)]).lowest(|s| s.level), 0.9);
        assert_eq!(of(vec![share(0.99, 0.01)]).lowest(|s| s.interval.0), 0.0);
    }
}
