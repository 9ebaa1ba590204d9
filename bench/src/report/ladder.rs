//! A ladder: the same offered loads against one rung after another, several seeds each. Everything a report says
//! of one is made here from its cells' records.
//!
//! A cell is `<rung>-<rate>-<seed>.parquet` in the ladder's folder, as `run --out` writes it, with its metadata
//! beside it. Of its subfolders `contrast` is read, and not as cells, and `anchors`, which has cells that were run again; the
//! others have cells that were disturbed.

mod again;
mod canaries;
mod capacity;
mod caveats;
pub mod contrast;
pub mod figures;
mod goodput;
pub mod joint;
pub mod knobs;
mod latency;
mod metric;
mod origin;
mod point;
mod promises;
mod queueing;
mod sensitivity;
mod speed;
mod tally;
mod twin;
mod verdict;
mod worse;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::ladder::journal::{self, Attempt, Part, Songs};
use crate::ladder::plan::Plan;
use crate::load::meta::Meta;
use crate::load::metrics::{self, Summary};
use crate::load::occupancy::Span;
use crate::load::parquet;
use crate::load::record::Record;
use crate::load::soundness::{self, MeasurementUnsound};

pub use point::{GROWS, Point};

/// One run of one rung at one rate under one seed.
pub struct Cell {
    pub rung: String,
    pub rate: f64,
    pub seed: u64,
    pub meta: Meta,
    pub records: Vec<Record>,
    pub summary: Summary,
    /// By what, if the machine was disturbed while it ran and a sweep's journal says so.
    pub disturbed: Option<String>,
}

/// The file that makes a folder a comparison of servers, each with an engine of its own.
pub const COMPARISON: &str = "comparison.json";

/// See the module's text.
pub struct Ladder {
    pub name: String,
    /// Servers are compared, and not the rungs of one.
    is_comparison: bool,
    /// Bound on the time to the end of an answer.
    pub slo_s: Option<f64>,
    /// Cells that its sweep is to have, if it is one's.
    planned: Option<usize>,
    /// What the sweep's canaries say, if it is one's.
    songs: Option<Songs>,
    /// What its cost model is from.
    calibration: Option<PathBuf>,
    /// By rung, rate and seed.
    cells: Vec<Cell>,
    /// Cells that were run again, on this engine or on a later one.
    repeats: Vec<Cell>,
}

type Render = fn(&Ladder) -> String;

/// Every table by its name in the markers, with what it is called above it.
pub const TABLES: &[(&str, &str, Render)] = &[
    ("latency", "Latency against offered load", latency::table),
    ("goodput", "Goodput beside what was refused", goodput::table),
    ("promises", "What was promised and kept", promises::table),
    ("capacity", "Capacity", capacity::table),
    ("slo", "Peak goodput at other SLOs", sensitivity::table),
    (
        "queueing",
        "Queueing's share of the time to the first token",
        queueing::table,
    ),
    ("twin", "Goodput measured and simulated", twin::table),
    (
        "worse",
        "What got worse by over 5% from one rung to the next",
        worse::table,
    ),
    ("knobs", "One setting changed at a time", knobs::table),
    ("verdicts", "Against the default", knobs::verdicts),
    ("again", "Cells that were run again", again::table),
    ("canaries", "The machine's pace", canaries::table),
    ("figures", "Figures", figures::table),
    ("speed", "The generator itself", speed::table),
];

impl Cell {
    /// Where its measured requests arrived.
    fn window(meta: &Meta) -> Span {
        metrics::window(
            meta.arrivals_s(),
            meta.cell.warm_up_s,
            meta.cell.cool_down_s,
        )
    }

    /// `attempts` are those of the folder's sweep.
    fn read(path: &Path, slo_s: Option<f64>, attempts: &[Attempt], part: Part) -> Result<Self> {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut parts = stem.rsplitn(3, '-');
        let (Some(_), Some(_), Some(rung)) = (parts.next(), parts.next(), parts.next()) else {
            bail!("{} is not named <rung>-<rate>-<seed>", path.display());
        };
        let (meta, records) = (Meta::read(path)?, parquet::read(path)?);
        let schedule = &meta.cell.schedule;
        let name = format!("{rung}-{}-{}", schedule.rate, schedule.seed);
        let attempt = journal::attempt_at(attempts, (&name, part), &meta.finished);
        let slo_s = slo_s.or(meta.cell.slo_ms.map(|ms| ms as f64 * 1e-3));
        Ok(Self {
            rung: rung.to_owned(),
            rate: schedule.rate,
            seed: schedule.seed,
            disturbed: attempt.and_then(|a| a.disturbed.clone()),
            summary: metrics::summarize(&records, Self::window(&meta), slo_s),
            records,
            meta,
        })
    }

