//! `micro`: runs the criterion benchmarks (`bench/benches`) and keeps what they found as a result like any other.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::numbers::positive;
use crate::provenance::Provenance;

/// Of bench/benches; other targets are no criterion benchmarks.
const BENCHES: [&str; 4] = ["conformal", "hot_paths", "kv", "prefix"];

#[derive(Args)]
pub struct MicroArgs {
    #[arg(long, default_value = "bench/results/micro.json")]
    out: PathBuf,
    /// Seconds that each benchmark is measured for.
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    seconds: f64,
}

/// One benchmark; nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Finding {
    id: String,
    mean_ns: f64,
    /// 95% confidence interval of the mean.
    low_ns: f64,
    high_ns: f64,
}

pub fn run(args: &MicroArgs) -> Result<()> {
    let mut provenance = Provenance::begin(&[])?;
    // This program lies in target/release.
    let target = std::env::current_exe()?;
    let target = target.ancestors().nth(2).context("no target folder")?;
    let criterion = target.join("criterion");
    // What is there may be of benchmarks that are no more.
    if criterion.exists() {
        std::fs::remove_dir_all(&criterion)?;
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["bench", "--workspace", "--locked", "--quiet"])
        .args(BENCHES.iter().flat_map(|name| ["--bench", name]))
        .args(["--", "--noplot", "--warm-up-time", "0.5"])
        .args(["--measurement-time", &args.seconds.to_string()])
        .env("CARGO_TARGET_DIR", target)
        .status()
        .context("cargo bench")?;
    ensure!(status.success(), "cargo bench: {status}");
    let mut findings = Vec::new();
    collect(&criterion, &mut findings)?;
    ensure!(
        !findings.is_empty(),
        "{}: no benchmark was run",
        criterion.display()
    );
    findings.sort_by(|a, b| a.id.cmp(&b.id));
    for f in &findings {
        println!("{:<60} {:>12.1} ns", f.id, f.mean_ns);
    }
    provenance.canary.sing()?;
    provenance.write(&args.out, &findings)
}

/// Every benchmark under a folder that criterion has written.
fn collect(folder: &Path, findings: &mut Vec<Finding>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        if path.file_name().is_some_and(|n| n == "new") {
            findings.push(finding(&path)?);
        } else {
            collect(&path, findings)?;
        }
    }
    Ok(())
}

fn finding(folder: &Path) -> Result<Finding> {
    let read = |name: &str| -> Result<Value> {
        let path = folder.join(name);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(serde_json::from_str(&text)?)
    };
    let (benchmark, estimates) = (read("benchmark.json")?, read("estimates.json")?);
    let mean = |path: &str| {
        estimates
            .pointer(path)
            .and_then(Value::as_f64)
            .context("mean")
    };
    Ok(Finding {
        id: benchmark["full_id"].as_str().context("full_id")?.to_owned(),
        mean_ns: mean("/mean/point_estimate")?,
        low_ns: mean("/mean/confidence_interval/lower_bound")?,
        high_ns: mean("/mean/confidence_interval/upper_bound")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_criterion_wrote_is_found_wherever_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("group/case/new");
        std::fs::create_dir_all(&new).unwrap();
        std::fs::create_dir_all(dir.path().join("group/case/base")).unwrap();
        std::fs::write(new.join("benchmark.json"), r#"{"full_id":"group/case"}"#).unwrap();
        let estimates = r#"{"mean":{"point_estimate":2.0,"confidence_interval":{"lower_bound":1.0,"upper_bound":3.0}}}"#;
        std::fs::write(new.join("estimates.json"), estimates).unwrap();
        let mut found = Vec::new();
        collect(dir.path(), &mut found).unwrap();
        assert_eq!(
            found,
            [Finding {
                id: "group/case".into(),
                mean_ns: 2.0,
                low_ns: 1.0,
                high_ns: 3.0
            }]
        );
    }
}
