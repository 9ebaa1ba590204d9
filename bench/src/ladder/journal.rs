//! What happened in a sweep, a line an attempt, so that a killed one can go on; and what its canaries say of the
//! machine: their spread over all cells, and between the rungs, which is what could favour one.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::song::Weather;
use crate::load::soundness::Unsound;
use crate::stats::Spread;

/// Why a cell was run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The plan has it.
    Cell,
    /// A cell was repeated: the sweep was resumed, and says how far its two parts are apart; or the engine has changed.
    Anchor,
}

/// One line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Attempt {
    pub cell: String,
    pub rung: String,
    pub part: Part,
    pub finished: String,
    pub took_s: f64,
    pub weather: Weather,
    /// Why it was set aside, or flagged if it was the last attempt.
    pub disturbed: Option<String>,
    pub unsound: Vec<Unsound>,
    /// What the anchor differs by from the cell that it repeats.
    pub anchor: Option<Disagreement>,
}

/// Relative differences of two runs of one cell: no smaller one between the sweep's parts means anything.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Disagreement {
    pub e2e_p50: Option<f64>,
    pub e2e_p99: Option<f64>,
    pub goodput: Option<f64>,
}

/// What is published of the canaries, in milliseconds a token.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Songs {
    pub n: usize,
    pub over_the_sweep_ms: Spread,
    /// Largest over smallest, less one.
    pub range: f64,
    pub mean_by_rung_ms: BTreeMap<String, f64>,
    pub range_between_rungs: f64,
}

const FILE: &str = "journal.jsonl";

/// What was attempted in a folder; nothing where no sweep was.
///
/// # Errors
/// When the file can't be read.
pub fn read(folder: &Path) -> Result<Vec<Attempt>> {
    Ok(attempts(&text(&folder.join(FILE))?))
}

fn text(path: &Path) -> Result<String> {
    match std::fs::read_to_string(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(String::new()),
        read => read.with_context(|| format!("reading {}", path.display())),
    }
}

/// A kill may have cut the last line off.
fn attempts(text: &str) -> Vec<Attempt> {
    let attempts = text.lines().map(serde_json::from_str);
    attempts.filter_map(Result::ok).collect()
}

/// The attempt that left the records of `cell` which were whole at `finished`; none if a kill came between the two.
pub fn attempt_at<'a>(
    attempts: &'a [Attempt],
    (cell, part): (&str, Part),
    finished: &str,
) -> Option<&'a Attempt> {
    // Times are written alike, to the second, so that they compare as texts.
    let is_its = |a: &&Attempt| a.cell == cell && a.part == part && a.finished.as_str() >= finished;
    attempts.iter().find(is_its)
}

/// See the module's text.
pub struct Journal {
    path: PathBuf,
    file: File,
    pub attempts: Vec<Attempt>,
}

impl Journal {
    /// Reads what is there, and goes on behind it.
    ///
    /// # Errors
    /// When the file can't be read or written.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let old = text(&path)?;
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("writing {}", path.display()))?;
        if !old.is_empty() && !old.ends_with('\n') {
            file.write_all(b"\n")?;
        }
        Ok(Self {
            path,
            file,
            attempts: attempts(&old),
        })
    }

    /// # Errors
    /// When it can't be written.
    pub fn add(&mut self, attempt: Attempt) -> Result<()> {
        let line = serde_json::to_string(&attempt)? + "\n";
        self.file
            .write_all(line.as_bytes())
            .with_context(|| format!("writing {}", self.path.display()))?;
        self.attempts.push(attempt);
        Ok(())
    }

    /// How often a cell of the plan was disturbed so far.
    pub fn disturbed(&self, cell: &str) -> usize {
        let is_one = |a: &&Attempt| a.part == Part::Cell && a.cell == cell && a.disturbed.is_some();
        self.attempts.iter().filter(is_one).count()
    }

    /// All songs so far.
    pub fn songs(&self) -> Vec<f64> {
        let both = |a: &Attempt| [a.weather.before_ms, a.weather.after_ms];
        self.attempts.iter().flat_map(both).collect()
    }

    /// What is published of them; of nothing, nothing.
    pub fn canaries(&self) -> Option<Songs> {
        Songs::of(self.attempts.iter())
    }
}

impl Songs {
    /// Those of these attempts; `None` without any.
    pub fn of<'a>(attempts: impl Iterator<Item = &'a Attempt>) -> Option<Self> {
        let mut songs = Vec::new();
        let mut by_rung: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for a in attempts {
            let both = [a.weather.before_ms, a.weather.after_ms];
            songs.extend(both);
            by_rung.entry(a.rung.clone()).or_default().extend(both);
        }
        let mean = |v: &Vec<f64>| v.iter().sum::<f64>() / v.len() as f64;
        let means: BTreeMap<String, f64> =
            by_rung.iter().map(|(k, v)| (k.clone(), mean(v))).collect();
        let range = |v: &[f64]| {
            let spread = Spread::of(v);
            spread.max / spread.min - 1.0
        };
        let between: Vec<f64> = means.values().copied().collect();
        (!songs.is_empty()).then(|| Self {
            n: songs.len(),
            over_the_sweep_ms: Spread::of(&songs),
            range: range(&songs),
            range_between_rungs: range(&between),
            mean_by_rung_ms: means,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(rung: &str, before_ms: f64, after_ms: f64) -> Attempt {
        Attempt {
            cell: format!("{rung}-1-0"),
            rung: rung.into(),
            part: Part::Cell,
            finished: "now".into(),
            took_s: 1.0,
            weather: Weather {
                before_ms,
                after_ms,
                ..Weather::default()
            },
            disturbed: None,
            unsound: Vec::new(),
            anchor: None,
        }
    }

    #[test]
    fn a_line_that_a_kill_cut_off_is_forgotten_and_the_rest_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        journal.add(attempt("a", 10.0, 10.0)).unwrap();
        journal.add(attempt("b", 11.0, 11.0)).unwrap();
        let file = folder.path().join("journal.jsonl");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, &text[..text.len() - 9]).unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        assert_eq!(journal.attempts, [attempt("a", 10.0, 10.0)]);
        journal.add(attempt("c", 12.0, 12.0)).unwrap();
        let rungs: Vec<String> = Journal::open(folder.path())
            .unwrap()
            .attempts
            .into_iter()
            .map(|a| a.rung)
            .collect();
        assert_eq!(rungs, ["a", "c"]);
    }

    #[test]
    fn canaries_are_spread_over_the_sweep_and_between_rungs() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        assert_eq!(journal.canaries(), None);
        for (rung, before, after) in [("a", 10.0, 12.0), ("b", 11.0, 12.1), ("a", 10.0, 12.0)] {
            journal.add(attempt(rung, before, after)).unwrap();
        }
        let songs = journal.canaries().unwrap();
        assert_eq!((songs.n, songs.mean_by_rung_ms["a"]), (6, 11.0));
        assert!((songs.range - 0.21).abs() < 1e-9);
        assert!((songs.range_between_rungs - 0.05).abs() < 1e-9);
    }
}
