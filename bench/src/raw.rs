//! `raw`: the daemon over HTTP against a bare `llama_decode` loop with the same settings, positions and batch.
//!
//! Both are measured in turn, with the order alternating. The daemon stays up throughout; its CPU time while
//! the bare loop runs is recorded, and is nothing. The bare loop begins at the positions at which the daemon's
//! window ([`crate::window`]) begins and makes as many steps, so both read the same amount of cache.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::child;
use crate::client::{self, Moment};
use crate::cpu::{self, Share};
use crate::daemon::{self, Daemon};
use crate::effective::{self, Mismatch};
use crate::engine::BareSettings;
use crate::prometheus::Histogram;
use crate::provenance::Provenance;
use crate::raw_loop::{Outcome, Spec};
use crate::sse::Reply;
use crate::stats::Spread;
use crate::window::{Window, mean_context};
use crate::workload::{self, Prompt};

/// Mean contexts may differ by this much between the two.
const CONTEXT_TOLERANCE: f64 = 0.02;

#[derive(Args)]
pub struct RawArgs {
    /// The model file.
    #[arg(long, default_value = "models/smollm2-135m-instruct-q4_0.gguf")]
    model: PathBuf,
    /// The daemon's binary; by default the one beside this program.
    #[arg(long)]
    daemon: Option<PathBuf>,
    #[arg(long, value_delimiter = ',', default_value = "1,4,8,16")]
    batches: Vec<usize>,
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// The length of the contexts when the replies end.
    #[arg(long, default_value_t = 512)]
    context: usize,
    /// Tokens of each reply.
    #[arg(long, default_value_t = 96)]
    decode: usize,
    /// A setting of the daemon's, as section.key=value; what is in force must agree.
    #[arg(long = "set", value_parser = setting)]
    settings: Vec<(String, String)>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value = "bench/results/raw.json")]
    out: PathBuf,
}

pub fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("not section.key=value")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// The daemon's side of a repeat.
#[derive(Clone, Debug, Serialize)]
struct Served {
    tokens_per_s: f64,
    steps: usize,
    mean_context: f64,
    step_ms: f64,
    /// Mean host work of all steps of the run, from the daemon's own histogram.
    host_us: f64,
    daemon_cpu: Share,
    client_cpu: f64,
    /// Until the last of the streams had its first text.
    ttft_ms_max: f64,
    #[serde(skip)]
    positions: Vec<usize>,
}

#[derive(Serialize)]
struct Repeat {
    daemon: Served,
    bare: Outcome,
    ratio: f64,
    /// Cores that the idle daemon used while the bare loop ran.
    idle_daemon_cpu: f64,
}

#[derive(Serialize)]
struct Row {
    batch: usize,
    steps: usize,
    mean_context: f64,
    bare_tokens_per_s: Spread,
    daemon_tokens_per_s: Spread,
    ratio: Spread,
    host_us: Spread,
    client_cpu: Spread,
    repeats: Vec<Repeat>,
}

struct Bench<'a> {
    args: &'a RawArgs,
    daemon: Daemon,
    settings: BareSettings,
    prompts: Vec<Prompt>,
}

fn ttft_ms(reply: &Reply) -> f64 {
    reply
        .texts
        .first()
        .map_or(0.0, |t| (*t - reply.sent).as_secs_f64() * 1e3)
}

pub fn run(args: &RawArgs) -> Result<()> {
    ensure!(
        args.repeats > 0 && args.decode + 64 < args.context,
        "no room for prompts"
    );
    let mut provenance = Provenance::begin(&[&args.model])?;
    let batch_max = args
        .batches
        .iter()
        .copied()
        .max()
        .context("no batch size")?;
    let model = args
        .model
        .to_str()
        .context("the model's path is not UTF-8")?;
    let binary = daemon::binary(args.daemon.as_deref())?;
    let daemon = Daemon::start(&binary, &["--model", model], &args.settings)?;
    let in_force = daemon.effective()?;
    effective::check_asked(&args.settings, &in_force)?;
    let sequences = daemon.stats()?["sequences"]["total"]
        .as_u64()
        .context("sequences")?;
    provenance.effective = Some(in_force.clone());
    let bench = Bench {
        prompts: workload::distinct(
            &args.model,
            batch_max,
            args.context - args.decode,
            args.seed,
        )?,
        settings: BareSettings {
            model: args.model.clone(),
            sequences: sequences as u32,
            effective: in_force,
        },
        daemon,
        args,
    };
    println!("tokens/s, median (min–max) of {}", args.repeats);
    println!(
        "batch  bare                   daemon                 ratio              client's CPU"
    );
    let mut rows = Vec::new();
    for &batch in &args.batches {
        rows.push(bench.row(batch)?);
        provenance.canary.sing()?;
    }
    provenance.write(&args.out, &rows)
}

