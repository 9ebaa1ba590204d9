//! Files that are no models, and settings that can't be honoured: one line that says so, and the exit code.

use std::path::{Path, PathBuf};

use crate::common::{Daemon, command};
use crate::support::{GEMMA, SMOLLM2, Served, ask_with, model_file, repository};
use serde_json::json;

/// Starts the daemon on a file that it must refuse; gives the lines that it logged as errors.
#[track_caller]
fn refused(path: &Path) -> String {
    let mut d = Daemon::start(
        &["serve", "--model", path.to_str().expect("UTF-8")],
        &[("kv.cells", "512")],
    );
    let status = d.wait();
    // The log's reader may be a moment behind the process.
    d.wait_for("the reason", || d.log().contains("model.path"));
    let log = d.log();
    assert_eq!(status.code(), Some(69), "{log}");
    for word in ["panic", "backtrace", "RUST_BACKTRACE"] {
        assert!(!log.contains(word), "{log}");
    }
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("ERROR") && !line.contains("llama.cpp"))
        .collect();
    assert_eq!(lines.len(), 1, "{log}");
    let absolute = std::path::absolute(path).expect("a path");
    assert!(
        lines[0].contains(absolute.to_str().expect("UTF-8")),
        "{log}"
    );
    lines[0].to_owned()
}

fn write(dir: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).expect("a file");
    path
}

/// A GGUF without tensors whose only key is its architecture.
fn gguf_of(architecture: &str) -> Vec<u8> {
    const STRING: u32 = 8;
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    [
        b"GGUF".to_vec(),
        3_u32.to_le_bytes().to_vec(),
        0_u64.to_le_bytes().to_vec(),
        1_u64.to_le_bytes().to_vec(),
        string("general.architecture"),
        STRING.to_le_bytes().to_vec(),
        string(architecture),
    ]
    .concat()
}

#[test]
fn files_that_are_no_models_are_refused_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = std::fs::read(model_file(SMOLLM2)).expect("the model");

    let header = write(&dir, "first-megabyte.gguf", &model[..1 << 20]);
    refused(&header);
    let half = write(&dir, "half.gguf", &model[..model.len() / 2]);
    refused(&half);
    let martian = write(&dir, "martian.gguf", &gguf_of("martian"));
    assert!(refused(&martian).contains("martian"));
    let text = write(&dir, "notes.gguf", b"These are notes, not a model.\n");
    assert!(refused(&text).contains("not a GGUF file"));
    let empty = write(&dir, "empty.gguf", b"");
    refused(&empty);
    refused(dir.path());
    assert!(refused(&dir.path().join("missing.gguf")).contains("No such file"));
}

/// A template that is missing or broken is named, too.
#[test]
fn a_template_that_is_none_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let broken = write(
        &dir,
        "broken.jinja",
        b"{% for message in messages %}never closed",
    );
    let missing = dir.path().join("missing.jinja");
    for path in [broken, missing] {
        let path = path.to_str().expect("UTF-8");
        let model = model_file(GEMMA);
        let settings = [("kv.cells", "512"), ("model.chat_template", path)];
        let mut d = Daemon::start(&["serve", "--model", &model], &settings);
        assert_eq!(d.wait().code(), Some(69), "{}", d.log());
        d.wait_for("the reason", || d.log().contains("template: "));
    }
}

/// A quantised V cache needs flash attention: with "off" it is a mistake of the configuration, told before
/// anything is loaded; with "on" both are in force.
#[test]
fn flash_attention_is_honoured_or_refused() {
    let model = model_file(SMOLLM2);
    let settings = |flash| {
        [
            ("kv.cells", "1024"),
            ("kv.type_v", "q8_0"),
            ("runner.flash_attention", flash),
        ]
    };
    let output = command(
        &["serve", "--model", &model, "--listen", "127.0.0.1:0"],
        &settings("off"),
    )
    .current_dir(repository(""))
    .output()
    .expect("cadenced runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(
        said.contains("kv.type_v") && said.lines().count() == 1,
        "{said}"
    );

    for (settings, flash, type_v) in [
        (settings("on").to_vec(), true, "q8_0"),
        (
            vec![("kv.cells", "1024"), ("runner.flash_attention", "on")],
            true,
            "q8_0",
        ),
        (
            vec![("kv.cells", "1024"), ("runner.flash_attention", "off")],
            false,
            "f16",
        ),
    ] {
        let d = Served::model(SMOLLM2, &settings);
        let effective = d.stats()["effective"].clone();
        assert_eq!(effective["flash_attention"], flash, "{effective}");
        assert_eq!(effective["kv_type_v"], type_v, "{effective}");
        let text = d.text(&ask_with(
            "What is the capital of France?",
            24,
            false,
            json!({}),
        ));
        assert!(text.contains("Paris"), "{settings:?}: {text}");
    }
}
