//! One daemon without actors: the capacity cap, admission by a bound where there is one, and the engine's logic
//! behind them, called in the order in which the actors call them. With `job` and `admission`, the only part of the
//! twin that knows `logic`'s moving parts.
//!
//! Where there is a best-effort lane, the pace of the steps matters, and which of them a turn has begun: there a step
//! follows another without a turn where the daemon's runner has it so. Elsewhere that changes nothing, and steps that
//! are all alike are taken at once (`steady`).

mod report;
mod steady;

use std::sync::Arc;
use std::time::Duration;

use cadenced::ids::{RequestId, TokenId};
use cadenced::logic::admission::{CapacityCap, EngineSnapshot, RetryAfter, Verdict};
use cadenced::logic::capacity::Capacity;
use cadenced::logic::conformal::controller::Controller;
use cadenced::logic::conformal::policy::{Fallback, Verdict as Assessed};
use cadenced::logic::prefix::PrefixCache;
use cadenced::logic::request::{FinishReason, Lane, Outcome, RequestSpec};
use cadenced::logic::scheduler::step::RowResult;
use cadenced::logic::scheduler::{Scheduler, Sequence};
use cadenced::logic::time::Timestamp;
use cadenced::logic::turn::Turn;
use cadenced::logic::turn::engine::Engine;
use cadenced::logic::wait_queue::WaitQueue;

use super::admission::{self, Admission, Admitted};
use super::cost::{Composition, PS_PER_US};
use super::job::Job;
use super::rung::Rung;
use super::text::Text;
use report::depart;
pub use report::{Departure, Entry, Planned};

/// Of a body, for the cap in bytes.
pub const BYTES_PER_TOKEN: usize = 4;

/// See the module's text.
pub struct Daemon {
    capacity: Arc<Capacity>,
    cap: CapacityCap,
    admission: Option<Admission>,
    engine: Engine<Job>,
    caches: bool,
    results: Vec<RowResult>,
    /// A running request was cancelled and has not been swept out.
    cancelled: bool,
    /// There is a best-effort lane.
    lane: bool,
    /// No step may follow the one in flight without a turn.
    interrupted: bool,
    /// What the last step took that computed something.
    step_us: f64,
    max_output_tokens: u32,
    /// Whether to work out when clients should come again whose bound does not fit now.
    pub tells_when: bool,
}

impl Daemon {
    /// An empty daemon; `controller` decides behind its capacity cap.
    pub fn new(rung: &Rung, controller: Option<Controller>) -> Self {
        let capacities = rung.capacities();
        let lane = |c: &Controller| c.settings().unfit == Fallback::BestEffort;
        let requests = capacities.map(|c| c.requests);
        Self {
            capacity: Capacity::of_lanes(capacities),
            lane: controller.as_ref().is_some_and(lane),
            admission: controller.map(Admission::new),
            cap: CapacityCap {
                retry: RetryAfter {
                    cap: Duration::from_secs(60),
                },
            },
            engine: Engine::new(
                Turn::new(Scheduler::new(rung.policy, rung.limits), rung.caches()),
                WaitQueue::new(
                    rung.order,
                    requests.into_iter().fold(1, usize::saturating_add),
                )
                .counting_prefill(|spec, job: &Job| job.prefill_tokens(spec)),
                rung.config.kv_pool(),
                PrefixCache::new(rung.config.prefix.eviction),
                false,
            ),
            caches: rung.caches(),
            results: Vec::new(),
            cancelled: false,
            interrupted: false,
            step_us: 0.0,
            max_output_tokens: rung.config.limits.max_output_tokens,
            tells_when: false,
        }
    }

    /// A request arrives: it waits from now on, or is refused.
    pub fn submit(&mut self, spec: RequestSpec, text: Text, answer_tokens: u32) -> Entry {
        let refused = |outcome, decision| Entry {
            refused: Some(outcome),
            decision,
            retry_after_s: None,
        };
        let bytes = spec.prompt_tokens as usize * BYTES_PER_TOKEN;
        let Ok(mut reservation) = self.capacity.reserve(bytes) else {
            return refused(Outcome::Refused, None);
        };
        let context = self.engine.pool.sequence_tokens_max();
        if spec.prompt_tokens >= context {
            return refused(Outcome::Invalid, None);
        }
        let room = (context - spec.prompt_tokens).min(self.max_output_tokens);
        let mut spec = RequestSpec {
            max_tokens: spec.max_tokens.min(room),
            ..spec
        };
        let scheduler = self.engine.turn.scheduler();
        let snapshot = EngineSnapshot {
            tokens_remaining: self.engine.queue.max_tokens_waiting(Lane::Promised)
                + scheduler.tokens_remaining(Lane::Promised),
            // Only for Retry-After, and who is turned away by the cap does not come again here.
            tokens_per_s: None,
        };
        if self.cap.decide(&spec, &mut reservation, &snapshot) != Verdict::Admit {
            return refused(Outcome::Refused, None);
        }
        let text = self.caches.then_some(text);
        let mut job = Job::new(&spec, text, answer_tokens, reservation);
        let mut decided = None;
        if let Some(admission) = &mut self.admission {
            let slo =
                (spec.deadline != Timestamp::NEVER).then(|| spec.deadline.since(spec.arrival));
            let (request, mut decision) = admission.decide(&spec, &job, &self.engine, slo);
            if decision.verdict == Assessed::BestEffort && !job.moves_to_best_effort() {
                // The lane is full: then as if there were none.
                decision.verdict = decision.assessed;
            }
            if let Some(outcome) = decision.verdict.refusal() {
                let helps = self.tells_when && outcome == Outcome::Refused;
                let when = || admission.retry_after_s(&request, &self.engine, spec.arrival);
                return Entry {
                    retry_after_s: helps.then(when),
                    ..refused(outcome, Some(decision))
                };
            }
            admission::agree(&mut spec, &decision);
            job.admitted = Some(Admitted {
                decision,
                at: spec.arrival,
                prefill_tokens: request.context.new_prefill_tokens(),
            });
            decided = Some((request, decision));
        }
        let decision = decided.map(|(_, decision)| decision);
        if self.engine.queue.push(spec, job).is_err() {
            return refused(Outcome::Refused, decision);
        }
        self.interrupted |= self.engine.turn.has_room();
        if let (Some(admission), Some((request, decision))) = (&mut self.admission, &decided) {
            admission.admitted(request, decision);
        }
        Entry {
            refused: None,
            decision,
            retry_after_s: None,
        }
    }

