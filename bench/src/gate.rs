//! `gate`: whether a change made overload worse, against a committed budget at a few rates.
//!
//! It judges what `simulate --rates … --slo-ms … --out` wrote (absolute rates: multiples of saturation would move with
//! what is judged), so its verdict is of virtual time and does not depend on how busy the machine is. No budget is
//! committed yet, and CI does not run it. Exit status: 0 within the budget or better, 1 regressed, 2 when what was run says nothing.
//! `--refresh` makes what was run the budget.

mod budget;
mod verdict;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::load::quantile::Quantiles;
use crate::load::soundness;
use budget::Budget;

/// Compares simulated cells with the committed budget.
#[derive(Clone, Debug, clap::Args)]
pub struct GateArgs {
    /// What `simulate --out` wrote.
    cells: PathBuf,
    #[arg(long, default_value = "bench/results/gate.json")]
    budget: PathBuf,
    /// Makes these cells of this rung the budget.
    #[arg(long, value_name = "RUNG")]
    refresh: Option<String>,
}

/// The part of a simulation's result that is judged.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Measured {
    pub slo_s: f64,
    pub cells: Vec<Cell>,
}

/// One rung under one load and seed; the names are `simulate`'s.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Cell {
    pub rung: String,
    pub rate_per_s: f64,
    pub offered: usize,
    pub finished: usize,
    pub goodput_per_s: f64,
    pub ttft_s: Quantiles,
    pub e2e_s: Quantiles,
}

/// # Errors
/// [`soundness::MeasurementUnsound`] when the cells say nothing; others when they are beyond the budget or a file
/// can't be read or written.
pub fn run(args: &GateArgs) -> Result<()> {
    let text = std::fs::read_to_string(&args.cells)
        .with_context(|| format!("reading {}", args.cells.display()))?;
    let measured: Measured =
        serde_json::from_str(&text).with_context(|| format!("{}", args.cells.display()))?;
    if let Some(rung) = &args.refresh {
        let budget = Budget::of(&measured, rung).map_err(soundness::MeasurementUnsound)?;
        budget.write(&args.budget)?;
        println!("written: {}", args.budget.display());
        return Ok(());
    }
    let verdict = verdict::judge(&Budget::read(&args.budget)?, &measured)
        .map_err(soundness::MeasurementUnsound)?;
    for line in &verdict {
        println!("{line}");
    }
    match verdict.iter().filter(|l| l.is_regression()).count() {
        0 => Ok(()),
        n => bail!("{n} of {} figures are beyond the budget", verdict.len()),
    }
}
