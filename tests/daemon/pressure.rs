//! A pool too small for those that run: pressure costs time, never a reply.

use crate::common::{Daemon, ask};
use crate::prefix::message;
use crate::{Dice, assert_error, assert_no_panic, number, paced, whole};

const CLIENTS: u64 = 10;
const REQUESTS: u64 = 6;

/// A quarter of what eight that run would like to have.
fn small(settings: &[(&str, &str)]) -> Daemon {
    let mut all = vec![
        ("kv.cells", "1024"),
        ("kv.reservation", "paged"),
        ("kv.reserve_growth", "false"),
        ("scheduler.max_running", "8"),
        ("scheduler.prefill_budget", "48"),
    ];
    all.extend_from_slice(settings);
    paced("200", &all)
}

/// Prompts that share 20 tokens and more, or nothing that is worth it.
fn prompts() -> Vec<String> {
    let own = |i: usize| char::from(b'a' + i as u8);
    (0..CLIENTS as usize)
        .map(|i| message(40 + 7 * i, [7, 20, 33, 40][i % 4], own(i)))
        .collect()
}

/// Each prompt's whole reply on a daemon where nothing is shared and nothing is short.
fn alone(prompts: &[String]) -> Vec<String> {
    let d = paced("0", &[]);
    let text = |p: &String| whole(&d, p, 300, false).text();
    prompts.iter().map(text).collect()
}

/// Clients that ask again and again for one prompt each, and leave at moments that the dice choose; every
/// reply that is finished is what it is alone. Gives the stats at rest.
fn under_load(d: &Daemon) -> serde_json::Value {
    let prompts = prompts();
    let texts = alone(&prompts);
    let before = d.idle();
    std::thread::scope(|scope| {
        for (thread, (prompt, text)) in prompts.iter().zip(&texts).enumerate() {
            scope.spawn(move || {
                let mut dice = Dice(thread as u64);
                for _ in 0..REQUESTS {
                    let max_tokens = 100 + dice.below(200) as u32;
                    let mut client = d.chat(&ask(prompt, max_tokens, true));
                    if dice.below(4) == 0 {
                        client.read_text(1 + dice.below(90) as usize);
                        continue;
                    }
                    let reply = client.response();
                    assert!(reply.is_done(), "{reply:?}");
                    let said = reply.text();
                    assert!(text.starts_with(&said), "{prompt}: {said}");
                    assert_eq!(said.split_whitespace().count(), max_tokens as usize);
                }
            });
        }
    });
    let stats = d.idle();
    let ended = |outcome: &str| {
        let pointer = format!("/requests/{outcome}");
        number(&stats, &pointer) - number(&before, &pointer)
    };
    assert_eq!(
        ended("length") + ended("cancelled"),
        CLIENTS * REQUESTS,
        "{stats}"
    );
    assert!(ended("cancelled") > 0, "{stats}");
    assert_eq!(
        d.metric("cadenced_preemptions_total"),
        number(&stats, "/kv/preemptions") as f64
    );
    // And on what all that has left behind.
    for (prompt, text) in prompts.iter().zip(&texts) {
        assert_eq!(&whole(d, prompt, 300, true).text(), text);
    }
    assert_no_panic(&d.log());
    d.idle()
}

#[test]
fn replies_are_right_and_memory_comes_back_when_sharers_are_preempted() {
    let d = small(&[("prefix.reuse", "on")]);
    let stats = under_load(&d);
    for pointer in ["/kv/preemptions", "/prefix/evictions", "/prefix/hit_tokens"] {
        assert!(number(&stats, pointer) > 0, "{pointer}: {stats}");
    }
    let blocks = number(&stats, "/kv/blocks_cached");
    assert_eq!(number(&stats, "/prefix/tokens"), 16 * blocks, "{stats}");
}

#[test]
fn replies_are_right_and_memory_comes_back_when_nothing_is_shared() {
    let d = small(&[]);
    let stats = under_load(&d);
    assert!(number(&stats, "/kv/preemptions") > 0, "{stats}");
    assert_eq!(stats["kv"]["blocks_free"], stats["kv"]["blocks_total"]);
}

