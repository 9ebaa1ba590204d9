//! B064: the model refuses one sequence; the others must not notice.

use crate::common::{Daemon, ask};
use crate::{assert_error, assert_error_event, number, paced, whole};

fn daemon(fault: &str, at_token: &str) -> Daemon {
    paced(
        "1000",
        &[
            ("fake.fault", fault),
            ("fake.fault_marker", "POISON"),
            ("fake.fault_at_token", at_token),
            ("scheduler.prefill_budget", "64"),
        ],
    )
}

/// Prompts of a busy batch: some short, some that take several steps to compute.
fn prompts() -> Vec<String> {
    (0..7)
        .map(|i| format!("prompt {i} ").repeat(1 + 20 * (i % 3)))
        .collect()
}

fn fails_alone(fault: &str, at_token: &str) {
    let d = daemon(fault, at_token);
    let prompts = prompts();
    let alone: Vec<String> = prompts
        .iter()
        .map(|p| whole(&d, p, 60, true).text())
        .collect();

    let clients: Vec<_> = prompts.iter().map(|p| d.chat(&ask(p, 60, true))).collect();
    let poisoned = d.chat(&ask("POISON one", 60, true));
    let poisoned_reply = d.chat(&ask("POISON two", 60, false));
    let poisoned = poisoned.response();
    assert_eq!(poisoned.status, 200);
    assert_error_event(&poisoned, "engine_error");
    assert_error(&poisoned_reply.response(), 500, "engine_error");
    for (client, text) in clients.into_iter().zip(&alone) {
        let reply = client.response();
        assert!(reply.is_done(), "{reply:?}");
        assert_eq!(&reply.text(), text, "another's failure changed this reply");
    }
    let stats = d.idle();
    assert_eq!(number(&stats, "/requests/failed"), 2, "{stats}");
    // It goes on serving, on sequences whose cells are clean, in busy batches and alone.
    for _ in 0..3 {
        let clients: Vec<_> = prompts.iter().map(|p| d.chat(&ask(p, 60, false))).collect();
        for (client, text) in clients.into_iter().zip(&alone) {
            assert_eq!(&client.response().text(), text);
        }
    }
    d.idle();
}

#[test]
fn no_room_for_one_sequence_fails_that_one_alone() {
    fails_alone("no_room", "7");
}

#[test]
fn an_invalid_batch_fails_the_sequence_to_blame_alone() {
    fails_alone("invalid", "7");
}

/// At its first decode, while others' prompts are computed in the same batch.
#[test]
fn a_failure_beside_prompts_that_are_computed_fails_that_one_alone() {
    fails_alone("invalid", "0");
}

/// What a failed request had said counts as said, and its end is no end: B047.
#[test]
fn the_text_before_a_failure_reaches_the_client() {
    // The decode that feeds token 5 (of 0, 1, …) fails; that token is out before it.
    let d = daemon("invalid", "5");
    let failed = d.chat(&ask("POISON", 60, true)).response();
    assert_error_event(&failed, "engine_error");
    assert_eq!(failed.text().split_whitespace().count(), 6, "{failed:?}");
    let message = failed.chunks().pop().unwrap()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        !message.contains("decode") && !message.contains("-1"),
        "internals: {message}"
    );
    d.idle();
}
