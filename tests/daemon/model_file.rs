//! B115: a model that can't be served says which file, by its absolute path, and why, in the operating
//! system's words.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use crate::assert_no_panic;
use crate::common::command;

/// Starts with this model and gives what it says, once it has ended with 69.
fn refused(model: &Path, settings: &[(&str, &str)]) -> String {
    let mut command = command(&["serve", "--listen", "127.0.0.1:0", "--model"], settings);
    let output = command.arg(model).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(69), "{stderr}");
    assert_no_panic(&stderr);
    stderr
}

fn assert_says(stderr: &str, words: &[&str]) {
    for words in words {
        assert!(stderr.contains(words), "no {words:?} in {stderr}");
    }
}

#[test]
fn a_missing_model_is_named_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.gguf");
    assert_says(
        &refused(&missing, &[]),
        &[missing.to_str().unwrap(), "No such file"],
    );
    let dangling = directory.path().join("dangling.gguf");
    symlink(&missing, &dangling).unwrap();
    assert_says(
        &refused(&dangling, &[]),
        &[dangling.to_str().unwrap(), "No such file"],
    );
    assert_says(
        &refused(directory.path(), &[]),
        &[directory.path().to_str().unwrap(), "directory"],
    );
}

#[test]
fn a_relative_path_is_named_as_an_absolute_one() {
    let here = std::env::current_dir().unwrap().join("no/such/model.gguf");
    let stderr = refused(Path::new("no/such/model.gguf"), &[]);
    assert_says(&stderr, &[here.to_str().unwrap(), "No such file"]);
}

#[test]
fn a_path_that_is_not_utf_8_is_looked_for_all_the_same() {
    use std::os::unix::ffi::OsStrExt as _;
    let odd = std::ffi::OsStr::from_bytes(b"/nowhere/mod\xffel.gguf");
    assert_says(
        &refused(Path::new(odd), &[]),
        &["/nowhere/mod", "No such file"],
    );
}

#[test]
fn an_unreadable_model_says_that_it_may_not() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "GGUF").unwrap();
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::read(file.path()).is_ok() {
        println!("skipped: root reads everything");
        return;
    }
    assert_says(
        &refused(file.path(), &[]),
        &[file.path().to_str().unwrap(), "Permission denied"],
    );
}

#[test]
fn a_file_that_is_no_model_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for (content, why) in [
        (&b""[..], ""),
        (b"GG", ""),
        (b"<!DOCTYPE html><title>404</title>", "not a GGUF"),
        (b"GGUF", ""),
        (b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0", ""),
        (
            b"GGUF\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            "",
        ),
    ] {
        std::fs::write(file.path(), content).unwrap();
        assert_says(&refused(file.path(), &[]), &["model.path", path, why]);
    }
}
