//! One daemon without actors: the capacity cap, admission by a bound where there is one, and the engine's logic
//! behind them, called in the order in which the actors call them. With `job` and `admission`, the only file of the
//! twin that knows `logic`'s moving parts.

use std::sync::Arc;
use std::time::Duration;

use cadenced::ids::{RequestId, TokenId};
use cadenced::logic::admission::{CapacityCap, EngineSnapshot, RetryAfter, Verdict};
use cadenced::logic::capacity::Capacity;
use cadenced::logic::conformal::controller::Controller;
use cadenced::logic::conformal::policy::Decision;
use cadenced::logic::kv::BLOCK_TOKENS;
use cadenced::logic::prefix::PrefixCache;
use cadenced::logic::request::{FinishReason, Lane, Outcome, RequestSpec};
use cadenced::logic::scheduler::step::RowResult;
use cadenced::logic::scheduler::{Scheduler, Sequence};
use cadenced::logic::time::Timestamp;
use cadenced::logic::turn::Turn;
use cadenced::logic::turn::engine::Engine;
use cadenced::logic::wait_queue::WaitQueue;

use super::admission::{Admission, Admitted};
use super::cost::{Composition, PS_PER_US};
use super::job::Job;
use super::rung::Rung;
use super::text::Text;

/// Of a body, for the cap in bytes.
pub const BYTES_PER_TOKEN: usize = 4;

/// What a turn came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planned {
    /// A step is in flight.
    Step(Composition),
    /// There is nothing to do, until a request comes or this moment does.
    Idle { ask_again: Option<Timestamp> },
}

/// Steps to come that are all alike: every running sequence decodes, and none ends, starts, leaves or needs memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steady {
    pub steps: u32,
    pub first: Composition,
    /// A request that arrives is taken at the next turn; else it waits, whatever it is.
    pub ends_with_an_arrival: bool,
}

/// A request at the door.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Entry {
    /// How it ended at once; `None` if it waits from now on.
    pub refused: Option<Outcome>,
    /// `None` if it did not come so far, or nobody decides.
    pub decision: Option<Decision>,
}

/// A request that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Departure {
    pub id: RequestId,
    pub outcome: Outcome,
    pub generated: u32,
    /// `None` if it never started.
    pub cached_tokens: Option<u32>,
}

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
    max_output_tokens: u32,
}

impl Daemon {
    /// An empty daemon; `controller` decides behind its capacity cap.
    pub fn new(rung: &Rung, controller: Option<Controller>) -> Self {
        Self {
            capacity: Capacity::new(rung.capacity),
            admission: controller.map(Admission::new),
            cap: CapacityCap {
                retry: RetryAfter {
                    cap: Duration::from_secs(60),
                },
            },
            engine: Engine::new(
                Turn::new(Scheduler::new(rung.policy, rung.limits), rung.caches()),
                WaitQueue::new(rung.order, rung.capacity.requests.saturating_add(1))
                    .counting_prefill(|spec, job: &Job| job.prefill_tokens(spec)),
                rung.config.kv_pool(),
                PrefixCache::new(rung.config.prefix.eviction),
                false,
            ),
            caches: rung.caches(),
            results: Vec::new(),
            cancelled: false,
            max_output_tokens: rung.config.limits.max_output_tokens,
        }
    }

