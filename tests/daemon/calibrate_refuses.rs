//! What `cadenced calibrate` refuses, and how it ends when something fails.

use crate::calibrate::{Place, assert_ends};
use crate::common::{ask, command};

#[test]
fn what_cant_work_is_refused_by_name() {
    let place = Place::new();
    for (args, says) in [
        (["--minutes", "0"], "--minutes: 0 is not"),
        (["--rounds", "3"], "--rounds: 3 is not between 4"),
        (["--patience-s", "0"], "--patience-s: 0 is not"),
        (
            ["--prompts", "/nowhere/prompts"],
            "--prompts: /nowhere/prompts: No such file",
        ),
    ] {
        let mut all = vec!["calibrate", "--backend", "fake"];
        all.extend(args);
        assert_ends(&command(&all, &[]).output().unwrap(), 64, &[says]);
    }
    let mut nowhere = command(
        &["calibrate", "--backend", "fake", "--out", "/nowhere/c.bin"],
        &[],
    );
    assert_ends(
        &nowhere.output().unwrap(),
        69,
        &["--out: /nowhere/c.bin.work: No such file"],
    );
    let folder = place.dir.path().to_str().unwrap();
    let mut folder = command(&["calibrate", "--backend", "fake", "--out", folder], &[]);
    assert_ends(&folder.output().unwrap(), 69, &["is a folder"]);
    let out = place.out();
    let llama = [
        "calibrate",
        "--model",
        "/nowhere/m.gguf",
        "--out",
        out.to_str().unwrap(),
    ];
    assert_ends(
        &command(&llama, &[]).output().unwrap(),
        69,
        &["model.path: /nowhere/m.gguf"],
    );
    let mut damaged = command(
        &[
            "calibrate",
            "--model",
            &place.prompts,
            "--out",
            out.to_str().unwrap(),
        ],
        &[],
    );
    assert_ends(&damaged.output().unwrap(), 69, &["the daemon has ended"]);
}

#[test]
fn a_request_that_is_refused_and_a_daemon_that_dies_end_it() {
    let place = Place::new();
    let bad = place.dir.path().join("bad.jsonl");
    let bad = bad.to_str().unwrap();
    let fine = ask("fine", 5, true).to_string();
    std::fs::write(bad, format!("{fine}\n{{\"messages\": []}}\n")).unwrap();
    let refused = place.run("0.15", &["--prompts", bad], &[]);
    assert_ends(&refused, 64, &["bad.jsonl: line 2", "messages"]);
    // How long a prompt is only the model knows.
    let long = ask(&"long ".repeat(20_000), 5, true).to_string();
    std::fs::write(bad, long).unwrap();
    let refused = place.run("0.15", &["--prompts", bad], &[]);
    assert_ends(&refused, 64, &["a request was refused with 400", "context"]);

    let dies = Place::new();
    let panics = [
        ("fake.fault_marker", "and more"),
        ("fake.fault", "panic"),
        ("fake.fault_at_token", "1"),
    ];
    let output = dies
        .command("0.15", &["--prompts", &dies.prompts], &panics)
        .output()
        .unwrap();
    assert_ends(&output, 70, &["the daemon has ended (exit status: 70)"]);
    assert!(!dies.out().exists());
}
