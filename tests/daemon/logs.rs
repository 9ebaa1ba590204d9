//! What the logs look like to a program and in a file.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

use crate::common::command;

/// Logs as JSON are JSON, every line, and numbers in them are numbers.
#[test]
fn logs_in_json_are_json() {
    let settings = [
        ("log.format", "json"),
        ("kv.cells", "auto"),
        ("server.listen", "127.0.0.1:0"),
    ];
    let mut command = command(
        &["serve", "--backend", "fake", "--while-stdin-is-open"],
        &settings,
    );
    let mut child = command
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut seen = Vec::new();
    for line in lines {
        let line = line.unwrap();
        let json: serde_json::Value =
            serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(
            !json["target"].as_str().unwrap().starts_with("actix_server"),
            "{line}"
        );
        let fields = json["fields"].clone();
        let message = fields["message"].as_str().unwrap().to_owned();
        seen.push((message, fields));
        if seen.last().unwrap().0 == "ready" {
            drop(child.stdin.take());
        }
    }
    child.wait().unwrap();
    let fields = |message: &str| &seen.iter().find(|(m, _)| m == message).unwrap().1;
    assert!(fields("kv.cells = \"auto\"")["cells"].is_u64(), "{seen:?}");
    assert!(fields("engine started")["kv_cells"].is_u64(), "{seen:?}");
}

/// Colours are for terminals.
#[test]
fn logs_in_a_file_have_no_colours() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = busy.local_addr().unwrap().to_string();
    let mut command = command(&["serve", "--listen", &listen], &[]);
    let output = command.env_remove("NO_COLOR").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("in use"), "{stderr:?}");
    assert!(!stderr.contains('\x1b'), "{stderr:?}");
}
