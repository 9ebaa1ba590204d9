use std::collections::BTreeSet;

use cadenced::logic::conformal::features::{COUNT, Feature, Features};
use cadenced::logic::conformal::rounds::{Folds, Plan, RoundRow, of_block};
use cadenced::logic::conformal::trace::TraceRow;
use cadenced::logic::rng::SplitMix64;

use super::*;

/// Rounds of a toy engine: a reply's steps, and a queue that its block's load makes, longer by the end.
fn data(rounds: u32, rows: u32) -> Data {
    let mut rng = SplitMix64::new(4);
    let plan = Plan {
        minutes: 10.0,
        rounds,
        seed: 0,
    };
    let mut request = 0;
    let mut row = |round: u32, load: f64, i: u32| {
        request += 1;
        let mut x = [0.0; COUNT];
        let cap = (16.0 + 400.0 * rng.unit()).round();
        let waiting = (load * f64::from(i) * rng.unit()).floor();
        x[Feature::MaxTokens as usize] = cap as f32;
        x[Feature::Waiting as usize] = waiting as f32;
        x[Feature::StepMs as usize] = 5.0;
        x[Feature::TokensPerS as usize] = 200.0;
        x[Feature::OutputTokens as usize] = (waiting * 100.0) as f32;
        let ms = 5.0 * cap * (0.2 + 0.8 * rng.unit()) + 40.0 * waiting * (0.8 + 0.4 * rng.unit());
        TraceRow {
            run: u64::from(round),
            request,
            arrival_s: f64::from(i),
            verdict: "observed".into(),
            confidence: 0.95,
            bound_ms: None,
            slo_ms: None,
            waited_ms: 0.0,
            features: Features(x),
            outcome: "stop".into(),
            latency_ms: Some(ms),
            censored: i % 50 == 49,
            completion_tokens: 1,
            cached_tokens: 0,
        }
    };
    let mut all = Vec::new();
    for round in 0..rounds {
        let mut of_round = Vec::new();
        for (place, block) in (0..).zip(plan.blocks(round)) {
            let traced = (0..rows).map(|i| row(round, block.load, i)).collect();
            of_round.extend(of_block(place, &block, traced));
        }
        all.push(of_round);
    }
    Data {
        source: "toy".into(),
        engine: Value::Null,
        saturation_per_s: None,
        rounds: all,
    }
}

fn latencies(folds: &Folds, fold: Fold) -> BTreeSet<u64> {
    let of = folds.rows(fold).iter();
    of.map(|r| r.latency.ms().to_bits()).collect()
}

#[test]
fn every_split_uses_every_row_once_and_only_the_round_keeps_runs_together() {
    let data = data(8, 60);
    let of_run = |run: usize| -> BTreeSet<u64> {
        data.rounds[run]
            .iter()
            .filter_map(|r| r.trace.latency_ms.map(f64::to_bits))
            .collect()
    };
    let used: usize = data.rounds.iter().flatten().filter(|r| !r.dropped).count();
    for (split, name) in Split::ALL {
        let folds = data.folds(split);
        let sets = Fold::ALL.map(|f| latencies(&folds, f));
        assert_eq!(
            sets.iter().map(BTreeSet::len).sum::<usize>(),
            used,
            "{name}"
        );
        let all: BTreeSet<u64> = sets.iter().flatten().copied().collect();
        assert_eq!(all.len(), used, "{name}");
        let torn = (0..8).any(|run| {
            let of_run = of_run(run);
            sets.iter().filter(|s| !s.is_disjoint(&of_run)).count() > 1
        });
        assert_eq!(torn, !matches!(split, Split::Round | Split::Time), "{name}");
        assert!(
            sets[0].len() > sets[1].len() && !sets[1].is_empty(),
            "{name}"
        );
    }
    let (fit_on, slice) = data.training_slice().unwrap();
    let train = latencies(&data.folds(Split::Round), Fold::Train);
    assert_eq!(fit_on.len() + slice.len(), train.len());
    assert!(
        slice
            .iter()
            .all(|r| train.contains(&r.latency.ms().to_bits()))
    );
}

/// The tables hold what they say: every predictor has its level, the better one the tighter bounds, and a factor
/// trades one for the other.
#[test]
fn the_results_cover_at_their_levels_and_are_complete() {
    let data = data(8, 120);
    let results = evaluate(&data, None).unwrap();
    let bounds = results["bounds"].as_array().unwrap();
    assert_eq!(bounds.len(), KINDS.len() * SCORES.len() * ALPHAS.len());
    let mut mean = std::collections::BTreeMap::new();
    for b in bounds {
        let (alpha, coverage) = (
            b["alpha"].as_f64().unwrap(),
            b["coverage"].as_f64().unwrap(),
        );
        let n = b["n"].as_f64().unwrap();
        let error = (alpha * (1.0 - alpha) * 2.0 / n).sqrt();
        assert!(
            (coverage - (1.0 - alpha)).abs() < 5.0 * error + 0.005,
            "{b}"
        );
        assert!(b["q"].is_f64() && b["censored"].as_u64() > Some(0), "{b}");
        if b["score"] == "log ratio" && alpha == LEVEL {
            mean.insert(
                b["predictor"].as_str().unwrap(),
                b["mean_ms"].as_f64().unwrap(),
            );
        }
    }
    assert!(
        mean["boosted trees"] < mean["constant quantile"],
        "{mean:?}"
    );
    let column = |table: &str, key: &str| -> Vec<f64> {
        let rows = results[table].as_array().unwrap();
        rows.iter().map(|r| r[key].as_f64().unwrap()).collect()
    };
    assert!(column("safety", "coverage").is_sorted() && column("safety", "coverage").len() == 8);
    assert!(column("safety", "would_admit").is_sorted_by(|a, b| a >= b));
    assert!((column("importance", "share").iter().sum::<f64>() - 1.0).abs() < 1e-9);
    assert_eq!(column("splits", "coverage").len(), 4 * ALPHAS.len());
    let choices = results["choices"].as_array().unwrap();
    assert_eq!(choices.iter().filter(|c| c["deployed"] == true).count(), 1);
    let groups = results["classes"]["groups"].as_array().unwrap();
    let members = |key: &str| {
        groups
            .iter()
            .filter_map(|g| g[key]["n"].as_u64())
            .sum::<u64>()
    };
    assert_eq!(Some(members("all_as_one")), bounds[0]["n"].as_u64());
    for (name, render) in crate::report::CONFORMAL {
        let text = render(&results);
        assert!(
            text.lines().count() > 3 && !text.contains("NaN"),
            "{name}: {text}"
        );
    }
}

#[test]
fn traces_are_split_by_the_run_of_their_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for (i, round) in data(4, 40).rounds.iter().enumerate() {
        let path = dir.path().join(format!("{i}.jsonl"));
        let line = |r: &RoundRow| serde_json::to_string(&r.trace).unwrap() + "\n";
        std::fs::write(&path, round.iter().map(line).collect::<String>()).unwrap();
        files.push(path);
    }
    let few = Data::read(&files[..3]).unwrap_err();
    assert!(few.to_string().contains("of 3 runs"), "{few}");
    let data = Data::read(&files).unwrap();
    assert_eq!(data.rounds.len(), 4);
    let dropped = data.rounds[0].iter().filter(|r| r.dropped).count();
    assert_eq!(dropped, 5 * 20, "the first twenty seconds");
    std::fs::write(&files[0], "{}\n").unwrap();
    let broken = format!("{:#}", Data::read(&files).unwrap_err());
    assert!(broken.contains("0.jsonl, line 1"), "{broken}");
}
