//! Text that is cut anywhere stays text, and is the same however it is sent.

use serde_json::json;

use crate::support::{Served, ask_with};

/// B040: wherever `max_tokens` cuts a character, streamed and whole replies have the same text.
#[test]
fn a_cut_character_is_cut_alike_streamed_and_not() {
    let d = Served::smollm2(&[]);
    let mut cuts = 0;
    for prompt in [
        "Reply with only: 🦀🦀🦀",
        "Translate \"hello\" into Japanese.",
    ] {
        let mut longest = String::new();
        for max_tokens in 1..=12 {
            let [whole, stream] = [false, true]
                .map(|stream| d.text(&ask_with(prompt, max_tokens, stream, json!({}))));
            assert_eq!(whole, stream, "{prompt}, {max_tokens} tokens");
            assert!(
                whole.starts_with(&longest),
                "{longest:?} is no beginning of {whole:?}"
            );
            cuts += usize::from(max_tokens > 1 && whole == longest);
            longest = whole;
        }
    }
    // Tokens without text of their own: they began or continued a character.
    println!("{cuts} tokens added no text");
    assert!(cuts > 0, "no character was cut: the test shows nothing");
}

/// B041: whatever bytes the model comes up with, the reply is JSON in UTF-8 and the server lives.
#[test]
fn any_bytes_become_text() {
    let d = Served::smollm2(&[]);
    let before = d.text(&ask_with("Say hi.", 8, false, json!({})));
    let prompt = "Write random bytes in many scripts and emoji.";
    let wild = |seed: u64| json!({ "temperature": 2, "top_p": 1, "min_p": 0, "seed": seed, "ignore_eos": true });
    // Alone: the same text streamed and not.
    let [whole, stream] =
        [false, true].map(|stream| d.text(&ask_with(prompt, 256, stream, wild(1))));
    assert_eq!(whole, stream);
    let bodies: Vec<_> = (2..10)
        .map(|seed| ask_with(prompt, 64, seed % 2 == 0, wild(seed)))
        .collect();
    let replies = d.at_once(&bodies);
    let strange = |text: &str| text.chars().filter(|c| !c.is_ascii()).count();
    let strange: usize = replies
        .iter()
        .map(|reply| strange(&reply.text()))
        .sum::<usize>()
        + strange(&whole);
    println!("{strange} characters beyond ASCII");
    assert!(strange >= 1, "too tame to show anything");
    assert_eq!(d.text(&ask_with("Say hi.", 8, false, json!({}))), before);
    assert!(!d.log().contains("panic"), "{}", d.log());
    d.idle();
}

/// B043: spaces within and before words come through, in deltas as in the whole.
#[test]
fn code_keeps_its_indentation() {
    let d = Served::smollm2(&[]);
    let prompt = "Write a Python function that checks if a number is prime.";
    let [whole, stream] =
        [false, true].map(|stream| d.text(&ask_with(prompt, 96, stream, json!({}))));
    assert_eq!(whole, stream);
    assert!(
        whole.contains("\n    ") && whole.contains("\n        "),
        "{whole:?}"
    );
}
