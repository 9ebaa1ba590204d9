//! Greedy text does not depend on the prefix cache, on how memory is reserved or laid out, nor on preemption.
//!
//! The cache's types are those with which rounding does not depend on the company (see `batching`), so that
//! texts can be compared whole; with `f16` the logits are compared, and near-ties counted.

use cadenced::config::{KvLayout, KvType};
use cadenced::ids::{SeqId, TokenId};
use cadenced::model::ModelBackend as _;
use serde_json::{Value, json};

use crate::agreement::{AGREEMENT, AGREEMENT_OF_FEW, Tally};
use crate::batching::{alone, feed};
use crate::common::Response;
use crate::support::{Served, smollm2, turn};

const SYSTEM: &str = "You are a careful assistant. You answer every question in one short plain sentence, you \
                      never make anything up, and you say so when you do not know the answer";
/// Tokens of each reply.
const REPLY: u32 = 24;

/// A conversation with a system prompt.
fn conversation(system: &str, question: &str) -> Value {
    json!([{ "role": "system", "content": system }, { "role": "user", "content": question }])
}

fn body(messages: &Value) -> Value {
    json!({ "messages": messages, "max_tokens": REPLY, "temperature": 0, "ignore_eos": true })
}

fn encode(messages: &Value) -> Vec<TokenId> {
    smollm2().encode(messages)
}

/// How many tokens two prompts share.
fn shared(a: &Value, b: &Value) -> usize {
    let (a, b) = (encode(a), encode(b));
    a.iter().zip(&b).take_while(|(x, y)| x == y).count()
}

/// A conversation whose prompt is whole blocks, so that one that shares all of it shares a block in part.
fn base() -> Value {
    let question = |n| format!("What is the capital of France?{}", " Please.".repeat(n));
    let mut all = (0..32).map(|n| conversation(SYSTEM, &question(n)));
    all.find(|c| encode(c).len().is_multiple_of(16))
        .expect("a length in whole blocks")
}

/// A conversation whose prompt shares its first `n` tokens with that of [`base`] and no more.
fn sharing(n: usize) -> Value {
    let words: Vec<&str> = SYSTEM.split(' ').collect();
    let cut = |at: usize| {
        let system = format!("{} Talk like an old sailor.", words[..at].join(" "));
        conversation(&system, "What is the capital of France?")
    };
    let mut all = (0..words.len()).map(cut);
    all.find(|c| shared(c, &base()) == n)
        .unwrap_or_else(|| panic!("no prompt that shares {n} tokens"))
}

/// Those that are compared: they share three tokens with the first (which the template always writes), 15, 16
/// and 17, all; and the system prompt, from another user.
fn conversations() -> Vec<Value> {
    let mut all = vec![base()];
    all.extend([3, 15, 16, 17].map(sharing));
    all.push(base());
    all.push(conversation(SYSTEM, "Who wrote Hamlet?"));
    all
}

fn served(more: &[(&str, &str)]) -> Served {
    let mut all = vec![
        ("kv.type_k", "q8_0"),
        ("kv.type_v", "q8_0"),
        ("limits.max_output_tokens", "256"),
        ("limits.default_max_tokens", "256"),
    ];
    all.extend_from_slice(more);
    Served::smollm2(&all)
}

/// Replies one after another.
fn one_by_one(d: &Served) -> Vec<Response> {
    conversations().iter().map(|c| d.reply(&body(c))).collect()
}

/// Replies at once, beside others.
fn in_a_crowd(d: &Served) -> Vec<Response> {
    let own = conversations();
    let others = [
        "List five fruits.",
        "Why is the sky blue?",
        "Name three rivers.",
    ];
    let mut all: Vec<Value> = own.iter().map(body).collect();
    all.extend(others.map(|o| body(&conversation("Be brief.", o))));
    let mut replies = d.at_once(&all);
    replies.truncate(own.len());
    replies
}

fn texts(replies: &[Response]) -> Vec<String> {
    replies.iter().map(Response::text).collect()
}

fn cached(replies: &[Response]) -> Vec<u64> {
    replies.iter().map(Response::cached_tokens).collect()
}

