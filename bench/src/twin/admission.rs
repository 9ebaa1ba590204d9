//! Admission by a bound, as the daemon's actor has it: the same controller, asked on what the engine's actors would
//! have published by then, and told how what it let in ended. Without actors whatever was handed to the queue is in
//! it at once, so the ledger is empty at every decision.

use std::time::Duration;

use cadenced::logic::conformal::controller::{Controller, Course};
use cadenced::logic::conformal::pace::{PaceMeter, pace_now};
use cadenced::logic::conformal::policy::{Decision, Request, Verdict};
use cadenced::logic::conformal::predictor::{Latency, Model};
use cadenced::logic::conformal::snapshot::{LaneLoad, Snapshot};
use cadenced::logic::prefix::Beginnings;
use cadenced::logic::request::{Lane, Outcome, RequestSpec};
use cadenced::logic::scheduler::step::{RowResult, StepPlan};
use cadenced::logic::time::Timestamp;
use cadenced::logic::turn::engine::Engine;

use super::job::Job;

/// A system prompt and a question. The twin's texts don't say how many messages they are of.
pub const MESSAGES: u32 = 2;

/// What was decided on a request that was admitted.
#[derive(Clone, Copy, Debug)]
pub struct Admitted {
    pub decision: Decision,
    pub at: Timestamp,
    /// Prompt tokens that were to be computed then.
    pub prefill_tokens: u32,
}

/// See the module's text.
pub struct Admission {
    controller: Controller,
    meter: PaceMeter,
    /// Since when there has been nothing to do.
    idle_since: Option<Timestamp>,
    /// What ran of each lane when the last step was begun: requests, and tokens that they may still generate and must
    /// compute.
    running: [LaneLoad; 2],
    /// Share of the pool that the best-effort lane held then.
    yielding: f64,
    /// Admissions that the queue has taken in.
    taken_in: u64,
}

impl Admission {
    /// With an engine that has been idle since the beginning.
    pub fn new(controller: Controller) -> Self {
        Self {
            controller,
            meter: PaceMeter::default(),
            idle_since: Some(Timestamp(0)),
            running: [LaneLoad::default(); 2],
            yielding: 0.0,
            taken_in: 0,
        }
    }

    fn snapshot(&self, engine: &Engine<Job>, now: Timestamp) -> Snapshot {
        let (step_ms, tokens_per_s) = (self.meter.step_ms(), self.meter.tokens_per_s());
        let idle_for = self.idle_since.map(|since| now.since(since));
        let kv = engine.pool.usage();
        let available = f64::from(kv.blocks_free + kv.blocks_cached);
        let free = available / f64::from(kv.blocks_total.max(1));
        let load = |lane: Lane| {
            let (queue, running) = (&engine.queue, self.running[lane.index()]);
            LaneLoad {
                waiting: queue.waiting(lane) as u32,
                running: running.running,
                output_tokens: queue.max_tokens_waiting(lane) + running.output_tokens,
                prefill_tokens: queue.prefill_tokens_waiting(lane) + running.prefill_tokens,
            }
        };
        Snapshot {
            admissions_seen: self.taken_in,
            promised: load(Lane::Promised),
            best_effort: load(Lane::BestEffort),
            kv_free: (free + self.yielding).min(1.0),
            pace: pace_now(step_ms, tokens_per_s, idle_for, self.controller.idle()),
        }
    }

    /// Decides on a request that the capacity cap has let pass, whose SLO counts from its arrival.
    pub fn decide(
        &mut self,
        spec: &RequestSpec,
        job: &Job,
        engine: &Engine<Job>,
        slo: Option<Duration>,
    ) -> (Request, Decision) {
        let now = spec.arrival;
        let beginnings = Beginnings::of(job.prompt());
        let cached = engine
            .tree
            .index()
            .probe(&beginnings, spec.prompt_tokens - 1);
        let request = Request::at(now, spec, (MESSAGES, cached), slo, None);
        let snapshot = self.snapshot(engine, now);
        (request, self.controller.decide(&request, &snapshot))
    }

    /// When a request that was just refused should come again.
    pub fn retry_after_s(&self, request: &Request, engine: &Engine<Job>, now: Timestamp) -> u32 {
        let snapshot = self.snapshot(engine, now);
        self.controller.retry_after_s(request, &snapshot)
    }

    /// It is in the queue.
    pub fn admitted(&mut self, request: &Request, decision: &Decision) {
        self.taken_in += 1;
        self.controller.admitted(request, decision);
    }

    /// An admitted request has ended. The first model is fitted at once, in no time.
    pub fn ended(&mut self, admitted: &Admitted, outcome: Outcome, now: Timestamp) {
        let latency = Latency::at_end(outcome, admitted.at, now);
        self.controller
            .ended(&admitted.decision, latency, Course::AsDecided);
        if let Some(rows) = self.controller.training_rows()
            && let Ok(model) = Model::deployed(&rows)
        {
            self.controller.adopt(model);
        }
    }

    /// A step was begun, or there is nothing to do.
    pub fn planned(&mut self, engine: &Engine<Job>, now: Timestamp) {
        self.running = Lane::ALL.map(|lane| {
            let (output_tokens, prefill_tokens) = engine.turn.tokens_remaining(lane);
            LaneLoad {
                waiting: 0,
                running: engine.turn.running(lane) as u32,
                output_tokens,
                prefill_tokens,
            }
        });
        let yielding = engine.turn.scheduler().of(Lane::BestEffort);
        let blocks: u32 = yielding.map(|s| s.lease.blocks).sum();
        self.yielding = f64::from(blocks) / f64::from(engine.pool.usage().blocks_total.max(1));
        self.idle_since = match engine.plan.promised_rows {
            0 => self.idle_since.or(Some(now)),
            _ => None,
        };
    }

    /// A step is done, all of whose rows were of the promised lane and in which so many tokens were sampled.
    pub fn stepped(&mut self, seconds: f64, generated: u32) {
        self.meter.observe(seconds, generated);
    }

    /// A step is done.
    pub fn completed(&mut self, plan: &StepPlan, results: &[RowResult], seconds: f64) {
        plan.observe_promised(results, seconds, &mut self.meter);
    }
}

/// On which terms an admitted request runs: admission's own, for a decision at its arrival.
pub fn agree(spec: &mut RequestSpec, decision: &Decision) {
    spec.terms.work = decision.features.work_tokens();
    match (decision.verdict, decision.bound_ms) {
        (Verdict::BestEffort, _) => {
            spec.terms.lane = Lane::BestEffort;
            spec.terms.drop_at = spec.terms.due;
        }
        // Judged by the whole milliseconds that are told.
        (Verdict::Promised, Ok(bound_ms)) => {
            spec.terms.due = spec.arrival + Duration::from_millis(bound_ms.ceil() as u64);
        }
        _ => {}
    }
}
