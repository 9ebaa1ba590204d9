//! What is refused because it is too long, too large or too slow.

use serde_json::json;

use crate::common::{Daemon, ask, request};
use crate::{assert_error, number, paced, whole};

/// A prompt of exactly `tokens` tokens: the fake makes one of four bytes of the messages' JSON.
fn prompt_of(tokens: usize) -> String {
    let frame = json!([{ "role": "user", "content": "" }]).to_string().len();
    "x".repeat(4 * tokens - frame)
}

/// B050: the context is prompt and reply together, and the reply is at least one token.
#[test]
fn a_prompt_up_to_the_context_less_one_is_served_and_a_longer_one_is_a_400() {
    let n_ctx = 1024;
    let d = paced("0", &[("kv.cells", "1024")]);
    for stream in [false, true] {
        let longest = whole(&d, &prompt_of(n_ctx - 1), 1, stream);
        assert_eq!(longest.text().split_whitespace().count(), 1);
        for tokens in [n_ctx, n_ctx + 1, 3 * n_ctx] {
            let refused = d.chat(&ask(&prompt_of(tokens), 1, stream)).response();
            assert_error(&refused, 400, "context_length_exceeded");
            let error = &refused.json()["error"];
            assert_eq!(error["param"], "messages");
            let message = error["message"].as_str().unwrap();
            for number in [tokens, n_ctx - 1] {
                assert!(message.contains(&number.to_string()), "{number}: {message}");
            }
        }
        // B053: whatever max_tokens says, the reply has the room that is left.
        let cut = whole(&d, &prompt_of(n_ctx - 5), 100_000, stream);
        assert_eq!(cut.text().split_whitespace().count(), 5);
        assert_eq!(cut.finish_reason().as_deref(), Some("length"));
        whole(&d, "short", 3, stream);
    }
    d.idle();
}

/// B052, B055: a prompt longer than the batch is computed in pieces, and one request may use all of the pool.
#[test]
fn prompts_longer_than_the_batch_run_side_by_side_with_replies() {
    let d = paced(
        "200",
        &[
            ("kv.cells", "8192"),
            ("runner.n_batch", "128"),
            ("runner.n_ubatch", "128"),
            ("scheduler.prefill_budget", "100"),
            ("scheduler.max_running", "8"),
        ],
    );
    whole(&d, &prompt_of(8000), 191, false);
    let mut talkers: Vec<_> = (0..4)
        .map(|i| d.chat(&ask(&format!("{i}"), 200, true)))
        .collect();
    talkers.iter_mut().for_each(|t| drop(t.read_text(1)));
    let long: Vec<_> = (0..4)
        .map(|_| d.chat(&ask(&prompt_of(1500), 5, true)))
        .collect();
    assert!(long.into_iter().all(|c| c.response().is_done()));
    assert!(talkers.into_iter().all(|c| c.rest().is_done()));
    d.idle();
}

/// More than the pool holds at once: those that do not fit wait, and pass through one after the other.
#[test]
fn requests_that_do_not_fit_into_memory_together_wait_for_each_other() {
    let d = paced("100", &[("kv.cells", "2048")]);
    let clients: Vec<_> = (0..6)
        .map(|i| d.chat(&ask(&prompt_of(900 + i), 300, i % 2 == 0)))
        .collect();
    for client in clients {
        let reply = client.response();
        assert_eq!((reply.status, reply.complete), (200, true));
        assert_eq!(reply.finish_reason().as_deref(), Some("length"));
    }
    assert_eq!(number(&d.idle(), "/requests/length"), 6);
}

/// B023: the framework's own 2 MB do not apply; the limit that is set does, announced or not.
#[test]
fn a_body_under_the_limit_reaches_the_context_check_and_one_over_it_is_a_413() {
    let d = paced("0", &[("server.body_bytes_max", "4000000")]);
    let long = d.chat(&ask(&"a ".repeat(1_500_000), 5, true)).response();
    assert_error(&long, 400, "context_length_exceeded");
    let over = ask(&"a ".repeat(2_000_000), 5, true).to_string();
    let refused = d.post("/v1/chat/completions", &over).response();
    assert_error(&refused, 413, "body_too_large");
    assert!(
        refused.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("4000000")
    );
    let chunked = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n{:x}\r\n{over}\r\n0\r\n\r\n",
        over.len()
    );
    assert_error(&d.send(&chunked).response(), 413, "body_too_large");
    assert_eq!(number(&d.idle(), "/requests/invalid"), 3);
}

/// B025: JSON by any spelling of its type, and nothing else: a browser sends text and forms unasked.
#[test]
fn only_json_is_read() {
    let d = paced("0", &[]);
    let with_type = |line: &str| {
        let body = ask("type", 2, false).to_string();
        let bytes = request("/v1/chat/completions", &body, "connection: close\r\n");
        d.send(&bytes.replace("content-type: application/json\r\n", line))
            .response()
    };
    for line in [
        "",
        "content-type: text/plain\r\n",
        "content-type: application/x-www-form-urlencoded\r\n",
        "content-type: multipart/form-data; boundary=application/json\r\n",
        "content-type: application/jsonp\r\n",
    ] {
        assert_error(&with_type(line), 415, "unsupported_media_type");
    }
    for line in [
        "Content-Type: Application/JSON; charset=UTF-8\r\n",
        "content-type: application/json;x=y\r\n",
    ] {
        assert_eq!(with_type(line).status, 200, "{line}");
    }
}

fn impatient() -> Daemon {
    paced("0", &[("server.request_timeout_s", "1")])
}

#[test]
fn a_body_that_does_not_come_in_time_is_a_408() {
    let d = impatient();
    let bytes = request(
        "/v1/chat/completions",
        &ask("slow", 5, true).to_string(),
        "",
    );
    let client = d.send(&bytes[..bytes.len() - 5]);
    assert_error(&client.response(), 408, "request_timeout");
    assert_eq!(number(&d.idle(), "/requests/invalid"), 1);
}

/// B116: a connection may idle between requests for longer than a request may take.
#[test]
fn an_idle_connection_outlives_the_request_timeout() {
    let d = impatient();
    let mut kept = d.connect();
    let get = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    assert_eq!(kept.send(get).next_response().status, 200);
    // One that is cut at the timeout shows that the time has come.
    assert_eq!(d.send("GET /health HTTP/1.1\r\n").head().status, 408);
    let chat = request(
        "/v1/chat/completions",
        &ask("again", 3, true).to_string(),
        "",
    );
    let reply = kept.send(chat).next_response();
    assert!(reply.is_done(), "{reply:?}");
    assert_eq!(
        kept.send(get).next_response().status,
        200,
        "and after a stream"
    );
}
