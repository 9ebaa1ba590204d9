//! How calibrations are collected, and what of the data goes where.
//!
//! A round is a run of the daemon that spans the range of load: a block for each load, in an order that rotates
//! from round to round, so that slow changes of the machine fall on all loads alike. Whole rounds become folds.
//! Requests of one run share queues, so a split between them would test a bound on what it was made of; and a
//! split by time would put the deepest queues, which come last in an overloaded block, into one fold.
//!
//! While a block's queue fills, its requests are not like those of its load: the first [`Block::dropped_s`] of
//! its arrivals are traced and not used.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::boosting::nearest_rank;
use super::features::Feature;
use super::predictor::Row;
use super::snapshot::Pace;
use super::trace::TraceRow;
use crate::logic::rng::{SplitMix64, mix};

/// The loads of a round, in parts of what the machine can do. 0: one request after the other, with pauses.
pub const LOADS: [f64; 5] = [0.0, 0.5, 1.0, 2.0, 4.0];

/// The fewest rounds that give each fold one.
pub const ROUNDS_MIN: u32 = 4;

/// A block's part that is dropped, and the most that is.
const DROPPED_SHARE: f64 = 1.0 / 6.0;
const DROPPED_S_MAX: f64 = 20.0;

/// The part of the time that goes into finding out what the machine can do.
const PROBE_SHARE: f64 = 0.04;

/// What a round is used for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fold {
    /// The model is fitted on it.
    Train,
    /// Its scores make the bound.
    Calibrate,
    /// Nothing is made of it: what the bound does there is what it is worth.
    Test,
}

impl Fold {
    pub const ALL: [Self; 3] = [Self::Train, Self::Calibrate, Self::Test];

    /// Of a round: 2 : 1 : 1.
    #[must_use]
    pub fn of(round: u32) -> Self {
        match round % 4 {
            1 => Self::Calibrate,
            3 => Self::Test,
            _ => Self::Train,
        }
    }

    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Calibrate => "calibrate",
            Self::Test => "test",
        }
    }
}

/// The whole of a collection.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub minutes: f64,
    /// At least [`ROUNDS_MIN`].
    pub rounds: u32,
    pub seed: u64,
}

/// A stretch of one load.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Block {
    pub load: f64,
    /// So long requests arrive. What came too fast is served in the rest of the block's time.
    pub arrivals_s: f64,
    /// Arrivals before this are not used.
    pub dropped_s: f64,
    /// Of its arrivals and prompts.
    pub seed: u64,
}

impl Plan {
    /// What measuring the machine may take, in seconds.
    #[must_use]
    pub fn probe_s(&self) -> f64 {
        60.0 * self.minutes * PROBE_SHARE
    }

    /// What a block may take, its drain included.
    #[must_use]
    pub fn block_s(&self) -> f64 {
        60.0 * self.minutes * (1.0 - PROBE_SHARE) / f64::from(self.rounds) / LOADS.len() as f64
    }

    /// Seconds of work at saturation that give scores: the rounds that calibrate, less what is dropped.
    #[must_use]
    pub fn calibrated_s(&self) -> f64 {
        let rounds = (0..self.rounds).filter(|r| Fold::of(*r) == Fold::Calibrate);
        let blocks = rounds.flat_map(|r| self.blocks(r));
        // What the idle client adds is little, and left out.
        let work = |b: Block| b.load * (b.arrivals_s - b.dropped_s);
        blocks.map(work).sum()
    }

    /// The blocks of a round in their order.
    pub fn blocks(&self, round: u32) -> impl Iterator<Item = Block> {
        let (seed, block_s) = (self.seed, self.block_s());
        (0..LOADS.len()).map(move |i| {
            let load = LOADS[(round as usize + i) % LOADS.len()];
            // Beyond saturation work piles up by the load, and takes as long as the whole block to be done.
            let arrivals_s = block_s / load.max(1.0);
            Block {
                load,
                arrivals_s,
                dropped_s: (arrivals_s * DROPPED_SHARE).min(DROPPED_S_MAX),
                seed: mix(seed ^ mix(u64::from(round) << 8 | i as u64)),
            }
        })
    }
}

