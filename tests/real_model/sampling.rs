//! Sampling parameters as a client sends them.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::common::Response;
use crate::support::{Served, ask_with};

const PROMPT: &str = "Tell me a short story about a fox.";

fn ask(max_tokens: u32, more: Value) -> Value {
    ask_with(PROMPT, max_tokens, false, more)
}

/// B091, B094: every way of saying "the most likely token" says the same.
#[test]
fn all_ways_of_being_greedy_are_one() {
    let d = Served::smollm2(&[]);
    let greedy = d.text(&ask(32, json!({ "temperature": 0 })));
    let raw = |field: &str| serde_json::from_str::<Value>(field).expect("JSON");
    for more in [
        raw(r#"{"temperature": 0.0}"#),
        raw(r#"{"temperature": -0.0}"#),
        raw(r#"{"temperature": 1e-12}"#),
        raw(r#"{"temperature": 1e-45}"#),
        json!({ "temperature": 1, "top_p": 0 }),
        json!({ "temperature": 1, "top_k": 1 }),
        json!({ "temperature": 1, "min_p": 1 }),
        json!({ "temperature": 2, "top_p": 1, "top_k": 1, "seed": 3 }),
    ] {
        assert_eq!(d.text(&ask(32, more.clone())), greedy, "{more}");
    }
    assert_ne!(
        d.text(&ask(
            32,
            json!({ "temperature": 1, "top_p": 1, "min_p": 0, "seed": 1 })
        )),
        greedy
    );
}

/// As the README's Python client asks: with OpenAI's defaults in their place this model rambles.
#[test]
fn a_request_that_leaves_sampling_out_is_answered_to_the_point() {
    let d = Served::smollm2(&[]);
    let question = json!([{ "role": "user", "content": "What is the capital of France?" }]);
    let texts = [1, 2, 3, 4, 5, 6]
        .map(|seed| d.text(&json!({ "messages": question, "max_tokens": 64, "seed": seed })));
    let to_the_point = texts
        .iter()
        .filter(|t| t.contains("capital of France is Paris"));
    assert!(to_the_point.count() >= 5, "{texts:?}");
}

/// B017: a seed is a reply, alone and in a batch; other seeds are other replies; and none of the 64-bit range
/// means "random". The cache's types are those with which the company has no say (see `batching`).
#[test]
fn a_seed_determines_the_text() {
    let d = Served::smollm2(&[("kv.type_k", "q8_0"), ("kv.type_v", "q8_0")]);
    let seeds = [0, 1, 7, -2, 4_294_967_295, i64::MAX, i64::MIN];
    let bodies = seeds.map(|seed| {
        ask(
            24,
            json!({ "temperature": 1, "top_p": 1, "min_p": 0, "seed": seed }),
        )
    });
    let alone = bodies.each_ref().map(|body| d.text(body));
    assert_eq!(
        alone.iter().collect::<HashSet<_>>().len(),
        seeds.len(),
        "{alone:?}"
    );
    for (body, text) in bodies[..2].iter().zip(&alone) {
        assert_eq!(&d.text(body), text);
    }
    // All of them at once, twice over.
    let crowd: Vec<Value> = bodies.iter().chain(&bodies).cloned().collect();
    let together: Vec<String> = d.at_once(&crowd).iter().map(Response::text).collect();
    let same = together
        .iter()
        .zip(alone.iter().chain(&alone))
        .filter(|(a, b)| a == b)
        .count();
    println!("seeded texts of 24 tokens that are the same in a batch of 14: {same} of 14");
    assert!(same >= 13, "{alone:?} and {together:?}");
}

/// B098: without a seed each reply is another one, at the same instant and across a restart.
#[test]
fn without_a_seed_replies_differ() {
    let mut seen = HashSet::new();
    for _ in 0..2 {
        let d = Served::smollm2(&[("kv.cells", "2048")]);
        let bodies = vec![ask(24, json!({ "temperature": 1.5, "top_p": 1, "min_p": 0 })); 8];
        seen.extend(d.at_once(&bodies).iter().map(|r| r.text()));
        let random = ask(24, json!({ "temperature": 1.5, "seed": -1 }));
        assert_ne!(d.text(&random), d.text(&random));
    }
    assert!(seen.len() >= 12, "{seen:?}");
}
