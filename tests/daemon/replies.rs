//! What ends a reply, and that it is the same reply streamed and not.

use serde_json::{Value, json};

use crate::common::{Daemon, Response, ask};
use crate::{ask_with, number, paced, whole};

/// Replies that the model itself ends after `n` words.
pub fn talks(n: &str, settings: &[(&str, &str)]) -> Daemon {
    let mut all = vec![("fake.length_min", n), ("fake.length_max", n)];
    all.extend_from_slice(settings);
    paced("0", &all)
}

#[track_caller]
pub fn assert_same_reply(streamed: &Response, plain: &Response) {
    assert!(streamed.is_done() && plain.complete);
    assert_eq!(streamed.text(), plain.text());
    assert_eq!(streamed.finish_reason(), plain.finish_reason());
}

/// B037: the reason is the true one, in both forms; the model's end as the last token allowed is its end.
#[test]
fn the_reason_says_what_ended_the_reply() {
    // Ten words and an end: eleven tokens.
    let d = talks("10", &[]);
    for (max_tokens, reason, tokens) in [
        (9, "length", 9),
        (10, "length", 10),
        (11, "stop", 11),
        (500, "stop", 11),
    ] {
        let streamed = whole(&d, "reason", max_tokens, true);
        let plain = whole(&d, "reason", max_tokens, false);
        assert_same_reply(&streamed, &plain);
        assert_eq!(
            plain.finish_reason().as_deref(),
            Some(reason),
            "{max_tokens}"
        );
        assert_eq!(number(&plain.json(), "/usage/completion_tokens"), tokens);
        assert_eq!(
            plain.text().split_whitespace().count(),
            tokens.min(10) as usize
        );
    }
    // Told to go on past its end, it does, and says nothing of the end.
    let body = ask_with("reason", 15, false, json!({ "ignore_eos": true }));
    let plain = d.chat(&body).response();
    assert_eq!(plain.finish_reason().as_deref(), Some("length"));
    assert!(!plain.text().contains("<|"), "{plain:?}");
}

/// The newer name of the limit wins; without any it is the server's; beyond the server's it is the server's.
#[test]
fn the_length_limit_is_the_newer_name_then_the_older_then_the_default_up_to_the_ceiling() {
    let d = paced(
        "0",
        &[
            ("limits.default_max_tokens", "20"),
            ("limits.max_output_tokens", "30"),
        ],
    );
    let tokens = |more: Value| {
        let mut body = ask("limit", 1, false);
        body.as_object_mut().unwrap().remove("max_tokens");
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let reply = d.chat(&body).response();
        number(&reply.json(), "/usage/completion_tokens")
    };
    assert_eq!(tokens(json!({})), 20);
    assert_eq!(tokens(json!({ "max_tokens": 5 })), 5);
    assert_eq!(tokens(json!({ "max_completion_tokens": 6 })), 6);
    assert_eq!(
        tokens(json!({ "max_completion_tokens": 6, "max_tokens": 5 })),
        6
    );
    assert_eq!(tokens(json!({ "max_tokens": 100_000 })), 30);
    assert_eq!(tokens(json!({ "max_tokens": null })), 20);
}

/// Stop strings within a word, over several words and at the very end; what follows them is never sent.
#[test]
fn stop_strings_cut_the_same_text_streamed_and_not() {
    let d = paced("0", &[]);
    let text = whole(&d, "stops", 40, false).text();
    let words: Vec<&str> = text.split(' ').skip(1).collect();
    let stops = [
        words[5].to_owned(),
        words[5][1..].to_owned(),
        format!("{} {}", words[7], words[8]),
        format!("{} {}", &words[9][2..], &words[10][..2]),
        words[39].to_owned(),
    ];
    for stop in stops {
        for listed in [json!(stop), json!([stop, "not in it"])] {
            let more = json!({ "stop": listed });
            let streamed = d
                .chat(&ask_with("stops", 40, true, more.clone()))
                .response();
            let plain = d.chat(&ask_with("stops", 40, false, more)).response();
            assert_same_reply(&streamed, &plain);
            let before = &text[..text.find(&stop).unwrap()];
            assert_eq!(plain.text(), before, "stop {stop:?}");
            assert_eq!(plain.finish_reason().as_deref(), Some("stop"));
        }
    }
    let held_to_the_end = d.chat(&ask_with(
        "stops",
        40,
        true,
        json!({ "stop": format!("{} and", words[39]) }),
    ));
    assert_eq!(
        held_to_the_end.response().text(),
        text,
        "what could have become a stop string is sent"
    );
}
