//! HTTP at its edges: what no client should send, and what every client should get.

use crate::common::{ask, request};
use crate::{assert_error, number, paced, whole};

/// B119: where a message ends must not be a matter of opinion. Each is refused with 400 and the connection
/// closed, so that what follows is never taken for a request of its own.
#[test]
fn ambiguous_framing_is_refused_and_nothing_behind_it_is_executed() {
    let d = paced("0", &[]);
    let smuggled = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    let n = smuggled.len();
    let post = "POST /v1/chat/completions";
    for (what, head) in [
        (
            "two lengths that differ",
            format!("{post} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ncontent-length: {n}"),
        ),
        (
            "two lengths",
            format!("{post} HTTP/1.1\r\nhost: x\r\ncontent-length: {n}\r\ncontent-length: {n}"),
        ),
        (
            "a list of lengths",
            format!("{post} HTTP/1.1\r\nhost: x\r\ncontent-length: 0, {n}"),
        ),
        (
            "a length with a sign",
            format!("{post} HTTP/1.1\r\nhost: x\r\ncontent-length: +{n}"),
        ),
        (
            "a length below zero",
            format!("{post} HTTP/1.1\r\nhost: x\r\ncontent-length: -1"),
        ),
        (
            "length and chunks",
            format!(
                "{post} HTTP/1.1\r\nhost: x\r\ncontent-length: {n}\r\ntransfer-encoding: chunked"
            ),
        ),
        (
            "chunks and length",
            format!(
                "{post} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: {n}"
            ),
        ),
        (
            "chunks in HTTP/1.0",
            format!("{post} HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked"),
        ),
        (
            "an unknown coding",
            format!("{post} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked"),
        ),
        (
            "chunks twice",
            format!(
                "{post} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked"
            ),
        ),
        (
            "a coding over chunks",
            format!("{post} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, identity"),
        ),
        (
            "a space before the colon",
            format!("{post} HTTP/1.1\r\nhost: x\r\ncontent-length : {n}"),
        ),
        (
            "a folded line",
            format!("{post} HTTP/1.1\r\nhost: x\r\ntransfer-encoding:\r\n chunked"),
        ),
        ("no host", format!("{post} HTTP/1.1\r\ncontent-length: {n}")),
        (
            "two hosts",
            format!("{post} HTTP/1.1\r\nhost: x\r\nhost: y\r\ncontent-length: {n}"),
        ),
        ("no version", post.to_owned()),
    ] {
        let mut client = d.send(&format!("{head}\r\n\r\n{smuggled}"));
        let refusal = client.head();
        assert_eq!(refusal.status, 400, "{what}: {refusal:?}");
        let rest = String::from_utf8_lossy(&client.drained()).into_owned();
        assert!(
            !rest.contains("HTTP/1.1"),
            "{what}: a second answer: {rest}"
        );
    }
    // A smuggled request would have been counted as invalid.
    assert_eq!(
        d.stats()["requests"],
        serde_json::json!({
            "stop": 0, "length": 0, "cancelled": 0, "slow_reader": 0,
            "invalid": 0, "refused": 0, "failed": 0, "drained": 0, "slo": 0, "expired": 0,
        })
    );
    whole(&d, "and it serves", 3, true);
}

/// The framework takes it for a broken connection, and there is nobody left to answer.
#[test]
fn a_broken_chunk_ends_the_connection_and_is_counted_once() {
    let d = paced("0", &[]);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let body = ask("never", 3, false).to_string();
    let size = body.len();
    let answer = d
        .send(&format!("{head}{size:x}\r\n{body}\r\nzz\r\n\r\n"))
        .drained();
    assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
    let stats = d.idle();
    let ended = number(&stats, "/requests/invalid") + number(&stats, "/requests/cancelled");
    assert_eq!(ended, 1, "{stats}");
    whole(&d, "and it serves", 3, true);
}

