//! Runs a plan, cell by cell: those that have no files yet, each on a daemon that was started for it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::drawn::{self, Drawn};
use super::journal::{Attempt, Disagreement, Journal, Part};
use super::plan::{CellId, Plan};
use super::progress::Progress;
use super::song::{self, Watch, Weather};
use crate::all;
use crate::load::meta::Meta;
use crate::load::metrics::Summary;
use crate::load::record::Record;
use crate::load::run::{self, RunArgs};
use crate::load::soundness::{self, Unsound};
use crate::provenance;
use crate::serving::Serving;

/// A disturbed cell is run again so many times, however often its sweep is resumed; what is then still disturbed is kept
/// and flagged.
const AGAIN: usize = 2;
/// Seconds that a cell takes beside its arrivals: the start of the daemon, the songs, the last answers.
const BESIDE_S: f64 = 5.0;

struct Sweep<'a> {
    serving: &'a Serving,
    out: &'a Path,
    plan: &'a Plan,
    arrivals: Vec<Drawn>,
    journal: Journal,
    progress: Progress,
}

/// # Errors
/// When a cell can't be run, or the sweep as a whole says nothing.
pub fn run(serving: &Serving, out: &Path, plan: &Plan) -> Result<()> {
    let arrivals = drawn::settle(plan, out)?;
    let cells = plan.cells();
    let (done, left): (Vec<&CellId>, Vec<&CellId>) =
        cells.iter().partition(|cell| is_done(out, cell));
    let expected = |cell: &CellId| plan.offer.arrivals as f64 / cell.rate + BESIDE_S;
    let left_s = left.iter().map(|cell| expected(cell)).sum();
    let mut sweep = Sweep {
        serving,
        out,
        plan,
        arrivals,
        journal: Journal::open(out)?,
        progress: Progress::begin(cells.len(), done.len(), left_s)?,
    };
    if let (Some(anchor), false) = (done.last(), left.is_empty()) {
        sweep.repeat(anchor)?;
    }
    for cell in left {
        sweep.progress.cell(&cell.name());
        let line = sweep.cell(cell)?;
        sweep.progress.done(expected(cell), &line);
    }
    let journal = sweep.journal;
    drop(sweep.progress);
    conclude(out, &cells, &journal)
}

/// Runs one cell again, on the engine as it is now.
///
/// # Errors
/// When the plan has no such cell, it was never run or can't be run.
pub fn again(serving: &Serving, out: &Path, plan: &Plan, name: &str) -> Result<()> {
    let cells = plan.cells();
    let cell = cells.iter().find(|cell| cell.name() == name);
    let cell = cell.with_context(|| format!("{}: no cell is {name}", out.display()))?;
    let expected = plan.offer.arrivals as f64 / cell.rate + BESIDE_S;
    let mut sweep = Sweep {
        serving,
        out,
        plan,
        arrivals: drawn::settle(plan, out)?,
        journal: Journal::open(out)?,
        progress: Progress::begin(1, 0, expected)?,
    };
    sweep.repeat(cell)
}

/// The metadata is written last, so where it is the cell is whole.
fn is_done(folder: &Path, cell: &CellId) -> bool {
    Meta::read(&file(folder, cell)).is_ok()
}

fn file(folder: &Path, cell: &CellId) -> PathBuf {
    folder.join(cell.name() + ".parquet")
}

impl Sweep<'_> {
    /// Runs a cell of the plan until it is undisturbed or has had its chances; the line that says so.
    fn cell(&mut self, cell: &CellId) -> Result<String> {
        // Those of before a kill count.
        let mut chances = AGAIN.saturating_sub(self.journal.disturbed(&cell.name()));
        loop {
            let (records, meta, mut attempt) = self.attempt(cell, Part::Cell)?;
            let again = attempt.disturbed.is_some() && chances > 0;
            let to = if again {
                aside(self.out, "disturbed", cell)?
            } else {
                file(self.out, cell)
            };
            run::keep(&to, &records, &meta)?;
            let line = line(cell, &meta.summary, &attempt);
            attempt.unsound.clone_from(&meta.unsound);
            self.journal.add(attempt)?;
            if !again {
                return Ok(line);
            }
            self.progress.say(&format!("{line}; set aside, again"));
            chances -= 1;
        }
    }

    /// Repeats a cell that was run before.
    fn repeat(&mut self, cell: &CellId) -> Result<()> {
        self.progress
            .cell(&format!("{} again, as an anchor", cell.name()));
        let before = Meta::read(&file(self.out, cell))?.summary;
        let (records, meta, mut attempt) = self.attempt(cell, Part::Anchor)?;
        run::keep(&aside(self.out, "anchors", cell)?, &records, &meta)?;
        let apart = Disagreement::of(&before, &meta.summary);
        self.progress
            .say(&format!("{} again, as an anchor: {apart}", cell.name()));
        attempt.anchor = Some(apart);
        attempt.unsound = meta.unsound;
        self.journal.add(attempt)
    }

    fn attempt(&self, cell: &CellId, part: Part) -> Result<(Vec<Record>, Meta, Attempt)> {
        let clock = Instant::now();
        let settings = [&cell.step.settings[..], &[song::door()]].concat();
        let daemon = self
            .serving
            .start(&cell.step.file, &settings)
            .with_context(|| cell.name())?;
        // The first one is on a daemon that has computed nothing yet.
        song::sing(&daemon)?;
        let before_ms = song::sing(&daemon)?;
        let watch = Watch::begin(&daemon);
        let (records, meta) = run::measure(&self.run(cell, &daemon.url())?)?;
        let seen = watch.end();
        let after_ms = song::sing(&daemon)?;
        self.arrivals[cell.seed as usize]
            .check(&records, cell.rate)
            .with_context(|| cell.name())?;
        let weather = Weather {
            before_ms,
            after_ms,
            ..seen
        };
        let songs = [self.journal.songs(), vec![before_ms, after_ms]].concat();
        let attempt = Attempt {
            cell: cell.name(),
            rung: cell.step.rung.clone(),
            part,
            finished: provenance::now(),
            took_s: clock.elapsed().as_secs_f64(),
            disturbed: weather.complaint(&songs),
            weather,
            unsound: Vec::new(),
            anchor: None,
        };
        Ok((records, meta, attempt))
    }

    fn run(&self, cell: &CellId, url: &str) -> Result<RunArgs> {
        let mut run: RunArgs = all::given("run", &["--url", url])?;
        run.rate = Some(cell.rate);
        run.seed = cell.seed;
        let offer = &self.plan.offer;
        run.requests = Some(offer.arrivals);
        run.mix = offer.mix;
        run.slo_ms = offer.slo_ms;
        run.send_slo = offer.slo_ms.is_some();
        run.timeout_s = offer.timeout_s;
        run.model_file = self.serving.model_file().map(Into::into);
        run.limits.percentile = offer.percentile;
        // The lowest rates are there for the unloaded latencies; the sweep as a whole must load the server.
        run.limits.in_flight_min = 0.0;
        Ok(run)
    }
}

