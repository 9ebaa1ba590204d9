//! The tables of `conformal`.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::ladder::figures::calibration::Share;
use super::markdown::Table;
use super::tables::{Render, number, rows, string};

/// In bench/results.
pub const FILE: &str = "conformal/offline.json";

/// Name in the markers and renderer.
pub const ALL: [(&str, Render); 8] = [
    ("conformal-folds", folds),
    ("conformal-levels", levels),
    ("conformal-bounds", bounds),
    ("conformal-safety", safety),
    ("conformal-importance", importance),
    ("conformal-splits", splits),
    ("conformal-classes", classes),
    ("conformal-choices", choices),
];

const EVALUATED: [&str; 7] = [
    "α",
    "n",
    "coverage (95% interval)",
    "Q",
    "mean U, ms",
    "median U, ms",
    "would admit; of those met",
];

fn head<'a>(labels: &[&'a str]) -> Vec<&'a str> {
    labels.iter().copied().chain(EVALUATED).collect()
}

fn share(v: &Value) -> String {
    v.as_f64().map_or("–".into(), |x| format!("{x:.3}"))
}

fn percent(v: &Value) -> String {
    v.as_f64()
        .map_or("–".into(), |x| format!("{:.1}%", 100.0 * x))
}

fn coverage(r: &Value) -> String {
    match r["interval"].as_array().map(Vec::as_slice) {
        Some([low, high]) => format!("{} ({}–{})", share(&r["coverage"]), share(low), share(high)),
        _ => "–".into(),
    }
}

fn ms(r: &Value, key: &str) -> String {
    if r["n"] == 0 {
        "–".into()
    } else {
        format!("{:.0}", number(&r[key]))
    }
}

fn evaluated(r: &Value) -> [String; 7] {
    let left_out = match r["unbounded"].as_u64() {
        Some(n) if n > 0 => format!(" (+{n} without a bound)"),
        _ => String::new(),
    };
    [
        r["alpha"].to_string(),
        format!("{}{left_out}", r["n"]),
        coverage(r),
        share(&r["q"]),
        ms(r, "mean_ms"),
        ms(r, "median_ms"),
        format!(
            "{}; {}",
            percent(&r["would_admit"]),
            percent(&r["of_those_met"])
        ),
    ]
}

fn folds(results: &Value) -> String {
    let mut t = Table::new(&[
        "fold",
        "rounds",
        "completions",
        "censored",
        "dropped",
        "refused",
    ]);
    for f in rows(&results["folds"]) {
        let counts = ["completions", "censored", "dropped", "refused"];
        let counts = counts.map(|c| f["counts"][c].to_string());
        t.row(
            [string(&f["fold"]), f["rounds"].to_string()]
                .into_iter()
                .chain(counts),
        );
    }
    let engine = &results["engine"];
    let of = if engine.is_null() {
        String::new()
    } else {
        let backend = string(&engine["backend"]);
        let device = string(&engine["device"]);
        let saturation = number(&results["saturation_per_s"]);
        format!(" Collected on {backend}, {device}; saturation {saturation:.2} requests/s.")
    };
    format!(
        "{}\n{}.{of} SLO of the tables: {} ms.\n",
        t.text,
        string(&results["source"]),
        results["slo_ms"]
    )
}

fn is_deployed(r: &&Value) -> bool {
    r["predictor"] == "boosted trees" && r["score"] == "log ratio"
}

fn levels(results: &Value) -> String {
    let mut t = Table::new(&head(&[]));
    for r in rows(&results["bounds"]).iter().filter(is_deployed) {
        t.row(evaluated(r));
    }
    t.text
}

