//! The best-effort lane: it runs on what the others leave, yields seats and memory to them, is dropped at its
//! deadlines, and is told and counted apart.

use serde_json::{Value, json};

use crate::common::calibrated::{CAREFUL, Calibrated};
use crate::common::{Connection, Daemon, ask, request};
use crate::prefix::message;
use crate::{ask_with, assert_error, assert_error_event, e2e_ms, number, paced};

fn gently(content: &str, max_tokens: u32, stream: bool) -> Value {
    let slo = json!({ "slo": { "mode": "best_effort" } });
    ask_with(content, max_tokens, stream, slo)
}

fn gently_until(content: &str, max_tokens: u32, stream: bool, ms: u64) -> Value {
    let slo = json!({ "slo": { "mode": "best_effort", "e2e_ms": ms } });
    ask_with(content, max_tokens, stream, slo)
}

/// So many of the lane, far from their ends, in all the seats that there are.
fn fill(d: &Daemon, seats: usize, prompt: usize) -> Vec<Connection> {
    let clients = (0..seats)
        .map(|i| {
            let own = char::from(b'a' + i as u8);
            let mut client = d.chat(&gently(&message(prompt, 7, own), 3000, true));
            client.read_text(3);
            client
        })
        .collect();
    d.wait_for_stats("all seats are taken", |s| {
        s["best_effort"]["running"] == seats as u64
    });
    clients
}

/// On any rung: what is not best effort takes a seat at once, and who yielded goes on where it was.
#[test]
fn whoever_is_promised_something_gets_a_seat_of_the_lane_at_once() {
    let d = paced(
        "1000",
        &[
            ("scheduler.max_running", "3"),
            ("prefix.reuse", "on"),
            ("kv.reservation", "paged"),
        ],
    );
    let lane = fill(&d, 3, 30);
    let promised: Vec<_> = (0..2)
        .map(|i| d.chat(&ask(&format!("promised {i}"), 20, true)))
        .collect();
    for client in promised {
        assert!(client.response().is_done());
    }
    // They began after the others and ended while these were under way.
    let stats = d.stats();
    let lane_has = |key: &str| number(&stats, &format!("/best_effort/{key}"));
    assert_eq!(lane_has("running") + lane_has("waiting"), 3, "{stats}");
    assert!(number(&stats, "/kv/preemptions") >= 2, "{stats}");
    assert_eq!(number(&stats, "/held/requests"), 0, "{stats}");
    assert_eq!(lane_has("held/requests"), 3, "{stats}");
    for client in lane {
        let reply = client.rest();
        assert!(reply.is_done(), "{reply:?}");
        assert_eq!(reply.finish_reason().as_deref(), Some("length"));
    }
    d.idle();
}

#[test]
fn memory_is_taken_from_the_lane_first() {
    for reserve_growth in ["true", "false"] {
        let d = paced(
            "1000",
            &[
                ("scheduler.max_running", "4"),
                ("kv.cells", "1024"),
                ("kv.reservation", "paged"),
                ("kv.reserve_growth", reserve_growth),
                ("prefix.reuse", "on"),
            ],
        );
        let mut lane = d.chat(&gently(&message(200, 7, 'x'), 700, true));
        lane.read_text(40);
        // The two do not fit into the pool together.
        let promised = d.chat(&ask(&message(200, 7, 'y'), 700, true)).response();
        assert!(promised.is_done(), "{promised:?}");
        let stats = d.stats();
        assert!(number(&stats, "/kv/preemptions") >= 1, "{stats}");
        assert_eq!(number(&stats, "/requests/length"), 1, "{stats}");
        let rest = lane.rest();
        assert!(rest.is_done(), "{rest:?}");
        d.idle();
    }
}

