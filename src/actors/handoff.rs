//! The moment between two steps: the runner stays awake until the scheduler has answered.
//!
//! A thread that sleeps for the fifty microseconds between two steps is often woken on the core of one of its
//! compute threads, and both then share that core for milliseconds: on two cores a step of batch 1 took a
//! fifth longer. Waiting awake, and yielding to whoever needs the core, keeps each thread where it was.
//! bench/README.md has the measurement.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::ids::StepId;

/// Long enough for a turn of the scheduler, short against a step.
const LIMIT: Duration = Duration::from_micros(200);

/// See the module's text.
#[derive(Debug)]
pub struct Handoff {
    answered: AtomicU64,
    limit: Duration,
}

impl Default for Handoff {
    fn default() -> Self {
        Self {
            answered: AtomicU64::new(0),
            limit: LIMIT,
        }
    }
}

impl Handoff {
    /// For a scheduler on the runner's own thread, which can't answer while the runner waits: nobody does.
    #[must_use]
    pub fn none() -> Self {
        Self {
            limit: Duration::ZERO,
            ..Self::default()
        }
    }

    /// Scheduler: what follows `done` has been sent, or nothing will.
    pub fn answer(&self, done: StepId) {
        self.answered.store(done.0, Ordering::Release);
    }

    /// Runner: waits until `done` is answered, but not for long.
    pub fn wait(&self, done: StepId) {
        let start = Instant::now();
        while self.answered.load(Ordering::Acquire) < done.0 && start.elapsed() < self.limit {
            std::thread::yield_now();
        }
    }
}
