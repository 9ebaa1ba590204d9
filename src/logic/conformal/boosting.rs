//! Gradient boosting of a conditional quantile, behind linfa's `Fit` and `PredictInplace`.
//!
//! Each tree is grown, level by level, on the gradients of the pinball loss (which know only on which side of
//! the present estimate a target lies), over histograms of at most 256 bins a feature. What a leaf then adds
//! is not the mean gradient but the quantile of the residuals that fell into it (Friedman's and LightGBM's
//! refitting of leaves), so that the loss goes down by the right amount and not only in the right direction.
//!
//! Fitting is O(trees × depth × features × rows) and deterministic: one thread, sums in a fixed order, and a
//! seeded generator for the subsample.

use std::cmp::Ordering;

use linfa::dataset::{AsSingleTargets, DatasetBase};
use linfa::traits::{Fit, PredictInplace};
use ndarray::{Array1, ArrayBase, Data, Ix2};
use serde::{Deserialize, Serialize};

use super::forest::{Cut, Forest};
use super::histogram::{Binned, SplitLimits};
use crate::logic::rng::SplitMix64;

/// The first trees are grown on the residuals themselves and taken in large steps: the loss's own gradient only says
/// on which side of the estimate a target lies, which is the same for all that are far below the common start, so that
/// the fastest regime would be told from the others last, or never.
const LEVEL_TREES: usize = 20;
const LEVEL_RATE: f32 = 0.2;

/// How to boost.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BoostParams {
    /// Which quantile, in (0, 1). Not the level of the promise, which calibration sees to: 0.9 is estimated
    /// from hundreds of rows where 0.99 would be from a handful.
    pub quantile: f64,
    pub trees: usize,
    /// Levels of splits, 1 to 12.
    pub depth: u32,
    /// Share of a leaf's quantile that is added, in (0, 1].
    pub learning_rate: f64,
    /// Rows that each side of a split must hold.
    pub leaf_rows: usize,
    /// What a split must gain, in units of a gradient's variance q(1 − q): under pure noise a given cut gains
    /// χ² with one degree of freedom, and the best of a node's cuts about 10.
    pub significance: f64,
    /// Distinct values of a feature, 2 to 256.
    pub bins: usize,
    /// Share of the rows that a tree sees, in (0, 1].
    pub subsample: f64,
    pub seed: u64,
}

impl Default for BoostParams {
    fn default() -> Self {
        Self {
            quantile: 0.9,
            trees: 100,
            depth: 4,
            learning_rate: 0.1,
            leaf_rows: 20,
            significance: 10.0,
            bins: 64,
            subsample: 0.8,
            seed: 0,
        }
    }
}

