//! A model that can't share prefixes, since it forgets what its sliding window has passed.

use serde_json::json;

use crate::common::Daemon;
use crate::support::{GEMMA, Served, ask_with, gemma, model_file, repository};

fn settings<'a>(template: &'a str, reuse: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("kv.cells", "1024"),
        ("kv.reservation", "paged"),
        ("model.chat_template", template),
        ("prefix.reuse", reuse),
    ]
}

/// "auto" says once that nothing is shared, shares nothing, and the text is right: also that of a prompt longer
/// than the window, which comes again.
#[test]
fn auto_turns_sharing_off_and_says_so() {
    let template = repository("tests/fixtures/question_answer.jinja");
    let template = template.to_str().expect("a path in UTF-8");
    let d = Served::model(GEMMA, &settings(template, "auto"));
    let log = d.log();
    let lines = log
        .lines()
        .filter(|l| l.contains("prefixes are not shared"));
    assert_eq!(lines.count(), 1, "{log}");
    assert_eq!(d.stats()["effective"]["prefix_reuse"], false);

    let background = "Here is some background that you need not read. ".repeat(58);
    let long = format!("{background}\nWhat is the capital of France?");
    assert!(gemma().count(&long) > 530, "{}", gemma().count(&long));
    let line = json!({ "stop": "\n" });
    for (question, answer) in [
        ("What is the capital of France?", " Paris"),
        ("What is the capital of France?", " Paris"),
        ("What colour is the sky?", " Blue"),
        (&long, " Paris"),
        (&long, " Paris"),
    ] {
        let reply = d.reply(&ask_with(question, 16, false, line.clone()));
        assert_eq!((reply.text().as_str(), reply.cached_tokens()), (answer, 0));
    }
    let stats = d.idle();
    for pointer in [
        "/prefix/lookup_tokens",
        "/kv/blocks_cached",
        "/sequences/cached",
    ] {
        assert_eq!(stats.pointer(pointer), Some(&json!(0)), "{stats}");
    }
}

/// What was asked for by name is not dropped in silence.
#[test]
fn on_refuses_to_start_and_names_the_key() {
    let template = repository("tests/fixtures/question_answer.jinja");
    let template = template.to_str().expect("a path in UTF-8");
    let args = ["serve", "--model", &model_file(GEMMA)];
    let mut d = Daemon::start(&args, &settings(template, "on"));
    let status = d.wait();
    let log = d.log();
    assert_eq!(status.code(), Some(69), "{log}");
    let errors = |l: &&str| l.contains("ERROR") && !l.contains("llama.cpp");
    let lines: Vec<&str> = log.lines().filter(errors).collect();
    assert!(
        lines.len() == 1 && lines[0].contains("prefix.reuse"),
        "{log}"
    );
}
