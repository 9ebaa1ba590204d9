//! One daemon without actors: the capacity cap, the wait queue, the pool and the scheduler, called in the
//! order in which the actors call them. The only file of the twin that knows `logic`'s moving parts.

use std::sync::Arc;
use std::time::Duration;

use cadenced::ids::{RequestId, TokenId};
use cadenced::logic::admission::{
    AdmissionPolicy, CapacityOnly, EngineSnapshot, RetryAfter, Verdict,
};
use cadenced::logic::capacity::{Capacity, Reservation};
use cadenced::logic::kv::{KvPool, blocks_for};
use cadenced::logic::request::{FinishReason, Outcome, RequestSpec};
use cadenced::logic::scheduler::step::{RowResult, StepPlan};
use cadenced::logic::scheduler::{Scheduler, Sequence};
use cadenced::logic::time::Timestamp;
use cadenced::logic::wait_queue::WaitQueue;

use super::cost::Composition;
use super::rung::Rung;

/// Of a body, for the cap in bytes.
const BYTES_PER_TOKEN: usize = 4;

/// What travels with a request.
struct Job {
    /// Tokens that the model samples before the answer ends by itself, the end token included.
    answer_tokens: u32,
    _reservation: Reservation,
}

/// What a turn came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// A step is in flight.
    Step(Composition),
    /// There is nothing to do, until a request comes or this moment does.
    Idle { ask_again: Option<Timestamp> },
}

/// Steps to come that are all alike: every running sequence decodes, and none ends, starts or leaves.
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
    scheduler: Scheduler<Job>,
    plan: StepPlan,
    results: Vec<RowResult>,
    left: Vec<(Sequence<Job>, Outcome)>,
    /// The pool was short at the last reservation and nothing has come back since.
    starved: bool,
    /// A running request was cancelled and has not been swept out.
    cancelled: bool,
    kv_cells: u32,
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
            pool: KvPool::new(rung.kv_cells, rung.sequences),
            scheduler: Scheduler::new(rung.policy, rung.limits),
            plan: StepPlan::default(),
            results: Vec::new(),
            left: Vec::new(),
            starved: false,
            cancelled: false,
            kv_cells: rung.kv_cells,
        }
    }

    /// A request arrives: it waits from now on, or is refused.
    ///
    /// # Errors
    /// How it ended at once.
    pub fn submit(&mut self, spec: RequestSpec, answer_tokens: u32) -> Result<(), Outcome> {
        let bytes = spec.prompt_tokens as usize * BYTES_PER_TOKEN;
        let mut reservation = self.capacity.reserve(bytes).map_err(|_| Outcome::Refused)?;
        if spec.prompt_tokens >= self.kv_cells {
            return Err(Outcome::Invalid);
        }
        let spec = RequestSpec {
            max_tokens: spec.max_tokens.min(self.kv_cells - spec.prompt_tokens),
            ..spec
        };
        let snapshot = EngineSnapshot {
            waiting: self.queue.len(),
            running: self.scheduler.running().len(),
            tokens_remaining: self.queue.max_tokens_waiting() + self.scheduler.tokens_remaining(),
            // Only for Retry-After, and nobody here comes back.
            tokens_per_s: None,
        };
        match self.admission.decide(&spec, &mut reservation, &snapshot) {
            Verdict::Admit => {
                let job = Job {
                    answer_tokens,
                    _reservation: reservation,
                };
                self.queue.push(spec, job).map_err(|_| Outcome::Refused)
            }
            Verdict::Refuse { .. } => Err(Outcome::Refused),
        }
    }

    /// Its client has left.
    pub fn cancel(&mut self, id: RequestId) {
        if self.queue.remove(id).is_none() {
            self.cancelled |= self.scheduler.end(id, Outcome::Cancelled);
        }
    }

    /// sweep → take → reserve → plan. `ended` hears of each request that leaves, how, and how many tokens
    /// it had.
    pub fn turn(&mut self, now: Timestamp, mut ended: impl FnMut(RequestId, Outcome, u32)) -> Turn {
        self.scheduler.sweep(&mut self.left);
        self.cancelled = false;
        for (sequence, outcome) in self.left.drain(..) {
            ended(sequence.spec.id, outcome, sequence.num_generated);
        }
        let ask_again = self.take(now);
        self.scheduler.plan(&mut self.plan);
        if self.plan.is_empty() {
            return Turn::Idle { ask_again };
        }
        Turn::Step(Composition::of(&self.plan))
    }

    /// Takes from the queue what may start and has room, no further than the first that has none.
    fn take(&mut self, now: Timestamp) -> Option<Timestamp> {
        let rule = self.scheduler.take_rule().filter(|_| !self.starved)?;
        let (n, ask_again) = self.queue.ready(rule, now);
        for _ in 0..n {
            let (spec, job) = self.queue.pop()?;
            match self.pool.reserve(blocks_for(spec.cells_max())) {
                Some(lease) => self.scheduler.admit(spec, lease, 0, job),
                None => {
                    self.starved = true;
                    self.queue.put_back(spec, job);
                    break;
                }
            }
        }
        ask_again
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
            if s.num_generated == 1 {
                first_token(s.spec.id);
            }
            let at_end = s.num_generated >= s.payload.answer_tokens;
            at_end.then_some(Outcome::Finished(FinishReason::Stop))
        };
        let done = self.scheduler.complete(&self.plan, &self.results, deliver);
        debug_assert!(done.is_ok(), "the plan in hand is the step in flight");
        for seq in &self.plan.removals {
            self.starved = false;
            let was_held = self.pool.release(*seq);
            debug_assert!(was_held, "{seq:?} released twice");
        }
    }

    /// The steps from here on in which nothing can change. To be asked between [`Self::complete`] and
    /// [`Self::turn`]. What runs holds all the memory that it will need; a pool that grows with the answers
    /// would end them where one needs a block.
    pub fn steady(&self) -> Option<Steady> {
        let may_take = self.scheduler.take_rule().is_some() && !self.starved;
        if self.cancelled || (may_take && !self.queue.is_empty()) {
            return None;
        }
        let mut steps = u32::MAX;
        let mut first = Composition::default();
        for s in self.scheduler.running() {
            if s.num_computed < s.spec.prompt_tokens {
                return None;
            }
            let length = s.payload.answer_tokens.min(s.spec.max_tokens);
            // The step with the last token is one in which something changes.
            steps = steps.min(length.saturating_sub(s.num_generated).saturating_sub(1));
            first.decode_seqs += 1;
            first.cached_tokens += u64::from(s.spec.prompt_tokens + s.num_generated - 1);
        }
        (first.decode_seqs > 0 && steps > 0).then_some(Steady {
            steps,
            first,
            ends_with_an_arrival: may_take,
        })
    }

    /// Takes `steps` of the steady steps at once.
    pub fn skip(&mut self, steps: u32) {
        for s in self.scheduler.running_mut() {
            s.num_generated += steps;
        }
    }

    /// Whether it holds nothing: no request, no seat, no block, no sequence.
    pub fn is_empty(&self) -> bool {
        let kv = self.pool.usage();
        self.queue.is_empty()
            && self.scheduler.running().is_empty()
            && self.capacity.held().requests == 0
            && kv.blocks_free == kv.blocks_total
            && kv.sequences_free == kv.sequences_total
    }
}
