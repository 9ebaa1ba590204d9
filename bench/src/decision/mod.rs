//! `decision`: what a promise costs. A daemon of rung 5, calibrated on the fake backend, is offered open-loop load; what
//! its decisions cost is told by its own histograms of CPU and wall time, how soon a refusal is answered by the clients'
//! clock. Once more while a single decode blocks. And how long the calibration file takes to load.

mod blocked;
mod cost;
mod loaded;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use cadenced::promises;
use clap::Args;
use serde::Serialize;

use crate::calibrated::Calibrated;
use crate::daemon;
use crate::numbers::{at_least_one, positive};
use crate::provenance::Provenance;
use crate::stats::Spread;
use cost::{Costs, Refusals, Refused};
use loaded::{Load, Loaded};

/// What is required: half and 99 of 100 decisions within so much CPU time of their thread, a refusal while a decode
/// blocks, and the calibration file.
pub const P50_US: f64 = 10.0;
pub const P99_US: f64 = 50.0;
pub const REFUSAL_MS: f64 = 5.0;
pub const ARTIFACT_MS: f64 = 50.0;

/// Steps of tens of milliseconds, as real ones are, and room for a fault: a prompt with the marker blocks one decode.
pub const FAKE: [(&str, &str); 8] = [
    ("fake.step_us", "20000"),
    ("fake.prefill_token_us", "50"),
    ("fake.decode_seq_us", "500"),
    ("fake.cached_token_us", "0"),
    ("fake.fault", "stall"),
    ("fake.fault_marker", blocked::MARKER),
    ("fake.fault_at_token", "50"),
    ("fake.stall_ms", "2000"),
];
/// What most requests of the mix need alone, and few beside others.
const SLO_MS: u64 = 5000;
/// How often the file is loaded in each repeat.
const LOADS_OF_FILE: usize = 20;

#[derive(Args)]
pub struct DecisionArgs {
    #[arg(long)]
    daemon: Option<PathBuf>,
    /// Multiples of what the daemon can do, as its calibration has measured it.
    #[arg(long, value_delimiter = ',', default_value = "1,4", value_parser = positive)]
    loads: Vec<f64>,
    /// Seconds of arrivals in each repeat of each load.
    #[arg(long, default_value_t = 30.0, value_parser = positive)]
    seconds: f64,
    /// How long the daemon is calibrated first; in less it sees too little of an idle engine to promise anything on one.
    #[arg(long, default_value_t = 8.0, value_parser = positive)]
    calibrate_minutes: f64,
    #[arg(long, default_value_t = 5, value_parser = at_least_one::<usize>())]
    repeats: usize,
    #[arg(long, default_value = "bench/results/decision.json")]
    out: PathBuf,
}

#[derive(Serialize)]
struct Results {
    slo_ms: u64,
    saturation_per_s: f64,
    artifact: ArtifactFile,
    loaded: Vec<Row>,
    blocked: Blocked,
}

/// While a decode blocks.
#[derive(Serialize)]
struct Blocked {
    refusals: Refusals,
    repeats: Vec<Refused>,
}

#[derive(Serialize)]
struct ArtifactFile {
    bytes: u64,
    scores: usize,
    /// From the file's name to a controller that promises.
    load_ms: Spread,
}

/// A load, over its repeats.
#[derive(Serialize)]
struct Row {
    load: f64,
    rate_per_s: f64,
    /// How many, by verdict.
    decisions: BTreeMap<String, u64>,
    cpu: Costs,
    wall: Costs,
    refusals: Refusals,
    repeats: Vec<Loaded>,
}

pub fn run(args: &DecisionArgs) -> Result<()> {
    let mut provenance = Provenance::begin(&[])?;
    let binary = daemon::binary(args.daemon.as_deref())?;
    let calibrated = Calibrated::make(&binary, &FAKE, args.calibrate_minutes)?;
    provenance.canary.sing()?;
    let mut loaded = Vec::new();
    for &load in &args.loads {
        let rate_per_s = load * calibrated.saturation_per_s;
        let mut repeats = Vec::new();
        for seed in 0..args.repeats as u64 {
            let daemon = calibrated.start()?;
            provenance.effective = Some(daemon.effective()?);
            repeats.push(loaded::measure(
                &daemon,
                &Load {
                    rate_per_s,
                    seconds: args.seconds,
                    seed,
                    slo_ms: SLO_MS,
                },
            )?);
        }
        let row = Row::of((load, rate_per_s), repeats);
        row.report();
        loaded.push(row);
        provenance.canary.sing()?;
    }
    let blocked = (0..args.repeats).map(|_| blocked::measure(&calibrated.start()?));
    let blocked = blocked.collect::<Result<Vec<_>>>()?;
    let blocked = Blocked {
        refusals: Refusals::of(&blocked),
        repeats: blocked,
    };
    println!("while a decode blocks: {}", blocked.refusals.show());
    provenance.canary.sing()?;
    let artifact = ArtifactFile::time(&calibrated, args.repeats)?;
    println!(
        "a calibration file of {} bytes is loaded in {} ms",
        artifact.bytes,
        artifact.load_ms.show(2)
    );
    provenance.write(
        &args.out,
        &Results {
            slo_ms: SLO_MS,
            saturation_per_s: calibrated.saturation_per_s,
            artifact,
            loaded,
            blocked,
        },
    )
}

impl ArtifactFile {
    fn time(calibrated: &Calibrated, repeats: usize) -> Result<Self> {
        let config = calibrated.config()?;
        let load = || {
            let began = Instant::now();
            let artifact = promises::artifact(&config).map_err(anyhow::Error::msg)?;
            let artifact = artifact.context("no calibration is configured")?;
            let controller = promises::deployed(&config, Some(&artifact));
            let ms = began.elapsed().as_secs_f64() * 1e3;
            anyhow::ensure!(controller.is_armed(), "what was loaded promises nothing");
            Ok((ms, artifact.points.len()))
        };
        let loads = (0..repeats.max(1) * LOADS_OF_FILE).map(|_| load());
        let loads: Vec<(f64, usize)> = loads.collect::<Result<_>>()?;
        let ms: Vec<f64> = loads.iter().map(|(ms, _)| *ms).collect();
        Ok(Self {
            bytes: std::fs::metadata(&calibrated.file)?.len(),
            scores: loads[0].1,
            load_ms: Spread::of(&ms),
        })
    }
}

impl Row {
    fn of((load, rate_per_s): (f64, f64), repeats: Vec<Loaded>) -> Self {
        let mut decisions = BTreeMap::new();
        for (verdict, n) in repeats.iter().flat_map(|r| &r.decisions) {
            *decisions.entry(verdict.clone()).or_default() += n;
        }
        let refused: Vec<&Refused> = repeats.iter().map(|r| &r.refused).collect();
        Self {
            load,
            rate_per_s,
            decisions,
            cpu: Costs::of(repeats.iter().map(|r| r.cpu)),
            wall: Costs::of(repeats.iter().map(|r| r.wall)),
            refusals: Refusals::of(&refused),
            repeats,
        }
    }

    fn report(&self) {
        println!(
            "{} × saturation, {:?}\n  CPU µs: p50 {}, p99 {}; wall µs: p50 {}, p99 {}\n  refusals: {}",
            self.load,
            self.decisions,
            self.cpu.p50_us.show(1),
            self.cpu.p99_us.show(1),
            self.wall.p50_us.show(1),
            self.wall.p99_us.show(1),
            self.refusals.show()
        );
    }
}
