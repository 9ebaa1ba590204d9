//! One run of the grid, as the records of its clients would tell it.

use std::collections::BTreeMap;

use cadenced::logic::conformal::policy::Verdict;
use cadenced::logic::conformal::receipt::is_late;
use cadenced::logic::request::{FinishReason, Outcome};
use serde::{Deserialize, Serialize};

use super::actors;
use super::arrivals::Offer;
use super::engine::{Fate, Request, Trial};
use crate::load::arrivals::Extent;
use crate::load::metrics;
use crate::load::quantile::Quantiles;
use crate::load::record::Record;

/// Who decides in a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The daemon's logic, called in the order in which its actors call it.
    #[default]
    Logic,
    /// The actors themselves, with their messages: slower, and nothing is played but HTTP.
    Actors,
}

/// One run of one rung.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cell {
    pub rung: String,
    /// Multiple of saturation.
    pub load: f64,
    pub rate_per_s: f64,
    pub seed: u64,
    pub offered: usize,
    pub finished: usize,
    pub shed: usize,
    /// By the word of the daemon's error.
    pub shed_by_reason: BTreeMap<String, usize>,
    pub gave_up: usize,
    /// Neither ended nor refused when the arrivals ended; they are among the others, since the run went on.
    pub in_flight_at_end: usize,
    pub within_slo: usize,
    pub goodput_per_s: f64,
    pub mean_in_flight: f64,
    pub queue_grows: bool,
    pub ttft_s: Quantiles,
    pub e2e_s: Quantiles,
    /// Of the prompt tokens of what was answered, those that came out of the prefix cache.
    pub cached_share: Option<f64>,
    /// Where somebody decides by a bound.
    pub promises: Option<Promises>,
}

/// What was promised in a cell, and what became of it.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Promises {
    pub kept: usize,
    pub missed: usize,
    /// Their clients left.
    pub censored: usize,
    /// Admitted without a promise: whatever the bound said, and before there was one to look at.
    pub explored: usize,
    pub observed: usize,
    /// Means over the promises that were seen to their end.
    pub bound_s: Option<f64>,
    pub actual_s: Option<f64>,
    #[serde(default)]
    pub best_effort: BestEffort,
}

/// Requests that were let into the best-effort lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BestEffort {
    pub admitted: usize,
    /// Answered whole within the SLO.
    pub in_time: usize,
    /// Given up at their deadline, before their answer began or within it.
    pub dropped: usize,
}

impl Promises {
    /// Those seen to their end.
    pub fn n(&self) -> usize {
        self.kept + self.missed
    }

    /// Of `requests` with these fates and this SLO; `None` if nothing was decided.
    pub fn of(fates: &[Fate], requests: &[Request], slo_us: u64) -> Option<Self> {
        fates.iter().find_map(|f| f.decision)?;
        let (mut this, mut bound_ms, mut actual_ms) = (Self::default(), 0.0, 0.0);
        for (fate, request) in fates.iter().zip(requests) {
            match fate.decision.map(|d| d.verdict) {
                Some(Verdict::Explored) => this.explored += 1,
                Some(Verdict::Observed) => this.observed += 1,
                Some(Verdict::BestEffort) => {
                    let lane = &mut this.best_effort;
                    lane.admitted += 1;
                    lane.in_time += usize::from(fate.is_within(request, slo_us));
                    lane.dropped += usize::from(fate.is_dropped());
                }
                _ => {}
            }
            match fate.is_kept(request) {
                None => this.censored += usize::from(fate.promised_ms().is_some()),
                Some(kept) => {
                    let count = if kept {
                        &mut this.kept
                    } else {
                        &mut this.missed
                    };
                    *count += 1;
                    bound_ms += fate.promised_ms().unwrap_or(0.0);
                    actual_ms += fate.latency_ms(request);
                }
            }
        }
        let mean_s = |sum: f64| (this.n() > 0).then(|| sum / this.n() as f64 * 1e-3);
        (this.bound_s, this.actual_s) = (mean_s(bound_ms), mean_s(actual_ms));
        Some(this)
    }
}

impl Fate {
    /// From its arrival to its end.
    pub fn latency_ms(&self, request: &Request) -> f64 {
        (self.end_us - request.at_us) as f64 * 1e-3
    }

    /// The bound, if it was promised.
    pub fn promised_ms(&self) -> Option<f64> {
        let decision = self.decision.filter(|d| d.verdict == Verdict::Promised)?;
        decision.bound_ms.ok()
    }

