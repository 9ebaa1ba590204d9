//! What `check-config` tells without starting anything.

use crate::common::command;
use crate::config::{assert_ends, file, run};

/// What would be in force can be read without starting anything, and is a configuration itself.
#[test]
fn check_config_prints_what_would_be_in_force() {
    let output = run(
        &["check-config", "--backend", "fake"],
        &[("kv.cells", "4096")],
    );
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("cells = 4096") && text.contains("backend = \"fake\""),
        "{text}"
    );
    let printed = file(&text);
    let again = run(
        &["check-config", "--config", printed.path().to_str().unwrap()],
        &[],
    );
    assert_eq!(String::from_utf8(again.stdout).unwrap(), text);
    assert_ends(
        &run(&["check-config"], &[("kv.cells", "1")]),
        64,
        &["kv.cells"],
    );
}

/// What `serve` would not start with is found without starting it, and told in the same words.
#[test]
fn check_config_looks_at_the_files_that_are_named() {
    let model = file("GGUF");
    let junk = file("<!DOCTYPE html>");
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().unwrap().to_owned();
    let (model, junk) = (path(&model), path(&junk));
    let (there, junk) = ([("model.path", model.as_str())], junk.as_str());
    let with = |more: &[(&'static str, &str)]| {
        let settings = there.iter().chain(more).copied().collect::<Vec<_>>();
        run(&["check-config"], &settings)
    };
    let output = with(&[("admission.artifact", "/nowhere/unused")]);
    assert_ends(&output, 0, &[]);
    let calibrated = ("admission.mode", "conformal");
    for (settings, says) in [
        (
            vec![("model.path", "/nowhere/m.gguf")],
            "model.path: /nowhere/m.gguf: No such file",
        ),
        (vec![("model.path", junk)], "not a GGUF file"),
        (
            vec![("model.chat_template", "/nowhere/t.jinja")],
            "model.chat_template: /nowhere/t.jinja: No such file",
        ),
        (
            vec![calibrated, ("admission.artifact", "/nowhere/c.bin")],
            "admission.artifact: /nowhere/c.bin: No such file",
        ),
        (
            vec![calibrated, ("admission.artifact", junk)],
            "not a calibration",
        ),
    ] {
        let output = with(&settings);
        assert_ends(&output, 69, &[says]);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("[server]"), "{printed}");
    }
}

/// `cadenced check-config | head -3` is no failure.
#[test]
fn a_reader_that_leaves_is_no_failure() {
    for args in [
        &["check-config", "--backend", "fake"][..],
        &["model", "list"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(args, &[]).stdout(writer).output().unwrap();
        assert_ends(&output, 0, &[]);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}
