//! Prompts that are longer than a batch, and those that reach the end of the context.

use serde_json::json;

use crate::common::Response;
use crate::support::{Served, ask_with, smollm2};

/// A message whose prompt has exactly so many tokens.
fn message_of(tokens: usize) -> String {
    let least = smollm2().count("a");
    let message = format!("a{}", " a".repeat(tokens - least));
    assert_eq!(smollm2().count(&message), tokens);
    message
}

fn total_tokens(reply: &Response) -> u64 {
    reply.json()["usage"]["total_tokens"]
        .as_u64()
        .expect("a number")
}

/// B052: a prompt of several batches, each of several passes, alone and next to others; and B055: one request
/// can use the whole context, however many sequences there are.
#[test]
fn prompts_longer_than_a_batch_are_fed_in_pieces() {
    let d = Served::smollm2(&[
        ("kv.cells", "8192"),
        ("scheduler.max_running", "8"),
        ("scheduler.prefill_budget", "500"),
        ("runner.n_batch", "512"),
        ("runner.n_ubatch", "128"),
    ]);
    assert_eq!(d.stats()["context"], 8192);
    let long = d.reply(&ask_with(
        &message_of(3000),
        4,
        false,
        json!({ "ignore_eos": true }),
    ));
    assert_eq!(total_tokens(&long), 3004);

    let running = json!({ "ignore_eos": true });
    let mut decoding: Vec<_> = (0..4)
        .map(|i| {
            d.chat(&ask_with(
                &format!("Count from {i}."),
                64,
                true,
                running.clone(),
            ))
        })
        .collect();
    for stream in &mut decoding {
        stream.read_text(2);
    }
    let prompt = message_of(1500);
    let newcomers = vec![ask_with(&prompt, 4, false, running); 4];
    let replies = d.at_once(&newcomers);
    for reply in &replies {
        assert_eq!(total_tokens(reply), 1504);
    }
    for stream in decoding {
        let rest = stream.rest();
        assert!(rest.is_done(), "{rest:?}");
        assert_eq!(rest.finish_reason().as_deref(), Some("length"));
    }
    d.idle();
}

/// B050, B046: the longest prompt leaves room for one token; longer ones are refused before anything is sent.
#[test]
fn the_edge_of_the_context_is_where_it_is_said_to_be() {
    let d = Served::smollm2(&[("kv.cells", "512")]);
    assert_eq!(d.stats()["context"], 512);
    for stream in [false, true] {
        let fits = d.reply(&ask_with(
            &message_of(511),
            8,
            stream,
            json!({ "ignore_eos": true }),
        ));
        assert_eq!(fits.finish_reason().as_deref(), Some("length"), "{fits:?}");
        if !stream {
            assert_eq!(total_tokens(&fits), 512);
        }
        for tokens in [512, 513, 3000] {
            let refused = d
                .chat(&ask_with(&message_of(tokens), 1, stream, json!({})))
                .response();
            assert_eq!(refused.status, 400, "{refused:?}");
            assert_eq!(
                refused.header("content-type"),
                Some("application/json"),
                "{refused:?}"
            );
            assert_eq!(
                refused.error_code().as_deref(),
                Some("context_length_exceeded")
            );
            let message = refused.json()["error"]["message"].to_string();
            for number in [tokens, 511] {
                assert!(message.contains(&number.to_string()), "{message}");
            }
        }
    }
    assert!(!d.text(&ask_with("Say hi.", 4, false, json!({}))).is_empty());
    d.idle();
}

/// B053: whatever a client asks for, a reply ends at the edge of the context, and the next request works.
#[test]
fn max_tokens_ends_at_the_edge_of_the_context() {
    let d = Served::smollm2(&[("kv.cells", "512")]);
    let before = d.text(&ask_with("Say hi.", 8, false, json!({})));
    let endless = "Count upward from 1, never stop.";
    let reply = d.reply(&ask_with(
        endless,
        100_000,
        false,
        json!({ "ignore_eos": true }),
    ));
    assert_eq!(
        reply.finish_reason().as_deref(),
        Some("length"),
        "{reply:?}"
    );
    assert_eq!(total_tokens(&reply), 512, "{reply:?}");
    assert_eq!(d.text(&ask_with("Say hi.", 8, false, json!({}))), before);
    d.idle();
}
