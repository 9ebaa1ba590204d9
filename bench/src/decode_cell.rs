//! A cell of `knobs`, in a process of its own: one chunk of prefill, then decode steps at growing batch sizes.
//!
//! One prompt is computed; the other contexts are copies of it, each in cells of its own, which costs the same
//! to read and spares the time to compute it. A batch size is measured with as many contexts resident as it has
//! sequences, so that what waits in the pool does not enter (that is `occupancy`'s question).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::effective::Effective;
use crate::engine::{Bare, BareSettings, Sequence};

#[derive(Serialize, Deserialize)]
pub struct Spec {
    pub settings: BareSettings,
    /// Tokens of each context.
    pub context: u32,
    /// Tokens of the prefill that is timed: the last of the context.
    pub chunk: u32,
    /// Ascending.
    pub batches: Vec<u32>,
    pub steps: usize,
    /// No batch size takes longer than about this; a cell that crawls needs few steps to show it.
    pub seconds_max: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub effective: Effective,
    pub prefill_tokens_per_s: f64,
    /// In the order of the batch sizes asked for.
    pub decode_tokens_per_s: Vec<f64>,
}

pub fn run(spec: Spec) -> Result<Outcome> {
    ensure!(
        spec.chunk < spec.context,
        "the chunk must leave something before it"
    );
    let mut bare = Bare::load(&spec.settings)?;
    // Any text will do: no multiplication is faster for some.
    let tokens: Vec<i32> = (0..spec.context)
        .map(|i| (i * 7 % 1000) as i32 + 100)
        .collect();
    let (before, chunk) = tokens.split_at((spec.context - spec.chunk) as usize);
    bare.prefill(0, 0, before)?;
    let started = Instant::now();
    let next = bare.prefill(0, before.len() as u32, chunk)?;
    let prefill_tokens_per_s = f64::from(spec.chunk) / started.elapsed().as_secs_f64();

    let mut sequences = vec![Sequence::new(0, next, spec.context)];
    let mut decode_tokens_per_s = Vec::new();
    for &batch in &spec.batches {
        let new: Vec<i32> = (sequences.len() as i32..batch as i32).collect();
        bare.copy(0, &new)?;
        sequences.extend(new.iter().map(|id| Sequence::new(*id, next, spec.context)));
        let seconds = mean_step(&mut bare, &mut sequences, spec.steps, spec.seconds_max)?;
        decode_tokens_per_s.push(sequences.len() as f64 / seconds);
        for s in &mut sequences {
            bare.remove(s.id, spec.context)?;
            (s.token, s.position) = (next, spec.context);
        }
    }
    Ok(Outcome {
        effective: bare.settings().clone(),
        prefill_tokens_per_s,
        decode_tokens_per_s,
    })
}

/// Seconds of a step, over at most `steps`; the first, which builds a graph for the new batch, is left out.
pub fn mean_step(
    bare: &mut Bare,
    sequences: &mut [Sequence],
    steps: usize,
    seconds_max: f64,
) -> Result<f64> {
    bare.step(sequences)?;
    let limit = Duration::try_from_secs_f64(seconds_max).unwrap_or(Duration::MAX);
    let started = Instant::now();
    let mut done = 0;
    while done < steps && (done < 3 || started.elapsed() < limit) {
        bare.step(sequences)?;
        done += 1;
    }
    Ok(started.elapsed().as_secs_f64() / done as f64)
}
