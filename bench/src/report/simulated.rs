//! What came out of virtual time: the grid of `simulate` in simulate/grid.json, with its figures, and the study of
//! `coverage` in coverage.json. Both depend on no machine, so their lines name a revision and a command alone.

use std::path::Path;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

use super::ladder::figures;
use super::markdown::{Table, counts};
use crate::stats::Spread;
use crate::twin::again;
use crate::twin::cell::Cell;
use crate::twin::coverage::{self, Study};
use crate::twin::lab::Ceiling;
use crate::twin::lane;
use crate::twin::simulate::{Grid, Origin, Traced};

/// Below bench/results.
const GRID: &str = "simulate/grid.json";
const STUDY: &str = "coverage.json";

/// A table's name and how it is made.
type Render<T> = (&'static str, fn(&T) -> String);

const OF_GRID: [Render<Grid>; 6] = [
    ("setting", setting),
    ("goodput", goodput),
    ("latency", latency),
    ("promises", promises),
    ("lane", lane::table),
    ("returns", |grid| again::table(&grid.returns)),
];

const OF_STUDY: [Render<Study>; 4] = [
    ("criteria", coverage::table::criteria),
    ("arms", coverage::table::arms),
    ("levels", coverage::table::levels),
    ("shifts", coverage::table::shifts),
];

/// The table `FOLDER/TABLE`, if it is one of these; empty text inside if there are no results yet.
pub fn table(results: &Path, folder: &str, table: &str) -> Option<Result<String>> {
    fn of<T: DeserializeOwned>(
        results: &Path,
        file: &str,
        tables: &[Render<T>],
        table: &str,
    ) -> Result<String> {
        let known = tables.iter().find(|(name, _)| *name == table);
        let (_, render) = known.with_context(|| format!("there is no table called {table}"))?;
        let read: Option<(T, Origin)> = read(results, file)?;
        Ok(read.map_or_else(
            || super::MISSING.into(),
            |(value, origin)| render(&value) + "\n" + &line(file, &origin),
        ))
    }
    match folder {
        "simulate" => Some(of(results, GRID, &OF_GRID, table)),
        "coverage" => Some(of(results, STUDY, &OF_STUDY, table)),
        _ => None,
    }
}

/// Draws the grid's figures where they differ from what is there, or only says which do.
///
/// # Errors
/// When they can't be drawn or written.
pub fn figures(results: &Path, check: bool) -> Result<Vec<String>> {
    let read: Option<(Grid, Origin)> = read(results, GRID)?;
    let Some((grid, _)) = read else {
        return Ok(Vec::new());
    };
    figures::update(&figures::simulated::of(&grid), results, "simulate", check)
}

fn read<T: DeserializeOwned>(results: &Path, file: &str) -> Result<Option<(T, Origin)>> {
    let path = results.join(file);
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path)?;
    let Traced { origin, result } = serde_json::from_str(&text).with_context(|| file.to_owned())?;
    Ok(Some((result, origin)))
}

fn line(file: &str, origin: &Origin) -> String {
    let revision: String = origin.revision.chars().take(10).collect();
    let changed = if origin.revision.ends_with("with changes") {
        " with changes"
    } else {
        ""
    };
    format!(
        "<sub>{file}: virtual time; {revision}{changed}; `{}`.</sub>\n",
        origin.command
    )
}

/// Loads across, rungs down.
struct Matrix<'a> {
    grid: &'a Grid,
    loads: Vec<f64>,
}

impl<'a> Matrix<'a> {
    fn of(grid: &'a Grid) -> Self {
        let mut loads: Vec<f64> = grid.ceilings.iter().map(|c| c.load).collect();
        loads.dedup();
        Self { grid, loads }
    }

    fn table(&self, corner: &str) -> Table {
        let loads = self.loads.iter().map(|load| {
            let its = self.grid.ceilings.iter().find(|c| c.load == *load);
            let rate = its.map_or(0.0, |c| c.rate_per_s);
            format!("{load:.2} = {rate:.2}/s")
        });
        let head: Vec<String> = std::iter::once(corner.to_owned()).chain(loads).collect();
        Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn row(&self, name: &str, value: impl Fn(f64) -> String) -> Vec<String> {
        let values = self.loads.iter().map(|load| value(*load));
        std::iter::once(name.to_owned()).chain(values).collect()
    }

    fn cells(&self, rung: &str, load: f64) -> Vec<&'a Cell> {
        let is_in = |c: &&Cell| c.rung == rung && c.load == load;
        self.grid.cells.iter().filter(is_in).collect()
    }

    fn spread(&self, rung: &str, load: f64, of: impl Fn(&Cell) -> Option<f64>) -> String {
        let values: Vec<f64> = self.cells(rung, load).into_iter().filter_map(of).collect();
        show(&values, 2)
    }
}

fn show(values: &[f64], digits: usize) -> String {
    if values.is_empty() {
        "–".into()
    } else {
        Spread::of(values).show(digits)
    }
}

