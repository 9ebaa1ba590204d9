//! What a run's records say, in few numbers. Requests of the warm-up and the cool-down are in the records and in
//! what concerns the whole run (mean in flight, capacity, throughput); latencies, goodput and shares are of the
//! measured ones alone.
//!
//! Seconds count from the intended arrival. Refused and failed requests have no latency here: the first are
//! counted by reason, the second make `failed`. Those whose client gave up are in the percentiles as what they
//! are, lower bounds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::occupancy::{self, Span};
use super::quantile::Quantiles;
use super::record::{Outcome, Record};

/// See the module's text. Seconds, and per second, unless a name says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Requests in all, and of them those that are measured.
    pub requests: usize,
    pub measured: usize,
    /// The measured ones by how they ended.
    pub completed: usize,
    pub shed: usize,
    pub censored: usize,
    pub failed: usize,
    pub shed_by_reason: BTreeMap<String, usize>,
    pub failed_by_error: BTreeMap<String, usize>,

    /// From the first intended arrival to the last end.
    pub run_s: f64,
    /// In which the measured ones arrived.
    pub window_s: f64,
    pub offered_per_s: f64,
    pub completed_per_s: f64,
    pub output_tokens_per_s: f64,
    pub mean_in_flight: f64,
    /// Still growing when the arrivals ended: not to be quoted as capacity.
    pub queue_grows: bool,
    pub capacity: Capacity,

    pub slo: Option<SloSummary>,
    pub ttft: Quantiles,
    pub e2e: Quantiles,
    /// Gaps between frames, of all answers together: what a reader's screen did.
    pub frame_gap: Quantiles,
    /// Gaps between tokens, one mean an answer: what the engine did.
    pub token_gap: Quantiles,
    /// Of all completed answers together.
    pub tokens_per_frame: Option<f64>,
    pub cached_share: Option<f64>,
    pub split: Option<SplitSummary>,

    /// By how much the generator was late, and how long the server then took to accept.
    pub send_lag: Quantiles,
    pub hand_over: Quantiles,
}

/// What came out over the middle 60% of the arrivals' span. Tokens are the ones to quote under overload, where
/// short answers survive and long ones time out, so that requests per second flatter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    pub tokens_per_s: f64,
    pub requests_per_s: f64,
}

/// How an SLO was met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SloSummary {
    pub slo_s: f64,
    /// Measured requests that were completed within it.
    pub within: usize,
    pub goodput_per_s: f64,
    pub attainment_of_all: Option<f64>,
    pub attainment_of_admitted: Option<f64>,
}

/// The server's own account, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SplitSummary {
    pub queue_ms: Quantiles,
    pub prefill_ms: Quantiles,
    pub first_decode_ms: Quantiles,
    /// Of the times to first tokens together, the share that was spent in the queue.
    pub queue_share: Option<f64>,
}

/// The part of a run whose arrivals are measured: what lies between warm-up and cool-down.
pub fn window(arrivals_s: f64, warm_up_s: f64, cool_down_s: f64) -> Span {
    let us = |s: f64| (s.max(0.0) * 1e6).round() as u64;
    Span {
        from_us: us(warm_up_s),
        to_us: us(arrivals_s - cool_down_s),
    }
}

