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

/// Throughput arithmetic: latency is a weighted sum of the work ahead, the weights by least squares.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ThroughputParams;

/// Its fitted weights; predicts milliseconds from rows of [`Features`].
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Throughput {
    pub weights: [f64; TERMS],
    pub intercept: f64,
}

impl Throughput {
    #[must_use]
    pub fn predict_row(&self, x: &Features) -> f64 {
        let products = terms(x).into_iter().zip(self.weights).map(|(t, w)| t * w);
        self.intercept + products.sum::<f64>()
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
        let rows: Vec<[f64; TERMS]> = records
            .rows()
            .into_iter()
            .map(|r| terms(&features(r)))
            .collect();
        let Some(first) = rows.first() else {
            return Err(FitError::Empty);
        };
        // A term that never changes (traffic that never queued) can't be told from the intercept.
        let varies: Vec<usize> = (0..TERMS)
            .filter(|t| rows.iter().any(|r| r[*t] != first[*t]))
            .collect();
        let x = Array2::from_shape_fn((rows.len(), varies.len()), |(r, c)| rows[r][varies[c]]);
        let y = dataset.as_single_targets().to_owned();
        if x.iter().chain(&y).any(|v| !v.is_finite()) {
            return Err(FitError::NotFinite);
        }
        let fitted = LinearRegression::new().fit(&DatasetBase::new(x, y))?;
        let mut weights = [0.0; TERMS];
        for (term, weight) in varies.into_iter().zip(fitted.params()) {
            weights[term] = *weight;
        }
        Ok(Throughput {
            weights,
            intercept: fitted.intercept(),
        })
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
                20.0 + 0.5 * 4.0 * r[Feature::MaxTokens as usize]
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
