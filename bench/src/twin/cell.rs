//! One run of the grid, as the records of its clients would tell it.

use cadenced::logic::request::Outcome;
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
    pub gave_up: usize,
    /// Neither ended nor refused when the arrivals ended; they are among the others, since the run went on.
    pub in_flight_at_end: usize,
    pub within_slo: usize,
    pub goodput_per_s: f64,
    pub mean_in_flight: f64,
    pub queue_grows: bool,
    pub ttft_s: Quantiles,
    pub e2e_s: Quantiles,
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
    let pairs = fates.iter().zip(&offered.requests);
    let records: Vec<Record> = pairs.map(|(f, r)| record(f, r)).collect();
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
        gave_up: summary.censored,
        in_flight_at_end: fates.iter().filter(|f| f.end_us > end_us).count(),
        within_slo: slo.within,
        goodput_per_s: slo.goodput_per_s,
        mean_in_flight: summary.mean_in_flight,
        queue_grows: summary.queue_grows,
        ttft_s: summary.ttft,
        e2e_s: summary.e2e,
    }
}

/// A fate as its client would have recorded it, but for the frames between the first and the last.
fn record(fate: &Fate, request: &Request) -> Record {
    let status = match fate.outcome {
        Outcome::Finished(_) => Some(200),
        Outcome::Refused => Some(503),
        Outcome::Invalid => Some(400),
        _ => fate.first_token_us.map(|_| 200),
    };
    let is_finished = matches!(fate.outcome, Outcome::Finished(_));
    Record {
        max_tokens: request.max_tokens,
        measured: true,
        intended_us: request.at_us,
        first_frame_us: fate.first_token_us,
        last_frame_us: is_finished.then_some(fate.end_us),
        finish_us: fate.end_us,
        status,
        censored: fate.outcome == Outcome::Cancelled,
        prompt_tokens: is_finished.then_some(request.prompt_tokens),
        completion_tokens: is_finished.then_some(fate.generated),
        ..Record::default()
    }
}
