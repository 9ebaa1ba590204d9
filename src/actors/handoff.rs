//! What runner and scheduler share, so that the model does not wait between two steps.
//!
//! While those who run only decode, the runner goes on by itself, as far as the plan allows
//! ([`StepPlan::ahead`](crate::logic::scheduler::step::StepPlan)): the scheduler takes a step's results in, and
//! delivers them, while the next step is being computed. It interrupts where a turn has something to do: somebody
//! leaves, somebody may join. The runner is never more than one step ahead of what the scheduler has taken in,
//! because there are two sets of buffers and it needs the other one.
//!
//! Where the runner does need a plan, it stays awake until the scheduler has answered. A thread that sleeps for the
//! fifty microseconds between two steps is often woken on the core of one of its compute threads, and both then
//! share that core for milliseconds: on two cores a step of batch 1 took a fifth longer. Waiting awake, and
//! yielding to whoever needs the core, keeps each thread where it was. bench/README.md has the measurement.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::ids::StepId;
use crate::messages::StepBuffers;

/// Long enough for a turn of the scheduler, short against a step.
const LIMIT: Duration = Duration::from_micros(200);

/// See the module's text.
pub struct Handoff {
    answered: AtomicU64,
    limit: Duration,
    interrupted: AtomicBool,
    /// Held to take or put a pointer.
    spare: Mutex<Option<Box<StepBuffers>>>,
}

impl Default for Handoff {
    fn default() -> Self {
        Self {
            answered: AtomicU64::new(0),
            limit: LIMIT,
            interrupted: AtomicBool::new(false),
            spare: Mutex::new(Some(Box::default())),
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

    /// Scheduler: a turn begins. What interrupts from here on, interrupts the step that it plans.
    pub fn resume(&self) {
        self.interrupted.store(false, Ordering::Release);
    }

    /// Scheduler: the step in flight is not to be followed without a plan.
    pub fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Release);
    }

    /// Scheduler: the results in `step` have been taken in.
    pub fn give_back(&self, step: Box<StepBuffers>) {
        *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(step);
    }

    /// Runner: buffers for a step that follows the last one, if one may.
    pub fn go_on(&self) -> Option<Box<StepBuffers>> {
        if self.interrupted.load(Ordering::Acquire) {
            return None;
        }
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.take()
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
