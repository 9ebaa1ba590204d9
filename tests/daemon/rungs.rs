//! The three rungs: who runs beside whom, and in which order. What ran beside what shows in the number of
//! steps: a step computes one token of each sequence that runs.

use crate::common::{Connection, Daemon, Response, ask};
use crate::{ask_with, e2e_ms, number, paced, whole};

/// The lengths of the first `n` replies in the order in which they ended, once so many have.
fn order_of_ends(d: &Daemon, n: usize) -> Vec<u32> {
    let mut lengths = vec![];
    d.wait_for("its end is in the log", || {
        let log = d.log();
        let ends = log.lines().filter(|l| l.contains("request ended"));
        let tokens = |l: &str| {
            l.split_once("completion_tokens=")?
                .1
                .split(' ')
                .next()?
                .parse()
                .ok()
        };
        lengths = ends.filter_map(tokens).collect();
        lengths.len() >= n
    });
    lengths
}

fn steps(d: &Daemon) -> u64 {
    number(&d.idle(), "/engine/steps")
}

fn all_done(clients: Vec<Connection>) -> Vec<Response> {
    let replies: Vec<_> = clients.into_iter().map(Connection::response).collect();
    assert!(replies.iter().all(Response::is_done), "{replies:?}");
    replies
}

#[test]
fn fifo_never_runs_two_at_once_and_keeps_the_order() {
    let d = paced("500", &[("scheduler.policy", "fifo")]);
    let before = steps(&d);
    let mut clients = vec![];
    // The tightest deadline comes last: this rung does not look at it.
    for i in 0..5 {
        clients.push(d.chat(&ask_with(
            &format!("{i}"),
            60 - i,
            true,
            e2e_ms(50_000 - 10_000 * u64::from(i)),
        )));
        d.wait_for("it is in", || {
            number(&d.stats(), "/in_flight") == u64::from(i) + 1
        });
    }
    all_done(clients);
    let tokens: u64 = (56..=60).sum();
    assert!(
        steps(&d) - before >= tokens,
        "{} steps for {tokens} tokens",
        steps(&d) - before
    );
    assert_eq!(order_of_ends(&d, 5), [60, 59, 58, 57, 56]);
}

#[test]
fn a_full_static_batch_starts_without_waiting_and_runs_together() {
    // A timeout that no test outlives: what starts, starts because the batch is full.
    let d = paced(
        "1000",
        &[
            ("scheduler.policy", "static"),
            ("scheduler.max_running", "4"),
            // The warm-up is a batch of one, and waits for no other.
            ("scheduler.fill_timeout_ms", "86400000"),
        ],
    );
    let before = steps(&d);
    let clients: Vec<_> = (0..4)
        .map(|i| d.chat(&ask(&format!("{i}"), 50, true)))
        .collect();
    all_done(clients);
    let steps = steps(&d) - before;
    assert!(
        (50..=53).contains(&steps),
        "{steps} steps for four replies of 50 tokens side by side"
    );
}

#[test]
fn a_static_batch_that_does_not_fill_starts_after_its_timeout() {
    let d = paced(
        "0",
        &[
            ("scheduler.policy", "static"),
            ("scheduler.max_running", "4"),
            ("scheduler.fill_timeout_ms", "400"),
        ],
    );
    let before = steps(&d);
    let sent = std::time::Instant::now();
    let mut clients: Vec<_> = (0..3)
        .map(|i| d.chat(&ask(&format!("{i}"), 50, true)))
        .collect();
    clients[0].read_text(1);
    assert!(
        sent.elapsed() >= std::time::Duration::from_millis(400),
        "{:?}",
        sent.elapsed()
    );
    assert!(clients.remove(0).rest().is_done());
    all_done(clients);
    let steps = steps(&d) - before;
    assert!(
        (50..=53).contains(&steps),
        "{steps} steps for three replies of 50 tokens side by side"
    );
}

#[test]
fn nobody_joins_a_static_batch_that_runs() {
    let d = paced(
        "2000",
        &[
            ("scheduler.policy", "static"),
            ("scheduler.max_running", "2"),
            ("scheduler.fill_timeout_ms", "50"),
        ],
    );
    let before = steps(&d);
    let mut first = d.chat(&ask("first", 100, true));
    let short = d.chat(&ask("short", 5, true));
    first.read_text(1);
    let late = d.chat(&ask("late", 40, true));
    // The short one has left a seat; it stays empty.
    assert!(short.response().is_done());
    d.wait_for("it waits", || number(&d.stats(), "/waiting") == 1);
    assert!(late.response().is_done());
    assert!(first.rest().is_done());
    assert_eq!(order_of_ends(&d, 3), [5, 100, 40]);
    assert!(
        steps(&d) - before >= 140,
        "{} steps: it joined",
        steps(&d) - before
    );
}

