//! `ladder`: every rung under every load, a daemon of its own for each cell. What is run is a `plan`, what is
//! offered was `drawn` before, `song` says what the machine was like, `journal` keeps what happened, so that a
//! killed sweep goes on where it was; `sweep` runs it. `--closed` is another experiment: see `contrast`.
//! `knobs` sweeps the `variants` of one rung instead.

mod contrast;
mod drawn;
pub mod journal;
pub mod knobs;
pub mod plan;
mod progress;
mod song;
mod sweep;
mod variants;

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::calibrate::Calibration;
use crate::load::mix::Mix;
use crate::numbers::{at_least_one, percentile, positive};
use crate::serving::Serving;
use crate::twin::rung::CAPPED;
use plan::{Offer, Plan, Step};

/// Sweeps rungs over rates and seeds, with a daemon of its own for each cell; goes on where it was killed.
#[derive(Clone, Debug, clap::Args)]
pub struct LadderArgs {
    #[command(flatten)]
    pub serving: Serving,
    /// The configurations of the rungs, in their order.
    #[arg(long, value_delimiter = ',', default_values = CAPPED)]
    pub rungs: Vec<PathBuf>,
    /// What `calibrate` wrote: rates, SLO and mix, where they are not given.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "bench/results/calibration.json"
    )]
    pub calibration: PathBuf,
    /// Requests per second in the mean; what a seed's few arrivals come to is in each cell's line and summary.
    #[arg(long, value_delimiter = ',', value_parser = positive)]
    pub rates: Vec<f64>,
    #[arg(long, value_parser = at_least_one::<u64>())]
    pub slo_ms: Option<u64>,
    #[arg(long, value_enum)]
    pub mix: Option<Mix>,
    #[arg(long, default_value_t = 3, value_parser = at_least_one::<u64>())]
    pub seeds: u64,
    /// Requests of each cell.
    #[arg(long, default_value_t = 120, value_parser = at_least_one::<usize>())]
    pub arrivals: usize,
    /// The percentile that is to be quoted, which decides how many arrivals are enough.
    #[arg(long, default_value_t = 99.0, value_parser = percentile)]
    pub percentile: f64,
    /// A client gives up so long after its intended arrival.
    #[arg(long, default_value_t = 300.0, value_parser = positive)]
    pub timeout_s: f64,
    /// No sweep, but the same eight requests in an open and in a closed loop, at two slots of the last rung.
    #[arg(
        long,
        conflicts_with_all = ["rates", "slo_ms", "seeds", "arrivals", "percentile", "calibration"]
    )]
    pub closed: bool,
    /// No sweep, but one cell of the folder's again, by its name RUNG-RATE-SEED and with the sweep's settings: after a
    /// change of the engine, to say what that has changed.
    #[arg(
        long,
        value_name = "CELL",
        conflicts_with_all = ["closed", "rates", "slo_ms", "mix", "seeds", "arrivals", "percentile", "calibration"]
    )]
    pub again: Option<String>,
    /// A folder; a cell's files are RUNG-RATE-SEED.parquet and .json.
    #[arg(long, default_value = "bench/results/ladder")]
    pub out: PathBuf,
}

/// # Errors
/// [`crate::load::soundness::MeasurementUnsound`] when the sweep may not be reported; others when it can't be run.
pub fn run(args: &LadderArgs) -> Result<()> {
    if args.closed {
        return contrast::run(args);
    }
    if let Some(cell) = &args.again {
        let serving = Plan::serving_of_before(&args.serving, &args.out)?;
        let plan = Plan::of_before(&serving, &args.out)?;
        return sweep::again(&serving, &args.out, &plan, cell);
    }
    let plan = plan(args)?;
    plan.settle(&args.out)?;
    sweep::run(&args.serving, &args.out, &plan)
}

fn plan(args: &LadderArgs) -> Result<Plan> {
    let all_given = !args.rates.is_empty() && args.slo_ms.is_some() && args.mix.is_some();
    let calibration = (!all_given)
        .then(|| {
            Calibration::read(&args.calibration).context("rates, SLO and mix are not all given")
        })
        .transpose()?;
    let picked = calibration.as_ref();
    let rates_per_s = match (args.rates.as_slice(), picked) {
        ([], Some(c)) => c.rates_per_s.clone(),
        (given, _) => given.to_vec(),
    };
    let slo_ms = args.slo_ms.or(picked.map(|c| c.slo_ms)).context("no SLO")?;
    let mix = args.mix.or(picked.map(|c| c.mix)).context("no mix")?;
    let step = |file: &PathBuf| {
        let rung = args.serving.config(file, &[])?.rung();
        Step::read(rung, file, Vec::new())
    };
    let rungs: Vec<Step> = args.rungs.iter().map(step).collect::<Result<_>>()?;
    let offer = Offer {
        rates_per_s,
        seeds: args.seeds,
        arrivals: args.arrivals,
        mix,
        slo_ms: Some(slo_ms),
        timeout_s: args.timeout_s,
        percentile: args.percentile,
    };
    Plan::new(&args.serving, rungs, offer)
}
