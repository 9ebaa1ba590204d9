//! `conformal`: what a bound is worth offline, on the traces of a calibration: each predictor under each score at
//! each level, and what the other choices would have changed. All arithmetic is the daemon's own.
//!
//! Everything reported is of the test fold. The one thing that is chosen, the trees' parameters, is compared on a
//! part of the training fold, which a choice may look at without spoiling what is reported.

mod data;
mod fitted;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cadenced::logic::conformal::boosting::{BoostParams, nearest_rank};
use cadenced::logic::conformal::calibration::{Alpha, Score};
use cadenced::logic::conformal::classes::Edges;
use cadenced::logic::conformal::evaluation::{ALPHAS, Evaluation};
use cadenced::logic::conformal::features::NAMES;
use cadenced::logic::conformal::online::Point;
use cadenced::logic::conformal::predictor::{Model, Predictor, PredictorKind, Row};
use cadenced::logic::conformal::rounds::Fold;
use serde_json::{Value, json};

use crate::numbers::positive;
use crate::provenance::Provenance;
use data::{Data, Split};
use fitted::{Fitted, labelled};

/// The level of tables that show one.
const LEVEL: f64 = 0.05;
const SAFETY: [f64; 8] = [0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5];

const KINDS: [(PredictorKind, &str); 3] = [
    (PredictorKind::Trees, "boosted trees"),
    (PredictorKind::Throughput, "throughput, least squares"),
    (PredictorKind::Constant, "constant quantile"),
];
const SCORES: [(Score, &str); 3] = [
    (Score::LogRatio, "log ratio"),
    (Score::Absolute, "absolute"),
    (Score::WidthScaled, "width-scaled"),
];

/// Offline tables of a calibration.
#[derive(clap::Args)]
pub struct ConformalArgs {
    /// The folder that `cadenced calibrate` leaves beside its file, or trace files of at least four runs.
    #[arg(required = true, value_name = "WORKDIR | TRACES")]
    from: Vec<PathBuf>,
    /// For the share that would be admitted; if not given, what nine of ten training requests on an idle engine meet.
    #[arg(long, value_parser = positive)]
    slo_ms: Option<f64>,
    #[arg(long, default_value = "bench/results/conformal")]
    out: PathBuf,
}

/// Writes `offline.json` into the folder; `report` makes tables of it.
///
/// # Errors
/// When the traces can't be read or nothing can be fitted on them.
pub fn run(args: &ConformalArgs) -> Result<()> {
    let provenance = Provenance::begin(&[])?;
    let data = Data::read(&args.from)?;
    let results = evaluate(&data, args.slo_ms)?;
    let out = args.out.join("offline.json");
    provenance.write(&out, &results)?;
    show(&out)
}

fn show(out: &Path) -> Result<()> {
    let json: Value = serde_json::from_str(&std::fs::read_to_string(out)?)?;
    for (name, render) in crate::report::CONFORMAL {
        println!("\n## {name}\n\n{}", render(&json["results"]));
    }
    Ok(())
}

fn evaluate(data: &Data, slo_ms: Option<f64>) -> Result<Value> {
    let folds = data.folds(Split::Round);
    let slo_ms = match slo_ms {
        Some(ms) => ms,
        None => idle_slo_ms(folds.rows(Fold::Train))
            .context("no request ran on an idle engine: give --slo-ms")?,
    };
    let test = folds.rows(Fold::Test);
    let params = BoostParams::default();
    let deployed = Fitted::new(PredictorKind::Trees, &params, &folds)?;

    let mut bounds = Vec::new();
    for (kind, predictor) in KINDS {
        let fitted = Fitted::new(kind, &params, &folds)?;
        for (score, name) in SCORES {
            let calibrator = fitted.calibrator(|c| c.score = score);
            for alpha in ALPHAS {
                let row = fitted.row(&calibrator, test, alpha, slo_ms)?;
                bounds.push(labelled(
                    row,
                    &[("predictor", predictor.into()), ("score", name.into())],
                ));
            }
        }
    }

    let mut safety = Vec::new();
    for factor in SAFETY {
        let calibrator = deployed.calibrator(|c| c.safety = factor);
        let row = deployed.row(&calibrator, test, LEVEL, slo_ms)?;
        safety.push(labelled(row, &[("safety", factor.into())]));
    }

    let mut splits = Vec::new();
    for (split, name) in Split::ALL {
        let folds = data.folds(split);
        let fitted = Fitted::new(PredictorKind::Trees, &params, &folds)?;
        let calibrator = fitted.calibrator(|_| ());
        for alpha in ALPHAS {
            let row = fitted.row(&calibrator, folds.rows(Fold::Test), alpha, slo_ms)?;
            splits.push(labelled(row, &[("split", name.into())]));
        }
    }

    Ok(json!({
        "source": data.source,
        "engine": data.engine,
        "saturation_per_s": data.saturation_per_s,
        "slo_ms": slo_ms,
        "level": LEVEL,
        "rounds": data.rounds.len(),
        "folds": Fold::ALL.map(|f| json!({
            "fold": f.label(),
            "rounds": (0..data.rounds.len()).filter(|r| Fold::of(*r as u32) == f).count(),
            "counts": folds.counts(f),
        })),
        "bounds": bounds,
        "safety": safety,
        "importance": importance(&deployed.model),
        "splits": splits,
        "classes": classes(&deployed, test, slo_ms)?,
        "choices": choices(data, slo_ms)?,
    }))
}

