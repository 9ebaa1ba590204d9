//! The cap on unfinished work: in requests, in bytes, in tokens.

use std::collections::BTreeMap;

use crate::common::{Daemon, ask, request};
use crate::{Dice, assert_error, number, paced, whole};

/// B070, B071: two seats, four places in the queue, twenty at once.
#[test]
fn a_burst_beyond_seats_and_queue_is_refused_at_once_and_adds_up() {
    let d = paced(
        "5000",
        &[("scheduler.max_running", "2"), ("limits.requests", "6")],
    );
    let clients: Vec<_> = (0..20)
        .map(|i| d.chat(&ask(&format!("{i}"), 80, i % 2 == 0)))
        .collect();
    d.wait_for("14 refused", || d.count("refused") == 14);
    assert_eq!(
        number(&d.stats(), "/held/requests"),
        6,
        "the refusals waited for nobody"
    );
    let (served, refused): (Vec<_>, Vec<_>) = clients
        .into_iter()
        .map(|c| c.response())
        .partition(|r| r.status == 200);
    assert_eq!((served.len(), refused.len()), (6, 14));
    for r in &served {
        assert!(r.complete && (r.is_done() || !r.is_stream()), "{r:?}");
    }
    for r in &refused {
        assert_error(r, 503, "queue_full");
    }
    let stats = d.idle();
    assert_eq!(number(&stats, "/requests/length"), 6, "{stats}");
    assert_eq!(ended(&stats), 20, "{stats}");
}

/// All outcomes together.
fn ended(stats: &serde_json::Value) -> u64 {
    stats["requests"]
        .as_object()
        .unwrap()
        .values()
        .map(|n| n.as_u64().unwrap())
        .sum()
}

#[test]
fn bodies_beyond_the_bytes_held_at_once_are_refused_before_they_are_read() {
    let d = paced(
        "2000",
        &[
            ("limits.request_bytes", "3000"),
            // Which has bytes of its own.
            ("limits.best_effort_share", "0"),
        ],
    );
    let holder = d.chat(&ask(&"x".repeat(2500), 4000, true));
    d.wait_for("it is held", || number(&d.stats(), "/held/bytes") > 2500);
    // Announced and not sent: what is refused is the announcement.
    let announced = request(
        "/v1/chat/completions",
        &"x".repeat(600),
        "connection: close\r\n",
    );
    let (head, _) = announced.split_once("\r\n\r\n").unwrap();
    assert_error(
        &d.send(&format!("{head}\r\n\r\n")).response(),
        503,
        "queue_bytes_full",
    );
    whole(&d, "small", 3, false);
    drop(holder);
    d.idle();
    whole(&d, &"x".repeat(2500), 3, false);
    // A body of unknown length is held for as long as it may become, until it is read.
    let chunked = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    let mut client = d.send(chunked);
    d.wait_for("all of it is held", || {
        number(&d.stats(), "/held/bytes") == 16_777_216
    });
    assert_error(
        &d.chat(&ask("small", 3, false)).response(),
        503,
        "queue_bytes_full",
    );
    let body = ask("by chunks", 3, false).to_string();
    client.send(format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()));
    assert_eq!(client.response().status, 200);
    d.idle();
}

#[test]
fn prompts_and_replies_beyond_the_tokens_held_at_once_are_refused() {
    let d = paced("2000", &[("limits.tokens", "1000")]);
    let holder = d.chat(&ask("holds", 800, true));
    d.wait_for("it is held", || number(&d.stats(), "/held/tokens") > 800);
    for stream in [true, false] {
        assert_error(
            &d.chat(&ask("too much", 400, stream)).response(),
            503,
            "queue_tokens_full",
        );
    }
    whole(&d, "fits", 20, true);
    drop(holder);
    let stats = d.idle();
    assert_eq!(number(&stats, "/requests/refused"), 2, "{stats}");
    // A single request beyond the cap is not refused for ever by an empty house.
    whole(&d, "alone", 1500, false);
}

/// B071: the refused shall not all come back in the same second. The wait is the work over the rate, so there
/// must be work for minutes.
#[test]
fn retry_after_follows_the_work_held_and_spreads() {
    let d = paced(
        "40000",
        &[("limits.requests", "1"), ("limits.retry_after_s_max", "60")],
    );
    let mut holder = d.chat(&ask("holds", 1000, true));
    holder.read_text(2);
    let mut seen = BTreeMap::new();
    for _ in 0..30 {
        let refused = d.chat(&ask("no", 5, true)).response();
        assert_error(&refused, 503, "queue_full");
        let seconds: u32 = refused.header("retry-after").unwrap().parse().unwrap();
        *seen.entry(seconds).or_insert(0) += 1;
    }
    assert!(seen.len() > 2, "{seen:?}");
    assert!(
        seen.keys().all(|s| *s > 10),
        "a thousand tokens at 25 a second: {seen:?}"
    );
}

/// B073: however requests end, all seats are there in the end, no more and no fewer.
#[test]
fn no_seat_leaks_whatever_way_requests_end() {
    let d = paced(
        "200",
        &[
            ("scheduler.max_running", "3"),
            ("limits.requests", "5"),
            ("kv.cells", "1024"),
            ("runner.n_batch", "128"),
            ("runner.n_ubatch", "128"),
            ("scheduler.prefill_budget", "64"),
        ],
    );
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let d = &d;
            scope.spawn(move || {
                let mut dice = Dice(thread);
                for i in 0..60 {
                    end_somehow(d, &format!("{thread} {i}"), &mut dice);
                }
            });
        }
    });
    let stats = d.idle();
    assert_eq!(ended(&stats), 8 * 60, "{stats}");
    for outcome in ["length", "cancelled", "invalid", "refused"] {
        assert!(
            number(&stats, &format!("/requests/{outcome}")) > 0,
            "none was {outcome}: {stats}"
        );
    }
    assert_no_more_than_five(&d);
}

fn end_somehow(d: &Daemon, content: &str, dice: &mut Dice) {
    let stream = dice.below(2) == 0;
    match dice.below(5) {
        0 => drop(d.chat(&ask(content, 50, false)).response()),
        1 => {
            let mut client = d.chat(&ask(content, 400, stream));
            // Long enough for some to be admitted, short enough for none to be finished.
            std::thread::sleep(std::time::Duration::from_millis(dice.below(20)));
            if stream && dice.below(2) == 0 {
                let _ = client.head();
            }
        }
        2 => drop(d.chat(&ask(content, 0, stream)).response()),
        3 => drop(d.chat(&ask(&"long ".repeat(900), 5, stream)).response()),
        _ => drop(d.chat(&ask(content, 20, true)).response()),
    }
}

fn assert_no_more_than_five(d: &Daemon) {
    let clients: Vec<_> = (0..9)
        .map(|i| d.chat(&ask(&format!("{i}"), 300, true)))
        .collect();
    d.wait_for("four more are refused", || {
        let stats = d.stats();
        number(&stats, "/held/requests") == 5 && number(&stats, "/running") == 3
    });
    let ok = clients
        .into_iter()
        .map(|c| c.response())
        .filter(|r| r.status == 200)
        .count();
    assert_eq!(ok, 5);
    d.idle();
}