    /// As its files are called.
    pub fn name(&self) -> String {
        format!("{}-{}-{}", self.rung, self.rate, self.seed)
    }

    /// Its name, and the engine that was measured.
    fn engine(&self) -> (String, Option<String>) {
        (self.name(), self.meta.engine_fingerprint.clone())
    }

    pub fn measured(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(|r| r.measured)
    }
}

impl Ladder {
    /// Reads a folder; `slo_s` instead of the SLO that the cells had.
    ///
    /// # Errors
    /// [`MeasurementUnsound`] where a cell may not be reported, the engines differ or a rung lacks a rate; others
    /// when a file can't be read.
    pub fn read(folder: &Path, slo_s: Option<f64>) -> Result<Self> {
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let attempts = journal::read(folder)?;
        let cells_in = |folder: &Path, part| {
            let files = cell_files(folder)?;
            let cells = files
                .iter()
                .map(|path| Cell::read(path, slo_s, &attempts, part));
            cells.collect::<Result<Vec<_>>>()
        };
        let mut cells = cells_in(folder, Part::Cell)?;
        ensure!(!cells.is_empty(), "no cells in {}", folder.display());
        cells.sort_by(|a, b| {
            let rates = a.rate.total_cmp(&b.rate);
            a.rung.cmp(&b.rung).then(rates).then(a.seed.cmp(&b.seed))
        });
        let slo_s = cells[0].summary.slo.map(|s| s.slo_s);
        ensure!(
            cells
                .iter()
                .all(|c| c.summary.slo.map(|s| s.slo_s) == slo_s),
            "the cells of {name} have several SLOs; name one with --slo-ms"
        );
        let ladder = Self {
            name,
            is_comparison: folder.join(COMPARISON).exists(),
            slo_s,
            planned: Plan::cells_of(folder)?,
            songs: Songs::of(attempts.iter().filter(|a| a.part == Part::Cell)),
            calibration: twin::calibration(folder),
            cells,
            repeats: cells_in(&folder.join("anchors"), Part::Anchor)?,
        };
        ladder.refuse().with_context(|| ladder.name.clone())?;
        Ok(ladder)
    }

    fn refuse(&self) -> Result<(), MeasurementUnsound> {
        let mut found = Vec::new();
        for cell in &self.cells {
            let its = cell.meta.unsound.iter().cloned();
            found.extend(its.map(|reason| reason.of_run(&cell.name())));
        }
        for rung in self.rungs() {
            let present: Vec<f64> = self.points_of(rung).map(|p| p.rate).collect();
            let missing = soundness::missing_rates(&self.rates(), &present).into_iter();
            found.extend(missing.map(|reason| reason.of_run(rung)));
        }
        // Cells of one engine: all of a ladder's, those of one server in a comparison.
        let alike = |a: &Cell, b: &Cell| !self.is_comparison || a.rung == b.rung;
        for cells in self.cells.chunk_by(alike) {
            let engines: Vec<_> = cells.iter().map(Cell::engine).collect();
            found.extend(soundness::mixed_fingerprints(&engines));
        }
        soundness::refuse(found)
    }

    /// What its rows are called.
    pub fn subject(&self) -> &'static str {
        if self.is_comparison { "server" } else { "rung" }
    }

    /// What the marks at its loads mean.
    pub fn notes(&self) -> String {
        GROWS.to_owned() + &point::disturbed(self.cells.iter())
    }

    /// From the lowest to the highest.
    pub fn rungs(&self) -> Vec<&str> {
        let mut rungs: Vec<&str> = self.cells.iter().map(|c| c.rung.as_str()).collect();
        rungs.dedup();
        rungs
    }

    /// Requests per second, ascending.
    pub fn rates(&self) -> Vec<f64> {
        let mut rates: Vec<f64> = self.cells.iter().map(|c| c.rate).collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        rates
    }

    /// By rung, then by rate.
    pub fn points(&self) -> impl Iterator<Item = Point<'_>> {
        let same = |a: &Cell, b: &Cell| a.rung == b.rung && a.rate.total_cmp(&b.rate).is_eq();
        self.cells.chunk_by(same).map(|cells| Point {
            rung: &cells[0].rung,
            rate: cells[0].rate,
            cells,
        })
    }

    pub fn points_of(&self, rung: &str) -> impl Iterator<Item = Point<'_>> {
        self.points().filter(move |p| p.rung == rung)
    }
}

/// The Parquet files of a folder by name; none if there is no such folder.
///
/// # Errors
/// When the folder can't be read.
pub fn cell_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if folder.is_dir() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "parquet") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
#[path = "ladder/ladder_tests.rs"]
pub mod tests;
