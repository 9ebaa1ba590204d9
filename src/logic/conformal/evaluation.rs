//! What a bound is worth on requests that it was not made of.
//!
//! Coverage alone can't tell a good model from a useless one, since calibration gives both their level: what a
//! good one buys is a tighter bound, and so more requests that fit their SLO.

use serde::Serialize;

use super::artifact::Artifact;
use super::calibration::Alpha;
use super::classes::Edges;
use super::online::{Adaptation, Calibrator, CalibratorConfig};
use super::predictor::{Latency, Model, Row};
use super::receipt::is_late;

/// The levels that are reported.
pub const ALPHAS: [f64; 4] = [0.2, 0.1, 0.05, 0.01];

/// A file's calibration as it stands, which follows nothing.
#[must_use]
pub fn calibrator(artifact: &Artifact, edges: Edges) -> Calibrator {
    let config = CalibratorConfig {
        edges,
        adaptation: Adaptation::Static,
        ..CalibratorConfig::default()
    };
    Calibrator::new(config, &artifact.points)
}

/// Of the levels that are reported, those at which it promises something: the most confident is the last.
#[must_use]
pub fn supported(calibrator: &Calibrator) -> Vec<Alpha> {
    let levels = ALPHAS.into_iter().filter_map(Alpha::new);
    levels.filter(|a| calibrator.is_armed(*a)).collect()
}

/// 97.5% of a normal variable lie below.
const Z: f64 = 1.959_964;

/// What became of the bounds of some rows.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Evaluation {
    /// Bounds that were seen to be kept or broken; the shares below are of them.
    pub n: usize,
    pub kept: usize,
    /// Rows whose client left: in no figure.
    pub censored: usize,
    /// Rows of a group that promises nothing at this level: in no figure.
    pub unbounded: usize,
    pub mean_ms: f64,
    pub median_ms: f64,
    /// Bounds that fit the SLO, and how many of those requests met it.
    pub admitted: usize,
    pub met: usize,
}

impl Evaluation {
    /// Holds the bounds of `rows` at `alpha` against their latencies, and both against an SLO of `slo_ms`.
    #[must_use]
    pub fn of(
        calibrator: &Calibrator,
        model: &Model,
        rows: &[Row],
        alpha: Alpha,
        slo_ms: f64,
    ) -> Self {
        let mut this = Self::default();
        let mut bounds = Vec::with_capacity(rows.len());
        for row in rows {
            let Latency::Exact(ms) = row.latency else {
                this.censored += 1;
                continue;
            };
            let estimate = model.estimate(&row.features);
            let Ok(bound) = calibrator.bound(&row.features, &estimate, alpha) else {
                this.unbounded += 1;
                continue;
            };
            this.kept += usize::from(!is_late(ms, bound));
            if bound <= slo_ms {
                this.admitted += 1;
                this.met += usize::from(!is_late(ms, slo_ms));
            }
            bounds.push(bound);
        }
        this.n = bounds.len();
        this.mean_ms = bounds.iter().sum::<f64>() / bounds.len().max(1) as f64;
        this.median_ms = median(&mut bounds).unwrap_or(0.0);
        this
    }

    /// Kept bounds over all.
    #[must_use]
    pub fn coverage(&self) -> Option<f64> {
        share(self.kept, self.n)
    }

    /// Wilson's 95% interval of the coverage, as if requests were independent: those of one run are not, so
    /// the truth is wider.
    #[must_use]
    pub fn interval(&self) -> Option<(f64, f64)> {
        let (p, n) = (self.coverage()?, self.n as f64);
        let scale = 1.0 + Z * Z / n;
        let centre = (p + Z * Z / (2.0 * n)) / scale;
        let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt() / scale;
        Some((centre - half, centre + half))
    }

    /// Of all, how many would be admitted.
    #[must_use]
    pub fn would_admit(&self) -> Option<f64> {
        share(self.admitted, self.n)
    }

    /// Of those admitted, how many met the SLO.
    #[must_use]
    pub fn of_those_met(&self) -> Option<f64> {
        share(self.met, self.admitted)
    }
}

fn share(part: usize, of: usize) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

/// The lower one of the two in the middle. `None` of nothing.
#[must_use]
pub fn median(values: &mut [f64]) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    Some(*values.select_nth_unstable_by(last / 2, f64::total_cmp).1)
}

#[cfg(test)]
mod tests {
    use super::super::boosting::BoostParams;
    use super::super::online::Point;
    use super::super::predictor::PredictorKind;
    use super::super::testing::{alpha, rows};
    use super::*;
    use crate::logic::rng::SplitMix64;

    #[test]
    fn counts_what_is_kept_admitted_and_met_and_leaves_the_censored_out() {
        let mut rng = SplitMix64::new(3);
        let model = Model::fit(
            PredictorKind::Constant,
            &rows(&mut rng, 500),
            &BoostParams::default(),
            None,
        )
        .unwrap();
        let points: Vec<Point> = rows(&mut rng, 500)
            .iter()
            .map(|r| Point::of(&model, r))
            .collect();
        let config = CalibratorConfig {
            adaptation: Adaptation::Static,
            ..CalibratorConfig::default()
        };
        let calibrator = Calibrator::new(config, &points);
        let mut test = rows(&mut rng, 1000);
        test[0].latency = Latency::AtLeast(test[0].latency.ms());
        let bound = calibrator
            .bound(
                &test[1].features,
                &model.estimate(&test[1].features),
                alpha(0.1),
            )
            .unwrap();
        let below = Evaluation::of(&calibrator, &model, &test, alpha(0.1), bound - 1.0);
        assert_eq!((below.n, below.censored, below.unbounded), (999, 1, 0));
        assert_eq!((below.admitted, below.of_those_met()), (0, None));
        let above = Evaluation::of(&calibrator, &model, &test, alpha(0.1), bound);
        // A constant bound at the SLO: everybody fits, and who keeps it meets it.
        assert_eq!(above.would_admit(), Some(1.0));
        assert!(
            (above.met as i64 - above.kept as i64).abs() <= 1,
            "{above:?}"
        );
        assert!((above.mean_ms - bound).abs() < 1e-6 && above.median_ms == bound);
        let kept = test[1..].iter().filter(|r| r.latency.ms() <= bound).count();
        assert!(above.kept.abs_diff(kept) <= 1, "but for whole milliseconds");
        let none = Evaluation::of(&calibrator, &model, &test, alpha(0.001), bound);
        assert_eq!((none.n, none.unbounded, none.coverage()), (0, 999, None));
    }

    #[test]
    fn the_interval_is_wilsons() {
        let of = |kept, n| {
            Evaluation {
                kept,
                n,
                ..Evaluation::default()
            }
            .interval()
            .unwrap()
        };
        let near = |(a, b): (f64, f64), c: f64, d: f64| {
            assert!((a - c).abs() < 5e-4 && (b - d).abs() < 5e-4, "{a} {b}");
        };
        near(of(19, 20), 0.7639, 0.9911);
        near(of(10, 10), 0.7225, 1.0);
    }
}
