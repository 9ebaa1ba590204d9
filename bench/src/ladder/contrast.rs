//! `ladder --closed`: the same eight requests at two slots, driven open, all at once, and by two clients that each
//! wait for their answer. The throughput is the same, since both keep the slots busy; the wait is what a closed loop
//! can't see. Each run has a daemon of its own, so that none finds the prompts of another cached, and the two take
//! turns in going first.

use anyhow::{Context, Result};

use super::LadderArgs;
use super::song;
use crate::all;
use crate::load::metrics::Summary;
use crate::load::run::{self, RunArgs};
use crate::load::soundness;
use crate::report::markdown::Table;
use crate::stats::Spread;

const REQUESTS: usize = 8;
const SLOTS: usize = 2;
const ROUNDS: usize = 3;

/// # Errors
/// When the daemon can't be measured, or a run may not be reported.
pub fn run(args: &LadderArgs) -> Result<()> {
    let (mut open, mut closed) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for turn in 0..2 {
            if (round + turn) % 2 == 0 {
                closed.push(one(args, &format!("closed-{round}"), Some(SLOTS))?);
            } else {
                open.push(one(args, &format!("open-{round}"), None)?);
            }
        }
    }
    println!("{}", table(&open, &closed));
    Ok(())
}

fn one(args: &LadderArgs, name: &str, closed: Option<usize>) -> Result<Summary> {
    let last = args.rungs.last().context("no rung")?;
    let slots = ("scheduler.max_running".to_owned(), SLOTS.to_string());
    let daemon = args.serving.start(last, &[slots, song::door()])?;
    song::sing(&daemon)?;
    let mut run: RunArgs = all::given("run", &["--url", &daemon.url(), "--arrivals", "burst"])?;
    run.requests = Some(REQUESTS);
    run.closed = closed;
    run.mix = args.mix.unwrap_or_default();
    run.timeout_s = args.timeout_s;
    run.model_file = args.serving.model_file().map(Into::into);
    // The medians are what eight requests can tell.
    run.limits.percentile = 50.0;
    let (records, meta) = run::measure(&run)?;
    let folder = args.out.join("contrast");
    std::fs::create_dir_all(&folder)?;
    run::keep(&folder.join(format!("{name}.parquet")), &records, &meta)?;
    soundness::refuse(meta.unsound)?;
    Ok(meta.summary)
}

fn spread(runs: &[Summary], of: fn(&Summary) -> Option<f64>) -> Spread {
    Spread::of(&runs.iter().filter_map(of).collect::<Vec<_>>())
}

fn tokens(runs: &[Summary]) -> Spread {
    spread(runs, |s| Some(s.output_tokens_per_s))
}

fn p99(runs: &[Summary]) -> Spread {
    spread(runs, |s| s.ttft.p99)
}

fn table(open: &[Summary], closed: &[Summary]) -> String {
    let mut loops = Table::new(&["loop", "output tokens/s", "TTFT p50, s", "TTFT p99, s", "n"]);
    for (name, runs) in [
        (format!("closed, {SLOTS} clients"), closed),
        ("open, all at once".into(), open),
    ] {
        loops.row([
            name,
            tokens(runs).show(1),
            spread(runs, |s| s.ttft.p50).show(2),
            p99(runs).show(2),
            runs.first().map_or(0, |s| s.ttft.n).to_string(),
        ]);
    }
    let ratio = |a: Spread, b: Spread| a.median / b.median;
    [
        format!(
            "The same {REQUESTS} requests at {SLOTS} slots, median (min–max) of {} runs; of so few, p99 is the maximum.",
            open.len()
        ),
        String::new(),
        loops.text,
        format!(
            "Open over closed: {:.2} times the throughput, {:.1} times the TTFT at p99, {:.2} s more.",
            ratio(tokens(open), tokens(closed)),
            ratio(p99(open), p99(closed)),
            p99(open).median - p99(closed).median
        ),
    ]
    .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::quantile::Quantiles;

    #[test]
    fn both_loops_stand_side_by_side() {
        let of = |output_tokens_per_s, ttft: [f64; 2]| Summary {
            output_tokens_per_s,
            ttft: Quantiles::of(ttft),
            ..Summary::default()
        };
        let text = table(&[of(50.0, [1.0, 9.0])], &[of(50.0, [1.0, 1.5])]);
        assert!(
            text.contains(
                "| open, all at once | 50.0 (50.0–50.0) | 1.00 (1.00–1.00) | 9.00 (9.00–9.00) | 2 |"
            ),
            "{text}"
        );
        assert!(
            text.contains("1.00 times the throughput, 6.0 times the TTFT at p99, 7.50 s more"),
            "{text}"
        );
    }
}
