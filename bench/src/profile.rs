//! `profile`: samples the daemon under load and tells where its CPU time goes.
//!
//! Eight streaming clients ([`load`]) keep the daemon busy while `perf` ([`perf`]) interrupts its threads 997
//! times for each second that they run, and notes the stack. The stacks are folded ([`stacks`]), counted by
//! component ([`shares`]), drawn, and told in a README ([`report`]).

mod components;
mod load;
mod perf;
mod picture;
mod report;
mod shares;
mod stacks;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::cpu;
use crate::daemon::{self, Daemon};
use crate::effective;
use crate::numbers::at_least_one;
use crate::provenance::Provenance;
use load::Load;
use shares::Shares;
use stacks::Stacks;

/// Not a divisor of anything that happens at round intervals.
const RATE_HZ: u32 = 997;

#[derive(Args)]
pub struct ProfileArgs {
    /// The model file.
    #[arg(long, default_value = "models/smollm2-135m-instruct-q4_0.gguf")]
    model: PathBuf,
    #[arg(long, default_value = "config/rung3-continuous.toml")]
    config: PathBuf,
    /// The daemon's binary; by default the one beside this program.
    #[arg(long)]
    daemon: Option<PathBuf>,
    #[arg(long, default_value_t = 8, value_parser = at_least_one::<usize>())]
    clients: usize,
    /// How long to sample.
    #[arg(long, default_value_t = 30, value_parser = at_least_one::<u32>())]
    seconds: u32,
    /// A setting of the daemon's, as section.key=value; what is in force must agree.
    #[arg(long = "set", value_parser = crate::raw::setting)]
    settings: Vec<(String, String)>,
    /// The folder of the results; notes.md in it is written by hand and becomes part of its README.
    #[arg(long, default_value = "bench/results/profile")]
    out: PathBuf,
    /// Only write README.md again, from shares.json and notes.md.
    #[arg(long)]
    render: bool,
}

/// What sampling was, and how much of it went wrong.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sampling {
    sampler: String,
    rate_hz: u32,
    /// From the first sample to the last.
    seconds: f64,
    samples: u64,
    /// Cores that the daemon kept busy, from the scheduler's counters.
    daemon_cores: f64,
    /// CPU seconds of the daemon's between the first sample and the last.
    daemon_cpu_s: f64,
    /// Samples for each second that a thread of the daemon's ran.
    achieved_hz: f64,
    /// CPU seconds at the asked rate.
    samples_expected: f64,
    /// Samples that perf itself says it dropped.
    samples_lost: u64,
    client_cores: f64,
    /// CPU seconds that the hypervisor gave to others.
    stolen_s: f64,
}

/// What the daemon did while it was sampled, by its own counters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Served {
    clients: usize,
    seconds: f64,
    replies: u64,
    steps: u64,
    prompt_tokens: u64,
    reply_tokens: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Profile {
    sampling: Sampling,
    load: Served,
    shares: Shares,
}

pub fn run(args: &ProfileArgs) -> Result<()> {
    if args.render {
        return report::write(&args.out);
    }
    ensure!(args.clients > 0 && args.seconds > 0, "nothing to sample");
    let sampler = perf::version()?;
    let mut provenance = Provenance::begin(&[&args.model])?;
    let binary = daemon::binary(args.daemon.as_deref())?;
    let built = std::fs::metadata(&binary)?.modified()?;
    let (model, config) = (utf8(&args.model)?, utf8(&args.config)?);
    let started = ["--config", config, "--model", model];
    let daemon = Daemon::start(&binary, &started, &args.settings)?;
    let in_force = daemon.effective()?;
    effective::check_asked(&args.settings, &in_force)?;
    provenance.effective = Some(in_force);
    let recording = tempfile(std::process::id());
    let sampled = sample(args, &daemon, &recording);
    let script = sampled.and_then(|s| Ok((s, perf::script(&recording)?)));
    let _ = std::fs::remove_file(&recording);
    let ((used, load), script) = script?;
    drop(daemon);
    ensure!(
        std::fs::metadata(&binary)?.modified()? == built,
        "the daemon's binary was built anew meanwhile, so its symbols can't be trusted; run it again"
    );
    let stacks = Stacks::fold(&script.text)?;
    let samples = stacks.samples();
    ensure!(
        samples > 0,
        "perf took no sample; is cpu-clock allowed here? \
         (sysctl kernel.perf_event_paranoid must be 2 or less, or run as root)"
    );
    let daemon_cpu_s = used.daemon_cores * script.seconds;
    let sampling = Sampling {
        sampler,
        rate_hz: RATE_HZ,
        seconds: script.seconds,
        samples,
        daemon_cores: used.daemon_cores,
        daemon_cpu_s,
        achieved_hz: samples as f64 / daemon_cpu_s.max(1e-9),
        samples_expected: f64::from(RATE_HZ) * daemon_cpu_s,
        samples_lost: script.lost,
        client_cores: used.client_cores,
        stolen_s: used.stolen_s,
    };
    std::fs::create_dir_all(&args.out)?;
    std::fs::write(args.out.join("folded.txt"), stacks.text())?;
    std::fs::write(
        args.out.join("flamegraph.svg"),
        picture::draw(&stacks, &sampling)?,
    )?;
    let profile = Profile {
        sampling,
        load,
        shares: Shares::of(&stacks),
    };
    provenance.write(&args.out.join("shares.json"), &profile)?;
    report::write(&args.out)
}

/// CPU use while it was sampled.
struct Used {
    daemon_cores: f64,
    client_cores: f64,
    stolen_s: f64,
}

fn sample(args: &ProfileArgs, daemon: &Daemon, recording: &Path) -> Result<(Used, Served)> {
    let load = Load::start(daemon.addr, args.clients)?;
    // As many replies as there are clients: the daemon is warm and the replies are out of step.
    load.wait_for(args.clients as u64, Duration::from_secs(900))?;
    println!("sampling for {} s", args.seconds);
    let us = std::process::id();
    let (stolen, start) = (cpu::stolen_seconds(), Instant::now());
    let (replies, metrics) = (load.replies()?, daemon.metrics()?);
    let (daemon_a, client_a) = (daemon.cpu(), cpu::sample(us));
    perf::record(daemon.pid(), RATE_HZ, args.seconds, recording)?;
    let (daemon_b, client_b) = (daemon.cpu(), cpu::sample(us));
    let later = daemon.metrics()?;
    let count = |name: &str| counter(&later, name) - counter(&metrics, name);
    let served = Served {
        clients: args.clients,
        seconds: start.elapsed().as_secs_f64(),
        replies: load.replies()? - replies,
        steps: count("cadenced_step_model_seconds_count"),
        prompt_tokens: count("cadenced_prefilled_tokens_total"),
        reply_tokens: count("cadenced_generated_tokens_total"),
    };
    let used = Used {
        daemon_cores: daemon_a.until(&daemon_b).total,
        // An empty sum is -0.
        client_cores: client_a.until(&client_b).total + 0.0,
        stolen_s: cpu::stolen_seconds() - stolen,
    };
    Ok((used, served))
}

/// A counter in Prometheus' exposition text.
fn counter(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| {
        line.strip_prefix(name)?
            .strip_prefix(' ')?
            .parse::<f64>()
            .ok()
    });
    value.unwrap_or(0.0) as u64
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().context("a path is not UTF-8")
}

fn tempfile(pid: u32) -> PathBuf {
    std::env::temp_dir().join(format!("cadenced-profile-{pid}.data"))
}
