//! Where a calibration is until it is whole: a folder beside the file that it will be, with the settings it was
//! begun with and a file for each round that is complete. Files get their names when they are whole, so a killed
//! collection goes on at the next round that is missing.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::Failure;
use crate::hub;
use crate::logic::conformal::artifact::Provenance;
use crate::logic::conformal::rounds::{Plan, RoundRow};

/// What all rounds of a collection have in common.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Of the program.
    pub version: String,
    pub plan: Plan,
    /// What was asked.
    pub prompts: String,
    pub patience_s: f64,
    /// Of the model's file, or of what a fake one costs.
    pub model: String,
    /// The daemon's.
    pub config: Value,
}

/// Written once, before the first round.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub settings: Settings,
    /// Requests a second that the machine can do at most.
    pub saturation_per_s: f64,
    /// The engine that is calibrated.
    pub provenance: Provenance,
}

/// See the module's text.
pub struct Workdir {
    path: PathBuf,
    /// Held as long as this lives: two collections at once would measure each other.
    _lock: File,
}

impl Workdir {
    /// The folder beside `out`, made if it is not there.
    ///
    /// # Errors
    /// When it can't be made, or another process works in it.
    pub fn open(out: &Path) -> Result<Self, Failure> {
        let path = beside(out, "work");
        let fault = |e: &dyn std::fmt::Display| {
            Failure::Unavailable(format!("--out: {}: {e}", path.display()))
        };
        if out.is_dir() {
            return Err(Failure::Unavailable(format!(
                "--out: {} is a folder",
                out.display()
            )));
        }
        if !path.is_dir() {
            std::fs::create_dir(&path).map_err(|e| fault(&e))?;
        }
        let lock = File::create(path.join("lock")).map_err(|e| fault(&e))?;
        lock.try_lock()
            .map_err(|_| fault(&"another calibration is under way there"))?;
        Ok(Self { path, _lock: lock })
    }

    pub fn folder(&self) -> &Path {
        &self.path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The manifest, if there is one, which must be of these settings.
    ///
    /// # Errors
    /// When it can't be read, or names what is different.
    pub fn manifest(&self, settings: &Settings) -> Result<Option<Manifest>, Failure> {
        let path = self.file("manifest.json");
        if !path.exists() {
            return match self.round_file(0).exists() {
                false => Ok(None),
                true => Err(self.foreign("has rounds and no manifest.json")),
            };
        }
        let manifest: Manifest = std::fs::read_to_string(&path)
            .map_err(|e| e.to_string())
            .and_then(|text| serde_json::from_str(&text).map_err(|e| e.to_string()))
            .map_err(|e| self.foreign(&format!("has a manifest.json that can't be read: {e}")))?;
        let differences = differences(&manifest.settings, settings)?;
        if differences.is_empty() {
            Ok(Some(manifest))
        } else {
            let what = differences.join(", ");
            Err(self.foreign(&format!("was begun with other settings: {what}")))
        }
    }

    /// Keeps the manifest.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn begin(&self, manifest: &Manifest) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(manifest).map_err(internal)? + "\n";
        write_whole(&self.file("manifest.json"), text.as_bytes())
    }

    pub fn has_round(&self, round: u32) -> bool {
        self.round_file(round).exists()
    }

    /// Keeps a round.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn keep_round(&self, round: u32, rows: &[RoundRow]) -> Result<(), Failure> {
        let mut text = Vec::new();
        for row in rows {
            serde_json::to_writer(&mut text, row).map_err(internal)?;
            text.push(b'\n');
        }
        write_whole(&self.round_file(round), &text)
    }

    fn round_file(&self, round: u32) -> PathBuf {
        self.file(&round_name(round))
    }

    fn foreign(&self, why: &str) -> Failure {
        let path = self.path.display();
        Failure::Usage(format!("{path} {why}; remove it, or name another --out"))
    }
}

/// The first `rounds` rounds kept in `folder`, and the SHA-256 of each one's file.
///
/// # Errors
/// Names the file and the line that can't be read.
pub fn read_rounds(
    folder: &Path,
    rounds: u32,
) -> Result<(Vec<Vec<RoundRow>>, Vec<String>), String> {
    let mut all = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let path = folder.join(round_name(round));
        let fault = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let text = std::fs::read_to_string(&path).map_err(|e| fault(&e))?;
        let parse =
            |(n, line)| serde_json::from_str(line).map_err(|e| fault(&format!("line {n}: {e}")));
        let rows = (1..)
            .zip(text.lines())
            .map(parse)
            .collect::<Result<_, _>>()?;
        all.0.push(rows);
        all.1.push(hub::hex(&Sha256::digest(text)));
    }
    Ok(all)
}

fn round_name(round: u32) -> String {
    format!("round-{round}.jsonl")
}

/// `path` with another ending behind its own.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// A file under its name only when it is whole.
///
/// # Errors
/// When it can't be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let part = beside(path, "part");
    let write = || {
        let mut file = File::create(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&part, path)
    };
    write().map_err(|e| Failure::Unavailable(format!("{}: {e}", path.display())))
}

fn internal(e: impl std::fmt::Display) -> Failure {
    Failure::Internal(e.to_string())
}

/// Each setting that differs, with both sides.
fn differences(old: &Settings, new: &Settings) -> Result<Vec<String>, Failure> {
    // Both by way of text, so that numbers are equal when they are written alike.
    let leaves = |settings: &Settings| {
        let text = serde_json::to_string(settings)?;
        let mut leaves = Vec::new();
        flatten("", &serde_json::from_str(&text)?, &mut leaves);
        Ok::<_, serde_json::Error>(leaves)
    };
    let (old, new) = (
        leaves(old).map_err(internal)?,
        leaves(new).map_err(internal)?,
    );
    let value = |of: &[(String, Value)], key: &str| {
        let found = of.iter().find(|(k, _)| k == key);
        found.map_or(Value::Null, |(_, v)| v.clone())
    };
    let mut keys: Vec<&String> = old.iter().chain(&new).map(|(k, _)| k).collect();
    keys.sort();
    keys.dedup();
    Ok(keys
        .into_iter()
        .map(|key| (key, value(&old, key), value(&new, key)))
        .filter(|(_, old, new)| old != new)
        .map(|(key, old, new)| {
            let key = key.strip_prefix("config.").unwrap_or(key);
            format!("{key} {old}, now {new}")
        })
        .collect())
}

fn flatten(prefix: &str, value: &Value, leaves: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let dot = if prefix.is_empty() { "" } else { "." };
                flatten(&format!("{prefix}{dot}{key}"), value, leaves);
            }
        }
        leaf => leaves.push((prefix.to_owned(), leaf.clone())),
    }
}

#[cfg(test)]
#[path = "workdir_tests.rs"]
mod tests;
