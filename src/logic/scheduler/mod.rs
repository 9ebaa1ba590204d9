//! The scheduler: which sequences run, and what each of them does in the next step. See README.md beside
//! this file for the idea, the phases and the invariants.
//!
//! Planning a step and taking its results in are O(running sequences) and allocate nothing once the buffers
//! have grown.

pub mod invariants;
pub mod policy;
pub mod step;

use super::kv::{BLOCK_TOKENS, Lease, blocks_for};
use super::prefix::NodeHandle;
use super::request::{FinishReason, Outcome, RequestSpec};
use super::time::Timestamp;
use super::wait_queue::TakeRule;
use crate::ids::{RequestId, SeqId, StepId, TokenId};
use policy::{Policy, StepOrder};
use step::{MemoryOp, RowPlan, RowResult, StepPlan, Work};

/// Bounds of one step, in tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepLimits {
    /// Prompt tokens in a step; it bounds how long a newcomer may hold up those that run.
    pub prefill_budget: u32,
    /// Tokens in a step altogether, as the model's batch has room for.
    pub n_batch: u32,
}

/// A request that runs. `P` is what travels with it.
#[derive(Debug)]
pub struct Sequence<P> {
    pub spec: RequestSpec,
    pub lease: Lease,
    /// Tokens whose KV is computed, of the prompt and of the reply.
    pub num_computed: u32,
    /// Tokens of the reply so far.
    pub num_generated: u32,
    /// Where the prefill ends: after the prompt and what of the reply there was when it (re)started.
    prefill_end: u32,
    /// The part of the prefix cache that it uses, and how many of its tokens the cache knows of.
    pub lock: Option<NodeHandle>,
    pub in_cache: u32,
    /// Tokens that the memory's books know of.
    booked: u32,
    /// The token sampled last; it is fed to the model by the next decode.
    last_token: Option<TokenId>,
    /// Set when it has ended; it leaves at the next sweep.
    ended: Option<Outcome>,
    pub payload: P,
}

impl<P> Sequence<P> {
    /// Whether some of its prompt is still to be computed.
    #[must_use]
    pub fn prefilling(&self) -> bool {
        self.num_computed < self.prefill_end
    }
}

/// A running sequence's tokens, those of the next step included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    pub seq: SeqId,
    pub tokens: u32,
}

/// What a request starts with.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub lease: Lease,
    /// Leading tokens whose KV its sequence has already.
    pub cached: u32,
    /// The part of the prefix cache that they come from.
    pub lock: Option<NodeHandle>,
    /// Tokens of the reply that it had when it was preempted.
    pub generated: u32,
}

/// A result that belongs to no step in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaleStep;

/// See the module's text.
#[derive(Debug)]
pub struct Scheduler<P> {
    policy: Policy,
    limits: StepLimits,
    running: Vec<Sequence<P>>,
    /// What the next plan does to the model's memory before it computes.
    ops: Vec<MemoryOp>,
    last_step: StepId,
    in_flight: bool,
}

impl<P> Scheduler<P> {
    /// A scheduler with nothing to do.
    #[must_use]
    pub fn new(policy: Policy, limits: StepLimits) -> Self {
        Self {
            policy,
            limits,
            running: Vec::with_capacity(policy.max_running()),
            ops: Vec::new(),
            last_step: StepId::default(),
            in_flight: false,
        }
    }

    /// What to ask the wait queue for now, when `spoken_for` of the free seats are spoken for; `None` while no
    /// seat is free.
    #[must_use]
    pub fn take_rule(&self, spoken_for: usize) -> Option<TakeRule> {
        self.policy.take_rule(self.running.len() + spoken_for)
    }

    /// Lets a request run.
    pub fn admit(&mut self, spec: RequestSpec, start: Start, payload: P) {
        let prefill_end = spec.prompt_tokens + start.generated;
        assert!(
            start.cached < prefill_end,
            "the last token is always computed"
        );
        self.running.push(Sequence {
            spec,
            lease: start.lease,
            num_computed: start.cached,
            num_generated: start.generated,
            prefill_end,
            lock: start.lock,
            in_cache: start.cached,
            booked: start.cached,
            last_token: None,
            ended: None,
            payload,
        });
    }

    /// Puts an operation on the model's memory before all that later plans compute.
    pub fn push_op(&mut self, op: MemoryOp) {
        self.ops.push(op);
    }

