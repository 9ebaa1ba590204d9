//! One daemon without actors: the capacity cap, the wait queue, the turn with its books and its prefix cache, called
//! in the order in which the actors call them. With `job`, the only file of the twin that knows `logic`'s moving
//! parts.

use std::sync::Arc;
use std::time::Duration;

use cadenced::ids::{RequestId, TokenId};
use cadenced::logic::admission::{
    AdmissionPolicy, CapacityOnly, EngineSnapshot, RetryAfter, Verdict,
};
use cadenced::logic::capacity::Capacity;
use cadenced::logic::kv::{BLOCK_TOKENS, KvPool};
use cadenced::logic::prefix::PrefixCache;
use cadenced::logic::request::{FinishReason, Outcome, RequestSpec};
use cadenced::logic::scheduler::step::{RowResult, StepPlan};
use cadenced::logic::scheduler::{Scheduler, Sequence};
use cadenced::logic::time::Timestamp;
use cadenced::logic::turn::{Ask, Turn};
use cadenced::logic::wait_queue::WaitQueue;

use super::cost::Composition;
use super::job::Job;
use super::rung::Rung;
use super::text::Text;

/// Of a body, for the cap in bytes.
const BYTES_PER_TOKEN: usize = 4;

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
    admission: CapacityOnly,
    queue: WaitQueue<Job>,
    pool: KvPool,
    tree: PrefixCache,
    turn: Turn<Job>,
    caches: bool,
    plan: StepPlan,
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
            admission: CapacityOnly {
                retry: RetryAfter {
                    cap: Duration::from_secs(60),
                },
            },
            queue: WaitQueue::new(rung.order, rung.capacity.requests.saturating_add(1)),
            pool: rung.config.kv_pool(),
            tree: PrefixCache::new(rung.config.prefix.eviction),
            turn: Turn::new(Scheduler::new(rung.policy, rung.limits), rung.caches()),
            caches: rung.caches(),
            plan: StepPlan::default(),
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
        let context = self.pool.sequence_tokens_max();
        if spec.prompt_tokens >= context {
            return Err(Outcome::Invalid);
        }
        let room = (context - spec.prompt_tokens).min(self.max_output_tokens);
        let spec = RequestSpec {
            max_tokens: spec.max_tokens.min(room),
            ..spec
        };
        let scheduler = self.turn.scheduler();
        let snapshot = EngineSnapshot {
            waiting: self.queue.len(),
            running: scheduler.running().len() + self.turn.deferred(),
            tokens_remaining: self.queue.max_tokens_waiting() + scheduler.tokens_remaining(),
            // Only for Retry-After, and nobody here comes back.
            tokens_per_s: None,
        };
        match self.admission.decide(&spec, &mut reservation, &snapshot) {
            Verdict::Admit => {
                let text = self.caches.then_some(text);
                let job = Job::new(&spec, text, answer_tokens, reservation);
                self.queue.push(spec, job).map_err(|_| Outcome::Refused)
            }
            Verdict::Refuse { .. } => Err(Outcome::Refused),
        }
    }

    /// Its client has left.
    pub fn cancel(&mut self, id: RequestId) {
        if self.queue.remove(id).is_none() {
            self.cancelled |= self.turn.cancel(id);
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
        let mut ask_again = None;
        let mut ask = self.turn.begin(now, token_time_us);
        self.cancelled = false;
        loop {
            self.carry_out(&mut ended);
            ask = match ask {
                Ask::Insert(insertions) => {
                    let tree = &mut self.tree;
                    let answers: Vec<_> = insertions.iter().map(|i| i.into_tree(tree)).collect();
                    self.turn.inserted(&answers)
                }
                Ask::Take(rule) => {
                    let (n, again) = self.queue.ready(rule, now);
                    ask_again = again;
                    let taken = (0..n).filter_map(|_| self.queue.pop()).collect();
                    self.turn.taken(taken)
                }
                Ask::Match(queries) => {
                    let tree = &mut self.tree;
                    let hits: Vec<_> = queries.iter().map(|q| q.ask(tree)).collect();
                    self.turn.matched(&hits)
                }
                Ask::Reserve(reserve) => {
                    let reserved = reserve.from(&mut self.pool);
                    self.turn.reserved(reserved)
                }
                Ask::Evict(want) => {
                    let given = want.from(&mut self.tree);
                    self.turn.evicted(&given)
                }
                Ask::Run => break,
            };
        }
        self.turn.plan(&mut self.plan);
        if self.plan.is_empty() {
            return Planned::Idle { ask_again };
        }
        Planned::Step(Composition::of(&self.plan))
    }

    /// What the turn has left to be done.
    fn carry_out(&mut self, ended: &mut impl FnMut(RequestId, Outcome, u32)) {
        let effects = &mut self.turn.effects;
        for (s, outcome) in effects.ended.drain(..) {
            ended(s.spec.id, outcome, s.num_generated);
        }
        for (spec, job) in effects.abandoned.drain(..) {
            ended(spec.id, Outcome::Cancelled, job.generated);
        }
        for (spec, job) in effects.put_back.drain(..) {
            self.queue.put_back(spec, job);
        }
        for node in effects.unlock.drain(..) {
            let known = self.tree.unlock(node);
            debug_assert!(known.is_ok(), "a lock outlived its node");
        }
        for entry in effects.books.drain(..) {
            let agrees = entry.enter(&mut self.pool);
            debug_assert!(agrees, "the books disagree with {entry:?}");
        }
        effects.preempted = 0;
    }

    /// The step in flight is done. `first_token` hears of each answer that has begun.
    pub fn complete(&mut self, mut first_token: impl FnMut(RequestId)) {
        self.results.clear();
        // Which token it is matters to nobody.
        let result = |samples| match samples {
            Some(_) => RowResult::Sampled(TokenId(0)),
            None => RowResult::Advanced,
        };
        let rows = self.plan.rows.iter();
        self.results.extend(rows.map(|r| result(r.work.samples())));
        let deliver = |s: &mut Sequence<Job>, _: TokenId| {
            s.payload.generated = s.num_generated;
            if s.num_generated == 1 {
                first_token(s.spec.id);
            }
            let at_end = s.num_generated >= s.payload.answer_tokens;
            at_end.then_some(Outcome::Finished(FinishReason::Stop))
        };
        let done = self.turn.complete(&self.plan, &self.results, deliver);
        debug_assert!(done.is_ok(), "the plan in hand is the step in flight");
    }

    /// The steps from here on in which nothing can change. To be asked between [`Self::complete`] and
    /// [`Self::turn`].
    pub fn steady(&self) -> Option<Steady> {
        let may_take = self.turn.scheduler().take_rule(0).is_some();
        // What waits for memory or for another's prefill is looked at in every turn.
        let looked_at = self.turn.deferred() > 0 || (may_take && !self.queue.is_empty());
        if self.cancelled || looked_at || self.plan.emptied().next().is_some() {
            return None;
        }
        let mut steps = u32::MAX;
        let mut first = Composition::default();
        for s in self.turn.scheduler().running() {
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
        for s in self.turn.running_mut() {
            s.num_computed += steps;
            s.num_generated += steps;
            s.payload.generated = s.num_generated;
        }
    }

    /// Whether it holds nothing but what is cached: no request, no seat, no block, no sequence, no lock.
    pub fn is_empty(&self) -> bool {
        let (kv, prefixes) = (self.pool.usage(), self.tree.usage());
        self.queue.is_empty()
            && self.turn.scheduler().running().is_empty()
            && self.turn.deferred() == 0
            && self.capacity.held().requests == 0
            && kv.blocks_free + kv.blocks_cached == kv.blocks_total
            && kv.sequences_free + kv.sequences_cached == kv.sequences_total
            && prefixes.tokens_locked == 0
    }
}