#[test]
fn a_request_joins_a_continuous_batch_at_once_and_leaves_when_it_is_done() {
    let d = paced("1000", &[]);
    let mut long = d.chat(&ask("long", 4000, true));
    long.read_text(1);
    for i in 0..10 {
        whole(&d, &format!("short {i}"), 5, i % 2 == 0);
        d.wait_for("the long one still runs, alone", || {
            number(&d.stats(), "/running") == 1
        });
    }
    let batch: Vec<_> = (0..10)
        .map(|i| d.chat(&ask(&format!("short {i}"), 40, true)))
        .collect();
    d.wait_for("all run", || number(&d.stats(), "/running") == 11);
    all_done(batch);
    drop(long);
    assert_eq!(number(&d.idle(), "/requests/length"), 20);
}

/// Earliest deadline first, at the moment a seat is free: a late arrival passes those that can wait.
#[test]
fn a_tight_deadline_passes_the_waiting_and_a_running_one_is_not_touched() {
    let d = paced("2000", &[("scheduler.max_running", "1")]);
    let mut clients = vec![d.chat(&ask("runs", 100, true))];
    clients[0].read_text(1);
    for (n, body) in [
        ask("no deadline", 10, true),
        ask_with("an hour", 11, true, e2e_ms(3_600_000)),
        ask("no deadline either", 12, true),
        ask_with("a minute", 13, true, e2e_ms(60_000)),
        ask_with("ten seconds", 14, true, e2e_ms(10_000)),
        ask_with(
            "half a minute to the first token",
            15,
            true,
            serde_json::json!({ "slo": { "ttft_ms": 30_000 } }),
        ),
    ]
    .iter()
    .enumerate()
    {
        clients.push(d.chat(body));
        d.wait_for("it waits", || {
            number(&d.stats(), "/waiting") == n as u64 + 1
        });
    }
    let running = clients.remove(0).rest();
    assert!(running.is_done());
    all_done(clients);
    assert_eq!(order_of_ends(&d, 7), [100, 14, 15, 13, 11, 10, 12]);
}

/// B067: a long prompt holds up the replies that run by one chunk a step, not by its whole length; and it
/// gets on though short ones keep coming.
#[test]
fn replies_advance_at_every_step_of_a_long_prefill() {
    let d = paced("200", &[("scheduler.prefill_budget", "16")]);
    let mut beside = d.chat(&ask("beside", 4000, true));
    beside.read_text(1);
    let before = d.stats();
    let long = d.chat(&ask(&"long ".repeat(1600), 1, true)).response();
    assert!(long.is_done());
    let after = d.wait_for_stats("the other one still runs, alone", |s| s["running"] == 1);
    let delta = |p| number(&after, p) - number(&before, p);
    let prefilled = delta("/engine/prefilled_tokens");
    assert!(prefilled > 2000, "{prefilled}");
    assert!(
        delta("/engine/generated_tokens") >= prefilled / 16,
        "the reply stood still: {after}"
    );
    drop(beside);
    d.idle();
}

/// The other order: while a prompt is incomplete nothing else is computed.
#[test]
fn under_prefill_first_replies_stand_still_while_a_prompt_is_computed() {
    let d = paced(
        "500",
        &[
            ("scheduler.prefill_budget", "16"),
            ("scheduler.order", "prefill_first"),
        ],
    );
    let mut beside = d.chat(&ask("beside", 4000, true));
    beside.read_text(1);
    let long = d.chat(&ask(&"long ".repeat(1600), 4000, true));
    d.wait_for("it is admitted", || number(&d.stats(), "/running") == 2);
    let before = d.stats();
    let after = d.wait_for_stats("more of it is computed", |s| {
        number(s, "/engine/prefilled_tokens") >= number(&before, "/engine/prefilled_tokens") + 800
    });
    let chunks = (number(&after, "/engine/prefilled_tokens")
        - number(&before, "/engine/prefilled_tokens"))
        / 16;
    let generated =
        number(&after, "/engine/generated_tokens") - number(&before, "/engine/generated_tokens");
    assert!(
        generated < chunks,
        "{generated} tokens beside {chunks} chunks"
    );
    drop((beside, long));
    d.idle();
}

/// B065: what a reply says depends on its prompt, not on what runs beside it, on any rung.
#[test]
fn a_reply_is_the_same_alone_and_in_a_busy_batch_on_every_rung() {
    for policy in ["fifo", "static", "continuous"] {
        let d = paced(
            "0",
            &[
                ("scheduler.policy", policy),
                ("scheduler.max_running", "4"),
                ("scheduler.fill_timeout_ms", "5"),
                ("scheduler.prefill_budget", "32"),
            ],
        );
        let prompts: Vec<String> = (0..12)
            .map(|i| format!("shared beginning {}", "w ".repeat(i * 17)))
            .collect();
        let alone: Vec<_> = prompts
            .iter()
            .map(|p| whole(&d, p, 40, false).text())
            .collect();
        let clients: Vec<_> = prompts.iter().map(|p| d.chat(&ask(p, 40, true))).collect();
        for (reply, text) in all_done(clients).iter().zip(&alone) {
            assert_eq!(&reply.text(), text, "{policy}");
        }
        d.idle();
    }
}
