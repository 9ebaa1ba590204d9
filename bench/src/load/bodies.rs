//! `cadenced-bench prompts`: what a mix asks, for others to ask.

use std::io::Write as _;

use anyhow::Result;

use super::mix::{Mix, Workload};
use super::prompts::{Prompts, Style};

/// Prints the requests of a mix, one a line, as `cadenced calibrate --prompts` reads them.
#[derive(clap::Args)]
pub struct PromptsArgs {
    #[arg(long, value_enum, default_value_t = Mix::Standard)]
    mix: Mix,
    #[arg(long, default_value_t = 5000)]
    requests: usize,
    /// Another than those that are measured with: calibrations should not see what will be asked.
    #[arg(long, default_value_t = 1000)]
    seed: u64,
}

/// Prints them.
///
/// # Errors
/// When nobody reads them any more.
pub fn run(args: &PromptsArgs) -> Result<()> {
    let (prompts, style) = (Prompts::default(), Style::default());
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for ask in Workload::new(args.mix, args.seed, &[]).take(args.requests) {
        writeln!(out, "{}", prompts.body(&ask, &style))?;
    }
    Ok(out.flush()?)
}
