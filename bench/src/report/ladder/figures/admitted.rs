//! What was let in, over time, at the highest load: whether admission settles, swings or locks itself out.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{self, Figure};
use crate::load::record::Record;
use crate::report::ladder::tally::verdict;
use crate::report::ladder::{Ladder, Point};
use cadenced::logic::conformal::policy::Verdict;

/// A window has about so many arrivals of each seed.
const ARRIVALS: usize = 10;
const WINDOWS_MAX: usize = 40;

/// See the module's text.
pub struct Admitted {
    legend: Vec<String>,
    rate: f64,
    panels: Vec<Panel>,
}

struct Panel {
    rung: String,
    window_s: f64,
    /// Requests per second in each window, one for each name in the legend.
    lines: [Vec<f64>; 3],
}

impl Admitted {
    /// `None` if no rung decides by a bound.
    pub fn of(ladder: &Ladder) -> Option<Self> {
        let highest = |rung: &str| ladder.points_of(rung).last();
        let points: Vec<Point> = ladder.deciding().into_iter().filter_map(highest).collect();
        Some(Self {
            legend: ["offered", "admitted", "of them promised"]
                .map(str::to_owned)
                .to_vec(),
            rate: points.first()?.rate,
            panels: points.iter().map(Panel::of).collect(),
        })
    }
}

impl Panel {
    /// The mean of the seeds, as far as all of them had arrivals.
    fn of(point: &Point) -> Self {
        let last_us = |records: &[Record]| records.iter().map(|r| r.intended_us).max();
        let lasts = point.cells.iter().filter_map(|c| last_us(&c.records));
        let end_us = lasts.min().unwrap_or(0).max(1);
        let fewest = point.cells.iter().map(|c| c.records.len()).min();
        let windows = (fewest.unwrap_or(0) / ARRIVALS).clamp(1, WINDOWS_MAX);
        let window_s = end_us as f64 * 1e-6 / windows as f64;
        let each = 1.0 / (window_s * point.cells.len() as f64);
        let mut lines = [(); 3].map(|()| vec![0.0; windows]);
        let records = point.cells.iter().flat_map(|c| &c.records);
        for r in records.filter(|r| r.intended_us <= end_us) {
            let window = (r.intended_us as f64 * 1e-6 / window_s) as usize;
            let verdict = verdict(r);
            let counts = [
                true,
                verdict.is_some_and(Verdict::admits),
                verdict == Some(Verdict::Promised),
            ];
            for (line, counts) in lines.iter_mut().zip(counts) {
                line[window.min(windows - 1)] += if counts { each } else { 0.0 };
            }
        }
        Self {
            rung: point.rung.to_owned(),
            window_s,
            lines,
        }
    }
}

impl Figure for Admitted {
    fn size(&self) -> (u32, u32) {
        (1200, 78 + 270 * self.panels.len() as u32)
    }

    fn title(&self) -> String {
        format!("Admitted over time at {} requests/s", self.rate)
    }

    fn note(&self) -> &'static str {
        "mean of the seeds in each window; the others of the admitted have no promise"
    }

    fn legend(&self) -> &[String] {
        &self.legend
    }

    fn panels<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()>
    where
        B::ErrorType: 'static,
    {
        let all = self.panels.iter().flat_map(|p| p.lines.iter().flatten());
        let top = all.copied().fold(1e-3, f64::max) * 1.08;
        let ends = self
            .panels
            .iter()
            .map(|p| p.window_s * p.lines[0].len() as f64);
        let end = ends.fold(1e-3, f64::max);
        for (area, panel) in area
            .split_evenly((self.panels.len(), 1))
            .iter()
            .zip(&self.panels)
        {
            let mut chart =
                canvas::panel(area, &panel.rung).build_cartesian_2d(0.0..end, 0.0..top)?;
            canvas::axes(&mut chart, ("intended arrival, s", "requests/s"))?;
            for (i, line) in panel.lines.iter().enumerate() {
                let colour = canvas::colour(i);
                let steps = line.iter().enumerate().flat_map(|(w, rate)| {
                    [w, w + 1].map(|edge| (edge as f64 * panel.window_s, *rate))
                });
                // Each is thinner than the one that it is drawn over, so that none is hidden where they agree.
                let style = colour.stroke_width([7, 4, 2][i]);
                chart.draw_series(LineSeries::new(steps, style))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ladder::tests::{promising, small};

    #[test]
    fn rates_of_windows_add_up_to_what_was_offered_and_let_in() {
        assert!(Admitted::of(&small()).is_none());
        let figure = Admitted::of(&promising()).unwrap();
        let [panel] = &figure.panels[..] else {
            panic!("{} panels", figure.panels.len());
        };
        assert_eq!((figure.rate, panel.rung.as_str()), (100.0, "rung5-b"));
        let sums = panel.lines.each_ref().map(|line| {
            let requests: f64 = line.iter().map(|rate| rate * panel.window_s).sum();
            requests.round()
        });
        assert_eq!((panel.lines[0].len(), sums), (20, [200.0, 160.0, 120.0]));
        // Ten arrivals in each twentieth of 1.99 s.
        assert!(
            panel.lines[0]
                .iter()
                .all(|rate| (rate - 100.502_5).abs() < 1e-3)
        );
    }
}
