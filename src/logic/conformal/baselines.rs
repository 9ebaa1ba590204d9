//! What the trees must beat: arithmetic over the engine's token rate, and one number for everybody.

use linfa::dataset::{AsSingleTargets, DatasetBase};
use linfa::traits::{Fit, PredictInplace};
use linfa_linear::LinearRegression;
use ndarray::{Array1, Array2, ArrayBase, Data, Ix2};
use serde::{Deserialize, Serialize};

use super::boosting::{FitError, nearest_rank};
use super::features::{COUNT, Feature, Features};

/// Terms of the arithmetic.
const TERMS: usize = 3;

/// The work ahead, in the engine's own pace: own decoding (one step a token), the others' decoding (their
/// tokens over the token rate), and prompt tokens still to be computed (in ms · a constant that is fitted).
fn terms(x: &Features) -> [f64; TERMS] {
    let get = |f| f64::from(x.get(f));
    let per_s = get(Feature::TokensPerS).max(1e-3);
    [
        get(Feature::MaxTokens) * get(Feature::StepMs),
        1000.0 * get(Feature::OutputTokens) / per_s,
        get(Feature::NewPrefillTokens) + get(Feature::PrefillTokens),
    ]
}

/// Throughput arithmetic: latency is a weighted sum of the work ahead. The weights are those of least squares of the
/// relative error, and none is negative: what was learnt in a flood is to be of the right size in the calm as well.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ThroughputParams;

/// Its fitted weights; predicts milliseconds, at least 0, from rows of [`Features`].
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Throughput {
    pub weights: [f64; TERMS],
}

impl Throughput {
    #[must_use]
    pub fn predict_row(&self, x: &Features) -> f64 {
        let products = terms(x).into_iter().zip(self.weights).map(|(t, w)| t * w);
        products.sum()
    }
}

impl<D: Data<Elem = f64>, T: AsSingleTargets<Elem = f64>> Fit<ArrayBase<D, Ix2>, T, FitError>
    for ThroughputParams
{
    type Object = Throughput;

    fn fit(&self, dataset: &DatasetBase<ArrayBase<D, Ix2>, T>) -> Result<Throughput, FitError> {
        let records = dataset.records();
        if records.ncols() != COUNT {
            return Err(FitError::Features(records.ncols()));
        }
        if records.nrows() == 0 {
            return Err(FitError::Empty);
        }
        // Each row over its own latency, of which the arithmetic is to be once.
        let targets = dataset.as_single_targets();
        let rows: Vec<[f64; TERMS]> = records
            .rows()
            .into_iter()
            .zip(targets)
            .map(|(row, ms)| terms(&features(row)).map(|t| t / ms.max(1.0)))
            .collect();
        if rows.iter().flatten().chain(targets).any(|v| !v.is_finite()) {
            return Err(FitError::NotFinite);
        }
        // What never was (traffic that never queued) has no weight.
        let mut kept: Vec<usize> = (0..TERMS)
            .filter(|t| rows.iter().any(|r| r[*t] != 0.0))
            .collect();
        let mut weights = [0.0; TERMS];
        while !kept.is_empty() {
            let x = Array2::from_shape_fn((rows.len(), kept.len()), |(r, c)| rows[r][kept[c]]);
            let data = DatasetBase::new(x, Array1::ones(rows.len()));
            let found = LinearRegression::new()
                .with_intercept(false)
                .fit(&data)
                .map_or_else(|_| vec![f64::NAN; kept.len()], |f| f.params().to_vec());
            // Without the one that has no weight of its own, or would have a negative one.
            let worst = (0..kept.len()).min_by(|a, b| found[*a].total_cmp(&found[*b]));
            match worst {
                Some(at) if !(found[at] >= 0.0 && found.iter().all(|w| w.is_finite())) => {
                    kept.remove(at);
                }
                _ => {
                    kept.iter().zip(found).for_each(|(t, w)| weights[*t] = w);
                    break;
                }
            }
        }
        Ok(Throughput { weights })
    }
}

impl<D: Data<Elem = f64>> PredictInplace<ArrayBase<D, Ix2>, Array1<f64>> for Throughput {
    fn predict_inplace(&self, x: &ArrayBase<D, Ix2>, y: &mut Array1<f64>) {
        for (row, y) in x.rows().into_iter().zip(y) {
            *y = self.predict_row(&features(row));
        }
    }

    fn default_target(&self, x: &ArrayBase<D, Ix2>) -> Array1<f64> {
        Array1::zeros(x.nrows())
    }
}

fn features(row: ndarray::ArrayView1<'_, f64>) -> Features {
    let mut x = [0.0; COUNT];
    for (to, from) in x.iter_mut().zip(row) {
        *to = *from as f32;
    }
    Features(x)
}

/// The constant quantile: blind to everything.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ConstantParams {
    /// Which one, in (0, 1).
    pub quantile: f64,
}

