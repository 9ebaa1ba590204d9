//! The gate as CI runs it: open as committed, shut by a change for the worse, and the same whenever it is run.

use std::process::{Command, Output};

fn gate(args: &[&str]) -> Output {
    let bench = Command::new(env!("CARGO_BIN_EXE_cadenced-bench"))
        .arg("gate")
        .args(args)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        // The environment has no say.
        .env("CADENCED__SCHEDULER__MAX_RUNNING", "2")
        .output();
    bench.unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What `gate` says with these arguments; it exits with `code` and says `word` among other things.
fn says(args: &[&str], code: i32, word: &str) -> String {
    let output = gate(args);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(word), "{text}");
    text
}

#[test]
fn the_committed_budget_is_kept_twice_with_the_same_bytes() {
    let run = || says(&[], 0, "\nwithin the budget");
    let seconds = |line: &&str| line.starts_with("gate: ");
    let [first, second] = [run(), run()].map(|text| {
        text.lines()
            .filter(|l| !seconds(l))
            .collect::<Vec<_>>()
            .join("\n")
    });
    assert_eq!(first, second);
}

#[test]
fn a_batch_of_one_shuts_it() {
    let args = ["--set", "scheduler.max_running=1"];
    let text = says(&args, 1, "REGRESSED  rung4-cache TTFT p99");
    assert!(
        text.contains("REGRESSED  rung5-conformal TTFT p99"),
        "{text}"
    );
}

/// A pool that most prompts do not fit into: they are turned away as invalid, and what is left is no load.
#[test]
fn what_says_nothing_is_unsound() {
    says(&["--set", "kv.cells=512"], 2, "measurement unsound");
}

/// 1 was what these ended with, as a regression does.
#[test]
fn what_cannot_be_judged_is_no_regression() {
    says(
        &["--budget", "/nowhere/gate.json"],
        2,
        "no verdict: reading /nowhere/gate.json (--budget)",
    );
    says(
        &["--budget", "Cargo.toml"],
        2,
        "Cargo.toml is no budget; `gate --refresh` makes one",
    );
    says(
        &["--set", "scheduler.max_runing=1"],
        2,
        "--set: CADENCED__SCHEDULER__MAX_RUNING",
    );
    says(&["--set", "scheduler.max_running"], 2, "--set");
    says(
        &["--sockets", "--daemon", "/nowhere/cadenced"],
        2,
        "/nowhere/cadenced",
    );
    says(&["--nonsense"], 2, "--nonsense");
}
