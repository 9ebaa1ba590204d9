//! What the rungs were able to do when the budget was last refreshed.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::load::Load;
use crate::load::quantile::fewest_for;
use crate::load::soundness::{MeasurementUnsound, Unsound};
use crate::stats::Spread;
use crate::twin::cell::Cell;

/// Below saturation, and above.
const LOADS: [f64; 2] = [0.7, 2.0];

/// See the module's text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    pub load: Load,
    pub rungs: Vec<RungBudget>,
}

/// Of one rung.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RungBudget {
    pub rung: String,
    pub config: String,
    /// What it sustained then, from which the rates are.
    pub saturation_per_s: f64,
    /// Rates are absolute: multiples of saturation would move with what is judged.
    pub rates: Vec<Figures>,
}

/// At one rate: medians over the seeds, unless it says otherwise.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    pub rate_per_s: f64,
    pub ttft_p99_s: f64,
    pub e2e_p99_s: f64,
    pub goodput_per_s: f64,
    /// Of the promises that were seen to their end, over all seeds; where some are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<f64>,
}

impl Budget {
    /// # Errors
    /// When the file can't be read.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading {} (--budget)", path.display()))?;
        serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is no budget; `gate --refresh` makes one",
                path.display()
            )
        })
    }

    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// The budget of the rung with this configuration.
    pub fn of(&self, config: &str) -> Option<&RungBudget> {
        self.rungs.iter().find(|r| r.config == config)
    }
}

impl RungBudget {
    /// What the rung does here and now.
    ///
    /// # Errors
    /// When its configuration can't be read, or what was run says nothing.
    pub fn measured(load: &Load, config: &str) -> Result<Self> {
        let trial = load.trial(Path::new(config), &[])?;
        let saturation_per_s = load.saturation_per_s(&trial.rung);
        let mut rates = Vec::new();
        for multiple in LOADS {
            let rate_per_s = (multiple * saturation_per_s * 100.0).round() / 100.0;
            let cells = load.cells(&trial, rate_per_s, saturation_per_s);
            rates.push(Figures::of(&cells, rate_per_s).map_err(MeasurementUnsound)?);
        }
        Ok(Self {
            rung: trial.rung.name.to_owned(),
            config: config.to_owned(),
            saturation_per_s,
            rates,
        })
    }
}

impl Figures {
    /// Of a rung's cells at a rate, one for each seed.
    ///
    /// # Errors
    /// When there are none, one has too few arrivals for a p99, completed nothing, or lost sight of a request.
    pub fn of(cells: &[Cell], rate_per_s: f64) -> Result<Self, Vec<Unsound>> {
        let mut found: Vec<Unsound> = cells.iter().filter_map(complaint).collect();
        if cells.is_empty() {
            found.push(Unsound::RateMissing { rate: rate_per_s });
        }
        if !found.is_empty() {
            return Err(found);
        }
        let median = |of: fn(&Cell) -> Option<f64>| {
            // `complaint` has seen to it that all cells have all values.
            Spread::of(&cells.iter().filter_map(of).collect::<Vec<_>>()).median
        };
        Ok(Self {
            rate_per_s,
            ttft_p99_s: median(|c| c.ttft_s.p99),
            e2e_p99_s: median(|c| c.e2e_s.p99),
            goodput_per_s: median(|c| Some(c.goodput_per_s)),
            kept: kept(cells),
        })
    }
}

fn kept(cells: &[Cell]) -> Option<f64> {
    let promises = cells.iter().filter_map(|c| c.promises);
    let (kept, n) = promises.fold((0, 0), |(kept, n), p| (kept + p.kept, n + p.n()));
    (n > 0).then(|| kept as f64 / n as f64)
}

fn complaint(cell: &Cell) -> Option<Unsound> {
    let (arrivals, fewest) = (cell.offered, fewest_for(99.0));
    if arrivals < fewest {
        return Some(Unsound::TooFewArrivals {
            arrivals,
            fewest,
            percentile: 99.0,
        });
    }
    let ended = cell.finished + cell.shed + cell.gave_up;
    if ended != arrivals {
        return Some(Unsound::NotAccounted {
            what: "requests that finished, were refused or gave up".into(),
            found: ended as f64,
            expected: arrivals as f64,
        });
    }
    let is_empty = cell.finished == 0 || cell.ttft_s.p99.is_none() || cell.e2e_s.p99.is_none();
    is_empty.then_some(Unsound::NothingCompleted { arrivals })
}