/// What nine of ten requests that found the engine idle met.
fn idle_slo_ms(train: &[Row]) -> Option<f64> {
    let idle = train
        .iter()
        .filter(|r| r.features.load() == 0 && !r.latency.is_censored());
    let mut ms: Vec<f32> = idle.map(|r| r.latency.ms() as f32).collect();
    nearest_rank(&mut ms, 0.9).map(|ms| f64::from(ms.ceil()))
}

fn importance(model: &Model) -> Vec<Value> {
    let Predictor::Trees(_, trees) = &model.hi else {
        return Vec::new();
    };
    let mut shares: Vec<(f64, &str)> = trees.importance.iter().copied().zip(NAMES).collect();
    shares.sort_by(|a, b| b.0.total_cmp(&a.0));
    shares
        .into_iter()
        .map(|(share, feature)| json!({ "feature": feature, "share": share }))
        .collect()
}

/// One calibration for all against one for each class of cap and load: over all requests, and class by class.
fn classes(fitted: &Fitted, test: &[Row], slo_ms: f64) -> Result<Value> {
    let (all, by_class) = (
        fitted.calibrator(|_| ()),
        fitted.calibrator(|c| c.edges = Edges::reported()),
    );
    let mut over_all = Vec::new();
    for alpha in ALPHAS {
        for (calibrator, name) in [(&all, "all as one"), (&by_class, "by class")] {
            let row = fitted.row(calibrator, test, alpha, slo_ms)?;
            over_all.push(labelled(row, &[("classes", name.into())]));
        }
    }
    let grouping = by_class.classes();
    let mut groups = Vec::new();
    for (number, group) in grouping.describe().into_iter().enumerate() {
        let of = |r: &&Row| {
            let p = Point::of(&fitted.model, r);
            grouping.group(p.max_tokens, p.load) == number
        };
        let rows: Vec<Row> = test.iter().filter(of).copied().collect();
        groups.push(json!({
            "group": group,
            "all_as_one": fitted.row(&all, &rows, LEVEL, slo_ms)?,
            "by_class": fitted.row(&by_class, &rows, LEVEL, slo_ms)?,
        }));
    }
    Ok(json!({ "over_all": over_all, "groups": groups }))
}

/// Parameters of the trees, compared on the last training round: each half of it is calibrated on the other.
fn choices(data: &Data, slo_ms: f64) -> Result<Vec<Value>> {
    let Some((fit_on, slice)) = data.training_slice() else {
        return Ok(Vec::new());
    };
    let half =
        |parity: usize| -> Vec<Row> { slice.iter().skip(parity).step_by(2).copied().collect() };
    let halves = [half(0), half(1)];
    let deployed = BoostParams::default();
    let mut tried = Vec::new();
    for quantile in [0.8, 0.9, 0.95] {
        for depth in [3, 4, 5] {
            for trees in [50, 100, 200] {
                tried.push(BoostParams {
                    quantile,
                    depth,
                    trees,
                    ..deployed
                });
            }
        }
    }
    let mut choices = Vec::new();
    for params in tried {
        let mut halves_of = Vec::new();
        for (calibrate, test) in [(0, 1), (1, 0)] {
            let fitted = Fitted::of(PredictorKind::Trees, &params, &fit_on, &halves[calibrate])?;
            let calibrator = fitted.calibrator(|_| ());
            let level = Alpha::new(LEVEL).context("a level")?;
            halves_of.push(Evaluation::of(
                &calibrator,
                &fitted.model,
                &halves[test],
                level,
                slo_ms,
            ));
        }
        let mean = |of: fn(&Evaluation) -> f64| {
            halves_of.iter().map(of).sum::<f64>() / halves_of.len() as f64
        };
        let n: usize = halves_of.iter().map(|e| e.n).sum();
        let kept: usize = halves_of.iter().map(|e| e.kept).sum();
        choices.push(json!({
            "quantile": params.quantile,
            "depth": params.depth,
            "trees": params.trees,
            "deployed": params == deployed,
            "n": n,
            "coverage": (n > 0).then(|| kept as f64 / n as f64),
            "mean_ms": mean(|e| e.mean_ms),
            "median_ms": mean(|e| e.median_ms),
        }));
    }
    let bound = |c: &Value| c["median_ms"].as_f64().unwrap_or(f64::INFINITY);
    choices.sort_by(|a, b| bound(a).total_cmp(&bound(b)));
    Ok(choices)
}

#[cfg(test)]
#[path = "conformal_tests.rs"]
mod tests;