/// Poisson arrivals at `rate_per_s`, in seconds from 0 to `seconds`.
pub fn arrivals(rng: &mut SplitMix64, rate_per_s: f64, seconds: f64) -> Vec<f64> {
    let mut at = 0.0;
    let mut all = Vec::new();
    loop {
        at += exponential(rng) / rate_per_s;
        if at >= seconds {
            return all;
        }
        all.push(at);
    }
}

/// Of mean 1.
pub fn exponential(rng: &mut SplitMix64) -> f64 {
    -(1.0 - rng.unit()).ln()
}

/// A row of a round.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RoundRow {
    /// Its block's place in the round, and the block's load.
    pub block: u32,
    pub load: f64,
    /// It arrived while the queue filled.
    pub dropped: bool,
    #[serde(flatten)]
    pub trace: TraceRow,
}

/// The rows of a block as they belong into a round. Time counts from the first arrival.
#[must_use]
pub fn of_block(place: u32, block: &Block, rows: Vec<TraceRow>) -> Vec<RoundRow> {
    let first = rows
        .iter()
        .map(|r| r.arrival_s)
        .fold(f64::INFINITY, f64::min);
    rows.into_iter()
        .map(|trace| RoundRow {
            block: place,
            load: block.load,
            dropped: trace.arrival_s - first < block.dropped_s,
            trace,
        })
        .collect()
}

/// What became of the rows of a fold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Seen to their end, and used.
    pub completions: usize,
    /// Given up by their clients, and used as lower bounds.
    pub censored: usize,
    /// Traced while a queue filled.
    pub dropped: usize,
    /// Never ran.
    pub refused: usize,
}

/// Rows by what they are for.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Folds {
    rows: BTreeMap<Fold, Vec<Row>>,
    counts: BTreeMap<Fold, Counts>,
}

impl Folds {
    /// Whole rounds, in their order.
    #[must_use]
    pub fn of_rounds<'a>(rounds: impl IntoIterator<Item = &'a [RoundRow]>) -> Self {
        let mut this = Self::default();
        for (round, rows) in (0..).zip(rounds) {
            for row in rows {
                this.take(Fold::of(round), row);
            }
        }
        this
    }

    /// Puts one row into a fold.
    pub fn take(&mut self, fold: Fold, row: &RoundRow) {
        let counts = self.counts.entry(fold).or_default();
        match row.trace.observation() {
            None => counts.refused += 1,
            Some(_) if row.dropped => counts.dropped += 1,
            Some(seen) => {
                if seen.latency.is_censored() {
                    counts.censored += 1;
                } else {
                    counts.completions += 1;
                }
                self.rows.entry(fold).or_default().push(seen);
            }
        }
    }

    #[must_use]
    pub fn rows(&self, fold: Fold) -> &[Row] {
        self.rows.get(&fold).map_or(&[], Vec::as_slice)
    }

    #[must_use]
    pub fn counts(&self, fold: Fold) -> Counts {
        self.counts.get(&fold).copied().unwrap_or_default()
    }
}

/// The pace of the idle engine: the medians of what the requests of idle blocks saw. `None` without any.
#[must_use]
pub fn idle_pace<'a>(rows: impl IntoIterator<Item = &'a RoundRow>) -> Option<Pace> {
    let idle: Vec<_> = rows
        .into_iter()
        .filter(|r| r.load == 0.0 && !r.dropped)
        .map(|r| &r.trace.features)
        .collect();
    let median = |feature| {
        let mut seen: Vec<f32> = idle.iter().map(|x| x.get(feature)).collect();
        nearest_rank(&mut seen, 0.5).map(f64::from)
    };
    Some(Pace {
        step_ms: median(Feature::StepMs)?,
        tokens_per_s: median(Feature::TokensPerS)?,
    })
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
