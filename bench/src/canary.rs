//! A fixed small piece of work, timed before, during and after a measurement. If its time moves, the machine
//! was disturbed, and with it whatever was measured in between.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::child;
use crate::cpu::stolen_seconds;
use crate::engine::{Bare, BareSettings, Sequence};
use crate::stats::Spread;

/// Canaries slower or faster than the median by more than this mark a disturbed run.
const TOLERANCE: f64 = 0.15;
const STEPS: usize = 24;

/// The times of one run's canaries.
#[derive(Clone, Debug, Serialize)]
pub struct Canary {
    #[serde(skip)]
    model: Option<PathBuf>,
    #[serde(skip)]
    stolen_at_start: f64,
    /// With a model: a decode step at batch 1. Without: a fixed loop on one core.
    pub ms: Vec<f64>,
    pub disturbed: bool,
    /// CPU seconds that the hypervisor gave to others meanwhile.
    pub stolen_s: f64,
}

#[derive(Serialize, Deserialize)]
pub struct Spec {
    model: PathBuf,
}

impl Canary {
    /// The first song.
    pub fn begin(model: Option<&Path>) -> Result<Self> {
        let mut canary = Self {
            model: model.map(Path::to_owned),
            stolen_at_start: stolen_seconds(),
            ms: Vec::new(),
            disturbed: false,
            stolen_s: 0.0,
        };
        canary.sing()?;
        Ok(canary)
    }

    /// One more.
    pub fn sing(&mut self) -> Result<()> {
        self.ms.push(match &self.model {
            Some(model) => child::call(
                "canary-loop",
                &Spec {
                    model: model.clone(),
                },
                child::PASSIVE,
            )?,
            None => spin(),
        });
        let s = Spread::of(&self.ms);
        self.disturbed =
            s.max > s.median * (1.0 + TOLERANCE) || s.min < s.median * (1.0 - TOLERANCE);
        self.stolen_s = stolen_seconds() - self.stolen_at_start;
        Ok(())
    }

    pub fn report(&self) {
        let verdict = if self.disturbed { "DISTURBED" } else { "quiet" };
        println!(
            "canary: {} ms over {} songs, {:.1} s stolen: {verdict}",
            Spread::of(&self.ms).show(2),
            self.ms.len(),
            self.stolen_s
        );
    }
}

/// The child's side: milliseconds of a decode step.
pub fn run(spec: Spec) -> Result<f64> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as i32);
    let mut bare = Bare::load(&BareSettings::plain(&spec.model, cores, 512))?;
    let mut sequences = [Sequence::new(0, bare.prefill(0, 0, &[1; 32])?, 32)];
    bare.step(&mut sequences)?;
    let started = Instant::now();
    for _ in 0..STEPS {
        bare.step(&mut sequences)?;
    }
    Ok(started.elapsed().as_secs_f64() * 1e3 / STEPS as f64)
}

fn spin() -> f64 {
    let started = Instant::now();
    let mut x = 1u64;
    for i in 0..200_000_000u64 {
        x = x.rotate_left(5) ^ i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    std::hint::black_box(x);
    started.elapsed().as_secs_f64() * 1e3
}
