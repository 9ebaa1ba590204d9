//! What a sweep is: its cells and their order. Rate by rate, so that the machine's slow changes fall on all rungs
//! alike, and within a rate the rung that goes first rotates, by so many places that each is early in one round and
//! late in another.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::load::meta;
use crate::load::mix::Mix;
use crate::load::quantile::fewest_for;
use crate::load::soundness::{MeasurementUnsound, Unsound};
use crate::provenance;
use crate::report::cell_files;
use crate::serving::Serving;

const FILE: &str = "plan.json";

/// A rung, by its configuration, or a variant of one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Step {
    pub rung: String,
    pub file: PathBuf,
    /// What stood in the file.
    pub config: String,
    /// By section.key, what a variant has otherwise than the file; nothing for a rung.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<(String, String)>,
}

impl Step {
    /// # Errors
    /// When the file can't be read.
    pub fn read(rung: &str, file: &Path, settings: Vec<(String, String)>) -> Result<Self> {
        let config = std::fs::read_to_string(file);
        Ok(Self {
            rung: rung.to_owned(),
            file: file.to_owned(),
            config: config.with_context(|| format!("reading {}", file.display()))?,
            settings,
        })
    }
}

/// What every step is offered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Offer {
    pub rates_per_s: Vec<f64>,
    pub seeds: u64,
    /// Of each cell.
    pub arrivals: usize,
    pub mix: Mix,
    /// The server is told of it, if there is one.
    pub slo_ms: Option<u64>,
    pub timeout_s: f64,
    /// The highest that is to be quoted.
    pub percentile: f64,
}

impl Offer {
    fn check(&self) -> Result<()> {
        ensure!(
            self.rates_per_s.iter().all(|r| *r > 0.0 && r.is_finite()),
            "a rate is a number above 0"
        );
        ensure!(
            self.rates_per_s.is_sorted_by(|a, b| a < b),
            "--rates: they do not ascend"
        );
        ensure!(
            self.mix != Mix::Trace,
            "--mix trace: a trace has arrivals of its own; `run --arrivals trace` replays one"
        );
        ensure!(self.seeds > 0, "no seed");
        let fewest = fewest_for(self.percentile);
        ensure!(
            self.arrivals >= fewest,
            "--arrivals {}: fewer than {fewest} make p{} (--percentile) the maximum",
            self.arrivals,
            self.percentile
        );
        Ok(())
    }
}

/// Everything that all cells of a sweep have in common. A sweep is resumed under the same plan or not at all.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub engine_fingerprint: Option<String>,
    pub model_sha256: Option<String>,
    pub machine: Value,
    pub rungs: Vec<Step>,
    /// On top of each rung's.
    pub settings: Vec<(String, String)>,
    #[serde(flatten)]
    pub offer: Offer,
}

/// One run of one rung.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CellId<'a> {
    pub step: &'a Step,
    pub rate: f64,
    pub seed: u64,
}

impl CellId<'_> {
    /// Of its files.
    pub fn name(&self) -> String {
        format!("{}-{}-{}", self.step.rung, self.rate, self.seed)
    }
}

impl Plan {
    /// On this machine, with the engine as it is now.
    ///
    /// # Errors
    /// When it makes no sweep, and says why.
    pub fn new(serving: &Serving, rungs: Vec<Step>, offer: Offer) -> Result<Self> {
        offer.check()?;
        ensure!(!rungs.is_empty(), "no rung");
        for (i, step) in rungs.iter().enumerate() {
            ensure!(
                rungs[..i].iter().all(|s| s.rung != step.rung),
                "{} is there twice",
                step.rung
            );
        }
        let model = serving
            .model_file()
            .map(provenance::model_file)
            .transpose()?;
        let root = provenance::root();
        Ok(Self {
            engine_fingerprint: root.map(|root| meta::fingerprint(&root)).transpose()?,
            model_sha256: model.map(|m| m.sha256),
            machine: serde_json::to_value(provenance::machine())?,
            rungs,
            settings: serving.settings.clone(),
            offer,
        })
    }

