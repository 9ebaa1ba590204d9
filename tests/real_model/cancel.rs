//! Clients that go away while the real model works for them, and what they leave to those that stay.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::json;

use crate::common::Dice;
use crate::support::{Served, ask_with};

/// Twenty streams are cut at random moments, in the queue, in the prompt and in the reply: all memory comes
/// back, and cells that were used before do not show in the next text.
#[test]
fn cut_streams_leave_nothing_behind() {
    let d = Served::smollm2(&[("scheduler.max_running", "4")]);
    let normal = ask_with("What is the capital of France?", 24, false, json!({}));
    let before = d.text(&normal);
    let mut dice = Dice(8);
    let mut open = Vec::new();
    for i in 0..20 {
        let prompt = format!(
            "{i}: {}",
            "Tell me more about it. ".repeat(dice.below(40) as usize)
        );
        open.push(d.chat(&ask_with(&prompt, 800, true, json!({ "ignore_eos": true }))));
        if open.len() > 6 {
            let at = dice.below(open.len() as u64) as usize;
            let mut leaving = open.swap_remove(at);
            match dice.below(3) {
                0 => {}
                1 => assert_eq!(leaving.head().status, 200),
                _ => drop(leaving.read_text(1 + dice.below(6) as usize)),
            }
        }
    }
    drop(open);
    let stats = d.idle();
    // Reading from one that waits lets those before it end; each of the 21 has ended once.
    let ended = |outcome: &str| stats["requests"][outcome].as_u64().unwrap_or(0);
    assert_eq!(
        ended("cancelled") + ended("length") + ended("stop"),
        21,
        "{stats}"
    );
    assert!(ended("cancelled") >= 10, "{stats}");
    assert_eq!(d.text(&normal), before);
    d.idle();
}

/// Eight clients at a time, 32 requests that share all but their secret, half of them cut at random.
const CLIENTS: u64 = 8;
const REQUESTS: u64 = 32;

fn secret(i: u64) -> String {
    // Far apart, so that a reply that is cut or garbled does not name another's by chance.
    format!("W{:04}", 1000 + (i * 2741) % 8999)
}

/// B065: no reply ever names a secret that another request was told.
#[test]
fn no_secret_of_another_request_is_told() {
    let d = Served::smollm2(&[]);
    let preamble = "You are a careful assistant. You answer in one short sentence and repeat codes exactly as \
                    they were given to you, letter by letter, without changing anything about them. "
        .repeat(2);
    let told = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (d, preamble, told) = (&d, &preamble, &told);
            scope.spawn(move || {
                let mut dice = Dice(client);
                for i in (client..REQUESTS).step_by(CLIENTS as usize) {
                    let own = secret(i);
                    let prompt =
                        format!("{preamble}The secret code is {own}. Repeat the secret code.");
                    let cut = (i / CLIENTS + client).is_multiple_of(2);
                    let mut stream =
                        d.chat(&ask_with(&prompt, 24, true, json!({ "ignore_eos": cut })));
                    let text = if cut {
                        stream.read_text(1 + dice.below(12) as usize)
                    } else {
                        let reply = stream.response();
                        assert!(reply.is_done(), "{reply:?}");
                        reply.text()
                    };
                    told.fetch_add(usize::from(text.contains(&own)), Relaxed);
                    for other in (0..REQUESTS).filter(|other| *other != i) {
                        assert!(
                            !text.contains(&secret(other)),
                            "{i} was told {}: {text}",
                            secret(other)
                        );
                    }
                }
            });
        }
    });
    println!("{told:?} of {REQUESTS} replies told their own secret");
    assert!(
        told.into_inner() >= 8,
        "a model that tells no secret proves nothing"
    );
    let stats = d.idle();
    assert_eq!(stats["requests"]["cancelled"], REQUESTS / 2, "{stats}");
}
