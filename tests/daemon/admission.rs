//! Who is let in when admission promises latencies: what fits is promised, what never fits is a 422, what does
//! not fit now is a 503, and each refusal says what would have been admitted.

use serde_json::{Value, json};

use crate::common::calibrated::{CAREFUL, Calibrated, Said};
use crate::common::{Daemon, Response, ask};
use crate::traces::rows;
use crate::{ask_with, assert_error, e2e_ms, number};

/// A request with an SLO.
fn hurried(content: &str, max_tokens: u32, ms: u64) -> Value {
    ask_with(content, max_tokens, false, e2e_ms(ms))
}

fn send(d: &Daemon, body: &Value) -> Response {
    d.chat(body).response()
}

fn quote(d: &Daemon, body: &Value) -> Value {
    let quoted = d.post("/v1/admission/quote", &body.to_string()).response();
    assert_eq!(quoted.status, 200, "{quoted:?}");
    quoted.json()
}

#[track_caller]
fn assert_verdict(response: &Response, status: u16, verdict: &str) {
    assert_eq!(response.status, status, "{response:?}");
    assert_eq!(
        response.header("x-cadenced-verdict"),
        Some(verdict),
        "{response:?}"
    );
}

#[test]
fn what_fits_is_promised_and_what_never_fits_is_a_422_with_a_counter_offer() {
    let d = Calibrated::new(CAREFUL, &[]).start();
    let promised = send(&d, &hurried("fits", 20, 60_000));
    assert_verdict(&promised, 200, "promised");
    assert_eq!(promised.header("x-cadenced-confidence"), Some("0.95"));

    let refused = send(&d, &hurried("never fits", 400, 2000));
    assert_error(&refused, 422, "slo_infeasible");
    assert_verdict(&refused, 422, "infeasible");
    let bound: u64 = header(&refused, "x-cadenced-bound-ms");
    assert!(bound > 2000, "{refused:?}");
    let error = &refused.json()["error"];
    assert_eq!(error["param"], "slo.e2e_ms");
    let offer = &error["counter_offer"];
    let shorter = number(offer, "/max_tokens") as u32;
    assert!((1..400).contains(&shorter), "{offer}");
    let later = number(offer, "/e2e_ms");
    assert!(later >= bound, "{offer}");
    // What is offered is what would be admitted. The pace has moved on since, so a bit less of it.
    let shorter = send(&d, &hurried("never fits", shorter / 2 + 1, 2000));
    assert_verdict(&shorter, 200, "promised");
    let later = send(&d, &hurried("never fits", 400, 2 * later));
    assert_verdict(&later, 200, "promised");

    let stats = d.idle();
    assert_eq!(number(&stats, "/requests/invalid"), 1, "{stats}");
    assert_eq!(stats["admission"]["armed"], true, "{stats}");
    assert_eq!(stats["rung"], "rung5-conformal", "{stats}");
}

#[test]
fn without_an_slo_nothing_is_refused_and_nothing_promised() {
    let d = Calibrated::new(CAREFUL, &[]).start();
    let reply = send(&d, &ask("no hurry", 30, false));
    assert_verdict(&reply, 200, "observed");
    assert!(reply.header("x-cadenced-bound-ms").is_some(), "{reply:?}");
    assert_eq!(reply.header("x-cadenced-kept"), None, "{reply:?}");
    d.idle();
}

