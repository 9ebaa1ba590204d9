//! A model, calibrated in one way or another, and what its bounds are worth.

use anyhow::{Context, Result};
use cadenced::logic::conformal::boosting::BoostParams;
use cadenced::logic::conformal::calibration::Alpha;
use cadenced::logic::conformal::evaluation::Evaluation;
use cadenced::logic::conformal::online::{Adaptation, Calibrator, CalibratorConfig, Point};
use cadenced::logic::conformal::predictor::{Model, PredictorKind, Row};
use cadenced::logic::conformal::rounds::{Fold, Folds};
use serde_json::{Value, json};

/// Below the quantile that bounds are made of, for the score that wants the width between the two.
const LOWER_QUANTILE: f64 = 0.1;

/// A model with what it was calibrated on.
pub struct Fitted {
    pub model: Model,
    points: Vec<Point>,
}

impl Fitted {
    pub fn new(kind: PredictorKind, params: &BoostParams, folds: &Folds) -> Result<Self> {
        let train = folds.rows(Fold::Train);
        Self::of(kind, params, train, folds.rows(Fold::Calibrate))
    }

    pub fn of(
        kind: PredictorKind,
        params: &BoostParams,
        train: &[Row],
        calibrate: &[Row],
    ) -> Result<Self> {
        let model = Model::fit(kind, train, params, Some(LOWER_QUANTILE))?;
        let points = calibrate.iter().map(|r| Point::of(&model, r)).collect();
        Ok(Self { model, points })
    }

    pub fn calibrator(&self, change: impl FnOnce(&mut CalibratorConfig)) -> Calibrator {
        let mut config = CalibratorConfig {
            adaptation: Adaptation::Static,
            ..CalibratorConfig::default()
        };
        change(&mut config);
        Calibrator::new(config, &self.points)
    }

    /// A row of a table: a calibrator of this model on `rows`.
    pub fn row(
        &self,
        calibrator: &Calibrator,
        rows: &[Row],
        alpha: f64,
        slo_ms: f64,
    ) -> Result<Value> {
        let level = Alpha::new(alpha).context("a level")?;
        let e = Evaluation::of(calibrator, &self.model, rows, level, slo_ms);
        let mut row = serde_json::to_value(e)?;
        row["alpha"] = alpha.into();
        row["calibrated_on"] = self.points.len().into();
        // Of one group; several have one each.
        row["q"] = match calibrator.quantiles(level).as_slice() {
            [Ok(q)] => (*q).into(),
            _ => Value::Null,
        };
        row["coverage"] = e.coverage().into();
        row["interval"] = json!(e.interval());
        row["would_admit"] = e.would_admit().into();
        row["of_those_met"] = e.of_those_met().into();
        Ok(row)
    }
}

/// A row with a few words in front.
pub fn labelled(mut row: Value, labels: &[(&str, Value)]) -> Value {
    for (key, value) in labels {
        row[*key] = value.clone();
    }
    row
}
