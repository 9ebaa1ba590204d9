//! `cadenced calibrate`: from nothing to a file that arms the daemon it was made for, also when it was killed on
//! the way.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use cadenced::logic::conformal::artifact::Artifact;
use cadenced::logic::conformal::rounds::{LOADS, RoundRow};
use tempfile::TempDir;

use crate::common::{Daemon, PATIENCE, command};
use crate::{ask_with, assert_no_panic, e2e_ms};

/// An engine of some hundred requests a second.
const FAST: [(&str, &str); 11] = [
    ("server.workers", "1"),
    ("scheduler.max_running", "4"),
    ("kv.reservation", "paged"),
    ("prefix.reuse", "auto"),
    ("fake.step_us", "1000"),
    ("fake.prefill_token_us", "0"),
    ("fake.decode_seq_us", "500"),
    ("fake.length_log_mean", "2.3"),
    ("fake.length_log_sd", "0.5"),
    ("fake.length_min", "2"),
    ("fake.length_max", "30"),
];

/// A folder for a calibration.
pub struct Place {
    pub dir: TempDir,
    pub prompts: String,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let prompts = dir.path().join("prompts.jsonl");
        let lines = (0..2000).map(|i| format!("{}\n", question(i)));
        std::fs::write(&prompts, lines.collect::<String>()).unwrap();
        let prompts = prompts.to_str().unwrap().to_owned();
        Self { dir, prompts }
    }

    pub fn out(&self) -> PathBuf {
        self.dir.path().join("calibration.bin")
    }

    fn work(&self, name: &str) -> PathBuf {
        self.dir.path().join("calibration.bin.work").join(name)
    }

    fn round(&self, i: usize) -> PathBuf {
        self.work(&format!("round-{i}.jsonl"))
    }

    pub fn command(
        &self,
        minutes: &str,
        more: &[&str],
        settings: &[(&str, &str)],
    ) -> std::process::Command {
        let mut args = vec!["calibrate", "--backend", "fake", "--rounds", "4"];
        let out = self.out();
        args.extend(["--minutes", minutes, "--out", out.to_str().unwrap()]);
        args.extend(more);
        let mut all = FAST.to_vec();
        all.extend(settings);
        command(&args, &all)
    }

    pub fn run(&self, minutes: &str, more: &[&str], settings: &[(&str, &str)]) -> Output {
        let output = self.command(minutes, more, settings).output().unwrap();
        assert_no_panic(&stderr(&output));
        output
    }

    fn artifact(&self) -> Artifact {
        Artifact::decode(&std::fs::read(self.out()).unwrap()).unwrap()
    }

    fn rows(&self, i: usize) -> Vec<RoundRow> {
        let text = std::fs::read_to_string(self.round(i)).unwrap();
        let parse = |l| serde_json::from_str(l).unwrap();
        text.lines().map(parse).collect()
    }
}

