use super::super::calibration::{Alpha, Score};
use super::super::features::Feature;
use super::super::online::{Adaptation, Calibrator, CalibratorConfig, Point};
use super::super::testing::rows;
use super::*;
use crate::logic::rng::SplitMix64;

#[test]
fn all_kinds_are_fitted_alike_and_ignore_censored_rows() {
    let mut rng = SplitMix64::new(2);
    let mut rows: Vec<Row> = (0..300)
        .map(|_| {
            let mut x = [0.0; COUNT];
            x[Feature::MaxTokens as usize] = (rng.unit() * 400.0) as f32;
            x[Feature::StepMs as usize] = 5.0;
            let ms = 50.0 + f64::from(x[Feature::MaxTokens as usize]) * 5.0 * rng.unit();
            Row {
                features: Features(x),
                latency: Latency::Exact(ms),
            }
        })
        .collect();
    let fit =
        |rows: &[Row], kind| Model::fit(kind, rows, &BoostParams::default(), Some(0.1)).unwrap();
    let kinds = [
        PredictorKind::Trees,
        PredictorKind::Throughput,
        PredictorKind::Constant,
    ];
    let before: Vec<Model> = kinds.iter().map(|k| fit(&rows, *k)).collect();
    rows.push(Row {
        latency: Latency::AtLeast(9e9),
        ..rows[0]
    });
    for (kind, before) in kinds.into_iter().zip(before) {
        assert!(before.is_sound());
        let e = before.estimate(&rows[0].features);
        assert!(
            e.hi.is_finite() && e.lo >= 0.0 && e.lo <= e.hi,
            "{kind:?} {e:?}"
        );
        assert_eq!(fit(&rows, kind), before, "{kind:?}");
    }
}

/// Calibration gives every model its coverage, good or bad; what a better one buys is a tighter bound.
#[test]
fn every_model_and_score_covers_and_only_the_width_tells_them_apart() {
    let mut rng = SplitMix64::new(12);
    let [train, calibrate, test] = [1500, 1500, 4000].map(|n| rows(&mut rng, n));
    for a in [0.2_f64, 0.05] {
        // Of the calibration set and of the test set.
        let error = (a * (1.0 - a) * (1.0 / 1500.0 + 1.0 / 4000.0)).sqrt();
        let alpha = Alpha::new(a).unwrap();
        let mean_bound = |kind, score| {
            let model = Model::fit(kind, &train, &BoostParams::default(), Some(0.1)).unwrap();
            let point = |r: &Row| Point::new(&r.features, model.estimate(&r.features), r.latency);
            let points: Vec<Point> = calibrate.iter().map(point).collect();
            let config = CalibratorConfig {
                score,
                adaptation: Adaptation::Static,
                ..CalibratorConfig::default()
            };
            let calibrator = Calibrator::new(config, &points);
            let bound = |r: &Row| {
                calibrator
                    .bound(&r.features, &model.estimate(&r.features), alpha)
                    .unwrap()
            };
            let bounds: Vec<f64> = test.iter().map(bound).collect();
            let kept = test
                .iter()
                .zip(&bounds)
                .filter(|(r, u)| r.latency.ms() <= **u)
                .count();
            let coverage = kept as f64 / test.len() as f64;
            assert!(
                (coverage - (1.0 - a)).abs() < 4.0 * error,
                "{kind:?} {score:?} {a}: {coverage}"
            );
            bounds.iter().sum::<f64>() / bounds.len() as f64
        };
        for score in [Score::LogRatio, Score::Absolute, Score::WidthScaled] {
            let trees = mean_bound(PredictorKind::Trees, score);
            let arithmetic = mean_bound(PredictorKind::Throughput, score);
            let constant = mean_bound(PredictorKind::Constant, score);
            // The toy engine is arithmetic itself, so that being no worse than it is the most there is.
            assert!(
                trees < 1.06 * arithmetic,
                "{score:?} {a}: {trees} {arithmetic}"
            );
            assert!(trees < 0.85 * constant, "{score:?} {a}: {trees} {constant}");
        }
    }
}
