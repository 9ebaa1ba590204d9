//! What a calibration came to, for people.

use std::fmt::Write as _;

use crate::logic::conformal::artifact::Artifact;
use crate::logic::conformal::calibration::Alpha;
use crate::logic::conformal::classes::{Edges, Group};
use crate::logic::conformal::evaluation::{Evaluation, calibrator, supported};
use crate::logic::conformal::online::{Calibrator, CalibratorConfig};
use crate::logic::conformal::rounds::{Fold, Folds};

/// The text: completions by fold, the levels they support, what the bound is worth on the test fold, and the
/// classes that are too small to be calibrated apart.
pub fn summary(artifact: &Artifact, folds: &Folds) -> String {
    let mut text = String::new();
    let out = &mut text;
    line(
        out,
        &["fold", "completions", "censored", "dropped", "refused"].map(String::from),
    );
    for fold in Fold::ALL {
        let c = folds.counts(fold);
        let counts = [c.completions, c.censored, c.dropped, c.refused];
        let [a, b, d, e] = counts.map(|n| n.to_string());
        line(out, &[fold.label().to_owned(), a, b, d, e]);
    }
    let calibrator = calibrator(artifact, Edges::default());
    let n = artifact.points.len();
    let supported = supported(&calibrator);
    let _ = match supported.last() {
        Some(a) => writeln!(
            out,
            "\n{n} scores support promises with a confidence of {} at least. On the test fold:",
            1.0 - a.get()
        ),
        None => writeln!(
            out,
            "\nNO PROMISE: {n} scores, and {} are needed. Collect for longer (--minutes), or let the daemon add what it serves.",
            CalibratorConfig::default().minimum
        ),
    };
    if !supported.is_empty() {
        coverage(out, artifact, &calibrator, folds, &supported);
    }
    classes(out, artifact);
    text
}

fn coverage(
    out: &mut String,
    artifact: &Artifact,
    calibrator: &Calibrator,
    folds: &Folds,
    alphas: &[Alpha],
) {
    let head = [
        "confidence",
        "kept",
        "of",
        "95% interval",
        "median bound, ms",
    ];
    line(out, &head.map(String::from));
    for &alpha in alphas {
        let rows = folds.rows(Fold::Test);
        let e = Evaluation::of(calibrator, &artifact.model, rows, alpha, f64::INFINITY);
        let share = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.3}"));
        let interval = e.interval();
        let (low, high) = (interval.map(|i| i.0), interval.map(|i| i.1));
        line(
            out,
            &[
                format!("{:.2}", 1.0 - alpha.get()),
                share(e.coverage()),
                e.n.to_string(),
                format!("{}-{}", share(low), share(high)),
                format!("{:.0}", e.median_ms),
            ],
        );
    }
    let _ = writeln!(
        out,
        "Requests of one round share queues, so the truth is wider than the interval."
    );
}

fn classes(out: &mut String, artifact: &Artifact) {
    let calibrator = calibrator(artifact, Edges::reported());
    let minimum = CalibratorConfig::default().minimum;
    let groups = calibrator.classes().describe();
    let pooled = groups
        .iter()
        .filter(|g| g.classes > 1 || g.members < minimum);
    let pooled: Vec<String> = pooled.map(show).collect();
    let _ = match pooled.as_slice() {
        [] => writeln!(
            out,
            "\nEvery class of cap and load could be calibrated by itself."
        ),
        some => writeln!(
            out,
            "\nCalibrated by class, these are too small to stand alone (fewer than {minimum}):\n  {}",
            some.join("\n  ")
        ),
    };
}

fn show(group: &Group) -> String {
    let range = |(from, to): (u32, Option<u32>)| match to {
        Some(to) => format!("{from}-{}", to - 1),
        None => format!("{from} and more"),
    };
    format!(
        "load {}, max_tokens {}: {} in {} {}",
        range(group.load),
        range(group.max_tokens),
        group.members,
        group.classes,
        if group.classes == 1 {
            "class"
        } else {
            "classes"
        },
    )
}

fn line(out: &mut String, cells: &[String]) {
    let cells = cells.iter().map(|c| format!("{c:>14}"));
    let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
}