/// Under load what could be served by an idle server is told to come back, what could not is told not to.
#[test]
fn under_overload_refusals_split_into_422_and_503() {
    let d = Calibrated::new(CAREFUL, &[("scheduler.max_running", "2")]).start();
    let holders: Vec<_> = (0..6)
        .map(|i| d.chat(&ask(&format!("holds {i}"), 3000, true)))
        .collect();
    d.wait_for_stats("two run and four wait", |s| {
        s["running"] == 2 && s["waiting"] == 4
    });
    for i in 0..10 {
        let now = send(&d, &hurried(&format!("now {i}"), 20, 5000));
        assert_error(&now, 503, "slo_overloaded");
        assert_verdict(&now, 503, "overloaded");
        let never = send(&d, &hurried(&format!("never {i}"), 900, 5000));
        assert_error(&never, 422, "slo_infeasible");
        // A deadline beyond the work ahead fits.
        let offered = number(&now.json(), "/error/counter_offer/e2e_ms");
        let quoted = quote(&d, &hurried("later", 20, 2 * offered));
        assert_eq!(quoted["verdict"], "promised", "{quoted}");
    }
    drop(holders);
    let stats = d.idle();
    assert_eq!(number(&stats, "/requests/refused"), 10, "{stats}");
    assert_eq!(number(&stats, "/requests/invalid"), 10, "{stats}");
    let decided = |verdict: &str| {
        d.metric(&format!(
            "cadenced_admission_decisions_total{{verdict=\"{verdict}\"}}"
        ))
    };
    assert_eq!(decided("overloaded"), 10.0);
    assert_eq!(decided("infeasible"), 10.0);
    assert_eq!(decided("observed"), 6.0);
    for clock in ["cpu", "wall"] {
        let name = format!("cadenced_admission_decision_{clock}_seconds_count");
        assert_eq!(d.metric(&name), 26.0, "quotes are no decisions");
    }
    // The load has gone, and with it what was refused for it.
    assert_verdict(&send(&d, &hurried("now", 20, 5000)), 200, "promised");
}

/// One in so many runs all the same, and is counted apart.
#[test]
fn exploration_lets_some_of_the_refused_in() {
    let d = Calibrated::new(CAREFUL, &[("admission.explore_every", "5")]).start();
    let verdicts: Vec<_> = (0..20)
        .map(|i| {
            d.idle();
            send(&d, &hurried(&format!("{i}"), 400, 100)).status
        })
        .collect();
    assert_eq!(
        verdicts.iter().filter(|s| **s == 200).count(),
        8,
        "the first five that find the engine idle, and one in five of the others: {verdicts:?}"
    );
    let stats = d.wait_for_stats("eight explored", |s| s["admission"]["explored"] == 8);
    assert_eq!(stats["admission"]["coverage"], Value::Null, "{stats}");
    assert_eq!(number(&stats, "/requests/invalid"), 12, "{stats}");
}

#[test]
fn a_request_may_name_its_own_confidence() {
    let said = Said {
        spread: 2.0,
        ..CAREFUL
    };
    let d = Calibrated::new(said, &[]).start();
    let with_confidence = |confidence: f64, ms: u64| {
        let slo = json!({ "slo": { "e2e_ms": ms, "confidence": confidence } });
        quote(&d, &ask_with("confident", 50, false, slo))
    };
    let bounds = [0.5, 0.9, 0.99].map(|confidence| {
        let quoted = with_confidence(confidence, 1_000_000);
        assert_eq!(quoted["confidence"], confidence, "{quoted}");
        number(&quoted, "/bound_ms")
    });
    assert!(bounds[0] < bounds[1] && bounds[1] < bounds[2], "{bounds:?}");
    // Between two bounds the looser one is promised and the stricter one is offered the looser.
    let between = (bounds[0] + bounds[2]) / 2;
    assert_eq!(with_confidence(0.5, between)["verdict"], "promised");
    let strict = with_confidence(0.99, between);
    assert_eq!(strict["verdict"], "infeasible", "{strict}");
    let offered = strict["error"]["counter_offer"]["confidence"]
        .as_f64()
        .unwrap();
    assert!((0.5..0.99).contains(&offered), "{strict}");
    assert_eq!(
        with_confidence(offered - 0.05, between)["verdict"],
        "promised"
    );
    // The highest that the scores kept can support; beyond it a promise could never be made, whatever is learnt.
    assert_eq!(with_confidence(0.996, 1_000_000)["verdict"], "promised");
    let slo = json!({ "slo": { "e2e_ms": 1_000_000, "confidence": 0.997 } });
    let refused = send(&d, &ask_with("too sure", 5, false, slo));
    assert_error(&refused, 400, "invalid_value");
    d.idle();
}

