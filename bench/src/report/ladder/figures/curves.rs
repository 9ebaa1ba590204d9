//! Lines over offered load: a panel for each metric, a line for each rung, a band from the lowest seed to the
//! highest.

use std::ops::Range;

use anyhow::Result;
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use super::canvas::{self, Figure, INK};
use crate::report::ladder::Ladder;
use crate::report::ladder::metric::{E2E_P50, E2E_P99, GOODPUT, Metric, SHED, TTFT_P50, TTFT_P99};
use crate::stats::Spread;

/// See the module's text.
pub struct Curves {
    title: String,
    note: &'static str,
    legend: Vec<String>,
    panels: Vec<Panel>,
    rates: Range<f64>,
}

pub struct Panel {
    pub caption: &'static str,
    pub unit: &'static str,
    /// A logarithmic axis from one value to another; none for one from 0.
    pub log: Option<Range<f64>>,
    /// A bound that is drawn across, with its name.
    pub level: Option<(f64, String)>,
    /// What is offered, drawn as a diagonal: nothing can be above it.
    pub has_diagonal: bool,
    pub lines: Vec<Vec<Sample>>,
}

/// A point of a line.
pub struct Sample {
    rate: f64,
    value: Spread,
    grows: bool,
}

impl Sample {
    pub fn new(rate: f64, value: Spread, grows: bool) -> Self {
        Self { rate, value, grows }
    }
}

const NOTE: &str = "median of the seeds, band from lowest to highest; hollow: the queue still grew";

/// Times to the first token and to the end, median and tail.
pub fn latency(ladder: &Ladder) -> Curves {
    let slo = || ladder.slo_s.map(|s| (s, format!("SLO {s} s")));
    let panel = |caption, metric, level| Panel {
        level,
        ..Panel::of(ladder, caption, "seconds", metric)
    };
    let panels = vec![
        panel("Time to first token, p50", &TTFT_P50, None),
        panel("Time to first token, p99", &TTFT_P99, None),
        panel("End to end, p50", &E2E_P50, slo()),
        panel("End to end, p99", &E2E_P99, slo()),
    ];
    Curves::of(ladder, "Latency against offered load", panels).on_one_scale()
}

/// What was completed in time beside what was refused.
pub fn goodput(ladder: &Ladder) -> Curves {
    let good = Panel {
        has_diagonal: true,
        ..Panel::of(
            ladder,
            "Goodput: completed within the SLO",
            "requests/s",
            &GOODPUT,
        )
    };
    let shed = Panel::of(ladder, "Shed: refused at once", "% of offered", &SHED);
    let slo = ladder
        .slo_s
        .map_or_else(|| "no SLO".into(), |s| format!("SLO {s} s"));
    Curves::of(
        ladder,
        &format!("Goodput and shed, {slo}"),
        vec![good, shed],
    )
}

impl Curves {
    fn of(ladder: &Ladder, title: &str, panels: Vec<Panel>) -> Self {
        let legend = ladder.rungs().into_iter().map(str::to_owned).collect();
        let rate_max = ladder.rates().last().copied().unwrap_or(1.0);
        Self::new(title, legend, panels, rate_max)
    }

    pub fn new(title: &str, legend: Vec<String>, panels: Vec<Panel>, rate_max: f64) -> Self {
        Self {
            title: title.to_owned(),
            note: NOTE,
            legend,
            panels,
            rates: 0.0..rate_max * 1.03,
        }
    }

    /// With one logarithmic scale, so that heights can be compared across panels.
    pub fn on_one_scale(mut self) -> Self {
        let values = canvas::log_range(self.panels.iter().flat_map(Panel::values));
        for panel in &mut self.panels {
            panel.log = Some(values.clone());
        }
        self
    }
}

impl Panel {
    fn of(ladder: &Ladder, caption: &'static str, unit: &'static str, metric: &Metric) -> Self {
        let line = |rung: &str| {
            let sample = |p: crate::report::ladder::Point| {
                Some(Sample {
                    rate: p.rate,
                    value: p.spread(metric.get)?,
                    grows: p.grows(),
                })
            };
            ladder.points_of(rung).filter_map(sample).collect()
        };
        Self::new(
            caption,
            unit,
            ladder.rungs().into_iter().map(line).collect(),
        )
    }

