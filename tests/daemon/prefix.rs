//! Prompts that begin alike: what is computed, what the client is told of it, what the operator sees.

use serde_json::{Value, json};

use crate::common::{Connection, Daemon, Response, ask};
use crate::{ask_with, assert_error, assert_error_event, number, paced, whole};

/// What goes before a user message in the fake's prompt, and after it; four bytes are a token.
const HEAD: usize = r#"[{"role":"user","content":""#.len();
const TAIL: usize = r#""}]"#.len();

/// A message whose prompt has so many tokens; the first `shared` of them (7 or more) are those of every such
/// message, the others those of its `own`.
pub fn message(tokens: usize, shared: usize, own: char) -> String {
    let length = 4 * tokens - HEAD - TAIL;
    let common = (4 * shared - HEAD).min(length);
    let own = own.to_string().repeat(length - common);
    "x".repeat(common) + &own
}

/// A daemon with a prefix cache over paged memory.
fn caching(step_us: &str, settings: &[(&str, &str)]) -> Daemon {
    let mut all = vec![("kv.reservation", "paged"), ("prefix.reuse", "on")];
    all.extend_from_slice(settings);
    paced(step_us, &all)
}

/// A reply with its usage, streamed or not.
fn reply(d: &Daemon, content: &str, max_tokens: u32, stream: bool) -> Response {
    let more = match stream {
        true => json!({ "stream_options": { "include_usage": true } }),
        false => json!({}),
    };
    let response = d
        .chat(&ask_with(content, max_tokens, stream, more))
        .response();
    assert_eq!(response.status, 200, "{response:?}");
    assert!(response.complete, "{response:?}");
    response
}

/// By how much a number of `/stats` has grown.
fn grown(before: &Value, after: &Value, pointer: &str) -> u64 {
    number(after, pointer) - number(before, pointer)
}

/// What each prompt had and what was shared of it is what the account and the metrics say in sum.
fn assert_adds_up(d: &Daemon, before: &Value, replies: &[Response]) {
    let after = d.idle();
    let prompts: u64 = replies
        .iter()
        .map(|r| number(&r.usage(), "/prompt_tokens"))
        .sum();
    let cached: u64 = replies.iter().map(Response::cached_tokens).sum();
    let delta = |pointer| grown(before, &after, pointer);
    assert_eq!(delta("/engine/prefilled_tokens"), prompts - cached);
    assert_eq!(delta("/prefix/lookup_tokens"), prompts, "{after}");
    assert_eq!(delta("/prefix/hit_tokens"), cached, "{after}");
    // In whole blocks, and none is held twice.
    let blocks = number(&after, "/kv/blocks_cached");
    assert_eq!(number(&after, "/prefix/tokens"), 16 * blocks, "{after}");
    for (metric, pointer) in [
        ("prefix_lookup_tokens_total", "/prefix/lookup_tokens"),
        ("prefix_hit_tokens_total", "/prefix/hit_tokens"),
        ("prefix_evictions_total", "/prefix/evictions"),
        ("kv_copies_total", "/kv/copies"),
        ("preemptions_total", "/kv/preemptions"),
        ("prefilled_tokens_total", "/engine/prefilled_tokens"),
        ("kv_blocks_total", "/kv/blocks_total"),
        ("kv_blocks_free", "/kv/blocks_free"),
        ("kv_blocks_cached", "/kv/blocks_cached"),
        ("sequences_free", "/sequences/free"),
        ("sequences_cached", "/sequences/cached"),
    ] {
        let value = d.metric(&format!("cadenced_{metric}"));
        assert_eq!(value, number(&after, pointer) as f64, "{metric}");
    }
}

/// The warm-up is nobody's request: the first client finds the cache as empty as the account.
#[test]
fn the_warm_up_leaves_the_cache_empty() {
    let d = caching("0", &[]);
    let stats = d.idle();
    for pointer in [
        "/kv/blocks_cached",
        "/sequences/cached",
        "/prefix/lookup_tokens",
        "/prefix/hit_tokens",
        "/prefix/tokens",
        "/prefix/nodes",
    ] {
        assert_eq!(number(&stats, pointer), 0, "{pointer}: {stats}");
    }
    assert_eq!(stats["rung"], "rung4-cache", "{stats}");
    assert_eq!(stats["effective"]["prefix_reuse"], true, "{stats}");
}

/// llama.cpp takes no more sequences than a batch has tokens: it would abort.
#[test]
fn there_are_no_more_sequences_than_tokens_in_a_batch() {
    let small = [
        ("runner.n_batch", "128"),
        ("runner.n_ubatch", "128"),
        ("scheduler.prefill_budget", "64"),
    ];
    for (settings, sequences) in [(&small[..], 128), (&[], 256)] {
        let stats = caching("0", settings).idle();
        assert_eq!(number(&stats, "/sequences/total"), sequences, "{stats}");
    }
}

/// "auto" gives way to memory that can't be shared; "on" does not start (see `config`).
#[test]
fn auto_gives_way_to_contiguous_memory() {
    let d = caching(
        "0",
        &[("prefix.reuse", "auto"), ("kv.reservation", "contiguous")],
    );
    let content = message(100, 100, 'x');
    for _ in 0..2 {
        assert_eq!(reply(&d, &content, 3, false).cached_tokens(), 0);
    }
    let stats = d.idle();
    assert_eq!(stats["effective"]["prefix_reuse"], false, "{stats}");
    assert_eq!(stats["rung"], "rung3-continuous", "{stats}");
    assert_eq!(number(&stats, "/prefix/lookup_tokens"), 0, "{stats}");
}

