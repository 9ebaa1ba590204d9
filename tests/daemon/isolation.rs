//! A decode that blocks its thread blocks nothing else.

use crate::common::ask;
use crate::{assert_error, paced, whole};

/// What must go on while `llama_decode` does not return: other streams' keep-alives, the operator's routes,
/// refusals of both kinds, and the cancel of a request that waits. All of it is seen to happen before the
/// stalled stream gets its next token.
#[test]
fn while_a_decode_blocks_everything_but_the_model_answers() {
    let d = paced(
        "1000",
        &[
            ("fake.fault", "stall"),
            ("fake.fault_marker", "STALL"),
            ("fake.fault_at_token", "5"),
            ("fake.stall_ms", "2000"),
            ("server.sse_keep_alive_s", "1"),
            ("scheduler.max_running", "2"),
            ("limits.requests", "4"),
        ],
    );
    let alone = whole(&d, "beside", 400, true).text();

    let mut beside = d.chat(&ask("beside", 400, true));
    let mut text = beside.read_text(1);
    let mut stalled = d.chat(&ask("STALL", 20, true));
    // The decode that feeds token 5 (of 0, 1, …) blocks; that token is out before it.
    stalled.read_text(6);
    let mut waiting = d.chat(&ask("waits", 5, true));
    assert_eq!(waiting.head().status, 200);
    assert!(
        waiting.event().is_some_and(|e| e.contains("assistant")),
        "the role comes first"
    );
    let leaving = d.chat(&ask("leaves", 5, false));
    d.wait_for_stats("two run, two wait", |s| {
        s["held"]["requests"] == 4 && s["running"] == 2 && s["waiting"] == 2
    });

    assert_eq!(d.get("/health").status, 200);
    assert_eq!(d.get("/ready").status, 200);
    assert_eq!(d.metric("cadenced_running"), 2.0);
    assert_error(
        &d.chat(&ask("too many", 5, true)).response(),
        503,
        "queue_full",
    );
    assert_error(&d.post("/v1/nope", "{}").response(), 404, "not_found");
    drop(leaving);
    d.wait_for("the cancel of a request that waits", || {
        let stats = d.stats();
        stats["requests"]["cancelled"] == 1 && stats["waiting"] == 1
    });
    // Its seat is free again, so what is refused now is refused for what it says.
    assert_error(&d.chat(&ask("", 0, true)).response(), 400, "invalid_value");
    // The one that runs has no token to show, the one that waits has not begun; both are told they live.
    while !beside.silent() {
        text.push_str(&content(&beside.block().unwrap()));
    }
    while !waiting.silent() {
        waiting.block().unwrap();
    }
    for stream in [&mut beside, &mut waiting] {
        let comment = stream.block().unwrap();
        assert!(comment.starts_with(':'), "{comment}");
    }

    assert!(
        stalled.says_nothing(),
        "the stall was over before all of this was answered"
    );
    let stalled = stalled.rest();
    assert!(stalled.is_done(), "{stalled:?}");
    text.push_str(&beside.rest().text());
    assert_eq!(text, alone);
    assert!(waiting.rest().is_done());
    d.idle();
}

fn content(block: &str) -> String {
    let json = block
        .trim_end()
        .strip_prefix("data: ")
        .and_then(|e| serde_json::from_str(e).ok());
    let json: serde_json::Value = json.unwrap_or_default();
    json["choices"][0]["delta"]["content"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Admission has room and the queue has room: a newcomer is let in while the decode blocks, and runs after it.
#[test]
fn a_request_is_admitted_while_a_decode_blocks() {
    let d = paced(
        "0",
        &[
            ("fake.fault", "stall"),
            ("fake.fault_marker", "STALL"),
            ("fake.fault_at_token", "2"),
            ("fake.stall_ms", "1000"),
        ],
    );
    let mut stalled = d.chat(&ask("STALL", 6, true));
    stalled.read_text(3);
    let mut newcomer = d.chat(&ask("newcomer", 4, true));
    assert_eq!(newcomer.head().status, 200);
    assert!(newcomer.event().is_some(), "the role");
    assert!(
        stalled.says_nothing(),
        "the stall was over before the newcomer was admitted"
    );
    assert!(newcomer.rest().is_done());
    assert!(stalled.rest().is_done());
    d.idle();
}