/// Nothing, if nothing was generated; else what there is.
#[test]
fn the_lane_is_dropped_at_its_deadline() {
    let d = paced("2000", &[("scheduler.max_running", "1")]);
    let mut holder = d.chat(&ask("holds the seat", 3000, true));
    holder.read_text(1);
    let refused = d.chat(&gently_until("whole", 20, false, 50)).response();
    assert_error(&refused, 503, "slo_expired");
    let mut streamed = d.chat(&gently_until("stream", 20, true, 50));
    assert_eq!(streamed.head().status, 200);
    assert_error_event(&streamed.rest(), "slo_expired");
    drop(holder);
    d.idle();
    for stream in [true, false] {
        let cut = d.chat(&gently_until("begun", 3000, stream, 300)).response();
        assert_eq!(cut.status, 200, "{cut:?}");
        assert!(cut.complete && (!stream || cut.is_done()), "{cut:?}");
        let reason = match stream {
            true => cut.finish_reason(),
            false => cut.json()["choices"][0]["finish_reason"]
                .as_str()
                .map(str::to_owned),
        };
        assert_eq!(reason.as_deref(), Some("slo"), "{cut:?}");
    }
    let stats = d.idle();
    assert_eq!(number(&stats, "/requests/expired"), 2, "{stats}");
    assert_eq!(number(&stats, "/requests/slo"), 2, "{stats}");
}

#[test]
fn the_lane_is_told_in_headers_receipts_and_quotes() {
    let d = Calibrated::new(CAREFUL, &[("scheduler.max_running", "1")]).start();
    let whole = d.chat(&gently_until("whole", 20, false, 60_000)).response();
    assert_eq!(whole.status, 200, "{whole:?}");
    assert_eq!(whole.header("x-cadenced-verdict"), Some("best_effort"));
    for none in ["bound-ms", "confidence", "promised-ms", "kept"] {
        let name = format!("x-cadenced-{none}");
        assert_eq!(whole.header(&name), None, "{whole:?}");
    }
    assert!(whole.header("x-cadenced-actual-ms").is_some(), "{whole:?}");
    let body = ask("by header", 20, true).to_string();
    let more = "connection: close\r\nx-slo-mode: best_effort\r\n";
    let reply = d
        .send(&request("/v1/chat/completions", &body, more))
        .response();
    assert_eq!(reply.header("x-cadenced-verdict"), Some("best_effort"));
    let chunks = reply.chunks();
    let receipt = chunks.iter().find_map(|c| c.pointer("/cadenced/receipt"));
    let receipt = receipt.unwrap_or_else(|| panic!("{reply:?}"));
    assert_eq!(receipt["verdict"], "best_effort", "{receipt}");
    for none in ["bound_ms", "promised_ms", "kept"] {
        assert_eq!(receipt[none], Value::Null, "{receipt}");
    }

    // A quote says where it would stand: behind the others, whatever its deadline.
    let mut holder = d.chat(&ask("holds the seat", 3000, true));
    holder.read_text(1);
    let waits = d.chat(&ask("waits", 5, true));
    d.wait_for_stats("one waits", |s| s["waiting"] == 1);
    let waits_too = d.chat(&gently_until("waits too", 50, true, 100_000));
    d.wait_for_stats("one of the lane waits", |s| {
        s["best_effort"]["waiting"] == 1
    });
    let quote = |body: &Value| d.post("/v1/admission/quote", &body.to_string()).response();
    let quoted = quote(&gently_until("quoted", 50, false, 50_000)).json();
    assert_eq!(quoted["verdict"], "best_effort", "{quoted}");
    assert_eq!(quoted["bound_ms"], Value::Null, "{quoted}");
    assert_eq!(quoted["queue_position"], 1, "{quoted}");
    let features = &quoted["features"];
    assert_eq!(
        features["waiting"], 1.0,
        "the lane is no part of it: {quoted}"
    );
    assert_eq!(features["running"], 1.0, "{quoted}");
    assert_eq!(features["best_effort_tokens"], 50.0, "{quoted}");
    assert_eq!(d.metric("cadenced_best_effort_waiting"), 1.0);
    assert_eq!(d.metric("cadenced_waiting"), 1.0);
    drop((holder, waits, waits_too));
    let stats = d.wait_for_stats("it is counted apart", |s| {
        s["admission"]["best_effort"] == 3
    });
    let bounds = stats["admission"]["bounds"].as_object().unwrap();
    let promised = ["kept", "missed", "censored", "censored_late"];
    assert!(promised.iter().all(|k| bounds[*k] == 0), "{stats}");
    d.idle();
}

