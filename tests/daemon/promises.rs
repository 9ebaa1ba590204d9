//! What becomes of promises: receipts and the record; observing; learning from live traffic; calibrations that
//! can't be used.

use serde_json::Value;

use crate::common::calibrated::{CAREFUL, Calibrated, Said};
use crate::common::{Response, command};
use crate::{ask_with, e2e_ms, number, paced};

fn hurried(content: &str, max_tokens: u32, stream: bool, ms: u64) -> Value {
    ask_with(content, max_tokens, stream, e2e_ms(ms))
}

/// The receipt of a stream, which comes in a chunk of its own after the end of the text.
#[track_caller]
fn receipt(response: &Response) -> Value {
    assert!(response.is_done(), "{response:?}");
    let mut chunks = response.chunks();
    let at = chunks
        .iter()
        .position(|c| c.get("cadenced").is_some())
        .unwrap_or_else(|| panic!("no receipt in {response:?}"));
    let finish = &chunks[at - 1]["choices"][0]["finish_reason"];
    assert_eq!(finish, "length", "{response:?}");
    let chunk = chunks[at].take();
    assert_eq!(chunk["choices"][0]["delta"], serde_json::json!({}));
    assert_eq!(chunk["object"], "chat.completion.chunk");
    chunk["cadenced"]["receipt"].clone()
}

