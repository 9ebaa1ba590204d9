//! `cadenced-bench summary`: what is said of a run is said of its records, so it can be said again, at another
//! SLO, of several runs side by side; and refused where they are not of one kind.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::meta::Meta;
use super::{metrics, parquet, print, soundness};
use crate::numbers::{at_least_one, positive};

/// Summarises runs again from their records.
#[derive(Clone, Debug, clap::Args)]
pub struct SummaryArgs {
    /// Parquet files of `run`, with the metadata beside them.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Another bound than the runs had.
    #[arg(long, value_parser = at_least_one::<u64>())]
    pub slo_ms: Option<u64>,
    /// Rates that must all be there.
    #[arg(long, value_delimiter = ',', value_parser = positive)]
    pub rates: Vec<f64>,
}

/// # Errors
/// [`soundness::MeasurementUnsound`] when a run is unsound, a rate is missing or the engines differ; others when a
/// file can't be read.
pub fn run(args: &SummaryArgs) -> Result<()> {
    let mut metas = Vec::new();
    for file in &args.files {
        // First what was named: the metadata goes by its name.
        let records = parquet::read(file)?;
        let beside = || format!("{} has no metadata beside it", file.display());
        let meta = Meta::read(file).with_context(beside)?;
        let cell = &meta.cell;
        let window = metrics::window(meta.arrivals_s(), cell.warm_up_s, cell.cool_down_s);
        let slo_s = args.slo_ms.or(cell.slo_ms).map(|ms| ms as f64 * 1e-3);
        let rung = meta.server.rung.as_deref().unwrap_or("");
        println!("{} {rung}", file.display());
        print::summary(cell, &metrics::summarize(&records, window, slo_s));
        println!("{}\n", soundness::verdict(&meta.unsound));
        metas.push((file.display().to_string(), meta));
    }
    soundness::refuse(complaints(&metas, &args.rates))?;
    Ok(())
}

/// Of the runs by their files.
fn complaints(metas: &[(String, Meta)], rates: &[f64]) -> Vec<soundness::Unsound> {
    let rate = |(_, meta): &(String, Meta)| meta.cell.schedule.rate;
    let present: Vec<f64> = metas.iter().map(rate).collect();
    let of = |(file, meta): &(String, Meta)| (file.clone(), meta.engine_fingerprint.clone());
    let engines: Vec<_> = metas.iter().map(of).collect();
    let mut found = Vec::new();
    for (file, meta) in metas {
        let its = meta.unsound.iter().cloned();
        found.extend(its.map(|reason| reason.of_run(file)));
    }
    found.extend(soundness::missing_rates(rates, &present));
    found.extend(soundness::mixed_fingerprints(&engines));
    found
}
