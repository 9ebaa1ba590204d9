//! What became of the promises among some requests, and of the requests that got none.
//!
//! Every request is counted once. Coverage is of the promises that were seen to be kept or broken; explored, observed,
//! best-effort and refused requests are no part of it, nor is a promise whose client left before it was due.

use std::collections::BTreeMap;

use cadenced::logic::conformal::evaluation::Evaluation;
use cadenced::logic::conformal::policy::Verdict;

use crate::load::metrics::reason;
use crate::load::record::{Outcome, Record};

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    pub offered: usize,
    /// Promises, by the receipt that came with the reply. One that failed is missed.
    pub kept: usize,
    pub missed: usize,
    /// Of those, kept by the client's clock, which begins at the intended arrival.
    pub kept_by_client: usize,
    /// The client left while the promise could still have been kept.
    pub open: usize,
    /// Admitted whatever the bound said.
    pub explored: usize,
    /// Admitted without looking at a bound.
    pub observed: usize,
    pub lane: Lane,
    pub refused: BTreeMap<String, usize>,
    /// Failed or given up before there was a decision.
    pub undecided: usize,
    /// Of the promised requests that were completed.
    bounds_s: Vec<f64>,
    actuals_s: Vec<f64>,
}

/// The best-effort lane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lane {
    pub in_time: usize,
    pub late: usize,
    /// The deadline passed before they were done, or before they began.
    pub dropped: usize,
    /// Given up by the client, or failed.
    pub lost: usize,
}

/// What was decided on a request, if something was.
pub fn verdict(record: &Record) -> Option<Verdict> {
    let word = record.verdict.as_deref()?;
    Verdict::ALL.into_iter().find(|v| v.label() == word)
}

impl Tally {
    /// Of requests whose SLO is `slo_s`.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>, slo_s: Option<f64>) -> Self {
        let mut this = Self::default();
        for r in records {
            this.offered += 1;
            match verdict(r) {
                Some(Verdict::Promised) => this.promise(r),
                Some(Verdict::Explored) => this.explored += 1,
                Some(Verdict::Observed) => this.observed += 1,
                Some(Verdict::BestEffort) => this.lane.take(r, slo_s),
                _ if r.outcome() == Outcome::Shed => {
                    *this.refused.entry(reason(r)).or_insert(0) += 1;
                }
                _ => this.undecided += 1,
            }
        }
        this
    }

    fn promise(&mut self, r: &Record) {
        let (bound_s, actual_s) = (r.bound_ms.unwrap_or(0.0) * 1e-3, r.e2e_s());
        let is_in_bound = actual_s <= bound_s;
        let is_kept = match r.outcome() {
            Outcome::Completed => {
                self.bounds_s.push(bound_s);
                self.actuals_s.push(actual_s);
                self.kept_by_client += usize::from(is_in_bound);
                r.kept.unwrap_or(is_in_bound)
            }
            Outcome::Censored if is_in_bound => {
                self.open += 1;
                return;
            }
            Outcome::Censored | Outcome::Failed | Outcome::Shed => false,
        };
        self.kept += usize::from(is_kept);
        self.missed += usize::from(!is_kept);
    }

    /// All that were promised something.
    pub fn promised(&self) -> usize {
        self.kept + self.missed + self.open
    }

    /// Coverage of those seen to be kept or broken, with its interval.
    pub fn coverage(&self) -> Evaluation {
        Evaluation {
            n: self.kept + self.missed,
            kept: self.kept,
            ..Evaluation::default()
        }
    }

    pub fn bound_mean_s(&self) -> Option<f64> {
        mean(&self.bounds_s)
    }

    /// By the client's clock.
    pub fn actual_mean_s(&self) -> Option<f64> {
        mean(&self.actuals_s)
    }
}

impl Lane {
    fn take(&mut self, r: &Record, slo_s: Option<f64>) {
        let is_cut =
            r.code.as_deref() == Some("slo_expired") || r.finish_reason.as_deref() == Some("slo");
        let count = match r.outcome() {
            _ if is_cut => &mut self.dropped,
            Outcome::Completed if slo_s.is_some_and(|slo_s| r.is_within(slo_s)) => {
                &mut self.in_time
            }
            Outcome::Completed => &mut self.late,
            Outcome::Censored | Outcome::Failed | Outcome::Shed => &mut self.lost,
        };
        *count += 1;
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
