//! The scheduler: which sequences run, and what each of them does in the next step. See README.md beside
//! this file for the idea, the phases and the invariants.
//!
//! Planning a step and taking its results in are O(running sequences) and allocate nothing once the buffers
//! have grown.

pub mod cost;
pub mod invariants;
pub mod lane;
mod plan;
pub mod policy;
mod preemption;
mod spare;
pub mod step;

use super::kv::{BLOCK_TOKENS, Lease, blocks_for};
use super::prefix::NodeHandle;
use super::request::{FinishReason, Lane, Outcome, RequestSpec};
use super::time::Timestamp;
use super::wait_queue::TakeRule;
use crate::ids::{RequestId, SeqId, StepId, TokenId};
use lane::{Allowance, LaneKeeper, Loads};
use plan::May;
use policy::{Policy, StepOrder};
use step::{MemoryOp, RowResult, StepPlan};

/// Bounds of one step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepLimits {
    /// Prompt tokens in a step; it bounds how long a newcomer may hold up those that run.
    pub prefill_budget: u32,
    /// Tokens in a step altogether, as the model's batch has room for.
    pub n_batch: u32,
    /// By which share of their length steps may get longer, on average, for what the best-effort lane computes in them.
    pub lane_slowdown: f64,
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
    lane: LaneKeeper,
    /// What the last step took.
    step_us: f64,
    /// What the step computed that was done since the pace was looked at.
    done: Option<Loads>,
    allowance: Allowance,
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
            lane: LaneKeeper::new(limits.lane_slowdown),
            step_us: 0.0,
            done: None,
            allowance: Allowance::ALL,
        }
    }

    /// What to ask the wait queue for now, when `spoken_for` of the seats are spoken for by requests outside of
    /// the best-effort lane; `None` while no seat is free or to be had from that lane.
    #[must_use]
    pub fn take_rule(&self, spoken_for: usize) -> Option<TakeRule> {
        let yielding = self.running.iter().filter(|s| s.spec.yields()).count();
        let promised = self.running.len() - yielding;
        let seats = self.policy.seats(promised + spoken_for);
        (seats > 0).then(|| TakeRule {
            seats,
            free: self.policy.seats(self.running.len() + spoken_for),
            fill: self.policy.fill(),
        })
    }

    /// How many more than there are seats would run with `newcomers`.
    #[must_use]
    pub fn seats_short(&self, newcomers: usize) -> usize {
        (self.running.len() + newcomers).saturating_sub(self.policy.max_running())
    }

    /// Begins what happens between two steps, of which the last one took `step_us`: looks at the pace, decides
    /// what the best-effort lane may do, and ends who is to be given up.
    pub fn look(&mut self, now: Timestamp, step_us: f64) {
        self.step_us = step_us;
        let done = self.done.take();
        self.lane.pass(now, done);
        if let Some(loads) = done {
            self.lane.observe_step(loads, step_us);
        }
        for s in &mut self.running {
            if s.ended.is_none() {
                s.ended = s.spec.given_up(now, s.num_generated);
            }
        }
        self.weigh(now);
    }

    /// Decides what the best-effort lane may do in the next step. To be asked again before [`Self::growth`] when
    /// somebody has left or joined.
    pub fn weigh(&mut self, now: Timestamp) {
        let slack_us = self.lane.slack_us(&self.running, now);
        self.allowance = self.lane.allowance(slack_us, self.lane_decodes());
    }

    /// Requests of the best-effort lane that decode next, if they may.
    fn lane_decodes(&self) -> usize {
        let lane = self.of(Lane::BestEffort).filter(|s| s.ended.is_none());
        let prompts_alone = self.policy.order() == StepOrder::PrefillFirst;
        if prompts_alone && lane.clone().any(Sequence::prefilling) {
            return 0;
        }
        lane.filter(|s| !s.prefilling()).count()
    }

    /// Running requests of which more was promised, or wanted, than is expected to be kept.
    #[must_use]
    pub fn late(&self, now: Timestamp) -> usize {
        self.lane.late(&self.running, now)
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
    /// block since they last heard of it. The best-effort lane comes last.
    pub fn growth(&self, demands: &mut Vec<Growth>) {
        demands.clear();
        // Who has ended or pauses writes no more, but others may share what it has computed.
        let ended = self.running.iter().filter(|s| s.ended.is_some());
        let members = Lane::ALL.into_iter().flat_map(|lane| self.members(lane));
        let go_on = members.filter(|(_, s, _)| s.ended.is_none());
        let go_on = go_on.map(|(_, s, may)| (s, may == May::Decode));
        for (s, writes) in ended.map(|s| (s, false)).chain(go_on) {
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
                    let s = &self.running[i];
                    if let Outcome::Finished(FinishReason::Stop | FinishReason::Length) = outcome {
                        self.lane.observe_reply(&s.spec, s.num_generated);
                    }
                    // `remove`, not `swap_remove`: the order of the running set is the order of admission.
                    left.push((self.running.remove(i), outcome));
                }
            }
        }
    }

    /// The step that was in flight has been followed by another, see [`StepPlan::follow`]: that one is in flight.
    pub fn followed(&mut self) {
        assert!(!self.in_flight, "its results come first");
        self.last_step = self.last_step.next();
        self.in_flight = true;
    }

    /// Whether somebody has ended who has not left.
    #[must_use]
    pub fn any_ended(&self) -> bool {
        self.running.iter().any(|s| s.ended.is_some())
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
        // A step that only gives memory back says nothing of the pace.
        self.done = (!plan.rows.is_empty()).then(|| plan.loads());
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

    /// Output tokens that the running requests of a lane may still ask for.
    #[must_use]
    pub fn tokens_remaining(&self, lane: Lane) -> u64 {
        let left = |s: &Sequence<P>| u64::from(s.spec.max_tokens - s.num_generated);
        self.of(lane).map(left).sum()
    }

    /// Tokens that the running requests of a lane have to compute before they go on with their replies.
    #[must_use]
    pub fn prefill_remaining(&self, lane: Lane) -> u64 {
        let left = |s: &Sequence<P>| u64::from(s.prefill_end.saturating_sub(s.num_computed));
        self.of(lane).map(left).sum()
    }

    /// What runs of a lane.
    pub fn of(&self, lane: Lane) -> impl Iterator<Item = &Sequence<P>> + Clone {
        let running = self.running.iter();
        running.filter(move |s| s.spec.terms.lane == lane)
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