    /// All cells in the order in which they are measured.
    pub fn cells(&self) -> Vec<CellId<'_>> {
        let Offer {
            rates_per_s, seeds, ..
        } = &self.offer;
        let rounds = rates_per_s.len() * *seeds as usize;
        let places = (self.rungs.len() / rounds.max(1)).max(1);
        let mut cells = Vec::new();
        let mut first = 0;
        for &rate in rates_per_s {
            for seed in 0..*seeds {
                for i in 0..self.rungs.len() {
                    let step = &self.rungs[(first + i) % self.rungs.len()];
                    cells.push(CellId { step, rate, seed });
                }
                first += places;
            }
        }
        cells
    }

    /// Makes `folder` the sweep's, or finds it to be so already.
    ///
    /// # Errors
    /// When it holds another sweep, and names what differs.
    pub fn settle(&self, folder: &Path) -> Result<()> {
        let file = folder.join(FILE);
        if !file.exists() {
            if let Some(cell) = cell_files(folder)?.first() {
                bail!(
                    "{} is of another sweep, whose {FILE} is gone: put that back, or take another folder (--out)",
                    cell.display()
                );
            }
            std::fs::create_dir_all(folder)
                .with_context(|| format!("making {}", folder.display()))?;
            let text = serde_json::to_string_pretty(self)? + "\n";
            return std::fs::write(&file, text)
                .with_context(|| format!("writing {}", file.display()));
        }
        self.is_as(&Self::read(folder)?)
            .with_context(|| format!("{} can't be resumed", folder.display()))
    }

    /// The folder's plan for the engine as it is now, which may be another one; everything else is as it was.
    ///
    /// # Errors
    /// When the folder has none, and names what else differs.
    pub fn of_before(serving: &Serving, folder: &Path) -> Result<Self> {
        let old = Self::read(folder)?;
        let step = |s: &Step| Step::read(&s.rung, &s.file, s.settings.clone());
        let rungs = old.rungs.iter().map(step).collect::<Result<_>>()?;
        let now = Self::new(serving, rungs, old.offer.clone())?;
        let then = Self {
            engine_fingerprint: now.engine_fingerprint.clone(),
            ..old
        };
        now.is_as(&then)
            .with_context(|| format!("no cell of {} can be run again", folder.display()))?;
        Ok(now)
    }

    fn read(folder: &Path) -> Result<Self> {
        let file = folder.join(FILE);
        let text = std::fs::read_to_string(&file);
        let text = text.with_context(|| format!("reading {}", file.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is no plan of a ladder", file.display()))
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
            settings: Vec::new(),
        };
        Plan {
            engine_fingerprint: Some("f".into()),
            model_sha256: None,
            machine: Value::Null,
            rungs: (0..rungs).map(step).collect(),
            settings: Vec::new(),
            offer: Offer {
                rates_per_s: rates.to_vec(),
                seeds,
                arrivals: 10,
                mix: Mix::Short,
                slo_ms: Some(1000),
                timeout_s: 9.0,
                percentile: 90.0,
            },
        }
    }

    #[test]
    fn rates_come_one_after_the_other_and_the_first_rung_rotates() {
        let plan = plan(3, &[0.5, 2.0], 2);
        let cells = plan.cells();
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
    fn of_many_rungs_in_few_rounds_each_is_early_once_and_late_once() {
        let plan = plan(9, &[1.0], 3);
        let cells = plan.cells();
        let third = |rung: &str, round: usize| {
            let its = &cells[9 * round..9 * (round + 1)];
            its.iter().position(|c| c.step.rung == rung).unwrap() / 3
        };
        for step in &plan.rungs {
            let mut thirds = [0, 1, 2].map(|round| third(&step.rung, round));
            thirds.sort_unstable();
            assert_eq!(thirds, [0, 1, 2], "{}", step.rung);
        }
    }

    #[test]
    fn plans_of_before_there_were_variants_are_still_theirs() {
        let old = serde_json::json!({
            "engine_fingerprint": "f", "model_sha256": null, "machine": null,
            "rungs": [{ "rung": "r0", "file": "r0.toml", "config": "" }],
            "settings": [], "rates_per_s": [2.0], "seeds": 1, "arrivals": 10, "mix": "short",
            "slo_ms": 1000, "timeout_s": 9.0, "percentile": 90.0,
        });
        let plan = plan(1, &[2.0], 1);
        assert_eq!(serde_json::to_value(&plan).unwrap(), old);
        assert_eq!(serde_json::from_value::<Plan>(old).unwrap(), plan);
    }

    #[test]
    fn a_folder_holds_one_sweep_and_says_what_differs() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("ladder");
        let first = plan(3, &[1.0], 2);
        first.settle(&folder).unwrap();
        first.settle(&folder).unwrap();
        let mut other = first.clone();
        (other.offer.seeds, other.offer.slo_ms) = (3, Some(900));
        let error = format!("{:#}", other.settle(&folder).unwrap_err());
        assert!(error.contains("other seeds, slo_ms"), "{error}");
        // Whose cells these are nobody knows; they were taken for this sweep's.
        let cell = folder.join("r0-1-0.parquet");
        std::fs::write(&cell, "").unwrap();
        first.settle(&folder).unwrap();
        let plan = folder.join(FILE);
        let kept = std::fs::read_to_string(&plan).unwrap();
        std::fs::remove_file(&plan).unwrap();
        let error = first.settle(&folder).unwrap_err().to_string();
        assert!(
            error.contains("r0-1-0.parquet") && error.contains("--out"),
            "{error}"
        );
        assert!(!plan.exists());
        std::fs::write(&plan, kept).unwrap();
        let changed = Plan {
            engine_fingerprint: Some("g".into()),
            ..first
        };
        let error = changed.settle(&folder).unwrap_err();
        assert!(error.is::<MeasurementUnsound>(), "{error:#}");
    }
}
