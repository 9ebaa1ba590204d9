//! Clients that others wrote: the `openai` package with nothing but its base URL changed, and curl.

use std::process::{Command, Output};

use serde_json::Value;

use crate::common::Daemon;
use crate::common::calibrated::{CAREFUL, Calibrated};
use crate::support::{Served, repository, turn};

/// Runs a script of `tests/clients` against a daemon.
#[track_caller]
fn python(script: &str, daemon: &Daemon) {
    let python = repository(".venv/bin/python");
    assert!(
        python.exists(),
        "{} is missing: run `make test`",
        python.display()
    );
    let mut command = Command::new(python);
    command.arg(repository("tests/clients").join(script));
    command.arg(format!("http://{}", daemon.addr));
    // Nothing of the caller's that these clients read.
    for name in [
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_ORG_ID",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ] {
        command.env_remove(name);
    }
    let output = command.output().expect("python runs");
    assert!(
        output.status.success(),
        "{script}\n{}\n{}",
        text(&output.stderr),
        daemon.log()
    );
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn curl(args: &[&str]) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new("curl")
        .args(args)
        .output()
        .expect("curl is installed");
    assert!(status.success(), "{args:?}: {}", text(&stderr));
    text(&stdout)
}

/// Whole, streamed and asynchronous replies, usage, the list of models, errors, and a loop that is left early.
#[test]
fn the_openai_package_talks_to_the_real_model() {
    let d = Served::smollm2(&[]);
    python("openai_stream.py", &d);
    let stats = d.idle();
    assert_eq!(stats["requests"]["cancelled"], 2, "{stats}");
}

/// A full server, a decode that fails in mid-stream, and a stream that is dropped, with room for one request.
#[test]
fn the_openai_package_sees_failures_as_failures() {
    let d = Served::fake(&[
        ("limits.requests", "1"),
        ("fake.fault_marker", "FAULT"),
        ("fake.fault", "invalid"),
        ("fake.fault_at_token", "5"),
        ("fake.step_us", "2000"),
        ("fake.prefill_token_us", "0"),
        ("fake.decode_seq_us", "0"),
        ("fake.length_min", "100000"),
        ("fake.length_max", "100000"),
    ]);
    python("openai_failures.py", &d);
    d.idle();
}

/// What admission adds to replies harms no client: receipts in streams and headers, and typed refusals.
#[test]
fn the_openai_package_tolerates_receipts() {
    let calibrated = Calibrated::new(CAREFUL, &[]);
    let _turn = turn();
    let d = calibrated.start();
    python("openai_receipt.py", &d);
    d.idle();
}

/// The two calls of the README.
#[test]
fn curl_gets_a_reply_streamed_and_not() {
    let d = Served::smollm2(&[]);
    let url = format!("http://{}/v1/chat/completions", d.addr);
    let json = "Content-Type: application/json";
    let whole = curl(&[
        "-sS",
        &url,
        "-H",
        json,
        "-d",
        r#"{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}"#,
    ]);
    let whole: Value = serde_json::from_str(&whole).expect("JSON");
    let whole = whole["choices"][0]["message"]["content"]
        .as_str()
        .expect("a reply");
    assert!(whole.contains("Paris"), "{whole}");

    let stream = curl(&[
        "-sSN",
        &url,
        "-H",
        json,
        "-d",
        r#"{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0,
            "stream": true}"#,
    ]);
    assert!(stream.ends_with("data: [DONE]\n\n"), "{stream}");
    let events = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let chunks = events.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let deltas = chunks.filter_map(|c| {
        c["choices"][0]["delta"]["content"]
            .as_str()
            .map(str::to_owned)
    });
    assert_eq!(deltas.collect::<String>(), whole);
}
