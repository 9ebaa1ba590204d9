//! A bench that is killed, itself and not its group, leaves nothing behind: neither a daemon that holds a port and the
//! cores, nor a measurement in a process of its own. They need the daemon's binary beside the bench's, as a build of
//! the whole workspace leaves it.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Starts `cadenced-bench` with these arguments.
fn bench(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cadenced-bench"));
    command
        .args(args)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

/// A process by its id: its parent's id and its command line; none if it is gone or only not yet buried.
fn process(pid: u32) -> Option<(u32, String)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
    let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    (state != "Z" && state != "X").then(|| (parent, words.replace('\0', " ")))
}

/// The processes that `pid` has started, and those that they have, with their command lines.
fn descendants(pid: u32) -> Vec<(u32, String)> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    let all: Vec<(u32, (u32, String))> = pids.filter_map(|p| Some((p, process(p)?))).collect();
    let mut found: Vec<(u32, String)> = Vec::new();
    let mut parents = vec![pid];
    while let Some(of) = parents.pop() {
        let children = all.iter().filter(|(_, (parent, _))| *parent == of);
        for (child, (_, words)) in children {
            parents.push(*child);
            found.push((*child, words.clone()));
        }
    }
    found
}

fn wait_for<T>(what: &str, condition: impl Fn() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < end, "never came: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills the bench once it has a daemon, and waits for all that it had started to be gone.
fn leaves_no_daemon(args: &[&str]) {
    let mut bench = bench(args);
    let started = wait_for("a daemon", || {
        let all = descendants(bench.id());
        let serves = |words: &str| words.contains("cadenced serve") || words.contains("exe serve");
        all.iter().any(|(_, words)| serves(words)).then_some(all)
    });
    bench.kill().unwrap();
    bench.wait().unwrap();
    for (pid, words) in started {
        // Another process may have its id by then.
        let is_gone = || process(pid).is_none_or(|(_, now)| now != words);
        wait_for(&format!("the end of {words}"), || is_gone().then_some(()));
    }
}

#[test]
fn a_killed_ladder_leaves_no_daemon() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path().to_str().unwrap();
    let words = "ladder --set model.backend=fake --rates 1 --slo-ms 500 --mix short --seeds 1 --arrivals 100 --out";
    let args: Vec<&str> = words.split(' ').chain([out]).collect();
    leaves_no_daemon(&args);
}

#[test]
fn a_killed_gate_leaves_no_daemon() {
    leaves_no_daemon(&["gate", "--sockets"]);
}

/// A daemon that was started by a calibration that was started by the bench.
#[test]
fn a_killed_decision_leaves_neither_calibration_nor_daemon() {
    leaves_no_daemon(&["decision", "--out", "/nowhere/decision.json"]);
}

/// Computing, or as here opening a model that never comes, it does not look at its standard input.
#[test]
fn a_measurement_in_a_process_of_its_own_ends_with_its_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    let made = Command::new("mkfifo").arg(&model).status().unwrap();
    assert!(made.success());
    let mut cell = bench(&["canary-loop"]);
    let mut stdin = cell.stdin.take().unwrap();
    let spec = serde_json::json!({ "model": model });
    writeln!(stdin, "{spec}").unwrap();
    // It is opened for writing once somebody has it open for reading.
    let (sender, opened) = std::sync::mpsc::channel();
    let open = move || std::fs::File::options().write(true).open(model);
    std::thread::spawn(move || sender.send(open()));
    let _file = opened.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(cell.try_wait().unwrap(), None);
    drop(stdin);
    wait_for("its end", || process(cell.id()).is_none().then_some(()));
    cell.wait().unwrap();
}
