//! One daemon without actors: the capacity cap, and the engine's logic behind it, called in the order in which the
//! actors call them. With `job`, the only file of the twin that knows `logic`'s moving
//! parts.

use std::sync::Arc;
use std::time::Duration;

use cadenced::ids::{RequestId, TokenId};
use cadenced::logic::admission::{CapacityCap, EngineSnapshot, RetryAfter, Verdict};
use cadenced::logic::capacity::Capacity;
use cadenced::logic::kv::BLOCK_TOKENS;
use cadenced::logic::prefix::PrefixCache;
use cadenced::logic::request::{FinishReason, Lane, Outcome, RequestSpec};
use cadenced::logic::scheduler::step::RowResult;
use cadenced::logic::scheduler::{Scheduler, Sequence};
use cadenced::logic::time::Timestamp;
use cadenced::logic::turn::Turn;
use cadenced::logic::turn::engine::Engine;
use cadenced::logic::wait_queue::WaitQueue;

use super::cost::Composition;
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

/// See the module's text.
pub struct Daemon {
    capacity: Arc<Capacity>,
    admission: CapacityCap,
    engine: Engine<Job>,
    caches: bool,
    results: Vec<RowResult>,
    /// A running request was cancelled and has not been swept out.
    cancelled: bool,
    max_output_tokens: u32,
}

impl Daemon {
    /// An empty daemon.
    pub fn new(rung: &Rung) -> Self {
        Self {
            capacity: Capacity::new(rung.capacity),
            admission: CapacityCap {
                retry: RetryAfter {
                    cap: Duration::from_secs(60),
                },
            },
            engine: Engine::new(
                Turn::new(Scheduler::new(rung.policy, rung.limits), rung.caches()),
                WaitQueue::new(rung.order, rung.capacity.requests.saturating_add(1)),
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
    ///
    /// # Errors
    /// How it ended at once.
    pub fn submit(
        &mut self,
        spec: RequestSpec,
        text: Text,
        answer_tokens: u32,
    ) -> Result<(), Outcome> {
        let bytes = spec.prompt_tokens as usize * BYTES_PER_TOKEN;
        let mut reservation = self.capacity.reserve(bytes).map_err(|_| Outcome::Refused)?;
        let context = self.engine.pool.sequence_tokens_max();
        if spec.prompt_tokens >= context {
            return Err(Outcome::Invalid);
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
        match self.admission.decide(&spec, &mut reservation, &snapshot) {
            Verdict::Admit => {
                let text = self.caches.then_some(text);
                let job = Job::new(&spec, text, answer_tokens, reservation);
                self.engine
                    .queue
                    .push(spec, job)
                    .map_err(|_| Outcome::Refused)
            }
            Verdict::Refuse { .. } => Err(Outcome::Refused),
        }
    }

    /// Its client has left.
    pub fn cancel(&mut self, id: RequestId) {
        if self.engine.queue.remove(id).is_none() {
            self.cancelled |= self.engine.turn.cancel(id);
        }
    }

    /// A turn, up to its step. `ended` hears of each request that leaves, how, and how many tokens it had.
    /// `token_time_us` is what the last step took.
    pub fn turn(
        &mut self,
        now: Timestamp,
        token_time_us: f64,
        mut ended: impl FnMut(RequestId, Outcome, u32),
    ) -> Planned {
        self.cancelled = false;
        let leaves = |spec: &RequestSpec, outcome, job: Job| ended(spec.id, outcome, job.generated);
        let ask_again = self.engine.turn(now, token_time_us, leaves);
        if self.engine.plan.is_empty() {
            return Planned::Idle { ask_again };
        }
        Planned::Step(Composition::of(&self.engine.plan))
    }

    /// The step in flight is done. `first_token` hears of each answer that has begun.
    pub fn complete(&mut self, mut first_token: impl FnMut(RequestId)) {
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
        debug_assert!(done.is_ok(), "the plan in hand is the step in flight");
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

    /// Takes `steps` of the steady steps at once.
    pub fn skip(&mut self, steps: u32) {
        for s in self.engine.turn.running_mut() {
            s.num_computed += steps;
            s.num_generated += steps;
            s.payload.generated = s.num_generated;
        }
    }

    /// Whether it holds nothing but what is cached: no request, no seat, no block, no sequence, no lock.
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty() && self.capacity.held().requests == 0
    }
}
