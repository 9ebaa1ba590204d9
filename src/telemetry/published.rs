//! The engine's state as its actors last published it: read by `/stats`, `/metrics` and admission without a
//! message, so that they answer while a decode blocks. Each actor writes its own part whenever it changes,
//! not only at a step, so that nothing stays at its value under load after the load has gone.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::logic::admission::{EngineSnapshot, RetryAfter};
use crate::logic::conformal::pace::{PaceMeter, pace_now};
use crate::logic::conformal::snapshot::{LaneLoad, Pace, Snapshot};
use crate::logic::conformal::tally::Tally;
use crate::logic::kv::KvUsage;
use crate::logic::prefix::PrefixUsage;
use crate::logic::request::{Lane, RequestSpec};
use crate::logic::time::Timestamp;

/// See the module's text. Plain counters: each is right by itself, and together they are as of the last step.
#[derive(Debug, Default)]
pub struct Published {
    /// Of each lane, in the order of [`Lane::ALL`].
    lanes: [LaneState; 2],
    /// How many admitted requests the wait queue has taken in since the start.
    admissions_seen: AtomicU64,
    /// Promises that are not expected to be kept.
    pub late: AtomicUsize,
    kv: Mutex<KvUsage>,
    prefixes: Mutex<PrefixUsage>,
    /// Requests that yielded their seat or their memory.
    pub preemptions: AtomicU64,
    /// Prompt tokens looked up in the prefix cache, and found there; each request once.
    pub lookup_tokens: AtomicU64,
    pub hit_tokens: AtomicU64,
    pub steps: AtomicU64,
    pub stale_steps: AtomicU64,
    step_ms: AtomicF64,
    tokens_per_s: AtomicF64,
    /// The same as it would be without the best-effort lane.
    promised_step_ms: AtomicF64,
    promised_tokens_per_s: AtomicF64,
    /// When the step in flight was sent to the runner, in microseconds; 0 while none is.
    step_since: AtomicU64,
    /// Since when no step has computed anything for a request outside of the best-effort lane, in microseconds; 0
    /// while one does.
    idle_since: AtomicU64,
    kv_free: AtomicF64,
    /// Share of the pool that running requests of the best-effort lane hold.
    kv_yielding: AtomicF64,
    admission: Mutex<AdmissionState>,
}

/// What waits and what runs of a lane.
#[derive(Debug, Default)]
pub struct LaneState {
    pub waiting: Work,
    pub running: Work,
}

/// Requests, and what they may still take.
#[derive(Debug, Default)]
pub struct Work {
    requests: AtomicUsize,
    output_tokens: AtomicU64,
    prefill_tokens: AtomicU64,
}

impl Work {
    /// It is as given.
    pub fn set(&self, requests: usize, output_tokens: u64, prefill_tokens: u64) {
        self.requests.store(requests, SeqCst);
        self.output_tokens.store(output_tokens, SeqCst);
        self.prefill_tokens.store(prefill_tokens, SeqCst);
    }

    /// How many requests.
    pub fn requests(&self) -> usize {
        self.requests.load(SeqCst)
    }
}

impl LaneState {
    /// Output tokens that all of it may still ask for.
    fn output_tokens(&self) -> u64 {
        self.waiting.output_tokens.load(SeqCst) + self.running.output_tokens.load(SeqCst)
    }

    /// What runs of it, alone.
    pub fn running_load(&self) -> LaneLoad {
        LaneLoad {
            waiting: 0,
            running: self.running.requests() as u32,
            output_tokens: self.running.output_tokens.load(SeqCst),
            prefill_tokens: self.running.prefill_tokens.load(SeqCst),
        }
    }

    fn load(&self) -> LaneLoad {
        LaneLoad {
            waiting: self.waiting.requests() as u32,
            running: self.running.requests() as u32,
            output_tokens: self.output_tokens(),
            prefill_tokens: self.waiting.prefill_tokens.load(SeqCst)
                + self.running.prefill_tokens.load(SeqCst),
        }
    }
}

/// Admission's own state, for `/stats` and `/metrics`.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdmissionState {
    /// Whether promises are made at the configured level.
    pub armed: bool,
    /// Whether the calibration given was made for another engine.
    pub mismatch: bool,
    pub tally: Tally,
}

/// An `f64` by its bits; NaN stands for "not measured yet".
#[derive(Debug)]
struct AtomicF64(AtomicU64);

impl Default for AtomicF64 {
    fn default() -> Self {
        Self(AtomicU64::new(f64::NAN.to_bits()))
    }
}

impl AtomicF64 {
    fn set(&self, x: f64) {
        self.0.store(x.to_bits(), Relaxed);
    }

    fn get(&self) -> Option<f64> {
        Some(f64::from_bits(self.0.load(Relaxed))).filter(|x| !x.is_nan())
    }
}

