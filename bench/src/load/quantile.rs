//! Nearest-rank percentiles with their n beside them: every one is a value that somebody had. Values that are
//! only known to be at least so large (a client gave up) rank above all others.

use serde::{Deserialize, Serialize};

/// Percentiles are named in thousandths.
pub const P50: usize = 500;
const P90: usize = 900;
pub const P99: usize = 990;
const P999: usize = 999;

/// Percentiles of a sample; empty where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    pub n: usize,
    /// Of which so many are lower bounds.
    pub censored: usize,
    pub mean: Option<f64>,
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
    pub max: Option<f64>,
}

impl Quantiles {
    /// Of exact values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        Self::censored(values, [])
    }

    /// Of exact values and of values that are lower bounds.
    pub fn censored(
        exact: impl IntoIterator<Item = f64>,
        at_least: impl IntoIterator<Item = f64>,
    ) -> Self {
        let mut sorted: Vec<f64> = exact.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let known = sorted.len();
        sorted.extend(at_least);
        sorted[known..].sort_by(f64::total_cmp);
        let n = sorted.len();
        Self {
            n,
            censored: n - known,
            mean: (n > 0).then(|| sorted.iter().sum::<f64>() / n as f64),
            p50: nearest_rank(&sorted, P50),
            p90: nearest_rank(&sorted, P90),
            p99: nearest_rank(&sorted, P99),
            p999: nearest_rank(&sorted, P999),
            max: sorted.last().copied(),
        }
    }

    /// Each value times `factor`.
    pub fn scaled(self, factor: f64) -> Self {
        let scale = |v: Option<f64>| v.map(|v| v * factor);
        Self {
            mean: scale(self.mean),
            p50: scale(self.p50),
            p90: scale(self.p90),
            p99: scale(self.p99),
            p999: scale(self.p999),
            max: scale(self.max),
            ..self
        }
    }

    /// Whether the percentile, in thousandths, is only a lower bound.
    pub fn is_bound(&self, permille: usize) -> bool {
        rank(self.n, permille) > self.n - self.censored
    }

    /// `p50 … p90 … p99 … max … (n=…)` with `digits` decimals; `≥` where a value is a lower bound.
    pub fn show(&self, digits: usize) -> String {
        let one = |name: &str, permille: usize, value: Option<f64>| {
            let sign = if self.is_bound(permille) { "≥" } else { "" };
            value.map_or_else(String::new, |v| format!("{name} {sign}{v:.digits$}  "))
        };
        if self.n == 0 {
            return "none (n=0)".into();
        }
        format!(
            "{}{}{}{}(n={})",
            one("p50", P50, self.p50),
            one("p90", P90, self.p90),
            one("p99", P99, self.p99),
            one("max", 1000, self.max),
            self.n
        )
    }
}

/// The place, from 1, of a percentile among `n`.
fn rank(n: usize, permille: usize) -> usize {
    (permille * n).div_ceil(1000).max(1)
}

fn nearest_rank(sorted: &[f64], permille: usize) -> Option<f64> {
    sorted.get(rank(sorted.len(), permille) - 1).copied()
}

/// The fewest values of which this percentile is not just the maximum.
pub fn fewest_for(percentile: f64) -> usize {
    let beyond = (100.0 - percentile) / 100.0;
    // Against 1 / 0.01 coming out as 100.00000000000001 or the like.
    ((1.0 / beyond) - 1e-6).ceil() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_percentile_is_a_value_and_the_smallest_that_covers_its_share(
            values in proptest::collection::vec(-1e6..1e6f64, 1..300), permille in 1..=1000usize,
        ) {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let v = nearest_rank(&sorted, permille).unwrap();
            prop_assert!(values.contains(&v));
            let share = |limit: &dyn Fn(&f64) -> bool| values.iter().filter(|x| limit(x)).count() * 1000;
            prop_assert!(share(&|x| *x <= v) >= permille * values.len());
            prop_assert!(share(&|x| *x < v) < permille * values.len());
        }
    }

    #[test]
    fn of_ten_values_p99_is_the_maximum_and_of_a_hundred_it_is_not() {
        let ten = Quantiles::of((1..=10).map(f64::from));
        assert_eq!((ten.p50, ten.p99, ten.n), (Some(5.0), Some(10.0), 10));
        let hundred = Quantiles::of((1..=100).map(f64::from));
        assert_eq!((hundred.p99, hundred.max), (Some(99.0), Some(100.0)));
        assert_eq!(
            [
                fewest_for(50.0),
                fewest_for(90.0),
                fewest_for(99.0),
                fewest_for(99.9)
            ],
            [2, 10, 100, 1000]
        );
        assert_eq!(Quantiles::of([]), Quantiles::default());
    }

    #[test]
    fn lower_bounds_rank_last_and_are_shown_as_such() {
        let q = Quantiles::censored([1.0, 9.0, 2.0], [5.0]);
        assert_eq!((q.p50, q.max, q.censored), (Some(2.0), Some(5.0), 1));
        assert!(q.is_bound(P99) && !q.is_bound(P50) && !Quantiles::of([1.0]).is_bound(1000));
        assert_eq!(q.show(0), "p50 2  p90 ≥5  p99 ≥5  max ≥5  (n=4)");
    }
}
