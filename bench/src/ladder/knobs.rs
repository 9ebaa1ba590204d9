//! `scheduler-knobs`: one rung with one key changed at a time, at one rate. Its variants are swept as the rungs of a
//! ladder are: the same arrivals for all variants under each seed, which makes a replicate; a daemon of its own for each
//! cell; canaries, disturbed cells and resuming as there. The tables are made of what is kept, by `report`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::plan::{Offer, Plan};
use super::sweep;
use super::variants::{self, Knob, knob};
use crate::calibrate::{Calibration, grid};
use crate::load::mix::Mix;
use crate::numbers::{at_least_one, positive};
use crate::report;
use crate::serving::Serving;
use crate::twin::rung::RUNGS;

/// Of the best-case capacity: busy enough that requests meet, and a queue that does not grow.
const LOAD: f64 = 0.75;
const TIMEOUT_S: f64 = 300.0;
/// The report says itself of which percentiles there are too few values.
const PERCENTILE: f64 = 50.0;

/// One rung with one setting changed at a time, under load; goes on where it was killed.
#[derive(Clone, Debug, clap::Args)]
pub struct SchedulerKnobsArgs {
    #[command(flatten)]
    pub serving: Serving,
    /// The default: the configuration that all variants are of.
    #[arg(long, default_value = RUNGS[3])]
    pub config: PathBuf,
    /// A key and the values that it is tried with; the default's own is not run twice. By default prefill budgets up to
    /// what a batch of 512 holds beside sixteen replies, the step order and the batch size.
    #[arg(
        long,
        value_name = "SECTION.KEY=VALUE,…",
        value_parser = knob,
        default_values = [
            "scheduler.prefill_budget=16,32,64,128,256,496",
            "scheduler.order=decode_first,prefill_first",
            "scheduler.max_running=1,2,4,8,16",
        ]
    )]
    pub vary: Vec<Knob>,
    /// What `calibrate` wrote: three quarters of its best capacity are offered if no rate is given.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "bench/results/calibration.json"
    )]
    pub calibration: PathBuf,
    /// Requests per second in the mean.
    #[arg(long, value_parser = positive)]
    pub rate: Option<f64>,
    #[arg(long, value_enum, default_value_t = Mix::Short)]
    pub mix: Mix,
    /// Bound on the time to the end of an answer, for goodput.
    #[arg(long, value_parser = at_least_one::<u64>())]
    pub slo_ms: Option<u64>,
    /// Runs of each variant, each with arrivals of its own seed.
    #[arg(long, default_value_t = 3, value_parser = at_least_one::<u64>())]
    pub replicates: u64,
    /// Requests of each cell. Of the short mix so many have the thousand gaps that a p99.9 takes.
    #[arg(long, default_value_t = 64, value_parser = at_least_one::<usize>())]
    pub arrivals: usize,
    /// A folder; a cell's files are VARIANT-RATE-SEED.parquet and .json.
    #[arg(long, default_value = "bench/results/scheduler-knobs")]
    pub out: PathBuf,
}

/// # Errors
/// [`crate::load::soundness::MeasurementUnsound`] when it may not be reported; others when it can't be run.
pub fn run(args: &SchedulerKnobsArgs) -> Result<()> {
    let plan = plan(args)?;
    plan.settle(&args.out)?;
    sweep::run(&args.serving, &args.out, &plan)?;
    report::one(&args.out, None)
}

fn plan(args: &SchedulerKnobsArgs) -> Result<Plan> {
    ensure!(
        args.replicates > 1,
        "--replicates 1: one replicate has no spread"
    );
    let steps = variants::steps(&args.serving, &args.config, &args.vary)?;
    ensure!(steps.len() > 1, "no variant differs from the default");
    let offer = Offer {
        rates_per_s: vec![args.rate.map_or_else(|| rate(args), Ok)?],
        seeds: args.replicates,
        arrivals: args.arrivals,
        mix: args.mix,
        slo_ms: args.slo_ms,
        timeout_s: TIMEOUT_S,
        percentile: PERCENTILE,
    };
    Plan::new(&args.serving, steps, offer)
}

fn rate(args: &SchedulerKnobsArgs) -> Result<f64> {
    let calibration = Calibration::read(&args.calibration).context("no rate is given")?;
    ensure!(
        calibration.mix == args.mix,
        "{} is of another mix; give a rate",
        args.calibration.display()
    );
    Ok(grid::rounded(LOAD * calibration.best.requests_per_s))
}

#[cfg(test)]
#[path = "knobs_tests.rs"]
mod tests;
