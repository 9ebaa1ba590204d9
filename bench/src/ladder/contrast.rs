//! `ladder --closed`: the same eight requests at two slots, driven open, all at once, and by two clients that each
//! wait for their answer. The throughput is the same, since both keep the slots busy; the wait is what a closed loop
//! can't see. Each run has a daemon of its own, so that none finds the prompts of another cached, and the two take
//! turns in going first. The table is made of what is kept, by `report`.

use anyhow::{Context, Result};

use super::LadderArgs;
use super::song;
use crate::all;
use crate::load::run::{self, RunArgs};
use crate::load::soundness;
use crate::report::contrast::{self, Contrast};

const REQUESTS: usize = 8;
const SLOTS: usize = 2;
const ROUNDS: usize = 3;

/// # Errors
/// When the daemon can't be measured, or a run may not be reported.
pub fn run(args: &LadderArgs) -> Result<()> {
    for round in 0..ROUNDS {
        for turn in 0..2 {
            if (round + turn) % 2 == 0 {
                one(args, &format!("closed-{round}"), Some(SLOTS))?;
            } else {
                one(args, &format!("open-{round}"), None)?;
            }
        }
    }
    let contrast = Contrast::read(&args.out)?.context("nothing was kept")?;
    println!("{}", contrast.table());
    Ok(())
}

fn one(args: &LadderArgs, name: &str, closed: Option<usize>) -> Result<()> {
    let last = args.rungs.last().context("no rung")?;
    let slots = ("scheduler.max_running".to_owned(), SLOTS.to_string());
    let daemon = args.serving.start(last, &[slots, song::door()])?;
    song::sing(&daemon)?;
    let mut run: RunArgs = all::given("run", &["--url", &daemon.url(), "--arrivals", "burst"])?;
    run.requests = Some(REQUESTS);
    run.closed = closed;
    run.mix = args.mix.unwrap_or_default();
    run.timeout_s = args.timeout_s;
    run.model_file = args.serving.model_file().map(Into::into);
    // The medians are what eight requests can tell.
    run.limits.percentile = 50.0;
    let (records, meta) = run::measure(&run)?;
    let folder = args.out.join(contrast::FOLDER);
    std::fs::create_dir_all(&folder)?;
    run::keep(&folder.join(format!("{name}.parquet")), &records, &meta)?;
    Ok(soundness::refuse(meta.unsound)?)
}