    /// On a linear scale from 0.
    pub fn new(caption: &'static str, unit: &'static str, lines: Vec<Vec<Sample>>) -> Self {
        Self {
            caption,
            unit,
            log: None,
            level: None,
            has_diagonal: false,
            lines,
        }
    }

    fn values(&self) -> impl Iterator<Item = f64> + '_ {
        let samples = self
            .lines
            .iter()
            .flatten()
            .flat_map(|s| [s.value.min, s.value.max]);
        samples.chain(self.level.iter().map(|(v, _)| *v))
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        rates: &Range<f64>,
    ) -> Result<()>
    where
        B::ErrorType: 'static,
    {
        let mut builder = canvas::panel(area, self.caption);
        if let Some(y) = &self.log {
            let y = y.clone().log_scale();
            let mut chart = builder.build_cartesian_2d(rates.clone(), y)?;
            self.fill(&mut chart, rates)
        } else {
            let top = self.values().fold(0.0, f64::max).max(1e-3) * 1.08;
            self.fill(
                &mut builder.build_cartesian_2d(rates.clone(), 0.0..top)?,
                rates,
            )
        }
    }

    fn fill<B: DrawingBackend, Y>(
        &self,
        chart: &mut ChartContext<'_, B, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>,
        rates: &Range<f64>,
    ) -> Result<()>
    where
        B::ErrorType: 'static,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        canvas::axes(chart, ("offered load, requests/s", self.unit))?;
        let y_range = chart.as_coord_spec().get_y_range();
        let faint = INK.mix(0.6);
        if let Some((level, name)) = &self.level {
            let ends = [(rates.start, *level), (rates.end, *level)];
            chart.draw_series(DashedLineSeries::new(ends, 6, 5, faint.stroke_width(1)))?;
            // Just above the line, where no load is; the axis may be logarithmic.
            let label = Text::new(name.clone(), (rates.start, *level), canvas::above());
            chart.draw_series([label])?;
        }
        if self.has_diagonal {
            let end = rates.end.min(y_range.end);
            let ends = [(0.0, 0.0), (end, end)];
            chart.draw_series(DashedLineSeries::new(ends, 6, 5, faint.stroke_width(1)))?;
            // Left of the line, where nothing can be.
            let label = Text::new(
                "all that was offered ",
                (0.8 * end, 0.8 * end),
                canvas::beside(),
            );
            chart.draw_series([label])?;
        }
        for (i, line) in self.lines.iter().enumerate() {
            let colour = canvas::colour(i);
            let (low, high): (Vec<_>, Vec<_>) = line
                .iter()
                .map(|s| ((s.rate, s.value.min), (s.rate, s.value.max)))
                .unzip();
            let band: Vec<_> = low.into_iter().chain(high.into_iter().rev()).collect();
            chart.draw_series([Polygon::new(band, colour.mix(0.18))])?;
            let medians = line.iter().map(|s| (s.rate, s.value.median));
            chart.draw_series(LineSeries::new(medians, colour.stroke_width(2)))?;
            for s in line {
                let at = (s.rate, s.value.median);
                chart.draw_series([Circle::new(at, 5, colour.filled())])?;
                if s.grows {
                    chart.draw_series([Circle::new(at, 3, WHITE.filled())])?;
                }
            }
        }
        Ok(())
    }
}

impl Figure for Curves {
    fn size(&self) -> (u32, u32) {
        (1200, 78 + 420 * self.panels.len().div_ceil(2) as u32)
    }

    fn title(&self) -> String {
        self.title.clone()
    }

    fn note(&self) -> &'static str {
        self.note
    }

    fn legend(&self) -> &[String] {
        &self.legend
    }

    fn panels<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()>
    where
        B::ErrorType: 'static,
    {
        let areas = area.split_evenly((self.panels.len().div_ceil(2), 2));
        areas
            .iter()
            .zip(&self.panels)
            .try_for_each(|(area, panel)| panel.draw(area, &self.rates))
    }
}
