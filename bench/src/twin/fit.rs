//! The cost model out of measured steps: least squares without negative costs.
//!
//! A negative cost would make time run backwards in some step, so each cost is zero or more. With four of
//! them the exact answer is cheap: the best of the fits over all sets of costs that may be above zero.

use serde::{Deserialize, Serialize};

use super::cost::{Composition, CostModel};

/// Costs in the model.
const COSTS: usize = 4;

/// Steps as they were measured together, since costs that add up have means that add up.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct TimedSteps {
    pub steps: u32,
    /// Of all of them, as are the seconds.
    pub total: Composition,
    pub seconds: f64,
}

impl TimedSteps {
    fn mean_s(&self) -> f64 {
        self.seconds / f64::from(self.steps)
    }
}

/// A fitted model with its error over the steps it was fitted to.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fit {
    pub model: CostModel,
    pub n: usize,
    /// The share of the variance that the model explains.
    pub r_squared: f64,
    /// Mean of |predicted − measured| over measured, in percent.
    pub error_mean_percent: f64,
}

/// Why there is no fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FitError {
    TooFewSteps {
        n: usize,
    },
    /// The steps do not tell the costs apart, such as when none prefills.
    NotTold,
}

impl std::fmt::Display for FitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooFewSteps { n } => write!(f, "{n} steps are too few to fit {COSTS} costs"),
            Self::NotTold => write!(f, "the steps do not tell the {COSTS} costs apart"),
        }
    }
}

impl std::error::Error for FitError {}

/// Fits the model to `steps`.
///
/// # Errors
/// [`FitError`] when the steps can't tell the costs.
pub fn fit(steps: &[TimedSteps]) -> Result<Fit, FitError> {
    if steps.len() < 2 * COSTS {
        return Err(FitError::TooFewSteps { n: steps.len() });
    }
    let (normal, right) = normal_equations(steps);
    // All four together must be told apart, even if some of them turn out to be zero.
    solve(&normal, &right, 0b1111).ok_or(FitError::NotTold)?;
    let candidates = (0..1u8 << COSTS).filter_map(|set| solve(&normal, &right, set));
    let best = candidates
        .filter(|costs| costs.iter().all(|c| *c >= 0.0))
        .min_by(|a, b| squared_error(steps, a).total_cmp(&squared_error(steps, b)))
        .ok_or(FitError::NotTold)?;
    let mean = steps.iter().map(TimedSteps::mean_s).sum::<f64>() / steps.len() as f64;
    let variance: f64 = steps.iter().map(|s| (s.mean_s() - mean).powi(2)).sum();
    let errors = steps
        .iter()
        .map(|s| (predicted(&best, s) / s.mean_s() - 1.0).abs());
    let [step_us, prefill_token_us, decode_seq_us, cached_token_us] = best.map(|c| c * 1e6);
    Ok(Fit {
        model: CostModel {
            step_us,
            prefill_token_us,
            decode_seq_us,
            cached_token_us,
        },
        n: steps.len(),
        r_squared: 1.0 - squared_error(steps, &best) / variance,
        error_mean_percent: 100.0 * errors.sum::<f64>() / steps.len() as f64,
    })
}

fn row(step: &TimedSteps) -> [f64; COSTS] {
    let (s, n) = (step.total, f64::from(step.steps));
    [
        1.0,
        f64::from(s.prefill_tokens) / n,
        f64::from(s.decode_seqs) / n,
        s.cached_tokens as f64 / n,
    ]
}

fn predicted(costs: &[f64; COSTS], step: &TimedSteps) -> f64 {
    costs.iter().zip(row(step)).map(|(c, x)| c * x).sum()
}

fn squared_error(steps: &[TimedSteps], costs: &[f64; COSTS]) -> f64 {
    let error = |s: &TimedSteps| (predicted(costs, s) - s.mean_s()).powi(2);
    steps.iter().map(error).sum()
}

fn normal_equations(steps: &[TimedSteps]) -> ([[f64; COSTS]; COSTS], [f64; COSTS]) {
    let (mut normal, mut right) = ([[0.0; COSTS]; COSTS], [0.0; COSTS]);
    for step in steps {
        let x = row(step);
        for (i, xi) in x.iter().enumerate() {
            right[i] += xi * step.mean_s();
            for (j, xj) in x.iter().enumerate() {
                normal[i][j] += xi * xj;
            }
        }
    }
    (normal, right)
}

