//! A fixed small piece of work, timed before, during and after a measurement. If its time moves, or if its threads
//! had to wait for a core, the machine was disturbed, and with it whatever was measured in between.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::child;
use crate::cpu::{self, stolen_seconds};
use crate::engine::{Bare, BareSettings, Sequence};
use crate::stats::Spread;

/// Canaries slower or faster than the median by more than this mark a disturbed run.
const TOLERANCE: f64 = 0.15;
/// So do canaries whose threads, all together, waited for a core for more than this part of the time.
const WAITED: f64 = 0.05;
const STEPS: usize = 48;

/// The times of one run's canaries.
#[derive(Clone, Debug, Serialize)]
pub struct Canary {
    #[serde(skip)]
    model: Option<PathBuf>,
    #[serde(skip)]
    stolen_at_start: f64,
    /// With a model: a decode step at batch 1. Without: a fixed loop on one core.
    pub ms: Vec<f64>,
    /// Time that its threads were ready to run and had no core, over the time that it took.
    pub waited: Vec<f64>,
    pub disturbed: bool,
    /// CPU seconds that the hypervisor gave to others meanwhile.
    pub stolen_s: f64,
}

#[derive(Serialize, Deserialize)]
pub struct Song {
    ms: f64,
    waited: f64,
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
            waited: Vec::new(),
            disturbed: false,
            stolen_s: 0.0,
        };
        canary.sing()?;
        Ok(canary)
    }

    /// One more.
    pub fn sing(&mut self) -> Result<()> {
        let song: Song = match &self.model {
            Some(model) => child::call(
                "canary-loop",
                &Spec {
                    model: model.clone(),
                },
                child::BOUNDED,
            )?,
            None => spin()?,
        };
        self.ms.push(song.ms);
        self.waited.push(song.waited);
        let s = Spread::of(&self.ms);
        self.disturbed = s.max > s.median * (1.0 + TOLERANCE)
            || s.min < s.median * (1.0 - TOLERANCE)
            || Spread::of(&self.waited).max > WAITED;
        self.stolen_s = stolen_seconds() - self.stolen_at_start;
        Ok(())
    }

    pub fn report(&self) {
        let verdict = if self.disturbed { "DISTURBED" } else { "quiet" };
        println!(
            "canary: {} ms over {} songs, waited for a core {}, {:.1} s stolen: {verdict}",
            Spread::of(&self.ms).show(2),
            self.ms.len(),
            Spread::of(&self.waited).show(2),
            self.stolen_s
        );
    }
}

/// The child's side: a decode step at batch 1.
pub fn run(spec: Spec) -> Result<Song> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as i32);
    let mut bare = Bare::load(&BareSettings::plain(&spec.model, cores, 512))?;
    let mut sequences = [Sequence::new(0, bare.prefill(0, 0, &[1; 32])?, 32)];
    bare.step(&mut sequences)?;
    sing(STEPS, || bare.step(&mut sequences))
}

/// Times `f`, `n` times.
fn sing(n: usize, mut f: impl FnMut() -> Result<()>) -> Result<Song> {
    let waited = cpu::waited_seconds();
    let started = Instant::now();
    let mut ms = Vec::with_capacity(n);
    for _ in 0..n {
        let began = Instant::now();
        f()?;
        ms.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let took = started.elapsed().as_secs_f64();
    Ok(Song {
        ms: Spread::of(&ms).median,
        waited: (cpu::waited_seconds() - waited) / took,
    })
}

fn spin() -> Result<Song> {
    sing(5, || {
        let mut x = 1u64;
        for i in 0..100_000_000u64 {
            x = x.rotate_left(5) ^ i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
        std::hint::black_box(x);
        Ok(())
    })
}
