//! What the rungs are judged under: part of the budget, so that it changes only with it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use cadenced::config::{Config, Flags};
use cadenced::logic::conformal::artifact::Artifact;
use serde::{Deserialize, Serialize};

use crate::calibrate::Calibration;
use crate::daemon;
use crate::load::arrivals::Extent;
use crate::load::mix::Mix;
use crate::twin::arrivals::{Answers, Lengths, Offer};
use crate::twin::cell::{Cell, Mode, Offered, cell};
use crate::twin::cost::CostModel;
use crate::twin::engine::Trial;
use crate::twin::fitted;
use crate::twin::lab::{self, Lab};
use crate::twin::rung::{self, Rung};
use crate::twin::simulate::CALIBRATION_SEED;

/// Of arrivals in a cell: some hundreds at the lower rate, and enough at the higher one for the cap to be reached.
const DURATION_S: f64 = 600.0;
const SEEDS: u64 = 3;
const PATIENCE_S: f64 = 300.0;

/// See the module's text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    pub cost: CostModel,
    /// Where the costs are from.
    pub cost_from: String,
    pub mix: Mix,
    pub lengths: Lengths,
    pub duration_s: f64,
    pub seeds: u64,
    /// A client gives up so long after its arrival.
    pub timeout_s: f64,
    /// Bound on the time to the end of an answer.
    pub slo_ms: u64,
}

impl Load {
    /// The fake's default costs.
    ///
    /// # Errors
    /// When the repository's defaults can't be read.
    pub fn of_the_fake() -> Result<Self> {
        let fake = rung::config(None)?.fake;
        let load = Self {
            cost: CostModel::from(&fake),
            cost_from: "config/default.toml, [fake]: chosen by hand, not fitted to a machine"
                .into(),
            mix: Mix::Standard,
            lengths: Lengths::from(&fake),
            duration_s: DURATION_S,
            seeds: SEEDS,
            timeout_s: PATIENCE_S,
            slo_ms: 0,
        };
        let last = Rung::load(Path::new(super::RUNGS[super::RUNGS.len() - 1]))?;
        Ok(Self {
            slo_ms: lab::slo_ms(load.lab(last).alone_s(0.9)),
            ..load
        })
    }

    /// What a machine was found to cost.
    ///
    /// # Errors
    /// When the repository's defaults can't be read.
    pub fn of_calibration(found: &Calibration) -> Result<Self> {
        let fit = &found.fit;
        Ok(Self {
            cost: fit.model,
            cost_from: format!(
                "a calibration: {} measurements, R² {:.4}, mean error {:.1}%",
                fit.n, fit.r_squared, fit.error_mean_percent
            ),
            mix: found.mix,
            slo_ms: found.slo_ms,
            ..Self::of_the_fake()?
        })
    }

    fn lab(&self, rung: Rung) -> Lab {
        Lab {
            cost: self.cost.into(),
            rungs: vec![rung],
            offer: self.offer(1.0, 0),
            artifact: None,
        }
    }

    fn offer(&self, rate: f64, seed: u64) -> Offer {
        Offer {
            mix: self.mix,
            answers: Answers::Hidden(self.lengths),
            rate,
            extent: Extent::Seconds(self.duration_s),
            seed,
            observed: BTreeMap::new(),
        }
    }

    /// A rung under this load, with settings on top of its configuration. One that promises is calibrated without them:
    /// a calibration outlives what is changed after it.
    ///
    /// # Errors
    /// Names the key or the file at fault.
    pub fn trial(&self, file: &Path, settings: &[(String, String)]) -> Result<Trial> {
        let settings = settings.iter();
        let variables = settings.map(|(key, value)| (daemon::variable(key), value.clone()));
        let config = Config::load(Some(file), variables, &Flags::default());
        let config = config.with_context(|| format!("{} and --set", file.display()))?;
        let rung = Rung::of(config)?;
        let promises = rung.promises();
        let lab = Lab {
            artifact: promises.then(|| self.calibration(file)).transpose()?,
            ..self.lab(rung)
        };
        let patience_us = (self.timeout_s * 1e6) as u64;
        let mut trials = lab.trials(Some(self.slo_ms * 1000), Some(patience_us));
        Ok(trials.swap_remove(0))
    }

    fn calibration(&self, file: &Path) -> Result<Arc<Artifact>> {
        let lab = self.lab(Rung::load(file)?);
        Ok(Arc::new(fitted::artifact(&lab, CALIBRATION_SEED)?))
    }

    /// What the rung sustains, per second.
    pub fn saturation_per_s(&self, rung: &Rung) -> f64 {
        self.lab(rung.clone()).saturation_per_s()
    }

    /// One cell for each seed.
    pub fn cells(&self, trial: &Trial, rate_per_s: f64, saturation_per_s: f64) -> Vec<Cell> {
        let of = |seed| {
            let offer = self.offer(rate_per_s, seed);
            let requests = offer.requests();
            let load = rate_per_s / saturation_per_s;
            let offered = Offered {
                load,
                offer,
                requests,
            };
            cell(trial, &offered, Mode::Actors)
        };
        (0..self.seeds).map(of).collect()
    }
}
