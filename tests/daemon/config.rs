//! Where settings come from, and what is refused before anything is started.

use std::net::TcpListener;
use std::process::Output;

use crate::assert_no_panic;
use crate::common::{Daemon, command};

const FAKE: [&str; 3] = ["serve", "--backend", "fake"];

/// Runs a command that must end by itself.
pub fn run(args: &[&str], settings: &[(&str, &str)]) -> Output {
    let output = command(args, settings).output().unwrap();
    assert_no_panic(&String::from_utf8_lossy(&output.stderr));
    output
}

/// Asserts how a start that can't work ends; what it says must contain `says`.
#[track_caller]
pub fn assert_ends(output: &Output, code: i32, says: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for words in says {
        assert!(stderr.contains(words), "no {words:?} in {stderr}");
    }
    assert!(
        !stderr.contains("listening on"),
        "it got that far: {stderr}"
    );
}

/// A configuration, or whatever else a file is to hold.
pub fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// B112: a flag beats the environment, which beats the file, which beats the default; seen in what runs.
#[test]
fn a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default() {
    let config = file(
        "[model]\nbackend = \"llama\"\nname = \"from-file\"\n[kv]\ncells = 2048\n[server]\nlisten = \"127.0.0.1:1\"\n",
    );
    let path = config.path().to_str().unwrap();
    let args = ["serve", "--config", path, "--backend", "fake"];
    // `start` adds --listen 127.0.0.1:0; port 1 and port 2 must lose.
    let d = Daemon::start(
        &args,
        &[("model.name", "from-env"), ("server.listen", "127.0.0.1:2")],
    )
    .ready();
    let stats = d.stats();
    assert_eq!(stats["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(stats["model"], "from-env");
    assert_eq!(stats["backend"], "fake");
    assert_eq!(stats["effective"]["kv_cells"], 2048, "{stats}");
    assert_eq!(stats["effective"]["n_batch"], 512, "{stats}");
    assert!(d.addr.port() > 2);
    let d = Daemon::start(&args, &[]).ready();
    assert_eq!(d.stats()["model"], "from-file");
    let from_env =
        Daemon::start(&["serve", "--config", path], &[("model.backend", "fake")]).ready();
    assert_eq!(from_env.stats()["backend"], "fake");
}

/// B113: compose files are full of empty variables.
#[test]
fn an_empty_variable_is_as_good_as_none() {
    let d = Daemon::start(
        &FAKE,
        &[
            ("kv.cells", ""),
            ("model.name", ""),
            ("server.listen", ""),
            ("engine.check_invariants", ""),
            ("fake.step_us", ""),
            ("scheduler.policy", ""),
        ],
    )
    .ready();
    let stats = d.stats();
    assert_eq!(stats["model"], "fake");
    assert_eq!(stats["effective"]["kv_cells"], 16_384);
    assert_eq!(stats["rung"], "rung3-continuous");
}

#[test]
fn an_unknown_key_is_refused_by_its_name() {
    let config = file("[scheduler]\nmax_runing = 4\n");
    let path = config.path().to_str().unwrap();
    assert_ends(
        &run(&["serve", "--config", path], &[]),
        64,
        &["max_runing", path],
    );
    assert_ends(
        &run(&FAKE, &[("scheduler.max_runing", "4")]),
        64,
        &["CADENCED__SCHEDULER__MAX_RUNING: unknown field"],
    );
    let config = file("[schedular]\nmax_running = 4\n");
    let path = config.path().to_str().unwrap();
    assert_ends(&run(&["serve", "--config", path], &[]), 64, &["schedular"]);
}

#[test]
fn a_value_that_is_none_is_refused_by_its_key() {
    for (key, value) in [
        ("kv.cells", "many"),
        ("kv.cells", "-256"),
        ("kv.cells", "1000"),
        ("kv.type_k", "q5"),
        ("kv.layout", "paged"),
        ("kv.reservation", "greedy"),
        ("kv.watermark", "0.6"),
        ("kv.watermark", "-0.1"),
        ("kv.watermark", "nan"),
        ("prefix.reuse", "maybe"),
        ("prefix.eviction", "fifo"),
        ("scheduler.policy", "lifo"),
        ("scheduler.max_running", "0"),
        ("scheduler.max_running", "257"),
        ("scheduler.prefill_budget", "0"),
        ("limits.requests", "0"),
        ("limits.requests", "4611686018427387904"),
        ("server.request_timeout_s", "9223372036854775807"),
        ("lifecycle.drain_limit_s", "86401"),
        ("scheduler.fill_timeout_ms", "9223372036854775807"),
        ("slo.e2e_ms", "86400001"),
        ("sampling.temperature", "2.1"),
        ("sampling.temperature", "nan"),
        ("sampling.top_p", "-0.1"),
        ("sampling.min_p", "1.1"),
        ("limits.retry_after_s_max", "61"),
        ("server.sse_keep_alive_s", "0"),
        ("server.listen", "localhost"),
        ("runner.threads", "0"),
        ("runner.threads", "all"),
        ("fake.step_us", "-1"),
        ("fake.fault", "explode"),
        ("log.filter", "a=b=c"),
        ("log.format", "xml"),
    ] {
        let variable = format!("CADENCED__{}: ", key.replace('.', "__").to_uppercase());
        // Not `run`: "panic" is one of the faults that can be chosen.
        let output = command(&FAKE, &[(key, value)]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{key}={value}: {stderr}");
        assert!(
            stderr.contains(&variable) || stderr.contains(key),
            "{key}={value}: {stderr}"
        );
    }
}

/// Plans that can't work are found by reading them.
#[test]
fn plans_that_cannot_work_are_refused_before_anything_starts() {
    assert_ends(
        &run(
            &FAKE,
            &[
                ("runner.n_batch", "64"),
                ("runner.n_ubatch", "64"),
                ("scheduler.prefill_budget", "60"),
            ],
        ),
        64,
        &["scheduler.prefill_budget", "60", "64"],
    );
    assert_ends(
        &run(&FAKE, &[("runner.n_ubatch", "1024")]),
        64,
        &["runner.n_ubatch", "1024"],
    );
    assert_ends(
        &run(&FAKE, &[("limits.default_max_tokens", "5000")]),
        64,
        &["limits.default_max_tokens", "limits.max_output_tokens"],
    );
    assert_ends(
        &run(
            &FAKE,
            &[("kv.type_v", "q8_0"), ("runner.flash_attention", "off")],
        ),
        64,
        &["kv.type_v", "flash_attention"],
    );
    assert_ends(
        &run(
            &FAKE,
            &[("prefix.reuse", "on"), ("kv.reservation", "contiguous")],
        ),
        64,
        &["prefix.reuse", "kv.reservation", "contiguous"],
    );
    // Two ids for each of sixteen seats.
    assert_ends(
        &run(&FAKE, &[("kv.layout", "streams"), ("kv.cells", "4096")]),
        64,
        &["kv.cells", "4096", "32 streams", "128"],
    );
    let no_model = file("[model]\npath = \"\"\n");
    let path = no_model.path().to_str().unwrap();
    assert_ends(&run(&["serve", "--config", path], &[]), 64, &["model.path"]);
}

#[test]
fn a_configuration_file_that_is_not_there_or_no_toml_is_named() {
    assert_ends(
        &run(&["serve", "--config", "/nowhere/c.toml"], &[]),
        64,
        &["/nowhere/c.toml", "No such file"],
    );
    let broken = file("[server\nlisten = 1");
    let path = broken.path().to_str().unwrap();
    assert_ends(&run(&["serve", "--config", path], &[]), 64, &[path]);
    assert_ends(
        &run(&["serve", "--no-such-flag"], &[]),
        64,
        &["--no-such-flag"],
    );
    assert_ends(
        &run(&["serve", "--listen", "nowhere"], &[]),
        64,
        &["--listen"],
    );
}

/// B103: a second daemon on a port fails at once, and before it would load a model.
#[test]
fn a_busy_port_ends_the_start_before_the_model_is_looked_at() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = busy.local_addr().unwrap().to_string();
    let output = run(
        &[
            "serve",
            "--listen",
            &listen,
            "--model",
            "/nowhere/model.gguf",
        ],
        &[],
    );
    assert_ends(&output, 69, &[&listen, "in use"]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("model.gguf"));

    let first = Daemon::fake(&[]);
    let listen = first.addr.to_string();
    assert_ends(
        &run(&["serve", "--backend", "fake", "--listen", &listen], &[]),
        69,
        &[&listen, "in use"],
    );
    assert_eq!(
        first.get("/ready").status,
        200,
        "the first is not disturbed"
    );
}