/// A fitted constant, in the unit of its targets.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Constant(pub f32);

impl<D: Data<Elem = f64>, T: AsSingleTargets<Elem = f64>> Fit<ArrayBase<D, Ix2>, T, FitError>
    for ConstantParams
{
    type Object = Constant;

    fn fit(&self, dataset: &DatasetBase<ArrayBase<D, Ix2>, T>) -> Result<Constant, FitError> {
        let mut y: Vec<f32> = dataset
            .as_single_targets()
            .iter()
            .map(|y| *y as f32)
            .collect();
        if y.iter().any(|y| !y.is_finite()) {
            return Err(FitError::NotFinite);
        }
        nearest_rank(&mut y, self.quantile)
            .map(Constant)
            .ok_or(FitError::Empty)
    }
}

impl<D: Data<Elem = f64>> PredictInplace<ArrayBase<D, Ix2>, Array1<f64>> for Constant {
    fn predict_inplace(&self, _: &ArrayBase<D, Ix2>, y: &mut Array1<f64>) {
        y.fill(f64::from(self.0));
    }

    fn default_target(&self, x: &ArrayBase<D, Ix2>) -> Array1<f64> {
        Array1::zeros(x.nrows())
    }
}

#[cfg(test)]
mod tests {
    use linfa::Dataset;
    use linfa::traits::Predict;

    use super::*;
    use crate::logic::rng::SplitMix64;

    #[test]
    fn arithmetic_is_recovered_where_it_is_the_truth_even_if_nothing_ever_queued() {
        for queued in [false, true] {
            let mut rng = SplitMix64::new(1);
            let mut records = Array2::zeros((200, COUNT));
            for mut row in records.rows_mut() {
                row[Feature::MaxTokens as usize] = (rng.unit() * 500.0).round();
                row[Feature::StepMs as usize] = 4.0;
                row[Feature::TokensPerS as usize] = 250.0;
                row[Feature::NewPrefillTokens as usize] = (rng.unit() * 900.0).round();
                row[Feature::OutputTokens as usize] = if queued {
                    (rng.unit() * 9e3).round()
                } else {
                    0.0
                };
            }
            let truth = |r: ndarray::ArrayView1<'_, f64>| {
                0.5 * 4.0 * r[Feature::MaxTokens as usize]
                    + 4.0 * r[Feature::OutputTokens as usize]
                    + 0.3 * r[Feature::NewPrefillTokens as usize]
            };
            let targets: Array1<f64> = records.rows().into_iter().map(truth).collect();
            let data = Dataset::new(records, targets);
            let model = ThroughputParams.fit(&data).unwrap();
            let error = &model.predict(data.records()) - data.targets();
            assert!(error.iter().all(|e| e.abs() < 1e-6), "{model:?}");
            assert_eq!(model.weights[1] == 0.0, !queued);
        }
    }

    #[test]
    fn terms_that_can_not_be_told_apart_or_would_be_negative_are_left_out() {
        let fit = |truth: fn(f64) -> f64| {
            let mut records = Array2::zeros((50, COUNT));
            for (i, mut row) in records.rows_mut().into_iter().enumerate() {
                // Prompt tokens go with the cap.
                row[Feature::MaxTokens as usize] = 10.0 + i as f64;
                row[Feature::StepMs as usize] = 4.0;
                row[Feature::TokensPerS as usize] = 250.0;
                row[Feature::NewPrefillTokens as usize] = 20.0 + 2.0 * i as f64;
                row[Feature::OutputTokens as usize] = ((i * 37) % 50) as f64;
            }
            let caps = records.column(Feature::MaxTokens as usize).to_owned();
            let others = records.column(Feature::OutputTokens as usize).to_owned();
            let targets = caps.mapv(|cap| 8.0 * cap) + others.mapv(truth);
            let data = Dataset::new(records, targets);
            let model = ThroughputParams.fit(&data).unwrap();
            let worst = (&model.predict(data.records()) / data.targets() - 1.0)
                .mapv(f64::abs)
                .fold(0.0_f64, |a, b| a.max(*b));
            (model.weights, worst)
        };
        let (weights, worst) = fit(|others| 4.0 * others);
        assert!(
            weights.iter().all(|w| *w >= 0.0) && worst < 1e-6,
            "{weights:?} {worst}"
        );
        let (weights, worst) = fit(|others| -0.5 * others);
        assert!(
            weights.iter().all(|w| *w >= 0.0) && worst < 0.3,
            "{weights:?} {worst}"
        );
    }

    #[test]
    fn the_constant_is_the_nearest_rank() {
        let data = Dataset::new(
            Array2::zeros((10, 1)),
            Array1::from_iter((1..=10).map(f64::from)),
        );
        let model = ConstantParams { quantile: 0.9 }.fit(&data).unwrap();
        assert_eq!(model, Constant(9.0));
        assert_eq!(model.predict(data.records())[3], 9.0);
    }
}