    /// Its client has left.
    pub fn cancel(&mut self, id: RequestId, now: Timestamp) {
        match self.engine.queue.remove(id) {
            Some((_, job)) => {
                if let (Some(admission), Some(admitted)) = (&mut self.admission, &job.admitted) {
                    admission.ended(admitted, Outcome::Cancelled, now);
                }
            }
            None if self.engine.turn.cancel(id) => {
                self.cancelled = true;
                self.interrupted = true;
            }
            None => {}
        }
    }

    /// When the next of those that wait is to be given up.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.engine.queue.next_expiry()
    }

    /// Gives up those that wait whose time has come. `ended` hears of each.
    pub fn expire(&mut self, now: Timestamp, mut ended: impl FnMut(Departure)) {
        while let Some((spec, job)) = self.engine.queue.take_expired(now) {
            let outcome = spec.given_up(now, job.generated);
            let outcome = outcome.unwrap_or(Outcome::Expired);
            ended(depart(&mut self.admission, &spec, outcome, job, now));
        }
    }

    /// A turn, up to its step. `ended` hears of each request that leaves.
    pub fn turn(&mut self, now: Timestamp, mut ended: impl FnMut(Departure)) -> Planned {
        (self.cancelled, self.interrupted) = (false, false);
        let admission = &mut self.admission;
        let leaves = |spec: &RequestSpec, outcome, job: Job| {
            ended(depart(admission, spec, outcome, job, now));
        };
        let ask_again = self.engine.turn(now, self.step_us, leaves);
        if let Some(admission) = &mut self.admission {
            admission.planned(&self.engine, now);
        }
        if self.engine.plan.is_empty() {
            return Planned::Idle { ask_again };
        }
        Planned::Step(Composition::of(&self.engine.plan))
    }

    /// Whether what it decides depends on what it was like at that moment.
    pub fn watches(&self) -> bool {
        self.admission.is_some()
    }

    /// The step in flight is done at `now`, and took so long. `first_token` hears of each answer that has begun. Gives the
    /// step that follows without a turn, if one does.
    pub fn complete(
        &mut self,
        now: Timestamp,
        step_ps: u64,
        mut first_token: impl FnMut(RequestId),
    ) -> Option<Composition> {
        self.results.clear();
        // Which token it is matters to nobody.
        let result = |samples| match samples {
            Some(_) => RowResult::Sampled(TokenId(0)),
            None => RowResult::Advanced,
        };
        let rows = self.engine.plan.rows.iter();
        self.results.extend(rows.map(|r| result(r.work.samples())));
        let mut any_end = false;
        let deliver = |s: &mut Sequence<Job>, _: TokenId| {
            s.payload.generated = s.num_generated;
            if s.num_generated == 1 {
                first_token(s.spec.id);
            }
            let at_end = s.num_generated >= s.payload.answer_tokens;
            any_end |= at_end;
            at_end.then_some(Outcome::Finished(FinishReason::Stop))
        };
        let done = self
            .engine
            .turn
            .complete(&self.engine.plan, &self.results, deliver);
        assert!(done.is_ok(), "the plan in hand is the step in flight");
        // A step that only gives memory back says nothing of the pace.
        if !self.results.is_empty() {
            let seconds = self.took(step_ps);
            if let Some(admission) = &mut self.admission {
                admission.completed(&self.engine.plan, &self.results, seconds);
            }
        }
        if !self.lane || self.interrupted || any_end || !self.engine.follow(&self.results) {
            return None;
        }
        if let Some(admission) = &mut self.admission {
            admission.planned(&self.engine, now);
        }
        // Whoever has to leave does so after the step that has begun.
        self.interrupted = self.engine.turn.is_due();
        Some(Composition::of(&self.engine.plan))
    }

    /// A step took so long; in seconds.
    fn took(&mut self, step_ps: u64) -> f64 {
        let seconds = Duration::from_nanos(step_ps * 1000 / PS_PER_US).as_secs_f64();
        self.step_us = seconds * 1e6;
        seconds
    }

    /// A step took so long, in which each sequence, none of them of the best-effort lane, has sampled a token.
    fn stepped(&mut self, step_ps: u64, generated: u32) {
        let seconds = self.took(step_ps);
        if let Some(admission) = &mut self.admission {
            admission.stepped(seconds, generated);
        }
    }

    /// Whether it holds nothing but what is cached: no request, no seat, no block, no sequence, no lock.
    pub fn is_empty(&self) -> bool {
        let held = |lane| self.capacity.held_by(lane).requests;
        self.engine.is_empty() && Lane::ALL.into_iter().all(|lane| held(lane) == 0)
    }
}