/// Rung 6: what would be refused runs in the lane, as long as that has room.
#[test]
fn what_does_not_fit_runs_without_a_promise_if_so_configured() {
    let d = Calibrated::new(
        CAREFUL,
        &[
            ("admission.unfit", "best_effort"),
            ("limits.requests", "4"),
            ("limits.best_effort_share", "0.25"),
        ],
    )
    .start();
    assert_eq!(d.stats()["rung"], "rung6-best-effort");
    let never = ask_with("never fits", 400, true, e2e_ms(2000));
    let quote = d.post("/v1/admission/quote", &never.to_string()).response();
    let quoted = quote.json();
    assert_eq!(quoted["verdict"], "best_effort", "{quoted}");
    assert_eq!(quoted["assessed"], "infeasible", "{quoted}");
    assert_eq!(quoted["error"], Value::Null, "{quoted}");
    let reply = d.chat(&never).response();
    assert_eq!(reply.header("x-cadenced-verdict"), Some("best_effort"));
    assert!(reply.is_done(), "{reply:?}");

    let mut holder = d.chat(&gently("holds the lane", 3000, true));
    holder.read_text(1);
    assert_error(
        &d.chat(&gently("one too many", 5, false)).response(),
        503,
        "best_effort_full",
    );
    assert_error(&d.chat(&never).response(), 422, "slo_infeasible");
    let fits = ask_with("fits", 20, false, e2e_ms(60_000));
    let kept = d.chat(&fits).response();
    assert_eq!(kept.header("x-cadenced-kept"), Some("true"), "{kept:?}");
    drop(holder);
    d.idle();
}

/// And however full the house is, the lane has its own seats.
#[test]
fn a_full_house_keeps_nobody_out_of_the_lane() {
    let d = paced(
        "1000",
        &[
            ("scheduler.max_running", "2"),
            ("limits.requests", "2"),
            ("limits.best_effort_share", "0.5"),
        ],
    );
    let house: Vec<_> = (0..2)
        .map(|i| {
            let mut client = d.chat(&ask(&format!("promised {i}"), 3000, true));
            client.read_text(1);
            client
        })
        .collect();
    let waits = d.chat(&gently("waits", 5, true));
    d.wait_for("it is in the lane", || {
        number(&d.stats(), "/best_effort/held/requests") == 1
    });
    for (body, code) in [
        (gently("one too many", 5, true), "queue_full"),
        (ask("another", 5, true), "queue_full"),
    ] {
        assert_error(&d.chat(&body).response(), 503, code);
    }
    drop(house);
    assert!(waits.response().is_done());
    // With a seat in the lane and none elsewhere.
    let house: Vec<_> = (0..2)
        .map(|i| {
            let mut client = d.chat(&ask(&format!("promised again {i}"), 3000, true));
            client.read_text(1);
            client
        })
        .collect();
    assert_error(
        &d.chat(&ask("no seat", 5, true)).response(),
        503,
        "queue_full",
    );
    drop(house);
    d.idle();
}

/// However much the lane holds, whoever is promised something is let in up to the cap.
#[test]
fn a_full_lane_keeps_nobody_else_out() {
    let d = paced(
        "1000",
        &[
            ("scheduler.max_running", "1"),
            ("limits.requests", "4"),
            ("limits.best_effort_share", "1.0"),
        ],
    );
    let lane: Vec<_> = (0..4)
        .map(|i| {
            let client = d.chat(&gently(&format!("{i}"), 3000, true));
            d.wait_for("it is in the lane", || {
                number(&d.stats(), "/best_effort/held/requests") == i + 1
            });
            client
        })
        .collect();
    assert_error(
        &d.chat(&gently("one too many", 5, true)).response(),
        503,
        "best_effort_full",
    );
    let promised: Vec<_> = (0..4)
        .map(|i| d.chat(&ask(&format!("promised {i}"), 5, true)))
        .collect();
    for client in promised {
        assert!(client.response().is_done());
    }
    drop(lane);
    d.idle();
}
