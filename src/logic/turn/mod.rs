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

mod ask;

pub use ask::{
    Ask, BookEntry, Effects, Evict, Given, Inserted, Insertion, Payload, Query, Reserve, Reserved,
};

use super::kv::{BLOCK_TOKENS, Demand, SharedPrefix, Shortfall};
use super::prefix::Match;
use super::request::{Outcome, RequestSpec};
use super::scheduler::step::{MemoryOp, RowResult, StepPlan};
use super::scheduler::{Growth, Scheduler, Sequence, StaleStep, Start};
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
    /// Newcomers whose prompt begins with what another is just computing: they wait for that.
    deferred: Vec<(RequestSpec, P)>,
    /// Sequences that have left and what of them the cache may keep, in the order in which it was asked.
    departing: Vec<Insertion>,
    /// Running sequences whose progress the cache was told of, in that order.
    progressed: Vec<SeqId>,
    /// Newcomers found no memory, and none has come back since.
    starved: bool,
    /// Memory was taken from the cache for newcomers in this turn.
    evicted: bool,
    now: Timestamp,
    token_time_us: f64,
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
            evicted: false,
            now: Timestamp(0),
            token_time_us: 0.0,
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

    /// Newcomers that wait for another's prefill, beside those that run.
    #[must_use]
    pub fn deferred(&self) -> usize {
        self.deferred.len()
    }

    /// Output tokens that those who run or are deferred may still ask for, and tokens that they have to compute
    /// before.
    #[must_use]
    pub fn tokens_remaining(&self) -> (u64, u64) {
        let deferred = self.deferred.iter();
        deferred.fold(
            (
                self.scheduler.tokens_remaining(),
                self.scheduler.prefill_remaining(),
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

    /// Begins a turn. `token_time_us` is what a token of a reply takes at the present pace.
    pub fn begin(&mut self, now: Timestamp, token_time_us: f64) -> Ask {
        self.now = now;
        self.token_time_us = token_time_us;
        self.evicted = false;
        let mut ended = std::mem::take(&mut self.effects.ended);
        let before = ended.len();
        self.scheduler.sweep(&mut ended);
        for (s, _) in &ended[before..] {
            self.depart(s);
        }
        self.effects.ended = ended;
        self.insert(After::Take)
    }

    /// Lets a sequence go: what the cache may keep of it is asked next, the rest is given back.
    fn depart(&mut self, s: &Sequence<P>) {
        self.starved = false;
        let departure = Insertion {
            seq: s.lease.seq,
            tokens: s.payload.context(),
            len: whole_blocks(s.num_computed),
            computed: s.num_computed,
            lock: s.lock,
            leaves: true,
        };
        if self.caching && departure.len > 0 && s.payload.cacheable() {
            self.departing.push(departure);
        } else {
            self.effects.unlock.extend(s.lock);
            self.give_back(s.lease.seq);
        }
    }

    fn give_back(&mut self, seq: SeqId) {
        self.scheduler.push_op(MemoryOp::Remove { seq, from: 0 });
        self.effects.books.push(BookEntry::Retire { seq });
    }

    /// Tells the cache what there is to share: also of prompts that are not complete, so that others can join.
    fn insert(&mut self, after: After) -> Ask {
        self.after = after;
        self.progressed.clear();
        let mut insertions = Vec::new();
        if self.caching {
            for s in self.scheduler.running() {
                let len = whole_blocks(s.num_computed.min(s.spec.prompt_tokens));
                if len > s.in_cache && s.payload.cacheable() {
                    self.progressed.push(s.lease.seq);
                    insertions.push(Insertion {
                        seq: s.lease.seq,
                        tokens: s.payload.context(),
                        len,
                        computed: s.num_computed,
                        lock: s.lock,
                        leaves: false,
                    });
                }
            }
            insertions.extend(self.departing.iter().cloned());
        }
        if insertions.is_empty() {
            self.go_on()
        } else {
            Ask::Insert(insertions)
        }
    }

    fn go_on(&mut self) -> Ask {
        match self.after {
            After::Take => self.take(),
            After::Reserve => self.reserve(),
        }
    }

    /// The cache's answers, in the order of the insertions.
    pub fn inserted(&mut self, answers: &[Inserted]) -> Ask {
        let (progress, departures) = answers.split_at(self.progressed.len());
        let progressed = std::mem::take(&mut self.progressed);
        let departing = std::mem::take(&mut self.departing);
        for (seq, answer) in progressed.iter().zip(progress) {
            let running = self.scheduler.running_mut();
            if let Some(s) = running.iter_mut().find(|s| s.lease.seq == *seq) {
                s.in_cache = whole_blocks(s.num_computed.min(s.spec.prompt_tokens));
                s.lock = answer.lock.or(s.lock);
            }
            self.retire_redundant(answer.redundant, &departing);
        }
        for (i, (d, answer)) in departing.iter().zip(departures).enumerate() {
            if answer.owner {
                if d.computed > d.len {
                    let (seq, from) = (d.seq, d.len);
                    self.scheduler.push_op(MemoryOp::Remove { seq, from });
                }
                self.effects.books.push(BookEntry::Cache {
                    seq: d.seq,
                    computed: d.computed,
                    tokens: d.len,
                });
            } else {
                self.give_back(d.seq);
            }
            self.retire_redundant(answer.redundant, &departing[i + 1..]);
        }
        self.go_on()
    }

    /// An id whose cells a longer one holds as well. If it runs or is about to be answered for, it is no
    /// business of the cache's.
    fn retire_redundant(&mut self, seq: Option<SeqId>, departing: &[Insertion]) {
        let Some(seq) = seq else { return };
        let running = self.scheduler.running().iter().any(|s| s.lease.seq == seq);
        if !running && departing.iter().all(|d| d.seq != seq) {
            self.give_back(seq);
        }
    }

    fn take(&mut self) -> Ask {
        if self.starved {
            return self.reserve();
        }
        match self.scheduler.take_rule(self.deferred.len()) {
            Some(rule) => Ask::Take(rule),
            None => self.taken(Vec::new()),
        }
    }

    /// The wait queue's answer.
    pub fn taken(&mut self, requests: Vec<(RequestSpec, P)>) -> Ask {
        debug_assert!(self.candidates.is_empty());
        for (spec, payload) in self.deferred.drain(..).chain(requests) {
            if payload.is_abandoned() {
                self.effects.abandoned.push((spec, payload));
            } else {
                let hit = None;
                self.candidates.push(Candidate { spec, payload, hit });
            }
        }
        if self.caching && !self.candidates.is_empty() {
            let query = |c: &Candidate<P>| Query {
                tokens: c.payload.context(),
                cacheable: c.payload.cacheable(),
            };
            return Ask::Match(self.candidates.iter().map(query).collect());
        }
        self.reserve()
    }

    /// The cache's answer. Who would compute what another is computing waits for it instead.
    pub fn matched(&mut self, hits: &[Option<Match>]) -> Ask {
        let mut kept: Vec<Candidate<P>> = Vec::with_capacity(self.candidates.len());
        for (mut c, hit) in std::mem::take(&mut self.candidates).into_iter().zip(hits) {
            c.hit = *hit;
            let prompt = c.payload.context();
            let ahead = |other: &P, computed: u32| {
                let common = common_blocks(&prompt, &other.context());
                common > c.cached() && common > computed
            };
            let waits = c.payload.cacheable()
                && (self.scheduler.running().iter().any(|s| {
                    s.prefilling() && s.payload.cacheable() && ahead(&s.payload, s.num_computed)
                }) || kept
                    .iter()
                    .any(|k| k.payload.cacheable() && ahead(&k.payload, k.cached())));
            if waits {
                self.effects.unlock.extend(c.hit.map(|h| h.node));
                self.deferred.push((c.spec, c.payload));
            } else {
                kept.push(c);
            }
        }
        self.candidates = kept;
        self.reserve()
    }

    fn reserve(&mut self) -> Ask {
        self.scheduler.growth(&mut self.growth);
        let demand = |c: &Candidate<P>| Demand {
            prefix: c.hit.map(|h| SharedPrefix {
                seq: h.seq,
                tokens: h.tokens,
            }),
            prompt_tokens: c.spec.prompt_tokens + c.payload.generated(),
            total_max: c.spec.cells_max(),
        };
        let demands: Vec<Demand> = self.candidates.iter().map(demand).collect();
        if self.growth.is_empty() && demands.is_empty() {
            return Ask::Run;
        }
        let growth = std::mem::take(&mut self.growth);
        Ask::Reserve(Reserve { growth, demands })
    }

    /// The books' answer.
    pub fn reserved(&mut self, answer: Reserved) -> Ask {
        for &growth in &answer.growth[..answer.grown] {
            self.scheduler.grown(growth);
        }
        self.growth = answer.growth;
        if let Some(short) = answer.growth_short {
            // Nobody joins while those who run can't go on.
            self.give_up();
            return if self.caching {
                self.evict(short)
            } else {
                self.preempt()
            };
        }
        let rest = self.candidates.split_off(answer.leases.len());
        for (mut c, lease) in std::mem::replace(&mut self.candidates, rest)
            .into_iter()
            .zip(&answer.leases)
        {
            if let Some(hit) = c.hit {
                self.scheduler.push_op(MemoryOp::Copy {
                    from: hit.seq,
                    to: lease.seq,
                    tokens: hit.tokens,
                });
            }
            let start = Start {
                lease: *lease,
                cached: c.cached(),
                lock: c.hit.map(|h| h.node),
                generated: c.payload.generated(),
            };
            if self.caching && c.payload.cacheable() && !c.spec.preempted {
                self.effects.lookup_tokens += u64::from(c.spec.prompt_tokens);
                self.effects.hit_tokens += u64::from(start.cached);
            }
            c.payload.started(start.cached);
            let (id, abandoned) = (c.spec.id, c.payload.is_abandoned());
            self.scheduler.admit(c.spec, start, c.payload);
            if abandoned {
                // Its client left while this turn was under way.
                self.scheduler.end(id, Outcome::Cancelled);
            }
        }
        match answer.short {
            None => Ask::Run,
            Some(short) if self.caching && !self.evicted => {
                self.evicted = true;
                self.evict(short)
            }
            Some(_) => self.give_up_some(),
        }
    }

    /// Newcomers find no memory and nothing more can be had. While others run that is a matter of time; if
    /// nothing runs, what the newcomers themselves have locked is in the way.
    fn give_up_some(&mut self) -> Ask {
        if self.scheduler.running().is_empty() {
            let mut rest = self.candidates.split_off(1.min(self.candidates.len()));
            if !rest.is_empty() {
                std::mem::swap(&mut self.candidates, &mut rest);
                self.give_up();
                self.candidates = rest;
                return self.reserve();
            }
            if let Some(hit) = self.candidates.first_mut().and_then(|c| c.hit.take()) {
                self.effects.unlock.push(hit.node);
                self.evicted = false;
                return self.reserve();
            }
        }
        self.give_up();
        Ask::Run
    }

    /// Candidates that find no memory go back to where they came from.
    fn give_up(&mut self) {
        self.starved |= !self.candidates.is_empty();
        for c in self.candidates.drain(..) {
            self.effects.unlock.extend(c.hit.map(|h| h.node));
            self.effects.put_back.push((c.spec, c.payload));
        }
    }

    fn evict(&self, short: Shortfall) -> Ask {
        let hits = self.candidates.iter().filter_map(|c| c.hit);
        Ask::Evict(Evict {
            blocks: short.blocks,
            sequences: short.sequences,
            held: hits.map(|h| h.node).collect(),
        })
    }

    /// The cache's answer: what it gave up.
    pub fn evicted(&mut self, given: &Given) -> Ask {
        let hits = self.candidates.iter_mut().filter_map(|c| c.hit.as_mut());
        for (hit, seq) in hits.zip(&given.held) {
            hit.seq = *seq;
        }
        for e in &given.evicted {
            if e.keep_tokens == 0 {
                self.give_back(e.seq);
            } else {
                let (seq, from) = (e.seq, e.keep_tokens);
                self.scheduler.push_op(MemoryOp::Remove { seq, from });
                let tokens = from;
                self.effects.books.push(BookEntry::Truncate { seq, tokens });
            }
        }
        if !given.evicted.is_empty() {
            self.reserve()
        } else if self.candidates.is_empty() {
            self.preempt()
        } else {
            self.give_up_some()
        }
    }

    /// Takes the memory of the running request that can best wait.
    fn preempt(&mut self) -> Ask {
        let Some(s) = self.scheduler.preempt(self.now, self.token_time_us) else {
            debug_assert!(false, "the oldest request fits the pool by itself");
            return Ask::Run;
        };
        self.depart(&s);
        self.effects.preempted += 1;
        self.effects.put_back.push((s.spec, s.payload));
        self.insert(After::Reserve)
    }

    /// Fills `plan` with the next step. An empty plan is no step.
    pub fn plan(&mut self, plan: &mut StepPlan) {
        self.scheduler.plan(plan);
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
            self.starved = false;
            self.effects.books.push(BookEntry::Reusable { seq });
        }
        Ok(())
    }
}

/// `tokens` rounded down to whole blocks.
fn whole_blocks(tokens: u32) -> u32 {
    tokens / BLOCK_TOKENS * BLOCK_TOKENS
}

/// The whole blocks that `a` has in common with `b` at its beginning, in tokens, short of its last token.
fn common_blocks(a: &[TokenId], b: &[TokenId]) -> u32 {
    let n = BLOCK_TOKENS as usize;
    let usable = &a[..a.len().saturating_sub(1)];
    let same = usable
        .chunks_exact(n)
        .zip(b.chunks_exact(n))
        .take_while(|(x, y)| x == y);
    same.count() as u32 * BLOCK_TOKENS
}

#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;
#[cfg(test)]
pub mod world;