    /// What the books must hear before the next step: who may write beyond what it has, and who has filled a
    /// block since they last heard of it.
    pub fn growth(&self, demands: &mut Vec<Growth>) {
        demands.clear();
        for s in &self.running {
            // Who has ended writes no more, but others may share what it has computed.
            let writes = !s.prefilling() && s.ended.is_none();
            let tokens = s.num_computed + u32::from(writes);
            if tokens > s.lease.capacity() || tokens / BLOCK_TOKENS > s.booked / BLOCK_TOKENS {
                let seq = s.lease.seq;
                demands.push(Growth { seq, tokens });
            }
        }
    }

    /// Takes in that there is room for `growth`.
    pub fn grown(&mut self, growth: Growth) {
        if let Some(s) = self.running.iter_mut().find(|s| s.lease.seq == growth.seq) {
            s.booked = growth.tokens;
            s.lease.blocks = s.lease.blocks.max(blocks_for(growth.tokens));
        }
    }

    /// Takes the running sequence with the most slack (time to its deadline beyond what it still needs) off
    /// its seat. Never the oldest request, so that something always finishes; `None` if there is no other.
    /// `token_time_us` is what a token of a reply takes at the present pace.
    pub fn preempt(&mut self, now: Timestamp, token_time_us: f64) -> Option<Sequence<P>> {
        assert!(!self.in_flight, "its row is being computed");
        let oldest = self
            .running
            .iter()
            .map(|s| (s.spec.arrival, s.spec.id))
            .min()?;
        let slack = |s: &Sequence<P>| {
            let left = f64::from(s.spec.max_tokens - s.num_generated) * token_time_us;
            s.spec.deadline.0.saturating_sub(now.0) as f64 - left
        };
        let (index, _) = self
            .running
            .iter()
            .enumerate()
            .filter(|(_, s)| s.ended.is_none() && (s.spec.arrival, s.spec.id) != oldest)
            // One that has yielded before does so again only if nobody else can; among equals the one that
            // came last has the least to lose.
            .max_by(|(i, a), (j, b)| {
                let fresh = b.spec.preempted.cmp(&a.spec.preempted);
                fresh.then(slack(a).total_cmp(&slack(b))).then(i.cmp(j))
            })?;
        let mut s = self.running.remove(index);
        s.spec.preempted = true;
        Some(s)
    }

    /// Ends a request before its time. It leaves at the next sweep, after the step in flight if there is one.
    /// False if it does not run here.
    pub fn end(&mut self, id: RequestId, outcome: Outcome) -> bool {
        let Some(s) = self.running.iter_mut().find(|s| s.spec.id == id) else {
            return false;
        };
        s.ended.get_or_insert(outcome);
        true
    }

    /// Moves what has ended out of the running set, into `left`. Not while a step is in flight: its rows
    /// belong to the running set as it was planned.
    pub fn sweep(&mut self, left: &mut Vec<(Sequence<P>, Outcome)>) {
        if self.in_flight {
            return;
        }
        let mut i = 0;
        while i < self.running.len() {
            match self.running[i].ended {
                None => i += 1,
                Some(outcome) => {
                    // `remove`, not `swap_remove`: the order of the running set is the order of admission.
                    left.push((self.running.remove(i), outcome));
                }
            }
        }
    }

    /// Fills `plan` with the next step and freezes it. An empty plan is no step.
    pub fn plan(&mut self, plan: &mut StepPlan) {
        assert!(!self.in_flight, "one step at a time");
        plan.rows.clear();
        plan.ops.clear();
        plan.ops.append(&mut self.ops);
        let prefill_due = self.running.iter().any(Sequence::prefilling);
        if !(prefill_due && self.policy.order() == StepOrder::PrefillFirst) {
            self.plan_decodes(plan);
        }
        if prefill_due {
            self.plan_prefills(plan);
        }
        if !plan.is_empty() {
            self.last_step = self.last_step.next();
            self.in_flight = true;
        }
        plan.id = self.last_step;
        plan.ahead = self.steps_ahead(plan);
    }

    /// Steps that may follow this one without anybody being asked: all rows decode, and nobody reaches its last
    /// token or the end of a block before the last of them. What the model's memory is rid of is reported first.
    fn steps_ahead(&self, plan: &StepPlan) -> u32 {
        if !plan.ops.is_empty() || self.running.iter().any(Sequence::prefilling) {
            return 0;
        }
        let of = |s: &Sequence<P>| {
            let tokens_left = s.spec.max_tokens - s.num_generated;
            let block_end = (s.booked / BLOCK_TOKENS + 1) * BLOCK_TOKENS - 1;
            let room = s.lease.capacity().min(block_end);
            tokens_left
                .min(room.saturating_sub(s.num_computed))
                .saturating_sub(1)
        };
        self.running.iter().map(of).min().unwrap_or(0)
    }