fn header(response: &Response, name: &str) -> u64 {
    let value = response.header(name).and_then(|v| v.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {response:?}"))
}

#[test]
fn a_receipt_says_what_was_promised_and_what_came_of_it() {
    let d = Calibrated::new(CAREFUL, &[]).start();
    let whole = d.chat(&hurried("whole", 30, false, 60_000)).response();
    assert_eq!(whole.status, 200, "{whole:?}");
    let promised = header(&whole, "x-cadenced-promised-ms");
    assert_eq!(promised, header(&whole, "x-cadenced-bound-ms"));
    // Thirty steps of two milliseconds.
    let actual = header(&whole, "x-cadenced-actual-ms");
    assert!(actual >= 60 && actual <= promised, "{whole:?}");
    assert_eq!(whole.header("x-cadenced-kept"), Some("true"), "{whole:?}");

    let mut body = hurried("stream", 30, true, 60_000);
    body["stream_options"] = serde_json::json!({ "include_usage": true });
    let mut client = d.chat(&body);
    let head = client.head();
    let bound = header(&head, "x-cadenced-bound-ms");
    let rest = client.rest();
    let last = rest.chunks().pop().unwrap();
    assert!(last["usage"].is_object(), "usage is last, as OpenAI says");
    let receipt = receipt(&rest);
    assert_eq!(receipt["verdict"], "promised", "{receipt}");
    assert_eq!(receipt["promised_ms"], bound, "{receipt}");
    assert_eq!(receipt["kept"], true, "{receipt}");
    assert_eq!(receipt["confidence"], 0.95, "{receipt}");
    assert_eq!(receipt["slo_ms"], 60_000, "{receipt}");
    assert_eq!(receipt["slo_met"], true, "{receipt}");
    assert!(number(&receipt, "/actual_ms") >= 60, "{receipt}");

    let mut left = d.chat(&hurried("leaves", 900, true, 600_000));
    left.read_text(1);
    drop(left);
    let stats = d.wait_for_stats("three ended", |s| s["admission"]["bounds"]["censored"] == 1);
    let bounds = &stats["admission"]["bounds"];
    assert_eq!((&bounds["kept"], &bounds["missed"]), (&2.into(), &0.into()));
    assert_eq!(stats["admission"]["coverage"], 1.0, "{stats}");
    assert_eq!(
        d.metric("cadenced_admission_bounds_total{result=\"kept\"}"),
        2.0
    );
}

#[test]
fn a_promise_that_is_missed_is_told_and_counted_as_missed() {
    let rash = Said {
        own: 0.05,
        others: 0.0,
        spread: 0.0,
    };
    let d = Calibrated::new(rash, &[]).start();
    let reply = d.chat(&hurried("late", 100, true, 60_000)).response();
    let receipt = receipt(&reply);
    assert_eq!(receipt["kept"], false, "{receipt}");
    assert_eq!(receipt["slo_met"], true, "{receipt}");
    assert!(
        number(&receipt, "/actual_ms") > number(&receipt, "/promised_ms"),
        "{receipt}"
    );
    let stats = d.wait_for_stats("it is counted", |s| s["admission"]["bounds"]["missed"] == 1);
    assert_eq!(stats["admission"]["coverage"], 0.0, "{stats}");
}

#[test]
fn observing_tells_bounds_scores_them_and_refuses_nothing() {
    let d = Calibrated::new(CAREFUL, &[("admission.mode", "observe")]).start();
    for i in 0..5 {
        let reply = d.chat(&hurried(&format!("{i}"), 50, true, 1)).response();
        let receipt = receipt(&reply);
        assert_eq!(receipt["verdict"], "observed", "{receipt}");
        assert_eq!(receipt["kept"], Value::Null, "{receipt}");
        assert_eq!(receipt["slo_met"], false, "{receipt}");
        assert!(receipt["bound_ms"].is_u64(), "{receipt}");
    }
    let stats = d.wait_for_stats("five observed", |s| {
        s["admission"]["bounds"]["observed_kept"] == 5
    });
    assert_eq!(stats["admission"]["armed"], false, "{stats}");
    assert_eq!(stats["admission"]["coverage"], Value::Null, "{stats}");
    assert_eq!(stats["admission"]["observed_coverage"], 1.0, "{stats}");
    assert_eq!(number(&stats, "/requests/length"), 5, "{stats}");
}

#[test]
fn without_admission_nothing_is_told() {
    let d = paced("500", &[]);
    let reply = d.chat(&hurried("off", 5, true, 1)).response();
    assert!(reply.is_done(), "{reply:?}");
    assert_eq!(reply.header("x-cadenced-verdict"), None, "{reply:?}");
    assert!(
        reply.chunks().iter().all(|c| c.get("cadenced").is_none()),
        "{reply:?}"
    );
}

/// Without a calibration: everything is admitted, until enough has completed; then the daemon promises, and
/// refuses what can't be.
#[test]
fn learns_from_live_traffic_and_arms_itself() {
    let d = paced(
        "200",
        &[
            ("admission.mode", "conformal"),
            ("admission.learn_completions", "150"),
            ("admission.explore_every", "4"),
        ],
    );
    let serve = |i: usize| {
        let body = hurried(&format!("{i}"), 2 + (i % 20) as u32, false, 60_000);
        d.chat(&body).response()
    };
    assert_eq!(d.metric("cadenced_admission_armed"), 0.0);
    let first = d.chat(&hurried("impossible", 20, false, 1)).response();
    assert_eq!(first.header("x-cadenced-verdict"), Some("observed"));
    let mut served = 0;
    d.wait_for("armed", || {
        let reply = serve(served);
        let armed = d.metric("cadenced_admission_armed") == 1.0;
        assert!(reply.status == 200 || armed, "{reply:?}");
        served += usize::from(reply.status == 200);
        armed
    });
    assert!(
        served >= 224,
        "with the impossible one, 150 to fit on, and half as many again for a model with scores: {served}"
    );
    d.wait_for("a promise that is kept", || {
        served += 1;
        serve(served).header("x-cadenced-kept") == Some("true")
    });
    d.wait_for("a refusal of what is impossible", || {
        // Like those that were learnt from in everything but its SLO; and traffic goes on.
        served += 1;
        serve(served);
        let reply = d.chat(&hurried("100", 10, false, 1)).response();
        assert!([200, 422].contains(&reply.status), "{reply:?}");
        reply.error_code().as_deref() == Some("slo_infeasible")
    });
}

/// A calibration of another engine promises nothing: one loud line, a gauge, and everything is admitted.
#[test]
fn a_calibration_of_another_engine_is_disarmed_unless_trusted() {
    let other = || Calibrated::new(CAREFUL, &[]).but("kv.cells", "8192");
    let mismatched = other();
    let d = mismatched.start();
    let log = d.log();
    let lines: Vec<_> = log
        .lines()
        .filter(|l| l.contains("calibrated for"))
        .collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains("KV cells 16384, here 8192"), "{log}");
    assert!(lines[0].contains("admission.artifact"), "{log}");
    assert_eq!(d.metric("cadenced_admission_artifact_mismatch"), 1.0);
    assert_eq!(d.metric("cadenced_admission_armed"), 0.0);
    let impossible = hurried("impossible", 50, false, 1);
    let reply = d.chat(&impossible).response();
    assert_eq!(reply.header("x-cadenced-verdict"), Some("observed"));
    drop(d);

    let trusted = other().but("admission.trust_artifact", "true");
    let d = trusted.start();
    assert_eq!(d.metric("cadenced_admission_armed"), 1.0);
    assert_eq!(d.chat(&impossible).response().status, 422);
}

#[test]
fn a_calibration_that_cant_be_used_stops_the_start() {
    let damaged = Calibrated::new(CAREFUL, &[]);
    std::fs::write(damaged.file.path(), b"cadenced.conformal\0").unwrap();
    let missing = Calibrated::new(CAREFUL, &[]).but("admission.artifact", "/nowhere/calibration");
    for (calibrated, why) in [(damaged, "not a calibration"), (missing, "No such file")] {
        let output = calibrated.command().output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{log}");
        assert!(
            log.contains("admission.artifact: /") && log.contains(why),
            "{log}"
        );
    }
    let output = command(&["check-config"], &[("admission.mode", "static")])
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{log}");
    assert!(log.contains("admission.artifact"), "{log}");
}

/// The static arm promises by the same calibration.
#[test]
fn the_static_arm_promises_and_refuses() {
    let d = Calibrated::new(CAREFUL, &[("admission.mode", "static")]).start();
    assert_eq!(d.stats()["rung"], "rung5-static");
    let kept = d.chat(&hurried("fits", 10, false, 60_000)).response();
    assert_eq!(kept.header("x-cadenced-kept"), Some("true"), "{kept:?}");
    let refused = d.chat(&hurried("never", 500, false, 100)).response();
    assert_eq!(refused.status, 422, "{refused:?}");
}
