//! `calibrate`: what this machine can do, before anything is swept on it. Measures the daemon itself: steps of
//! known composition (`probe`), the cost model that explains them, requests on an idle server, the capacity of the
//! first and of the last rung; and picks from that the rates and the SLO of a ladder (`grid`).

mod counters;
pub mod grid;
mod probe;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::all;
use crate::daemon::Daemon;
use crate::load::mix::Mix;
use crate::load::quantile::Quantiles;
use crate::load::record::Record;
use crate::load::run::{self, RunArgs};
use crate::numbers::at_least_one;
use crate::provenance::Provenance;
use crate::serving::Serving;
use crate::twin::fit::{self, Fit, TimedSteps};
use crate::twin::rung::CAPPED;
use grid::Predicted;
use probe::{DecodeRow, PrefillRow, Size};

/// Measures this machine through the daemon, and picks a ladder's rates and SLO.
#[derive(Clone, Debug, clap::Args)]
pub struct CalibrateArgs {
    #[command(flatten)]
    pub serving: Serving,
    /// The configurations of the rungs, in their order. The first gives the lowest capacity that is measured, the
    /// last the highest.
    #[arg(long, value_delimiter = ',', default_values = CAPPED)]
    pub rungs: Vec<PathBuf>,
    #[arg(long, value_enum, default_value_t = Mix::Standard)]
    pub mix: Mix,
    /// Rates to pick.
    #[arg(long, default_value_t = 6, value_parser = at_least_one::<usize>())]
    pub rates: usize,
    /// Fewer steps and requests: a minute less, and less to rely on.
    #[arg(long)]
    pub short: bool,
    #[arg(long, default_value = "bench/results/calibration.json")]
    pub out: PathBuf,
}

/// What was found. Rates per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    pub mix: Mix,
    pub fit: Fit,
    pub prefill: Vec<PrefillRow>,
    pub decode: Vec<DecodeRow>,
    /// What the model was fitted to.
    pub steps: Vec<TimedSteps>,
    pub unloaded: Unloaded,
    /// Of one client after the other on the first rung.
    pub fifo_per_s: f64,
    /// Of the last rung with a client for each seat.
    pub best: Best,
    /// What the cost model says that each rung sustains.
    pub predicted: Vec<Predicted>,
    pub slo_ms: u64,
    /// Share of the unloaded requests that met it.
    pub slo_met: f64,
    pub rates_per_s: Vec<f64>,
}

/// Requests on an idle server, seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unloaded {
    pub ttft_s: Quantiles,
    pub e2e_s: Quantiles,
}

/// Over the middle 60%.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub clients: usize,
    pub requests: usize,
    pub requests_per_s: f64,
    pub tokens_per_s: f64,
}

impl Calibration {
    /// Reads what `calibrate` wrote.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn read(file: &Path) -> Result<Self> {
        let name = || format!("{}", file.display());
        let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", name()))?;
        let mut json: serde_json::Value = serde_json::from_str(&text).with_context(name)?;
        serde_json::from_value(json["results"].take())
            .with_context(|| format!("{} is no calibration", name()))
    }
}

/// # Errors
/// When the daemon can't be measured, or its steps do not tell the costs.
pub fn run(args: &CalibrateArgs) -> Result<()> {
    ensure!(args.rates >= 2, "--rates: a grid has two or more");
    ensure!(
        args.mix != Mix::Trace,
        "--mix trace: a trace has arrivals of its own, and is not calibrated for"
    );
    let [first, .., last] = args.rungs.as_slice() else {
        anyhow::bail!("a ladder has two rungs or more");
    };
    let size = Size::of(args.short);
    let models: Vec<&Path> = args.serving.model_file().into_iter().collect();
    let mut provenance = Provenance::begin(&models)?;

    let prefill = probe::prefill(&args.serving, last, &size)?;
    let daemon = args.serving.start(last, &[probe::no_reuse()])?;
    let decode = probe::decode(&daemon, &size)?;
    drop(daemon);
    let daemon = args.serving.start(last, &[])?;
    provenance.effective = Some(daemon.effective()?);
    let best = best(args, &daemon, size.best)?;
    drop(daemon);
    provenance.canary.sing()?;

    going_on(&format!("{} requests one after the other", size.unloaded));
    let daemon = args.serving.start(first, &[])?;
    let (records, alone) = one_after_the_other(args, &daemon, size.unloaded)?;
    drop(daemon);

    let prefills = prefill.iter().flat_map(|r| &r.timed);
    let steps: Vec<TimedSteps> = prefills
        .chain(decode.iter().flat_map(|r| &r.timed))
        .copied()
        .collect();
    going_on("the cost model, and what it says of each rung");
    let fit = fit::fit(&steps)?;
    let configs = args.rungs.iter().map(|file| args.serving.config(file, &[]));
    let configs = configs.collect::<Result<Vec<_>>>()?;
    let predicted = grid::predict(configs, fit.model, args.mix, &records)?;
    let e2e_s: Vec<f64> = records.iter().map(Record::e2e_s).collect();
    let slo_ms = grid::slo_ms(&e2e_s);
    let knees = predicted
        .iter()
        .map(|p| p.per_s)
        .chain([alone.per_s, best.requests_per_s]);
    let calibration = Calibration {
        mix: args.mix,
        fit,
        steps,
        unloaded: alone.unloaded,
        fifo_per_s: alone.per_s,
        slo_met: grid::share_within(&e2e_s, slo_ms),
        slo_ms,
        rates_per_s: grid::rates(knees, args.rates),
        predicted,
        prefill,
        decode,
        best,
    };
    print(&calibration);
    provenance.write(&args.out, &calibration)
}