/// B125: whatever is refused by a route is refused in JSON, and a wrong method names the right one.
#[test]
fn unknown_paths_and_wrong_methods_are_json() {
    let d = paced("0", &[]);
    let send = |method: &str, path: &str| {
        d.send(&format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        ))
        .response()
    };
    for path in [
        "/v1/nope",
        "/",
        "/v1/chat/completions/",
        "//v1/models",
        "/V1/models",
        "/v1/models%2f",
        "/%ff",
    ] {
        for method in ["GET", "POST", "DELETE"] {
            assert_error(&send(method, path), 404, "not_found");
        }
    }
    for (path, wrong, right) in [
        ("/v1/chat/completions", ["GET", "PUT", "OPTIONS"], "POST"),
        ("/v1/models", ["POST", "PUT", "DELETE"], "GET"),
        ("/v1/models/fake", ["POST", "PUT", "DELETE"], "GET"),
        ("/health", ["POST", "PUT", "DELETE"], "GET"),
        ("/ready", ["POST", "PUT", "DELETE"], "GET"),
        ("/stats", ["POST", "PUT", "DELETE"], "GET"),
        ("/metrics", ["POST", "PUT", "DELETE"], "GET"),
    ] {
        for method in wrong {
            let refused = send(method, path);
            assert_error(&refused, 405, "method_not_allowed");
            assert_eq!(refused.header("allow"), Some(right), "{method} {path}");
        }
    }
    assert_eq!(send("GET", "/v1/models?limit=1").status, 200);
}

/// Before a head is whole and understood there is no request: actix-http answers by itself, without a body.
#[test]
fn what_never_became_a_request_is_answered_by_a_status_and_the_end_of_the_connection() {
    let d = paced("0", &[("server.request_timeout_s", "1")]);
    let chat = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n";
    for (what, head, status) in [
        ("no request line", "nonsense\r\n\r\n".to_owned(), 400),
        ("no header", format!("{chat}nonsense\r\n\r\n"), 400),
        ("a head that stays away", format!("{chat}content-"), 408),
        (
            "headers without end",
            format!("{chat}{}\r\n", "x: y\r\n".repeat(200)),
            431,
        ),
    ] {
        let answer = d.send(&head).response();
        assert_eq!(answer.status, status, "{what}: {answer:?}");
        assert_eq!(
            answer.header("content-length"),
            Some("0"),
            "{what}: {answer:?}"
        );
        assert!(answer.complete, "{what}: the connection stays open");
    }
    whole(&d, "and it serves", 3, true);
}

/// A head beyond all reason is refused and the connection closed; the server goes on.
#[test]
fn a_head_of_a_megabyte_is_a_431() {
    let d = paced("0", &[]);
    let head = format!(
        "GET /health HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n",
        "y".repeat(1 << 20)
    );
    let mut client = d.send(&head);
    let status = client.head().status;
    // The server may have closed before it had read it all; then the kernel takes the answer back.
    assert!([431, 0].contains(&status), "{status}");
    client.drained();
    assert_eq!(d.get("/health").status, 200);
}

/// Clients that announce a large body wait to be told to send it.
#[test]
fn expect_continue_is_answered() {
    let d = paced("0", &[]);
    let bytes = request(
        "/v1/chat/completions",
        &ask("go on", 3, true).to_string(),
        "expect: 100-continue\r\nconnection: close\r\n",
    );
    let (head, body) = bytes.split_once("\r\n\r\n").unwrap();
    let mut client = d.send(&format!("{head}\r\n\r\n"));
    assert_eq!(client.head().status, 100);
    client.send(body);
    assert!(client.response().is_done());
}

/// Requests in a row on one connection, streams and refusals among them, are answered in order.
#[test]
fn a_kept_connection_serves_many_requests() {
    let d = paced("0", &[]);
    let mut client = d.connect();
    for i in 0..20 {
        let path = "/v1/chat/completions";
        let (body, status) = match i % 4 {
            0 => (ask("kept", 3, true).to_string(), 200),
            1 => (ask("kept", 3, false).to_string(), 200),
            2 => ("{".to_owned(), 400),
            _ => (ask("kept", 0, true).to_string(), 400),
        };
        let response = client.send(request(path, &body, "")).next_response();
        assert_eq!(
            (response.status, response.complete),
            (status, true),
            "{response:?}"
        );
    }
    // Two at once, the second while the first is answered.
    let both = request(
        "/v1/chat/completions",
        &ask("first", 3, true).to_string(),
        "",
    )
    .repeat(2);
    client.send(both);
    assert!(client.next_response().is_done());
    assert!(client.next_response().is_done());
    d.idle();
}
