//! `cadenced-bench`: measures the daemon and the engine under it. bench/README.md says how each figure is
//! taken, how to read it and what it decided.

mod canary;
mod child;
mod client;
mod cpu;
mod daemon;
mod effective;
mod engine;
mod prometheus;
mod provenance;
mod raw;
mod raw_loop;
mod sse;
mod stats;
mod window;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures cadenced. Every subcommand writes one JSON file; `report` turns them into tables.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The daemon over HTTP against a bare llama_decode loop.
    Raw(raw::RawArgs),
    #[command(hide = true)]
    RawLoop,
    #[command(hide = true)]
    CanaryLoop,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Raw(args) => raw::run(&args),
        Command::RawLoop => child::serve(raw_loop::run),
        Command::CanaryLoop => child::serve(canary::run),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cadenced-bench: {error:#}");
            // 2 = what would have been measured is not what was asked for.
            ExitCode::from(if error.is::<effective::Mismatch>() {
                2
            } else {
                1
            })
        }
    }
}
