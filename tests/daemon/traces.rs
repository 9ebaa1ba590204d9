//! Traces: a line for each request, with what admission saw and what came of it.

use serde_json::Value;

use crate::common::ask;
use crate::common::calibrated::{CAREFUL, Calibrated};
use crate::{ask_with, e2e_ms, paced};

pub fn rows(path: &std::path::Path) -> Vec<Value> {
    // While a full file is put aside there is none of this name.
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // The last line may be on its way.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line| serde_json::from_str(line).expect("a line of JSON");
    whole.lines().map(parse).collect()
}

#[test]
fn a_row_for_each_request_with_its_features_and_outcome_and_no_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("traces.jsonl");
    let calibrated = Calibrated::new(CAREFUL, &[]).but("admission.traces", path.to_str().unwrap());
    let d = calibrated.start();
    let promised = ask_with("SECRET one", 20, false, e2e_ms(60_000));
    assert_eq!(d.chat(&promised).response().status, 200);
    let refused = ask_with("SECRET two", 400, true, e2e_ms(50));
    assert_eq!(d.chat(&refused).response().status, 422);
    let mut left = d.chat(&ask("SECRET three", 900, true));
    left.read_text(1);
    drop(left);
    d.wait_for("three rows", || rows(&path).len() == 3);
    let rows = rows(&path);
    let of = |verdict: &str| rows.iter().find(|r| r["verdict"] == verdict).unwrap();

    let kept = of("promised");
    assert_eq!(kept["outcome"], "length", "{kept}");
    assert_eq!(kept["features"]["max_tokens"], 20.0, "{kept}");
    assert_eq!(kept["slo_ms"], 60_000, "{kept}");
    assert_eq!(kept["censored"], false, "{kept}");
    assert_eq!(kept["completion_tokens"], 20, "{kept}");
    let ms = |row: &Value, key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
    assert!(
        ms(kept, "latency_ms") >= 40.0,
        "twenty steps of 2 ms: {kept}"
    );
    assert!(ms(kept, "bound_ms") >= ms(kept, "latency_ms"), "{kept}");

    let refused = of("infeasible");
    assert_eq!(
        refused["outcome"], "invalid",
        "as /stats counts a 422: {refused}"
    );
    assert_eq!(refused["latency_ms"], Value::Null, "{refused}");

    let left = of("observed");
    assert_eq!(left["outcome"], "cancelled", "{left}");
    assert_eq!(left["censored"], true, "{left}");
    assert!(ms(left, "latency_ms") > 0.0, "{left}");

    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("SECRET"), "{text}");
    assert_eq!(d.metric("cadenced_trace_rows_dropped_total"), 0.0);
}

/// Whatever is admitted, traces can be had: that is how the first calibration's data are collected.
#[test]
fn traces_are_written_with_admission_off_and_stay_within_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("traces.jsonl");
    let d = paced(
        "0",
        &[
            ("admission.traces", path.to_str().unwrap()),
            ("admission.trace_bytes_max", "8192"),
        ],
    );
    for i in 0..60 {
        assert_eq!(
            d.chat(&ask(&format!("{i}"), 2, false)).response().status,
            200
        );
    }
    let last = || rows(&path).last().map(|row| row["request"].clone());
    d.wait_for("the last row", || last() == Some(60.into()));
    let row = rows(&path).pop().unwrap();
    assert_eq!(row["bound_ms"], Value::Null, "{row}");
    assert!(row["features"]["step_ms"].as_f64().is_some(), "{row}");
    let files: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .collect();
    assert_eq!(files.len(), 2, "{files:?}");
    assert!(files.iter().sum::<u64>() <= 8192, "{files:?}");
}

#[test]
fn a_trace_file_that_cant_be_written_stops_the_start() {
    let output = crate::common::command(
        &["serve", "--backend", "fake", "--listen", "127.0.0.1:0"],
        &[("admission.traces", "/nowhere/traces.jsonl")],
    )
    .output()
    .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{log}");
    assert!(log.contains("admission.traces: /nowhere"), "{log}");
}