/// A file beside the sweep that is not there yet.
fn aside(folder: &Path, kind: &str, cell: &CellId) -> Result<PathBuf> {
    let folder = folder.join(kind);
    std::fs::create_dir_all(&folder)?;
    let name = |i: usize| folder.join(format!("{}.{i}.parquet", cell.name()));
    let free = (1..).map(name).find(|path| !path.exists());
    free.context("no name is free")
}

fn line(cell: &CellId, s: &Summary, attempt: &Attempt) -> String {
    let seconds = |x: Option<f64>| x.map_or_else(|| "none".into(), |x| format!("{x:.2}"));
    let goodput = s
        .slo
        .map(|slo| format!(", goodput {:.2}/s", slo.goodput_per_s));
    let disturbed = attempt.disturbed.as_ref();
    format!(
        "{}: offered {:.2}/s, {} of {} completed, E2E p50 {} p99 {} s{}, canary {:.1} ms{}{}",
        cell.name(),
        s.offered_per_s,
        s.completed,
        s.measured,
        seconds(s.e2e.p50),
        seconds(s.e2e.p99),
        goodput.unwrap_or_default(),
        attempt.weather.before_ms,
        if s.queue_grows { ", queue grows" } else { "" },
        disturbed.map_or_else(String::new, |why| format!(", DISTURBED: {why}")),
    )
}

impl Disagreement {
    fn of(before: &Summary, after: &Summary) -> Self {
        let apart = |of: &dyn Fn(&Summary) -> Option<f64>| {
            let (before, after) = (of(before)?, of(after)?);
            (before > 0.0).then(|| after / before - 1.0)
        };
        Self {
            e2e_p50: apart(&|s| s.e2e.p50),
            e2e_p99: apart(&|s| s.e2e.p99),
            goodput: apart(&|s| Some(s.slo?.goodput_per_s)),
        }
    }
}

impl std::fmt::Display for Disagreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let show = |x: Option<f64>| x.map_or_else(|| "?".into(), |x| format!("{:+.1}%", x * 100.0));
        write!(
            f,
            "E2E p50 {}, p99 {}, goodput {}",
            show(self.e2e_p50),
            show(self.e2e_p99),
            show(self.goodput)
        )
    }
}

/// Says what the sweep as a whole was like, and writes it down.
fn conclude(folder: &Path, cells: &[CellId], journal: &Journal) -> Result<()> {
    if let Some(songs) = journal.canaries() {
        println!(
            "canaries: {} ms over {} songs, {:.1}% apart; between the rungs' means {:.1}%",
            songs.over_the_sweep_ms.show(2),
            songs.n,
            songs.range * 100.0,
            songs.range_between_rungs * 100.0
        );
        let text = serde_json::to_string_pretty(&songs)? + "\n";
        std::fs::write(folder.join("canaries.json"), text)?;
    }
    let mut unsound = Vec::new();
    let mut busiest: f64 = 0.0;
    for cell in cells {
        let meta = Meta::read(&file(folder, cell))?;
        busiest = busiest.max(meta.summary.mean_in_flight);
        let its = meta.unsound.into_iter();
        unsound.extend(its.map(|reason| reason.of_run(&cell.name())));
    }
    if busiest < 1.0 {
        unsound.push(Unsound::TooLittleLoad {
            mean_in_flight: busiest,
            floor: 1.0,
        });
    }
    for reason in &unsound {
        println!("{reason}");
    }
    println!("{} cells in {}", cells.len(), folder.display());
    Ok(soundness::refuse(unsound)?)
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
pub mod tests;
