//! One turn of the engine, from a finished step to the next one, as a conversation.
//!
//! A turn needs answers from the wait queue, the prefix cache and the memory's books. [`Turn`] holds what the
//! scheduler knows and says what to ask next ([`Ask`]); whoever drives it brings the answer back. The scheduler
//! actor does so with messages, the simulator with calls, and both make the same decisions.
//!
//! ```text
//! begin ─ Insert ─► inserted ─ Take ─► taken ─ Match ─► matched ─ Reserve ─► reserved ─ Run
//!                      ▲                                             ▲           │ short of memory
//!                      │                                             └─ evicted ◄─ Evict
//!                      └────────────────────────── preempt ◄─────────────┘ in vain
//! ```
//!
//! What needs no answer is left in [`Effects`], to be carried out before the question is asked. Running
//! requests always come before newcomers, and what runs before what is cached: memory is taken from the cache
//! first, then from the running request with the most slack, never from the oldest.
//!
//! The best-effort lane stands behind all that: it yields seats and memory to running requests and newcomers of
//! the other lane, takes neither from them, and is waited for by none of them.

mod ask;
mod departures;
pub mod engine;
mod memory;
mod newcomers;

pub use ask::{
    Ask, BookEntry, Effects, Evict, Given, Inserted, Insertion, Payload, Query, Reserve, Reserved,
};

use super::kv::BLOCK_TOKENS;
use super::prefix::Match;
use super::request::{Lane, Outcome, RequestSpec};
use super::scheduler::step::{RowResult, StepPlan};
use super::scheduler::{Growth, Scheduler, Sequence, StaleStep};
use super::time::Timestamp;
use crate::ids::{RequestId, SeqId, TokenId};

/// A request that may start in this turn.
#[derive(Debug)]
struct Candidate<P> {
    spec: RequestSpec,
    payload: P,
    hit: Option<Match>,
}

impl<P> Candidate<P> {
    fn cached(&self) -> u32 {
        self.hit.map_or(0, |h| h.tokens)
    }
}

/// Where a turn goes on after an insertion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum After {
    Take,
    Match,
    Reserve,
}

/// See the module's text.
#[derive(Debug)]
pub struct Turn<P> {
    scheduler: Scheduler<P>,
    /// Whether there is a prefix cache to be asked.
    caching: bool,
    after: After,
    candidates: Vec<Candidate<P>>,
    /// What the books are asked to make room for; away while they are asked.
    growth: Vec<Growth>,
    /// Newcomers whose prompt begins with what another is just computing: they wait for that. None of the
    /// best-effort lane, so that their seats are spoken for.
    deferred: Vec<(RequestSpec, P)>,
    /// Sequences that have left and what of them the cache may keep, in the order in which it was asked.
    departing: Vec<Insertion>,
    /// Running sequences whose progress the cache was told of, in that order.
    progressed: Vec<SeqId>,
    /// Newcomers found no memory, and none has come back since.
    starved: bool,
    /// The same of newcomers of the best-effort lane.
    lane_starved: bool,
    now: Timestamp,
    pub effects: Effects<P>,
}

impl<P: Payload> Turn<P> {
    /// An engine at rest.
    #[must_use]
    pub fn new(scheduler: Scheduler<P>, caching: bool) -> Self {
        Self {
            scheduler,
            caching,
            after: After::Take,
            candidates: Vec::new(),
            growth: Vec::new(),
            deferred: Vec::new(),
            departing: Vec::new(),
            progressed: Vec::new(),
            starved: false,
            lane_starved: false,
            now: Timestamp(0),
            effects: Effects::default(),
        }
    }