    /// The step that was in flight has been followed by another, see [`StepPlan::follow`]: that one is in flight.
    pub fn followed(&mut self) {
        debug_assert!(!self.in_flight, "its results come first");
        self.last_step = self.last_step.next();
        self.in_flight = true;
    }

    /// Whether somebody has ended who has not left.
    #[must_use]
    pub fn any_ended(&self) -> bool {
        self.running.iter().any(|s| s.ended.is_some())
    }

    fn plan_decodes(&self, plan: &mut StepPlan) {
        for (index, s) in self.running.iter().enumerate() {
            if let Some(token) = s.last_token.filter(|_| !s.prefilling()) {
                let work = Work::Decode {
                    position: s.num_computed,
                    token,
                    index: s.num_generated,
                };
                plan.rows.push(RowPlan {
                    index,
                    request: s.spec.id,
                    seq: s.lease.seq,
                    work,
                });
            }
        }
    }

    /// Chunks in order of admission, so that a long prompt advances under a flood of short ones.
    fn plan_prefills(&self, plan: &mut StepPlan) {
        let room = self.limits.n_batch.saturating_sub(plan.tokens());
        let mut budget = self.limits.prefill_budget.min(room);
        for (index, s) in self
            .running
            .iter()
            .enumerate()
            .filter(|(_, s)| s.prefilling())
        {
            if budget == 0 {
                break;
            }
            let rest = s.prefill_end - s.num_computed;
            let len = rest.min(budget);
            budget -= len;
            let work = Work::Prefill {
                start: s.num_computed,
                len,
                samples: (len == rest).then_some(s.num_generated),
            };
            plan.rows.push(RowPlan {
                index,
                request: s.spec.id,
                seq: s.lease.seq,
                work,
            });
        }
    }

    /// Takes the results of the step in flight in. `deliver` is told each token of a reply and says whether
    /// the reply ends with it.
    ///
    /// # Errors
    /// [`StaleStep`] when no such step is in flight; nothing is changed then.
    pub fn complete(
        &mut self,
        plan: &StepPlan,
        results: &[RowResult],
        mut deliver: impl FnMut(&mut Sequence<P>, TokenId) -> Option<Outcome>,
    ) -> Result<(), StaleStep> {
        if !self.in_flight || plan.id != self.last_step || plan.rows.len() != results.len() {
            return Err(StaleStep);
        }
        self.in_flight = false;
        for (row, result) in plan.rows.iter().zip(results) {
            // The running set only grows while a step is in flight, so the place still is the request's.
            let s = &mut self.running[row.index];
            assert_eq!(
                s.spec.id, row.request,
                "the running set was changed under a step"
            );
            if !matches!(result, RowResult::Failed(_)) {
                s.num_computed = row.work.position() + row.work.tokens();
            }
            match *result {
                RowResult::Advanced => {}
                RowResult::Failed(_) => {
                    s.ended.get_or_insert(Outcome::Failed);
                }
                RowResult::Sampled(token) => {
                    s.num_generated += 1;
                    s.last_token = Some(token);
                    if s.ended.is_none() {
                        s.ended = deliver(s, token).or_else(|| {
                            (s.num_generated >= s.spec.max_tokens)
                                .then_some(Outcome::Finished(FinishReason::Length))
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Sequences that run, in order of admission.
    #[must_use]
    pub fn running(&self) -> &[Sequence<P>] {
        &self.running
    }

    /// The same, to mark their payloads.
    pub fn running_mut(&mut self) -> &mut [Sequence<P>] {
        &mut self.running
    }

    /// Whether a step is being computed.
    #[must_use]
    pub fn in_flight(&self) -> bool {
        self.in_flight
    }

    /// The step planned last.
    #[must_use]
    pub fn last_step(&self) -> StepId {
        self.last_step
    }

    /// Output tokens that the running requests may still ask for.
    #[must_use]
    pub fn tokens_remaining(&self) -> u64 {
        self.running
            .iter()
            .map(|s| u64::from(s.spec.max_tokens - s.num_generated))
            .sum()
    }

    /// Tokens that the running requests have to compute before they go on with their replies.
    #[must_use]
    pub fn prefill_remaining(&self) -> u64 {
        self.running
            .iter()
            .map(|s| u64::from(s.prefill_end.saturating_sub(s.num_computed)))
            .sum()
    }

    /// The bounds that plans keep.
    #[must_use]
    pub fn limits(&self) -> StepLimits {
        self.limits
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