/// Every number of shared tokens: whole blocks of them are not computed again, the client is told so beside
/// the length of its whole prompt, and the text is what it is without a cache.
#[test]
fn usage_counts_the_whole_prompt_and_what_was_shared_of_it() {
    const TOKENS: usize = 80;
    let d = caching("0", &[]);
    let without = paced("0", &[]);
    let before = d.idle();
    let first = message(TOKENS, TOKENS, 'x');
    let mut replies = vec![reply(&d, &first, 3, false)];
    assert_eq!(replies[0].cached_tokens(), 0);
    for shared in 7..=TOKENS {
        // A letter of its own that needs no escape.
        let own = (b'!'..=b'~').filter(|c| !b"\"\\x".contains(c)).nth(shared);
        let content = message(TOKENS, shared, own.map_or('x', char::from));
        let reply = reply(&d, &content, 3, shared % 2 == 0);
        let usage = reply.usage();
        assert_eq!(usage["completion_tokens"], 3, "{usage}");
        let prompt = number(&usage, "/prompt_tokens");
        assert_eq!(usage["total_tokens"], prompt + 3, "{usage}");
        assert_eq!(prompt, TOKENS as u64, "{usage}");
        // Of what is cached wholly the last token is computed.
        let expected = if shared == TOKENS {
            79
        } else {
            shared / 16 * 16
        };
        assert_eq!(reply.cached_tokens(), expected as u64, "{shared} shared");
        assert_eq!(reply.text(), whole(&without, &content, 3, false).text());
        replies.push(reply);
    }
    // The fewest that two prompts of this format can share are the two before the role.
    let system = json!({
        "messages": [{ "role": "system", "content": first }], "max_tokens": 3, "temperature": 0,
    });
    replies.push(d.chat(&system).response());
    assert_eq!(replies.last().map(Response::cached_tokens), Some(0));
    assert_adds_up(&d, &before, &replies);
    assert!(
        number(&d.stats(), "/kv/copies") > 0,
        "a block was shared in part"
    );
}

/// A cold burst of one prompt computes it once: the others wait for it and then share it.
#[test]
fn a_cold_burst_of_one_prompt_computes_it_once() {
    let d = caching("20000", &[("scheduler.prefill_budget", "64")]);
    let before = d.idle();
    let body = ask(&message(200, 200, 'x'), 5, false);
    let clients: Vec<_> = (0..8).map(|_| d.chat(&body)).collect();
    let replies: Vec<_> = clients.into_iter().map(Connection::response).collect();
    let mut cached: Vec<u64> = replies.iter().map(Response::cached_tokens).collect();
    cached.sort_unstable();
    assert_eq!(cached, [0, 192, 192, 192, 192, 192, 192, 192]);
    assert!(replies.iter().all(|r| r.text() == replies[0].text()));
    assert_adds_up(&d, &before, &replies);
}

/// A cancelled request leaves what it has computed to the next one.
#[test]
fn what_a_client_that_left_has_computed_is_shared() {
    let d = caching("1000", &[]);
    let content = message(100, 100, 'x');
    let mut leaves = d.chat(&ask(&content, 4000, true));
    leaves.read_text(1);
    drop(leaves);
    d.idle();
    assert_eq!(reply(&d, &content, 3, false).cached_tokens(), 96);
    d.idle();
}

/// One that shares its beginning with all the others is refused by the model: none of them notices.
fn fails_alone(at_token: &str) {
    let d = caching(
        "1000",
        &[
            ("fake.fault", "invalid"),
            ("fake.fault_marker", "POISON"),
            ("fake.fault_at_token", at_token),
            ("scheduler.prefill_budget", "32"),
        ],
    );
    let without = paced("0", &[]);
    let prompts: Vec<String> = (0..6)
        .map(|i| message(60 + 9 * i, 40 + i, char::from(b'a' + i as u8)))
        .collect();
    let texts: Vec<_> = prompts
        .iter()
        .map(|p| whole(&without, p, 60, false).text())
        .collect();
    let poison = message(60, 60, 'x') + "POISON";
    for _ in 0..2 {
        let clients: Vec<_> = prompts.iter().map(|p| d.chat(&ask(p, 60, true))).collect();
        let poisoned = [true, false].map(|stream| d.chat(&ask(&poison, 60, stream)));
        let [stream, body] = poisoned.map(Connection::response);
        assert_error_event(&stream, "engine_error");
        assert_error(&body, 500, "engine_error");
        for (client, text) in clients.into_iter().zip(&texts) {
            assert_eq!(&client.response().text(), text);
        }
    }
    let stats = d.idle();
    assert_eq!(number(&stats, "/requests/failed"), 4, "{stats}");
    assert!(number(&stats, "/prefix/hit_tokens") > 0, "{stats}");
    // On what the failed ones have left behind, too.
    for (prompt, text) in prompts.iter().zip(&texts) {
        let reply = reply(&d, prompt, 60, false);
        assert!(reply.cached_tokens() >= 32, "{reply:?}");
        assert_eq!(&reply.text(), text);
    }
    // The third block is theirs alone.
    let content = message(90, 55, 'q');
    let reply = reply(&d, &content, 60, false);
    assert_eq!(reply.cached_tokens(), 48);
    assert_eq!(reply.text(), whole(&without, &content, 60, false).text());
    d.idle();
}

#[test]
fn a_failed_reply_leaves_what_others_share_whole() {
    fails_alone("7");
}

#[test]
fn a_failure_beside_prompts_that_are_computed_leaves_what_they_share_whole() {
    fails_alone("0");
}
