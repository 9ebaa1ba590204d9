//! `cadenced-bench simulate`: the ladder in virtual time. Every rung meets the same arrivals, at multiples
//! of the rate that the last of them can sustain, and beside each load stands what a clairvoyant could do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::builder::ArgPredicate;
use serde::{Deserialize, Serialize};

use super::again::{self, Returns};
use super::arrivals::{Answers, Lengths, Offer};
use super::cell::{Cell, Mode, Offered, cell};
use super::cost::CostModel;
use super::fit::Fit;
use super::fitted;
use super::lab::{self, Ceiling, Lab};
use super::rung::{self, RUNGS, Rung};
use super::{lane, soak, table};
use crate::calibrate::Calibration;
use crate::load::arrivals::Extent;
use crate::load::mix::Mix;
use crate::numbers::{at_least_one, positive};
use crate::provenance;

/// Runs the ladder in virtual time, on the daemon's own logic and a cost model.
#[derive(Clone, Debug, clap::Args)]
pub struct SimulateArgs {
    /// What `calibrate` wrote: its cost model, its mix and its SLO hold. If not given, those of the configuration's
    /// section `fake`.
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// The configurations of the rungs, in their order; with --soak rung 3's if not given.
    #[arg(
        long,
        value_delimiter = ',',
        default_values = RUNGS,
        default_value_if("soak", ArgPredicate::IsPresent, soak::RUNG)
    )]
    pub rungs: Vec<PathBuf>,
    /// Multiples of the rate that the last rung sustains.
    #[arg(long, value_delimiter = ',', default_values_t = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0], value_parser = positive)]
    pub loads: Vec<f64>,
    /// Requests per second instead, which don't move with what the rungs can do.
    #[arg(long, value_delimiter = ',', conflicts_with = "loads", value_parser = positive)]
    pub rates: Vec<f64>,
    #[arg(long, default_value_t = 3, value_parser = at_least_one::<u64>())]
    pub seeds: u64,
    /// Seconds of arrivals in a cell.
    #[arg(long, default_value_t = 180.0, value_parser = positive)]
    pub duration: f64,
    #[arg(long, value_enum)]
    pub mix: Option<Mix>,
    /// Answers as long as their caps, instead of lengths of their own.
    #[arg(long)]
    pub capped: bool,
    /// Bound on the time to the end of the answer; if not given, the calibration's, or what 90% of the
    /// requests need alone.
    #[arg(long, value_parser = at_least_one::<u64>())]
    pub slo_ms: Option<u64>,
    /// A client gives up so long after its arrival.
    #[arg(long, default_value_t = 300.0, value_parser = positive)]
    pub timeout_s: f64,
    /// Runs the rungs on the daemon's actors, with a paused clock, instead of on its logic alone.
    #[arg(long)]
    pub actors: bool,
    /// No calibration: rungs that promise learn from what they admit.
    #[arg(long)]
    pub self_calibrating: bool,
    /// No grid, but so many requests at 0.9 of saturation through the last rung, for its speed.
    #[arg(long, value_name = "REQUESTS", value_parser = at_least_one::<usize>())]
    pub soak: Option<usize>,
    /// A file (.json), or a folder for it; the figures and tables of bench/results/simulate are `report`'s.
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,
}

/// The grid's result. Rates per second.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Grid {
    #[serde(default)]
    pub mode: Mode,
    pub cost: CostModel,
    /// Where the costs are from, if they were fitted.
    pub fit: Option<Fit>,
    pub mix: Mix,
    pub answers: Answers,
    pub duration_s: f64,
    pub timeout_s: f64,
    pub slo_s: f64,
    /// What the last rung sustains.
    pub saturation_per_s: f64,
    pub cells: Vec<Cell>,
    pub ceilings: Vec<Ceiling>,
    /// Of the rungs that promise, in runs of their own.
    #[serde(default)]
    pub returns: Vec<Returns>,
}

/// Of the rounds that promises are calibrated on, far from those of the cells.
pub const CALIBRATION_SEED: u64 = 1000;

impl Grid {
    /// In their order.
    pub fn rungs(&self) -> Vec<&str> {
        let mut rungs: Vec<&str> = Vec::new();
        for cell in &self.cells {
            if !rungs.contains(&cell.rung.as_str()) {
                rungs.push(&cell.rung);
            }
        }
        rungs
    }
}

/// What a step takes, and where that is from.
pub struct Prices {
    pub model: CostModel,
    pub fit: Option<Fit>,
    pub slo_ms: Option<u64>,
    pub mix: Mix,
}

/// # Errors
/// When a file can't be read or written, or the arguments leave nothing to simulate; and, after all is written, when the
/// best-effort lane costs more than it may.
pub fn run(args: &SimulateArgs) -> Result<()> {
    if let Some(requests) = args.soak {
        let (_, lab) = set_up(args)?;
        println!("{}", soak::soak(&lab, requests));
        return Ok(());
    }
    let grid = simulate(args)?;
    println!("{}", table::markdown(&grid));
    println!("\n{}\n{}", lane::table(&grid), again::table(&grid.returns));
    if let Some(out) = &args.out {
        let is_file = out.extension().is_some_and(|e| e == "json");
        let file = if is_file {
            out.clone()
        } else {
            out.join("grid.json")
        };
        write(&file, &grid)?;
    }
    lane::judge(&grid)
}