/// Summarises a run. `window` is where measured requests arrived; if it has no length (a burst), the run is.
pub fn summarize(records: &[Record], window: Span, slo_s: Option<f64>) -> Summary {
    let measured: Vec<&Record> = records.iter().filter(|r| r.measured).collect();
    let of = |outcome: Outcome| measured.iter().filter(move |r| r.outcome() == outcome);
    let done = || of(Outcome::Completed);
    let run = Span::of_run(records);
    let window_s = match window.seconds() {
        0.0 => run.seconds(),
        s => s,
    };
    let middle = Span::of_arrivals(records).part(0.2, 0.8);
    let all_done: Vec<&Record> = records.iter().filter(|r| r.is_completed()).collect();
    let tokens: f64 = all_done.iter().map(|r| occupancy::tokens(r)).sum();
    let gave_up_before_text = of(Outcome::Censored).filter(|r| r.first_frame_us.is_none());
    Summary {
        requests: records.len(),
        measured: measured.len(),
        completed: done().count(),
        shed: of(Outcome::Shed).count(),
        censored: of(Outcome::Censored).count(),
        failed: of(Outcome::Failed).count(),
        shed_by_reason: tally(of(Outcome::Shed).map(|r| reason(r))),
        failed_by_error: tally(of(Outcome::Failed).map(|r| complaint(r))),
        run_s: run.seconds(),
        window_s,
        offered_per_s: ratio(measured.len() as f64, window_s),
        completed_per_s: ratio(all_done.len() as f64, run.seconds()),
        output_tokens_per_s: ratio(tokens, run.seconds()),
        mean_in_flight: occupancy::mean_in_flight(records, run),
        queue_grows: occupancy::is_growing(records),
        capacity: Capacity {
            tokens_per_s: ratio(occupancy::tokens_within(records, middle), middle.seconds()),
            requests_per_s: ratio(
                occupancy::completed_within(records, middle) as f64,
                middle.seconds(),
            ),
        },
        slo: slo_s.map(|slo_s| slo(&measured, slo_s, window_s)),
        ttft: Quantiles::censored(
            measured
                .iter()
                .filter(|r| r.outcome() != Outcome::Failed)
                .filter_map(|r| r.ttft_s()),
            gave_up_before_text.map(|r| r.e2e_s()),
        ),
        e2e: Quantiles::censored(
            done().map(|r| r.e2e_s()),
            of(Outcome::Censored).map(|r| r.e2e_s()),
        ),
        frame_gap: Quantiles::of(
            done().flat_map(|r| r.frame_gaps_us.iter().map(|g| f64::from(*g) * 1e-6)),
        ),
        token_gap: Quantiles::of(done().filter_map(|r| r.token_gap_s())),
        tokens_per_frame: share(done(), |r| {
            Some((f64::from(r.completion_tokens?), r.frames() as f64))
        }),
        cached_share: share(done(), |r| {
            Some((f64::from(r.cached_tokens?), f64::from(r.prompt_tokens?)))
        }),
        split: split(&measured),
        send_lag: Quantiles::of(records.iter().filter_map(Record::lag_s)),
        hand_over: Quantiles::of(records.iter().filter_map(Record::hand_over_s)),
    }
}

/// Goodput and attainment at any target: a report may ask for others than the run had.
pub fn slo(measured: &[&Record], slo_s: f64, window_s: f64) -> SloSummary {
    let within = measured.iter().filter(|r| r.is_within(slo_s)).count();
    let admitted = measured
        .iter()
        .filter(|r| r.outcome() != Outcome::Shed)
        .count();
    let of = |n: usize| (n > 0).then(|| within as f64 / n as f64);
    SloSummary {
        slo_s,
        within,
        goodput_per_s: ratio(within as f64, window_s),
        attainment_of_all: of(measured.len()),
        attainment_of_admitted: of(admitted),
    }
}

fn split(measured: &[&Record]) -> Option<SplitSummary> {
    let told: Vec<&&Record> = measured.iter().filter(|r| r.queue_ms.is_some()).collect();
    let queue_share = share(told.iter().copied(), |r| {
        Some((r.queue_ms? * 1e-3, r.ttft_s()?))
    });
    (!told.is_empty()).then(|| SplitSummary {
        queue_ms: Quantiles::of(told.iter().filter_map(|r| r.queue_ms)),
        prefill_ms: Quantiles::of(told.iter().filter_map(|r| r.prefill_ms)),
        first_decode_ms: Quantiles::of(told.iter().filter_map(|r| r.first_decode_ms)),
        queue_share,
    })
}

/// The sum of the first numbers over the sum of the second.
fn share<'a>(
    records: impl Iterator<Item = &'a &'a Record>,
    pair: impl Fn(&Record) -> Option<(f64, f64)>,
) -> Option<f64> {
    let (a, b) = records
        .filter_map(|r| pair(r))
        .fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
    (b > 0.0).then(|| a / b)
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// Why a request was refused, by the server's word.
pub fn reason(record: &Record) -> String {
    let status = || record.status.map_or_else(String::new, |s| s.to_string());
    record.code.clone().unwrap_or_else(status)
}

/// The server's word for it, else the innermost words of an error: the rest names addresses and counts.
fn complaint(record: &Record) -> String {
    if let Some(code) = &record.code {
        return code.clone();
    }
    let status = record
        .status
        .filter(|s| *s != 200)
        .map(|s| format!("status {s}"));
    let error = record
        .error
        .clone()
        .or(status)
        .unwrap_or_else(|| "unknown".into());
    error.chars().take(80).collect()
}

fn tally(names: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
