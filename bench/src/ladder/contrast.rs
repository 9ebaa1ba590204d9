//! `ladder --closed`: the same eight requests at two slots, driven open, all at once, and by two clients that each
//! wait for their answer. The throughput is the same, since both keep the slots busy; the wait is what a closed loop
//! can't see.

use anyhow::{Context, Result};

use super::LadderArgs;
use crate::all;
use crate::load::meta::Meta;
use crate::load::metrics::Summary;
use crate::load::record::Record;
use crate::load::run::{self, RunArgs};
use crate::load::soundness;

const REQUESTS: usize = 8;
const SLOTS: usize = 2;

/// # Errors
/// When the daemon can't be measured.
pub fn run(args: &LadderArgs) -> Result<()> {
    let last = args.rungs.last().context("no rung")?;
    let slots = ("scheduler.max_running".to_owned(), SLOTS.to_string());
    let daemon = args.serving.start(last, &[slots])?;
    let folder = args.out.join("contrast");
    std::fs::create_dir_all(&folder)?;
    let drive = |closed: Option<usize>| -> Result<(Vec<Record>, Meta)> {
        let mut run: RunArgs = all::given("run", &["--url", &daemon.url(), "--arrivals", "burst"])?;
        run.requests = Some(REQUESTS);
        run.closed = closed;
        run.mix = args.mix.unwrap_or_default();
        run.timeout_s = args.timeout_s;
        run.model_file = args.serving.model_file().map(Into::into);
        // The medians are what eight requests can tell.
        run.limits.percentile = 50.0;
        let measured = run::measure(&run)?;
        daemon.rest()?;
        Ok(measured)
    };
    // So that neither is the first on a daemon that has just started, and both find the same prefixes cached.
    drive(Some(SLOTS))?;
    let keep = |name: &str, (records, meta): (Vec<Record>, Meta)| -> Result<Summary> {
        run::keep(&folder.join(format!("{name}.parquet")), &records, &meta)?;
        soundness::refuse(meta.unsound)?;
        Ok(meta.summary)
    };
    let closed = keep("closed", drive(Some(SLOTS))?)?;
    let open = keep("open", drive(None)?)?;
    println!("{}", table(&open, &closed));
    Ok(())
}

fn table(open: &Summary, closed: &Summary) -> String {
    let row = |name: &str, s: &Summary| {
        let seconds = |x: Option<f64>| x.map_or_else(|| "none".into(), |x| format!("{x:.2}"));
        format!(
            "| {name} | {:.1} | {} | {} | {} |",
            s.output_tokens_per_s,
            seconds(s.ttft.p50),
            seconds(s.ttft.p99),
            s.ttft.n
        )
    };
    let ratio = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) if b > 0.0 => format!("{:.1}", a / b),
        _ => "?".into(),
    };
    let throughput = open.output_tokens_per_s / closed.output_tokens_per_s;
    [
        format!("The same {REQUESTS} requests at {SLOTS} slots; of so few, p99 is the maximum."),
        String::new(),
        "| loop | output tokens/s | TTFT p50, s | TTFT p99, s | n |".into(),
        format!("|{}", " --- |".repeat(5)),
        row(&format!("closed, {SLOTS} clients"), closed),
        row("open, all at once", open),
        String::new(),
        format!(
            "Open over closed: {throughput:.2} times the throughput, {} times the TTFT at p99.",
            ratio(open.ttft.p99, closed.ttft.p99)
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
        let text = table(&of(50.0, [1.0, 9.0]), &of(50.0, [1.0, 1.5]));
        assert!(
            text.contains("| open, all at once | 50.0 | 1.00 | 9.00 | 2 |"),
            "{text}"
        );
        assert!(
            text.contains("1.00 times the throughput, 6.0 times the TTFT"),
            "{text}"
        );
    }
}
