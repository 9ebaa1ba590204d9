//! The operator's listener: its generations can't be refused, and nobody's account has them.

use std::net::{SocketAddr, TcpListener};

use crate::common::calibrated::{CAREFUL, Calibrated};
use crate::common::{Connection, Daemon, Response, ask, command, request};
use crate::{ask_with, assert_error, e2e_ms, number, paced};

const ADMIN: (&str, &str) = ("server.admin_listen", "127.0.0.1:0");

fn door(d: &Daemon) -> SocketAddr {
    let log = d.log();
    let line = log
        .lines()
        .find_map(|l| l.split_once("the operator's door is at http://"));
    line.expect("it is open").1.trim().parse().unwrap()
}

fn send(to: SocketAddr, bytes: &str) -> Connection {
    let mut connection = Connection::open(to);
    connection.send(bytes);
    connection
}

fn generate(to: SocketAddr, max_tokens: u32, stream: bool) -> Connection {
    let body = ask("Sing.", max_tokens, stream).to_string();
    send(
        to,
        &request("/v1/chat/completions", &body, "connection: close\r\n"),
    )
}

fn get(to: SocketAddr, path: &str) -> Response {
    let bytes = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    send(to, &bytes).response()
}

/// The wait queue and every seat are taken, and so are all the tokens that may be held.
#[test]
fn a_full_house_refuses_the_public_and_not_the_operator() {
    let d = paced(
        "2000",
        &[ADMIN, ("limits.requests", "1"), ("limits.tokens", "100")],
    );
    let mut holder = d.chat(&ask("holds", 4000, true));
    holder.read_text(1);
    assert_error(&d.chat(&ask("no", 5, true)).response(), 503, "queue_full");
    let canary = generate(door(&d), 20, true).response();
    assert_eq!(canary.status, 200, "{canary:?}");
    assert!(canary.is_done(), "{canary:?}");
    let stats = d.stats();
    assert_eq!(
        number(&stats, "/running"),
        1,
        "the holder is still there: {stats}"
    );
    assert_eq!(number(&stats, "/held/requests"), 1, "{stats}");
    // One at a time.
    let mut singer = generate(door(&d), 4000, true);
    singer.read_text(1);
    assert_error(&generate(door(&d), 5, true).response(), 503, "queue_full");
    drop(singer);
    d.wait_for_stats("the singer has left", |s| s["running"] == 1);
    drop(holder);
    let stats = d.idle();
    assert_eq!(number(&stats, "/admin_requests"), 3, "{stats}");
    assert_eq!(d.metric("cadenced_admin_requests_total"), 3.0);
    let (refused, cancelled) = (d.count("refused"), d.count("cancelled"));
    assert_eq!((refused, cancelled), (1, 1), "the public's: {stats}");
    let finished = d.count("length") + d.count("stop");
    assert_eq!(finished, 0, "{stats}");
    assert_eq!(d.metric("cadenced_e2e_seconds_count"), 0.0);
    assert_eq!(d.metric("cadenced_ttft_seconds_count"), 1.0);
}

#[test]
fn an_admission_that_refuses_everything_refuses_the_public_and_not_the_operator() {
    let d = Calibrated::new(CAREFUL, &[ADMIN, ("slo.e2e_ms", "1")]).start();
    let body = ask_with("no", 20, false, e2e_ms(1));
    assert_error(&d.chat(&body).response(), 422, "slo_infeasible");
    assert_error(
        &d.chat(&ask("no", 20, false)).response(),
        422,
        "slo_infeasible",
    );
    let before = d.stats();
    for stream in [true, false] {
        let canary = generate(door(&d), 20, stream).response();
        assert_eq!(canary.status, 200, "{canary:?}");
        assert_eq!(canary.header("x-cadenced-verdict"), None, "{canary:?}");
        assert!(!canary.body.contains("receipt"), "{canary:?}");
    }
    let after = d.idle();
    // Neither decided on nor scored nor learnt from.
    assert_eq!(after["admission"], before["admission"]);
    assert_eq!(after["requests"], before["requests"]);
    assert_eq!(
        d.metric("cadenced_admission_decision_cpu_seconds_count"),
        2.0
    );
    assert_eq!(number(&after, "/admin_requests"), 2, "{after}");
}

/// A canary costs the same each time: it finds nothing cached and leaves nothing.
#[test]
fn the_operator_leaves_nothing_in_the_prefix_cache() {
    let d = paced(
        "100",
        &[ADMIN, ("prefix.reuse", "on"), ("kv.reservation", "paged")],
    );
    for _ in 0..3 {
        let canary = generate(door(&d), 20, true).response();
        assert_eq!(canary.status, 200, "{canary:?}");
    }
    let stats = d.idle();
    assert_eq!(number(&stats, "/kv/blocks_cached"), 0, "{stats}");
    assert_eq!(number(&stats, "/prefix/hit_tokens"), 0, "{stats}");
}

#[test]
fn the_operators_door_has_the_operators_routes_and_no_others() {
    let d = Daemon::fake(&[ADMIN]);
    for path in ["/health", "/ready", "/stats", "/metrics"] {
        assert_eq!(get(door(&d), path).status, 200, "{path}");
    }
    assert_eq!(get(door(&d), "/v1/models").status, 404);
    assert_eq!(d.get("/v1/models").status, 200);
    assert_error(
        &get(door(&d), "/v1/chat/completions"),
        405,
        "method_not_allowed",
    );
}

#[test]
fn a_busy_admin_port_ends_the_start_with_its_address() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    let output = command(
        &["serve", "--backend", "fake", "--listen", "127.0.0.1:0"],
        &[("server.admin_listen", &address)],
    )
    .output()
    .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    for words in ["server.admin_listen", &address, "in use"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
}

#[test]
fn an_admin_address_that_can_not_be_is_a_configuration_error() {
    for (address, why) in [
        ("127.0.0.1:8000", "is server.listen as well"),
        ("0.0.0.0:9000", "is no loopback address"),
        ("nowhere", "an IP address and a port are needed"),
    ] {
        let settings = [
            ("server.admin_listen", address),
            ("server.listen", "127.0.0.1:8000"),
        ];
        let output = command(&["serve", "--backend", "fake"], &settings)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{address}: {said}");
        assert!(
            said.contains(why) && said.to_lowercase().contains("admin_listen"),
            "{address}: {said}"
        );
    }
}
