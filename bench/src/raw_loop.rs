//! The bare loop, in a process of its own: fill the contexts, then time decode steps.

use std::time::Instant;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::effective::Effective;
use crate::engine::{Bare, BareSettings, Sequence};

#[derive(Serialize, Deserialize)]
pub struct Spec {
    pub settings: BareSettings,
    /// What each context holds before the first step; their lengths are the first step's positions.
    pub contexts: Vec<Vec<i32>>,
    pub steps: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub effective: Effective,
    pub prefill_tokens_per_s: f64,
    pub decode_s: f64,
    pub tokens_per_s: f64,
    pub step_ms_median: f64,
    pub step_ms_max: f64,
}

pub fn run(spec: Spec) -> Result<Outcome> {
    let mut bare = Bare::load(&spec.settings)?;
    let started = Instant::now();
    let mut sequences = Vec::with_capacity(spec.contexts.len());
    for (id, tokens) in spec.contexts.iter().enumerate() {
        let next = bare.prefill(id as i32, 0, tokens)?;
        sequences.push(Sequence::new(id as i32, next, tokens.len() as u32));
    }
    let prefilled: usize = spec.contexts.iter().map(Vec::len).sum();
    let prefill_tokens_per_s = prefilled as f64 / started.elapsed().as_secs_f64();

    let mut steps_ms = Vec::with_capacity(spec.steps);
    let started = Instant::now();
    let mut last = started;
    for _ in 0..spec.steps {
        bare.step(&mut sequences)?;
        let now = Instant::now();
        steps_ms.push((now - last).as_secs_f64() * 1e3);
        last = now;
    }
    let decode_s = (last - started).as_secs_f64();
    let spread = crate::stats::Spread::of(&steps_ms);
    Ok(Outcome {
        effective: bare.settings().clone(),
        prefill_tokens_per_s,
        decode_s,
        tokens_per_s: (spec.steps * sequences.len()) as f64 / decode_s,
        step_ms_median: spread.median,
        step_ms_max: spread.max,
    })
}