/// Tells what is being measured, since all of it takes minutes; what came of it is printed at the end.
fn going_on(what: &str) {
    eprintln!("calibrate: {what}");
}

struct Alone {
    unloaded: Unloaded,
    per_s: f64,
}

/// `n` requests of the mix, each when the one before it has ended.
fn one_after_the_other(
    args: &CalibrateArgs,
    daemon: &Daemon,
    n: usize,
) -> Result<(Vec<Record>, Alone)> {
    let run = closed(args, daemon, 1, n)?;
    let (records, meta) = run::measure(&run)?;
    let s = meta.summary;
    ensure!(
        s.completed == n,
        "of {n} requests to an idle server {} were completed",
        s.completed
    );
    let alone = Alone {
        unloaded: Unloaded {
            ttft_s: s.ttft,
            e2e_s: s.e2e,
        },
        per_s: s.completed_per_s,
    };
    Ok((records, alone))
}

/// As many clients as the rung has seats: full batches, and nobody waits for long.
fn best(args: &CalibrateArgs, daemon: &Daemon, rounds: usize) -> Result<Best> {
    let last = &args.rungs[args.rungs.len() - 1];
    let seats = args.serving.config(last, &[])?.policy().max_running();
    going_on(&format!(
        "{} requests by {seats} clients, a client for each seat",
        rounds * seats
    ));
    let run = closed(args, daemon, seats, rounds * seats)?;
    let (_, meta) = run::measure(&run)?;
    let capacity = meta.summary.capacity;
    ensure!(
        capacity.requests_per_s > 0.0,
        "nothing came out of {} requests",
        rounds * seats
    );
    Ok(Best {
        clients: seats,
        requests: rounds * seats,
        requests_per_s: capacity.requests_per_s,
        tokens_per_s: capacity.tokens_per_s,
    })
}

fn closed(args: &CalibrateArgs, daemon: &Daemon, clients: usize, n: usize) -> Result<RunArgs> {
    let mut run: RunArgs = all::given("run", &["--url", &daemon.url()])?;
    run.mix = args.mix;
    run.closed = Some(clients);
    run.requests = Some(n);
    Ok(run)
}

fn print(c: &Calibration) {
    for row in &c.prefill {
        println!(
            "prefill in chunks of {:>4}: {:.0} tokens/s",
            row.chunk, row.tokens_per_s.median
        );
    }
    for row in &c.decode {
        println!(
            "decode, batch {:>2} at {:>4} tokens: {} ms a step",
            row.batch,
            row.context,
            row.step_ms.show(1)
        );
    }
    let m = c.fit.model;
    println!(
        "cost model, µs: {:.0} a step, {:.1} a prompt token, {:.0} a decoding sequence, {:.3} a cached token; \
         {} measurements, R² {:.4}, mean error {:.1}%",
        m.step_us,
        m.prefill_token_us,
        m.decode_seq_us,
        m.cached_token_us,
        c.fit.n,
        c.fit.r_squared,
        c.fit.error_mean_percent
    );
    println!("unloaded, s: TTFT {}", c.unloaded.ttft_s.show(3));
    println!("unloaded, s: E2E  {}", c.unloaded.e2e_s.show(3));
    println!(
        "capacity: {:.3}/s one after the other, {:.3}/s = {:.1} tokens/s with {} clients",
        c.fifo_per_s, c.best.requests_per_s, c.best.tokens_per_s, c.best.clients
    );
    for p in &c.predicted {
        println!("predicted for {}: {:.3}/s", p.rung, p.per_s);
    }
    println!(
        "SLO {} ms, met by {:.0}% of the unloaded requests",
        c.slo_ms,
        100.0 * c.slo_met
    );
    let rates: Vec<String> = c.rates_per_s.iter().map(ToString::to_string).collect();
    println!("rates, 1/s: {}", rates.join(", "));
}
