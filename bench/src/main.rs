//! `cadenced-bench`: measures the daemon and the engine under it. bench/README.md says how each figure is
//! taken, how to read it and what it decided.

mod all;
mod calibrate;
mod calibrated;
mod canary;
mod child;
mod client;
mod compare;
mod conformal;
mod cpu;
mod daemon;
mod decision;
mod decode_cell;
mod effective;
mod engine;
mod exchanges;
mod gate;
mod host_work;
mod knobs;
mod ladder;
mod load;
mod memory;
mod micro;
mod neighbour;
mod numbers;
mod occupancy;
mod profile;
mod prometheus;
mod provenance;
mod quality;
mod raw;
mod raw_loop;
mod report;
mod reuse;
mod serving;
mod sse;
mod stats;
mod twin;
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
    /// Model file, KV type, flash attention, threads: the table behind the defaults.
    Knobs(knobs::KnobsArgs),
    /// What a step pays for cells of the pool that others hold.
    Occupancy(occupancy::OccupancyArgs),
    /// How far a variant of the model is from the original, on a fixed text.
    Quality(quality::QualityArgs),
    /// The daemon's own work in a step, on a model that costs nothing.
    HostWork(host_work::HostWorkArgs),
    /// What a promise costs: decisions under load, refusals beside a decode, loading the calibration file.
    Decision(decision::DecisionArgs),
    /// Resident memory against what must be held, and over many requests.
    Memory(memory::MemoryArgs),
    /// What the prefix cache saves: hit rate beside its ceiling, and the time to the first token.
    Reuse(reuse::ReuseArgs),
    /// The data structures and the host's hot paths, by criterion.
    Micro(micro::MicroArgs),
    /// Where the daemon's CPU time goes: stacks, a flamegraph, shares by component.
    Profile(profile::ProfileArgs),
    /// All of the above but the profile, with their defaults.
    All,
    /// What this machine can do: the cost model, capacity, and from them a ladder's rates and SLO.
    Calibrate(calibrate::CalibrateArgs),
    /// What a calibration's bounds are worth offline: predictors, scores, levels, splits, classes.
    Conformal(conformal::ConformalArgs),
    /// Rungs over rates and seeds, on a daemon of its own for each cell.
    Ladder(Box<ladder::LadderArgs>),
    /// One rung with one setting of the scheduler changed at a time, under load.
    SchedulerKnobs(Box<ladder::knobs::SchedulerKnobsArgs>),
    /// The ladder in virtual time, beside what a clairvoyant could do.
    Simulate(twin::simulate::SimulateArgs),
    /// Whether promises are kept at their level, in virtual time.
    Coverage(twin::coverage::CoverageArgs),
    /// A refusal, a quote and a receipt as curl has them, for the README.
    Exchanges(exchanges::ExchangesArgs),
    /// Makes the tables of the READMEs out of the results.
    Report(report::ReportArgs),
    /// Open-loop load on an OpenAI-compatible server, one record a request.
    Run(Box<load::run::RunArgs>),
    /// Summarises the records of runs again, at any SLO; refuses what can't be put side by side.
    Summary(load::again::SummaryArgs),
    /// What a mix asks, one request a line, for `cadenced calibrate --prompts`.
    Prompts(load::bodies::PromptsArgs),
    /// Several servers side by side on the same arrivals, in turn.
    Compare(compare::CompareArgs),
    /// Fails when simulated load is served worse than the committed budget has it.
    Gate(gate::GateArgs),
    /// A server without a model, to test the load generator.
    Stub(load::stub::StubArgs),
    /// Tests the load generator: arrivals over many seeds, an open and a closed loop against the stub.
    Validate(load::validate::ValidateArgs),
    #[command(hide = true)]
    RawLoop,
    #[command(hide = true)]
    KnobCell,
    #[command(hide = true)]
    OccupancyCell,
    #[command(hide = true)]
    CanaryLoop,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Raw(args) => raw::run(&args),
        Command::Knobs(args) => knobs::run(&args),
        Command::Occupancy(args) => occupancy::run(&args),
        Command::Quality(args) => quality::run(&args),
        Command::HostWork(args) => host_work::run(&args),
        Command::Decision(args) => decision::run(&args),
        Command::Memory(args) => memory::run(&args),
        Command::Reuse(args) => reuse::run(&args),
        Command::Micro(args) => micro::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::All => all::run(),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Conformal(args) => conformal::run(&args),
        Command::Ladder(args) => ladder::run(&args),
        Command::SchedulerKnobs(args) => ladder::knobs::run(&args),
        Command::Simulate(args) => twin::simulate::run(&args),
        Command::Coverage(args) => twin::coverage::run(&args),
        Command::Exchanges(args) => exchanges::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Run(args) => load::run::run(&args),
        Command::Summary(args) => load::again::run(&args),
        Command::Prompts(args) => load::bodies::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Gate(args) => gate::run(&args),
        Command::Stub(args) => load::stub::run(&args),
        Command::Validate(args) => load::validate::run(&args),
        Command::KnobCell => child::serve(decode_cell::run),
        Command::OccupancyCell => child::serve(occupancy::cell),
        Command::RawLoop => child::serve(raw_loop::run),
        Command::CanaryLoop => child::serve(canary::run),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cadenced-bench: {error:#}");
            // 2 = what would have been measured is not what was asked for, or says nothing; as clap has it for what can't
            // be asked for.
            let unsound = error.is::<effective::Mismatch>()
                || error.is::<load::soundness::MeasurementUnsound>()
                || error.is::<gate::NoVerdict>();
            ExitCode::from(if unsound { 2 } else { 1 })
        }
    }
}
