//! `cadenced calibrate`: the file that promises are made from, for this machine and the model it will serve.
//!
//! Collect → fit → write. The daemon runs in a process of its own, as it will serve, and is driven over HTTP in
//! rounds that span the range of load ([`crate::logic::conformal::rounds`]). Each complete round is kept, so a
//! second call goes on where a killed one was; when all are there it fits, at once.

mod collect;
mod daemon;
mod drive;
mod progress;
mod prompts;
mod summary;
mod workdir;

use std::path::PathBuf;

use crate::config::{Backend, Config};
use crate::logic::conformal::artifact::{Artifact, Provenance};
use crate::logic::conformal::boosting::BoostParams;
use crate::logic::conformal::predictor::PredictorKind;
use crate::logic::conformal::rounds::{self, Fold, Folds, Plan, ROUNDS_MIN};
use crate::{promises, stdout};
use collect::Collection;
use prompts::Prompts;
use workdir::{Settings, Workdir};

pub use workdir::{Manifest, read_rounds};

/// Where the file goes if neither the command line nor the configuration says so.
const OUT: &str = "models/calibration.bin";

/// How to calibrate.
#[derive(Clone, Debug, clap::Args)]
pub struct CalibrateArgs {
    /// The file to write; if not given, admission.artifact, or models/calibration.bin.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// How long to collect.
    #[arg(long, default_value_t = 35.0)]
    pub minutes: f64,
    /// Runs of the daemon, at least 4: two parts to fit on, one to calibrate, one to test.
    #[arg(long, default_value_t = 8)]
    pub rounds: u32,
    /// What to ask, in place of the built-in requests: a chat request a line, as JSON, like the traffic to be served.
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// After so many seconds a client gives up.
    #[arg(long, default_value_t = 300.0)]
    pub patience_s: f64,
    /// Of the arrivals and of what is asked.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// Why there is no calibration.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It can't work as it was told to.
    #[error("{0}")]
    Usage(String),
    /// The model, a port or a file can't be had.
    #[error("{0}")]
    Unavailable(String),
    /// Something failed meanwhile.
    #[error("{0}")]
    Internal(String),
}

impl Failure {
    /// The process's exit code, as `serve` has them.
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            Self::Usage(_) => 64,
            Self::Unavailable(_) => 69,
            Self::Internal(_) => 70,
        }
    }
}

/// Calibrates the daemon that `config` describes, and prints what came of it.
///
/// # Errors
/// Says what is in the way.
pub fn run(config: &Config, args: &CalibrateArgs) -> Result<(), Failure> {
    let plan = args.plan()?;
    let prompts = Prompts::read(args.prompts.as_deref(), config)?;
    let out = match &args.out {
        Some(out) => out.clone(),
        None if config.admission.artifact.as_os_str().is_empty() => OUT.into(),
        None => config.admission.artifact.clone(),
    };
    if config.model.backend == Backend::Llama && !config.model.path.is_file() {
        let path = config.model.path.display();
        return Err(Failure::Unavailable(format!(
            "model.path: {path}: no such file"
        )));
    }
    let work = Workdir::open(&out)?;
    let mut daemons = serde_json::to_value(daemon::collecting(config, "".as_ref()))
        .map_err(|e| Failure::Internal(e.to_string()))?;
    if let Some(sections) = daemons.as_object_mut() {
        // The same for all collections, or without a meaning there.
        sections.retain(|name, _| name != "admission" && name != "log");
    }
    let settings = Settings {
        version: env!("CARGO_PKG_VERSION").into(),
        plan,
        prompts: prompts.name(),
        patience_s: args.patience_s,
        model: promises::model_sha256(config).map_err(Failure::Unavailable)?,
        config: daemons,
    };
    let found = work.manifest(&settings)?;
    let collection = Collection {
        config,
        work: &work,
        settings: &settings,
        prompts: &prompts,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::Internal(e.to_string()))?;
    let manifest = runtime.block_on(collection.run(found))?;

    let (artifact, folds) = fit(&work, &manifest)?;
    let bytes = artifact
        .encode()
        .map_err(|e| Failure::Internal(e.to_string()))?;
    workdir::write_whole(&out, &bytes)?;
    let text = format!(
        "{}\nwritten: {}; the rounds are in {}: remove it to collect anew\n",
        summary::summary(&artifact, &folds),
        out.display(),
        work.folder().display()
    );
    stdout::say(&text).map_err(|e| Failure::Internal(format!("standard output: {e}")))
}

/// What the rounds make.
fn fit(work: &Workdir, manifest: &Manifest) -> Result<(Artifact, Folds), Failure> {
    let plan = manifest.settings.plan;
    let (rounds, traces_sha256) =
        read_rounds(work.folder(), plan.rounds).map_err(Failure::Usage)?;
    let folds = Folds::of_rounds(rounds.iter().map(Vec::as_slice));
    let short = |why: &dyn std::fmt::Display| {
        let minutes = plan.minutes;
        Failure::Usage(format!(
            "--minutes {minutes}: too little was collected: {why}"
        ))
    };
    let idle = rounds::idle_pace(rounds.iter().flatten())
        .ok_or_else(|| short(&"no request ran on an idle engine"))?;
    let artifact = Artifact::fit(
        PredictorKind::Trees,
        &BoostParams::default(),
        folds.rows(Fold::Train),
        folds.rows(Fold::Calibrate),
        idle,
        Provenance {
            traces_sha256,
            ..manifest.provenance.clone()
        },
    )
    .map_err(|e| short(&e))?;
    Ok((artifact, folds))
}

impl CalibrateArgs {
    fn plan(&self) -> Result<Plan, Failure> {
        let rule = |holds: bool, what: String| {
            if holds {
                Ok(())
            } else {
                Err(Failure::Usage(what))
            }
        };
        let (minutes, rounds, patience_s) = (self.minutes, self.rounds, self.patience_s);
        rule(
            minutes > 0.0 && minutes <= 10_000.0,
            format!("--minutes: {minutes} is not above 0 and at most 10000"),
        )?;
        rule(
            (ROUNDS_MIN..=1000).contains(&rounds),
            format!("--rounds: {rounds} is not between {ROUNDS_MIN} and 1000"),
        )?;
        rule(
            patience_s > 0.0 && patience_s <= 86_400.0,
            format!("--patience-s: {patience_s} is not above 0 and at most 86400"),
        )?;
        Ok(Plan {
            minutes,
            rounds,
            seed: self.seed,
        })
    }
}
