//! `gate`: whether a change made overload worse, against a committed budget at two rates.
//!
//! The daemon's actors serve each rate in virtual time, so the verdict is the same on a busy machine. Exit status: 0
//! within the budget or better, 1 regressed and nothing else, 2 when there is no verdict: what was run says nothing, or
//! could not be run as asked. `--refresh` makes what is run the
//! budget. `--sockets` is the other half: a minute of load on a real daemon, of which nothing is timed, but all that
//! was offered is accounted for.

mod budget;
mod load;
mod sockets;
mod verdict;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};

use crate::calibrate::Calibration;
use crate::load::soundness::{self, Unsound};
use crate::raw::setting;
use crate::twin::engine::Trial;
use budget::{Budget, RungBudget};
use load::Load;

/// The rungs that are judged: one line for each. The first one serves over sockets.
const RUNGS: [&str; 2] = ["config/rung4-cache.toml", "config/rung5-conformal.toml"];

/// Fails when the daemon serves simulated load worse than the committed budget has it.
#[derive(Clone, Debug, clap::Args)]
pub struct GateArgs {
    #[arg(long, default_value = "bench/results/gate.json")]
    budget: PathBuf,
    /// Makes what is run the budget, under the load that the budget has.
    #[arg(long, conflicts_with_all = ["settings", "sockets"])]
    refresh: bool,
    /// With --refresh: the costs, the mix and the SLO that `calibrate` wrote, instead of the budget's.
    #[arg(long, value_name = "FILE", requires = "refresh")]
    calibration: Option<PathBuf>,
    /// A setting of the daemon's, as section.key=value, on top of each rung's.
    #[arg(long = "set", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// A minute of open-loop load over sockets on the fake backend instead; no verdict but on soundness.
    #[arg(long)]
    sockets: bool,
    /// With --sockets: the daemon's binary; by default the one beside this program.
    #[arg(long, requires = "sockets")]
    daemon: Option<PathBuf>,
}

/// Beyond the budget: what the gate is there to say.
#[derive(Debug)]
struct Worse(String);

impl std::fmt::Display for Worse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Worse {}

/// The context of any other error: it ends the program with 2, which can't be taken for a regression.
#[derive(Debug)]
pub struct NoVerdict;

impl std::fmt::Display for NoVerdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no verdict")
    }
}

/// # Errors
/// When it is beyond the budget; [`NoVerdict`] when what was run says nothing, or it can't be run.
pub fn run(args: &GateArgs) -> Result<()> {
    let clock = Instant::now();
    let done = if args.refresh {
        refresh(args)
    } else if args.sockets {
        Budget::read(&args.budget)
            .and_then(|budget| sockets::run(&budget, args.daemon.clone(), &args.settings))
    } else {
        Budget::read(&args.budget).and_then(|budget| judge(&budget, &args.settings))
    };
    // Not among the output, which is the same whenever and wherever it is run.
    eprintln!("gate: {:.1} s", clock.elapsed().as_secs_f64());
    done.map_err(|error| match error.is::<Worse>() {
        true => error,
        false => error.context(NoVerdict),
    })
}

fn refresh(args: &GateArgs) -> Result<()> {
    let load = match &args.calibration {
        Some(file) => Load::of_calibration(&Calibration::read(file)?)?,
        None if args.budget.exists() => Budget::read(&args.budget)?.load,
        None => Load::of_the_fake()?,
    };
    let mut rungs = Vec::new();
    for config in RUNGS {
        rungs.push(RungBudget::measured(&load, config)?);
    }
    Budget { load, rungs }.write(&args.budget)?;
    println!("written: {}", args.budget.display());
    Ok(())
}

/// The share of promises that is to be kept, where some are made.
fn level(trial: &Trial) -> Option<f64> {
    let controller = trial.controller.as_ref();
    controller.map(|c| 1.0 - c.settings().alpha.get())
}

fn judge(budget: &Budget, settings: &[(String, String)]) -> Result<()> {
    let missing = RUNGS.iter().filter(|c| budget.of(c).is_none());
    let missing = missing.map(|config| Unsound::NoBudget {
        rung: (*config).to_owned(),
    });
    soundness::refuse(missing.collect())?;
    let mut lines = Vec::new();
    for rung in &budget.rungs {
        let trial = budget.load.trial(Path::new(&rung.config), settings)?;
        for wanted in &rung.rates {
            let cells = budget
                .load
                .cells(&trial, wanted.rate_per_s, rung.saturation_per_s);
            let judged = verdict::judge(&rung.rung, wanted, level(&trial), &cells)
                .map_err(soundness::MeasurementUnsound)?;
            for line in &judged {
                println!("{line}");
            }
            lines.extend(judged);
        }
    }
    let count = |of: fn(&verdict::Line) -> bool| lines.iter().filter(|l| of(l)).count();
    let (worse, better) = (
        count(verdict::Line::is_regression),
        count(verdict::Line::is_improvement),
    );
    if worse > 0 {
        let all = lines.len();
        bail!(Worse(format!(
            "{worse} of {all} figures are beyond the budget"
        )));
    }
    match better {
        0 => println!("within the budget"),
        n => println!(
            "within the budget, and {n} figures are better by as much: refresh it to keep them"
        ),
    }
    Ok(())
}
