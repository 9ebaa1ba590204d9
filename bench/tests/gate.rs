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

#[test]
fn the_committed_budget_is_kept_twice_with_the_same_bytes() {
    let (first, second) = (gate(&[]), gate(&[]));
    assert_eq!(first.status.code(), Some(0), "{}", text(&first));
    assert_eq!(first.stdout, second.stdout);
    assert!(
        text(&first).contains("\nwithin the budget"),
        "{}",
        text(&first)
    );
}

#[test]
fn a_batch_of_one_shuts_it() {
    let output = gate(&["--set", "scheduler.max_running=1"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        text(&output).contains("REGRESSED  rung4-cache TTFT p99"),
        "{}",
        text(&output)
    );
}

/// A pool that most prompts do not fit into: they are turned away as invalid, and what is left is no load.
#[test]
fn what_says_nothing_is_unsound() {
    let output = gate(&["--set", "kv.cells=512"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(
        text(&output).contains("measurement unsound"),
        "{}",
        text(&output)
    );
}
