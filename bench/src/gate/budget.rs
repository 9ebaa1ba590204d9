//! What a rung was able to do when the budget was last refreshed.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{Cell, Measured};
use crate::load::quantile::fewest_for;
use crate::load::soundness::Unsound;
use crate::stats::Spread;

/// See the module's text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Budget {
    pub rung: String,
    pub slo_s: f64,
    pub rates: Vec<Figures>,
}

/// At one rate: medians over the seeds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Figures {
    pub rate_per_s: f64,
    pub ttft_p99_s: f64,
    pub e2e_p99_s: f64,
    pub goodput_per_s: f64,
}

impl Budget {
    /// Of a rung at every rate that was measured.
    ///
    /// # Errors
    /// Whatever makes the cells say nothing.
    pub fn of(measured: &Measured, rung: &str) -> Result<Self, Vec<Unsound>> {
        let of_rung = measured.cells.iter().filter(|c| c.rung == rung);
        let mut rates: Vec<f64> = of_rung.map(|c| c.rate_per_s).collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        if rates.is_empty() {
            return Err(vec![Unsound::NothingCompleted { arrivals: 0 }]);
        }
        let mut figures = Vec::new();
        for rate in rates {
            figures.push(Figures::of(measured, rung, rate)?);
        }
        Ok(Self {
            rung: rung.to_owned(),
            slo_s: measured.slo_s,
            rates: figures,
        })
    }

    /// # Errors
    /// When the file can't be read.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{}", path.display()))
    }

    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}

impl Figures {
    /// Of all seeds of a rung at a rate.
    ///
    /// # Errors
    /// When there are none, too few arrivals for a p99 or nothing completed.
    pub fn of(measured: &Measured, rung: &str, rate_per_s: f64) -> Result<Self, Vec<Unsound>> {
        let is_near = |rate: f64| (rate - rate_per_s).abs() <= 1e-6 * rate_per_s;
        let cells = measured.cells.iter();
        let cells: Vec<&Cell> = cells
            .filter(|c| c.rung == rung && is_near(c.rate_per_s))
            .collect();
        let mut found: Vec<Unsound> = cells.iter().filter_map(|c| complaint(c)).collect();
        if cells.is_empty() {
            found.push(Unsound::RateMissing { rate: rate_per_s });
        }
        if !found.is_empty() {
            return Err(found);
        }
        let median = |of: fn(&Cell) -> Option<f64>| {
            // `complaint` has seen to it that all cells have all values.
            Spread::of(&cells.iter().filter_map(|c| of(c)).collect::<Vec<_>>()).median
        };
        Ok(Self {
            rate_per_s,
            ttft_p99_s: median(|c| c.ttft_s.p99),
            e2e_p99_s: median(|c| c.e2e_s.p99),
            goodput_per_s: median(|c| Some(c.goodput_per_s)),
        })
    }
}

fn complaint(cell: &Cell) -> Option<Unsound> {
    let (arrivals, fewest) = (cell.offered, fewest_for(99.0));
    if arrivals < fewest {
        let percentile = 99.0;
        return Some(Unsound::TooFewArrivals {
            arrivals,
            fewest,
            percentile,
        });
    }
    let is_empty = cell.finished == 0 || cell.ttft_s.p99.is_none() || cell.e2e_s.p99.is_none();
    is_empty.then_some(Unsound::NothingCompleted { arrivals })
}
