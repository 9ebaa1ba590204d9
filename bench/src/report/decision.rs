//! Tables of `decision`: what decisions cost, how soon refusals are answered, and both beside what is required.

use serde_json::Value;

use super::markdown::Table;
use super::tables::{Render, number, rows};
use crate::decision::{ARTIFACT_MS, P50_US, P99_US, REFUSAL_MS};
use crate::stats::Spread;

const FILE: &str = "decision.json";

/// Name in the markers, file of results, renderer.
pub const ALL: &[(&str, &str, Render)] = &[
    ("decision", FILE, costs),
    ("decision-refusals", FILE, refusals),
    ("decision-requirements", FILE, requirements),
];

/// A row for each load and clock.
fn costs(results: &Value) -> String {
    let within = |us: f64| format!("within {us} µs, %");
    let mut t = Table::new(&[
        "load",
        "decisions",
        "clock",
        "p50, µs",
        "p99, µs",
        &within(P50_US),
        &within(P99_US),
        "none above, µs",
    ]);
    for r in rows(&results["loaded"]) {
        for (clock, key) in [("CPU", "cpu"), ("wall", "wall")] {
            let c = &r[key];
            let percent = |v: &Value| {
                let s = spread(v);
                let [median, min, max] = [s.median, s.min, s.max].map(|share| 100.0 * share);
                Spread { median, min, max }.show(1)
            };
            t.row([
                load(r),
                decisions(&r["decisions"]),
                clock.to_owned(),
                spread(&c["p50_us"]).show(1),
                spread(&c["p99_us"]).show(1),
                percent(&c["within_p50"]),
                percent(&c["within_p99"]),
                c["at_most_us"]
                    .as_f64()
                    .map_or("beyond the last bucket".into(), |us| format!("{us:.0}")),
            ]);
        }
    }
    t.text
}

/// A row for each load, and one for a decode that blocks.
fn refusals(results: &Value) -> String {
    let mut t = Table::new(&[
        "meanwhile",
        "503s, by reason",
        "p50, ms",
        "p99, ms",
        "longest, ms",
    ]);
    let mut row = |meanwhile: String, r: &Value| {
        t.row([
            meanwhile,
            counts(&r["codes"]),
            spread(&r["p50_ms"]).show(2),
            spread(&r["p99_ms"]).show(2),
            spread(&r["max_ms"]).show(2),
        ]);
    };
    for r in rows(&results["loaded"]) {
        row(load(r), &r["refusals"]);
    }
    row("one decode of 2 s".into(), &results["blocked"]["refusals"]);
    t.text
}

/// What is required beside the worst that was measured: a requirement holds if it held in every repeat of every load.
fn requirements(results: &Value) -> String {
    let mut t = Table::new(&["required", "at most", "measured", ""]);
    let worst = |key: &str| {
        let all = rows(&results["loaded"])
            .iter()
            .map(|r| spread(&r["cpu"][key]));
        all.max_by(|a, b| a.max.total_cmp(&b.max))
            .unwrap_or_default()
    };
    let lines = [
        ("CPU time of a decision, p50", P50_US, "µs", worst("p50_us")),
        ("CPU time of a decision, p99", P99_US, "µs", worst("p99_us")),
        (
            "a refusal while a decode blocks, p99",
            REFUSAL_MS,
            "ms",
            spread(&results["blocked"]["refusals"]["p99_ms"]),
        ),
        (
            "loading the calibration file",
            ARTIFACT_MS,
            "ms",
            spread(&results["artifact"]["load_ms"]),
        ),
    ];
    for (what, limit, unit, measured) in lines {
        let holds = measured.max <= limit;
        t.row([
            what.to_owned(),
            format!("{limit} {unit}"),
            format!("{} {unit}", measured.show(2)),
            if holds { "holds" } else { "**missed**" }.to_owned(),
        ]);
    }
    let file = &results["artifact"];
    t.text
        + &format!(
            "\nThe file has {} kB, with {} scores. The SLO was {} s.\n",
            (number(&file["bytes"]) * 1e-3).round(),
            file["scores"],
            number(&results["slo_ms"]) * 1e-3
        )
}

fn load(row: &Value) -> String {
    format!(
        "{} × saturation = {:.1}/s",
        row["load"],
        number(&row["rate_per_s"])
    )
}

fn decisions(by_verdict: &Value) -> String {
    let all = by_verdict.as_object().into_iter().flatten();
    all.map(|(verdict, n)| format!("{n} {verdict}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn counts(by_reason: &Value) -> String {
    let all = by_reason.as_object().into_iter().flatten();
    all.map(|(reason, n)| format!("{n} × {reason}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn spread(v: &Value) -> Spread {
    serde_json::from_value(v.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_requirement_is_missed_by_one_repeat_at_one_load() {
        let spread = |median: f64, max: f64| json!({ "median": median, "min": 0.0, "max": max });
        let results = |p99: f64, refusal: f64| {
            let row = |p99: f64| json!({ "load": 1.0, "cpu": { "p50_us": spread(2.0, 3.0), "p99_us": spread(20.0, p99) } });
            json!({
                "slo_ms": 5000,
                "artifact": { "bytes": 28_400, "scores": 300, "load_ms": spread(1.0, 2.0) },
                "loaded": [row(p99), row(30.0)],
                "blocked": { "refusals": { "p99_ms": spread(1.0, refusal) } },
            })
        };
        let missed = |text: &str| text.matches("**missed**").count();
        let text = requirements(&results(50.0, 5.0));
        assert_eq!(
            (missed(&text), text.matches("| holds |").count()),
            (0, 4),
            "{text}"
        );
        assert!(
            text.contains("28 kB, with 300 scores. The SLO was 5 s."),
            "{text}"
        );
        assert_eq!(missed(&requirements(&results(50.1, 5.0))), 1);
        assert_eq!(missed(&requirements(&results(50.0, 5.1))), 1);
    }
}