/// Held for a copy of a few words, and never across a panic: what it guards is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Published {
    /// A step was measured: the pace of all, and what it would be without the best-effort lane.
    pub fn observe_step(&self, all: &PaceMeter, promised: &PaceMeter) {
        self.steps.fetch_add(1, Relaxed);
        let set = |to: &AtomicF64, x: Option<f64>| x.into_iter().for_each(|x| to.set(x));
        set(&self.step_ms, all.step_ms());
        set(&self.tokens_per_s, all.tokens_per_s());
        set(&self.promised_step_ms, promised.step_ms());
        set(&self.promised_tokens_per_s, promised.tokens_per_s());
    }

    /// Average length of a step, in ms.
    pub fn step_ms(&self) -> Option<f64> {
        self.step_ms.get()
    }

    /// Average output rate of all sequences together.
    pub fn tokens_per_s(&self) -> Option<f64> {
        self.tokens_per_s.get()
    }

    /// A step has gone to the runner; it is `promised` if not all that it computes is best effort.
    pub fn step_started(&self, now: Timestamp, promised: bool) {
        self.step_since.store(now.0.max(1), Relaxed);
        if promised {
            self.idle_since.store(0, Relaxed);
        } else {
            self.came_to_rest(now);
        }
    }

    /// Nothing is left to be done, outside of the best-effort lane.
    pub fn came_to_rest(&self, now: Timestamp) {
        // It may have been at rest for long; the scheduler is the only one that writes it.
        if self.idle_since.load(Relaxed) == 0 {
            self.idle_since.store(now.0.max(1), Relaxed);
        }
    }

    /// No step is in flight any more.
    pub fn step_ended(&self) {
        self.step_since.store(0, Relaxed);
    }

    /// When the step in flight began.
    pub fn step_since(&self) -> Option<Timestamp> {
        Some(self.step_since.load(Relaxed))
            .filter(|t| *t > 0)
            .map(Timestamp)
    }

    /// The pool has changed.
    pub fn set_kv(&self, usage: KvUsage) {
        let free = f64::from(usage.blocks_free + usage.blocks_cached);
        self.kv_free
            .set(free / f64::from(usage.blocks_total.max(1)));
        *lock(&self.kv) = usage;
    }

    /// The pool as last published.
    pub fn kv(&self) -> KvUsage {
        *lock(&self.kv)
    }

    /// The prefix cache has changed.
    pub fn set_prefixes(&self, usage: PrefixUsage) {
        *lock(&self.prefixes) = usage;
    }

    /// The prefix cache as last published.
    pub fn prefixes(&self) -> PrefixUsage {
        *lock(&self.prefixes)
    }

    /// A lane as last published.
    pub fn lane(&self, lane: Lane) -> &LaneState {
        &self.lanes[lane.index()]
    }

    /// The wait queue has taken in one more admission; what waits was set before, and is read after this is in
    /// `promise_snapshot`: who is counted as seen is in it.
    pub fn admission_seen(&self) {
        self.admissions_seen.fetch_add(1, SeqCst);
    }

    /// The running requests of the best-effort lane hold so many blocks.
    pub fn set_yielding(&self, blocks: u32) {
        let total = f64::from(self.kv().blocks_total.max(1));
        self.kv_yielding.set(f64::from(blocks) / total);
    }

    /// Admission has changed.
    pub fn set_admission(&self, state: AdmissionState) {
        *lock(&self.admission) = state;
    }

    /// Admission as last published.
    pub fn admission(&self) -> AdmissionState {
        *lock(&self.admission)
    }

    /// What a promise is made of. `idle` is the pace of an engine that has been idle for long.
    pub fn promise_snapshot(&self, now: Timestamp, idle: Pace) -> Snapshot {
        let admissions_seen = self.admissions_seen.load(SeqCst);
        let idle_since = Some(self.idle_since.load(Relaxed)).filter(|t| *t > 0);
        let idle_for = idle_since.map(|t| now.since(Timestamp(t)));
        let (step_ms, tokens_per_s) = (&self.promised_step_ms, &self.promised_tokens_per_s);
        let pace = pace_now(step_ms.get(), tokens_per_s.get(), idle_for, idle);
        Snapshot {
            admissions_seen,
            promised: self.lane(Lane::Promised).load(),
            best_effort: self.lane(Lane::BestEffort).load(),
            // What the lane holds is given up for whoever needs it. Some of it may be shared, and counted twice.
            kv_free: (self.kv_free.get().unwrap_or(1.0) + self.kv_yielding.get().unwrap_or(0.0))
                .min(1.0),
            pace,
        }
    }

    /// When the client of a request should come back that is refused now.
    pub fn retry_after(&self, retry: RetryAfter, spec: &RequestSpec) -> u64 {
        let engine = self.snapshot(spec.terms.lane);
        retry.seconds(&engine, spec.id.0).into()
    }

    /// What the capacity cap's `Retry-After` is made of, for a request of this lane: the work that goes before it.
    pub fn snapshot(&self, lane: Lane) -> EngineSnapshot {
        let ahead = self.lanes.iter().take(lane.index() + 1);
        EngineSnapshot {
            tokens_remaining: ahead.map(LaneState::output_tokens).sum(),
            tokens_per_s: self.tokens_per_s(),
        }
    }
}
