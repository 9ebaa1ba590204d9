//! `raw`: the daemon over HTTP against a bare `llama_decode` loop with the same settings, positions and batch.
//!
//! Both are measured in turn, with the order rotating. The daemon stays up throughout; its CPU time while
//! the bare loop runs is recorded, and is nothing. The bare loop begins at the positions at which the daemon's
//! window ([`crate::window`]) begins and makes as many steps, so both read the same amount of cache.

mod cells;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::child;
use crate::daemon::{self, Daemon};
use crate::effective;
use crate::engine::BareSettings;
use crate::numbers::at_least_one;
use crate::provenance::Provenance;
use crate::raw_loop::Outcome;
use crate::stats::Spread;
use crate::workload;
use cells::{Cells, Served};

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
    #[arg(long, value_delimiter = ',', default_value = "1,4,8,16", value_parser = at_least_one::<usize>())]
    batches: Vec<usize>,
    #[arg(long, default_value_t = 5, value_parser = at_least_one::<usize>())]
    repeats: usize,
    /// The length of the contexts when the replies end.
    #[arg(long, default_value_t = 512, value_parser = at_least_one::<usize>())]
    context: usize,
    /// Tokens of each reply.
    #[arg(long, default_value_t = 96, value_parser = at_least_one::<usize>())]
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

#[derive(Serialize)]
struct Repeat {
    daemon: Served,
    bare: Outcome,
    ratio: f64,
    /// The bare loop where threads wait as OpenMP has them by default, if the daemon's don't.
    bare_spinning_tokens_per_s: f64,
    ratio_to_spinning: f64,
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
    bare_spinning_tokens_per_s: Spread,
    ratio_to_spinning: Spread,
    host_us: Spread,
    client_cpu: Spread,
    repeats: Vec<Repeat>,
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
    let cells = Cells {
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
        decode: args.decode,
    };
    println!("tokens/s, median (min–max) of {}", args.repeats);
    println!(
        "batch  bare                   daemon                 ratio                 to a spinning one"
    );
    let mut rows = Vec::new();
    for &batch in &args.batches {
        rows.push(row(&cells, batch, args.repeats)?);
        provenance.canary.sing()?;
    }
    provenance.write(&args.out, &rows)
}

fn row(cells: &Cells, batch: usize, repeats: usize) -> Result<Row> {
    let own = cells.settings.effective.wait_policy.as_str();
    // Also tells where the window lies.
    let warm = cells.serve(batch)?;
    let mut taken = Vec::new();
    for i in 0..repeats {
        let (mut daemon, mut bare, mut spinning) = (None, None, None);
        for turn in 0..3 {
            match (i + turn) % 3 {
                0 => daemon = Some(cells.serve(batch)?),
                1 => bare = Some(cells.bare(&warm, own)?),
                _ if own == child::DEFAULT => {}
                _ => spinning = Some(cells.bare(&warm, child::DEFAULT)?.0),
            }
        }
        let (daemon, (bare, idle)) = daemon.zip(bare).context("a turn was left out")?;
        let off = (daemon.mean_context / warm.mean_context - 1.0).abs();
        ensure!(
            off < CONTEXT_TOLERANCE,
            "the window moved: contexts differ by {off:.3}"
        );
        let bare_spinning_tokens_per_s = spinning.map_or(bare.tokens_per_s, |s| s.tokens_per_s);
        taken.push(Repeat {
            ratio: daemon.tokens_per_s / bare.tokens_per_s,
            ratio_to_spinning: daemon.tokens_per_s / bare_spinning_tokens_per_s,
            bare_spinning_tokens_per_s,
            idle_daemon_cpu: idle.total,
            daemon,
            bare,
        });
    }
    let repeats = taken;
    let spread =
        |f: &dyn Fn(&Repeat) -> f64| Spread::of(&repeats.iter().map(f).collect::<Vec<_>>());
    let row = Row {
        batch,
        steps: warm.steps,
        mean_context: warm.mean_context,
        bare_tokens_per_s: spread(&|r| r.bare.tokens_per_s),
        daemon_tokens_per_s: spread(&|r| r.daemon.tokens_per_s),
        ratio: spread(&|r| r.ratio),
        bare_spinning_tokens_per_s: spread(&|r| r.bare_spinning_tokens_per_s),
        ratio_to_spinning: spread(&|r| r.ratio_to_spinning),
        host_us: spread(&|r| r.daemon.host_us),
        client_cpu: spread(&|r| r.daemon.client_cpu),
        repeats,
    };
    println!(
        "{batch:>5}  {:<22} {:<22} {:<21} {}",
        row.bare_tokens_per_s.show(1),
        row.daemon_tokens_per_s.show(1),
        row.ratio.show(3),
        row.ratio_to_spinning.show(3)
    );
    Ok(row)
}
