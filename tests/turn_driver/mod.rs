//! The turn with its wait queue, books and cache, driven by calls: all that the engine decides, and no model.
//!
//! It keeps no history and checks nothing itself, so that millions of steps take seconds and what is allocated
//! is the logic's.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use cadenced::ids::{RequestId, TokenId};
use cadenced::logic::kv::KvPool;
use cadenced::logic::prefix::{EvictionOrder, PrefixCache};
use cadenced::logic::request::{FinishReason, Outcome, RequestSpec};
use cadenced::logic::scheduler::policy::{Policy, StepOrder};
use cadenced::logic::scheduler::step::{RowResult, StepPlan};
use cadenced::logic::scheduler::{Scheduler, Sequence, StepLimits};
use cadenced::logic::time::Timestamp;
use cadenced::logic::turn::{Ask, Payload, Turn};
use cadenced::logic::wait_queue::{QueueOrder, WaitQueue};

/// A request's prompt and reply; it ends by itself after `says` tokens.
pub struct Talk {
    pub prompt: Arc<[TokenId]>,
    pub generated: Vec<TokenId>,
    /// A hash of the context up to each token of it.
    pub hashes: Vec<u64>,
    pub says: u32,
    /// Set when the client leaves.
    pub left: Rc<Cell<bool>>,
}

impl Talk {
    pub fn new(prompt: Arc<[TokenId]>, says: u32) -> Self {
        let mut hashes = Vec::with_capacity(prompt.len() + says as usize);
        for token in &*prompt {
            hashes.push(mix(hashes.last().copied().unwrap_or(0), *token));
        }
        Self {
            prompt,
            generated: Vec::with_capacity(says as usize),
            hashes,
            says,
            left: Rc::default(),
        }
    }

    fn hear(&mut self, token: TokenId) {
        self.hashes
            .push(mix(self.hashes.last().copied().unwrap_or(0), token));
        self.generated.push(token);
    }
}

impl Payload for Talk {
    fn context(&self) -> Arc<[TokenId]> {
        self.prompt.iter().chain(&self.generated).copied().collect()
    }

    fn generated(&self) -> u32 {
        self.generated.len() as u32
    }

    fn is_abandoned(&self) -> bool {
        self.left.get()
    }

    fn cacheable(&self) -> bool {
        true
    }

    fn started(&mut self, _: u32) {}
}

/// The hash of a context that goes on with `token`.
fn mix(context: u64, token: TokenId) -> u64 {
    (context ^ token.0 as u64)
        .wrapping_add(0x9E37_79B9_7F4A_7C15)
        .wrapping_mul(0xBF58_476D_1CE4_E5B9)
        .rotate_left(23)
}

/// The token that follows a context with this hash: whoever reads another's cells says something else.
pub fn next_token(context: u64) -> TokenId {
    TokenId((context >> 40) as i32)
}

/// What was seen to happen.
#[derive(Clone, Copy, Default, Debug)]
pub struct Seen {
    pub steps: u64,
    pub hits: u64,
    pub deferred: u64,
    pub preempted: u64,
    pub evicted: u64,
    pub starved: u64,
}

/// See the module's text.
pub struct Driver {
    pub queue: WaitQueue<Talk>,
    pub pool: KvPool,
    pub tree: PrefixCache,
    pub turn: Turn<Talk>,
    pub plan: StepPlan,
    pub now: Timestamp,
    pub seen: Seen,
}

impl Driver {
    /// An engine at rest with so many seats.
    pub fn new(max_running: usize, limits: StepLimits, pool: KvPool, caching: bool) -> Self {
        let order = StepOrder::DecodeFirst;
        let policy = Policy::Continuous { max_running, order };
        Self {
            queue: WaitQueue::new(QueueOrder::Deadline, usize::MAX),
            turn: Turn::new(Scheduler::new(policy, limits), caching),
            tree: PrefixCache::new(EvictionOrder::Lru),
            plan: StepPlan::default(),
            now: Timestamp(0),
            seen: Seen::default(),
            pool,
        }
    }

    pub fn submit(&mut self, id: u64, talk: Talk, max_tokens: u32, deadline: Timestamp) {
        let spec = RequestSpec {
            id: RequestId(id),
            arrival: self.now,
            deadline,
            prompt_tokens: talk.prompt.len() as u32,
            max_tokens,
            preempted: false,
        };
        assert!(self.queue.push(spec, talk).is_ok());
    }

    /// Carries out what the turn has left to be done; `end` hears of each request that ends.
    pub fn carry_out(&mut self, end: &mut impl FnMut(RequestId, Outcome, Talk)) {
        let effects = &mut self.turn.effects;
        for (s, outcome) in effects.ended.drain(..) {
            end(s.spec.id, outcome, s.payload);
        }
        for (spec, talk) in effects.abandoned.drain(..) {
            end(spec.id, Outcome::Cancelled, talk);
        }
        let preempted = std::mem::take(&mut effects.preempted);
        self.seen.preempted += preempted;
        self.seen.starved += effects.put_back.len() as u64 - preempted;
        for (spec, talk) in effects.put_back.drain(..) {
            self.queue.put_back(spec, talk);
        }
        for node in effects.unlock.drain(..) {
            self.tree.unlock(node).expect("a lock that is known");
        }
        for entry in effects.books.drain(..) {
            let agrees = entry.enter(&mut self.pool);
            assert!(agrees, "the books disagree with {entry:?}");
        }
    }

    /// Up to the sending of a step; false when there is nothing to do.
    pub fn begin(&mut self, end: &mut impl FnMut(RequestId, Outcome, Talk)) -> bool {
        let mut ask = self.turn.begin(self.now, 1.0);
        loop {
            self.carry_out(end);
            ask = match ask {
                Ask::Insert(insertions) => {
                    let tree = &mut self.tree;
                    let answers: Vec<_> = insertions.iter().map(|i| i.into_tree(tree)).collect();
                    self.turn.inserted(&answers)
                }
                Ask::Take(rule) => {
                    let (n, _) = self.queue.ready(rule, self.now);
                    let taken = (0..n).filter_map(|_| self.queue.pop()).collect();
                    self.turn.taken(taken)
                }
                Ask::Match(queries) => {
                    let tree = &mut self.tree;
                    let hits: Vec<_> = queries.iter().map(|q| q.ask(tree)).collect();
                    self.seen.hits += hits.iter().flatten().count() as u64;
                    let ask = self.turn.matched(&hits);
                    self.seen.deferred += self.turn.deferred() as u64;
                    ask
                }
                Ask::Reserve(reserve) => {
                    let reserved = reserve.from(&mut self.pool);
                    self.turn.reserved(reserved)
                }
                Ask::Evict(want) => {
                    let given = want.from(&mut self.tree);
                    self.seen.evicted += given.evicted.len() as u64;
                    self.turn.evicted(&given)
                }
                Ask::Run => break,
            };
        }
        self.turn.plan(&mut self.plan);
        !self.plan.is_empty()
    }

    /// The step's results.
    pub fn finish(&mut self, results: &[RowResult]) {
        let deliver = |s: &mut Sequence<Talk>, token: TokenId| {
            s.payload.hear(token);
            match s.payload.is_abandoned() {
                true => Some(Outcome::Cancelled),
                false => (s.num_generated >= s.payload.says)
                    .then_some(Outcome::Finished(FinishReason::Stop)),
            }
        };
        let completed = self.turn.complete(&self.plan, results, deliver);
        completed.expect("the step in flight");
        self.seen.steps += 1;
    }
}
