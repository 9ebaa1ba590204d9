//! What is counted is what was sent.

use std::time::Instant;

use serde_json::json;

use crate::common::ask;
use crate::{ask_with, number, paced, whole};

/// B109: a hundred requests of every kind, and every counter is exactly what it must be.
#[test]
fn every_request_is_counted_once_and_as_what_it_was() {
    let d = paced(
        "1000",
        &[
            ("scheduler.max_running", "2"),
            ("limits.requests", "12"),
            ("kv.cells", "2048"),
        ],
    );
    let before = d.idle();
    let (mut prompt_tokens, mut completion_tokens) = (0, 0);
    for i in 0..70 {
        let reply = whole(&d, &format!("{i}"), 1 + i % 5, false).json();
        prompt_tokens += number(&reply, "/usage/prompt_tokens");
        completion_tokens += number(&reply, "/usage/completion_tokens");
    }
    let stats = d.idle();
    let delta = |p| number(&stats, p) - number(&before, p);
    assert_eq!(delta("/engine/prefilled_tokens"), prompt_tokens);
    assert_eq!(delta("/engine/generated_tokens"), completion_tokens);

    // Ten leave after their first token, ten while they wait, five say nonsense, five come too many.
    for i in 0..10 {
        let mut client = d.chat(&ask(&format!("{i}"), 900, true));
        client.read_text(1);
    }
    d.wait_for("ten left", || d.count("cancelled") == 10);
    let mut running: Vec<_> = (0..2)
        .map(|i| d.chat(&ask(&format!("{i}"), 900, true)))
        .collect();
    running.iter_mut().for_each(|c| drop(c.read_text(1)));
    let waiting: Vec<_> = (0..10)
        .map(|i| d.chat(&ask(&format!("{i}"), 5, i % 2 == 0)))
        .collect();
    d.wait_for("ten wait", || number(&d.stats(), "/waiting") == 10);
    for _ in 0..5 {
        assert_eq!(d.chat(&ask("too many", 5, true)).response().status, 503);
    }
    drop(waiting);
    d.wait_for("ten more left", || d.count("cancelled") == 20);
    for _ in 0..5 {
        assert_eq!(d.chat(&ask("nonsense", 0, true)).response().status, 400);
    }
    drop(running);
    let stats = d.idle();
    let expected = json!({
        "stop": 0, "length": 70, "cancelled": 22, "slow_reader": 0,
        "invalid": 5, "refused": 5, "failed": 0, "drained": 0, "slo": 0, "expired": 0,
    });
    assert_eq!(stats["requests"], expected);
    for (outcome, n) in expected.as_object().unwrap() {
        let metric = d.metric(&format!("cadenced_requests_total{{outcome=\"{outcome}\"}}"));
        assert_eq!(metric, n.as_f64().unwrap(), "{outcome}");
    }
    // One sample for each that had a first token; one for each that was complete.
    assert_eq!(d.metric("cadenced_ttft_seconds_count"), 70.0 + 10.0 + 2.0);
    assert_eq!(d.metric("cadenced_e2e_seconds_count"), 70.0);
}

/// B109: the time to the first token counts from arrival, the wait included, as the client's watch has it.
#[test]
fn the_time_to_the_first_token_includes_the_wait() {
    let d = paced("2000", &[("scheduler.max_running", "1")]);
    let begun = Instant::now();
    let mut first = d.chat(&ask("first", 200, true));
    let mut second = d.chat(&ask("second", 5, true));
    first.read_text(1);
    let first_ttft = begun.elapsed().as_secs_f64();
    assert!(first.rest().is_done());
    let first_e2e = begun.elapsed().as_secs_f64();
    second.read_text(1);
    let second_ttft = begun.elapsed().as_secs_f64();
    assert!(second.rest().is_done());
    d.idle();
    let ttft = d.metric("cadenced_ttft_seconds_sum");
    assert!(
        ttft <= first_ttft + second_ttft,
        "{ttft} > {first_ttft} + {second_ttft}"
    );
    // Two hundred steps of 2 ms are waited for.
    assert!(ttft >= 0.4, "{ttft}");
    let e2e = d.metric("cadenced_e2e_seconds_sum");
    assert!(
        e2e >= 0.8 && e2e <= first_e2e + begun.elapsed().as_secs_f64(),
        "{e2e}"
    );
}

/// B107: a stream is in flight until its last byte, and its time counts to there.
#[test]
fn a_stream_is_in_flight_until_it_ends() {
    let d = paced("3000", &[]);
    let mut stream = d.chat(&ask("stream", 4000, true));
    stream.read_text(1);
    for _ in 0..4 {
        assert_eq!(d.metric("cadenced_http_in_flight"), 1.0);
        assert_eq!(d.metric("cadenced_running"), 1.0);
        stream.more_text(5);
    }
    assert_eq!(
        d.metric("cadenced_e2e_seconds_count"),
        0.0,
        "it has not ended"
    );
    drop(stream);
    whole(&d, "to its end", 100, true);
    d.idle();
    assert_eq!(d.metric("cadenced_http_in_flight"), 0.0);
    assert_eq!(d.metric("cadenced_e2e_seconds_count"), 1.0);
    assert!(d.metric("cadenced_e2e_seconds_sum") >= 0.3);
}

/// B110: the tokens billed are the tokens computed, whatever was held back, cut or merged on the way.
#[test]
fn usage_is_the_tokens_that_were_computed() {
    let d = paced("0", &[("fake.length_min", "20"), ("fake.length_max", "20")]);
    let text = whole(&d, "usage", 50, false).text();
    let tenth = text.split_whitespace().nth(9).unwrap().to_owned();
    for (more, tokens) in [
        (json!({}), 21),
        (json!({ "stop": "never said" }), 21),
        (json!({ "stop": tenth }), 10),
        (json!({ "max_tokens": 7 }), 7),
    ] {
        let before = number(&d.idle(), "/engine/generated_tokens");
        let mut body = ask_with("usage", 50, false, more);
        let plain = d.chat(&body).response().json();
        body["stream"] = json!(true);
        body["stream_options"] = json!({ "include_usage": true });
        let streamed = d.chat(&body).response().chunks().pop().unwrap();
        assert_eq!(plain["usage"], streamed["usage"], "{body}");
        assert_eq!(number(&plain, "/usage/completion_tokens"), tokens, "{body}");
        let computed = number(&d.idle(), "/engine/generated_tokens") - before;
        assert_eq!(computed, 2 * tokens, "{body}");
    }
}

/// A dashboard's queries must find their series before the first request.
#[test]
fn every_series_exists_from_the_start() {
    let d = paced("0", &[]);
    for outcome in [
        "stop",
        "length",
        "slo",
        "cancelled",
        "slow_reader",
        "invalid",
        "refused",
        "expired",
        "failed",
        "drained",
    ] {
        let name = format!("cadenced_requests_total{{outcome=\"{outcome}\"}}");
        assert_eq!(d.metric(&name), 0.0, "the warm-up is nobody's request");
    }
    assert_eq!(d.metric("cadenced_ttft_seconds_count"), 0.0);
    let metrics = d.get("/metrics");
    assert!(
        metrics
            .header("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
}
