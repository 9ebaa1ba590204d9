//! Greedy text does not depend on the prefix cache, on how memory is reserved or laid out, nor on preemption.
//!
//! The cache's types are those with which rounding does not depend on the company (see `batching`), so that
//! texts can be compared whole; `prefix_logits` compares logits, also with `f16`.

use cadenced::config::KvType;
use cadenced::ids::TokenId;
use serde_json::{Value, json};

use crate::agreement::{NEAR_TIE, best};
use crate::batching::alone;
use crate::common::Response;
use crate::support::{Served, smollm2, turn};

const SYSTEM: &str = "You are a careful assistant. You answer every question in one short plain sentence, you \
                      never make anything up, and you say so when you do not know the answer";
/// Tokens of each reply.
pub const REPLY: u32 = 16;

/// A conversation with a system prompt.
fn conversation(system: &str, question: &str) -> Value {
    json!([{ "role": "system", "content": system }, { "role": "user", "content": question }])
}

fn body(messages: &Value) -> Value {
    json!({ "messages": messages, "max_tokens": REPLY, "temperature": 0, "ignore_eos": true })
}

pub fn encode(messages: &Value) -> Vec<TokenId> {
    smollm2().encode(messages)
}

/// How many tokens two prompts share.
fn shared(a: &Value, b: &Value) -> usize {
    let (a, b) = (encode(a), encode(b));
    a.iter().zip(&b).take_while(|(x, y)| x == y).count()
}

/// A conversation whose prompt is whole blocks, so that one that shares all of it shares a block in part.
pub fn base() -> Value {
    let question = |n| format!("What is the capital of France?{}", " Please.".repeat(n));
    let mut all = (0..32).map(|n| conversation(SYSTEM, &question(n)));
    all.find(|c| encode(c).len().is_multiple_of(16))
        .expect("a length in whole blocks")
}

/// A conversation whose prompt shares its first `n` tokens with that of [`base`] and no more.
pub fn sharing(n: usize) -> Value {
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
pub fn conversations() -> Vec<Value> {
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

/// How sure the model is of each token of a reply alone: the token's text, and its lead over the second best.
type Leads = Vec<(Vec<u8>, f32)>;

fn leads() -> Vec<Leads> {
    let _turn = turn();
    let model = smollm2();
    let mut backend = model.backend(1024, 2, KvType::Q8_0);
    let mut of = |messages: &Value| {
        let alone = alone(&mut backend, encode(messages), REPLY as usize);
        let piece = |token: &TokenId| model.loaded.vocab.piece(*token).to_vec();
        let lead = |logits: &Vec<f32>| best(logits).1;
        let pieces = alone.reply.iter().map(piece);
        pieces.zip(alone.logits.iter().map(lead)).collect()
    };
    conversations().iter().map(&mut of).collect()
}

/// Where others have left, and after a preemption, a sequence gets cells that are not in its order, and is
/// summed up in theirs: where a text differs from that alone, the best token there was a near-tie alone.
#[track_caller]
fn assert_turns_at_near_ties(what: &str, texts: &[String], expected: &[String], leads: &[Leads]) {
    let mut turned = 0;
    for ((text, expected), leads) in texts.iter().zip(expected).zip(leads) {
        if text == expected {
            continue;
        }
        turned += 1;
        let mut said = Vec::new();
        let same = leads.iter().take_while(|(piece, _)| {
            said.extend_from_slice(piece);
            text.as_bytes().starts_with(&said)
        });
        // Bytes don't tell where the other token began: "ise" turns off "is" + "que" at the first of the two.
        let (n, lead_of) = (same.count(), |i: usize| leads[i].1);
        let lead = lead_of(n).min(lead_of(n.saturating_sub(1)));
        println!("{what}: {text:?} turned at a lead of {lead}");
        assert!(lead < NEAR_TIE, "{what}: {text:?} and {expected:?}");
    }
    let all = leads.iter().flatten();
    println!(
        "{what}: {turned} texts of {} turned, at near-ties, of which there were {}",
        texts.len(),
        all.filter(|(_, lead)| *lead < NEAR_TIE).count()
    );
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
    let leads = leads();
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
        let what = format!("{settings:?} in a crowd");
        assert_turns_at_near_ties(&what, &texts(&in_a_crowd(&d)), &expected, &leads);
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
        let what = format!("{more:?} in a crowd");
        assert_turns_at_near_ties(&what, &texts(&in_a_crowd(&d)), &expected, &leads);
        d.idle();
    }
}

/// In a pool for two, with fewer tokens in a batch than llama.cpp has sequence ids, at which it used to abort.
#[test]
fn a_preempted_text_is_the_same() {
    let leads = leads();
    let text = |leads: &Leads| {
        let bytes: Vec<u8> = leads.iter().flat_map(|(piece, _)| piece.clone()).collect();
        String::from_utf8(bytes).expect("whole characters")
    };
    let expected: Vec<String> = leads.iter().map(text).collect();
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
        let what = format!("preempted, reuse {reuse}");
        assert_turns_at_near_ties(&what, &texts(&in_a_crowd(&d)), &expected, &leads);
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
        |messages: &Value| json!({ "messages": messages, "max_tokens": 24, "temperature": 0 });
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
