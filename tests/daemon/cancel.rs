//! A client that goes away, in each state that its request can be in, streamed and not.

use serde_json::Value;

use crate::common::{Daemon, ask};
use crate::{number, paced, whole};

/// Asserts that exactly `n` requests have ended as cancelled, that all they held is back, and that the next
/// request runs.
fn assert_cancelled(d: &Daemon, n: u64) -> Value {
    let stats = d.idle();
    assert_eq!(number(&stats, "/requests/cancelled"), n, "{stats}");
    assert_eq!(
        d.metric("cadenced_requests_total{outcome=\"cancelled\"}"),
        n as f64
    );
    stats
}

/// B059: what is abandoned in the queue takes no seat and no prefill, and what waits behind it runs next.
#[test]
fn a_request_abandoned_in_the_queue_is_never_prefilled_and_the_one_behind_it_runs() {
    let d = paced(
        "3000",
        &[("scheduler.max_running", "1"), ("scheduler.policy", "fifo")],
    );
    let before = number(&d.idle(), "/engine/prefilled_tokens");
    let mut first = d.chat(&ask("first", 200, true));
    first.read_text(1);
    let abandoned: Vec<_> = (0..6)
        .map(|i| d.chat(&ask(&"never ".repeat(100 + i), 5, i % 2 == 0)))
        .collect();
    d.wait_for("six in the queue", || number(&d.stats(), "/waiting") == 6);
    let last = d.chat(&ask("last", 5, true));
    d.wait_for("seven in the queue", || number(&d.stats(), "/waiting") == 7);
    drop(abandoned);
    d.wait_for("they no longer wait", || {
        number(&d.stats(), "/waiting") == 1
    });
    // Nothing had to end for that: the first still runs.
    assert_eq!(number(&d.stats(), "/running"), 1);
    assert!(last.response().is_done());
    assert!(first.rest().is_done());
    let stats = assert_cancelled(&d, 6);
    let prompts: u64 = ["first", "last"].iter().map(|p| prompt_tokens(p)).sum();
    assert_eq!(number(&stats, "/engine/prefilled_tokens") - before, prompts);
    assert_eq!(number(&stats, "/requests/length"), 2);
}

/// The fake makes a token of four bytes of the messages' JSON.
fn prompt_tokens(content: &str) -> u64 {
    let messages = serde_json::json!([{ "role": "user", "content": content }]).to_string();
    messages.len().div_ceil(4) as u64
}

/// B058: a prompt whose client left is not computed to its end.
#[test]
fn a_prefill_is_abandoned_between_its_chunks() {
    let d = paced(
        "0",
        &[
            ("scheduler.prefill_budget", "16"),
            ("fake.prefill_token_us", "250"),
        ],
    );
    let long = "long ".repeat(2000);
    for (n, stream) in [(1, true), (2, false)] {
        let before = number(&d.idle(), "/engine/prefilled_tokens");
        let client = d.chat(&ask(&long, 5, stream));
        d.wait_for_stats("some of it is computed", |s| {
            number(s, "/engine/prefilled_tokens") > before
        });
        drop(client);
        let stats = assert_cancelled(&d, n);
        let computed = number(&stats, "/engine/prefilled_tokens") - before;
        assert!(
            computed < prompt_tokens(&long),
            "all {computed} tokens were computed"
        );
        assert!(whole(&d, "next", 3, stream).complete);
    }
}

/// B056: the tokens of a reply that nobody reads are not computed.
#[test]
fn a_decode_ends_when_its_client_leaves() {
    let d = paced("1000", &[]);
    for (n, stream) in [(1, true), (2, false)] {
        let before = number(&d.idle(), "/engine/generated_tokens");
        let client = d.chat(&ask("talk", 4000, stream));
        d.wait_for_stats("it talks", |s| {
            number(s, "/engine/generated_tokens") > before + 3
        });
        drop(client);
        let stats = assert_cancelled(&d, n);
        let generated = number(&stats, "/engine/generated_tokens");
        assert!(generated - before < 4000, "{generated}");
        whole(&d, "next", 3, stream);
    }
}

/// B056: fifty times over, all seats filled by clients that leave, and then all of them by clients that stay.
#[test]
fn seats_come_back_from_clients_that_leave_again_and_again() {
    let d = paced(
        "500",
        &[("scheduler.max_running", "4"), ("limits.requests", "4")],
    );
    for round in 1..=50 {
        let clients: Vec<_> = (0..4)
            .map(|i| {
                let mut client = d.chat(&ask(&format!("{round} {i}"), 4000, true));
                client.read_text(1);
                client
            })
            .collect();
        drop(clients);
        d.wait_for("four free seats", || {
            number(&d.stats(), "/held/requests") == 0
        });
    }
    let stay: Vec<_> = (0..4)
        .map(|i| d.chat(&ask(&format!("stays {i}"), 20, true)))
        .collect();
    assert!(stay.into_iter().all(|c| c.response().is_done()));
    assert_cancelled(&d, 200);
}

/// A client that only says that it will send no more is taken for one that left: it is noticed at once, where
/// a vanished one shows only when a write fails.
#[test]
fn a_half_closed_connection_counts_as_left() {
    let d = paced("1000", &[]);
    let mut client = d.chat(&ask("talk", 4000, true));
    client.read_text(2);
    client.shut_writing();
    assert_cancelled(&d, 1);
}

/// A body that never came to its end was no request that could be invalid.
#[test]
fn a_client_that_leaves_amid_its_body_is_cancelled_not_invalid() {
    let d = paced("0", &[]);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{\"messages\":";
    let client = d.send(head);
    d.wait_for("it holds a seat", || {
        number(&d.stats(), "/held/requests") == 1
    });
    drop(client);
    let stats = assert_cancelled(&d, 1);
    assert_eq!(number(&stats, "/requests/invalid"), 0);
}

/// B106: 16 that run and 8 that wait leave at once, and without any further request the gauges say so.
#[test]
fn gauges_return_to_zero_when_everybody_leaves_at_once() {
    let d = paced("1000", &[("scheduler.max_running", "16")]);
    let clients: Vec<_> = (0..24)
        .map(|i| d.chat(&ask(&format!("{i}"), 600, i % 2 == 0)))
        .collect();
    d.wait_for_stats("16 run, 8 wait", |s| {
        s["running"] == 16 && s["waiting"] == 8
    });
    assert_eq!(d.metric("cadenced_http_in_flight"), 24.0);
    drop(clients);
    assert_cancelled(&d, 24);
    for gauge in ["running", "waiting", "http_in_flight"] {
        assert_eq!(d.metric(&format!("cadenced_{gauge}")), 0.0, "{gauge}");
    }
    assert_eq!(
        d.metric("cadenced_kv_blocks_free"),
        d.metric("cadenced_kv_blocks_total")
    );
}