/// Nothing is known of prompts so long, so nothing is promised of them, whatever the deadline; and no retry is of use.
#[test]
fn what_no_calibration_has_seen_gets_no_promise() {
    let d = Calibrated::new(CAREFUL, &[("kv.cells", "65536")]).start();
    let slo = json!({ "slo": { "e2e_ms": 10_000_000 } });
    let refused = send(&d, &ask_with(&"long ".repeat(32_000), 5, false, slo));
    assert_error(&refused, 422, "slo_unsupported");
    assert!(refused.header("retry-after").is_none());
    // No cap, confidence or deadline would change that, and the message speaks of none.
    let error = &refused.json()["error"];
    let offer = error["counter_offer"].as_object().unwrap();
    assert!(offer.values().all(Value::is_null), "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("best_effort") && !message.contains("counter_offer"),
        "{error}"
    );
    let best_effort = json!({ "slo": { "mode": "best_effort" } });
    let served = send(
        &d,
        &ask_with(&"long ".repeat(32_000), 5, false, best_effort),
    );
    assert_eq!(served.status, 200, "{served:?}");
    d.idle();
}

#[test]
fn a_malformed_slo_is_a_400_that_names_its_field() {
    let d = Calibrated::new(CAREFUL, &[]).start();
    for (slo, param) in [
        (json!({ "confidence": 95 }), "slo.confidence"),
        (json!({ "confidence": "high" }), "slo.confidence"),
        (json!({ "e2e_ms": 0 }), "slo.e2e_ms"),
        (json!({ "mode": "batch" }), "slo.mode"),
        (json!({ "on_miss": "stop" }), "slo.on_miss"),
        (json!([]), "slo"),
    ] {
        let body = ask_with("malformed", 5, true, json!({ "slo": slo }));
        for path in ["/v1/chat/completions", "/v1/admission/quote"] {
            let refused = d.post(path, &body.to_string()).response();
            assert_eq!(refused.status, 400, "{refused:?}");
            assert_eq!(refused.json()["error"]["param"], param, "{refused:?}");
        }
    }
    d.idle();
}

