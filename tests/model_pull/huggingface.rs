//! Pulls of `org/repo/file.gguf`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cadenced::hub::{Error, Hub};
use tempfile::TempDir;

use crate::stub::{Fault, Stub};
use crate::{content, files, sha256};

const NAME: &str = "org/repo/sub/m.gguf";
const FILE: &str = "org--repo--sub--m.gguf";
const LEN: usize = 300_000;

fn setup() -> (TempDir, Stub, Hub, Vec<u8>) {
    let (dir, content) = (tempfile::tempdir().unwrap(), content(LEN));
    let stub = Stub::serve(&content);
    let hub = Hub::new(dir.path())
        .with_endpoint(&stub.url)
        .with_retry_delay(Duration::from_millis(5));
    (dir, stub, hub, content)
}

/// The one partial file that an interrupted pull left to resume.
fn part(dir: &Path) -> PathBuf {
    let names = files(dir);
    let [name] = names.as_slice() else {
        panic!("{names:?}");
    };
    assert!(name.starts_with('.') && name.ends_with(".part"), "{name}");
    dir.join(name)
}

#[test]
fn pulls_once_and_then_needs_no_network() {
    let (dir, stub, hub, content) = setup();
    let pulled = hub.pull(NAME).unwrap();
    assert!(pulled.fresh);
    assert_eq!(pulled.path, dir.path().join(FILE));
    assert_eq!(pulled.sha256, sha256(&content));
    assert_eq!(fs::read(&pulled.path).unwrap(), content);
    assert_eq!(
        files(dir.path()),
        [FILE.to_owned(), format!("{FILE}.sha256")]
    );

    let requests = stub.requests().len();
    assert!(!hub.pull(NAME).unwrap().fresh);
    assert_eq!(hub.resolve(NAME).unwrap(), pulled.path);
    assert_eq!(hub.resolve(FILE).unwrap(), pulled.path);
    assert_eq!(stub.requests().len(), requests);
}

#[test]
fn asks_for_the_revision_and_then_for_its_commit() {
    let (dir, stub, hub, _) = setup();
    let pulled = hub.pull("org/repo/m.gguf@refs/pr/1").unwrap();
    assert_eq!(
        pulled.path,
        dir.path().join("org--repo--m@refs--pr--1.gguf")
    );
    let paths: Vec<String> = stub.requests().into_iter().map(|r| r.path).collect();
    assert_eq!(paths[0], "/org/repo/resolve/refs%2Fpr%2F1/m.gguf");
    assert!(paths.contains(&"/org/repo/resolve/c0ffee/m.gguf".to_owned()));
}

#[test]
fn resumes_after_a_broken_connection() {
    let (_dir, stub, hub, content) = setup();
    stub.set(|s| s.faults = vec![Fault::Truncate(100_000), Fault::Status(503)]);
    assert_eq!(fs::read(hub.pull(NAME).unwrap().path).unwrap(), content);
    let ranges = stub.ranges();
    assert_eq!(ranges.len(), 3, "{ranges:?}");
    assert_eq!(ranges[0], None);
    assert_eq!(ranges[2], Some(format!("bytes=100000-{}", LEN - 1)));
}

#[test]
fn resumes_in_a_later_process() {
    let (dir, stub, hub, content) = setup();
    stub.set(|s| {
        s.faults = vec![Fault::Truncate(100_000)];
        s.faults.extend([Fault::Status(500); 9]);
    });
    let error = hub.pull(NAME).unwrap_err().to_string();
    assert!(
        error.contains("/org/repo/resolve/main/sub/m.gguf"),
        "{error}"
    );
    assert!(error.contains("500"), "{error}");
    assert_eq!(fs::metadata(part(dir.path())).unwrap().len(), 100_000);

    stub.set(|s| {
        s.faults.clear();
        s.requests.clear();
    });
    assert_eq!(fs::read(hub.pull(NAME).unwrap().path).unwrap(), content);
    let range = format!("bytes=100000-{}", LEN - 1);
    assert_eq!(stub.ranges(), [Some(range)]);
    assert_eq!(files(dir.path()).len(), 2);
}

#[test]
fn starts_over_when_the_kept_part_is_damaged() {
    let (dir, stub, hub, content) = setup();
    stub.set(|s| {
        s.faults = vec![Fault::Truncate(1000)];
        s.faults.extend([Fault::Status(500); 9]);
    });
    hub.pull(NAME).unwrap_err();
    fs::write(part(dir.path()), vec![0; 1000]).unwrap();
    stub.set(|s| s.faults.clear());
    assert_eq!(fs::read(hub.pull(NAME).unwrap().path).unwrap(), content);
}