impl Bench<'_> {
    fn row(&self, batch: usize) -> Result<Row> {
        // Also tells where the window lies.
        let warm = self.serve(batch)?;
        let mut repeats = Vec::new();
        for i in 0..self.args.repeats {
            let (daemon, (bare, idle)) = if i % 2 == 0 {
                (self.serve(batch)?, self.bare(&warm)?)
            } else {
                let bare = self.bare(&warm)?;
                (self.serve(batch)?, bare)
            };
            let off = (daemon.mean_context / warm.mean_context - 1.0).abs();
            ensure!(
                off < CONTEXT_TOLERANCE,
                "the window moved: contexts differ by {off:.3}"
            );
            let ratio = daemon.tokens_per_s / bare.tokens_per_s;
            repeats.push(Repeat {
                daemon,
                bare,
                ratio,
                idle_daemon_cpu: idle.total,
            });
        }
        let spread =
            |f: &dyn Fn(&Repeat) -> f64| Spread::of(&repeats.iter().map(f).collect::<Vec<_>>());
        let row = Row {
            batch,
            steps: warm.steps,
            mean_context: warm.mean_context,
            bare_tokens_per_s: spread(&|r| r.bare.tokens_per_s),
            daemon_tokens_per_s: spread(&|r| r.daemon.tokens_per_s),
            ratio: spread(&|r| r.ratio),
            host_us: spread(&|r| r.daemon.host_us),
            client_cpu: spread(&|r| r.daemon.client_cpu),
            repeats,
        };
        println!(
            "{batch:>5}  {:<22} {:<22} {:<18} {:.1}%",
            row.bare_tokens_per_s.show(1),
            row.daemon_tokens_per_s.show(1),
            row.ratio.show(3),
            row.client_cpu.median * 100.0
        );
        Ok(row)
    }

    /// Drives the daemon with `batch` streams.
    fn serve(&self, batch: usize) -> Result<Served> {
        let prompts = &self.prompts[..batch];
        let bodies: Vec<String> = prompts
            .iter()
            .map(|p| p.request(self.args.decode))
            .collect();
        let samples = Rc::new(RefCell::new(Vec::new()));
        let (taken, pid) = (Rc::clone(&samples), self.daemon.pid());
        let before = Histogram::read(&self.daemon.metrics()?, "cadenced_step_host_seconds");
        let recordings = client::stream_all(self.daemon.addr, &bodies, move |_: Moment| {
            taken
                .borrow_mut()
                .push((cpu::sample(pid), cpu::sample(std::process::id())));
        })?;
        let after = Histogram::read(&self.daemon.metrics()?, "cadenced_step_host_seconds");
        let replies = recordings
            .iter()
            .map(Reply::read)
            .collect::<Result<Vec<_>>>()?;
        for (reply, prompt) in replies.iter().zip(prompts) {
            let same = reply.prompt_tokens == prompt.tokens.len()
                && reply.completion_tokens == self.args.decode;
            ensure!(
                same,
                Mismatch(format!("the daemon counts other tokens: {reply:?}"))
            );
        }
        let window = Window::of(&replies)?;
        let positions = window.positions(&replies);
        let samples = samples.borrow();
        let [(daemon_a, client_a), (daemon_b, client_b)] = samples.as_slice() else {
            anyhow::bail!("the streams never ran all together");
        };
        Ok(Served {
            tokens_per_s: window.tokens_per_s(),
            steps: window.steps,
            mean_context: mean_context(&positions, window.steps),
            step_ms: window.seconds * 1e3 / window.steps as f64,
            host_us: after.since(&before).mean() * 1e6,
            daemon_cpu: daemon_a.until(daemon_b),
            client_cpu: client_a.until(client_b).total,
            ttft_ms_max: replies.iter().map(ttft_ms).fold(0.0, f64::max),
            positions,
        })
    }

    /// Runs the bare loop over the window of `like`, beside the idle daemon.
    fn bare(&self, like: &Served) -> Result<(Outcome, Share)> {
        let contexts = like.positions.iter().zip(&self.prompts);
        let spec = Spec {
            settings: self.settings.clone(),
            // What the replies add is filled up with the prompt's own tokens.
            contexts: contexts
                .map(|(n, p)| p.tokens.iter().copied().cycle().take(*n).collect())
                .collect(),
            steps: like.steps,
        };
        let before = self.daemon.cpu();
        let outcome: Outcome = child::call("raw-loop", &spec, &[])?;
        let idle = before.until(&self.daemon.cpu());
        effective::check_same(&self.settings.effective, &outcome.effective)?;
        Ok((outcome, idle))
    }
}