/// Why nothing could be fitted.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    #[error("no rows to fit on")]
    Empty,
    #[error("a feature or a target is not finite")]
    NotFinite,
    #[error("parameter out of range: {0}")]
    Parameter(&'static str),
    #[error("wrong number of features: {0}")]
    Features(usize),
    #[error(transparent)]
    Linear(#[from] linfa_linear::LinearError<f64>),
    #[error(transparent)]
    Linfa(#[from] linfa::Error),
}

/// A fitted quantile, in the unit of its targets.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct QuantileTrees {
    pub forest: Forest,
    /// How much each feature's splits reduced the squared gradient, as shares of 1 (all 0 without a split).
    pub importance: Vec<f64>,
}

/// The empirical quantile of nearest rank: the smallest value that at least a share `q` does not exceed.
/// Reorders `values`; `None` if there are none.
#[must_use]
pub fn nearest_rank(values: &mut [f32], q: f64) -> Option<f32> {
    let last = values.len().checked_sub(1)?;
    let rank = (q * values.len() as f64 - 1e-9).ceil() as usize;
    let at = rank.saturating_sub(1).min(last);
    Some(*values.select_nth_unstable_by(at, f32::total_cmp).1)
}

/// Of the values of these rows; never 0, since it is divided by.
fn variance(rows: &[u32], values: &[f32]) -> f64 {
    let n = rows.len() as f64;
    let (sum, squares) = rows.iter().fold((0.0, 0.0), |(sum, squares), row| {
        let v = f64::from(values[*row as usize]);
        (sum + v, squares + v * v)
    });
    (squares / n - (sum / n).powi(2)).max(1e-12)
}

impl BoostParams {
    fn check(&self) -> Result<(), FitError> {
        let share = |x: f64| x > 0.0 && x <= 1.0;
        for (holds, name) in [
            (self.quantile > 0.0 && self.quantile < 1.0, "quantile"),
            ((1..=12).contains(&self.depth), "depth"),
            (share(self.learning_rate), "learning_rate"),
            (self.leaf_rows > 0, "leaf_rows"),
            (self.significance >= 0.0, "significance"),
            ((2..=256).contains(&self.bins), "bins"),
            (share(self.subsample), "subsample"),
        ] {
            if !holds {
                return Err(FitError::Parameter(name));
            }
        }
        Ok(())
    }

    fn boost(&self, binned: &Binned, targets: &[f32]) -> QuantileTrees {
        let rows = targets.len();
        let leaf_count = 1_usize << self.depth;
        let q = self.quantile as f32;
        let base = nearest_rank(&mut targets.to_vec(), self.quantile).unwrap_or(0.0);
        let mut forest = Forest::new(binned.features(), self.depth, base);
        let mut gain = vec![0.0; binned.features()];

        // Of the gradient's variance under the loss.
        let unit = self.quantile * (1.0 - self.quantile);
        let mut rng = SplitMix64::new(self.seed);
        let mut order: Vec<u32> = (0..rows as u32).collect();
        let drawn = ((rows as f64 * self.subsample).round() as usize).clamp(1, rows);
        let mut estimate = vec![base; rows];
        let mut gradient = vec![0.0; rows];
        let mut node_of = vec![0_u16; rows];
        let mut residuals: Vec<Vec<f32>> = vec![Vec::new(); leaf_count];

        for tree in 0..self.trees {
            let levels = tree < LEVEL_TREES;
            if drawn < rows {
                rng.shuffle(&mut order);
            }
            let sample = &order[..drawn];
            for ((g, y), e) in gradient.iter_mut().zip(targets).zip(&estimate) {
                // A target that is met exactly pulls neither way.
                *g = match y.total_cmp(e) {
                    _ if levels => y - e,
                    Ordering::Greater => q,
                    Ordering::Equal => 0.0,
                    Ordering::Less => q - 1.0,
                };
            }
            let scale = if levels {
                variance(sample, &gradient)
            } else {
                unit
            };
            let limits = SplitLimits {
                rows: self.leaf_rows,
                gain: self.significance * scale,
            };

            node_of.fill(0);
            let mut nodes = Vec::with_capacity(leaf_count - 1);
            for level in 0..self.depth {
                let splits = binned.best_splits(sample, &gradient, &node_of, 1 << level, limits);
                binned.descend(&splits, &mut node_of);
                nodes.extend(splits.iter().map(|split| {
                    split.as_ref().map(|s| {
                        gain[s.feature] += s.gain / scale;
                        Cut {
                            feature: s.feature as u16,
                            threshold: binned.threshold(s.feature, s.cut),
                        }
                    })
                }));
            }

            for &row in sample {
                let r = row as usize;
                residuals[usize::from(node_of[r])].push(targets[r] - estimate[r]);
            }
            let leaves: Vec<f32> = residuals
                .iter_mut()
                .map(|r| {
                    let leaf = nearest_rank(r, self.quantile).unwrap_or(0.0);
                    r.clear();
                    let rate = self.learning_rate as f32;
                    leaf * if levels { rate.max(LEVEL_RATE) } else { rate }
                })
                .collect();
            for (e, node) in estimate.iter_mut().zip(&node_of) {
                *e += leaves[usize::from(*node)];
            }
            forest.push(&nodes, &leaves);
        }

        let total: f64 = gain.iter().sum();
        if total > 0.0 {
            gain.iter_mut().for_each(|g| *g /= total);
        }
        QuantileTrees {
            forest,
            importance: gain,
        }
    }
}

impl<D: Data<Elem = f64>, T: AsSingleTargets<Elem = f64>> Fit<ArrayBase<D, Ix2>, T, FitError>
    for BoostParams
{
    type Object = QuantileTrees;

    fn fit(&self, dataset: &DatasetBase<ArrayBase<D, Ix2>, T>) -> Result<QuantileTrees, FitError> {
        self.check()?;
        let targets: Vec<f32> = dataset
            .as_single_targets()
            .iter()
            .map(|y| *y as f32)
            .collect();
        let columns: Vec<Vec<f32>> = dataset
            .records()
            .columns()
            .into_iter()
            .map(|column| column.iter().map(|x| *x as f32).collect())
            .collect();
        if targets.is_empty() || columns.is_empty() {
            return Err(FitError::Empty);
        }
        if columns.len() > usize::from(u16::MAX) {
            return Err(FitError::Features(columns.len()));
        }
        if !columns
            .iter()
            .flatten()
            .chain(&targets)
            .all(|x| x.is_finite())
        {
            return Err(FitError::NotFinite);
        }
        Ok(self.boost(&Binned::new(&columns, self.bins), &targets))
    }
}

impl<D: Data<Elem = f64>> PredictInplace<ArrayBase<D, Ix2>, Array1<f64>> for QuantileTrees {
    fn predict_inplace(&self, x: &ArrayBase<D, Ix2>, y: &mut Array1<f64>) {
        let mut row = vec![0.0; x.ncols()];
        for (values, y) in x.rows().into_iter().zip(y) {
            for (to, from) in row.iter_mut().zip(values) {
                *to = *from as f32;
            }
            *y = f64::from(self.forest.predict_row(&row));
        }
    }

    fn default_target(&self, x: &ArrayBase<D, Ix2>) -> Array1<f64> {
        Array1::zeros(x.nrows())
    }
}

#[cfg(test)]
#[path = "boosting_tests.rs"]
mod tests;
