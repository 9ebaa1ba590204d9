//! The share of what was offered that was answered in full within a time: a curve ends below 1 where requests
//! were refused, failed or given up, instead of pretending that they had never been sent.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{self, Figure, INK};
use crate::report::ladder::{Ladder, Point};

/// Points of a curve; more would not be seen.
const STEPS: usize = 400;

/// See the module's text.
pub struct Cdf {
    legend: Vec<String>,
    slo_s: Option<f64>,
    panels: Vec<Panel>,
}

struct Panel {
    rate: f64,
    /// Seconds and share, ascending, a curve for each rung.
    curves: Vec<Vec<(f64, f64)>>,
}

impl Cdf {
    /// In the middle of the loads and at the highest.
    pub fn of(ladder: &Ladder) -> Self {
        let rates = ladder.rates();
        let mut chosen = vec![rates[(rates.len() - 1) / 2], rates[rates.len() - 1]];
        chosen.dedup();
        let panel = |rate: f64| Panel {
            rate,
            curves: ladder
                .points()
                .filter(|p| p.rate.total_cmp(&rate).is_eq())
                .map(|p| curve(&p))
                .collect(),
        };
        Self {
            legend: ladder.rungs().into_iter().map(str::to_owned).collect(),
            slo_s: ladder.slo_s,
            panels: chosen.into_iter().map(panel).collect(),
        }
    }
}

/// Of all seeds together.
fn curve(point: &Point) -> Vec<(f64, f64)> {
    let offered = point.measured().max(1) as f64;
    let measured = point.cells.iter().flat_map(|c| c.measured());
    let mut e2e: Vec<f64> = measured
        .filter(|r| r.is_completed())
        .map(|r| r.e2e_s())
        .collect();
    e2e.sort_by(f64::total_cmp);
    let every = e2e.len().div_ceil(STEPS).max(1);
    let last = e2e.len().saturating_sub(1);
    let ranks = (0..e2e.len()).filter(|i| i % every == 0 || *i == last);
    ranks.map(|i| (e2e[i], (i + 1) as f64 / offered)).collect()
}

impl Figure for Cdf {
    fn size(&self) -> (u32, u32) {
        (1200, 78 + 440)
    }

    fn title(&self) -> String {
        "End-to-end latency".into()
    }

    fn note(&self) -> &'static str {
        "share of what was offered, all seeds; refused and given up never arrive"
    }

    fn legend(&self) -> &[String] {
        &self.legend
    }

    fn panels<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()>
    where
        B::ErrorType: 'static,
    {
        let all = self
            .panels
            .iter()
            .flat_map(|p| &p.curves)
            .flatten()
            .map(|(s, _)| *s);
        let seconds = canvas::log_range(all.chain(self.slo_s));
        for (area, panel) in area
            .split_evenly((1, self.panels.len()))
            .iter()
            .zip(&self.panels)
        {
            let caption = format!("offered {} requests/s", panel.rate);
            let mut chart = canvas::panel(area, &caption)
                .build_cartesian_2d(seconds.clone().log_scale(), 0.0..1.02)?;
            canvas::axes(
                &mut chart,
                ("seconds from the intended arrival", "share of offered"),
            )?;
            if let Some(slo) = self.slo_s {
                let ends = [(slo, 0.0), (slo, 1.02)];
                let faint = INK.mix(0.6).stroke_width(1);
                chart.draw_series(DashedLineSeries::new(ends, 6, 5, faint))?;
                let label = Text::new(format!("SLO {slo} s "), (slo, 0.96), canvas::beside());
                chart.draw_series([label])?;
            }
            for (i, curve) in panel.curves.iter().enumerate() {
                chart.draw_series(LineSeries::new(
                    curve.clone(),
                    canvas::colour(i).stroke_width(2),
                ))?;
            }
        }
        Ok(())
    }
}