/// Where results of virtual time are from: they depend on no machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    pub revision: String,
    pub command: String,
}

/// A result with its origin beside its own fields.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Traced<T> {
    pub origin: Origin,
    #[serde(flatten)]
    pub result: T,
}

/// Writes a result of this run.
///
/// # Errors
/// When the file can't be written.
pub fn write(out: &Path, result: impl Serialize) -> Result<()> {
    let origin = Origin {
        revision: provenance::revision(),
        command: provenance::command_line(),
    };
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let text = serde_json::to_string_pretty(&Traced { origin, result })? + "\n";
    std::fs::write(out, text).with_context(|| format!("writing {}", out.display()))?;
    println!("\nwritten: {}", out.display());
    Ok(())
}

/// The laboratory that the arguments describe, calibrated if one of its rungs promises.
///
/// # Errors
/// See [`run`].
pub fn set_up(args: &SimulateArgs) -> Result<(Prices, Lab)> {
    ensure!(!args.rungs.is_empty(), "no rung");
    let fake = rung::config(None)?.fake;
    let prices = match &args.calibration {
        Some(file) => {
            let calibration = Calibration::read(file)?;
            Prices {
                model: calibration.fit.model,
                fit: Some(calibration.fit),
                slo_ms: Some(calibration.slo_ms),
                mix: args.mix.unwrap_or(calibration.mix),
            }
        }
        None => Prices {
            model: CostModel::from(&fake),
            fit: None,
            slo_ms: None,
            mix: args.mix.unwrap_or_default(),
        },
    };
    ensure!(
        prices.mix != Mix::Trace,
        "--mix trace: a trace has rates of its own"
    );
    let mut lab = Lab {
        cost: prices.model.into(),
        rungs: args
            .rungs
            .iter()
            .map(|file| Rung::load(file))
            .collect::<Result<_>>()?,
        offer: Offer {
            mix: prices.mix,
            answers: if args.capped {
                Answers::Capped
            } else {
                Answers::Hidden(Lengths::from(&fake))
            },
            rate: 1.0,
            extent: Extent::Seconds(args.duration),
            seed: 0,
            observed: BTreeMap::new(),
        },
        artifact: None,
    };
    if lab.rungs.iter().any(Rung::promises) && !args.self_calibrating {
        lab.artifact = Some(Arc::new(fitted::artifact(&lab, CALIBRATION_SEED)?));
    }
    Ok((prices, lab))
}

/// Runs the grid: a pure function of the arguments and the files that they name.
///
/// # Errors
/// See [`run`].
pub fn simulate(args: &SimulateArgs) -> Result<Grid> {
    let (prices, lab) = set_up(args)?;
    let saturation_per_s = lab.saturation_per_s();
    let alone = || lab::slo_ms(lab.alone_s(0.9));
    let slo_ms = args.slo_ms.or(prices.slo_ms).unwrap_or_else(alone);
    let slo_us = slo_ms * 1000;
    let patience_us = (args.timeout_s * 1e6) as u64;
    let mode = if args.actors {
        Mode::Actors
    } else {
        Mode::Logic
    };
    let mut grid = Grid {
        mode,
        cost: prices.model,
        fit: prices.fit,
        mix: prices.mix,
        answers: lab.offer.answers,
        duration_s: args.duration,
        timeout_s: args.timeout_s,
        slo_s: slo_ms as f64 * 1e-3,
        saturation_per_s,
        cells: Vec::new(),
        ceilings: Vec::new(),
        returns: Vec::new(),
    };
    let loads: Vec<f64> = match args.rates.as_slice() {
        [] => args.loads.clone(),
        rates => rates.iter().map(|rate| rate / saturation_per_s).collect(),
    };
    for (i, &load) in loads.iter().enumerate() {
        let rate = args
            .rates
            .get(i)
            .copied()
            .unwrap_or(load * saturation_per_s);
        for seed in 0..args.seeds {
            let offer = Offer {
                rate,
                seed,
                ..lab.offer.clone()
            };
            let requests = offer.requests();
            ensure!(
                !requests.is_empty(),
                "a load of {load:.2} offers nothing in {} s under seed {seed}; raise it or --duration",
                args.duration
            );
            let offered = Offered {
                load,
                offer,
                requests,
            };
            let trials = lab.trials(Some(slo_us), Some(patience_us));
            let cells: Vec<Cell> = trials.iter().map(|t| cell(t, &offered, mode)).collect();
            let promising = trials.iter().filter(|t| t.controller.is_some());
            let returns = promising.map(|t| again::returns(t, &offered));
            grid.returns.extend(returns);
            grid.ceilings.push(lab.ceiling(&offered, slo_us, &cells));
            grid.cells.extend(cells);
        }
    }
    Ok(grid)
}

#[cfg(test)]
#[path = "simulate_tests.rs"]
mod tests;
