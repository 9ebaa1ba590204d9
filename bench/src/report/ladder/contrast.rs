//! The same requests in an open and in a closed loop: what `ladder --closed` keeps in a ladder's folder, below
//! `contrast`. Which loop a run was is in its metadata. Markers call the table `LADDER/contrast`.

use std::path::Path;

use anyhow::{Result, ensure};

use super::{cell_files, origin};
use crate::load::driver::Loop;
use crate::load::meta::Meta;
use crate::load::metrics::{self, Summary};
use crate::load::occupancy::Span;
use crate::load::parquet;
use crate::load::soundness;
use crate::report::MISSING;
use crate::report::markdown::Table;
use crate::stats::Spread;

/// Below a ladder's, and what stands after the slash of a marker.
pub const FOLDER: &str = "contrast";

struct Run {
    name: String,
    meta: Meta,
    summary: Summary,
}

/// See the module's text.
pub struct Contrast {
    open: Vec<Run>,
    /// As many.
    closed: Vec<Run>,
    /// Of each closed loop, for whom there are as many slots.
    clients: usize,
}

/// The table of the ladder in `folder`, with a line on where its numbers come from.
///
/// # Errors
/// As [`Contrast::read`].
pub fn table(folder: &Path) -> Result<String> {
    let contrast = Contrast::read(folder)?;
    Ok(contrast.map_or_else(|| MISSING.into(), |c| c.table() + "\n" + &c.origin()))
}

impl Contrast {
    /// Reads what is kept of the ladder in `folder`; `None` if nothing is.
    ///
    /// # Errors
    /// [`soundness::MeasurementUnsound`] where a run may not be reported or the engines differ; others when a file can't
    /// be read, or the runs are not of the same requests.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let mut contrast = Self {
            open: Vec::new(),
            closed: Vec::new(),
            clients: 0,
        };
        for path in cell_files(&folder.join(FOLDER))? {
            let (meta, records) = (Meta::read(&path)?, parquet::read(&path)?);
            let runs = match meta.cell.mode {
                Loop::Open => &mut contrast.open,
                Loop::Closed(clients) => {
                    contrast.clients = clients;
                    &mut contrast.closed
                }
            };
            let summary = metrics::summarize(&records, Span::of_run(&records), None);
            let name = path.file_stem().unwrap_or_default();
            let name = format!("{FOLDER}/{}", name.to_string_lossy());
            runs.push(Run {
                name,
                meta,
                summary,
            });
        }
        if contrast.open.is_empty() && contrast.closed.is_empty() {
            return Ok(None);
        }
        contrast.refuse()?;
        Ok(Some(contrast))
    }

    fn refuse(&self) -> Result<()> {
        let (open, closed) = (self.open.len(), self.closed.len());
        ensure!(
            open == closed,
            "{FOLDER} has {open} open loops and {closed} closed ones"
        );
        let mut asked = self.metas().map(|m| (m.cell.mix, &m.cell.schedule));
        let first = asked.next();
        ensure!(
            asked.all(|other| Some(other) == first),
            "the runs of {FOLDER} are not of the same requests"
        );
        let unsound = self.runs().flat_map(|run| {
            let its = run.meta.unsound.iter().cloned();
            its.map(|reason| reason.of_run(&run.name))
        });
        let engine = |run: &Run| (run.name.clone(), run.meta.engine_fingerprint.clone());
        let engines: Vec<_> = self.runs().map(engine).collect();
        let mixed = soundness::mixed_fingerprints(&engines);
        Ok(soundness::refuse(unsound.chain(mixed).collect())?)
    }

    fn runs(&self) -> impl Iterator<Item = &Run> + Clone {
        self.open.iter().chain(&self.closed)
    }

    fn metas(&self) -> impl Iterator<Item = &Meta> + Clone {
        self.runs().map(|run| &run.meta)
    }

    /// The loops side by side, and what lies between them.
    pub fn table(&self) -> String {
        let (open, closed) = (self.open.as_slice(), self.closed.as_slice());
        let slots = self.clients;
        let mut loops = Table::new(&["loop", "output tokens/s", "TTFT p50, s", "TTFT p99, s", "n"]);
        for (name, runs) in [
            (format!("closed, {slots} clients"), closed),
            ("open, all at once".into(), open),
        ] {
            loops.row([
                name,
                tokens(runs).show(1),
                spread(runs, |s| s.ttft.p50).show(2),
                p99(runs).show(2),
                runs[0].summary.ttft.n.to_string(),
            ]);
        }
        let ratio = |a: Spread, b: Spread| a.median / b.median;
        format!(
            "The same {} requests at {slots} slots, median (min–max) of {} runs; of so few, p99 is the maximum.\n\n\
             {}\n\
             Open over closed: {:.2} times the throughput, {:.1} times the TTFT at p99, {:.2} s more.\n",
            open[0].summary.requests,
            open.len(),
            loops.text,
            ratio(tokens(open), tokens(closed)),
            ratio(p99(open), p99(closed)),
            p99(open).median - p99(closed).median
        )
    }

    fn origin(&self) -> String {
        let rung = origin::all(self.metas(), |m| m.server.rung.as_deref());
        let mix = serde_json::to_value(self.open[0].meta.cell.mix).unwrap_or_default();
        format!(
            "<sub>{FOLDER}: {} runs of {rung}, {} mix; {}.</sub>\n",
            self.open.len() + self.closed.len(),
            mix.as_str().unwrap_or("?"),
            origin::setting(self.metas())
        )
    }
}

fn spread(runs: &[Run], of: fn(&Summary) -> Option<f64>) -> Spread {
    let values: Vec<f64> = runs.iter().filter_map(|run| of(&run.summary)).collect();
    Spread::of(&values)
}

fn tokens(runs: &[Run]) -> Spread {
    spread(runs, |s| Some(s.output_tokens_per_s))
}

fn p99(runs: &[Run]) -> Spread {
    spread(runs, |s| s.ttft.p99)
}

#[cfg(test)]
#[path = "contrast_tests.rs"]
mod tests;
