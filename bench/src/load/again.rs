//! `cadenced-bench summary`: what is said of a run is said of its records, so it can be said again, at another
//! SLO, of several runs side by side; and refused where they are not of one kind.

use std::path::PathBuf;

use anyhow::Result;

use super::meta::Meta;
use super::{metrics, parquet, print, soundness};

/// Summarises runs again from their records.
#[derive(Clone, Debug, clap::Args)]
pub struct SummaryArgs {
    /// Parquet files of `run`, with the metadata beside them.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Another bound than the runs had.
    #[arg(long)]
    pub slo_ms: Option<u64>,
    /// Rates that must all be there.
    #[arg(long, value_delimiter = ',')]
    pub rates: Vec<f64>,
}

/// # Errors
/// [`soundness::MeasurementUnsound`] when a run is unsound, a rate is missing or the engines differ; others when a
/// file can't be read.
pub fn run(args: &SummaryArgs) -> Result<()> {
    let mut metas = Vec::new();
    for file in &args.files {
        let meta = Meta::read(file)?;
        let records = parquet::read(file)?;
        let cell = &meta.cell;
        let window = metrics::window(meta.arrivals_s(), cell.warm_up_s, cell.cool_down_s);
        let slo_s = args.slo_ms.or(cell.slo_ms).map(|ms| ms as f64 * 1e-3);
        let rung = meta.server.rung.as_deref().unwrap_or("");
        println!("{} {rung} {}/s", file.display(), cell.schedule.rate);
        print::summary(&metrics::summarize(&records, window, slo_s));
        println!();
        metas.push(meta);
    }
    soundness::refuse(complaints(&metas, &args.rates))?;
    Ok(())
}

fn complaints(metas: &[Meta], rates: &[f64]) -> Vec<soundness::Unsound> {
    let present: Vec<f64> = metas.iter().map(|m| m.cell.schedule.rate).collect();
    let engines: Vec<_> = metas.iter().map(|m| m.engine_fingerprint.clone()).collect();
    let mut found: Vec<_> = metas.iter().flat_map(|m| m.unsound.clone()).collect();
    found.extend(soundness::missing_rates(rates, &present));
    found.extend(soundness::mixed_fingerprints(&engines));
    found
}
