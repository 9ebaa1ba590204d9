//! `gate`: whether a change made overload worse, against a committed budget at two rates.
//!
//! The daemon's actors serve each rate in virtual time, so the verdict is the same on a busy machine. Exit status: 0
//! within the budget or better, 1 regressed, 2 when what was run says nothing. `--refresh` makes what is run the
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

/// # Errors
/// [`soundness::MeasurementUnsound`] when what was run says nothing; others when it is beyond the budget or a file
/// can't be read or written.
pub fn run(args: &GateArgs) -> Result<()> {
    let clock = Instant::now();
    let done = if args.refresh {
        refresh(args)
    } else if args.sockets {
        let budget = Budget::read(&args.budget)?;
        sockets::run(&budget, args.daemon.clone(), &args.settings)
    } else {
        judge(&Budget::read(&args.budget)?, &args.settings)
    };
    // Not among the output, which is the same whenever and wherever it is run.
    eprintln!("gate: {:.1} s", clock.elapsed().as_secs_f64());
    done
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
        bail!("{worse} of {} figures are beyond the budget", lines.len());
    }
    match better {
        0 => println!("within the budget"),
        n => println!(
            "within the budget, and {n} figures are better by as much: refresh it to keep them"
        ),
    }
    Ok(())
}
