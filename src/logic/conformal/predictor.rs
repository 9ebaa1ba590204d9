//! The three predictors behind one type, fitted on the same rows and answering in milliseconds.

use linfa::traits::{Fit, Predict};
use linfa::{Dataset, DatasetBase};
use ndarray::{Array1, Array2, Ix1};
use serde::{Deserialize, Serialize};

use super::baselines::{Constant, ConstantParams, Throughput, ThroughputParams};
use super::boosting::{BoostParams, FitError, QuantileTrees};
use super::features::{COUNT, Features};
use crate::logic::request::{FinishReason, Outcome};
use crate::logic::time::Timestamp;

/// What became known of a request's end-to-end latency, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Latency {
    Exact(f64),
    /// The client left before the end: a lower bound, and never an observation.
    AtLeast(f64),
}

impl Latency {
    /// Of a request that was decided on at `decided` and ended so at `ended`: whoever did not get to the end would
    /// have taken longer.
    #[must_use]
    pub fn at_end(outcome: Outcome, decided: Timestamp, ended: Timestamp) -> Self {
        let ms = ended.since(decided).as_secs_f64() * 1e3;
        match outcome {
            Outcome::Finished(FinishReason::Stop | FinishReason::Length) => Self::Exact(ms),
            _ => Self::AtLeast(ms),
        }
    }

    /// The value or its lower bound.
    #[must_use]
    pub fn ms(self) -> f64 {
        match self {
            Self::Exact(ms) | Self::AtLeast(ms) => ms,
        }
    }

    #[must_use]
    pub fn is_censored(self) -> bool {
        matches!(self, Self::AtLeast(_))
    }
}

/// A request as it looked at admission, and what became of it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    pub features: Features,
    pub latency: Latency,
}

/// The rows as linfa wants them, targets in ms. Censored rows are left out: there is nothing to fit on.
#[must_use]
pub fn dataset(rows: &[Row]) -> Dataset<f64, f64, Ix1> {
    let rows: Vec<&Row> = rows.iter().filter(|r| !r.latency.is_censored()).collect();
    let records = Array2::from_shape_fn((rows.len(), COUNT), |(r, c)| {
        f64::from(rows[r].features.0[c])
    });
    let targets: Array1<f64> = rows.iter().map(|r| r.latency.ms()).collect();
    Dataset::new(records, targets)
}

/// Which predictor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PredictorKind {
    Trees,
    Throughput,
    Constant,
}

/// A fitted predictor of a quantile (of the mean, for the arithmetic: calibration makes up for it).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Predictor {
    /// On log1p of the latency, less that of the arithmetic's: what it gets wrong, and its quantile.
    Trees(Throughput, QuantileTrees),
    Throughput(Throughput),
    Constant(Constant),
}

impl Predictor {
    /// Fits on latencies in ms. `params.quantile` counts for every kind that knows one.
    ///
    /// # Errors
    /// When there are no rows, values are not finite, or least squares has no single answer.
    pub fn fit(
        kind: PredictorKind,
        data: &Dataset<f64, f64, Ix1>,
        params: &BoostParams,
    ) -> Result<Self, FitError> {
        Ok(match kind {
            PredictorKind::Trees => {
                // A quantile survives a monotone map, so the log changes only what the trees see: latencies over two
                // orders of magnitude, with equal weight for equal ratios. Trees say nothing beyond what they were
                // fitted on but what held at its edge; the arithmetic goes on.
                let arithmetic = ThroughputParams.fit(data)?;
                let logs = data.targets().mapv(|ms| ms.max(0.0).ln_1p());
                let known = arithmetic.predict(data.records()).mapv(f64::ln_1p);
                let trees = params.fit(&DatasetBase::new(data.records().view(), logs - known))?;
                Self::Trees(arithmetic, trees)
            }
            PredictorKind::Throughput => Self::Throughput(ThroughputParams.fit(data)?),
            PredictorKind::Constant => Self::Constant(
                ConstantParams {
                    quantile: params.quantile,
                }
                .fit(data)?,
            ),
        })
    }

    /// The prediction in ms, at least 0.
    #[must_use]
    pub fn predict_ms(&self, x: &Features) -> f64 {
        let ms = match self {
            Self::Trees(arithmetic, t) => {
                let known = arithmetic.predict_row(x);
                known + (1.0 + known) * f64::from(t.forest.predict_row(&x.0)).exp_m1()
            }
            Self::Throughput(t) => t.predict_row(x),
            Self::Constant(c) => f64::from(c.0),
        };
        ms.max(0.0)
    }

    /// Whether it can be evaluated on [`Features`]: for one that was read from a file.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        match self {
            Self::Trees(arithmetic, t) => {
                Self::Throughput(*arithmetic).is_sound() && t.forest.is_sound(COUNT)
            }
            Self::Throughput(t) => t.weights.iter().all(|w| w.is_finite() && *w >= 0.0),
            Self::Constant(c) => c.0.is_finite(),
        }
    }
}

/// A prediction, in ms.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Estimate {
    /// The upper quantile, from which the bound is made.
    pub hi: f64,
    /// The lower one, or 0 where none is fitted; only the width-scaled score looks at it.
    pub lo: f64,
}

/// The predictor of the upper quantile, and of the lower one where a score wants the width between them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Model {
    pub hi: Predictor,
    pub lo: Option<Predictor>,
}

impl Model {
    /// Fits `params.quantile` and, if asked for, a lower quantile beside it.
    ///
    /// # Errors
    /// As [`Predictor::fit`].
    pub fn fit(
        kind: PredictorKind,
        rows: &[Row],
        params: &BoostParams,
        lower_quantile: Option<f64>,
    ) -> Result<Self, FitError> {
        let data = dataset(rows);
        let lower = |quantile| {
            let params = BoostParams {
                quantile,
                ..*params
            };
            Predictor::fit(kind, &data, &params)
        };
        Ok(Self {
            hi: Predictor::fit(kind, &data, params)?,
            lo: lower_quantile.map(lower).transpose()?,
        })
    }

    /// The deployed kind with its deployed settings.
    ///
    /// # Errors
    /// As [`Predictor::fit`].
    pub fn deployed(rows: &[Row]) -> Result<Self, FitError> {
        Self::fit(PredictorKind::Trees, rows, &BoostParams::default(), None)
    }

    #[must_use]
    pub fn estimate(&self, x: &Features) -> Estimate {
        Estimate {
            hi: self.hi.predict_ms(x),
            lo: self.lo.as_ref().map_or(0.0, |p| p.predict_ms(x)),
        }
    }

    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.hi.is_sound() && self.lo.as_ref().is_none_or(Predictor::is_sound)
    }
}

#[cfg(test)]
#[path = "predictor_tests.rs"]
mod tests;
