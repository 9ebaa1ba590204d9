//! Requantised models, and what a name or path resolves to.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use cadenced::hub::{Derived, Error, Hub, Model};
use tempfile::TempDir;

use crate::pypi::catalogue;
use crate::{content, files, sha256};

/// What the tests' quantiser makes of `content`.
fn requantised(content: &[u8]) -> Vec<u8> {
    content[..content.len() / 2].to_vec()
}

fn quantize(from: &Path, to: &Path) -> anyhow::Result<()> {
    Ok(fs::write(to, requantised(&fs::read(from)?))?)
}

/// A models folder with the download `tiny-q4_1.gguf` in place.
fn setup() -> (TempDir, Hub) {
    let (dir, content) = (tempfile::tempdir().unwrap(), content(1000));
    fs::write(dir.path().join("tiny-q4_1.gguf"), &content).unwrap();
    let derived = Derived {
        file: "tiny-q4_0.gguf",
        quantization: "Q4_0",
        sha256: sha256(&requantised(&content)).leak(),
    };
    let model = Model {
        derived: Some(derived),
        ..catalogue(&content, 1)[0].clone()
    };
    let hub = Hub::new(dir.path()).with_catalogue(Vec::leak(vec![model]));
    (dir, hub)
}

#[test]
fn derives_once_and_serves_that() {
    let (dir, hub) = setup();
    assert!(matches!(hub.resolve("tiny"), Err(Error::NotPulled { .. })));
    let calls = Cell::new(0);
    let counted = |from: &Path, to: &Path| {
        calls.set(calls.get() + 1);
        quantize(from, to)
    };
    let made = hub.derive("tiny", counted).unwrap();
    assert!(made.fresh);
    assert_eq!(made.path, dir.path().join("tiny-q4_0.gguf"));
    assert!(!hub.derive("tiny", counted).unwrap().fresh);
    assert_eq!(calls.get(), 1);
    assert_eq!(hub.resolve("tiny").unwrap(), made.path);
}

#[test]
fn a_failed_derivation_leaves_nothing() {
    let (dir, hub) = setup();
    let before = files(dir.path());
    let error = hub
        .derive("tiny", |_, to| {
            fs::write(to, "GGUF half")?;
            anyhow::bail!("out of memory")
        })
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("Q4_0") && error.contains("out of memory"),
        "{error}"
    );

    let other = |_: &Path, to: &Path| Ok(fs::write(to, "GGUF, but another")?);
    let error = hub.derive("tiny", other).unwrap_err().to_string();
    assert!(error.contains(&sha256(b"GGUF, but another")), "{error}");
    assert!(error.contains("expected"), "{error}");

    let nothing = hub.derive("tiny", |_, _| Ok(())).unwrap_err();
    assert!(matches!(nothing, Error::Io { .. }), "{nothing}");
    let sidecar = "tiny-q4_1.gguf.sha256".to_owned();
    let mut after = files(dir.path());
    after.retain(|name| *name != sidecar);
    assert_eq!(after, before);
}

#[test]
fn refuses_to_derive_from_what_is_missing_or_wrong() {
    let (dir, hub) = setup();
    let download = dir.path().join("tiny-q4_1.gguf");
    fs::write(&download, "GGUF, but another").unwrap();
    assert!(matches!(
        hub.derive("tiny", quantize),
        Err(Error::NotPulled { .. })
    ));
    fs::remove_file(&download).unwrap();
    assert!(matches!(
        hub.derive("tiny", quantize),
        Err(Error::NotPulled { .. })
    ));
    assert!(matches!(
        hub.derive("tinny", quantize),
        Err(Error::Unknown { .. })
    ));
    let plain = hub.with_catalogue(catalogue(&content(10), 1));
    assert!(matches!(
        plain.derive("tiny", quantize),
        Err(Error::NothingToDerive { .. })
    ));
}

#[test]
fn resolves_paths() {
    let (dir, hub) = setup();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("x.gguf");
    let name = path.to_str().unwrap();
    assert!(matches!(hub.resolve(name), Err(Error::NoFile { .. })));
    fs::write(&path, "GGUF").unwrap();
    assert_eq!(hub.resolve(name).unwrap(), path);
    fs::write(&path, "text").unwrap();
    assert!(matches!(hub.resolve(name), Err(Error::NotGguf { .. })));
    assert_eq!(
        hub.resolve("tiny-q4_1.gguf").unwrap(),
        dir.path().join("tiny-q4_1.gguf")
    );
    assert!(matches!(
        hub.resolve("nowhere.gguf"),
        Err(Error::NoFile { .. })
    ));
    assert!(matches!(
        hub.resolve("org/repo/m.gguf"),
        Err(Error::NotPulled { .. })
    ));
}
