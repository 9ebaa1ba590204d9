//! `cadenced-bench prompts`: what a mix asks, for others to ask.

use std::io::Write as _;

use anyhow::{Result, ensure};

use super::mix::{Mix, Workload};
use super::prompts::{Prompts, Style};
use crate::numbers::at_least_one;

/// Prints the requests of a mix, one a line, as `cadenced calibrate --prompts` reads them.
#[derive(clap::Args)]
pub struct PromptsArgs {
    #[arg(long, value_enum, default_value_t = Mix::Standard)]
    mix: Mix,
    #[arg(long, default_value_t = 5000, value_parser = at_least_one::<usize>())]
    requests: usize,
    /// Another than those that are measured with: calibrations should not see what will be asked.
    #[arg(long, default_value_t = 1000)]
    seed: u64,
}

/// Prints them.
///
/// # Errors
/// When the mix has none of its own, or nobody reads them any more.
pub fn run(args: &PromptsArgs) -> Result<()> {
    ensure!(
        args.mix != Mix::Trace,
        "--mix trace: a trace has lengths and no questions; take another mix"
    );
    let (prompts, style) = (Prompts::default(), Style::default());
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for ask in Workload::new(args.mix, args.seed, &[]).take(args.requests) {
        writeln!(out, "{}", prompts.body(&ask, &style))?;
    }
    Ok(out.flush()?)
}