#[test]
fn with_growth_reserved_nobody_is_preempted() {
    let d = small(&[("prefix.reuse", "on"), ("kv.reserve_growth", "true")]);
    let stats = under_load(&d);
    assert_eq!(number(&stats, "/kv/preemptions"), 0, "{stats}");
}

/// Two seats: four slabs of the fake's whole context, 512 MiB as it counts, if nothing is shared.
#[test]
fn an_open_layout_follows_the_memory_and_stats_say_which() {
    let open = [
        ("kv.cells", "auto"),
        ("kv.utilisation", "1"),
        ("kv.headroom_mib", "0"),
        ("scheduler.max_running", "2"),
    ];
    // A request may use its slab, or the whole pool.
    let (slabs, pool) = (("streams", 4 * 8192, 8192), ("unified", 2 * 8192, 2 * 8192));
    for (more, (layout, cells, context)) in [
        (&[][..], slabs),
        (&[("kv.budget_mib", "511")], pool),
        (&[("prefix.reuse", "on")], pool),
        (&[("kv.layout", "unified")], pool),
    ] {
        let d = paced("0", &[&open[..], more].concat());
        let stats = d.stats();
        assert_eq!(stats["effective"]["kv_layout"], layout, "{more:?}: {stats}");
        assert_eq!(stats["kv"]["plan"]["cells"], cells, "{more:?}: {stats}");
        assert_eq!(stats["context"], context, "{more:?}: {stats}");
        whole(&d, "it serves", 3, true);
    }
}

/// A slab for each sequence: the same replies, and books that say what is held.
#[test]
fn streams_give_the_same_replies_and_honest_stats() {
    let d = small(&[
        ("prefix.reuse", "on"),
        ("kv.layout", "streams"),
        ("kv.cells", "16384"),
    ]);
    let stats = d.idle();
    assert_eq!(stats["effective"]["kv_layout"], "streams", "{stats}");
    assert_eq!(stats["context"], 1024, "two streams for each seat");
    let totals = ["/kv/blocks_total", "/sequences/total"].map(|p| number(&stats, p));
    assert_eq!(totals, [1024, 16], "{stats}");
    let held = |stats: &serde_json::Value| {
        [
            "/kv/blocks_free",
            "/kv/blocks_cached",
            "/sequences/free",
            "/sequences/cached",
        ]
        .map(|p| number(stats, p))
    };

    // Whatever a sequence holds, its slab is taken: while it runs, and while it is cached.
    let content = message(100, 100, 'x');
    let mut runs = d.chat(&ask(&content, 900, true));
    runs.read_text(1);
    assert_eq!(held(&d.stats()), [960, 0, 15, 0]);
    assert!(runs.rest().is_done());
    assert_eq!(held(&d.idle()), [960, 64, 15, 1]);
    let shares = whole(&d, &message(100, 50, 'y'), 3, false);
    assert_eq!(shares.cached_tokens(), 48);
    assert_eq!(held(&d.idle()), [896, 128, 14, 2]);
    let too_long = d.chat(&ask(&message(1024, 7, 'z'), 3, false)).response();
    assert_error(&too_long, 400, "context_length_exceeded");

    let stats = under_load(&d);
    assert_eq!(number(&stats, "/kv/preemptions"), 0, "{stats}");
    assert!(number(&stats, "/prefix/hit_tokens") > 48, "{stats}");
    // Twenty more prompts than there are streams: the cache makes room.
    for i in 0..20 {
        whole(&d, &message(30, 7, char::from(b'a' + i)), 2, false);
    }
    let stats = d.idle();
    assert!(number(&stats, "/prefix/evictions") > 0, "{stats}");
    let share = stats["kv"]["fragmentation"].as_f64();
    assert!(share.is_some_and(|s| (0.5..1.0).contains(&s)), "{stats}");
}
