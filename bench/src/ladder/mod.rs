//! `ladder`: every rung under every load, a daemon of its own for each cell. What is run is a `plan`, what is
//! offered was `drawn` before, `song` says what the machine was like, `journal` keeps what happened, so that a
//! killed sweep goes on where it was; `sweep` runs it. `--closed` is another experiment: see `contrast`.

mod contrast;
mod drawn;
mod journal;
mod plan;
mod progress;
mod song;
mod sweep;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::calibrate::Calibration;
use crate::load::meta;
use crate::load::mix::Mix;
use crate::load::quantile::fewest_for;
use crate::provenance;
use crate::serving::Serving;
use crate::twin::rung::CAPPED;
use plan::{Plan, Step};

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
    #[arg(long, value_delimiter = ',')]
    pub rates: Vec<f64>,
    #[arg(long)]
    pub slo_ms: Option<u64>,
    #[arg(long, value_enum)]
    pub mix: Option<Mix>,
    #[arg(long, default_value_t = 3)]
    pub seeds: u64,
    /// Requests of each cell.
    #[arg(long, default_value_t = 120)]
    pub arrivals: usize,
    /// The percentile that is to be quoted, which decides how many arrivals are enough.
    #[arg(long, default_value_t = 99.0)]
    pub percentile: f64,
    /// A client gives up so long after its intended arrival.
    #[arg(long, default_value_t = 300.0)]
    pub timeout_s: f64,
    /// No sweep, but the same eight requests in an open and in a closed loop, at two slots of the last rung.
    #[arg(
        long,
        conflicts_with_all = ["rates", "slo_ms", "seeds", "arrivals", "percentile", "calibration"]
    )]
    pub closed: bool,
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
    let plan = plan(args)?;
    plan.settle(&args.out)?;
    sweep::run(args, &plan)
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
    ensure!(
        rates_per_s.iter().all(|r| *r > 0.0 && r.is_finite()),
        "a rate is a number above 0"
    );
    ensure!(
        rates_per_s.is_sorted_by(|a, b| a < b),
        "the rates do not ascend"
    );
    ensure!(mix != Mix::Trace, "a trace has arrivals of its own");
    ensure!(args.seeds > 0, "no seed");
    let fewest = fewest_for(args.percentile);
    ensure!(
        args.arrivals >= fewest,
        "fewer than {fewest} arrivals make p{} the maximum",
        args.percentile
    );
    let step = |file: &PathBuf| -> Result<Step> {
        Ok(Step {
            rung: args.serving.config(file, &[])?.rung().to_owned(),
            file: file.clone(),
            config: std::fs::read_to_string(file)?,
        })
    };
    let rungs: Vec<Step> = args.rungs.iter().map(step).collect::<Result<_>>()?;
    ensure!(!rungs.is_empty(), "no rung");
    for (i, step) in rungs.iter().enumerate() {
        ensure!(
            rungs[..i].iter().all(|s| s.rung != step.rung),
            "{} is there twice",
            step.rung
        );
    }
    let model = args
        .serving
        .model_file()
        .map(provenance::model_file)
        .transpose()?;
    let root = provenance::root();
    Ok(Plan {
        engine_fingerprint: root.map(|root| meta::fingerprint(&root)).transpose()?,
        model_sha256: model.map(|m| m.sha256),
        machine: serde_json::to_value(provenance::machine())?,
        rungs,
        settings: args.serving.settings.clone(),
        rates_per_s,
        seeds: args.seeds,
        arrivals: args.arrivals,
        mix,
        slo_ms,
        timeout_s: args.timeout_s,
        percentile: args.percentile,
    })
}
