//! Many clients, most of them rude, and in the end nothing is left of them.

use std::time::Duration;

use crate::common::ask;
use crate::{Dice, assert_no_panic, number, paced, whole};

/// B061: two hundred streams, sixteen at a time, each left at some moment of its life.
#[test]
fn no_moment_of_leaving_kills_the_engine() {
    let d = paced("300", &[]);
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let d = &d;
            scope.spawn(move || {
                let mut dice = Dice(thread);
                for i in 0..13 {
                    let client = d.chat(&ask(&format!("{thread} {i}"), 60, dice.below(2) == 0));
                    std::thread::sleep(Duration::from_micros(dice.below(60_000)));
                    drop(client);
                }
            });
        }
    });
    let stats = d.idle();
    let ended = number(&stats, "/requests/cancelled") + number(&stats, "/requests/length");
    assert_eq!(ended, 16 * 13, "{stats}");
    whole(&d, "and then", 5, true);
    assert_no_panic(&d.log());
}

/// B065, B068: three times as many clients as sequences, replies of all lengths, a fifth of them left; each
/// reply is its own, and nobody waits for ever.
#[test]
fn every_reply_is_its_own_under_load_with_clients_that_leave() {
    let d = paced(
        "0",
        &[
            ("scheduler.max_running", "8"),
            ("scheduler.prefill_budget", "48"),
        ],
    );
    let prompts: Vec<String> = (0..24)
        .map(|i| format!("{} secret {i}", "shared ".repeat(i % 5 * 20)))
        .collect();
    let alone: Vec<_> = prompts
        .iter()
        .map(|p| whole(&d, p, 200, false).text())
        .collect();
    std::thread::scope(|scope| {
        for (thread, (prompt, text)) in prompts.iter().zip(&alone).enumerate() {
            let d = &d;
            scope.spawn(move || {
                let mut dice = Dice(thread as u64);
                for _ in 0..8 {
                    let max_tokens = 1 + dice.below(200) as u32;
                    let mut client = d.chat(&ask(prompt, max_tokens, dice.below(2) == 0));
                    if dice.below(5) == 0 {
                        let _ = client.head();
                        continue;
                    }
                    let reply = client.response();
                    assert!(reply.complete, "{reply:?}");
                    let said = reply.text();
                    assert!(text.starts_with(&said), "{prompt}: {said}");
                    assert_eq!(said.split_whitespace().count(), max_tokens as usize);
                }
            });
        }
    });
    let stats = d.idle();
    assert!(number(&stats, "/requests/length") > 24, "{stats}");
    assert_no_panic(&d.log());
}
