//! Every request of one seed at the highest load, by its arrival: what an average hides. A queue without a bound
//! is a slope, batches are teeth, a queue with a bound is a floor with refusals under it.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{self, Figure, INK};
use crate::load::record::Outcome;
use crate::report::ladder::{Cell, Ladder};

/// See the module's text.
pub struct Scatter {
    legend: Vec<String>,
    rate: f64,
    seed: u64,
    slo_s: Option<f64>,
    /// A panel for each rung.
    panels: Vec<Vec<Dot>>,
}

struct Dot {
    arrival_s: f64,
    e2e_s: f64,
    outcome: Outcome,
}

impl Scatter {
    pub fn of(ladder: &Ladder) -> Self {
        let highest = |rung: &str| ladder.points_of(rung).last();
        let cells: Vec<&Cell> = ladder
            .rungs()
            .into_iter()
            .filter_map(|rung| highest(rung)?.cells.first())
            .collect();
        let dots = |cell: &&Cell| {
            let dot = |r: &crate::load::record::Record| Dot {
                arrival_s: r.intended_us as f64 * 1e-6,
                e2e_s: r.e2e_s(),
                outcome: r.outcome(),
            };
            cell.records.iter().map(dot).collect()
        };
        Self {
            legend: cells.iter().map(|c| c.rung.clone()).collect(),
            rate: cells[0].rate,
            seed: cells[0].seed,
            slo_s: ladder.slo_s,
            panels: cells.iter().map(dots).collect(),
        }
    }
}

impl Figure for Scatter {
    fn size(&self) -> (u32, u32) {
        (1200, 78 + 270 * self.panels.len() as u32)
    }

    fn title(&self) -> String {
        format!(
            "Every request at {} requests/s, seed {}",
            self.rate, self.seed
        )
    }

    fn note(&self) -> &'static str {
        "dot: answered; triangle: client gave up then; cross: failed; tick below: refused"
    }

    fn legend(&self) -> &[String] {
        &self.legend
    }

    fn panels<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()>
    where
        B::ErrorType: 'static,
    {
        let all = || self.panels.iter().flatten();
        let end = all().map(|d| d.arrival_s).fold(1e-3, f64::max);
        let shown = all()
            .filter(|d| d.outcome != Outcome::Shed)
            .map(|d| d.e2e_s);
        let seconds = canvas::log_range(shown.chain(self.slo_s));
        // Refusals have no latency: they stand on the floor.
        let floor = seconds.start * 1.15;
        for (i, (area, dots)) in area
            .split_evenly((self.panels.len(), 1))
            .iter()
            .zip(&self.panels)
            .enumerate()
        {
            let mut chart = canvas::panel(area, &self.legend[i])
                .build_cartesian_2d(0.0..end, seconds.clone().log_scale())?;
            canvas::axes(&mut chart, ("intended arrival, s", "end to end, s"))?;
            if let Some(slo) = self.slo_s {
                let line = [(0.0, slo), (end, slo)];
                let faint = INK.mix(0.6).stroke_width(1);
                chart.draw_series(DashedLineSeries::new(line, 6, 5, faint))?;
                let label = Text::new(format!("SLO {slo} s"), (end, slo), canvas::beside());
                chart.draw_series([label])?;
            }
            let of = |outcome| {
                dots.iter()
                    .filter(move |d| d.outcome == outcome)
                    .map(|d| (d.arrival_s, d.e2e_s))
            };
            let colour = canvas::colour(i);
            chart.draw_series(
                of(Outcome::Completed).map(|at| Circle::new(at, 2, colour.filled())),
            )?;
            chart.draw_series(
                of(Outcome::Censored).map(|at| TriangleMarker::new(at, 5, INK.filled())),
            )?;
            chart.draw_series(
                of(Outcome::Failed).map(|at| Cross::new(at, 4, RED.stroke_width(2))),
            )?;
            let ticks = of(Outcome::Shed).map(|(x, _)| {
                PathElement::new(
                    vec![(x, seconds.start), (x, floor)],
                    INK.mix(0.5).stroke_width(1),
                )
            });
            chart.draw_series(ticks)?;
        }
        Ok(())
    }
}
