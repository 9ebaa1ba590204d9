//! A measurement in a process of its own: the specification goes in as a line of JSON, the result comes out as JSON.
//! Nothing of an earlier cell (caches, thread pools, heap) is left for the next one. It ends when its standard input
//! does, so that none goes on computing for a bench that was killed.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, getpid, kill_process};
use serde::Serialize;
use serde::de::DeserializeOwned;

const POLICY: &str = "OMP_WAIT_POLICY";
const SPIN: &str = "GOMP_SPINCOUNT";

/// This very program, also when a build has replaced its file meanwhile.
const SELF: &str = "/proc/self/exe";

/// How the daemon's compute threads wait unless told otherwise, in the words of its `/stats`.
pub const BOUNDED: &str = "spins 1000 times";
/// OpenMP's own way: spinning.
pub const DEFAULT: &str = "default";

/// Runs this program's hidden `subcommand` on `spec`, where compute threads wait by `wait_policy`.
pub fn call<S: Serialize, R: DeserializeOwned>(
    subcommand: &str,
    spec: &S,
    wait_policy: &str,
) -> Result<R> {
    let mut child = Command::new(SELF)
        .arg(subcommand)
        .env_remove(POLICY)
        .env_remove(SPIN)
        .envs(variable(wait_policy))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a child")?;
    // Held until the child has ended: see the module's text.
    let mut stdin = child.stdin.take().context("no stdin")?;
    let line = serde_json::to_string(spec)? + "\n";
    let written = stdin.write_all(line.as_bytes());
    let output = child.wait_with_output()?;
    drop(stdin);
    ensure!(output.status.success(), "{subcommand}: {}", output.status);
    written?;
    serde_json::from_slice(&output.stdout).with_context(|| format!("{subcommand}: its answer"))
}

/// The variable that makes OpenMP wait like this; it is read when a process starts.
fn variable(wait_policy: &str) -> Option<(&'static str, &str)> {
    let spins = wait_policy
        .strip_prefix("spins ")
        .and_then(|s| s.strip_suffix(" times"));
    match (spins, wait_policy) {
        (Some(count), _) => Some((SPIN, count)),
        (None, "active" | "passive") => Some((POLICY, wait_policy)),
        _ => None,
    }
}

/// The child's side.
pub fn serve<S: DeserializeOwned, R: Serialize>(run: impl FnOnce(S) -> Result<R>) -> Result<()> {
    let mut spec = String::new();
    std::io::stdin().read_line(&mut spec)?;
    std::thread::spawn(end_with_stdin);
    let result = run(serde_json::from_str(&spec)?)?;
    println!("{}", serde_json::to_string(&result)?);
    Ok(())
}

fn end_with_stdin() {
    // Nothing more is ever written to it.
    let _ = std::io::stdin().read(&mut [0]);
    // No exit: llama.cpp's destructors would pull the model from under a decode.
    let _ = kill_process(getpid(), Signal::KILL);
}
