//! A measurement in a process of its own: the specification goes in as JSON, the result comes out as JSON.
//! Nothing of an earlier cell (caches, thread pools, heap) is left for the next one.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// This very program, also when a build has replaced its file meanwhile.
const SELF: &str = "/proc/self/exe";

/// Runs this program's hidden `subcommand` on `spec`, with `env` on top of its own environment.
pub fn call<S: Serialize, R: DeserializeOwned>(
    subcommand: &str,
    spec: &S,
    env: &[(String, String)],
) -> Result<R> {
    let mut child = Command::new(SELF)
        .arg(subcommand)
        .envs(env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a child")?;
    let written = child
        .stdin
        .take()
        .context("no stdin")?
        .write_all(&serde_json::to_vec(spec)?);
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{subcommand}: {}", output.status);
    written?;
    serde_json::from_slice(&output.stdout).with_context(|| format!("{subcommand}: its answer"))
}

/// The child's side.
pub fn serve<S: DeserializeOwned, R: Serialize>(run: impl FnOnce(S) -> Result<R>) -> Result<()> {
    let mut spec = String::new();
    std::io::stdin().read_to_string(&mut spec)?;
    let result = run(serde_json::from_str(&spec)?)?;
    println!("{}", serde_json::to_string(&result)?);
    Ok(())
}