/// What is asked, here and of the daemon that is calibrated.
fn question(i: u32) -> serde_json::Value {
    let content = format!("{i} {}", "and more of it ".repeat(1 + i as usize % 20));
    ask_with(&content, 10 + i % 20, true, e2e_ms(60_000))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
pub fn assert_ends(output: &Output, code: i32, says: &[&str]) {
    let stderr = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for words in says {
        assert!(stderr.contains(words), "no {words:?} in {stderr}");
    }
}

fn wait_for(what: &str, child: &mut Child, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        assert!(
            child.try_wait().unwrap().is_none(),
            "it ended before {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_calibration_arms_the_daemon_that_it_was_made_for_and_no_other() {
    let place = Place::new();
    let output = place.run("0.25", &["--prompts", &place.prompts], &[]);
    assert_ends(&output, 0, &["saturation: ", "round 4 of 4: "]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for words in [
        "calibrate",
        "support promises",
        "0.95",
        "load 0-0",
        "written: ",
    ] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    let out = place.out().to_str().unwrap().to_owned();
    let check = |more: &[(&str, &str)]| {
        let mut settings = FAST.to_vec();
        settings.push(("admission.artifact", &out));
        settings.extend(more);
        let checked = command(&["check-config", "--backend", "fake"], &settings).output();
        let checked = checked.unwrap();
        assert_eq!(checked.status.code(), Some(0), "{checked:?}");
        String::from_utf8_lossy(&checked.stdout).into_owned()
    };
    let fits = check(&[]);
    assert!(
        fits.contains("# admission.artifact: made for this engine"),
        "{fits}"
    );
    assert!(fits.contains("scores support promises up to"), "{fits}");
    let other = check(&[("kv.cells", "8192")]);
    assert!(
        other.contains("another engine: KV cells 16384, here 8192"),
        "{other}"
    );
    let missing = check(&[("admission.artifact", "/nowhere/c.bin")]);
    assert!(
        missing.contains("# admission.artifact: /nowhere/c.bin: No such file"),
        "{missing}"
    );
    let serve = |more: &[(&str, &str)]| {
        let mut settings = FAST.to_vec();
        settings.extend([
            ("admission.mode", "conformal"),
            ("admission.artifact", &out),
        ]);
        settings.extend(more);
        Daemon::fake(&settings)
    };
    let d = serve(&[]);
    let admission = d.stats()["admission"].clone();
    assert_eq!(admission["armed"], true, "{admission}");
    assert_eq!(admission["artifact_mismatch"], false, "{admission}");
    // Of the same kind, and never asked before.
    let mut asked = 5000;
    d.wait_for("a promise", || {
        asked += 1;
        let reply = d.chat(&question(asked)).response();
        reply.header("x-cadenced-verdict") == Some("promised")
    });
    drop(d);

    for (other, says) in [
        (("fake.step_us", "3000"), "model "),
        (("runner.threads", "3"), "threads 0, here 3"),
    ] {
        let d = serve(&[other]);
        assert_eq!(d.metric("cadenced_admission_artifact_mismatch"), 1.0);
        assert_eq!(d.metric("cadenced_admission_armed"), 0.0);
        let log = d.log();
        let lines: Vec<_> = log
            .lines()
            .filter(|l| l.contains("calibrated for another"))
            .collect();
        assert!(lines.len() == 1 && lines[0].contains(says), "{log}");
        assert!(lines[0].contains("NOTHING IS PROMISED"), "{log}");
        let observed = d.chat(&question(7)).response();
        assert_eq!(
            observed.header("x-cadenced-verdict"),
            Some("observed"),
            "{observed:?}"
        );
    }
}

#[test]
fn a_killed_collection_goes_on_where_it_was_and_only_with_the_same_settings() {
    let place = Place::new();
    let mut killed = place
        .command("0.15", &[], &[])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("two rounds", &mut killed, || place.round(1).exists());
    // The next round's daemon.
    let log = || std::fs::read_to_string(place.work("daemon.log")).unwrap_or_default();
    let address = || -> Option<SocketAddr> {
        let log = log();
        let (_, address) = log.split_once("listening on http://")?;
        address.lines().next()?.trim().parse().ok()
    };
    wait_for("a daemon", &mut killed, || {
        address().is_some_and(|a| TcpStream::connect(a).is_ok())
    });
    killed.kill().unwrap();
    killed.wait().unwrap();
    let address = address().unwrap();
    let end = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < end, "its daemon lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let bytes = |i| std::fs::read(place.round(i)).unwrap();
    let before = [bytes(0), bytes(1)];
    assert!(!place.round(3).exists() && !place.out().exists());

    let output = place.run("0.15", &[], &[]);
    assert_ends(&output, 0, &["of 4 rounds were there", "round 4 of 4: "]);
    assert_eq!([bytes(0), bytes(1)], before);
    let artifact = place.artifact();
    let traces: BTreeSet<&String> = artifact.provenance.traces_sha256.iter().collect();
    assert_eq!(traces.len(), 4, "each round once");
    let mut points = 0;
    let mut seen = BTreeSet::new();
    for i in 0..4 {
        let rows = place.rows(i);
        let loads: BTreeSet<u64> = rows.iter().map(|r| r.load.to_bits()).collect();
        assert_eq!(loads.len(), LOADS.len(), "round {i} spans the load");
        for r in &rows {
            assert!(seen.insert((i, r.trace.request)), "{r:?} is there twice");
        }
        if i == 1 {
            points = rows
                .iter()
                .filter(|r| !r.dropped && r.trace.latency_ms.is_some())
                .count();
        }
    }
    assert_eq!(artifact.points.len(), points, "the second round calibrates");

    // All rounds are there: it only fits. That nobody reads what came of it is no failure.
    std::fs::remove_file(place.out()).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut again = place.command("0.15", &[], &[]);
    let output = again.stdout(writer).output().unwrap();
    assert_no_panic(&stderr(&output));
    assert_ends(&output, 0, &["4 of 4 rounds were there"]);
    assert_eq!(place.artifact(), artifact);

    let refused = place.run(
        "0.15",
        &[],
        &[("fake.step_us", "3000"), ("kv.cells", "8192")],
    );
    let says = [
        "fake.step_us 1000.0, now 3000.0",
        "kv.cells 16384, now 8192",
        "calibration.bin.work",
    ];
    assert_ends(&refused, 64, &says);
    assert_ends(
        &place.run("0.2", &[], &[]),
        64,
        &["plan.minutes 0.15, now 0.2"],
    );
    let asked = place.run("0.15", &["--prompts", &place.prompts], &[]);
    assert_ends(&asked, 64, &["prompts \"built in\", now "]);
    std::fs::write(place.work("manifest.json"), "{\"settings\": ").unwrap();
    assert_ends(
        &place.run("0.15", &[], &[]),
        64,
        &["manifest.json that can't be read"],
    );
    std::fs::remove_file(place.work("manifest.json")).unwrap();
    assert_ends(
        &place.run("0.15", &[], &[]),
        64,
        &["rounds and no manifest.json"],
    );
}

#[test]
fn clients_that_leave_are_kept_as_lower_bounds() {
    let place = Place::new();
    let output = place.run("0.15", &["--patience-s", "0.15"], &[]);
    assert_ends(&output, 0, &["given up"]);
    let rows: Vec<RoundRow> = (0..4).flat_map(|i| place.rows(i)).collect();
    let left: Vec<&RoundRow> = rows.iter().filter(|r| r.trace.censored).collect();
    assert!(!left.is_empty());
    for r in left {
        assert_eq!(r.trace.outcome, "cancelled", "{r:?}");
    }
    let censored = place
        .artifact()
        .points
        .iter()
        .filter(|p| p.latency.is_censored())
        .count();
    let second = place
        .rows(1)
        .iter()
        .filter(|r| r.trace.censored && !r.dropped)
        .count();
    assert_eq!(censored, second);
}