fn setting(grid: &Grid) -> String {
    let m = grid.cost;
    let fitted = grid.fit.map_or_else(
        || "the defaults of section `fake`".to_owned(),
        |f| {
            format!(
                "fitted to {} measurements, mean error {:.1}%",
                f.n, f.error_mean_percent
            )
        },
    );
    format!(
        "{} s of arrivals in a cell; {} mix; SLO {} s from arrival to end; clients leave after {} s. Saturation, what the \
         last rung sustains without a cap: {:.3}/s. Costs in µs: {:.0} a step, {:.1} a prompt token, {:.0} a decoding \
         sequence, {:.3} a cached token ({fitted}).\n",
        grid.duration_s,
        serde_json::to_value(grid.mix)
            .ok()
            .and_then(|m| m.as_str().map(str::to_owned))
            .unwrap_or_default(),
        grid.slo_s,
        grid.timeout_s,
        grid.saturation_per_s,
        m.step_us,
        m.prefill_token_us,
        m.decode_seq_us,
        m.cached_token_us,
    )
}

/// Goodput of the rungs under the clairvoyant's, then what they shed.
fn goodput(grid: &Grid) -> String {
    let matrix = Matrix::of(grid);
    let mut t = matrix.table("goodput, 1/s, at load");
    let ceiling = |load: f64, of: fn(&Ceiling) -> f64| {
        let its = grid.ceilings.iter().filter(|c| c.load == load);
        show(&its.map(of).collect::<Vec<_>>(), 2)
    };
    t.row(matrix.row("clairvoyant, at most", |load| {
        ceiling(load, |c| c.at_most_per_s)
    }));
    t.row(matrix.row("clairvoyant, at least", |load| {
        ceiling(load, |c| c.at_least_per_s)
    }));
    for rung in grid.rungs() {
        t.row(matrix.row(rung, |load| {
            matrix.spread(rung, load, |c| Some(c.goodput_per_s))
        }));
    }
    let mut shed = matrix.table("shed, %, at load");
    for rung in grid.rungs() {
        let percent = |c: &Cell| Some(100.0 * c.shed as f64 / c.offered as f64);
        shed.row(matrix.row(rung, |load| {
            let values: Vec<f64> = matrix
                .cells(rung, load)
                .into_iter()
                .filter_map(percent)
                .collect();
            show(&values, 0)
        }));
    }
    format!("{}\n{}", t.text, shed.text)
}

fn latency(grid: &Grid) -> String {
    let matrix = Matrix::of(grid);
    let table = |corner: &str, of: fn(&Cell) -> Option<f64>| {
        let mut t = matrix.table(corner);
        for rung in grid.rungs() {
            t.row(matrix.row(rung, |load| {
                let grows = matrix.cells(rung, load).iter().any(|c| c.queue_grows);
                matrix.spread(rung, load, of) + if grows { " †" } else { "" }
            }));
        }
        t.text
    };
    format!(
        "{}\n{}\n{}",
        table("TTFT p99, s, at load", |c| c.ttft_s.p99),
        table("E2E p99, s, at load", |c| c.e2e_s.p99),
        super::ladder::GROWS
    )
}

fn promises(grid: &Grid) -> String {
    let mut t = Table::new(&[
        "rung",
        "load",
        "promised",
        "kept",
        "bound, s",
        "actual, s",
        "explored, %",
        "refused, by reason",
        "prefix hits, %",
    ]);
    for rung in grid.rungs() {
        for &load in &Matrix::of(grid).loads {
            let cells: Vec<&Cell> = Matrix::of(grid).cells(rung, load);
            let Some(told) = cells.iter().map(|c| c.promises).collect::<Option<Vec<_>>>() else {
                continue;
            };
            let sum =
                |of: fn(&crate::twin::cell::Promises) -> usize| told.iter().map(of).sum::<usize>();
            let offered: usize = cells.iter().map(|c| c.offered).sum();
            let n = sum(|p| p.n());
            let kept = match n {
                0 => "–".into(),
                n => format!("{:.1}%", 100.0 * sum(|p| p.kept) as f64 / n as f64),
            };
            t.row([
                rung.to_owned(),
                format!("{load:.2}"),
                n.to_string(),
                kept,
                show(
                    &told.iter().filter_map(|p| p.bound_s).collect::<Vec<_>>(),
                    2,
                ),
                show(
                    &told.iter().filter_map(|p| p.actual_s).collect::<Vec<_>>(),
                    2,
                ),
                format!("{:.1}", 100.0 * sum(|p| p.explored) as f64 / offered as f64),
                counts(cells.iter().map(|c| &c.shed_by_reason)),
                show(
                    &cells
                        .iter()
                        .filter_map(|c| c.cached_share.map(|s| 100.0 * s))
                        .collect::<Vec<_>>(),
                    0,
                ),
            ]);
        }
    }
    t.text
}
