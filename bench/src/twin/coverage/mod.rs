//! `cadenced-bench coverage`: whether promises are kept at their level, in virtual time. At several levels, from
//! a fraction of saturation to several times it, within the loads that the calibration knows and beyond them, and with
//! a shift midway that nothing announces: answers get twice as long. `cell` runs one cell, `criteria` judges all of
//! them, `table` shows them.

pub mod cell;
pub mod criteria;
pub mod table;

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use cadenced::logic::conformal::calibration::Alpha;
use serde::{Deserialize, Serialize};

use self::cell::{CoverageCell, Setting};
use self::criteria::Criterion;
use super::arrivals::Offer;
use super::cost::CostModel;
use super::engine::{Request, Trial};
use super::fitted;
use super::lab::{self, Lab};
use super::oracle::Bounds;
use super::rung::{RUNGS, Rung};
use super::simulate::{self, SimulateArgs};
use crate::all;
use crate::load::arrivals::Extent;
use crate::numbers::{at_least_one, positive, share};

/// Promises against what became of them, in virtual time.
#[derive(Clone, Debug, clap::Args)]
pub struct CoverageArgs {
    /// What `calibrate` wrote: its cost model, its mix and its SLO hold.
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// The configurations of the static and of the deployed arm.
    #[arg(long, value_delimiter = ',', num_args = 2, default_values = [RUNGS[4], RUNGS[5]])]
    pub rungs: Vec<PathBuf>,
    /// Shares of promises that may be broken.
    #[arg(long, value_delimiter = ',', default_values_t = [0.2, 0.05, 0.01], value_parser = share)]
    pub alphas: Vec<f64>,
    /// Multiples of saturation.
    #[arg(long, value_delimiter = ',', default_values_t = [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], value_parser = positive)]
    pub loads: Vec<f64>,
    /// Those of the cells in which the workload shifts.
    #[arg(long, value_delimiter = ',', default_values_t = [0.5, 1.0, 2.0, 4.0], value_parser = positive)]
    pub shifted: Vec<f64>,
    #[arg(long, default_value_t = 3, value_parser = at_least_one::<u64>())]
    pub seeds: u64,
    /// Arrivals in a cell; four times as many where nothing is calibrated beforehand.
    #[arg(long, default_value_t = 1500, value_parser = at_least_one::<usize>())]
    pub requests: usize,
    #[arg(long, default_value = "bench/results/coverage.json")]
    pub out: PathBuf,
}

/// How promises come about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// With a calibration, and following what happens: what is deployed.
    Conformal,
    /// Without a calibration: learning from what it admits.
    SelfCalibrating,
    /// With a calibration, and never changing.
    Static,
}

impl Arm {
    pub const ALL: [Self; 3] = [Self::Conformal, Self::SelfCalibrating, Self::Static];

    /// Cells are so many times as long: who has to learn first takes longer.
    fn length(self) -> usize {
        match self {
            Self::SelfCalibrating => 4,
            Self::Conformal | Self::Static => 1,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Conformal => "conformal",
            Self::SelfCalibrating => "self-calibrating",
            Self::Static => "static",
        }
    }
}

/// What the study came to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Study {
    pub cost: CostModel,
    pub slo_s: f64,
    pub saturation_per_s: f64,
    pub seeds: u64,
    pub requests: usize,
    /// The lowest and the highest load that the calibration is of.
    pub calibrated: (f64, f64),
    pub cells: Vec<CoverageCell>,
    pub classes: Vec<Class>,
    pub criteria: Vec<Criterion>,
}

/// Requests by their cap, and what they take on an idle server.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Class {
    /// From this cap on.
    pub from: u32,
    pub n: usize,
    pub idle_p99_s: f64,
}

/// Where the classes begin.
pub const CLASSES: [u32; 5] = [0, 48, 96, 160, 256];

/// The class of a request with this cap.
pub fn class(max_tokens: u32) -> usize {
    CLASSES.partition_point(|from| *from <= max_tokens) - 1
}

/// # Errors
/// When a criterion does not hold, after the results are written.
pub fn run(args: &CoverageArgs) -> Result<()> {
    let study = study(args)?;
    simulate::write(&args.out, &study)?;
    println!("{}", table::all(&study));
    let broken = study.criteria.iter().filter(|c| !c.holds).count();
    if broken > 0 {
        bail!("{broken} of {} criteria do not hold", study.criteria.len());
    }
    Ok(())
}