#[test]
fn drops_the_part_of_another_version() {
    let (dir, stub, hub, _) = setup();
    stub.set(|s| {
        s.faults = vec![Fault::Truncate(1000)];
        s.faults.extend([Fault::Status(500); 9]);
    });
    hub.pull(NAME).unwrap_err();
    let newer = content(LEN / 2);
    stub.set(|s| {
        s.faults.clear();
        s.etag = sha256(&newer);
        s.content = newer.clone();
    });
    assert_eq!(fs::read(hub.pull(NAME).unwrap().path).unwrap(), newer);
    assert_eq!(files(dir.path()).len(), 2);
}

#[test]
fn copes_with_a_server_that_ignores_ranges() {
    let (_dir, stub, hub, content) = setup();
    stub.set(|s| {
        s.faults = vec![Fault::Truncate(100_000)];
        s.ignores_ranges = true;
    });
    assert_eq!(fs::read(hub.pull(NAME).unwrap().path).unwrap(), content);
}

#[test]
fn gives_up_on_a_server_that_always_breaks_off_and_ignores_ranges() {
    let (dir, stub, hub, _) = setup();
    stub.set(|s| {
        s.faults = vec![Fault::Truncate(100_000), Fault::Truncate(LEN)];
        s.faults.extend([Fault::Truncate(100_000); 99]);
        s.ignores_ranges = true;
    });
    assert!(matches!(hub.pull(NAME), Err(Error::Hub { .. })));
    assert!(!dir.path().join(FILE).exists());
}

#[test]
fn reports_a_missing_file_at_once() {
    let (dir, stub, hub, _) = setup();
    stub.set(|s| s.status = Some(404));
    let error = hub.pull(NAME).unwrap_err().to_string();
    assert!(
        error.contains("404") && error.contains("says the stub"),
        "{error}"
    );
    assert_eq!(stub.requests().len(), 1);
    assert!(files(dir.path()).is_empty());
}

#[test]
fn retries_a_failing_server_and_then_reports_it() {
    let (dir, stub, hub, _) = setup();
    stub.set(|s| s.status = Some(500));
    let error = hub.pull(NAME).unwrap_err().to_string();
    assert!(
        error.contains(&stub.url) && error.contains("500"),
        "{error}"
    );
    assert_eq!(stub.requests().len(), 5);
    assert!(files(dir.path()).is_empty());
}

#[test]
fn refuses_content_with_another_checksum() {
    let (dir, stub, hub, content) = setup();
    let expected = sha256(b"another");
    stub.set(|s| s.etag.clone_from(&expected));
    let error = hub.pull(NAME).unwrap_err().to_string();
    assert!(
        error.contains(&expected) && error.contains(&sha256(&content)),
        "{error}"
    );
    assert!(files(dir.path()).is_empty());
}

#[test]
fn refuses_what_is_not_gguf() {
    let (dir, stub, hub, _) = setup();
    let page = b"<html>".to_vec();
    stub.set(|s| {
        s.etag = sha256(&page);
        s.content = page;
    });
    assert!(matches!(hub.pull(NAME), Err(Error::NotGguf { .. })));
    assert!(files(dir.path()).is_empty());
}

#[test]
fn checks_a_file_of_unknown_origin_with_the_server() {
    let (dir, stub, hub, content) = setup();
    fs::write(dir.path().join(FILE), &content).unwrap();
    assert!(!hub.pull(NAME).unwrap().fresh);
    assert_eq!(stub.ranges().len(), 0);

    fs::write(dir.path().join(FILE), b"GGUF, but another").unwrap();
    assert!(hub.pull(NAME).unwrap().fresh);
    assert_eq!(fs::read(dir.path().join(FILE)).unwrap(), content);
}

#[test]
fn concurrent_pulls_download_once() {
    let (_dir, stub, hub, content) = setup();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(fs::read(hub.pull(NAME).unwrap().path).unwrap(), content));
        }
    });
    assert_eq!(stub.ranges(), [None]);
}

#[tokio::test]
async fn works_inside_a_runtime() {
    let (_dir, _stub, hub, _) = setup();
    hub.pull(NAME).unwrap();
}

/// Run by the test below in a process with another environment.
#[test]
#[ignore = "a part of honours_the_environment_and_keeps_the_token_secret"]
fn child() {
    tracing_subscriber::fmt().with_env_filter("trace").init();
    Hub::new(env::var("MODELS").unwrap()).pull(NAME).unwrap();
}

#[test]
fn honours_the_environment_and_keeps_the_token_secret() {
    let (dir, stub, _, _) = setup();
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "huggingface::child", "--ignored", "--nocapture"])
        .env("MODELS", dir.path())
        .env("HF_ENDPOINT", &stub.url)
        .env("HF_TOKEN", "hf_sesame")
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("TRACE"), "{said}");
    assert!(!said.contains("sesame"), "{said}");
    for request in stub.requests() {
        let expected = (request.host == "hub").then(|| "Bearer hf_sesame".to_owned());
        assert_eq!(request.authorization, expected, "{request:?}");
    }
}