    /// A request arrives: it waits from now on, or is refused.
    pub fn submit(&mut self, spec: RequestSpec, text: Text, answer_tokens: u32) -> Entry {
        let refused = |outcome, decision| Entry {
            refused: Some(outcome),
            decision,
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
        let spec = RequestSpec {
            max_tokens: spec.max_tokens.min(room),
            ..spec
        };
        let scheduler = self.engine.turn.scheduler();
        let snapshot = EngineSnapshot {
            tokens_remaining: self.engine.queue.max_tokens_waiting(Lane::Promised)
                + scheduler.tokens_remaining(Lane::Promised),
            // Only for Retry-After, and nobody here comes back.
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
            let (request, decision) = admission.decide(&spec, &job, &self.engine, slo);
            if let Some(outcome) = decision.verdict.refusal() {
                return refused(outcome, Some(decision));
            }
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
        if let (Some(admission), Some((request, decision))) = (&mut self.admission, &decided) {
            admission.admitted(request, decision);
        }
        Entry {
            refused: None,
            decision,
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
            None => self.cancelled |= self.engine.turn.cancel(id),
        }
    }

    /// A turn, up to its step. `ended` hears of each request that leaves. `token_time_us` is what the last step took.
    pub fn turn(
        &mut self,
        now: Timestamp,
        token_time_us: f64,
        mut ended: impl FnMut(Departure),
    ) -> Planned {
        self.cancelled = false;
        let admission = &mut self.admission;
        let leaves = |spec: &RequestSpec, outcome, job: Job| {
            if let (Some(admission), Some(admitted)) = (admission.as_mut(), &job.admitted) {
                admission.ended(admitted, outcome, now);
            }
            ended(Departure {
                id: spec.id,
                outcome,
                generated: job.generated,
                cached_tokens: job.cached_tokens,
            });
        };
        let ask_again = self.engine.turn(now, token_time_us, leaves);
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

    /// The step in flight is done, and took so long. `first_token` hears of each answer that has begun.
    pub fn complete(&mut self, step_ps: u64, mut first_token: impl FnMut(RequestId)) {
        self.results.clear();
        // Which token it is matters to nobody.
        let result = |samples| match samples {
            Some(_) => RowResult::Sampled(TokenId(0)),
            None => RowResult::Advanced,
        };
        let rows = self.engine.plan.rows.iter();
        self.results.extend(rows.map(|r| result(r.work.samples())));
        let deliver = |s: &mut Sequence<Job>, _: TokenId| {
            s.payload.generated = s.num_generated;
            if s.num_generated == 1 {
                first_token(s.spec.id);
            }
            let at_end = s.num_generated >= s.payload.answer_tokens;
            at_end.then_some(Outcome::Finished(FinishReason::Stop))
        };
        let done = self
            .engine
            .turn
            .complete(&self.engine.plan, &self.results, deliver);
        assert!(done.is_ok(), "the plan in hand is the step in flight");
        let sampled = |r: &&RowResult| matches!(r, RowResult::Sampled(_));
        // A step that only gives memory back says nothing of the pace.
        if let Some(admission) = &mut self.admission
            && !self.results.is_empty()
        {
            let generated = self.results.iter().filter(sampled).count();
            admission.stepped(seconds(step_ps), generated as u32);
        }
    }

    /// The steps from here on in which nothing can change. To be asked between [`Self::complete`] and
    /// [`Self::turn`].
    pub fn steady(&self) -> Option<Steady> {
        let may_take = self.engine.turn.scheduler().take_rule(0).is_some();
        // What waits for memory or for another's prefill is looked at in every turn.
        let looked_at =
            self.engine.turn.deferred() > 0 || (may_take && !self.engine.queue.is_empty());
        if self.cancelled || looked_at || self.engine.plan.emptied().next().is_some() {
            return None;
        }
        let mut steps = u32::MAX;
        let mut first = Composition::default();
        for s in self.engine.turn.scheduler().running() {
            let whole_blocks =
                s.num_computed.min(s.spec.prompt_tokens) / BLOCK_TOKENS * BLOCK_TOKENS;
            if s.prefilling() || (self.caches && whole_blocks > s.in_cache) {
                return None;
            }
            let length = s.payload.answer_tokens.min(s.spec.max_tokens);
            // The step with the last token is one in which something changes, as is one that needs a block.
            let to_the_end = length.saturating_sub(s.num_generated).saturating_sub(1);
            let room = s.lease.capacity().saturating_sub(s.num_computed);
            steps = steps.min(to_the_end).min(room);
            first = first + Composition::of_tokens(s.num_computed, 1);
        }
        (first.decode_seqs > 0 && steps > 0).then_some(Steady {
            steps,
            first,
            ends_with_an_arrival: may_take,
        })
    }

    /// Takes steady steps at once, each of which takes what `steps_ps` says of it.
    pub fn skip(&mut self, steps_ps: impl ExactSizeIterator<Item = u64>) {
        let steps = steps_ps.len() as u32;
        for s in self.engine.turn.running_mut() {
            s.num_computed += steps;
            s.num_generated += steps;
            s.payload.generated = s.num_generated;
        }
        if let Some(admission) = &mut self.admission {
            let generated = self.engine.turn.scheduler().running().len() as u32;
            steps_ps.for_each(|ps| admission.stepped(seconds(ps), generated));
        }
    }

    /// Whether it holds nothing but what is cached: no request, no seat, no block, no sequence, no lock.
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty() && self.capacity.held().requests == 0
    }
}

fn seconds(ps: u64) -> f64 {
    ps as f64 / PS_PER_US as f64 * 1e-6
}
