//! The engine's logic with talking requests, and no model. It keeps no history and checks nothing itself, so that
//! millions of steps take seconds and what is allocated is the logic's.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use cadenced::ids::{RequestId, TokenId};
use cadenced::logic::kv::KvPool;
use cadenced::logic::prefix::{EvictionOrder, PrefixCache};
use cadenced::logic::request::{FinishReason, Outcome, RequestSpec, Terms};
use cadenced::logic::scheduler::policy::{Policy, StepOrder};
use cadenced::logic::scheduler::step::RowResult;
use cadenced::logic::scheduler::{Scheduler, Sequence, StepLimits};
use cadenced::logic::time::Timestamp;
use cadenced::logic::turn::engine::Engine;
use cadenced::logic::turn::{Payload, Turn};
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

/// See the module's text.
pub struct Driver {
    pub engine: Engine<Talk>,
    pub now: Timestamp,
    /// What the last step took.
    pub step_us: f64,
    pub steps: u64,
    /// Steps that followed another without a turn.
    pub followed: u64,
    /// The step in flight is one of them.
    follows: bool,
}

impl Driver {
    /// An engine at rest with so many seats.
    pub fn new(max_running: usize, limits: StepLimits, pool: KvPool, caching: bool) -> Self {
        let order = StepOrder::DecodeFirst;
        let policy = Policy::Continuous { max_running, order };
        Self {
            engine: Engine::new(
                Turn::new(Scheduler::new(policy, limits), caching),
                WaitQueue::new(QueueOrder::Deadline, usize::MAX),
                pool,
                PrefixCache::new(EvictionOrder::Lru),
                false,
            ),
            now: Timestamp(0),
            step_us: 1.0,
            steps: 0,
            followed: 0,
            follows: false,
        }
    }

    pub fn submit(
        &mut self,
        id: u64,
        talk: Talk,
        max_tokens: u32,
        deadline: Timestamp,
        terms: Terms,
    ) {
        let spec = RequestSpec {
            id: RequestId(id),
            arrival: self.now,
            deadline,
            prompt_tokens: talk.prompt.len() as u32,
            max_tokens,
            preempted: false,
            terms,
        };
        assert!(self.engine.queue.push(spec, talk).is_ok());
    }

    /// Up to the sending of a step; false when there is nothing to do. `end` hears of each request that ends.
    pub fn begin(&mut self, end: &mut impl FnMut(RequestId, Outcome, Talk)) -> bool {
        if std::mem::take(&mut self.follows) {
            return true;
        }
        let leaves = |spec: &RequestSpec, outcome, talk| end(spec.id, outcome, talk);
        self.engine.turn(self.now, self.step_us, leaves);
        !self.engine.plan.is_empty()
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
        // The runner decides before the results are taken in, and is interrupted by what was due before.
        let uninterrupted = !self.engine.turn.is_due();
        let completed = self
            .engine
            .turn
            .complete(&self.engine.plan, results, deliver);
        completed.expect("the step in flight");
        self.steps += 1;
        self.follows = uninterrupted && self.engine.follow(results);
        self.followed += u64::from(self.follows);
    }
}