    /// Whether the promise was kept; `None` where there was none or its client left.
    pub fn is_kept(&self, request: &Request) -> Option<bool> {
        let bound_ms = self.promised_ms()?;
        let is_finished = matches!(self.outcome, Outcome::Finished(_));
        is_finished.then(|| !is_late(self.latency_ms(request), bound_ms))
    }
}

/// What the cells of one load and seed share.
pub struct Offered {
    pub load: f64,
    pub offer: Offer,
    pub requests: Vec<Request>,
}

impl Offered {
    /// Of arrivals.
    pub fn seconds(&self) -> f64 {
        match self.offer.extent {
            Extent::Seconds(s) => s,
            Extent::Requests(n) => n as f64 / self.offer.rate,
        }
    }
}

/// Runs `trial`, and says of it what is said of a real run, by the same code.
pub fn cell(trial: &Trial, offered: &Offered, mode: Mode) -> Cell {
    let fates = match mode {
        Mode::Logic => trial.run(&offered.requests),
        Mode::Actors => actors::run(trial, &offered.requests),
    };
    let records = records(&fates, &offered.requests);
    let duration_s = offered.seconds();
    let slo_s = trial.slo_us.map(|us| us as f64 * 1e-6);
    let summary = metrics::summarize(&records, metrics::window(duration_s, 0.0, 0.0), slo_s);
    let slo = summary.slo.unwrap_or_default();
    let end_us = (duration_s * 1e6) as u64;
    Cell {
        rung: trial.rung.name.to_owned(),
        load: offered.load,
        rate_per_s: offered.offer.rate,
        seed: offered.offer.seed,
        offered: summary.requests,
        finished: summary.completed,
        shed: summary.shed,
        shed_by_reason: summary.shed_by_reason,
        gave_up: summary.censored,
        in_flight_at_end: fates.iter().filter(|f| f.end_us > end_us).count(),
        within_slo: slo.within,
        goodput_per_s: slo.goodput_per_s,
        mean_in_flight: summary.mean_in_flight,
        queue_grows: summary.queue_grows,
        ttft_s: summary.ttft,
        e2e_s: summary.e2e,
        cached_share: summary.cached_share,
        promises: Promises::of(&fates, &offered.requests, trial.slo_us.unwrap_or(u64::MAX)),
    }
}

/// The fates of `requests` as their clients would have recorded them.
pub fn records(fates: &[Fate], requests: &[Request]) -> Vec<Record> {
    let pairs = fates.iter().zip(requests);
    pairs.map(|(f, r)| record(f, r)).collect()
}

/// A fate as its client would have recorded it, but for the frames between the first and the last.
fn record(fate: &Fate, request: &Request) -> Record {
    let verdict = fate.decision.map(|d| d.verdict);
    let status = match fate.outcome {
        Outcome::Finished(_) => Some(200),
        Outcome::Refused | Outcome::Expired => Some(503),
        Outcome::Invalid if verdict == Some(Verdict::Infeasible) => Some(422),
        Outcome::Invalid => Some(400),
        _ => fate.first_token_us.map(|_| 200),
    };
    let code = match (fate.outcome, verdict) {
        (Outcome::Expired, _) => Some("slo_expired".into()),
        (Outcome::Refused | Outcome::Invalid, None) => Some("capacity".into()),
        (Outcome::Refused | Outcome::Invalid, Some(v)) => Some(format!("slo_{}", v.label())),
        _ => None,
    };
    // In the best-effort lane there is no bound that means something.
    let told = fate
        .decision
        .filter(|_| verdict != Some(Verdict::BestEffort));
    let is_cut = fate.outcome == Outcome::Finished(FinishReason::Slo);
    let is_finished = matches!(fate.outcome, Outcome::Finished(_));
    Record {
        max_tokens: request.max_tokens,
        measured: true,
        intended_us: request.at_us,
        first_frame_us: fate.first_token_us,
        last_frame_us: is_finished.then_some(fate.end_us),
        finish_us: fate.end_us,
        status,
        code,
        finish_reason: is_cut.then(|| "slo".into()),
        censored: fate.outcome == Outcome::Cancelled,
        prompt_tokens: is_finished.then_some(request.prompt_tokens),
        cached_tokens: fate.cached_tokens.filter(|_| is_finished),
        completion_tokens: is_finished.then_some(fate.generated),
        bound_ms: told.and_then(|d| d.bound_ms.ok()),
        verdict: verdict.map(|v| v.label().to_owned()),
        level: told.map(|d| d.confidence()),
        kept: fate.is_kept(request),
        ..Record::default()
    }
}