/// A pure function of the arguments and of the files that they name.
///
/// # Errors
/// When a file can't be read or a level is none.
pub fn study(args: &CoverageArgs) -> Result<Study> {
    ensure!(args.rungs.len() == 2, "two arms have a configuration");
    let mut given: SimulateArgs = all::given("simulate", &[])?;
    given.rungs.clone_from(&args.rungs);
    given.calibration.clone_from(&args.calibration);
    let (prices, lab) = simulate::set_up(&given)?;
    let saturation_per_s = lab.saturation_per_s();
    let slo_ms = prices
        .slo_ms
        .unwrap_or_else(|| lab::slo_ms(lab.alone_s(0.9)));
    let mut cells = Vec::new();
    for (load, shifted) in args
        .loads
        .iter()
        .map(|l| (*l, false))
        .chain(args.shifted.iter().map(|l| (*l, true)))
    {
        for seed in 0..args.seeds {
            for arm in Arm::ALL {
                let n = args.requests * arm.length();
                let requests = offered(&lab, load * saturation_per_s, seed, n, shifted);
                let setting = Setting {
                    load,
                    seed,
                    shifted_at: shifted.then(|| requests[n / 2].at_us),
                    slo_us: slo_ms * 1000,
                    most_within: most_within(&lab, &requests, slo_ms * 1000),
                    requests: &requests,
                };
                for &alpha in &args.alphas {
                    let level = Alpha::new(alpha).with_context(|| format!("a level of {alpha}"))?;
                    let trial = trial(&lab, arm, level, slo_ms * 1000);
                    cells.push(setting.run(arm, alpha, &trial));
                }
            }
        }
    }
    let classes = classes(&lab);
    let calibrated = (fitted::LOADS[0], fitted::LOADS[fitted::LOADS.len() - 1]);
    let slo_s = slo_ms as f64 * 1e-3;
    Ok(Study {
        cost: prices.model,
        slo_s,
        saturation_per_s,
        seeds: args.seeds,
        requests: args.requests,
        calibrated,
        criteria: criteria::judge(&cells, &classes, slo_s),
        cells,
        classes,
    })
}

/// The requests of a cell. Where they shift, the second half's answers are twice as long as they would have been; their
/// caps, which is all that admission sees of it, are as before.
fn offered(lab: &Lab, rate: f64, seed: u64, n: usize, shifted: bool) -> Vec<Request> {
    let mut requests = Offer {
        rate,
        seed,
        extent: Extent::Requests(n),
        ..lab.offer.clone()
    }
    .requests();
    let from = if shifted { n / 2 } else { n };
    for r in &mut requests[from..] {
        r.answer_tokens = (2 * r.answer_tokens).min(513);
    }
    requests
}

fn most_within(lab: &Lab, requests: &[Request], slo_us: u64) -> usize {
    let bounds = Bounds {
        cost: lab.cost,
        rows_max: lab.rungs[1].policy.max_running() as u32,
        kv_cells: lab.rungs[1].kv_cells(),
        prefix_cache: true,
    };
    bounds.most_on_time(requests, slo_us)
}

fn trial(lab: &Lab, arm: Arm, alpha: Alpha, slo_us: u64) -> Trial {
    let rung: &Rung = match arm {
        Arm::Static => &lab.rungs[0],
        Arm::Conformal | Arm::SelfCalibrating => &lab.rungs[1],
    };
    let artifact = lab
        .artifact
        .as_deref()
        .filter(|_| arm != Arm::SelfCalibrating);
    Trial {
        controller: Some(lab.controller(rung, artifact, Some(alpha))),
        slo_us: Some(slo_us),
        patience_us: Some(300_000_000),
        ..Trial::new(rung.clone(), lab.cost)
    }
}

/// What the classes take alone.
fn classes(lab: &Lab) -> Vec<Class> {
    let spans = lab.alone();
    let class = |i: usize| {
        let of = spans.iter().filter(|(r, _)| class(r.max_tokens) == i);
        let mut us: Vec<u64> = of.map(|(_, us)| *us).collect();
        us.sort_unstable();
        let rank = (us.len() * 99).div_ceil(100).max(1);
        Class {
            from: CLASSES[i],
            n: us.len(),
            idle_p99_s: us.get(rank - 1).copied().unwrap_or(0) as f64 * 1e-6,
        }
    };
    (0..CLASSES.len()).map(class).collect()
}

#[cfg(test)]
mod tests;
