//! A drain that would not end is ended.

use std::time::{Duration, Instant};

use crate::common::{Connection, ask, request};
use crate::{assert_error, assert_error_event, assert_no_panic, number, paced};

#[test]
fn the_drain_limit_ends_what_would_not_finish_with_an_error_and_no_done() {
    let mut d = paced(
        "2000",
        &[
            ("lifecycle.drain_limit_s", "1"),
            ("scheduler.max_running", "2"),
        ],
    );
    let mut stream = d.chat(&ask("streams", 4000, true));
    stream.read_text(1);
    let reply = d.chat(&ask("whole", 4000, false));
    d.wait_for("both run", || number(&d.stats(), "/running") == 2);
    let queued = d.chat(&ask("queued", 5, true));
    let queued_reply = d.chat(&ask("queued too", 5, false));
    d.wait_for("both wait", || number(&d.stats(), "/waiting") == 2);
    d.signal("TERM");
    assert_error_event(&stream.rest(), "draining");
    assert_error_event(&queued.response(), "draining");
    for reply in [reply, queued_reply] {
        assert_error(&reply.response(), 503, "draining");
    }
    assert_eq!(d.wait().code(), Some(0), "{}", d.log());
    let log = d.log();
    assert_eq!(log.matches("outcome=\"drained\"").count(), 4, "{log}");
    assert!(log.contains(": drained ended=4"), "{log}");
    assert_no_panic(&log);
}

#[test]
fn a_second_signal_ends_the_process_whatever_runs() {
    for (first, second) in [("TERM", "TERM"), ("INT", "INT"), ("TERM", "INT")] {
        let mut d = paced("2000", &[("lifecycle.drain_limit_s", "600")]);
        let mut stream = d.chat(&ask("streams", 4000, true));
        stream.read_text(1);
        d.signal(first);
        d.wait_for("it drains", || d.get("/ready").status == 503);
        stream.more_text(1);
        assert!(!d.ended());
        d.signal(second);
        let told = Instant::now();
        assert_eq!(d.wait().code(), Some(130), "{}", d.log());
        assert!(
            told.elapsed() < Duration::from_secs(1),
            "at once took {:?}",
            told.elapsed()
        );
        assert!(!stream.rest().is_done(), "it looks whole");
        let log = d.log();
        assert!(
            log.contains("a second signal: ending at once ended=1"),
            "{log}"
        );
    }
}

/// B100: a reader that stalls, a connection that idles and a request that is half sent.
#[test]
fn no_kind_of_silent_connection_holds_the_exit() {
    let name = "m".repeat(16_000);
    let mut d = paced(
        "0",
        &[
            ("lifecycle.drain_limit_s", "1"),
            ("model.name", &name),
            ("limits.unread_bytes", "1000000"),
        ],
    );
    let mut idle = d.connect();
    assert_eq!(
        idle.send("GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            .next_response()
            .status,
        200
    );
    let never_used = d.connect();
    let half_head = d.send("POST /v1/chat/completions HTTP/1.1\r\nhost:");
    let bytes = request(
        "/v1/chat/completions",
        &ask("half", 5, true).to_string(),
        "",
    );
    let half_body = d.send(&bytes[..bytes.len() - 10]);
    let mut stalled = Connection::open_with_small_buffer(d.addr, 4096);
    stalled.send(request(
        "/v1/chat/completions",
        &ask("stalls", 3000, true).to_string(),
        "",
    ));
    stalled.read_text(1);
    // The half-sent and the stalled one.
    d.wait_for_stats("its reply is computed", |s| {
        s["requests"]["length"] == 1 && s["in_flight"] == 2
    });
    d.signal("TERM");
    let told = Instant::now();
    assert_eq!(d.wait().code(), Some(0), "{}", d.log());
    // The limit and a second to say so and to close, with as much again for a busy machine.
    assert!(
        told.elapsed() < Duration::from_secs(4),
        "took {:?}",
        told.elapsed()
    );
    drop((idle, never_used, half_head, half_body, stalled));
}

#[test]
fn a_drain_ends_though_a_decode_does_not_return() {
    let mut d = paced(
        "1000",
        &[
            ("fake.fault", "stall"),
            ("fake.fault_marker", "STALL"),
            ("fake.fault_at_token", "3"),
            ("fake.stall_ms", "600000"),
            ("lifecycle.drain_limit_s", "1"),
        ],
    );
    let mut beside = d.chat(&ask("beside", 1000, true));
    beside.read_text(1);
    let mut stalled = d.chat(&ask("STALL", 1000, true));
    stalled.read_text(4);
    let reply = d.chat(&ask("whole", 5, false));
    d.wait_for("it waits", || number(&d.stats(), "/in_flight") == 3);
    d.signal("TERM");
    assert_error_event(&stalled.rest(), "draining");
    assert_error_event(&beside.rest(), "draining");
    assert_error(&reply.response(), 503, "draining");
    assert_eq!(d.wait().code(), Some(0), "{}", d.log());
}
