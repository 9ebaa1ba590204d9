//! `memory`: resident memory of the daemon on a real model against what it must hold, and whether it stays flat
//! over many requests (on the fake model, which makes ten thousand affordable).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde::Serialize;

use crate::client;
use crate::daemon::{self, Daemon};
use crate::numbers::at_least_one;
use crate::provenance::Provenance;
use crate::sse::Reply;
use crate::workload;

const MIB: f64 = 1_048_576.0;
const CLIENTS: usize = 16;

#[derive(Args)]
pub struct MemoryArgs {
    #[arg(long, default_value = "models/smollm2-135m-instruct-q4_0.gguf")]
    model: PathBuf,
    #[arg(long)]
    daemon: Option<PathBuf>,
    #[arg(long, default_value_t = 10_000, value_parser = at_least_one::<usize>())]
    requests: usize,
    /// Resident memory is read once in so many requests.
    #[arg(long, default_value_t = 1000, value_parser = at_least_one::<usize>())]
    every: usize,
    #[arg(long, default_value = "bench/results/memory.json")]
    out: PathBuf,
}

#[derive(Serialize)]
struct Memory {
    model_mib: f64,
    kv_mib: f64,
    compute_mib: f64,
    /// After a generation on every sequence.
    resident_mib: f64,
    /// What is resident besides the three.
    overhead_mib: f64,
    flat: Vec<Point>,
}

#[derive(Serialize)]
struct Point {
    requests: usize,
    resident_mib: f64,
}

pub fn run(args: &MemoryArgs) -> Result<()> {
    let mut provenance = Provenance::begin(&[&args.model])?;
    let binary = daemon::binary(args.daemon.as_deref())?;
    let model = args
        .model
        .to_str()
        .context("the model's path is not UTF-8")?;
    let daemon = Daemon::start(&binary, &["--model", model], &[])?;
    let effective = daemon.effective()?;
    let prompts = workload::distinct(&args.model, CLIENTS, 480, 1)?;
    let bodies: Vec<String> = prompts.iter().map(|p| p.request(16)).collect();
    for recording in client::stream_all(daemon.addr, &bodies, |_| {})? {
        Reply::read(&recording)?;
    }
    let mib = |bytes: u64| bytes as f64 / MIB;
    let resident_mib = mib(daemon.resident()?);
    drop(daemon);
    let held = mib(effective.model_bytes + effective.kv_bytes + effective.compute_bytes);
    let mut memory = Memory {
        model_mib: mib(effective.model_bytes),
        kv_mib: mib(effective.kv_bytes),
        compute_mib: mib(effective.compute_bytes),
        resident_mib,
        overhead_mib: resident_mib - held,
        flat: Vec::new(),
    };
    provenance.effective = Some(effective);
    println!(
        "resident {resident_mib:.0} MiB, {:.0} besides model, KV and compute",
        memory.overhead_mib
    );

    let costs = [
        "step_us",
        "prefill_token_us",
        "decode_seq_us",
        "cached_token_us",
    ];
    let free: Vec<_> = costs
        .map(|c| (format!("fake.{c}"), "0.0".to_owned()))
        .to_vec();
    let daemon = Daemon::start(&binary, &["--backend", "fake"], &free)?;
    let mut requests = 0;
    while requests < args.requests {
        let n = args.every.min(args.requests - requests);
        flood(daemon.addr, n)?;
        requests += n;
        let resident_mib = mib(daemon.resident()?);
        println!("{requests} requests: {resident_mib:.1} MiB");
        memory.flat.push(Point {
            requests,
            resident_mib,
        });
    }
    provenance.write(&args.out, &memory)
}

/// Sends `n` requests, every second one for a stream, from several threads, and reads the replies.
fn flood(addr: SocketAddr, n: usize) -> Result<()> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let client = || -> Result<()> {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= n {
                    return Ok(());
                }
                let body = serde_json::json!({
                    "messages": [{ "role": "user", "content": format!("request {i}") }],
                    "max_tokens": 32,
                    "stream": i.is_multiple_of(2),
                })
                .to_string();
                let (status, _) = daemon::request(
                    addr,
                    &format!(
                        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    ),
                )?;
                ensure!(status == 200, "a request was refused with {status}");
            }
        };
        let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().map_err(|_| anyhow!("a client panicked"))?)
    })
}
