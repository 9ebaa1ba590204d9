//! What a sweep is: its cells and their order. Rate by rate, so that the machine's slow changes fall on all rungs
//! alike, and within a rate the rung that goes first rotates, so that none always follows the same other.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::load::mix::Mix;
use crate::load::soundness::{MeasurementUnsound, Unsound};

/// A rung, by its configuration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Step {
    pub rung: String,
    pub file: PathBuf,
    /// What stood in the file.
    pub config: String,
}

/// Everything that all cells of a sweep have in common. A sweep is resumed under the same plan or not at all.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub engine_fingerprint: Option<String>,
    pub model_sha256: Option<String>,
    pub machine: Value,
    pub rungs: Vec<Step>,
    pub settings: Vec<(String, String)>,
    pub rates_per_s: Vec<f64>,
    pub seeds: u64,
    /// Of each cell.
    pub arrivals: usize,
    pub mix: Mix,
    pub slo_ms: u64,
    pub timeout_s: f64,
    pub percentile: f64,
}

/// One run of one rung.
#[derive(Clone, PartialEq, Debug)]
pub struct CellId {
    pub rung: String,
    pub config: PathBuf,
    pub rate: f64,
    pub seed: u64,
}

impl CellId {
    /// Of its files.
    pub fn name(&self) -> String {
        format!("{}-{}-{}", self.rung, self.rate, self.seed)
    }
}

impl Plan {
    /// All cells in the order in which they are measured.
    pub fn cells(&self) -> Vec<CellId> {
        let mut cells = Vec::new();
        let mut first = 0;
        for &rate in &self.rates_per_s {
            for seed in 0..self.seeds {
                for i in 0..self.rungs.len() {
                    let step = &self.rungs[(first + i) % self.rungs.len()];
                    cells.push(CellId {
                        rung: step.rung.clone(),
                        config: step.file.clone(),
                        rate,
                        seed,
                    });
                }
                first += 1;
            }
        }
        cells
    }

    /// Makes `folder` the sweep's, or finds it to be so already.
    ///
    /// # Errors
    /// When it holds another sweep, and names what differs.
    pub fn settle(&self, folder: &Path) -> Result<()> {
        let file = folder.join("plan.json");
        if !file.exists() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("making {}", folder.display()))?;
            let text = serde_json::to_string_pretty(self)? + "\n";
            return std::fs::write(&file, text)
                .with_context(|| format!("writing {}", file.display()));
        }
        let text = std::fs::read_to_string(&file)?;
        let old: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is no plan of a ladder", file.display()))?;
        self.is_as(&old)
            .with_context(|| format!("{} can't be resumed", folder.display()))
    }

    fn is_as(&self, old: &Self) -> Result<()> {
        if self.engine_fingerprint != old.engine_fingerprint {
            let name = |f: &Option<String>| f.clone().unwrap_or_else(|| "unknown".into());
            bail!(MeasurementUnsound(vec![Unsound::MixedFingerprints {
                first: name(&old.engine_fingerprint),
                other: name(&self.engine_fingerprint),
            }]));
        }
        let (new, old) = (serde_json::to_value(self)?, serde_json::to_value(old)?);
        let fields = new.as_object().context("a plan has fields")?;
        let other = fields.iter().filter(|(k, v)| old[k.as_str()] != **v);
        let names: Vec<&str> = other.map(|(k, _)| k.as_str()).collect();
        if !names.is_empty() {
            bail!("it was begun with other {}", names.join(", "));
        }
        Ok(())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn plan(rungs: usize, rates: &[f64], seeds: u64) -> Plan {
        let step = |i: usize| Step {
            rung: format!("r{i}"),
            file: format!("r{i}.toml").into(),
            config: String::new(),
        };
        Plan {
            engine_fingerprint: Some("f".into()),
            model_sha256: None,
            machine: Value::Null,
            rungs: (0..rungs).map(step).collect(),
            settings: Vec::new(),
            rates_per_s: rates.to_vec(),
            seeds,
            arrivals: 10,
            mix: Mix::Short,
            slo_ms: 1000,
            timeout_s: 9.0,
            percentile: 90.0,
        }
    }

    #[test]
    fn rates_come_one_after_the_other_and_the_first_rung_rotates() {
        let cells = plan(3, &[0.5, 2.0], 2).cells();
        let names: Vec<String> = cells.iter().map(CellId::name).collect();
        assert_eq!(
            names,
            [
                "r0-0.5-0", "r1-0.5-0", "r2-0.5-0", "r1-0.5-1", "r2-0.5-1", "r0-0.5-1", "r2-2-0",
                "r0-2-0", "r1-2-0", "r0-2-1", "r1-2-1", "r2-2-1"
            ]
        );
    }

    #[test]
    fn a_folder_holds_one_sweep_and_says_what_differs() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("ladder");
        let first = plan(3, &[1.0], 2);
        first.settle(&folder).unwrap();
        first.settle(&folder).unwrap();
        let other = Plan {
            seeds: 3,
            slo_ms: 900,
            ..first.clone()
        };
        let error = format!("{:#}", other.settle(&folder).unwrap_err());
        assert!(error.contains("other seeds, slo_ms"), "{error}");
        let changed = Plan {
            engine_fingerprint: Some("g".into()),
            ..first
        };
        let error = changed.settle(&folder).unwrap_err();
        assert!(error.is::<MeasurementUnsound>(), "{error:#}");
    }
}
