//! The turn with its wait queue, books and cache, its questions answered by calls: all that the engine decides,
//! without actors and without a model. For the simulator and for tests; the actors give the same answers with
//! messages.

use super::{Ask, Payload, Turn};
use crate::logic::kv::KvPool;
use crate::logic::prefix::PrefixCache;
use crate::logic::request::{Outcome, RequestSpec};
use crate::logic::scheduler::invariants::assert_plan;
use crate::logic::scheduler::step::{RowResult, StepPlan};
use crate::logic::time::Timestamp;
use crate::logic::wait_queue::WaitQueue;

/// What happened since the start.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Prompts whose beginning was cached.
    pub hits: u64,
    /// Times that a newcomer waited for another's prefill.
    pub deferred: u64,
    pub preempted: u64,
    /// Leaves that the cache gave up.
    pub evicted: u64,
    /// Times that a newcomer found no memory.
    pub starved: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct Engine<P> {
    pub turn: Turn<P>,
    pub queue: WaitQueue<P>,
    pub pool: KvPool,
    pub tree: PrefixCache,
    /// The step in flight, or the last one.
    pub plan: StepPlan,
    pub seen: Seen,
    /// Room for the plan that follows.
    next: StepPlan,
    check_invariants: bool,
}

impl<P: Payload> Engine<P> {
    /// An engine at rest. With `check_invariants` it asserts them after whatever it does.
    #[must_use]
    pub fn new(
        turn: Turn<P>,
        queue: WaitQueue<P>,
        pool: KvPool,
        tree: PrefixCache,
        check_invariants: bool,
    ) -> Self {
        Self {
            turn,
            queue,
            pool,
            tree,
            plan: StepPlan::default(),
            seen: Seen::default(),
            next: StepPlan::default(),
            check_invariants,
        }
    }

    /// A turn, up to its plan, which is empty when there is nothing to do; `ended` hears of each request that
    /// leaves. `step_us` is what the last step took. Gives when a batch that still fills is to be asked for again.
    pub fn turn(
        &mut self,
        now: Timestamp,
        step_us: f64,
        mut ended: impl FnMut(&RequestSpec, Outcome, P),
    ) -> Option<Timestamp> {
        while let Some((spec, payload)) = self.queue.take_expired(now) {
            if let Some(outcome) = spec.given_up(now, payload.generated()) {
                ended(&spec, outcome, payload);
            }
        }
        let ask = self.turn.begin(now, step_us);
        self.answer(ask, now, ended)
    }

    /// The rest of a turn that has been begun, from a question on; see [`Self::turn`].
    pub fn answer(
        &mut self,
        mut ask: Ask,
        now: Timestamp,
        mut ended: impl FnMut(&RequestSpec, Outcome, P),
    ) -> Option<Timestamp> {
        let mut ask_again = None;
        loop {
            self.carry_out(&mut ended);
            ask = match ask {
                Ask::Insert(insertions) => {
                    let tree = &mut self.tree;
                    let answers: Vec<_> = insertions.iter().map(|i| i.into_tree(tree)).collect();
                    self.turn.inserted(&answers)
                }
                Ask::Take(mut rule) => {
                    ask_again = self.queue.filling(&rule, now);
                    let mut taken = Vec::new();
                    while ask_again.is_none()
                        && let Some(owned) = self.queue.take(&mut rule)
                    {
                        taken.push(owned);
                    }
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
        if self.check_invariants {
            assert_plan(self.turn.scheduler(), &self.plan);
        }
        ask_again
    }

    /// Instead of a turn: the step that follows the one whose `results` have been taken in, as the runner begins
    /// it by itself. False, and nothing is changed, if none may.
    pub fn follow(&mut self, results: &[RowResult]) -> bool {
        if !self.plan.follow(results, &mut self.next) {
            return false;
        }
        std::mem::swap(&mut self.plan, &mut self.next);
        self.turn.followed();
        if self.check_invariants {
            assert_plan(self.turn.scheduler(), &self.plan);
        }
        true
    }

    /// What the turn has left to be done.
    fn carry_out(&mut self, ended: &mut impl FnMut(&RequestSpec, Outcome, P)) {
        let effects = &mut self.turn.effects;
        for (s, outcome) in effects.ended.drain(..) {
            ended(&s.spec, outcome, s.payload);
        }
        for (spec, payload) in effects.abandoned.drain(..) {
            ended(&spec, Outcome::Cancelled, payload);
        }
        let preempted = std::mem::take(&mut effects.preempted);
        self.seen.preempted += preempted;
        self.seen.starved += effects.put_back.len() as u64 - preempted;
        for (spec, payload) in effects.put_back.drain(..) {
            self.queue.put_back(spec, payload);
        }
        for node in effects.unlock.drain(..) {
            let known = self.tree.unlock(node).is_ok();
            assert!(known, "a lock outlived its node");
        }
        for entry in effects.books.drain(..) {
            let agrees = entry.enter(&mut self.pool);
            assert!(agrees, "the books disagree with {entry:?}");
        }
        if self.check_invariants {
            self.pool.assert_conserved();
            self.tree.assert_invariants();
        }
    }

    /// Whether it holds nothing but what is cached: no request, no block, no sequence, no lock.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let (kv, prefixes) = (self.pool.usage(), self.tree.usage());
        self.queue.is_empty()
            && self.turn.scheduler().running().is_empty()
            && self.turn.deferred() == 0
            && kv.blocks_free + kv.blocks_cached == kv.blocks_total
            && kv.sequences_free + kv.sequences_cached == kv.sequences_total
            && prefixes.tokens_locked == 0
    }
}