    /// What runs.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler<P> {
        &self.scheduler
    }

    /// The same, to mark its payloads.
    pub fn running_mut(&mut self) -> &mut [Sequence<P>] {
        self.scheduler.running_mut()
    }

    /// Requests of a lane that run or are deferred.
    #[must_use]
    pub fn running(&self, lane: Lane) -> usize {
        let deferred = self.deferred.iter();
        let deferred = deferred.filter(|(spec, _)| spec.terms.lane == lane);
        self.scheduler.of(lane).count() + deferred.count()
    }

    /// Newcomers that wait for another's prefill, beside those that run.
    #[must_use]
    pub fn deferred(&self) -> usize {
        self.deferred.len()
    }

    /// Output tokens that those of a lane who run or are deferred may still ask for, and tokens that they have to
    /// compute before.
    #[must_use]
    pub fn tokens_remaining(&self, lane: Lane) -> (u64, u64) {
        let deferred = self.deferred.iter();
        let of_lane = deferred.filter(|(spec, _)| spec.terms.lane == lane);
        of_lane.fold(
            (
                self.scheduler.tokens_remaining(lane),
                self.scheduler.prefill_remaining(lane),
            ),
            |(output, prefill), (spec, payload)| {
                let generated = payload.generated();
                (
                    output + u64::from(spec.max_tokens - generated),
                    prefill + u64::from(spec.prompt_tokens + generated),
                )
            },
        )
    }

    /// Ends a request whose client has left. It leaves in the next turn. False if it is not here.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        if let Some(i) = self.deferred.iter().position(|(spec, _)| spec.id == id) {
            let deferred = self.deferred.remove(i);
            self.effects.abandoned.push(deferred);
            return true;
        }
        self.scheduler.end(id, Outcome::Cancelled)
    }

    /// A request that runs or is deferred, for its terms to be changed: before a turn begins, not within one.
    pub fn find_mut(&mut self, id: RequestId) -> Option<(&mut RequestSpec, &mut P)> {
        let deferred = self.deferred.iter_mut().map(|(spec, p)| (spec, p));
        let running = self.scheduler.running_mut().iter_mut();
        deferred
            .chain(running.map(|s| (&mut s.spec, &mut s.payload)))
            .find(|(spec, _)| spec.id == id)
    }

    /// Begins a turn. `step_us` is what the last step took.
    pub fn begin(&mut self, now: Timestamp, step_us: f64) -> Ask {
        self.now = now;
        self.scheduler.look(now, step_us);
        self.sweep();
        self.insert(After::Take)
    }

    /// Lets what has ended go. Whether there was anything.
    fn sweep(&mut self) -> bool {
        let mut ended = std::mem::take(&mut self.effects.ended);
        let before = ended.len();
        self.scheduler.sweep(&mut ended);
        for (s, _) in &ended[before..] {
            self.depart(s);
        }
        let any = ended.len() > before;
        self.effects.ended = ended;
        any
    }

    fn memory_came_back(&mut self) {
        self.starved = false;
        self.lane_starved = false;
    }

    /// Fills `plan` with the next step. An empty plan is no step.
    pub fn plan(&mut self, plan: &mut StepPlan) {
        self.scheduler.plan(plan);
        if !self.deferred.is_empty() {
            plan.ahead = 0;
        }
    }

    /// Instead of a turn: the step whose results have been taken in was followed by another.
    pub fn followed(&mut self) {
        self.scheduler.followed();
    }

    /// Whether a turn has something to do for those that are here.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.scheduler.any_ended() || !self.effects.abandoned.is_empty()
    }

    /// Whether somebody could join.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.scheduler.take_rule(self.deferred.len()).is_some()
    }

    /// Takes a step's results in; see [`Scheduler::complete`].
    ///
    /// # Errors
    /// [`StaleStep`] when no such step is in flight; nothing is changed then.
    pub fn complete(
        &mut self,
        plan: &StepPlan,
        results: &[RowResult],
        deliver: impl FnMut(&mut Sequence<P>, TokenId) -> Option<Outcome>,
    ) -> Result<(), StaleStep> {
        self.scheduler.complete(plan, results, deliver)?;
        for seq in plan.emptied() {
            self.memory_came_back();
            self.effects.books.push(BookEntry::Reusable { seq });
        }
        Ok(())
    }
}

/// `tokens` rounded down to whole blocks.
fn whole_blocks(tokens: u32) -> u32 {
    tokens / BLOCK_TOKENS * BLOCK_TOKENS
}

#[cfg(test)]
mod lane_tests;
#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;
#[cfg(test)]
pub mod world;
