//! The scheduler: which sequences run, and what each of them does in the next step. See README.md beside
//! this file for the idea, the phases and the invariants.
//!
//! Planning a step and taking its results in are O(running sequences) and allocate nothing once the buffers
//! have grown.

pub mod invariants;
pub mod policy;
pub mod step;

use super::kv::Lease;
use super::request::{FinishReason, Outcome, RequestSpec};
use super::wait_queue::TakeRule;
use crate::ids::{RequestId, SeqId, StepId, TokenId};
use policy::{Policy, StepOrder};
use step::{RowPlan, RowResult, StepPlan, Work};

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
    /// Prompt tokens whose KV is computed.
    pub num_computed: u32,
    /// Tokens of the reply so far.
    pub num_generated: u32,
    /// The token sampled last; it is fed to the model by the next decode.
    last_token: Option<TokenId>,
    /// Set when it has ended; it leaves at the next sweep.
    ended: Option<Outcome>,
    pub payload: P,
}

impl<P> Sequence<P> {
    fn prefilling(&self) -> bool {
        self.num_computed < self.spec.prompt_tokens
    }
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
    /// Sequences that have left, whose cells the next plan gives back.
    retiring: Vec<SeqId>,
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
            retiring: Vec::new(),
            last_step: StepId::default(),
            in_flight: false,
        }
    }

    /// What to ask the wait queue for now; `None` while no seat is free.
    #[must_use]
    pub fn take_rule(&self) -> Option<TakeRule> {
        self.policy.take_rule(self.running.len())
    }

    /// Lets a request run. `cached` leading tokens of its prompt are in its sequence already.
    pub fn admit(&mut self, spec: RequestSpec, lease: Lease, cached: u32, payload: P) {
        debug_assert!(
            cached < spec.prompt_tokens,
            "the last prompt token is always computed"
        );
        self.running.push(Sequence {
            spec,
            lease,
            num_computed: cached,
            num_generated: 0,
            last_token: None,
            ended: None,
            payload,
        });
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
                    let s = self.running.remove(i);
                    self.retiring.push(s.lease.seq);
                    left.push((s, outcome));
                }
            }
        }
    }

    /// Fills `plan` with the next step and freezes it. An empty plan is no step.
    pub fn plan(&mut self, plan: &mut StepPlan) {
        debug_assert!(!self.in_flight, "one step at a time");
        plan.rows.clear();
        plan.removals.clear();
        plan.removals.append(&mut self.retiring);
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
    }

    fn plan_decodes(&self, plan: &mut StepPlan) {
        for (index, s) in self.running.iter().enumerate() {
            if let Some(token) = s.last_token.filter(|_| !s.prefilling()) {
                let position = s.spec.prompt_tokens + s.num_generated - 1;
                let work = Work::Decode {
                    position,
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
            let rest = s.spec.prompt_tokens - s.num_computed;
            let len = rest.min(budget);
            budget -= len;
            let work = Work::Prefill {
                start: s.num_computed,
                len,
                last: len == rest,
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
            debug_assert_eq!(s.spec.id, row.request);
            if let (Work::Prefill { start, len, .. }, RowResult::Advanced | RowResult::Sampled(_)) =
                (row.work, result)
            {
                s.num_computed = start + len;
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

    /// The bounds that plans keep.
    #[must_use]
    pub fn limits(&self) -> StepLimits {
        self.limits
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