/// The refusals and the quote of a server whose decode blocks come while it blocks; and since nothing moves
/// meanwhile, what is quoted is what is decided.
#[test]
fn decisions_are_prompt_while_a_decode_blocks_and_quotes_agree_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let traces = dir.path().join("traces.jsonl");
    let d = Calibrated::new(
        CAREFUL,
        &[
            ("fake.fault", "stall"),
            ("fake.fault_marker", "STALL"),
            ("fake.fault_at_token", "5"),
            ("fake.stall_ms", "3000"),
        ],
    )
    .but("admission.traces", traces.to_str().unwrap())
    .start();
    let mut stalled = d.chat(&ask("STALL", 1000, true));
    stalled.read_text(6);
    let cases = [
        (20, 2000, 503, "overloaded"),
        (900, 2000, 422, "infeasible"),
        (60, 1_000_000, 200, "promised"),
    ];
    let (mut admitted, mut decisions) = (Vec::new(), Vec::new());
    for (max_tokens, ms, status, verdict) in cases {
        let mut body = hurried(verdict, max_tokens, ms);
        body["stream"] = true.into();
        let quoted = quote(&d, &body);
        assert_eq!(quoted["verdict"], verdict, "{quoted}");
        assert_eq!(quoted["admitted"], status == 200, "{quoted}");
        assert_eq!(quoted["queue_position"], 0, "{quoted}");
        let mut client = d.chat(&body);
        let decided = client.head();
        assert_verdict(&decided, status, verdict);
        let bound: u64 = header(&decided, "x-cadenced-bound-ms");
        decisions.push((max_tokens, quoted, bound));
        if status == 200 {
            admitted.push(client);
        }
    }
    // The one that was admitted is seen by the next, in the queue or in the ledger.
    let quoted = quote(&d, &hurried("tighter", 20, 900_000));
    assert_eq!(quoted["features"]["waiting"], 1.0, "{quoted}");
    assert_eq!(quoted["queue_position"], 0, "the tighter goes first");
    let relaxed = quote(&d, &ask("without an SLO", 20, false));
    assert_eq!(
        relaxed["queue_position"], 1,
        "those with deadlines go first"
    );
    assert!(
        stalled.says_nothing(),
        "the stall was over before all of this was answered"
    );
    drop(stalled);
    drop(admitted);
    let stats = d.idle();
    assert_eq!(number(&stats, "/requests/refused"), 1, "{stats}");
    d.wait_for("their rows", || rows(&traces).len() == 4);
    let rows = rows(&traces);
    for (max_tokens, quoted, bound) in decisions {
        let of = |row: &&Value| row["features"]["max_tokens"] == f64::from(max_tokens);
        let row = rows.iter().find(of).unwrap();
        for (name, value) in row["features"].as_object().unwrap() {
            let values = [value, &quoted["features"][name]].map(|v| v.as_f64().unwrap() as f32);
            assert_eq!(values[0], values[1], "{name}: {row} {quoted}");
        }
        // The row's is from the decision. What a client is told is from the arrival: its own parsing is in it.
        let ms = |key: &str| row[key].as_f64().unwrap();
        let told = ms("bound_ms").ceil() + ms("waited_ms").ceil();
        assert_eq!(bound, told as u64, "{row}");
        let quoted = number(&quoted, "/bound_ms");
        assert!(quoted >= ms("bound_ms").ceil() as u64, "{quoted} {row}");
    }
}

/// Everything that was admitted is seen to have gone: nothing stays in the ledger, the warm-up included.
#[test]
fn an_idle_server_looks_idle_whatever_came_before() {
    let d = Calibrated::new(CAREFUL, &[]).start();
    for i in 0..5 {
        assert_eq!(send(&d, &ask(&format!("{i}"), 3, i % 2 == 0)).status, 200);
    }
    let mut left = d.chat(&ask("leaves", 2000, true));
    left.read_text(1);
    drop(left);
    d.idle();
    let features = quote(&d, &ask("after", 3, false))["features"].take();
    for name in ["waiting", "running", "output_tokens", "prefill_tokens"] {
        assert_eq!(features[name], 0.0, "{name}: {features}");
    }
    assert_eq!(features["kv_free"], 1.0, "{features}");
    assert_eq!(features["messages"], 1.0, "{features}");
}

/// What is cached of a prompt is known at admission, from the published index.
#[test]
fn admission_sees_how_much_of_a_prompt_is_cached() {
    let d = Calibrated::new(
        CAREFUL,
        &[("prefix.reuse", "on"), ("kv.reservation", "paged")],
    )
    .start();
    let words = |n: u32| {
        let words: Vec<String> = (0..n).map(|i| format!("word{i}")).collect();
        words.join(" ")
    };
    let cached = |body: &Value| quote(&d, body)["features"]["cached_prefix_tokens"].clone();
    let first = ask(&words(60), 4, false);
    assert_eq!(cached(&first), 0.0);
    assert_eq!(send(&d, &first).status, 200);
    d.wait_for("it is cached", || cached(&first) != 0.0);
    let longer = ask(&format!("{} and on", words(60)), 4, false);
    let seen = cached(&longer);
    let reply = send(&d, &longer).json();
    let taken = number(&reply, "/usage/prompt_tokens_details/cached_tokens");
    assert_eq!(seen, taken as f64, "{reply}");
    assert!(taken >= 32, "{reply}");
    assert_eq!(cached(&ask("another", 4, false)), 0.0);
}

fn header<T: std::str::FromStr>(response: &Response, name: &str) -> T {
    let value = response.header(name).and_then(|v| v.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {response:?}"))
}
