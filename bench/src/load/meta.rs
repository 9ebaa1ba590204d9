//! What lies beside the raw records: where they come from and what they are, enough to run the cell again and to
//! refuse to compare what can't be compared.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::arrivals::{Process, Schedule};
use super::driver::Loop;
use super::metrics::Summary;
use super::mix::Mix;
use super::soundness::{Limits, Unsound};
use super::target::Target;
use super::validate::KsTest;

/// Raised when a reader of older files would misread newer ones.
pub const FORMAT: u32 = 1;

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    pub format: u32,
    pub started: String,
    pub finished: String,
    pub command: String,
    /// Of the repository, and whether it had changes.
    pub revision: String,
    /// Of the engine's sources: see [`fingerprint`].
    pub engine_fingerprint: Option<String>,
    pub model_sha256: Option<String>,
    pub machine: Value,
    pub server: Server,
    pub cell: Cell,
    /// CPU that the generator used, in cores.
    pub generator_cores: f64,
    /// The gaps as drawn against the exponential: reported, never selected on.
    pub gaps: Option<KsTest>,
    pub summary: Summary,
    /// Empty for a run that may be reported.
    pub unsound: Vec<Unsound>,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    pub mode: Loop,
    pub mix: Mix,
    pub schedule: Schedule,
    pub trace: Option<String>,
    pub slo_ms: Option<u64>,
    /// Whether the server was told of it.
    pub slo_sent: bool,
    pub timeout_s: f64,
    pub warm_up_s: f64,
    pub cool_down_s: f64,
    pub temperature: f64,
    pub ignore_eos: bool,
    pub limits: Limits,
}

impl Cell {
    /// What was asked for, for a reader. A closed loop has no rate and neither has a burst of everything; the schedule's
    /// is 1 there and says nothing.
    pub fn asked(&self) -> String {
        let Schedule {
            process,
            rate,
            burst,
            ..
        } = &self.schedule;
        match (self.mode, process, burst) {
            (Loop::Closed(clients), ..) => format!("{clients} clients in a closed loop"),
            (Loop::Open, Process::Burst, None) => "all at once".into(),
            (Loop::Open, Process::Burst, Some(size)) => format!("{rate}/s in bursts of {size}"),
            (Loop::Open, ..) => format!("{rate}/s"),
        }
    }
}

/// What the server says of itself, before the run and after it; null where it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Server {
    pub model: Option<String>,
    pub rung: Option<String>,
    pub backend: Option<String>,
    /// The settings in force.
    pub effective: Value,
    /// All of `/stats`.
    pub before: Value,
    pub after: Value,
}

impl Server {
    /// Asks `target`; a server of another make answers nothing.
    pub fn ask(target: &Target) -> Self {
        let before = target.get("/stats").unwrap_or(Value::Null);
        let text = |key: &str| before[key].as_str().map(str::to_owned);
        Self {
            model: text("model"),
            rung: text("rung"),
            backend: text("backend"),
            effective: before["effective"].clone(),
            before,
            after: Value::Null,
        }
    }

    /// Whether this is the daemon of this repository.
    pub fn is_ours(&self) -> bool {
        self.rung.is_some() && self.effective.is_object()
    }
}

impl Meta {
    /// Seconds in which requests arrived.
    pub fn arrivals_s(&self) -> f64 {
        let cell = &self.cell;
        self.summary.window_s + cell.warm_up_s + cell.cool_down_s
    }

    /// Where the metadata of `records` is.
    pub fn path(records: &Path) -> PathBuf {
        records.with_extension("json")
    }

    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, records: &Path) -> Result<()> {
        let path = Self::path(records);
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// # Errors
    /// When the file can't be read, or is of another format.
    pub fn read(records: &Path) -> Result<Self> {
        let path = Self::path(records);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        let meta: Self =
            serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?;
        anyhow::ensure!(
            meta.format == FORMAT,
            "{} has format {}",
            path.display(),
            meta.format
        );
        Ok(meta)
    }
}

/// A hash of everything that makes the engine: its sources and the versions of its dependencies, whatever the
/// revision is called. Files below `root`, by name.
///
/// # Errors
/// When a file can't be read.
pub fn fingerprint(root: &Path) -> Result<String> {
    let mut files = vec![root.join("Cargo.lock"), root.join("Cargo.toml")];
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("{}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file);
        let text = std::fs::read(&file).with_context(|| format!("{}", file.display()))?;
        hash.update(format!("{} {}\n", name.display(), text.len()));
        hash.update(text);
    }
    Ok(hash
        .finalize()
        .iter()
        .take(8)
        .map(|b| format!("{b:02x}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_changes_with_the_sources_alone() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("src/logic")).unwrap();
        for file in [
            "Cargo.lock",
            "Cargo.toml",
            "src/main.rs",
            "src/logic/mod.rs",
        ] {
            std::fs::write(root.join(file), file).unwrap();
        }
        let first = fingerprint(root).unwrap();
        std::fs::write(root.join("README.md"), "x").unwrap();
        assert_eq!(fingerprint(root).unwrap(), first);
        std::fs::write(root.join("src/logic/mod.rs"), "changed").unwrap();
        assert_ne!(fingerprint(root).unwrap(), first);
        assert!(fingerprint(&root.join("src")).is_err());
    }
}
