//! Traces, and the ways to split them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cadenced::calibrate::{Manifest, read_rounds};
use cadenced::logic::conformal::predictor::Row;
use cadenced::logic::conformal::rounds::{self, Block, Fold, Folds, ROUNDS_MIN, RoundRow};
use cadenced::logic::conformal::trace::TraceRow;
use cadenced::logic::rng::SplitMix64;
use serde_json::Value;

/// Of a run whose traces were not collected in blocks.
const DROPPED_S: f64 = 20.0;

/// See the module's text.
#[derive(Debug)]
pub struct Data {
    pub source: String,
    /// What was calibrated, where that is known.
    pub engine: Value,
    pub saturation_per_s: Option<f64>,
    pub rounds: Vec<Vec<RoundRow>>,
}

/// What decides on a row's fold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// Its run: what is deployed.
    Round,
    /// Chance.
    Request,
    /// Its place in the whole collection.
    Time,
    /// Its place in its block.
    TimeInBlock,
}

impl Split {
    pub const ALL: [(Self, &str); 4] = [
        (Self::Round, "by round"),
        (Self::Request, "by request"),
        (Self::Time, "by time"),
        (Self::TimeInBlock, "by time within each block"),
    ];
}

impl Data {
    /// Of the folder that a calibration leaves, or of trace files.
    ///
    /// # Errors
    /// Names what can't be read.
    pub fn read(from: &[PathBuf]) -> Result<Self> {
        match from {
            [folder] if folder.is_dir() => Self::of_workdir(folder),
            files => Self::of_traces(files),
        }
    }

    fn of_workdir(folder: &Path) -> Result<Self> {
        let file = folder.join("manifest.json");
        let text = std::fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
        let manifest: Manifest =
            serde_json::from_str(&text).with_context(|| format!("{}", file.display()))?;
        let (rounds, _) =
            read_rounds(folder, manifest.settings.plan.rounds).map_err(anyhow::Error::msg)?;
        Ok(Self {
            source: format!(
                "{} minutes of calibrate, prompts: {}",
                manifest.settings.plan.minutes, manifest.settings.prompts
            ),
            engine: serde_json::to_value(&manifest.provenance)?,
            saturation_per_s: Some(manifest.saturation_per_s),
            rounds,
        })
    }

    fn of_traces(files: &[PathBuf]) -> Result<Self> {
        // Two daemons may have started in the same second.
        let mut runs: BTreeMap<(u64, usize), Vec<TraceRow>> = BTreeMap::new();
        for (i, path) in files.iter().enumerate() {
            let text =
                std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
            for (n, line) in (1..).zip(text.lines()) {
                let row: TraceRow = serde_json::from_str(line)
                    .with_context(|| format!("{}, line {n}", path.display()))?;
                runs.entry((row.run, i)).or_default().push(row);
            }
        }
        ensure!(
            runs.len() >= ROUNDS_MIN as usize,
            "the traces are of {} runs of the daemon, and {ROUNDS_MIN} are needed: whole runs are split",
            runs.len()
        );
        let block = Block {
            load: f64::NAN,
            arrivals_s: f64::INFINITY,
            dropped_s: DROPPED_S,
            seed: 0,
        };
        Ok(Self {
            source: "traces".into(),
            engine: Value::Null,
            saturation_per_s: None,
            rounds: runs
                .into_values()
                .map(|rows| rounds::of_block(0, &block, rows))
                .collect(),
        })
    }

    pub fn folds(&self, split: Split) -> Folds {
        if split == Split::Round {
            return Folds::of_rounds(self.rounds.iter().map(Vec::as_slice));
        }
        let mut rows: Vec<(usize, &RoundRow)> = (0..)
            .zip(&self.rounds)
            .flat_map(|(i, round)| round.iter().map(move |r| (i, r)))
            .filter(|(_, r)| !r.dropped && r.trace.observation().is_some())
            .collect();
        let when = |(round, row): &(usize, &RoundRow)| (*round, row.block, row.trace.arrival_s);
        rows.sort_by(|a, b| {
            when(a)
                .partial_cmp(&when(b))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        let parts: Vec<Vec<(usize, &RoundRow)>> = match split {
            Split::TimeInBlock => rows
                .chunk_by(|a, b| (a.0, a.1.block) == (b.0, b.1.block))
                .map(<[_]>::to_vec)
                .collect(),
            Split::Request => {
                SplitMix64::new(0).shuffle(&mut rows);
                vec![rows]
            }
            Split::Time | Split::Round => vec![rows],
        };
        let mut folds = Folds::default();
        for part in parts {
            for (i, (_, row)) in part.iter().enumerate() {
                // The same proportions as rounds have.
                let fold = match 4 * i / part.len() {
                    0 | 1 => Fold::Train,
                    2 => Fold::Calibrate,
                    _ => Fold::Test,
                };
                folds.take(fold, row);
            }
        }
        folds
    }

    /// The training fold but its last round, and that round; `None` if it has but one.
    pub fn training_slice(&self) -> Option<(Vec<Row>, Vec<Row>)> {
        let training = (0..)
            .zip(&self.rounds)
            .filter(|(i, _)| Fold::of(*i) == Fold::Train);
        let training: Vec<Folds> = training
            .map(|(_, round)| Folds::of_rounds([round.as_slice()]))
            .collect();
        let (slice, others) = training.split_last()?;
        if others.is_empty() {
            return None;
        }
        let fit_on = others.iter().flat_map(|f| f.rows(Fold::Train)).copied();
        Some((fit_on.collect(), slice.rows(Fold::Train).to_vec()))
    }
}
