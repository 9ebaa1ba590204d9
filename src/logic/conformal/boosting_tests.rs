use linfa::Dataset;
use linfa::traits::Predict;
use ndarray::Array2;

use super::*;
use crate::logic::rng::SplitMix64;

/// `rows` × 14: the first two columns decide level and spread, the rest is noise.
fn dataset(rows: usize, seed: u64) -> Dataset<f64, f64, ndarray::Ix1> {
    let mut rng = SplitMix64::new(seed);
    let records = Array2::from_shape_fn((rows, 14), |_| rng.unit());
    let targets = records
        .rows()
        .into_iter()
        .map(|r| 4.0 * r[0] + (0.1 + r[1]) * rng.normal())
        .collect();
    Dataset::new(records, targets)
}

fn pinball(q: f64, predicted: &Array1<f64>, actual: &Array1<f64>) -> f64 {
    let loss = |(p, y): (&f64, &f64)| {
        if y > p {
            q * (y - p)
        } else {
            (q - 1.0) * (y - p)
        }
    };
    predicted.iter().zip(actual).map(loss).sum::<f64>() / actual.len() as f64
}

#[test]
fn beats_the_constant_quantile_by_far_and_nears_the_true_one() {
    let (train, test) = (dataset(1500, 1), dataset(4000, 2));
    let params = BoostParams::default();
    let model = params.fit(&train).unwrap();
    let fitted = pinball(0.9, &model.predict(test.records()), test.targets());
    let targets: Vec<f32> = train.targets().iter().map(|y| *y as f32).collect();
    let constant = f64::from(nearest_rank(&mut targets.clone(), 0.9).unwrap());
    let constant = pinball(0.9, &Array1::from_elem(4000, constant), test.targets());
    let truth = test.records().rows().into_iter();
    let truth: Array1<f64> = truth.map(|r| 4.0 * r[0] + (0.1 + r[1]) * 1.2816).collect();
    let truth = pinball(0.9, &truth, test.targets());
    assert!(fitted < 0.60 * constant, "{fitted} {constant}");
    assert!(fitted < 1.25 * truth, "{fitted} {truth}");
    assert!(
        model.importance[0] + model.importance[1] > 0.8,
        "{:?}",
        model.importance
    );
    assert!((model.importance.iter().sum::<f64>() - 1.0).abs() < 1e-9);
}

/// Most of a calibration's rows are of overloads that take minutes, and the few of an idle engine, which takes a
/// fraction of a second, are those that promises are about.
#[test]
fn the_few_rows_of_a_fast_regime_are_fitted_as_well_as_the_many_of_a_slow_one() {
    let mut rng = SplitMix64::new(1);
    // Column 0 is the queue, which 300 rows find empty, and column 1 the request's own size.
    let records = Array2::from_shape_fn((2000, 6), |(r, c)| match c {
        0 => (r.saturating_sub(300) / 17) as f64,
        _ => rng.unit(),
    });
    let seconds = |queue: f64, size: f64| 0.3 * (0.5 + size) + 1.5 * queue;
    let targets: Vec<f64> = records
        .rows()
        .into_iter()
        .map(|r| (1e3 * seconds(r[0], r[1]) * (0.1 * rng.normal()).exp()).ln_1p())
        .collect();
    let data = Dataset::new(records, Array1::from(targets));
    let model = BoostParams::default().fit(&data).unwrap();
    for (queue, size) in [(0.0, 0.2), (0.0, 0.9), (30.0, 0.5), (90.0, 0.5)] {
        let x = [queue, size, 0.5, 0.5, 0.5, 0.5].map(|v| v as f32);
        let ratio = f64::from(model.forest.predict_row(&x)).exp_m1() / (1e3 * seconds(queue, size));
        assert!(
            (0.85..1.8).contains(&ratio),
            "{ratio} at a queue of {queue}, size {size}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_trees_and_another_one_does_not() {
    let data = dataset(400, 3);
    let fit = |seed| {
        BoostParams {
            seed,
            trees: 20,
            ..BoostParams::default()
        }
        .fit(&data)
        .unwrap()
    };
    assert_eq!(fit(7), fit(7));
    assert_ne!(fit(7), fit(8));
}

#[test]
fn a_step_in_one_feature_is_found_exactly() {
    let records = Array2::from_shape_fn((200, 2), |(r, c)| if c == 0 { 1.0 } else { r as f64 });
    let targets = (0..200).map(|r| if r < 120 { 1.0 } else { 3.0 }).collect();
    let data = Dataset::new(records, targets);
    let model = BoostParams {
        learning_rate: 1.0,
        subsample: 1.0,
        bins: 256,
        trees: 3,
        significance: 0.0,
        ..BoostParams::default()
    }
    .fit(&data)
    .unwrap();
    assert_eq!(&model.predict(data.records()), data.targets());
    assert_eq!(model.importance, [0.0, 1.0]);
}

#[test]
fn what_cannot_be_fitted_is_refused() {
    let data = dataset(10, 4);
    let bad = BoostParams {
        quantile: 1.0,
        ..BoostParams::default()
    };
    assert!(matches!(
        bad.fit(&data),
        Err(FitError::Parameter("quantile"))
    ));
    let empty = dataset(0, 4);
    assert!(matches!(
        BoostParams::default().fit(&empty),
        Err(FitError::Empty)
    ));
    let mut holed = dataset(10, 4);
    holed.records[(3, 3)] = f64::NAN;
    assert!(matches!(
        BoostParams::default().fit(&holed),
        Err(FitError::NotFinite)
    ));
}