/// Solves for the costs in `set`, the others being zero, by elimination. The matrix is scaled to a unit
/// diagonal first: a step counts once and has thousands of cached tokens.
fn solve(normal: &[[f64; COSTS]; COSTS], right: &[f64; COSTS], set: u8) -> Option<[f64; COSTS]> {
    let used: Vec<usize> = (0..COSTS).filter(|i| set & (1 << i) != 0).collect();
    let scale = |i: usize| normal[i][i].sqrt();
    let mut rows: Vec<Vec<f64>> = used
        .iter()
        .map(|&i| {
            let scaled = used.iter().map(|&j| normal[i][j] / (scale(i) * scale(j)));
            scaled.chain([right[i] / scale(i)]).collect()
        })
        .collect();
    let n = used.len();
    for k in 0..n {
        // What is left of the diagonal is the share of this column that the ones before it do not explain.
        let pivot = rows[k][k];
        if pivot.is_nan() || pivot < 1e-9 {
            return None;
        }
        let top = rows[k].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(i, _)| *i != k) {
            let factor = row[k] / pivot;
            for (x, t) in row.iter_mut().zip(&top) {
                *x -= factor * t;
            }
        }
    }
    let mut costs = [0.0; COSTS];
    for (k, &i) in used.iter().enumerate() {
        costs[i] = rows[k][n] / rows[k][k] / scale(i);
    }
    Some(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of all kinds under `model`, each time multiplied by what `noise` says of its number.
    fn steps(model: CostModel, noise: impl Fn(u32) -> f64) -> Vec<TimedSteps> {
        let at = |i: u32| {
            let step = Composition {
                prefill_tokens: (i % 3) * 128,
                decode_seqs: i % 5 + 1,
                cached_tokens: u64::from(i * 37 % 4096),
            };
            let us = model.step_us
                + model.prefill_token_us * f64::from(step.prefill_tokens)
                + model.decode_seq_us * f64::from(step.decode_seqs)
                + model.cached_token_us * step.cached_tokens as f64;
            TimedSteps {
                steps: 1,
                total: step,
                seconds: us * 1e-6 * noise(i),
            }
        };
        (0..300).map(at).collect()
    }

    #[test]
    fn the_costs_that_made_the_steps_are_found() {
        let model = CostModel::default();
        let fit = fit(&steps(model, |_| 1.0)).unwrap();
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
        assert!(close(fit.model.step_us, model.step_us), "{fit:?}");
        assert!(close(fit.model.prefill_token_us, model.prefill_token_us));
        assert!(close(fit.model.decode_seq_us, model.decode_seq_us));
        assert!(close(fit.model.cached_token_us, model.cached_token_us));
        assert!(fit.r_squared > 1.0 - 1e-9 && fit.error_mean_percent < 1e-6);
    }

    #[test]
    fn the_error_is_the_noise() {
        // ±10%, in turn: the mean error is 10%.
        let noisy = steps(CostModel::default(), |i| if i % 2 == 0 { 1.1 } else { 0.9 });
        let fit = fit(&noisy).unwrap();
        assert!((9.0..11.5).contains(&fit.error_mean_percent), "{fit:?}");
        assert!((0.95..0.999).contains(&fit.r_squared), "{fit:?}");
    }

    #[test]
    fn no_cost_is_negative() {
        let odd = CostModel {
            cached_token_us: -1.0,
            ..CostModel::default()
        };
        let fit = fit(&steps(odd, |_| 1.0)).unwrap();
        assert_eq!(fit.model.cached_token_us, 0.0, "{fit:?}");
        assert!(fit.model.step_us >= 0.0 && fit.model.decode_seq_us > 0.0);
    }

    #[test]
    fn steps_that_tell_too_little_are_refused() {
        let all = steps(CostModel::default(), |_| 1.0);
        assert_eq!(fit(&all[..7]), Err(FitError::TooFewSteps { n: 7 }));
        let decodes: Vec<_> = all
            .into_iter()
            .filter(|s| s.total.prefill_tokens == 0)
            .collect();
        assert_eq!(fit(&decodes), Err(FitError::NotTold));
    }
}
