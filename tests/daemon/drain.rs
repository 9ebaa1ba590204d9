//! SIGTERM: what runs is finished, what comes is sent away, then the process ends with 0.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Daemon, ask, request};
use crate::{assert_error, assert_no_panic, number, paced, whole, with};

const GET_READY: &str = "GET /ready HTTP/1.1\r\nhost: x\r\n\r\n";

fn chat_bytes(content: &str, max_tokens: u32, stream: bool) -> String {
    request(
        "/v1/chat/completions",
        &ask(content, max_tokens, stream).to_string(),
        "",
    )
}

#[test]
fn replies_in_flight_are_finished_and_late_arrivals_are_sent_away() {
    // The longest takes longer than the moment that sockets have after a drain.
    let length = |i: u32| 120 * (i + 1);
    let mut d = paced("5000", &[("scheduler.max_running", "5")]);
    let quick = paced("0", &[]);
    let texts: Vec<String> = (0..4)
        .map(|i| whole(&quick, &format!("{i}"), length(i), true).text())
        .collect();
    let mut old = d.connect();
    assert_eq!(old.send(GET_READY).next_response().status, 200);
    let mut old_chat = d.connect();
    assert_eq!(
        old_chat
            .send(chat_bytes("before", 2, false))
            .next_response()
            .status,
        200
    );

    let mut streams: Vec<_> = (0..4)
        .map(|i| d.chat(&ask(&format!("{i}"), length(i), true)))
        .collect();
    let whole_reply = d.chat(&ask("whole", 60, false));
    let queued = d.chat(&ask("queued", 10, true));
    let begun: Vec<String> = streams.iter_mut().map(|s| s.read_text(1)).collect();
    d.wait_for_stats("six in flight", |s| {
        s["in_flight"] == 6 && s["running"] == 5 && s["waiting"] == 1
    });
    d.signal("TERM");

    let told = Instant::now();
    d.wait_for("not ready", || d.get("/ready").status == 503);
    assert!(
        told.elapsed() < Duration::from_secs(1),
        "/ready took {:?}",
        told.elapsed()
    );
    assert_error(&d.get("/ready"), 503, "draining");
    let late = d.chat(&ask("late", 5, true)).response();
    assert_error(&late, 503, "draining");
    assert_eq!(late.header("connection"), Some("close"));
    // B101: on a connection that was open before, too.
    for (mut connection, bytes, status) in [
        (old_chat, chat_bytes("late", 5, false), 503),
        (old, GET_READY.to_owned(), 503),
    ] {
        let response = connection.send(bytes).next_response();
        assert_eq!(response.status, status);
        assert!(response.header("retry-after").is_some());
        assert_eq!(response.header("connection"), Some("close"));
        assert!(connection.at_end(), "the connection stays open");
    }
    let health = d.get("/health");
    assert_eq!(
        (health.status, health.header("connection")),
        (200, Some("close"))
    );
    let in_flight = number(&d.stats(), "/in_flight");
    assert!(
        in_flight > 0,
        "nothing was in flight any more: this showed nothing"
    );

    for ((stream, begun), text) in streams.into_iter().zip(begun).zip(texts) {
        let rest = stream.rest();
        assert!(rest.is_done(), "{rest:?}");
        assert_eq!(begun + &rest.text(), text);
    }
    let reply = whole_reply.response();
    assert_eq!((reply.status, reply.complete), (200, true));
    assert!(queued.response().is_done(), "what was admitted is served");
    assert_eq!(d.wait().code(), Some(0), "{}", d.log());
    assert_no_panic(&d.log());
}

/// An orchestrator's balancer needs a moment to notice; until then the door stays open.
#[test]
fn within_the_grace_a_leaving_server_still_accepts() {
    let mut d = paced("1000", &[("lifecycle.drain_grace_ms", "1000")]);
    d.signal("TERM");
    d.wait_for("not ready", || d.get("/ready").status == 503);
    let reply = d.chat(&ask("still", 3, true)).response();
    assert!(reply.is_done(), "{reply:?}");
    assert_eq!(reply.header("connection"), Some("close"));
    assert_eq!(d.wait().code(), Some(0));
}

#[test]
fn an_idle_server_ends_at_once_on_either_signal() {
    for signal in ["TERM", "INT"] {
        let mut d = paced("0", &[]);
        d.signal(signal);
        assert_eq!(d.wait().code(), Some(0), "{}", d.log());
        assert!(
            std::net::TcpStream::connect(d.addr).is_err(),
            "the port is free"
        );
    }
}

/// B101: clients in a loop on connections of their own each get at most what was under way, then 503.
#[test]
fn steady_traffic_on_kept_connections_does_not_keep_a_drain_from_ending() {
    let mut d = paced("1000", &[]);
    let mut connections = vec![d.connect(), d.connect()];
    for connection in &mut connections {
        let bytes = chat_bytes("first", 3, false);
        assert_eq!(connection.send(bytes).next_response().status, 200);
    }
    let mut answered = vec![];
    std::thread::scope(|scope| {
        let clients: Vec<_> = connections
            .into_iter()
            .map(|mut connection| {
                scope.spawn(move || {
                    loop {
                        let bytes = chat_bytes("again", 3, false);
                        let response = connection.send(bytes).next_response();
                        let close = response.header("connection") == Some("close");
                        // A connection that is closed reads as status 0.
                        if response.status != 200 || close {
                            return (response.status, close);
                        }
                    }
                })
            })
            .collect();
        d.wait_for("they go on", || number(&d.stats(), "/requests/length") > 20);
        d.signal("TERM");
        assert_eq!(d.wait().code(), Some(0));
        answered.extend(clients.into_iter().map(|c| c.join().unwrap()));
    });
    for (status, close) in answered {
        assert!(
            [200, 503].contains(&status) && close || status == 0,
            "{status}, {close}"
        );
    }
}

/// A server that is still loading, or hangs at it, is told to go and goes.
#[test]
fn a_signal_while_the_model_loads_ends_the_process() {
    let directory = tempfile::tempdir().unwrap();
    // Opening a pipe that nobody writes to blocks, as a dead network drive would.
    let model = directory.path().join("model.gguf");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&model)
            .status()
            .unwrap()
            .success()
    );
    let mut d = Daemon::start(&["serve", "--model", model.to_str().unwrap()], &[]);
    assert_eq!(d.get("/health").status, 200, "alive while loading");
    assert_error(&d.get("/ready"), 503, "not_ready");
    assert_error(&d.get("/v1/models"), 503, "not_ready");
    assert_error(&d.chat(&ask("early", 3, true)).response(), 503, "not_ready");
    assert_eq!(d.stats()["model"], Value::Null);
    d.signal("TERM");
    assert_eq!(d.wait().code(), Some(0), "{}", d.log());
}

/// A second daemon may take the port over at once, though connections of the first linger.
#[test]
fn a_restart_on_the_same_port_works_at_once() {
    let mut d = paced("1000", &[]);
    let mut stream = d.chat(&ask("open at the end", 4000, true));
    stream.read_text(1);
    let listen = d.addr.to_string();
    d.signal("TERM");
    d.signal("TERM");
    d.wait();
    let settings = with("0", &[]);
    let again = crate::common::command(
        &["serve", "--backend", "fake", "--listen", &listen],
        &settings,
    );
    let again = Daemon::spawn(again).ready();
    assert_eq!(again.addr, d.addr);
    whole(&again, "hello", 3, true);
}
