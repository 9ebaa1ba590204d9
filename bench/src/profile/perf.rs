//! Linux' `perf`: records stacks of a running process by its frame pointers, and prints them.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

const HOW_TO_GET_IT: &str = "perf can't be run; on Debian: apt-get install linux-perf";

/// Samples as text, and what perf says of them.
pub struct Script {
    /// Event lines and indented stack lines, as inferno reads them.
    pub text: String,
    pub lost: u64,
    /// From the first sample to the last.
    pub seconds: f64,
}

/// What would sample.
pub fn version() -> Result<String> {
    let output = Command::new("perf").arg("--version").output();
    let output = output.context(HOW_TO_GET_IT)?;
    ensure!(output.status.success(), HOW_TO_GET_IT);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Samples process `pid` for `seconds`.
pub fn record(pid: u32, rate: u32, seconds: u32, out: &Path) -> Result<()> {
    // cpu-clock is a timer of the kernel's: it works where a virtual machine has no hardware counters.
    let output = Command::new("perf")
        .args(["record", "-q", "-e", "cpu-clock", "-g", "-F"])
        .args([&rate.to_string(), "-p", &pid.to_string(), "-o"])
        .arg(out)
        .args(["--", "sleep", &seconds.to_string()])
        .output()
        .context(HOW_TO_GET_IT)?;
    checked("perf can't sample here", &output)
}

/// Prints the recording. Symbols are looked up now, in the files that the process had mapped.
pub fn script(recording: &Path) -> Result<Script> {
    let output = Command::new("perf")
        .args(["script", "--no-inline", "--show-lost-events"])
        .args(["-F", "comm,pid,tid,time,event,ip,sym,dso", "-i"])
        .arg(recording)
        .output()
        .context(HOW_TO_GET_IT)?;
    checked("perf can't read its recording", &output)?;
    Ok(read(&String::from_utf8_lossy(&output.stdout)))
}

fn checked(what: &str, output: &Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    bail!(
        "{what} ({}):\n{}\
         kernel.perf_event_paranoid is {}: above 2 only root may sample, and a container may lack CAP_PERFMON",
        output.status,
        String::from_utf8_lossy(&output.stderr),
        std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")
            .unwrap_or_else(|e| e.to_string())
            .trim()
    )
}

/// Takes the records of losses out, and the times.
fn read(output: &str) -> Script {
    let mut script = Script {
        text: String::with_capacity(output.len()),
        lost: 0,
        seconds: 0.0,
    };
    let mut first = None;
    for line in output.lines() {
        if let Some((_, lost)) = line.split_once("PERF_RECORD_LOST") {
            let count = lost
                .split_whitespace()
                .find_map(|word| word.parse::<u64>().ok());
            script.lost += count.unwrap_or(0);
            continue;
        }
        if let Some(time) = event_time(line) {
            let first = *first.get_or_insert(time);
            script.seconds = time - first;
        }
        // inferno drops frames that begin with a bracket.
        script.text += &line.replace("(anonymous namespace)::", "");
        script.text.push('\n');
    }
    script
}

/// Of an event line `comm PID/TID SECONDS: event:`; stack lines are indented.
fn event_time(line: &str) -> Option<f64> {
    if line.starts_with(char::is_whitespace) {
        return None;
    }
    line.split_whitespace()
        .find_map(|word| word.strip_suffix(':')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_losses_are_read_and_losses_are_no_samples() {
        let script = read(
            "actix-rt|system  7/8  100.5: cpu-clock: \n\t  1f (anonymous namespace)::gemm<2> (x)\n\n\
             actix-rt|system  7/8  101.0: PERF_RECORD_LOST lost 12\n\
             actix-rt|system  7/8  102.0: PERF_RECORD_LOST_SAMPLES lost 3\n\
             actix-rt|system  7/9  103.0: cpu-clock: \n\t  1f main+0x1 (x)\n\n",
        );
        assert_eq!(script.lost, 15);
        assert!((script.seconds - 2.5).abs() < 1e-9);
        assert!(!script.text.contains("LOST") && script.text.contains("  1f gemm<2> (x)"));
    }
}
