//! Executes one step's rows on a backend, isolating what fails.
//!
//! When a batch is refused, its rows are tried again in halves until the one to blame stands alone: that row
//! fails, its cells are cleared, and the others get their results. Each row is tried at most 1 + log2(rows)
//! times; nothing is ever retried as it was.

use super::sampling::{Sampler, SamplingParams};
use super::{BatchRow, DecodeCode, ModelBackend};
use crate::logic::scheduler::step::RowResult;

/// A row with what sampling needs: which token of the reply it is, and how to draw it.
#[derive(Clone, Copy, Debug)]
pub struct SampledRow<'a> {
    pub batch: BatchRow<'a>,
    /// `None` while the prompt is incomplete.
    pub sample: Option<(u32, &'a SamplingParams)>,
}

/// Computes `rows` and fills `results`, one for each row in order.
pub fn run_rows(
    backend: &mut dyn ModelBackend,
    sampler: &mut Sampler,
    rows: &[SampledRow<'_>],
    results: &mut Vec<RowResult>,
) {
    results.clear();
    run_part(backend, sampler, rows, results);
}

fn run_part(
    backend: &mut dyn ModelBackend,
    sampler: &mut Sampler,
    rows: &[SampledRow<'_>],
    results: &mut Vec<RowResult>,
) {
    if rows.is_empty() {
        return;
    }
    let batch: Vec<BatchRow<'_>> = rows.iter().map(|r| r.batch).collect();
    match backend.decode(&batch) {
        Ok(()) => {
            for (i, row) in rows.iter().enumerate() {
                results.push(match row.sample {
                    None => RowResult::Advanced,
                    Some((index, params)) => {
                        RowResult::Sampled(sampler.sample(backend.logits(i), params, index))
                    }
                });
            }
        }
        Err(DecodeCode(code)) => {
            // A refused batch may have written some cells already; written twice they would corrupt the text.
            let cleared: Vec<bool> = rows
                .iter()
                .map(|r| backend.remove(r.batch.seq, r.batch.position))
                .collect();
            if rows.len() == 1 {
                tracing::error!(
                    seq = rows[0].batch.seq.0,
                    code,
                    "decode failed for one sequence"
                );
                // What it had before this batch is whole, unless the model can't forget a part.
                if !cleared[0] {
                    backend.remove(rows[0].batch.seq, 0);
                }
                results.push(RowResult::Failed(code));
            } else if cleared.iter().all(|c| *c) {
                tracing::warn!(
                    rows = rows.len(),
                    code,
                    "decode failed for a batch; splitting it"
                );
                let (a, b) = rows.split_at(rows.len() / 2);
                run_part(backend, sampler, a, results);
                run_part(backend, sampler, b, results);
            } else {
                // A model that can't forget half of a sequence can't say what it remembers of these either.
                for row in rows {
                    backend.remove(row.batch.seq, 0);
                    results.push(RowResult::Failed(code));
                }
            }
        }
    }
}
