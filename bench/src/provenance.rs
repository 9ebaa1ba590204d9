//! Where a result comes from: machine, revision, command line, model file, time. Part of every result file.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::canary::Canary;
use crate::effective::Effective;

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub cores: usize,
    pub cpu: String,
    pub memory_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct ModelFile {
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Provenance {
    pub started: String,
    pub finished: String,
    pub revision: String,
    pub command: String,
    /// OpenMP's variables, which llama.cpp's threads obey.
    pub environment: Vec<String>,
    pub machine: Machine,
    pub models: Vec<ModelFile>,
    pub effective: Option<Effective>,
    /// The same small generation before, in between and after; it moves only if the machine does.
    pub canary: Canary,
}

impl Provenance {
    /// Describes a measurement that begins now on `models`; the first model sings in the canary.
    pub fn begin(models: &[&Path]) -> Result<Self> {
        Ok(Self {
            started: now(),
            finished: String::new(),
            revision: revision(),
            command: command_line(),
            environment: environment(),
            machine: machine(),
            models: models
                .iter()
                .map(|m| model_file(m))
                .collect::<Result<_>>()?,
            effective: None,
            canary: Canary::begin(models.first().copied())?,
        })
    }

    /// Ends the measurement: the last canary, and the file.
    pub fn write(mut self, out: &Path, results: &impl Serialize) -> Result<()> {
        self.canary.sing()?;
        self.canary.report();
        self.finished = now();
        if let Some(folder) = out.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = serde_json::json!({ "provenance": self, "results": results });
        let text = serde_json::to_string_pretty(&file)? + "\n";
        std::fs::write(out, text).with_context(|| format!("writing {}", out.display()))?;
        println!("written: {}", out.display());
        Ok(())
    }
}

pub fn now() -> String {
    time::OffsetDateTime::now_utc()
        .format(&time::format_description::well_known::Rfc3339)
        .map_or_else(
            |e| e.to_string(),
            |t| t.split('.').next().unwrap_or(&t).to_owned() + "Z",
        )
}

pub fn revision() -> String {
    let git = |args: &[&str]| {
        let output = std::process::Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    let Some(head) = git(&["rev-parse", "HEAD"]) else {
        return "unknown".into();
    };
    // Results of earlier measurements are not what is measured.
    let changed = git(&[
        "status",
        "--porcelain",
        "-uno",
        "--",
        ":/",
        ":(exclude,top)bench/results",
    ]);
    match changed.as_deref() {
        Some("") => head,
        _ => format!("{head} with changes"),
    }
}

/// Without the folders of absolute paths, which are nobody's business.
pub fn command_line() -> String {
    let shorten = |arg: String| {
        let path = PathBuf::from(&arg);
        match path.file_name() {
            Some(name) if path.is_absolute() => name.to_string_lossy().into_owned(),
            _ => arg,
        }
    };
    let args = std::env::args().skip(1).map(shorten);
    std::iter::once("cadenced-bench".to_owned())
        .chain(args)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The repository's folder, if this runs in one.
pub fn root() -> Option<PathBuf> {
    let mut git = std::process::Command::new("git");
    let output = git.args(["rev-parse", "--show-toplevel"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(text.trim()))
}

fn environment() -> Vec<String> {
    std::env::vars()
        .filter(|(k, _)| {
            k.starts_with("OMP_") || k.starts_with("GOMP_") || k.starts_with("CADENCED__")
        })
        .map(|(k, v)| format!("{k}={v}"))
        .collect()
}

pub fn machine() -> Machine {
    let field = |file: &str, key: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let line = text
            .lines()
            .find(|l| l.starts_with(key))
            .unwrap_or_default();
        line.split_once(':')
            .map_or_else(String::new, |(_, v)| v.trim().to_owned())
    };
    let kib = field("/proc/meminfo", "MemTotal");
    let kib = kib
        .split_whitespace()
        .next()
        .and_then(|n| n.parse::<u64>().ok());
    Machine {
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        cpu: field("/proc/cpuinfo", "model name"),
        memory_bytes: kib.unwrap_or(0) * 1024,
    }
}

pub fn model_file(path: &Path) -> Result<ModelFile> {
    let mut file = std::fs::File::open(path).with_context(|| format!("{}", path.display()))?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let n = file.read(&mut block)?;
        if n == 0 {
            break;
        }
        hash.update(&block[..n]);
        bytes += n as u64;
    }
    let digest = hash.finalize();
    Ok(ModelFile {
        file: path
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
        bytes,
        sha256: digest.iter().map(|b| format!("{b:02x}")).collect(),
    })
}
