//! `host-work`: what the daemon does in a step besides the model, by its own histogram, on a model that costs
//! nothing. Once with steps back to back, where the streams' writing competes with the next step for the cores,
//! and once with steps of a realistic length, where the threads sleep in between and have to be woken.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::client::{self, Moment};
use crate::cpu::{self, Share};
use crate::daemon::{self, Daemon};
use crate::numbers::at_least_one;
use crate::prometheus::{Histogram, value};
use crate::provenance::Provenance;
use crate::sse::Reply;
use crate::stats::Spread;

const HISTOGRAM: &str = "cadenced_step_host_seconds";

#[derive(Args)]
pub struct HostWorkArgs {
    #[arg(long)]
    daemon: Option<PathBuf>,
    #[arg(long, value_delimiter = ',', default_value = "1,16", value_parser = at_least_one::<usize>())]
    batches: Vec<usize>,
    /// Length of the model's part of a step, in microseconds.
    #[arg(long, value_delimiter = ',', default_value = "0,20000")]
    step_us: Vec<u64>,
    #[arg(long, default_value_t = 5, value_parser = at_least_one::<usize>())]
    repeats: usize,
    #[arg(long, default_value = "bench/results/host-work.json")]
    out: PathBuf,
}

#[derive(Serialize)]
struct Sample {
    steps: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    daemon_cpu: Share,
    client_cpu: f64,
}

#[derive(Serialize)]
struct Row {
    batch: usize,
    step_us: u64,
    mean_us: Spread,
    p50_us: Spread,
    p99_us: Spread,
    repeats: Vec<Sample>,
}

pub fn run(args: &HostWorkArgs) -> Result<()> {
    let mut provenance = Provenance::begin(&[])?;
    let binary = daemon::binary(args.daemon.as_deref())?;
    let mut rows = Vec::new();
    for &step_us in &args.step_us {
        let daemon = Daemon::start(&binary, &["--backend", "fake"], &settings(step_us))?;
        provenance.effective = Some(daemon.effective()?);
        // Enough steps for a 99th percentile, few enough to wait for.
        let tokens = if step_us == 0 { 10_000 } else { 500 };
        for &batch in &args.batches {
            let repeats = (0..args.repeats)
                .map(|_| measure(&daemon, batch, tokens))
                .collect::<Result<Vec<_>>>()?;
            let of =
                |f: &dyn Fn(&Sample) -> f64| Spread::of(&repeats.iter().map(f).collect::<Vec<_>>());
            let row = Row {
                batch,
                step_us,
                mean_us: of(&|s| s.mean_us),
                p50_us: of(&|s| s.p50_us),
                p99_us: of(&|s| s.p99_us),
                repeats,
            };
            println!(
                "batch {batch:>2}, steps of {step_us:>5} µs: mean {} µs, p50 {}, p99 {}",
                row.mean_us.show(1),
                row.p50_us.show(1),
                row.p99_us.show(1)
            );
            rows.push(row);
            provenance.canary.sing()?;
        }
    }
    provenance.write(&args.out, &rows)
}

/// A fake model without any cost but `step_us`, and room for long replies.
fn settings(step_us: u64) -> Vec<(String, String)> {
    let step = format!("{step_us}.0");
    [
        ("fake.step_us", step.as_str()),
        ("fake.prefill_token_us", "0.0"),
        ("fake.decode_seq_us", "0.0"),
        ("fake.cached_token_us", "0.0"),
        ("kv.cells", "262144"),
        ("limits.max_output_tokens", "100000"),
    ]
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .to_vec()
}

fn measure(daemon: &Daemon, batch: usize, tokens: usize) -> Result<Sample> {
    let bodies: Vec<String> = (0..batch)
        .map(|i| {
            serde_json::json!({
                "messages": [{ "role": "user", "content": format!("stream {i}") }],
                "max_tokens": tokens,
                "ignore_eos": true,
                "temperature": 0,
                "stream": true,
                "stream_options": { "include_usage": true },
            })
            .to_string()
        })
        .collect();
    let moments = Rc::new(RefCell::new(Vec::new()));
    let (taken, pid) = (Rc::clone(&moments), daemon.pid());
    let before = daemon.metrics()?;
    let recordings = client::stream_all(daemon.addr, &bodies, move |_: Moment| {
        taken
            .borrow_mut()
            .push((cpu::sample(pid), cpu::sample(std::process::id())));
    })?;
    let after = daemon.metrics()?;
    for recording in &recordings {
        ensure!(
            Reply::read(recording)?.completion_tokens == tokens,
            "a reply was cut short"
        );
    }
    let host = Histogram::read(&after, HISTOGRAM).since(&Histogram::read(&before, HISTOGRAM));
    let name = "cadenced_generated_tokens_total";
    let made = value(&after, name).unwrap_or(0.0) - value(&before, name).unwrap_or(0.0);
    // The few steps at either end that had fewer sequences must not matter.
    ensure!(
        made / host.count > 0.95 * batch as f64,
        "the streams did not run together"
    );
    let moments = moments.borrow();
    let (first, last) = (moments.first(), moments.last());
    let shares = first
        .zip(last)
        .map(|(a, b)| (a.0.until(&b.0), a.1.until(&b.1).total));
    let (daemon_cpu, client_cpu) = shares.unwrap_or_default();
    Ok(Sample {
        steps: host.count,
        mean_us: host.mean() * 1e6,
        p50_us: host.quantile(0.5) * 1e6,
        p99_us: host.quantile(0.99) * 1e6,
        daemon_cpu,
        client_cpu,
    })
}
