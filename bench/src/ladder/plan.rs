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

    /// `serving` with the settings that the folder's sweep had.
    ///
    /// # Errors
    /// When the folder has none, or `serving` has others.
    pub fn serving_of_before(serving: &Serving, folder: &Path) -> Result<Serving> {
        let settings = Self::read(folder)?.settings;
        ensure!(
            serving.settings.is_empty() || serving.settings == settings,
            "--set: the sweep in {} had other settings, and has them again without it: {}",
            folder.display(),
            serde_json::to_string(&settings)?
        );
        Ok(Serving {
            settings,
            ..serving.clone()
        })
    }

    /// How many cells the sweep in `folder` is to have; none where no sweep is.
    ///
    /// # Errors
    /// When its plan can't be read.
    pub fn cells_of(folder: &Path) -> Result<Option<usize>> {
        let is_one = folder.join(FILE).exists();
        let plan = is_one.then(|| Self::read(folder)).transpose()?;
        Ok(plan.map(|p| p.cells().len()))
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
#[path = "plan_tests.rs"]
pub mod tests;