#[test]
fn text_is_the_same_with_and_without_the_cache_in_any_company_and_memory() {
    let expected = {
        let d = served(&[]);
        let replies = one_by_one(&d);
        assert!(replies[0].text().contains("Paris"), "{replies:?}");
        assert_eq!(cached(&replies), [0; 7]);
        texts(&replies)
    };
    let all = encode(&base()).len() as u64;
    let system = shared(&base(), &conversations()[6]) as u64 / 16 * 16;
    println!("{all} tokens, {system} of them the system prompt's");

    for more in [
        &[("kv.reservation", "paged")][..],
        &[("kv.reservation", "request")],
        &[
            ("kv.layout", "streams"),
            ("kv.cells", "8192"),
            ("scheduler.max_running", "10"),
        ],
    ] {
        let mut settings = vec![("prefix.reuse", "on")];
        settings.extend_from_slice(more);
        let d = served(&settings);
        let cold = one_by_one(&d);
        assert_eq!(texts(&cold), expected, "cold, {more:?}");
        assert_eq!(
            cached(&cold),
            [0, 0, 0, 16, 16, all - 1, system],
            "{more:?}"
        );
        let warm = one_by_one(&d);
        assert_eq!(texts(&warm), expected, "warm, {more:?}");
        // Of their own whole blocks, all but the last token.
        let own = |c: &Value| (encode(c).len() / 16 * 16).min(encode(c).len() - 1) as u64;
        let all_own: Vec<u64> = conversations().iter().map(own).collect();
        assert_eq!(cached(&warm), all_own, "{more:?}");
        assert_eq!(texts(&in_a_crowd(&d)), expected, "in a crowd, {more:?}");
        d.idle();
    }
    for more in [
        &[("kv.reservation", "contiguous")][..],
        &[("kv.reservation", "paged")],
        &[
            ("kv.layout", "streams"),
            ("kv.cells", "8192"),
            ("scheduler.max_running", "10"),
        ],
    ] {
        let d = served(more);
        assert_eq!(texts(&in_a_crowd(&d)), expected, "in a crowd, {more:?}");
        d.idle();
    }
    for reuse in ["off", "on"] {
        let d = served(&[
            ("prefix.reuse", reuse),
            ("kv.reservation", "paged"),
            ("kv.reserve_growth", "false"),
            ("kv.cells", "256"),
            ("runner.n_batch", "128"),
            ("runner.n_ubatch", "128"),
            ("scheduler.prefill_budget", "64"),
        ]);
        assert_eq!(texts(&in_a_crowd(&d)), expected, "preempted, reuse {reuse}");
        let preemptions = d.idle()["kv"]["preemptions"].clone();
        println!("reuse {reuse}: {preemptions} preemptions");
        assert_ne!(preemptions, 0, "reuse {reuse}");
    }
}

/// The reply's own tokens are found by the next turn, and the text is that of the whole conversation computed
/// anew.
#[test]
fn the_next_turn_finds_the_reply_too() {
    let first_turn = conversation(
        "You are a teacher.",
        "Explain in three sentences why the sky is blue.",
    );
    let prompt = encode(&first_turn).len() as u64;
    let ask =
        |messages: &Value| json!({ "messages": messages, "max_tokens": REPLY, "temperature": 0 });
    let talk = |reuse| {
        let d = served(&[("prefix.reuse", reuse), ("kv.reservation", "paged")]);
        let first = d.reply(&ask(&first_turn));
        let mut messages = first_turn.clone();
        let turns = messages.as_array_mut().expect("messages");
        turns.push(json!({ "role": "assistant", "content": first.text() }));
        turns.push(json!({ "role": "user", "content": "And why is it red at night?" }));
        let second = d.reply(&ask(&messages));
        d.idle();
        let generated = first.usage()["completion_tokens"].as_u64();
        let computed = prompt + generated.expect("a number") - 1;
        (
            first.text(),
            second.text(),
            computed,
            second.cached_tokens(),
        )
    };
    let (without, with) = (talk("off"), talk("on"));
    assert_eq!((&with.0, &with.1), (&without.0, &without.1));
    // Of a reply all but the last token is computed.
    assert!(with.2 / 16 * 16 > prompt, "{with:?}");
    assert_eq!((without.3, with.3), (0, with.2 / 16 * 16));
}

/// A sequence that begins with another's cells has the logits of one that computed them itself.
#[test]
fn a_shared_beginning_is_the_same_beginning() {
    let _turn = turn();
    let model = smollm2();
    for layout in [KvLayout::Unified, KvLayout::Streams] {
        for (kv_type, agreement) in [(KvType::F16, AGREEMENT_OF_FEW), (KvType::Q8_0, AGREEMENT)] {
            let mut backend = model.backend_in(layout, 1024, 2, kv_type);
            let mut tally = Tally::default();
            let donor = encode(&base());
            for (n, messages) in [15, 16, 17]
                .map(|n| (n, sharing(n)))
                .into_iter()
                .chain([(donor.len() - 1, base())])
            {
                let expected = alone(&mut backend, encode(&messages), 8);
                feed(&mut backend, SeqId(0), 0, &donor, 512);
                backend.copy(SeqId(0), SeqId(1), n as u32);
                // The donor goes on meanwhile.
                feed(&mut backend, SeqId(0), donor.len(), &expected.reply[..1], 1);
                feed(&mut backend, SeqId(1), n, &expected.prompt[n..], 512);
                for (i, logits) in expected.logits.iter().enumerate() {
                    tally.take(logits, backend.logits(0));
                    let at = expected.prompt.len() + i;
                    feed(&mut backend, SeqId(1), at, &expected.reply[i..=i], 1);
                }
                for seq in [0, 1] {
                    backend.remove(SeqId(seq), 0);
                }
            }
            let what = format!("smollm2, {kv_type:?}, {layout:?}, a shared beginning");
            tally.check(&what, agreement);
        }
    }
}