/// What was kept at each level as deployed, for a curve; nothing if it was not measured.
///
/// # Errors
/// When the file below `results` can't be read.
pub fn shares(results: &Path) -> Result<Vec<Share>> {
    let path = results.join(FILE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let json: Value =
        serde_json::from_str(&std::fs::read_to_string(&path)?).with_context(|| FILE.to_owned())?;
    let share = |r: &Value| {
        Some(Share {
            level: 1.0 - r["alpha"].as_f64()?,
            kept: r["coverage"].as_f64()?,
            interval: (r["interval"][0].as_f64()?, r["interval"][1].as_f64()?),
        })
    };
    let deployed = rows(&json["results"]["bounds"]).iter().filter(is_deployed);
    Ok(deployed.filter_map(share).collect())
}

fn bounds(results: &Value) -> String {
    let mut t = Table::new(&head(&["predictor", "score"]));
    for r in rows(&results["bounds"]) {
        let labels = [string(&r["predictor"]), string(&r["score"])];
        t.row(labels.into_iter().chain(evaluated(r)));
    }
    t.text
}

fn safety(results: &Value) -> String {
    let mut t = Table::new(&[
        "safety factor",
        "coverage",
        "would admit",
        "of those met",
        "admitted and met",
    ]);
    for r in rows(&results["safety"]) {
        let both = number(&r["met"]) / number(&r["n"]);
        t.row([
            r["safety"].to_string(),
            share(&r["coverage"]),
            percent(&r["would_admit"]),
            percent(&r["of_those_met"]),
            percent(&both.into()),
        ]);
    }
    t.text
}

fn importance(results: &Value) -> String {
    let mut t = Table::new(&["feature", "importance"]);
    for r in rows(&results["importance"]) {
        t.row([string(&r["feature"]), share(&r["share"])]);
    }
    t.text
}

fn splits(results: &Value) -> String {
    let mut t = Table::new(&head(&["split"]));
    for r in rows(&results["splits"]) {
        t.row(std::iter::once(string(&r["split"])).chain(evaluated(r)));
    }
    t.text
}

fn classes(results: &Value) -> String {
    let mut t = Table::new(&head(&["calibrated"]));
    for r in rows(&results["classes"]["over_all"]) {
        t.row(std::iter::once(string(&r["classes"])).chain(evaluated(r)));
    }
    let mut groups = Table::new(&[
        "load",
        "max_tokens",
        "classes",
        "calibrated on",
        "tested on",
        "coverage, all as one",
        "coverage, by class",
        "median U, all as one, ms",
        "median U, by class, ms",
    ]);
    for r in rows(&results["classes"]["groups"]) {
        let (group, one, by_class) = (&r["group"], &r["all_as_one"], &r["by_class"]);
        groups.row([
            range(&group["load"]),
            range(&group["max_tokens"]),
            group["classes"].to_string(),
            group["members"].to_string(),
            one["n"].to_string(),
            coverage(one),
            coverage(by_class),
            ms(one, "median_ms"),
            ms(by_class, "median_ms"),
        ]);
    }
    format!(
        "{}\nBy group, at α = {}:\n\n{}",
        t.text, results["level"], groups.text
    )
}

fn range(v: &Value) -> String {
    match (v[0].as_u64(), v[1].as_u64()) {
        (Some(from), Some(to)) => format!("{from}–{}", to.saturating_sub(1)),
        (Some(from), None) => format!("{from} and more"),
        _ => "?".into(),
    }
}

fn choices(results: &Value) -> String {
    let mut t = Table::new(&[
        "quantile",
        "depth",
        "trees",
        "n",
        "coverage",
        "mean U, ms",
        "median U, ms",
    ]);
    for r in rows(&results["choices"]) {
        let deployed = if r["deployed"] == true {
            " (deployed)"
        } else {
            ""
        };
        t.row([
            format!("{}{deployed}", r["quantile"]),
            r["depth"].to_string(),
            r["trees"].to_string(),
            r["n"].to_string(),
            share(&r["coverage"]),
            ms(r, "mean_ms"),
            ms(r, "median_ms"),
        ]);
    }
    t.text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_without_bounds_shows_none() {
        let row = serde_json::json!({
            "predictor": "boosted trees", "score": "log ratio", "alpha": 0.01, "n": 0, "unbounded": 7,
            "q": null, "coverage": null, "interval": null, "mean_ms": 0.0, "median_ms": 0.0,
            "would_admit": null, "of_those_met": null,
        });
        let text = levels(&serde_json::json!({ "bounds": [row] }));
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            "| 0.01 | 0 (+7 without a bound) | – | – | – | – | –; – |"
        );
    }
}
